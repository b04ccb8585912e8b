//! A small system that has the agent and the integrity program, as an initramfs.

use std::{
    fs::{self, File, Permissions},
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, ensure};

use crate::{
    paths,
    run::{capture, cargo, find_program, run},
};

const INIT: &str = include_str!("init.sh");
const AGENT: &str = include_str!("agent.toml");

/// The programs of the release build that the guest gets, with everything that the linker loads for
/// them.
const PROGRAMS: [&str; 2] = ["underpass", "integrity"];

/// Makes the system anew in `folder`; each engine is to carry `bytes`. Returns its archive.
pub fn make(folder: &Path, bytes: &str) -> Result<PathBuf> {
    run(cargo().args([
        "build",
        "--release",
        "-p",
        "underpass",
        "-p",
        "underpass-integrity",
    ]))?;
    let root = folder.join("guest");
    if root.exists() {
        fs::remove_dir_all(&root)?;
    }
    for part in ["bin", "proc", "sys", "dev", "tmp", "run", "etc"] {
        fs::create_dir_all(root.join(part))?;
    }
    // The agent looks whom its admin socket is for.
    File::create(root.join("etc/group"))?;
    symlink("bin", root.join("sbin"))?;
    let busybox = find_program("busybox").context("busybox is gone")?;
    fs::copy(busybox, root.join("bin/busybox"))?;
    for program in PROGRAMS {
        let built = paths::target().join("release").join(program);
        run(Command::new("strip")
            .arg("-o")
            .arg(root.join("bin").join(program))
            .arg(&built))?;
        libraries(&built, &root)?;
    }
    fs::write(root.join("agent.toml"), AGENT)?;
    let init = root.join("init");
    fs::write(&init, INIT.replace("{BYTES}", bytes))?;
    fs::set_permissions(&init, Permissions::from_mode(0o755))?;
    archive(&root, &folder.join("guest.cpio"))
}

/// Copies the libraries that ldd(1) names to the same places.
fn libraries(program: &Path, root: &Path) -> Result<()> {
    let named = String::from_utf8(capture(Command::new("ldd").arg(program))?)?;
    let files = named
        .split_whitespace()
        .filter(|word| word.starts_with('/'));
    for file in files {
        let copy = root.join(file.trim_start_matches('/'));
        if let Some(parent) = copy.parent() {
            fs::create_dir_all(parent)?;
        }
        fs::copy(file, copy).with_context(|| format!("cannot copy {file}"))?;
    }
    Ok(())
}

/// The modules that the agent needs and that a host loads by itself when they are asked for: connections are listed by them.
/// In the order of loading.
const MODULES: [&str; 2] = ["inet_diag.ko", "tcp_diag.ko"];

/// Puts the modules of a kernel, whose package is unpacked in `folder`, behind the guest. Returns both.
pub fn with_modules(guest: &Path, folder: &Path, kernel: &str) -> Result<PathBuf> {
    let root = folder.join(format!("{kernel}.modules"));
    let modules = root.join("modules");
    fs::create_dir_all(&modules)?;
    for (number, name) in MODULES.iter().enumerate() {
        let found = capture(
            Command::new("find")
                .arg(folder.join(kernel))
                .args(["-name", &format!("{name}*")]),
        )?;
        let found = String::from_utf8(found)?;
        let module = found
            .lines()
            .next()
            .with_context(|| format!("{kernel} has no {name}"))?;
        let to = modules.join(format!("{number}-{name}"));
        match module.ends_with(".xz") {
            true => fs::write(&to, capture(Command::new("xz").args(["-dc", module]))?)?,
            false => fs::copy(module, &to).map(drop)?,
        }
    }
    let extra = archive(&root, &folder.join(format!("{kernel}.modules.cpio")))?;
    let initrd = folder.join(format!("{kernel}.initrd"));
    let both = [fs::read(guest)?, fs::read(extra)?].concat();
    fs::write(&initrd, both)?;
    Ok(initrd)
}

fn archive(root: &Path, to: &Path) -> Result<PathBuf> {
    let names = Command::new("find")
        .arg(".")
        .current_dir(root)
        .stdout(Stdio::piped())
        .spawn()?;
    let made = Command::new("cpio")
        .args(["--quiet", "--create", "--format=newc"])
        .current_dir(root)
        .stdin(names.stdout.context("find has no output")?)
        .stdout(File::create(to)?)
        .status()?;
    ensure!(made.success(), "cpio failed ({made})");
    Ok(to.to_owned())
}
