//! `userspace/fuzz/results.json`: what fuzzing took and found, by target and commit.

use std::{collections::BTreeMap, fmt, fs, path::PathBuf};

use anyhow::{Context, Result};
use serde_json::{Value, json};

/// Numbers of a target's runs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Run {
    /// Seconds of a processor.
    pub cpu_seconds: f64,
    /// Inputs that were run.
    pub executions: u64,
    /// Inputs that were kept, for what they reach.
    pub kept: u64,
    /// Edges of the program that all inputs reach together, at the end.
    pub edges: u64,
    /// Edges of those that no input had reached before.
    pub new_edges: u64,
    /// Inputs for which something did not hold.
    pub findings: u64,
}

impl Run {
    /// Reads the numbers from what libFuzzer said.
    pub fn of(cpu_seconds: f64, said: &str) -> Self {
        let stat = |name: &str| {
            let line = said.lines().rev().find(|line| line.starts_with(name));
            let number = line.and_then(|line| line.split_whitespace().last());
            number.and_then(|number| number.parse().ok()).unwrap_or(0)
        };
        // What the corpus reached is said when all of it has been run.
        let inited = said.lines().find(|line| line.contains("\tINITED"));
        let first = inited.and_then(covered).unwrap_or(0);
        let last = said.lines().rev().find_map(covered).unwrap_or(first);
        Self {
            cpu_seconds,
            executions: stat("stat::number_of_executed_units:"),
            kept: stat("stat::new_units_added:"),
            edges: last,
            new_edges: last.saturating_sub(first),
            findings: 0,
        }
    }

    fn add(&mut self, more: &Self) {
        self.cpu_seconds += more.cpu_seconds;
        self.executions += more.executions;
        self.kept += more.kept;
        self.edges = more.edges;
        self.new_edges += more.new_edges;
        self.findings += more.findings;
    }
}

/// The edges that are covered, of a line like `#2 INITED cov: 12 ft: 13 corp: ...`.
fn covered(line: &str) -> Option<u64> {
    if !line.starts_with('#') {
        return None;
    }
    let (_, behind) = line.split_once(" cov: ")?;
    behind.split_whitespace().next()?.parse().ok()
}

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:.0} s of a processor, {} inputs, {} edges ({} new), {} findings",
            self.cpu_seconds, self.executions, self.edges, self.new_edges, self.findings
        )
    }
}

/// All runs.
#[derive(Debug, Default, PartialEq)]
pub struct Results {
    /// By target and commit.
    runs: BTreeMap<(String, String), Run>,
}

impl Results {
    /// Reads the committed ones.
    pub fn read() -> Result<Self> {
        let path = path();
        match fs::read_to_string(&path) {
            Ok(text) => Self::parse(&text).with_context(|| format!("{}", path.display())),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
        }
    }

    /// Adds a run's numbers to those of the target's runs at the same commit.
    pub fn add(&mut self, target: &str, commit: &str, run: &Run) {
        let key = (target.to_owned(), commit.to_owned());
        self.runs.entry(key).or_default().add(run);
    }

    /// Writes them, and the page that is made of them.
    pub fn write(&self) -> Result<()> {
        let path = path();
        fs::write(&path, self.text())
            .and_then(|()| fs::write(super::report::path(), super::report::page(self)?))
            .with_context(|| format!("cannot write {}", path.display()))
    }

    /// Sums by target.
    pub fn by_target(&self) -> BTreeMap<&str, Run> {
        let mut sums: BTreeMap<&str, Run> = BTreeMap::new();
        for ((target, _), run) in &self.runs {
            sums.entry(target).or_default().add(run);
        }
        sums
    }

    fn parse(text: &str) -> Result<Self> {
        let rows: Vec<Value> = serde_json::from_str(text)?;
        let row = |row: &Value| {
            let text = |key: &str| row[key].as_str().map(str::to_owned);
            let number = |key: &str| row[key].as_u64();
            let run = Run {
                cpu_seconds: row["cpu_seconds"].as_f64()?,
                executions: number("executions")?,
                kept: number("kept")?,
                edges: number("edges")?,
                new_edges: number("new_edges")?,
                findings: number("findings")?,
            };
            Some(((text("target")?, text("commit")?), run))
        };
        let runs: Option<_> = rows.iter().map(row).collect();
        let runs = runs.context("a row lacks a key")?;
        Ok(Self { runs })
    }

    /// One row a line.
    fn text(&self) -> String {
        let rows = self.runs.iter().map(|((target, commit), run)| {
            let row = json!({
                "target": target,
                "commit": commit,
                "cpu_seconds": run.cpu_seconds.round(),
                "executions": run.executions,
                "kept": run.kept,
                "edges": run.edges,
                "new_edges": run.new_edges,
                "findings": run.findings,
            });
            row.to_string()
        });
        let rows: Vec<_> = rows.collect();
        format!("[\n{}\n]\n", rows.join(",\n"))
    }
}

fn path() -> PathBuf {
    super::home().join("results.json")
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAID: &str = "INFO: Seed: 1\n\
        #1\tpulse  cov: 3 ft: 4 corp: 1/1b exec/s: 0 rss: 30Mb\n\
        #2\tINITED cov: 10 ft: 13 corp: 1/1b exec/s: 0 rss: 30Mb\n\
        #9\tNEW    cov: 15 ft: 20 corp: 2/2b lim: 4 exec/s: 0 rss: 30Mb L: 1/1 MS: 1 -\n\
        #99\tDONE   cov: 17 ft: 20 corp: 2/2b lim: 4 exec/s: 0 rss: 30Mb\n\
        stat::number_of_executed_units: 99\n\
        stat::new_units_added:          2\n";

    #[test]
    fn runs_are_read_added_and_kept() {
        let run = Run::of(1.0, SAID);
        let expected = Run {
            cpu_seconds: 1.0,
            executions: 99,
            kept: 2,
            edges: 17,
            new_edges: 7,
            findings: 0,
        };
        assert_eq!(run, expected);
        let mut results = Results::default();
        results.add("frame", "a", &run);
        results.add("frame", "a", &run);
        results.add("frame", "b", &run);
        assert_eq!(Results::parse(&results.text()).unwrap(), results);
        let sum = &results.by_target()["frame"];
        assert_eq!((sum.cpu_seconds, sum.executions, sum.edges), (3.0, 297, 17));
        assert!(Results::parse("[{}]").is_err());
    }
}
