//! `instructions`: how many instructions the decoder takes for each case of `bench/micro`, held
//! to `bench/results/instructions.json`.
//!
//! Time on a shared machine varies by tens of percent, instructions by next to none: callgrind runs a
//! case twice, for a few rounds and for more, and the difference is what the
//! rounds in between took. Start-up, the building of inputs and the first round's allocations are
//! in both, and cancel out.

use std::{
    collections::BTreeMap,
    env, fs,
    io::Write,
    path::{Path, PathBuf},
    process::Command,
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
    thread,
};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use crate::{
    ci, paths,
    run::{capture, cargo, find_program, run as run_command},
    setup::{self, Part},
};

/// The most that a case may move, in either direction. A change that does not touch the decoder
/// moves it by less: by 2.3 % where the compiler, by what else is in a crate, inlines otherwise. A better count is written
/// down, or it could be lost again unnoticed.
const TOLERANCE: f64 = 0.03;
/// The rounds of the shorter run: more than are needed to make everything that is made once.
const FEW_ROUNDS: u64 = 10;
/// The least number of rounds that the longer run has more.
const MORE_ROUNDS: u64 = 50;
/// The number of elements that the longer run has more. Keys of hash tables are random, and so is
/// where an entry lands and when a table is laid out anew: a few thousand instructions more or less
/// in a run.
const MORE_ELEMENTS: u64 = 5_000;
/// The number of bytes after which fewer elements are enough: they outweigh any table.
const MORE_BYTES: u64 = 256 << 20;
/// The version of the file's layout.
const SCHEMA: u64 = 1;
/// The features on which valgrind's virtual processor depends; libc and crc32fast choose their
/// loops by that processor. (It hides newer features, such as AVX-512.)
const CPU_FEATURES: [&str; 6] = ["cx16", "avx", "avx2", "bmi1", "f16c", "pclmulqdq"];
/// The variable that names the file to which skips are appended, as for tests.
const SKIPS: &str = "UNDERPASS_SKIPS";

/// Options of `instructions`.
#[derive(clap::Args)]
pub struct Args {
    /// Write the counts to bench/results/instructions.json, to be committed
    #[arg(long)]
    update: bool,
}

/// Instructions for an element, by case.
type Counts = BTreeMap<String, f64>;

/// The circumstances on which a count depends besides the code: where one of these differs, counts
/// cannot be compared.
type Circumstances = BTreeMap<String, String>;

/// Runs the command.
pub fn run(args: &Args) -> Result<()> {
    setup::ensure(&[Part::Build])?;
    let valgrind = find_program("valgrind")
        .context("valgrind was not found: run `cargo xtask setup --only bench`")?;
    let here = circumstances(&valgrind)?;
    let committed = match args.update {
        true => None,
        false => Some(read()?),
    };
    if let Some((there, _)) = &committed
        && let Some(difference) = difference(there, &here)
    {
        return skip(&difference);
    }
    run_command(&mut build()).context("the counted program does not build")?;
    let counts = count_all(&valgrind, committed.as_ref().map(|(_, counts)| counts))?;
    match committed {
        Some((_, committed)) => judge(&committed, &counts),
        None => write(&here, &counts),
    }
}

/// Builds the counted program: what is counted as for release, and everything else as for tests, from where it
/// is or will be taken. It is an example of the whole workspace's, because that gives dependencies the features
/// that the tests' build gives them.
fn build() -> Command {
    let mut build = cargo();
    build
        .args(["build", "--workspace", "--example", "instructions"])
        .arg("--config")
        .arg(paths::root().join("bench/micro/counted.toml"))
        // A compiler that lints optimises less.
        .env_remove(ci::COMPILED_BY)
        // Notes for the next build would have the compiler optimise in smaller pieces, and lines for backtraces
        // have it decide otherwise what to inline: both are off for counts, whatever the shell says.
        .env("CARGO_INCREMENTAL", "0")
        .env("CARGO_PROFILE_DEV_DEBUG", "0")
        .env("CARGO_PROFILE_DEV_BUILD_OVERRIDE_DEBUG", "0");
    build
}

