//! `kernels`: the BPF programs on other kernels, under emulation: the verdict of `doctor` there,
//! checksummed streams over each engine of the splice that works, the reason why a flow is not
//! on the shortcut, and requests that were read from copies. `page` writes what came of it to `docs/kernels.md`.
//!
//! Not part of `test`: it downloads kernels, and emulation takes minutes.

mod guest;
mod page;

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
    let mut failed = Vec::new();
    let mut outcomes = Vec::new();
    for series in &args.series {
        let outcome = boot(&folder, series, &guest)?;
        outcome.print();
        if let Err(reason) = outcome.judge() {
            failed.push(format!("{}: {reason:#}", outcome.kernel));
        }
        outcomes.push(outcome);
    }
    page::write(&outcomes)?;
    ensure!(failed.is_empty(), "{}", failed.join("; "));
    Ok(())
}

fn boot(folder: &Path, series: &str, guest: &Path) -> Result<Outcome> {
    let (kernel, image) = image(folder, series)?;
    let initrd = guest::with_modules(guest, folder, &kernel)?;
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
            .arg(&initrd)
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
        tapped: 0,
        adopted: 0,
        not_adopted: Vec::new(),
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
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_is_understood() {
        let said = "[ 1.0] boot\nRESULT doctor path splice_egress ok carried\n\
                    RESULT carried egress 0 10 20\nRESULT refused foreign_netns\nRESULT tapped 10\n\
                    RESULT adopted\nRESULT not_adopted no_end\nRESULT done\n";
        let all = outcome("6.1".into(), said).unwrap();
        assert_eq!(all.doctor, ["path splice_egress ok carried"]);
        all.judge().unwrap();
        assert!(outcome("6.1".into(), "RESULT carried egress 0 10 20\n").is_err());
        let page = page::of(&[all]);
        assert!(
            page.contains("| 6.1 | egress | yes, 10 requests told | no: `no_end` |"),
            "{page}"
        );
        for bad in [
            "RESULT carried egress 0 10 20\nRESULT tapped 0\nRESULT adopted 3\n",
            "RESULT carried egress 0 10 20\nRESULT tapped 10\nRESULT adopted 0\n",
            "RESULT carried egress 0 10 20\nRESULT refused \n",
            "RESULT carried egress 1 10 20\n",
            "RESULT carried egress 0 0 20\n",
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
