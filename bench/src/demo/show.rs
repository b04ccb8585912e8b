//! The demo's output.

use std::{
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, bail, ensure};
use report::{columns::aligned, stats::median};
use sandbox::Agent;

use super::{PATHS, Round, checks::Check};
use crate::{
    paths::{AGAIN, DIRECT},
    server::binary,
};

/// The time limit of a command: `tail` waits for something slow, which comes each second.
const COMMAND_LIMIT: Duration = Duration::from_secs(15);

/// Prints a step that was done.
pub fn step(what: &str) {
    println!("· {what}");
}

/// Runs a command of the agent's program, and prints both.
pub fn command(agent: &Agent<'_>, args: &[&str]) -> anyhow::Result<()> {
    println!("\n$ underpass {}", args.join(" "));
    let mut command = Command::new(binary("underpass")?);
    command.args(args).arg("--admin").arg(agent.admin_socket());
    let child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = child.context("cannot run underpass")?;
    let begin = Instant::now();
    // Its output is a screenful, and fits into the pipe.
    while child.try_wait()?.is_none() {
        if begin.elapsed() > COMMAND_LIMIT {
            child.kill()?;
            bail!(
                "`underpass {}` has not ended after {COMMAND_LIMIT:?}",
                args.join(" ")
            );
        }
        thread::sleep(Duration::from_millis(10));
    }
    let output = child.wait_with_output()?;
    print!("{}", String::from_utf8_lossy(&output.stdout));
    ensure!(
        output.status.success(),
        "it failed ({}): {}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}

/// Prints a part of a file.
pub fn file(what: &str, text: &str) {
    println!("\n· {what}");
    text.lines().for_each(|line| println!("  {line}"));
}

/// Prints a statement, and how it failed.
pub fn statement(text: &str, refused: Option<&str>) {
    println!("\n· that application asks: {text}");
    match refused {
        Some(why) => println!("refused: {why}"),
        None => println!("done"),
    }
}

/// The paths, side by side, each against direct in the same round.
pub fn comparison(rate: u32, rounds: &[Round]) {
    println!(
        "\nWhat the paths cost at {rate} op/s, in µs (medians of {} interleaved rounds, and in brackets the least and the most)",
        rounds.len()
    );
    let head = ["path", "p50", "added", "", "p99", "added", ""].map(str::to_owned);
    let mut rows = vec![head.to_vec()];
    for (at, path) in PATHS.iter().enumerate() {
        let mut row = vec![(*path).to_owned()];
        for share in [0.5, 0.99] {
            let quantile = |round: &Round, at: usize| {
                let answer = round.get(at);
                answer.map_or(f64::NAN, |answer| answer.latencies.quantile_us(share))
            };
            row.push(format!(
                "{:.0}",
                middle(rounds.iter().map(|round| quantile(round, at)))
            ));
            // The first of the paths is direct.
            let added = rounds
                .iter()
                .map(|round| quantile(round, at) - quantile(round, 0));
            row.extend(match *path {
                DIRECT => [String::new(), String::new()],
                _ => spread(added.collect()),
            });
        }
        rows.push(row);
    }
    for line in aligned(&rows, 1) {
        println!("  {line}");
    }
    println!(
        "`{AGAIN}` is the same path for another application: what it adds is the noise of this measurement"
    );
}

/// The median of differences, and what they lie between.
fn spread(mut each: Vec<f64>) -> [String; 2] {
    each.sort_unstable_by(f64::total_cmp);
    let [least, most] = [each.first(), each.last()].map(|end| end.copied().unwrap_or(f64::NAN));
    [
        format!("{:+.0}", middle(each.into_iter())),
        format!("({least:+.0} … {most:+.0})"),
    ]
}

/// The median; there is at least one round.
fn middle(values: impl Iterator<Item = f64>) -> f64 {
    median(values).unwrap_or(f64::NAN)
}

/// Prints the checks. Returns whether all of them hold.
pub fn checks(checks: &[Check]) -> bool {
    println!("\nWhat was verified");
    for check in checks {
        let verdict = if check.wrong.is_empty() {
            "ok  "
        } else {
            "FAIL"
        };
        println!("{verdict} {}", check.what);
        check.wrong.iter().for_each(|why| println!("     {why}"));
    }
    checks.iter().all(|check| check.wrong.is_empty())
}

/// Prints the next things to look at.
pub fn next() {
    println!(
        "\nNext
  README.md               what it does, what it costs, what it does not do
  config/underpass.toml   a policy to start from; `underpass check FILE` explains it
  underpass run --config config/underpass.toml
  underpass flows         who talks to the database, and over which path
  underpass statements    what enrichment sees; `admin` in the file serves /metrics to Prometheus
  ARCHITECTURE.md         where everything is; docs/one-connection.md follows one SELECT"
    );
}