/// A case as the program lists it.
struct Case<'a> {
    name: &'a str,
    /// The elements in a round; neither this nor `fed_bytes` is 0.
    elements: u64,
    fed_bytes: u64,
}

impl<'a> Case<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let mut words = line.split(' ');
        let name = words.next()?;
        let mut number = || words.next()?.parse().ok().filter(|n| *n > 0);
        let (elements, fed_bytes) = (number()?, number()?);
        let case = Self {
            name,
            elements,
            fed_bytes,
        };
        words.next().is_none().then_some(case)
    }

    fn more_rounds(&self) -> u64 {
        let for_elements = MORE_ELEMENTS.div_ceil(self.elements);
        let for_bytes = MORE_BYTES.div_ceil(self.fed_bytes);
        for_elements.min(for_bytes).max(MORE_ROUNDS)
    }

    /// Instructions for an element. Rounded as in the file: a tenth of an instruction.
    fn count(&self, valgrind: &Path, binary: &Path, out: &Path) -> Result<f64> {
        let more = self.more_rounds();
        let few = count(valgrind, binary, self.name, FEW_ROUNDS, out)?;
        let many = count(valgrind, binary, self.name, FEW_ROUNDS + more, out)?;
        let of_rounds = many.checked_sub(few).context("more rounds took less")?;
        let each = of_rounds as f64 / (more * self.elements) as f64;
        Ok((each * 10.0).round() / 10.0)
    }
}

/// Counts every case, and says so line by line. Each processor has a case at a time: what else runs
/// changes no count.
fn count_all(valgrind: &Path, committed: Option<&Counts>) -> Result<Counts> {
    let binary = paths::target().join("debug/examples/instructions");
    let listed = String::from_utf8(capture(&mut Command::new(&binary))?)?;
    let parse =
        |line| Case::parse(line).with_context(|| format!("instructions: what is `{line}`?"));
    let cases: Vec<Case<'_>> = listed.lines().map(parse).collect::<Result<_>>()?;
    let next = AtomicUsize::new(0);
    let count_some = |worker: usize| -> Result<Counts> {
        let out = paths::target().join(format!("instructions-{worker}.callgrind"));
        let mut counts = Counts::new();
        while let Some(case) = cases.get(next.fetch_add(1, Relaxed)) {
            let each = case.count(valgrind, &binary, &out)?;
            let moved = committed
                .and_then(|committed| committed.get(case.name))
                .map(|before| format!("  {:+.2} %", moved(*before, each) * 100.0));
            eprintln!("{:28} {each:>12.1}{}", case.name, moved.unwrap_or_default());
            counts.insert(case.name.to_owned(), each);
        }
        Ok(counts)
    };
    let count_some = &count_some;
    let workers = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        let workers: Vec<_> = (0..workers)
            .map(|worker| scope.spawn(move || count_some(worker)))
            .collect();
        let mut all = Counts::new();
        for worker in workers {
            let counted = worker.join().ok().context("a worker panicked")?;
            all.extend(counted?);
        }
        Ok(all)
    })
}

/// Instructions of a whole run. `file` is where callgrind writes them.
fn count(valgrind: &Path, binary: &Path, case: &str, rounds: u64, file: &Path) -> Result<u64> {
    let mut out = std::ffi::OsString::from("--callgrind-out-file=");
    out.push(file);
    // The environment is empty: its size moves the stack, and with it alignments.
    let mut command = Command::new(valgrind);
    command
        .env_clear()
        .args(["--quiet", "--tool=callgrind"])
        .arg(out)
        .arg(binary)
        .args([case, &rounds.to_string()]);
    capture(&mut command)?;
    let text =
        fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    fs::remove_file(file).with_context(|| format!("cannot remove {}", file.display()))?;
    total(&text).context("callgrind wrote no total")
}

/// The line `totals: N` of callgrind's file.
fn total(text: &str) -> Option<u64> {
    let mut lines = text.lines().rev();
    let total = lines.find_map(|line| line.strip_prefix("totals:"))?;
    total.trim().parse().ok()
}

