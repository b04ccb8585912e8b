//! YCSB: its core, which chooses, times and counts, on a binding of ours to the Java driver. Maven Central has no `cassandra-binding`.

use std::{path::Path, process::Command};

use anyhow::{Context, ensure};
use report::schema::{Latency, Origin};

use super::{Access, Figures, Other};

/// YCSB, by Brian F. Cooper and others.
pub struct Ycsb;

const NAME: &str = "ycsb";
/// YCSB's own default.
const ROWS: &str = "recordcount=1000";
const THREADS: usize = 8;
/// How long the binding reads and writes before anything is counted. A JVM compiles for the first few seconds.
const WARMUP: &str = "cql.warmup.seconds=4";
/// Operations that nobody reaches: the time ends a run.
const ENDLESS: &str = "operationcount=2000000000";
/// The kinds of operations whose latency is taken, the first that a run has: of a mix, the reads.
const TIMED: [&str; 2] = ["READ", "UPDATE"];
/// The least memory in which a JVM of this kind runs well, and the collector that takes the fewest threads.
const JAVA: [&str; 3] = [
    "-Xmx256m",
    "-XX:+UseSerialGC",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=error",
];

impl Other for Ycsb {
    fn name(&self) -> &'static str {
        NAME
    }

    fn origin(&self) -> Origin {
        Origin {
            name: "YCSB 0.17.0".into(),
            url: "https://github.com/brianfrankcooper/YCSB".into(),
            changed: format!(
                "its core from Maven Central on a binding of ours, for its own is not there; {THREADS} threads share a \
                 connection of the Java driver, which is warm before anything is counted; seconds instead of operations"
            ),
        }
    }

    fn loads(&self) -> &'static [(&'static str, &'static str)] {
        &[(
            "a",
            "YCSB's workload A: half reads, half updates, by a zipfian; latency is of reads",
        )]
    }

    fn prepare(&self, home: &Path, at: &Access) -> Vec<Command> {
        let mut load = program(home, at);
        load.args(["-load", "-p", "threadcount=1"]);
        vec![load]
    }

    fn command(&self, home: &Path, _: &str, at: &Access, seconds: f64, _: &Path) -> Command {
        let mut command = program(home, at);
        command
            .args(["-t", "-threads", &THREADS.to_string()])
            .args(["-p", ENDLESS])
            .args(["-p", &format!("maxexecutiontime={}", seconds.ceil())])
            .args(["-p", WARMUP])
            .args(["-p", "readproportion=0.5"])
            .args(["-p", "updateproportion=0.5"])
            .args(["-p", "requestdistribution=zipfian"]);
        command
    }

    fn figures(&self, _: &Path, said: &str) -> anyhow::Result<Figures> {
        read(said)
    }

    fn seconds(&self) -> f64 {
        // A JVM connects for some three of them, and then it warms up.
        13.0
    }

    fn rounds(&self) -> u32 {
        6
    }

    fn shape(&self) -> (usize, usize) {
        (1, THREADS)
    }
}

/// YCSB's client. The password is in a property, as YCSB wants it: it is the test database's.
fn program(home: &Path, at: &Access) -> Command {
    let home = home.display();
    let mut command = Command::new("java");
    command
        .args(JAVA)
        .args([
            "-cp",
            &format!("{home}/classes:{home}/jars/*"),
            "site.ycsb.Client",
        ])
        .args([
            "-db",
            "CqlBinding",
            "-p",
            "workload=site.ycsb.workloads.CoreWorkload",
        ])
        .args([
            "-p",
            ROWS,
            "-p",
            "hdrhistogram.percentiles=50,90,95,99,99.9",
        ])
        .args(["-p", &format!("cql.address={}", at.target)])
        .args(["-p", &format!("cql.user={}", at.credentials.user)])
        .args(["-p", &format!("cql.password={}", at.credentials.password)]);
    command
}

/// Reads lines such as `[READ], AverageLatency(us), 271.5`.
fn read(said: &str) -> anyhow::Result<Figures> {
    let lines = said.lines().filter_map(|line| {
        let mut words = line.split(", ");
        let section = words.next()?.strip_prefix('[')?.strip_suffix(']')?;
        Some((
            section,
            words.next()?,
            words.next()?.trim().parse::<f64>().ok()?,
        ))
    });
    let lines: Vec<(&str, &str, f64)> = lines.collect();
    let of = |section: &str, name: &str| {
        let found = lines
            .iter()
            .find(|line| (line.0, line.1) == (section, name));
        found.map(|line| line.2)
    };
    let kinds = TIMED
        .into_iter()
        .filter(|kind| of(kind, "Operations").is_some());
    let kinds: Vec<&str> = kinds.collect();
    let timed = *kinds.first().context("YCSB made no operation")?;
    let latency = |name: &str| {
        of(timed, name).with_context(|| format!("YCSB does not say {name} of {timed}"))
    };
    let returned = |is_wanted: fn(&str) -> bool| -> f64 {
        let all = lines.iter().filter(|line| kinds.contains(&line.0));
        all.filter(|line| line.1.strip_prefix("Return=").is_some_and(is_wanted))
            .map(|line| line.2)
            .sum()
    };
    // Its own run time begins with the JVM's connecting, and is mostly that: its threads do nothing but operations after it.
    let within = |kind: &&str| Some(of(kind, "Operations")? * of(kind, "AverageLatency(us)")?);
    let within_us: f64 = kinds.iter().filter_map(within).sum();
    let ops = returned(|status| status == "OK");
    ensure!(ops > 0.0, "no operation of YCSB's succeeded");
    Ok(Figures {
        seconds: within_us / THREADS as f64 / 1e6,
        ops: ops as u64,
        errors: returned(|status| status != "OK") as u64,
        latency: Latency {
            mean_us: latency("AverageLatency(us)")?,
            p50_us: latency("50thPercentileLatency(us)")?,
            p90_us: latency("90thPercentileLatency(us)")?,
            p95_us: latency("95thPercentileLatency(us)")?,
            p99_us: latency("99thPercentileLatency(us)")?,
            p999_us: latency("99.9PercentileLatency(us)")?,
            max_us: latency("MaxLatency(us)")?,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAID: &str = "\
[OVERALL], RunTime(ms), 2004
[OVERALL], Throughput(ops/sec), 4990.5
[READ], Operations, 5000
[READ], AverageLatency(us), 271.5
[READ], MaxLatency(us), 9007
[READ], 50thPercentileLatency(us), 250
[READ], 90thPercentileLatency(us), 300
[READ], 95thPercentileLatency(us), 350
[READ], 99thPercentileLatency(us), 400
[READ], 99.9PercentileLatency(us), 900
[READ], Return=OK, 4990
[READ], Return=ERROR, 10
[UPDATE], Operations, 5000
[UPDATE], AverageLatency(us), 128.5
[UPDATE], 50thPercentileLatency(us), 999
[UPDATE], Return=OK, 5000
";

    #[test]
    fn all_operations_count_and_reads_are_timed() {
        let figures = read(SAID).expect("figures");
        assert_eq!(
            (figures.ops, figures.errors, figures.seconds),
            (9_990, 10, 0.25)
        );
        assert_eq!(
            (figures.latency.p50_us, figures.latency.p999_us),
            (250.0, 900.0)
        );
        let failed = SAID.replace("Return=OK", "Return=ERROR");
        assert!(read(&failed).is_err());
        let silent = SAID.replace("[READ], MaxLatency(us), 9007\n", "");
        assert!(
            read(&silent)
                .unwrap_err()
                .to_string()
                .contains("MaxLatency")
        );
    }
}
