//! The files of a package, in the places where a host has them.

use std::{
    fs::{self, File, Permissions},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, UNIX_EPOCH},
};

use anyhow::{Context, Result};

use super::{program::Program, release::Release};
use crate::{paths, run::run as run_command};

/// The mode of folders and programs.
pub const OPEN: u32 = 0o755;
/// The mode of files.
pub const PLAIN: u32 = 0o644;

/// Files that are copied: from the checkout, to the host.
const COPIED: [(&str, &str); 11] = [
    (
        "packaging/underpass.service",
        "usr/lib/systemd/system/underpass.service",
    ),
    (
        "packaging/underpass.sysusers",
        "usr/lib/sysusers.d/underpass.conf",
    ),
    (
        "packaging/underpass.tmpfiles",
        "usr/lib/tmpfiles.d/underpass.conf",
    ),
    ("packaging/underpass.logrotate", "etc/logrotate.d/underpass"),
    ("packaging/underpass.toml", "etc/underpass/underpass.toml"),
    (
        "packaging/debian/copyright",
        "usr/share/doc/underpass/copyright",
    ),
    (
        "config/underpass.toml",
        "usr/share/doc/underpass/examples/underpass.toml",
    ),
    ("README.md", "usr/share/doc/underpass/README.md"),
    ("CHANGELOG.md", "usr/share/doc/underpass/CHANGELOG.md"),
    ("LICENSE-APACHE", "usr/share/doc/underpass/LICENSE-APACHE"),
    ("LICENSE-MIT", "usr/share/doc/underpass/LICENSE-MIT"),
];

/// Folders of the checkout whose files are copied, with those beneath.
const FOLDERS: [(&str, &str); 4] = [
    ("docs", "usr/share/doc/underpass/docs"),
    ("config/examples", "usr/share/doc/underpass/examples"),
    ("config/grafana", "usr/share/doc/underpass/grafana"),
    ("config/prometheus", "usr/share/doc/underpass/prometheus"),
];

/// A folder for files of the operator's.
const EMPTY: &str = "etc/underpass/conf.d";

/// The places in which shells look for what completes a command's words: the name that the program gives the file, and
/// the place.
const COMPLETIONS: [(&str, &str); 3] = [
    (
        "underpass.bash",
        "usr/share/bash-completion/completions/underpass",
    ),
    ("_underpass", "usr/share/zsh/vendor-completions/_underpass"),
    (
        "underpass.fish",
        "usr/share/fish/vendor_completions.d/underpass.fish",
    ),
];

/// Files that an operator changes, and that an upgrade leaves alone.
pub const CONFIGURATION: [&str; 2] = [
    "/etc/logrotate.d/underpass",
    "/etc/underpass/underpass.toml",
];

/// Lays the agent's files beneath `tree`.
pub fn lay(release: &Release, tree: &Path, program: &Program) -> Result<()> {
    install(&program.stripped, &tree.join("usr/bin/underpass"), OPEN)?;
    for (from, to) in COPIED {
        install(&paths::root().join(from), &tree.join(to), PLAIN)?;
    }
    fs::create_dir_all(tree.join(EMPTY))?;
    for (from, to) in FOLDERS {
        for file in files(&paths::root().join(from))? {
            let below = file.strip_prefix(paths::root().join(from))?;
            install(&file, &tree.join(to).join(below), PLAIN)?;
        }
    }
    let pages = tree.join("pages");
    run_command(
        release
            .processor
            .command(&program.stripped)
            .arg("pages")
            .arg(&pages),
    )?;
    let man = tree.join("usr/share/man/man1");
    for page in files(&pages.join("man"))? {
        let name = page.file_name().context("a page without a name")?;
        install(&page, &man.join(name), PLAIN)?;
    }
    let mut gzip = Command::new("gzip");
    gzip.args(["--no-name", "--best"]).args(files(&man)?);
    run_command(&mut gzip)?;
    for (from, to) in COMPLETIONS {
        install(&pages.join("completions").join(from), &tree.join(to), PLAIN)?;
    }
    Ok(fs::remove_dir_all(&pages)?)
}

/// Lays the debug information beneath `tree`, where debuggers look for it by the build id.
pub fn lay_symbols(tree: &Path, program: &Program) -> Result<()> {
    let (first, rest) = program.build_id.split_at(2);
    let at = format!("usr/lib/debug/.build-id/{first}/{rest}.debug");
    install(&program.symbols, &tree.join(at), PLAIN)?;
    let copyright = "usr/share/doc/underpass-dbgsym/LICENSE-MIT";
    install(
        &paths::root().join("LICENSE-MIT"),
        &tree.join(copyright),
        PLAIN,
    )
}

/// Gives everything beneath a folder, and the folder, one time, and folders their mode.
pub fn settle(tree: &Path, epoch: u64) -> Result<()> {
    let time = UNIX_EPOCH + Duration::from_secs(epoch);
    for entry in fs::read_dir(tree)? {
        let path = entry?.path();
        match path.is_dir() {
            true => settle(&path, epoch)?,
            false => File::options()
                .append(true)
                .open(&path)?
                .set_modified(time)?,
        }
    }
    fs::set_permissions(tree, Permissions::from_mode(OPEN))?;
    Ok(File::open(tree)?.set_modified(time)?)
}

/// All files beneath a folder, in order.
pub fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries =
        fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    let mut found = Vec::new();
    for entry in entries {
        let path = entry?.path();
        match path.is_dir() {
            true => found.extend(files(&path)?),
            false => found.push(path),
        }
    }
    found.sort();
    Ok(found)
}

/// Copies a file, and makes the folders above it.
pub fn install(from: &Path, to: &Path, mode: u32) -> Result<()> {
    let folder = to.parent().context("a file without a folder")?;
    let installed = fs::create_dir_all(folder)
        .and_then(|()| fs::copy(from, to))
        .and_then(|_| fs::set_permissions(to, Permissions::from_mode(mode)));
    installed.with_context(|| format!("cannot install {} as {}", from.display(), to.display()))
}