/// Returns the part by which a count moved.
fn moved(before: f64, now: f64) -> f64 {
    (now - before) / before.max(f64::MIN_POSITIVE)
}

/// Fails with every case that moved, came or went.
fn judge(committed: &Counts, counts: &Counts) -> Result<()> {
    let complaints = complaints(committed, counts);
    if complaints.is_empty() {
        eprintln!(
            "instructions: {} cases within {:.0} % of the committed counts",
            counts.len(),
            TOLERANCE * 100.0
        );
        return Ok(());
    }
    bail!(
        "instructions:\n  {}\nIf that is meant, run `cargo xtask instructions --update` and commit \
         the file with the change that caused it",
        complaints.join("\n  ")
    );
}

fn complaints(committed: &Counts, counts: &Counts) -> Vec<String> {
    let mut complaints = Vec::new();
    for (name, now) in counts {
        let Some(before) = committed.get(name) else {
            complaints.push(format!("{name}: new, not in the file"));
            continue;
        };
        let moved = moved(*before, *now);
        if moved.abs() > TOLERANCE {
            let word = if moved > 0.0 { "WORSE" } else { "better" };
            complaints.push(format!(
                "{name}: {word} by {:.1} %: {before:.1} before, {now:.1} now",
                moved.abs() * 100.0
            ));
        }
    }
    let gone = committed.keys().filter(|name| !counts.contains_key(*name));
    complaints.extend(gone.map(|name| format!("{name}: in the file, but no case any more")));
    complaints
}

fn circumstances(valgrind: &PathBuf) -> Result<Circumstances> {
    let rustc = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let rustc = said(Command::new(rustc).arg("-vV"))?;
    let first = rustc.lines().next().unwrap_or_default();
    let host = rustc.lines().find_map(|line| line.strip_prefix("host: "));
    let cpu = fs::read_to_string("/proc/cpuinfo").context("cannot read /proc/cpuinfo")?;
    let pairs = [
        ("rustc", first.to_owned()),
        ("target", host.unwrap_or_default().to_owned()),
        ("valgrind", said(Command::new(valgrind).arg("--version"))?),
        (
            "libc",
            said(Command::new("getconf").arg("GNU_LIBC_VERSION"))?,
        ),
        ("cpu_features", cpu_features(&cpu)),
    ];
    Ok(pairs.map(|(key, value)| (key.to_owned(), value)).into())
}

fn said(command: &mut Command) -> Result<String> {
    Ok(String::from_utf8(capture(command)?)?.trim().to_owned())
}

/// Lists those of [`CPU_FEATURES`] that the first processor has.
fn cpu_features(cpuinfo: &str) -> String {
    let flags = cpuinfo.lines().find(|line| line.starts_with("flags"));
    let flags: Vec<&str> = flags.unwrap_or_default().split_whitespace().collect();
    let has = CPU_FEATURES.into_iter().filter(|name| flags.contains(name));
    has.collect::<Vec<_>>().join(" ")
}

/// Describes the first circumstance that differs.
fn difference(there: &Circumstances, here: &Circumstances) -> Option<String> {
    here.iter().find_map(|(key, here)| {
        let there = there.get(key).map_or("nothing", String::as_str);
        (there != here).then(|| format!("{key}: counted with `{there}`, here is `{here}`"))
    })
}

/// Counts of another compiler or libc say nothing about a change: no failure, but not unseen.
fn skip(difference: &str) -> Result<()> {
    let line = format!("SKIP xtask::instructions: not comparable, {difference}");
    eprintln!("{line}");
    eprintln!(
        "NOTHING WAS CHECKED. `cargo xtask instructions --update` on the commit before yours makes \
         counts for this machine, to compare with (do not commit them)."
    );
    if let Some(path) = env::var_os(SKIPS) {
        let mut options = fs::OpenOptions::new();
        let mut file = options.create(true).append(true).open(&path)?;
        file.write_all(format!("{line}\n").as_bytes())?;
    }
    Ok(())
}

