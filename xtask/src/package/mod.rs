//! `package`: a Debian package of the agent, one with its debug information, a tarball with the same files, and a container
//! image; for this processor, or for another that Debian has a compiler for.
//!
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
mod tree;

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
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

/// Facts that all files of a run share.
pub struct Release {
    version: String,
    /// The processor, by Rust's name.
    processor: &'static str,
    /// Debian's name of it, which is that of container images, too.
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
    let (processor, arch) = processor(args.target.as_deref())?;
    let release = Release {
        version: args.version.clone(),
        processor,
        arch,
        epoch: epoch()?,
        compressed: args.binary.is_none(),
    };
    let binary = match &args.binary {
        Some(binary) => binary.clone(),
        None => {
            setup::ensure(&[Part::Build])?;
            if release.is_cross() {
                setup::ensure(&[Part::Package])?;
                setup::ensure_target(&release.target())?;
            }
            program::build(&release)?
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

/// Processors that packages are made for: Rust's name and Debian's.
const PROCESSORS: [(&str, &str); 2] = [("x86_64", "amd64"), ("aarch64", "arm64")];

fn processor(target: Option<&str>) -> Result<(&'static str, &'static str)> {
    let wanted = match target {
        None => std::env::consts::ARCH,
        Some(target) => target
            .strip_suffix("-unknown-linux-gnu")
            .with_context(|| format!("expected PROCESSOR-unknown-linux-gnu, found {target}"))?,
    };
    let found = PROCESSORS.iter().find(|(name, _)| *name == wanted);
    let found = found.copied();
    found.with_context(|| format!("packages are made for x86_64 and aarch64, and this is {wanted}"))
}

impl Release {
    /// Whether the packages are for another processor than this one.
    fn is_cross(&self) -> bool {
        self.processor != std::env::consts::ARCH
    }

    /// Returns Rust's name of the target.
    fn target(&self) -> String {
        format!("{}-unknown-linux-gnu", self.processor)
    }

    /// Returns Debian's name of the target.
    fn triple(&self) -> String {
        format!("{}-linux-gnu", self.processor)
    }

    /// Returns the name of one of binutils' tools for the target.
    fn tool(&self, name: &str) -> String {
        match self.is_cross() {
            true => format!("{}-{name}", self.triple()),
            false => name.to_owned(),
        }
    }

    /// Makes a command of a program of the target, which is emulated if it is for another processor.
    fn command(&self, program: &Path) -> Command {
        if !self.is_cross() {
            return Command::new(program);
        }
        let mut command = Command::new(format!("qemu-{}", self.processor));
        command
            .arg("-L")
            .arg(format!("/usr/{}", self.triple()))
            .arg(program);
        command
    }
}

/// The time of the last commit, unless the environment says otherwise.
fn epoch() -> Result<u64> {
    if let Ok(text) = std::env::var("SOURCE_DATE_EPOCH") {
        return text
            .parse()
            .context("SOURCE_DATE_EPOCH: expected seconds since 1970");
    }
    let mut git = Command::new("git");
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
