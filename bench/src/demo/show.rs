//! The demo's output.

use std::{
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, bail, ensure};
use report::stats::median;
use sandbox::Agent;

use super::{checks::Check, path::Path, rig::Round};
use crate::server::binary;

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
    let head = ["path", "p50", "added", "", "p99", "added", ""];
    let rows = Path::ALL.map(|path| {
        let of = |share: f64| {
            middle(
                rounds
                    .iter()
                    .map(|r| r.answers.of(path).latencies.quantile_us(share)),
            )
        };
        let added = |share: f64| {
            let each = rounds.iter().map(|round| {
                let of = |path| round.answers.of(path).latencies.quantile_us(share);
                of(path) - of(Path::Direct)
            });
            match path {
                Path::Direct => [String::new(), String::new()],
                _ => spread(each.collect()),
            }
        };
        let ([p50, p50_spread], [p99, p99_spread]) = (added(0.5), added(0.99));
        let [of_p50, of_p99] = [0.5, 0.99].map(|share| format!("{:.0}", of(share)));
        [
            path.to_string(),
            of_p50,
            p50,
            p50_spread,
            of_p99,
            p99,
            p99_spread,
        ]
    });
    table(&head, &rows, 1);
    println!(
        "`{}` is the same path for another application: what it adds is the noise of this measurement",
        Path::Again
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
pub fn checks<'a>(checks: impl Iterator<Item = &'a Check>) -> bool {
    println!("\nWhat was verified");
    let mut all_hold = true;
    for check in checks {
        all_hold &= check.holds();
        println!(
            "{} {}",
            if check.holds() { "ok  " } else { "FAIL" },
            check.what
        );
        for wrong in &check.wrong {
            println!("     {wrong}");
        }
    }
    all_hold
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

/// Columns as wide as they must be; those from `numbers` on are set right.
fn table<const N: usize>(head: &[&str; N], rows: &[[String; N]], numbers: usize) {
    let widths: Vec<usize> = (0..N)
        .map(|n| {
            let cells = rows
                .iter()
                .filter_map(|r| r.get(n))
                .map(|c| c.chars().count());
            let head = head.get(n).map_or(0, |h| h.chars().count());
            cells.max().unwrap_or(0).max(head)
        })
        .collect();
    let line = |cells: &mut dyn Iterator<Item = &str>| {
        let set: Vec<String> = cells
            .zip(&widths)
            .enumerate()
            .map(|(n, (cell, &width))| {
                if n < numbers {
                    format!("{cell:<width$}")
                } else {
                    format!("{cell:>width$}")
                }
            })
            .collect();
        println!("  {}", set.join("  ").trim_end());
    };
    line(&mut head.iter().copied());
    for row in rows {
        line(&mut row.iter().map(String::as_str));
    }
}
