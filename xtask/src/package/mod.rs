//! `package`: a Debian package of the agent, one with its debug information, a tarball with the same files, and a container
//! image; for this processor, or for another that Debian has a compiler for.
//!
//! - `release`: what all of them share.
//! - `program`: the binary, stripped, with its debug information beside it.
//! - `tree`: the files where they are on a host, from `packaging/` and from what the binary says of itself.
//! - `deb`: the packages around such a tree.
//! - `image`: the container image.
//!
//! `dpkg-deb` builds the packages, which every Debian has. cargo-deb would have to be compiled first: minutes of continuous
//! integration, while man pages, completions and the split of debug information would still be made here.

mod deb;
mod image;
mod program;
mod release;
mod tree;

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};

use self::{
    deb::Package,
    program::Program,
    release::{Release, epoch},
};
use crate::{processor::Processor, run::find_program};

/// The end of `cargo xtask package --help`.
pub const HELP: &str = "Files:
  underpass_VERSION_ARCH.deb         the agent, its unit, /etc/underpass, man pages, completions
  underpass-dbgsym_VERSION_ARCH.deb  debug information, which gdb and perf find by themselves
  underpass-VERSION-ARCH.tar.gz      the same files as the first, for hosts without dpkg
  underpass-VERSION-ARCH.oci.tar     a container image: `podman load --input`, `skopeo copy oci-archive:...`

With SOURCE_DATE_EPOCH, or in a checkout whose last commit has a date, the same binary makes the same bytes.
docs/operating.md says how to install, upgrade and remove them.";

/// Options of `package`.
#[derive(clap::Args)]
pub struct Args {
    /// Folder for the files
    #[arg(long, value_name = "DIR", default_value = "target/package")]
    out: PathBuf,
    /// Processor to build for, by Rust's name: `aarch64-unknown-linux-gnu` on x86-64
    #[arg(long, value_name = "TRIPLE")]
    target: Option<String>,
    /// Make one kind of files alone
    #[arg(long, value_name = "KIND")]
    only: Option<Kind>,
    /// Package this binary instead of building one, without compression: for tests
    #[arg(long, value_name = "FILE", hide = true)]
    binary: Option<PathBuf>,
    /// Version of the package instead of the workspace's: for tests of an upgrade
    #[arg(long, value_name = "VERSION", default_value = env!("CARGO_PKG_VERSION"), hide = true)]
    version: String,
}

/// A kind of files.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Kind {
    /// Debian packages and the tarball
    Packages,
    /// The container image
    Image,
}

/// The command.
pub fn run(args: &Args) -> Result<()> {
    ensure!(
        find_program("dpkg-deb").is_some(),
        "dpkg-deb was not found: packages are made on Debian, or with its package `dpkg`"
    );
    let release = Release {
        version: args.version.clone(),
        processor: Processor::of(args.target.as_deref())?,
        epoch: epoch()?,
        compressed: args.binary.is_none(),
    };
    let binary = match &args.binary {
        Some(binary) => binary.clone(),
        None => {
            let processor = release.processor;
            processor.ensure()?;
            let folder = processor.build("release", &["-p", "underpass", "--bin", "underpass"])?;
            folder.join("underpass")
        }
    };
    fs::create_dir_all(&args.out).with_context(|| format!("cannot make {}", args.out.display()))?;
    let out = fs::canonicalize(&args.out)?;
    let work = out.join("work");
    remove(&work)?;
    let made = make(&release, &binary, &work, &out, args.only);
    let removed = remove(&work);
    for file in made? {
        let size = fs::metadata(&file)?.len();
        println!("{} ({:.1} MB)", file.display(), size as f64 / 1e6);
    }
    removed
}

fn make(
    release: &Release,
    binary: &Path,
    work: &Path,
    out: &Path,
    only: Option<Kind>,
) -> Result<Vec<PathBuf>> {
    let program = Program::split(release, binary, work)?;
    let mut made = Vec::new();
    if only != Some(Kind::Image) {
        made.extend(packages(release, &program, work, out)?);
    }
    if only != Some(Kind::Packages) {
        made.push(image::build(release, &program.stripped, work, out)?);
    }
    Ok(made)
}

fn packages(release: &Release, program: &Program, work: &Path, out: &Path) -> Result<Vec<PathBuf>> {
    let (files, symbols) = (work.join("files"), work.join("symbols"));
    tree::lay(release, &files, program)?;
    tree::lay_symbols(&symbols, program)?;
    for tree in [&files, &symbols] {
        tree::settle(tree, release.epoch)?;
    }
    let tarball = deb::tarball(release, &files, out)?;
    let depends = program.needs(release)?;
    let agent = deb::build(release, &Package::agent(&depends), &files, out)?;
    let debug = deb::build(release, &Package::symbols(release), &symbols, out)?;
    Ok(vec![agent, debug, tarball])
}

fn remove(folder: &Path) -> Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", folder.display()))
        }
        _ => Ok(()),
    }
}
