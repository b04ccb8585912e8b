//! Streams of which each byte is known, on every path, in whatever way applications read and write.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use integrity::{Kind, Plan, Report, Server, drive_while};

use super::{
    log::{Trouble, TroubleKind},
    routes::Needs,
    run::Run,
};
use crate::common::ways::Way;

/// The time after which streams are judged, and others begin.
const ROUND: Duration = Duration::from_secs(10);

/// The most bytes of a connection, each way.
const CONNECTION_MAX: u64 = 4 << 20;

/// The time for which a fault holds up flows that need the agent, at most. A stream that hangs is broken off, and must hang for longer
/// than that: nobody knows otherwise whether it would have gone on.
const HELD_UP: Duration = Duration::from_secs(5);

/// Lowers the priority of this thread, and of those that it starts: streams take all processor time that there is.
pub fn lower_priority() {
    const NICE: i32 = 15;
    rustix::process::setpriority_process(None, NICE).unwrap();
}

/// Sends streams by a way until the run is over. Returns the sum of their reports.
pub fn stream(run: &Run<'_>, way: &'static Way, server: &Server) -> Report {
    lower_priority();
    let (needs, hang_limit) = match way.outlives {
        true if way.name == "shortcut" => (Needs::Nudges, run.log.limit),
        true => (Needs::Nobody, run.log.limit),
        false => (Needs::Agent, run.log.limit + HELD_UP),
    };
    let mut sum = Report::default();
    for round in 0.. {
        if run.is_over() {
            break;
        }
        let plan = Plan {
            seed: run.seed.wrapping_mul(1 << 20) + round,
            connections: (1, 2),
            connection_max: CONNECTION_MAX,
            hang_limit,
            may_be_cut: !way.outlives,
            fetches: false,
            ..way.plan(server)
        };
        let (from, begun) = (run.log.now(), Instant::now());
        let goes_on = || !run.is_over() && begun.elapsed() < ROUND;
        let driven = run.sandbox.client(|| drive_while(&plan, goes_on));
        let mut report = driven.unwrap();
        report.merge(server.take());
        judge(run, (way, needs), &report, (from, hang_limit));
        // They are judged, and there may be many.
        report.hangs.clear();
        report.corruption.clear();
        sum.merge(report);
    }
    sum
}

/// Notes what a report has. `from`: when its streams were begun.
fn judge(
    run: &Run<'_>,
    (way, needs): (&'static Way, Needs),
    report: &Report,
    (from, hang_limit): (Duration, Duration),
) {
    let found = |text: String| {
        let (name, seed) = (way.name, report.seed);
        let text = format!("streams, {name}, seed {seed}: {text}");
        run.log.finding(text);
    };
    let allowed = way.allowed();
    for (name, example) in &report.examples {
        if !allowed.contains(name) {
            found(format!("{name}: {example}"));
        }
    }
    if report.corrupted > report.corruption.len() as u64 || report.hung > report.hangs.len() as u64
    {
        found("more than is kept".to_owned());
    }
    let not_begun = BTreeSet::from([Kind::Handshake]);
    let trouble = |kind, from, to, text| {
        run.log.note(Trouble {
            route: way.name,
            needs,
            kind,
            from,
            to,
            text,
        });
    };
    for wrong in &report.corruption {
        let text = format!("{wrong:?}");
        match way.outlives || wrong.kinds != not_begun {
            true => found(text),
            // Nobody knows when that was.
            false => trouble(TroubleKind::Refused, from, run.log.now(), text),
        }
    }
    for hang in &report.hangs {
        let to = run.log.at(hang.at_ms);
        // Whatever the hang is longer, was a pause of the stream's own.
        let since = to.saturating_sub(hang_limit + Duration::from_millis(1));
        trouble(TroubleKind::Waited, since, to, format!("{hang:?}"));
    }
}
