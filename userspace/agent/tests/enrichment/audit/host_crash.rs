//! The audit's file when the whole host dies: what is on the disk, by `fsync`.
//!
//! The disk is a file with a file system in it. What its kernel has in memory and not on the disk is not in that file, as it
//! would not be on a disk whose host has lost its power: a copy of the file is that disk.

use std::{process::Command, time::Duration};

use nix::mount::{MntFlags, umount2};

use super::{crash::with_mounts_of_its_own, *};

const DISK_BYTES: u64 = 32 << 20;

/// Requests, with a line each.
const MANY: usize = 500;

/// Longer than the `1s` of the policy and what an fsync takes, and shorter than the kernel keeps what nobody has asked it to put on the
/// disk (30 s).
const A_WHILE: Duration = Duration::from_secs(4);

const TRIES: usize = 3;

fn runs(program: &str, args: &[&str]) {
    let output = Command::new(program).args(args).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {args:?}: {said}");
}

fn mounts(image: &Path, folder: &Path) {
    let [image, folder] = [image, folder].map(|path| path.to_str().unwrap());
    runs("mount", &["-t", "ext4", "-o", "loop", image, folder]);
}

/// The lines in the audit's file on the disk as it is now, once its file system has been recovered.
fn on_the_disk(image: &Path) -> usize {
    let folder = tempfile::tempdir().unwrap();
    let (copy, mounted) = (folder.path().join("copy"), folder.path().join("mounted"));
    fs::copy(image, &copy).unwrap();
    fs::create_dir(&mounted).unwrap();
    mounts(&copy, &mounted);
    let file = mounted.join("audit.log");
    let whole = lines(&file).len();
    umount2(&mounted, MntFlags::empty()).unwrap();
    whole
}

/// Lines on the disk, of [`MANY`], when the host dies `after` all were counted as written.
fn left_by(fsync: &str, after: Duration) -> usize {
    let mut left = 0;
    with_mounts_of_its_own(|| {
        let folder = tempfile::tempdir().unwrap();
        let (image, disk) = (folder.path().join("image"), folder.path().join("disk"));
        fs::File::create(&image)
            .unwrap()
            .set_len(DISK_BYTES)
            .unwrap();
        runs("mkfs.ext4", &["-q", image.to_str().unwrap()]);
        fs::create_dir(&disk).unwrap();
        mounts(&image, &disk);
        host(|host| {
            let settings = format!(", kinds = [\"select\"], fsync = \"{fsync}\"");
            host.policy(&policy(&disk.join("audit.log"), &settings, ""));
            let mut c = begin(host, 4);
            asks_much(&mut c, MANY, SELECT);
            eventually("all are written", || {
                records(host, "written") as usize == MANY
            });
            std::thread::sleep(after);
            left = on_the_disk(&image);
            c.ends();
        });
        umount2(&disk, MntFlags::empty()).unwrap();
    });
    left
}

#[test]
fn what_fsync_has_put_on_the_disk_survives_the_hosts_death() {
    assert_eq!(left_by("batch", Duration::ZERO), MANY);
    assert_eq!(left_by("1s", A_WHILE), MANY);
    // Where nothing is promised less is there, unless the kernel writes at that moment what it has.
    let is_less = |_| left_by("never", Duration::ZERO) < MANY;
    assert!((0..TRIES).any(is_less), "the test would not see a loss");
}
