//! `kernels`: the BPF programs on other kernels, under emulation: the verdict of `doctor` there,
//! checksummed streams over each engine of the splice that works, the reason why a flow is not
//! on the shortcut, requests that were read from copies, a driver's requests on each path, and the demo. `page` writes what came of it to `docs/kernels.md`.
//!
//! Not part of `test`: it downloads kernels, and emulation takes minutes.

mod apt;
mod guest;
mod page;

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail, ensure};

use self::apt::Apt;
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
const LIMIT_SECONDS: &str = "900";

/// The requests that the guest's driver makes on each path.
const DRIVERS_REQUESTS: u64 = 100;

/// The results of one kernel.
struct Outcome {
    kernel: String,
    doctor: Vec<String>,
    engines: Vec<Carried>,
    /// The reason why a flow is not on the shortcut, from `flows --why`.
    refused: Option<String>,
    /// Requests of a tapped connection that copies have told with their answers.
    tapped: u64,
    /// Requests of a connection that was there before the agent.
    adopted: u64,
    /// Why running connections were not adopted.
    not_adopted: Vec<String>,
    drivers: Vec<Driven>,
    demo: Option<Demo>,
}

/// The outcome of `cargo xtask demo`'s program.
struct Demo {
    /// The demo's exit code.
    code: String,
    /// The checks that held.
    held: u64,
    /// The checks that were made.
    made: u64,
}

/// The outcome of a driver's requests on a path.
struct Driven {
    path: String,
    /// Requests that it got answers to.
    answered: u64,
    /// Statements of the driver that the agent has told.
    told: u64,
}

struct Carried {
    engine: String,
    /// The integrity program's exit code.
    code: String,
    up: u64,
    down: u64,
}

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
    outcome(kernel, &said).with_context(|| format!("see {}", log.display()))
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

fn outcome(kernel: String, said: &str) -> Result<Outcome> {
    let mut outcome = Outcome {
        kernel,
        doctor: Vec::new(),
        engines: Vec::new(),
        refused: None,
        tapped: 0,
        adopted: 0,
        not_adopted: Vec::new(),
        drivers: Vec::new(),
        demo: None,
    };
    let mut is_done = false;
    for line in said.lines() {
        let Some((_, result)) = line.split_once("RESULT ") else {
            continue;
        };
        let words: Vec<&str> = result.split_whitespace().collect();
        match words.as_slice() {
            ["doctor", finding @ ..] => outcome.doctor.push(finding.join(" ")),
            ["carried", engine, code, up, down] => outcome.engines.push(Carried {
                engine: (*engine).to_owned(),
                code: (*code).to_owned(),
                up: up.parse()?,
                down: down.parse()?,
            }),
            ["refused", cause @ ..] => outcome.refused = Some(cause.join(" ")),
            ["tapped", told @ ..] => outcome.tapped = requests(told)?,
            ["adopted", told @ ..] => outcome.adopted = requests(told)?,
            ["not_adopted", reason] => outcome.not_adopted.push((*reason).to_owned()),
            ["driver", path, answered, told] => outcome.drivers.push(Driven {
                path: (*path).to_owned(),
                answered: answered.parse()?,
                told: told.parse()?,
            }),
            ["demo", code, held, made] => {
                outcome.demo = Some(Demo {
                    code: (*code).to_owned(),
                    held: held.parse()?,
                    made: made.parse()?,
                });
            }
            // It has said nothing.
            ["driver", path, _] => bail!("no request of a driver was answered on the path {path}"),
            ["done"] => is_done = true,
            _ => bail!("what is {result:?}?"),
        }
    }
    ensure!(is_done, "it did not come to its end");
    Ok(outcome)
}

/// The number that a metric has; none is 0.
fn requests(told: &[&str]) -> Result<u64> {
    told.first().map_or(Ok(0), |told| Ok(told.parse()?))
}

impl Outcome {
    fn print(&self) {
        println!("{}", self.kernel);
        for finding in &self.doctor {
            println!("  {finding}");
        }
        for one in &self.engines {
            println!(
                "  {}: integrity exited with {}; spliced {} bytes up, {} down",
                one.engine, one.code, one.up, one.down
            );
        }
        if let Some(cause) = &self.refused {
            println!("  a flow from another namespace is refused the shortcut: {cause}");
        }
        println!(
            "  tapped: {} requests; adopted: {} requests{}",
            self.tapped,
            self.adopted,
            self.not_adopted
                .iter()
                .map(|why| format!(", {why}"))
                .collect::<String>()
        );
        for Driven {
            path,
            answered,
            told,
        } in &self.drivers
        {
            println!("  a driver on {path}: {answered} requests answered, {told} told");
        }
        if let Some(Demo { code, held, made }) = &self.demo {
            println!("  the demo: exit code {code}, {held} of {made} checks held");
        }
    }