fn file() -> PathBuf {
    paths::root().join("bench/results/instructions.json")
}

fn read() -> Result<(Circumstances, Counts)> {
    let file = file();
    let text = fs::read_to_string(&file).with_context(|| {
        let file = file.display();
        format!("cannot read {file}: `cargo xtask instructions --update` makes it")
    })?;
    parse(&text).with_context(|| format!("{} is not as it should be", file.display()))
}

fn parse(text: &str) -> Result<(Circumstances, Counts)> {
    let value: Value = serde_json::from_str(text)?;
    let field = |key: &str| value.get(key).cloned().with_context(|| format!("no {key}"));
    let schema = field("schema")?;
    ensure!(schema == SCHEMA, "schema {schema}, and not {SCHEMA}");
    Ok((
        serde_json::from_value(field("circumstances")?)?,
        serde_json::from_value(field("cases")?)?,
    ))
}

fn write(here: &Circumstances, counts: &Counts) -> Result<()> {
    let file = file();
    let value = json!({
        "schema": SCHEMA,
        "unit": "instructions for an element (header, frame, segment, statement, operation)",
        "circumstances": here,
        "cases": counts,
    });
    let text = format!("{:#}\n", value);
    fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
    eprintln!("instructions: wrote {}", file.display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(pairs: &[(&str, f64)]) -> Counts {
        pairs.iter().map(|(n, c)| ((*n).to_owned(), *c)).collect()
    }

    #[test]
    fn a_move_beyond_the_tolerance_is_named() {
        let before = counts(&[("a", 100.0), ("b", 100.0), ("c", 100.0), ("gone", 1.0)]);
        let now = counts(&[("a", 102.9), ("b", 103.1), ("c", 96.9), ("new", 1.0)]);
        let complaints = complaints(&before, &now);
        let said = |begin: &str| complaints.iter().any(|c| c.starts_with(begin));
        assert_eq!(complaints.len(), 4, "{complaints:?}");
        assert!(said("b: WORSE by 3.1 %") && said("c: better by 3.1 %"));
        assert!(said("new: ") && said("gone: "));
        assert!(judge(&before, &now).is_err());
        assert!(judge(&before, &before).is_ok());
    }

    #[test]
    fn another_compiler_is_no_comparison() {
        let here: Circumstances = [("rustc".to_owned(), "1.95".to_owned())].into();
        let there: Circumstances = [("rustc".to_owned(), "1.94".to_owned())].into();
        assert_eq!(difference(&here, &here), None);
        assert!(difference(&there, &here).unwrap().contains("`1.94`"));
        assert!(difference(&Circumstances::new(), &here).is_some());
    }

    #[test]
    fn small_cases_have_more_rounds() {
        let rounds = |line| Case::parse(line).map(|case| case.more_rounds());
        assert_eq!(rounds("small 1 200"), Some(5_000));
        assert_eq!(rounds("pipelined 32 6400"), Some(157));
        assert_eq!(rounds("large 1 262144"), Some(1_024));
        assert_eq!(rounds("larger 1 16777216"), Some(50));
        assert_eq!(rounds("many 1024 9216"), Some(50));
        for wrong in ["", "a", "a 1", "a 0 1", "a 1 0", "a b 1", "a 1 1 1"] {
            assert_eq!(rounds(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn the_total_is_the_last_one() {
        assert_eq!(
            total("events: Ir\nsummary: 7\nfn=a\ntotals: 12\n"),
            Some(12)
        );
        assert_eq!(total("events: Ir\n"), None);
    }

    #[test]
    fn features_are_whole_words() {
        let cpuinfo = "model name : x\nflags\t\t: fpu avx512f avx2 cx16 sse\n";
        assert_eq!(cpu_features(cpuinfo), "cx16 avx2");
    }

    #[test]
    fn the_committed_file_can_be_read() {
        let (circumstances, counts) = read().unwrap();
        assert!(circumstances.contains_key("rustc") && !counts.is_empty());
        assert!(parse("{\"schema\": 2}").is_err());
    }
}
