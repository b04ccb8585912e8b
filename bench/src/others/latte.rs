//! latte, with the two workloads `basic` of its crate: rows of one bigint, read and written over one connection.

use std::{fs, path::Path, process::Command};

use anyhow::{Context, ensure};
use report::schema::{Latency, Origin};
use serde::Deserialize;

use super::{Access, Figures, Other};

/// latte, by Piotr Kołaczkowski.
pub struct Latte;

const NAME: &str = "latte";
/// Rows of the table that is read.
const ROWS: &str = "rows=100000";
/// Requests in flight: fewer than its own 128, with which the database's queue is all that is measured.
const IN_FLIGHT: usize = 32;

impl Other for Latte {
    fn name(&self) -> &'static str {
        NAME
    }

    fn origin(&self) -> Origin {
        Origin {
            name: "latte".into(),
            url: "https://crates.io/crates/latte-cli".into(),
            changed: format!(
                "{IN_FLIGHT} requests in flight instead of 128, consistency ONE, seconds instead of minutes"
            ),
        }
    }

    fn loads(&self) -> &'static [(&'static str, &'static str)] {
        &[
            (
                "read",
                "latte's workload basic/read: a row of one bigint by its key",
            ),
            ("write", "latte's workload basic/write: rows of one bigint"),
        ]
    }

    fn prepare(&self, home: &Path, at: &Access) -> Vec<Command> {
        let words = |verb: &str| {
            let mut command = program(home);
            command.args([verb, "-P", ROWS]).arg(workload(home, "read"));
            command
        };
        let mut load = words("load");
        load.arg("--quiet");
        [words("schema"), load]
            .map(|command| aimed(command, at))
            .into()
    }

    fn command(
        &self,
        home: &Path,
        load: &str,
        at: &Access,
        seconds: f64,
        results: &Path,
    ) -> Command {
        let mut command = program(home);
        command
            .args(["run", "--quiet", "--threads", "1", "--connections", "1"])
            .args(["--warmup", "1", "--sampling", "1s", "--consistency", "ONE"])
            .args(["--concurrency", &IN_FLIGHT.to_string()])
            .args(["--duration", &format!("{}ms", (seconds * 1e3).round())])
            .args(["-P", ROWS])
            .arg("--output")
            .arg(results)
            .arg(workload(home, load));
        aimed(command, at)
    }

    fn figures(&self, results: &Path, _: &str) -> anyhow::Result<Figures> {
        let text = fs::read_to_string(results).context("latte has written no report")?;
        read(&text)
    }

    fn seconds(&self) -> f64 {
        1.0
    }

    fn rounds(&self) -> u32 {
        20
    }

    fn shape(&self) -> (usize, usize) {
        (1, IN_FLIGHT)
    }
}

fn program(home: &Path) -> Command {
    Command::new(home.join("bin/latte"))
}

fn workload(home: &Path, load: &str) -> std::path::PathBuf {
    home.join(format!("workloads/basic/{load}.rn"))
}

/// The command with what it needs to log in: the password is in its environment, which others cannot read.
fn aimed(mut command: Command, at: &Access) -> Command {
    command
        .env("CASSANDRA_USER", &at.credentials.user)
        .env("CASSANDRA_PASSWORD", &at.credentials.password)
        .arg(at.target.to_string());
    command
}

/// A report of latte's, as far as it is read.
#[derive(Deserialize)]
struct Report {
    percentiles: Vec<f64>,
    result: Measured,
}

#[derive(Deserialize)]
struct Measured {
    elapsed_time_s: f64,
    request_count: u64,
    error_count: u64,
    request_latency: Option<Distribution>,
}

#[derive(Deserialize)]
struct Distribution {
    mean: Mean,
    percentiles: Vec<Mean>,
}

#[derive(Deserialize)]
struct Mean {
    value: f64,
}

fn read(text: &str) -> anyhow::Result<Figures> {
    let report: Report = serde_json::from_str(text).context("this is no report of latte's")?;
    let Measured {
        elapsed_time_s,
        request_count,
        error_count,
        request_latency,
    } = report.result;
    ensure!(request_count > 0, "latte made no request");
    let latencies = request_latency.context("latte's report has no latencies")?;
    let percentile = |wanted: f64| -> anyhow::Result<f64> {
        // They are kept as f32.
        let near = |percent: &f64| (percent - wanted).abs() < 1e-3;
        let at = report.percentiles.iter().position(near);
        let found = at.and_then(|at| latencies.percentiles.get(at));
        let found = found.with_context(|| format!("latte's report has no {wanted} %"))?;
        // Its unit is the millisecond.
        Ok(found.value * 1e3)
    };
    Ok(Figures {
        seconds: elapsed_time_s,
        ops: request_count.saturating_sub(error_count),
        errors: error_count,
        latency: Latency {
            mean_us: latencies.mean.value * 1e3,
            p50_us: percentile(50.0)?,
            p90_us: percentile(90.0)?,
            p95_us: percentile(95.0)?,
            p99_us: percentile(99.0)?,
            p999_us: percentile(99.9)?,
            max_us: percentile(100.0)?,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_read_in_its_units() {
        let percentiles = [50.0, 90.0, 95.0, 99.0, 99.9_f32, 100.0];
        let values = [0.25, 0.5, 0.75, 1.0, 2.0, 4.0]
            .map(|value| serde_json::json!({ "n": 1, "value": value, "std_err": null }));
        let mut report = serde_json::json!({
            "conf": {}, "percentiles": percentiles,
            "result": {
                "elapsed_time_s": 2.0, "request_count": 1000, "error_count": 1,
                "request_latency": { "mean": { "n": 1, "value": 0.3, "std_err": null }, "percentiles": values },
            },
        });
        let figures = read(&report.to_string()).expect("a report");
        assert_eq!(
            (figures.ops, figures.errors, figures.seconds),
            (999, 1, 2.0)
        );
        let Latency {
            mean_us,
            p50_us,
            p999_us,
            max_us,
            ..
        } = figures.latency;
        assert_eq!(
            [mean_us, p50_us, p999_us, max_us],
            [300.0, 250.0, 2000.0, 4000.0]
        );
        report["result"]["request_count"] = 0.into();
        assert!(read(&report.to_string()).is_err());
        assert!(read("{}").is_err());
    }
}
