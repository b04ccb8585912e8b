//! `kernels`: the BPF programs on other kernels, under emulation: the verdict of `doctor` there,
//! checksummed streams over each engine of the splice that works, the reason why a flow is not
//! on the shortcut, and connections that the tap reads. `docs/kernels.md` is rendered from what comes of it.
//!
//! Not part of `test`: it downloads kernels, and emulation takes minutes.

mod guest;

use std::{
    env,
    fs::{self, File},
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail, ensure};

use crate::{
    paths,
    run::{capture, require_root, run as run_command},
    setup::{self, Part},
};

/// Options of `kernels`.
#[derive(clap::Args)]
pub struct Args {
    /// The bytes that each engine carries
    #[arg(long, default_value = "16M")]
    bytes: String,
    /// The series of Debian's kernels
    #[arg(default_values = ["6.1", "6.12"])]
    series: Vec<String>,
}

/// The seconds after which an emulated machine that has not finished counts as hanging.
const LIMIT_SECONDS: &str = "900";

/// The page with the results.
const PAGE: &str = "docs/kernels.md";

/// The results of one kernel.
struct Outcome {
    kernel: String,
    doctor: Vec<String>,
    engines: Vec<Carried>,
    /// The reason why a flow is not on the shortcut, from `flows --why`.
    refused: Option<String>,
    tapped: Option<Tapped>,
}

/// What the tap has read: of a connection that was there before the agent, and of one that was not.
struct Tapped {
    /// Running connections that were found.
    adopted: u64,
    /// Requests that were counted.
    counted: u64,
    /// Requests of each of the two.
    asked: u64,
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
    ensure!(
        env::consts::ARCH == "x86_64",
        "`cargo xtask kernels` emulates x86-64 on x86-64 only"
    );
    setup::ensure(&[Part::Build, Part::Kernels])?;
    let folder = paths::target().join("kernels");
    fs::create_dir_all(&folder)?;
    let guest = guest::make(&folder, &args.bytes)?;
    let outcomes: Vec<Outcome> = args
        .series
        .iter()
        .map(|series| boot(&folder, series, &guest).inspect(Outcome::print))
        .collect::<Result<_>>()?;
    let failed: Vec<String> = outcomes
        .iter()
        .filter_map(|outcome| Some(format!("{}: {:#}", outcome.kernel, outcome.judge().err()?)))
        .collect();
    ensure!(failed.is_empty(), "{}", failed.join("; "));
    fs::write(paths::root().join(PAGE), page(&outcomes))?;
    Ok(())
}

fn boot(folder: &Path, series: &str, guest: &Path) -> Result<Outcome> {
    let (kernel, image) = image(folder, series)?;
    let log = folder.join(format!("{kernel}.log"));
    eprintln!("booting {kernel}: {}", log.display());
    run_command(
        Command::new("timeout")
            .args(["--kill-after=5", LIMIT_SECONDS, "qemu-system-x86_64"])
            .args(["-accel", "tcg,thread=multi", "-cpu", "max"])
            .args(["-smp", "2", "-m", "2G", "-nographic", "-no-reboot"])
            .arg("-kernel")
            .arg(&image)
            .arg("-initrd")
            .arg(guest)
            .args(["-append", "console=ttyS0 quiet panic=-1"])
            .stdout(File::create(&log)?),
    )
    .with_context(|| format!("{kernel} did not end by itself, see {}", log.display()))?;
    let said = String::from_utf8_lossy(&fs::read(&log)?).into_owned();
    outcome(kernel, &said).with_context(|| format!("see {}", log.display()))
}

/// The newest of a series that Debian has.
fn image(folder: &Path, series: &str) -> Result<(String, PathBuf)> {
    let (start, end) = (format!("linux-image-{series}."), "-cloud-amd64-unsigned");
    let names = capture(Command::new("apt-cache").args(["pkgnames", &start]))?;
    let names = String::from_utf8(names)?;
    let newest = names
        .lines()
        .filter(|name| name.ends_with(end))
        .max_by_key(|name| numbers(name))
        .with_context(|| format!("apt knows no {start}*{end}: `apt-get update`?"))?;
    let kernel = newest
        .trim_start_matches("linux-image-")
        .trim_end_matches(end);
    let root = folder.join(kernel);
    if !root.exists() {
        run_command(
            Command::new("apt-get")
                .args(["download", newest])
                .current_dir(folder),
        )?;
        let package = fs::read_dir(folder)?
            .flatten()
            .map(|entry| entry.path())
            .find(|path| {
                let name = path.file_name().unwrap_or_default().to_string_lossy();
                name.starts_with(&format!("{newest}_"))
            });
        let package = package.context("apt-get has downloaded nothing")?;
        run_command(Command::new("dpkg-deb").arg("-x").arg(&package).arg(&root))?;
        fs::remove_file(package)?;
    }
    let image = fs::read_dir(root.join("boot"))?
        .flatten()
        .map(|entry| entry.path())
        .find(|path| path.to_string_lossy().contains("/vmlinuz-"));
    Ok((
        kernel.to_owned(),
        image.context("no kernel in the package")?,
    ))
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
        tapped: None,
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
            ["tapped", adopted, counted, asked] => {
                outcome.tapped = Some(Tapped {
                    adopted: adopted.parse()?,
                    counted: counted.parse()?,
                    asked: asked.parse()?,
                });
            }
            ["done"] => is_done = true,
            _ => bail!("what is {result:?}?"),
        }
    }
    ensure!(is_done, "it did not come to its end");
    Ok(outcome)
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
        if let Some(tapped) = &self.tapped {
            println!("  tap: {}", tapped.said());
        }
        if let Some(cause) = &self.refused {
            println!("  a flow from another namespace is refused the shortcut: {cause}");
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
        let observes = self
            .doctor
            .iter()
            .any(|finding| finding.starts_with("observe ok "));
        ensure!(
            !observes || self.tapped.as_ref().is_some_and(Tapped::is_whole),
            "the tap has not read what was asked"
        );
        // On a guest without the first engine nothing is known.
        let is_listed = |cause: &String| ["foreign_netns", "shortcut_off"].contains(&&**cause);
        ensure!(
            self.refused.as_ref().is_none_or(is_listed),
            "`flows --why` does not say why a flow is refused the shortcut"
        );
        Ok(())
    }
}

