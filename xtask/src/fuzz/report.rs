//! `docs/fuzzing.md`: made of the results, of what targets say of themselves, and of the list of findings.

use std::{
    fmt::Write as _,
    fs, io,
    path::{Path, PathBuf},
};

use super::results::Results;
use crate::paths;

/// Processor time that all targets are to have had together.
const GOAL_HOURS: f64 = 24.0;

/// The steps that `pipeline` holds against its two databases.
const STEPS: &str = "`pipeline` drives the transforms but `null`, and `cache`, `coalesce`, `fold`, `protect` and `mirror`; a test of its crate \
    does so with inputs at random, too. `cache` has a Redis in memory, whose replies come when the input says, or get lost. The cluster of \
    `mirror` is away: what it answers is for tests with two databases. `fold` has four clients, which come, go, and change their keyspace, \
    and shared connections in memory, which get lost: each answer is held against that of a direct connection.";

/// Where the page is.
pub fn path() -> PathBuf {
    paths::root().join("docs/fuzzing.md")
}

/// Makes the page.
pub fn page(results: &Results) -> io::Result<String> {
    let sums = results.by_target();
    let seconds = sums.values().fold(0.0, |sum, run| sum + run.cpu_seconds);
    let hours = seconds / 3600.0;
    let mut page = format!(
        "<!-- Rendered by `cargo xtask fuzz` from userspace/fuzz/results.json. -->\n\
        # Fuzzing\n\n\
        What comes from outside is parsed by code that a fuzzer feeds with any bytes: what must hold for all of them is a function in \
        `userspace/fuzz/src`, or in the module `fuzzed` of the crate whose parser it is. Continuous integration runs each over \
        the inputs that were kept. `cargo xtask fuzz` looks for more; `cargo xtask fuzz --hours 8 --merge` goes on for eight hours \
        of a processor, and adds what it finds to the corpora and its figures to this page.\n\n\
        So far: **{hours:.1} of {GOAL_HOURS:.0} hours** of a processor.\n\n\
        | target | input | processor, minutes | inputs run | edges reached | findings |\n\
        | --- | --- | ---: | ---: | ---: | ---: |\n"
    );
    let targets = super::targets().map_err(io::Error::other)?;
    for target in &targets {
        let run = sums.get(target.as_str()).cloned().unwrap_or_default();
        let file = super::home().join("targets").join(format!("{target}.rs"));
        let _ = writeln!(
            page,
            "| `{target}` | {} | {:.0} | {} | {} | {} |",
            subject(&file)?,
            run.cpu_seconds / 60.0,
            run.executions,
            run.edges,
            run.findings
        );
    }
    let findings = fs::read_to_string(super::home().join("findings.md"))?;
    let _ = write!(page, "\n## Steps\n\n{STEPS}\n\n## Findings\n\n{findings}");
    Ok(page)
}

/// The input of a target: the first line of its file.
fn subject(file: &Path) -> io::Result<String> {
    let text = fs::read_to_string(file)?;
    let first = text
        .lines()
        .next()
        .and_then(|line| line.strip_prefix("//! "));
    let first = first.and_then(|line| line.strip_suffix('.'));
    let none = || io::Error::other(format!("{}: expected `//! <input>.`", file.display()));
    first.map(str::to_owned).ok_or_else(none)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_made_of_the_results() {
        let page = page(&Results::read().unwrap()).unwrap();
        if std::env::var_os("UPDATE_DOCS").is_some() {
            fs::write(path(), &page).unwrap();
        }
        let there = fs::read_to_string(path()).unwrap();
        assert!(
            there == page,
            "docs/fuzzing.md is stale: set UPDATE_DOCS=1 and run this test again"
        );
    }
}
