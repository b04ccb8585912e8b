//! `kernels`: the agent on other kernels, under emulation: doctor, each path with traffic, the edge, the demo, and what the
//! kernel's verifier made of the BPF programs.
//!
//! - `apt`: kernels and programs of Debian; `guest`: the system that boots, whose only process is `init.sh`.
//! - `outcome`: what a guest has said; `checks`: the verdict on each check; `page`: `docs/kernels.md`, which is made of both.
//!
//! Not part of `test`: it downloads kernels, and emulation takes minutes.

mod apt;
mod checks;
mod guest;
mod outcome;
mod page;

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};

use self::{apt::Apt, outcome::Outcome};
use crate::{
    paths,
    processor::Processor,
    run::{require_root, run as run_command},
    setup::{self, Part},
};

/// Options of `kernels`.
#[derive(clap::Args)]
pub struct Args {
    /// The bytes that each engine carries
    #[arg(long, default_value = "16M")]
    bytes: String,
    /// Processor to try them on, by Rust's name: `aarch64-unknown-linux-gnu`
    #[arg(long, value_name = "TRIPLE")]
    target: Option<String>,
    /// The series of Debian's kernels
    #[arg(default_values = ["6.1", "6.12"])]
    series: Vec<String>,
}

/// An emulated machine.
struct Machine {
    /// Rust's name of its processor.
    processor: &'static str,
    emulator: &'static str,
    options: &'static [&'static str],
    console: &'static str,
    /// The end of the names of Debian's kernels for it.
    flavour: &'static str,
}

const MACHINES: [Machine; 2] = [
    Machine {
        processor: "x86_64",
        emulator: "qemu-system-x86_64",
        options: &["-cpu", "max"],
        console: "ttyS0",
        flavour: "-cloud-amd64-unsigned",
    },
    Machine {
        processor: "aarch64",
        emulator: "qemu-system-aarch64",
        // Pointers are signed by a cheap hash: the real one is most of what an emulator does.
        options: &["-machine", "virt", "-cpu", "max,pauth-impdef=on"],
        console: "ttyAMA0",
        flavour: "-cloud-arm64-unsigned",
    },
];

/// One thread for one processor. Side by side, one may run code that another has just patched (static branches), which ends in an oops; with the
/// clock below, 6.1 waits for a second one for ever.
const ACCELERATOR: &str = "tcg,thread=single";

/// The guest's clock goes by its instructions, four nanoseconds each, and on at once where it sleeps: a host that is slow makes no second
/// of a canary shorter.
const CLOCK: &str = "shift=2,sleep=off";

/// The seconds after which an emulated machine that has not finished counts as hanging.
const LIMIT_SECONDS: &str = "1500";

/// The command.
pub fn run(args: &Args) -> Result<()> {
    require_root("kernels", "installs an emulator")?;
    let processor = Processor::of(args.target.as_deref())?;
    let machine = MACHINES.iter().find(|one| one.processor == processor.name);
    let machine = machine.with_context(|| format!("no emulator for {}", processor.name))?;
    setup::ensure(&[Part::Kernels])?;
    processor.ensure()?;
    let folder = paths::target().join("kernels").join(processor.arch);
    fs::create_dir_all(&folder)?;
    let guest = guest::make(&folder, processor, &args.bytes)?;
    let apt = Apt::of(processor, &folder)?;
    let mut failed = Vec::new();
    let mut outcomes = Vec::new();
    for series in &args.series {
        let outcome = boot(&folder, &apt, machine, series, &guest)?;
        outcome.print();
        if let Err(reason) = outcome.judge() {
            failed.push(format!("{}: {reason:#}", outcome.kernel));
        }
        outcomes.push(outcome);
    }
    page::write(processor, &outcomes)?;
    ensure!(failed.is_empty(), "{}", failed.join("; "));
    Ok(())
}

fn boot(
    folder: &Path,
    apt: &Apt<'_>,
    machine: &Machine,
    series: &str,
    guest: &Path,
) -> Result<Outcome> {
    let (kernel, files) = newest(apt, machine, series)?;
    let image = fs::read_dir(files.join("boot"))?
        .flatten()
        .map(|entry| entry.path())
        .find(|path| path.to_string_lossy().contains("/vmlinuz-"));
    let image = image.context("no kernel in the package")?;
    let initrd = guest::with_modules(guest, folder, &kernel, &files)?;
    let log = folder.join(format!("{kernel}.log"));
    eprintln!("booting {kernel}: {}", log.display());
    run_command(
        Command::new("timeout")
            .args(["--kill-after=5", LIMIT_SECONDS, machine.emulator])
            .args(machine.options)
            .args(["-accel", ACCELERATOR])
            .args(["-icount", CLOCK])
            .args(["-m", "2G", "-nographic", "-no-reboot"])
            .arg("-kernel")
            .arg(&image)
            .arg("-initrd")
            .arg(&initrd)
            .args([
                "-append",
                &format!("console={} quiet panic=-1", machine.console),
            ])
            .stdout(File::create(&log)?),
    )
    .with_context(|| format!("{kernel} did not end by itself, see {}", log.display()))?;
    let said = String::from_utf8_lossy(&fs::read(&log)?).into_owned();
    Outcome::read(kernel, &said).with_context(|| format!("see {}", log.display()))
}

/// The newest kernel of a series that Debian has: its version, and the files of its package.
fn newest(apt: &Apt<'_>, machine: &Machine, series: &str) -> Result<(String, PathBuf)> {
    let (begin, end) = (format!("linux-image-{series}."), machine.flavour);
    let names = apt.names(&begin)?;
    let newest = names
        .iter()
        .filter(|name| name.ends_with(end))
        .max_by_key(|name| numbers(name))
        .with_context(|| format!("apt knows no {begin}*{end}: `apt-get update`?"))?;
    let kernel = newest.trim_start_matches("linux-image-");
    let kernel = kernel.trim_end_matches(end).to_owned();
    Ok((kernel, apt.unpacked(newest)?))
}

/// Splits a version into numbers, by which versions are ordered.
fn numbers(name: &str) -> Vec<u64> {
    name.split(|c: char| !c.is_ascii_digit())
        .filter_map(|digits| digits.parse().ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_have_an_order() {
        assert!(numbers("linux-image-6.1.0-9-cloud") < numbers("linux-image-6.1.0-53-cloud"));
    }
}
