//! `package`: a Debian package of the agent, one with its debug information, and a tarball with the same files.
//!
//! - `program`: the binary, stripped, with its debug information beside it.
//! - `tree`: the files where they are on a host, from `packaging/` and from what the binary says of itself.
//! - `deb`: the packages around such a tree.
//!
//! `dpkg-deb` builds the packages, which every Debian has. cargo-deb would have to be compiled first: minutes of continuous
//! integration, while man pages, completions and the split of debug information would still be made here.

mod deb;
mod program;
mod tree;

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};

use self::{deb::Package, program::Program};
use crate::{
    paths,
    run::{capture, find_program, run as run_command},
    setup::{self, Part},
};

/// The end of `cargo xtask package --help`.
pub const HELP: &str = "Files:
  underpass_VERSION_ARCH.deb         the agent, its unit, /etc/underpass, man pages, completions
  underpass-dbgsym_VERSION_ARCH.deb  debug information, which gdb and perf find by themselves
  underpass-VERSION-ARCH.tar.gz      the same files as the first, for hosts without dpkg

With SOURCE_DATE_EPOCH, or in a checkout whose last commit has a date, the same binary makes the same bytes.
docs/operating.md says how to install, upgrade and remove them.";

/// Options of `package`.
#[derive(clap::Args)]
pub struct Args {
    /// Folder for the files
    #[arg(long, value_name = "DIR", default_value = "target/package")]
    out: PathBuf,
    /// Package this binary instead of building one, without compression: for tests
    #[arg(long, value_name = "FILE", hide = true)]
    binary: Option<PathBuf>,
    /// Version of the package instead of the workspace's: for tests of an upgrade
    #[arg(long, value_name = "VERSION", default_value = env!("CARGO_PKG_VERSION"), hide = true)]
    version: String,
}

/// Facts that all files of a run share.
pub struct Release {
    version: String,
    /// Debian's name of the processor's architecture.
    arch: &'static str,
    /// The time that all files have, in seconds since the epoch.
    epoch: u64,
    /// Whether files are compressed.
    compressed: bool,
}

/// The command.
pub fn run(args: &Args) -> Result<()> {
    ensure!(
        find_program("dpkg-deb").is_some(),
        "dpkg-deb was not found: packages are made on Debian, or with its package `dpkg`"
    );
    let release = Release {
        version: args.version.clone(),
        arch: arch()?,
        epoch: epoch()?,
        compressed: args.binary.is_none(),
    };
    let binary = match &args.binary {
        Some(binary) => binary.clone(),
        None => {
            setup::ensure(&[Part::Build])?;
            program::build()?
        }
    };
    fs::create_dir_all(&args.out).with_context(|| format!("cannot make {}", args.out.display()))?;
    let out = fs::canonicalize(&args.out)?;
    let work = out.join("work");
    remove(&work)?;
    let made = make(&release, &binary, &work, &out);
    let removed = remove(&work);
    for file in made? {
        let size = fs::metadata(&file)?.len();
        println!("{} ({:.1} MB)", file.display(), size as f64 / 1e6);
    }
    removed
}

fn make(release: &Release, binary: &Path, work: &Path, out: &Path) -> Result<Vec<PathBuf>> {
    let (files, symbols) = (work.join("files"), work.join("symbols"));
    let program = Program::split(binary, work, release.compressed)?;
    tree::lay(&files, &program)?;
    tree::lay_symbols(&symbols, &program)?;
    for tree in [&files, &symbols] {
        tree::settle(tree, release.epoch)?;
    }
    let tarball = deb::tarball(release, &files, out)?;
    let depends = program.needs()?;
    let agent = deb::build(release, &Package::agent(&depends), &files, out)?;
    let debug = deb::build(release, &Package::symbols(release), &symbols, out)?;
    Ok(vec![agent, debug, tarball])
}

fn arch() -> Result<&'static str> {
    match std::env::consts::ARCH {
        "x86_64" => Ok("amd64"),
        "aarch64" => Ok("arm64"),
        other => anyhow::bail!("packages are made for x86-64 and arm64, and this is {other}"),
    }
}

/// The time of the last commit, unless the environment says otherwise.
fn epoch() -> Result<u64> {
    if let Ok(text) = std::env::var("SOURCE_DATE_EPOCH") {
        return text
            .parse()
            .context("SOURCE_DATE_EPOCH: expected seconds since 1970");
    }
    let mut git = std::process::Command::new("git");
    git.args(["log", "-1", "--format=%ct"])
        .current_dir(paths::root());
    let said = capture(&mut git).context(
        "the files' time is that of the last commit: set SOURCE_DATE_EPOCH where there is none",
    )?;
    Ok(String::from_utf8(said)?.trim().parse()?)
}

fn remove(folder: &Path) -> Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", folder.display()))
        }
        _ => Ok(()),
    }
}