impl Tapped {
    fn is_whole(&self) -> bool {
        self.adopted == 1 && self.counted == 2 * self.asked
    }

    fn said(&self) -> String {
        let Self {
            adopted,
            counted,
            asked,
        } = self;
        format!(
            "{counted} of {} requests counted, {adopted} running connection found",
            2 * asked
        )
    }
}

/// The page: a row for each thing that was tried, a column for each kernel.
fn page(outcomes: &[Outcome]) -> String {
    let finding = |outcome: &Outcome, what: &str| {
        let mut findings = outcome.doctor.iter();
        let found = findings.find_map(|finding| finding.strip_prefix(what));
        found.unwrap_or("not tried").trim().to_owned()
    };
    let carried = |outcome: &Outcome, engine: &str| {
        let mut engines = outcome.engines.iter().filter(|one| one.engine == engine);
        engines.next().map_or("not tried".to_owned(), |one| {
            format!("{} bytes up, {} down, none wrong", one.up, one.down)
        })
    };
    let tapped = |outcome: &Outcome| match &outcome.tapped {
        Some(tapped) => tapped.said(),
        None => "not tried".to_owned(),
    };
    let row = |name: &str, cell: &dyn Fn(&Outcome) -> String| {
        let cells: Vec<String> = outcomes.iter().map(cell).collect();
        format!("| {name} | {} |\n", cells.join(" | "))
    };
    let mut page = PREFACE.to_owned();
    page += &row("kernel", &|outcome| outcome.kernel.clone());
    page += &format!("| --- |{}\n", " --- |".repeat(outcomes.len()));
    for what in [
        "observe",
        "shortcut",
        "path splice_sender",
        "path splice_egress",
    ] {
        page += &row(&format!("`doctor`: {what}"), &|outcome| {
            finding(outcome, what)
        });
    }
    page += &row("the tap", &tapped);
    for engine in ["sender", "egress"] {
        let name = format!("streams over the engine `{engine}`");
        page += &row(&name, &|outcome| carried(outcome, engine));
    }
    page
}

const PREFACE: &str = "\
# Other kernels

The tests run on one kernel. `cargo xtask kernels` boots others of Debian's in an emulator, and renders this page from what they say. There
it asks `underpass doctor`, sends checksummed streams through each engine of the splice, and has the tap read two CQL connections: one
that was there before the agent, and one that was not. A path that a kernel does not have is off, with the reason, and its flows take
the next safer one.

Of 5.15 there is no image in Debian 12's archive. By its sources, attaching, sockmaps and iterators are as in 6.1; `observe` and the tap need
`bpf_loop` (5.17) and are off: a rule that taps has its flows come to the agent.

";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_is_understood() {
        let said = "[ 1.0] boot\nRESULT doctor path splice_egress ok carried\n\
                    RESULT doctor observe ok taken\nRESULT carried egress 0 10 20\n\
                    RESULT refused foreign_netns\nRESULT tapped 1 40 20\nRESULT done\n";
        let all = outcome("6.1".into(), said).unwrap();
        let findings = ["path splice_egress ok carried", "observe ok taken"];
        assert_eq!(all.doctor, findings);
        all.judge().unwrap();
        let page = page(&[all]);
        for cell in [
            "| 6.1 |",
            "| ok taken |",
            "40 of 40 requests",
            "10 bytes up, 20 down",
        ] {
            assert!(page.contains(cell), "{page}");
        }
        assert!(outcome("6.1".into(), "RESULT carried egress 0 10 20\n").is_err());
        for bad in [
            "RESULT carried egress 0 10 20\nRESULT refused \n",
            "RESULT carried egress 1 10 20\n",
            "RESULT carried egress 0 0 20\n",
            "RESULT carried egress 0 10 20\nRESULT doctor observe ok taken\nRESULT tapped 1 39 20\n",
            "RESULT carried egress 0 10 20\nRESULT doctor observe ok taken\nRESULT tapped 0 40 20\n",
            "RESULT carried egress 0 10 20\nRESULT doctor observe ok taken\n",
            "",
        ] {
            let said = format!("{bad}RESULT done\n");
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
