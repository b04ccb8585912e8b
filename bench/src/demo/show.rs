//! The demo's output.

use report::stats::median;

use super::{
    checks::Check, evidence::Evidence, order::Answer, path::Path, rig::Round, shop::KEYSPACE,
};

/// Prints a step that was done.
pub fn step(what: &str) {
    println!("· {what}");
}

/// Prints a round at its end.
pub fn round(number: u32, of: u32, round: &Round) {
    let each = Path::ALL.map(|path| format!("{path} {:.0} op/s", round.answers.of(path).op_s()));
    println!("· round {number}/{of}: {}", each.join(", "));
}

/// The paths, side by side.
pub fn comparison(rounds: &[Round]) {
    println!(
        "\nWhat the paths cost (medians of {} interleaved rounds)",
        rounds.len()
    );
    let head = [
        "path",
        "op/s",
        "p50 µs",
        "p99 µs",
        "p99.9 µs",
        "op/s ÷ direct",
        "p50 ÷ direct",
    ];
    let rows = Path::ALL.map(|path| {
        let of =
            |number: fn(&Answer) -> f64| middle(rounds.iter().map(|r| number(r.answers.of(path))));
        let ratio = |number: fn(&Answer) -> f64| {
            middle(
                rounds
                    .iter()
                    .map(|r| number(r.answers.of(path)) / number(&r.answers.direct)),
            )
        };
        [
            path.to_string(),
            format!("{:.0}", of(Answer::op_s)),
            format!("{:.0}", of(p50)),
            format!("{:.0}", of(|a| a.latencies.quantile_us(0.99))),
            format!("{:.0}", of(|a| a.latencies.quantile_us(0.999))),
            format!("{:.3}", ratio(Answer::op_s)),
            format!("{:.3}", ratio(p50)),
        ]
    });
    table(&head, &rows, 1);
}

/// The median; there is at least one round.
fn middle(values: impl Iterator<Item = f64>) -> f64 {
    median(values).unwrap_or(f64::NAN)
}

fn p50(answer: &Answer) -> f64 {
    answer.latencies.quantile_us(0.5)
}

/// Prints the statements that were read: from copies, and by the agent that carries them.
pub fn statements(evidence: &Evidence) {
    println!("\nWhat was read");
    let head = [
        "path", "keyspace", "table", "kind", "count", "p50 µs", "p99 µs",
    ];
    let (ours, others): (Vec<_>, Vec<_>) = evidence
        .statements
        .iter()
        .partition(|s| s.keyspace == KEYSPACE);
    let rows: Vec<_> = ours
        .iter()
        .map(|s| {
            let numbers = [s.count, s.p50_us, s.p99_us].map(|n| n.to_string());
            let [count, p50, p99] = numbers;
            [
                s.rule.clone(),
                s.keyspace.clone(),
                s.table.clone(),
                s.kind.clone(),
                count,
                p50,
                p99,
            ]
        })
        .collect();
    table(&head, &rows, 4);
    let asked: u64 = others.iter().map(|s| s.count).sum();
    println!("and {asked} requests of the driver's own, to begin with and about the cluster");
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
