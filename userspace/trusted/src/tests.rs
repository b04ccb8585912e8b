use std::{
    fs::Permissions,
    os::unix::{
        fs::{PermissionsExt, symlink},
        net::UnixListener,
    },
    time::{Duration, Instant},
};

use nix::{
    sys::stat::Mode,
    unistd::{Gid, Uid, chown, mkfifo},
};

use super::*;

const MOST: u64 = 100;

fn mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

/// A trusted folder, and the path of a file in it.
fn file(bytes: &str) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    fs::write(&path, bytes).unwrap();
    mode(&path, 0o644);
    (folder, path)
}

fn both(path: &Path) -> [Result<(), String>; 2] {
    let said = |e: Untrusted| e.to_string();
    [
        read(path, MOST).map(drop).map_err(said),
        open_to_append(path, 0o600).map(drop).map_err(said),
    ]
}

#[test]
fn what_only_root_can_change_is_read_and_written() {
    let (_folder, path) = file("x");
    assert_eq!(both(&path), [Ok(()), Ok(())]);
    // Another user may read it, and a group of root's may write to it.
    mode(&path, 0o664);
    if geteuid().is_root() {
        assert_eq!(both(&path), [Ok(()), Ok(())]);
    }
}

#[test]
fn what_others_can_change_is_refused_and_the_message_says_what_to_do() {
    let (folder, path) = file("x");
    for bits in [0o646, 0o602, 0o666] {
        mode(&path, bits);
        for said in both(&path) {
            let said = said.unwrap_err();
            assert!(
                said.contains(&format!("chmod go-w {}", path.display())),
                "{said}"
            );
        }
    }
    mode(&path, 0o644);
    // A folder in which anybody can exchange the file.
    mode(folder.path(), 0o777);
    for said in both(&path) {
        let said = said.unwrap_err();
        let wanted = format!(
            "chmod go-w {}",
            folder.path().canonicalize().unwrap().display()
        );
        assert!(said.contains(&wanted), "{said}");
    }
    mode(folder.path(), 0o1777);
    assert_eq!(both(&path), [Ok(()), Ok(())]);
    // But nothing new is made there: the name may be anybody's.
    let new = open_to_append(&folder.path().join("new"), 0o600);
    assert!(matches!(new, Err(Untrusted::Writable { .. })), "{new:?}");
}

#[test]
fn what_belongs_to_another_is_refused() {
    if !geteuid().is_root() {
        return;
    }
    let (folder, path) = file("x");
    let nobody = (Some(Uid::from_raw(65_534)), Some(Gid::from_raw(65_534)));
    chown(&path, nobody.0, nobody.1).unwrap();
    for said in both(&path) {
        assert!(said.unwrap_err().contains("belongs to uid 65534"));
    }
    chown(&path, Some(Uid::from_raw(0)), nobody.1).unwrap();
    mode(&path, 0o664);
    for said in both(&path) {
        assert!(said.unwrap_err().contains("others can write to"));
    }
    mode(&path, 0o644);
    chown(folder.path(), nobody.0, nobody.1).unwrap();
    for said in both(&path) {
        assert!(said.unwrap_err().contains("belongs to uid 65534"));
    }
}

#[test]
fn a_folder_above_that_others_own_or_write_to_is_refused() {
    let (above, _) = file("x");
    let folder_in = above.path().join("in");
    fs::create_dir(&folder_in).unwrap();
    let path = folder_in.join("file");
    fs::write(&path, "x").unwrap();
    mode(above.path(), 0o707);
    for said in both(&path) {
        assert!(said.unwrap_err().contains("others can write to"));
    }
    // A group may, as at /var/log.
    mode(above.path(), 0o770);
    assert_eq!(both(&path), [Ok(()), Ok(())]);
}

#[test]
fn a_pipe_a_device_a_socket_and_a_folder_are_refused_at_once() {
    let (folder, _) = file("x");
    let at = |name: &str| folder.path().join(name);
    mkfifo(&at("pipe"), Mode::S_IRWXU).unwrap();
    let _socket = UnixListener::bind(at("socket")).unwrap();
    let begun = Instant::now();
    for (path, what) in [
        (at("pipe"), "is a pipe"),
        (PathBuf::from("/dev/full"), "is a device"),
        (at("socket"), "is a socket"),
        (folder.path().to_owned(), "is a folder"),
    ] {
        for said in both(&path) {
            let said = said.unwrap_err();
            assert!(said.contains(what), "{said}");
        }
    }
    assert!(begun.elapsed() < Duration::from_secs(1));
}

#[test]
fn links_are_followed_to_read_and_not_to_write() {
    let (folder, path) = file("x");
    let link = folder.path().join("link");
    symlink(&path, &link).unwrap();
    let [read, written] = both(&link);
    assert_eq!(read, Ok(()));
    assert!(written.unwrap_err().contains("is a symbolic link"));
    // A link that others can change leads anywhere.
    let open_to_all = folder.path().join("open");
    fs::create_dir(&open_to_all).unwrap();
    let link = open_to_all.join("link");
    symlink(&path, &link).unwrap();
    mode(&open_to_all, 0o777);
    let [read, _] = both(&link);
    assert!(read.unwrap_err().contains("others can write to"));
}

#[test]
fn a_file_that_is_too_long_is_not_read() {
    let (_folder, path) = file(&"x".repeat(MOST as usize));
    assert_eq!(read(&path, MOST).unwrap().len() as u64, MOST);
    assert!(matches!(
        read(&path, MOST - 1),
        Err(Untrusted::TooLong { .. })
    ));
    assert!(
        read(Path::new("/nowhere/at/all"), 1)
            .unwrap_err()
            .is_absent()
    );
}

#[test]
fn a_file_that_is_made_is_its_owners() {
    let (folder, _) = file("x");
    let path = folder.path().join("new");
    open_to_append(&path, 0o600).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o600);
}
