//! A small system that has the agent, the integrity program, a database, a driver and the demo, as an initramfs.

use std::{
    fs::{self, File, Permissions},
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, ensure};

use super::apt::Apt;
use crate::{
    processor::Processor,
    run::{capture, find_program, run},
};

const INIT: &str = include_str!("init.sh");

/// Policies of the guest's agents, by their files' names.
const POLICIES: [(&str, &str); 2] = [
    ("agent.toml", include_str!("agent.toml")),
    ("edge.toml", include_str!("edge.toml")),
];

/// Scripts in place of programs that the demo asks for and busybox does not have, or not with these options. Servers need not die with
/// the demo: all end with the guest.
const STAND_INS: [(&str, &str); 2] = [
    ("ss", include_str!("ss.sh")),
    (
        "setpriv",
        "#!/bin/sh\n# --pdeathsig KILL -- PROGRAM\nshift 3\nexec \"$@\"\n",
    ),
];

/// The packages that the guest's programs are of.
const PACKAGES: [&str; 5] = [
    "underpass",
    "underpass-integrity",
    "underpass-cql-node",
    "underpass-bench",
    "underpass-sandbox",
];

/// The programs that the guest gets, with everything that the linker loads for them.
const PROGRAMS: [&str; 5] = [
    "underpass",
    "integrity",
    "cql-node",
    "underpass-bench",
    "examples/driver",
];

/// Cargo's profile of them.
const PROFILE: &str = "guest";

/// Makes the system anew in `folder`, for a processor; each engine is to carry `bytes`. Returns its archive.
pub fn make(folder: &Path, processor: Processor, bytes: &str) -> Result<PathBuf> {
    let packages = PACKAGES.into_iter().flat_map(|name| ["-p", name]);
    let what: Vec<&str> = packages.chain(["--bins", "--example", "driver"]).collect();
    let built = processor.build(PROFILE, &what)?;
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
    let debians = |package: &str, program: &str| match processor.is_cross() {
        true => {
            let unpacked = Apt::of(processor, folder)?.unpacked(package)?;
            Ok(unpacked.join("bin").join(program))
        }
        false => find_program(program).with_context(|| format!("{program} is gone")),
    };
    fs::copy(
        debians("busybox-static", "busybox")?,
        root.join("bin/busybox"),
    )?;
    // busybox's own shell takes its own programs before those of the same name on PATH.
    let shell = debians("dash", "dash")?;
    let programs = PROGRAMS.map(|program| (built.join(program), program));
    for (program, name) in programs.into_iter().chain([(shell, "sh")]) {
        let name = Path::new(name).file_name().unwrap_or_default();
        run(Command::new(processor.tool("strip"))
            .arg("-o")
            .arg(root.join("bin").join(name))
            .arg(&program))?;
        for (from, to) in processor.libraries(&program)? {
            let copy = root.join(to.strip_prefix("/").unwrap_or(&to));
            if let Some(parent) = copy.parent() {
                fs::create_dir_all(parent)?;
            }
            fs::copy(&from, copy).with_context(|| format!("cannot copy {}", from.display()))?;
        }
    }
    for (name, text) in POLICIES {
        fs::write(root.join(name), text)?;
    }
    for (name, text) in STAND_INS {
        script(&root.join("bin").join(name), text)?;
    }
    script(&root.join("init"), &INIT.replace("{BYTES}", bytes))?;
    archive(&root, &folder.join("guest.cpio"))
}

/// The modules that the agent needs and that a host loads by itself when they are asked for: connections are listed by them.
/// In the order of loading.
const MODULES: [&str; 2] = ["inet_diag.ko", "tcp_diag.ko"];

/// Puts modules among the files of a kernel's package behind the guest. Returns both.
pub fn with_modules(guest: &Path, folder: &Path, kernel: &str, files: &Path) -> Result<PathBuf> {
    let root = folder.join(format!("{kernel}.modules"));
    let modules = root.join("modules");
    fs::create_dir_all(&modules)?;
    for (number, name) in MODULES.iter().enumerate() {
        let found = capture(
            Command::new("find")
                .arg(files)
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

fn script(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text)?;
    fs::set_permissions(path, Permissions::from_mode(0o755))?;
    Ok(())
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