    fn judge(&self) -> Result<()> {
        ensure!(!self.engines.is_empty(), "no engine of the splice works");
        for engine in ["sender", "egress"] {
            let works = format!("path splice_{engine} ok ");
            let works = self
                .doctor
                .iter()
                .any(|finding| finding.starts_with(&works));
            let carried = self.engines.iter().any(|one| one.engine == engine);
            ensure!(
                carried || !works,
                "{engine}: doctor says that it works, and it did not"
            );
        }
        for one in &self.engines {
            ensure!(
                one.code == "0",
                "{}: the integrity program failed",
                one.engine
            );
            ensure!(
                one.up > 0 && one.down > 0,
                "{}: nothing was spliced",
                one.engine
            );
        }
        // On a guest without the first engine nothing is known.
        let is_listed = |cause: &String| ["foreign_netns", "shortcut_off"].contains(&&**cause);
        ensure!(
            self.refused.as_ref().is_none_or(is_listed),
            "`flows --why` does not say why a flow is refused the shortcut"
        );
        ensure!(
            self.tapped > 0,
            "no request of a tapped connection was told"
        );
        ensure!(
            self.adopted > 0 || !self.not_adopted.is_empty(),
            "a running connection is not read, and nobody says why"
        );
        for path in ["bypass", "tap", "inline"] {
            let driven = self.drivers.iter().find(|one| one.path == path);
            let driven = driven.with_context(|| format!("no driver was tried on {path}"))?;
            ensure!(
                driven.answered == DRIVERS_REQUESTS,
                "{path}: {} of a driver's requests were answered",
                driven.answered
            );
            ensure!(
                path == "bypass" || driven.told > 0,
                "{path}: nothing was told of a driver's requests"
            );
        }
        let demo = self.demo.as_ref().context("the demo was not tried")?;
        // The demo's application runs before the agent does: where no such connection is adopted, there is nothing to show.
        ensure!(
            demo.holds() || self.adopted == 0,
            "the demo ended with {}, and {} of its {} checks held",
            demo.code,
            demo.held,
            demo.made
        );
        Ok(())
    }
}

impl Demo {
    fn holds(&self) -> bool {
        self.code == "0" && self.held == self.made && self.made > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DRIVEN: &str = "RESULT driver bypass 100 0\nRESULT driver tap 100 98\nRESULT driver inline 100 98\n\
         RESULT demo 0 10 10\n";

    #[test]
    fn a_guest_is_understood() {
        let said = "[ 1.0] boot\nRESULT doctor path splice_egress ok carried\n\
                    RESULT carried egress 0 10 20\nRESULT refused foreign_netns\nRESULT tapped 10\n\
                    RESULT adopted\nRESULT not_adopted no_end\n";
        let said = format!("{said}{DRIVEN}RESULT done\n");
        let all = outcome("6.1".into(), &said).unwrap();
        assert_eq!(all.doctor, ["path splice_egress ok carried"]);
        all.judge().unwrap();
        assert!(outcome("6.1".into(), "RESULT carried egress 0 10 20\n").is_err());
        let row = "| 6.1 | amd64 | egress | yes, 10 requests told | no: `no_end` | bypass, tap, inline | all 10 checks |";
        let page = page::of("amd64", &[all], "");
        assert!(page.contains(row), "{page}");
        let shows_nothing = said.replace("RESULT demo 0 10 10", "RESULT demo 1 0 0");
        let all = outcome("6.1".into(), &shows_nothing).unwrap();
        all.judge().unwrap();
        let shown = page::of("amd64", &[all], "");
        assert!(shown.contains("| no: nothing adopted |"), "{shown}");
        // What another processor's run has found stays, and a row of this one's is replaced.
        let again = page::of("arm64", &[], &page);
        assert!(again.contains(row), "{again}");
        let none = page::of("amd64", &[], &page);
        assert!(!none.contains("| 6.1 "), "{none}");
        for bad in [
            "RESULT carried egress 0 10 20\nRESULT tapped 0\nRESULT adopted 3\n",
            "RESULT carried egress 0 10 20\nRESULT tapped 10\nRESULT adopted 0\n",
            "RESULT carried egress 0 10 20\nRESULT refused \n",
            "RESULT carried egress 1 10 20\n",
            "RESULT carried egress 0 0 20\n",
            "RESULT carried egress 0 10 20\nRESULT tapped 10\nRESULT adopted 3\nRESULT driver tap 99 99\n",
            "",
        ] {
            let said = format!("{bad}{DRIVEN}RESULT done\n");
            assert!(
                outcome("6.1".into(), &said).unwrap().judge().is_err(),
                "{bad}"
            );
        }
    }

    #[test]
    fn versions_have_an_order() {
        assert!(numbers("linux-image-6.1.0-9-cloud") < numbers("linux-image-6.1.0-53-cloud"));
    }
}
