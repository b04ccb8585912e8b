//! Notes that a reader needs to read the summary's table rightly.

use crate::{
    constant,
    model::Text,
    number,
    schema::{PathKind, Run},
    stats,
};

/// The notes on the summary's columns, on memory, and on chance.
pub fn of_summary(run: &Run) -> [Text; 3] {
    [columns(run), memory(run), chance(run)]
}

fn columns(run: &Run) -> Text {
    let text = Text::new().plain(
        "Throughput is the maximum, as a ratio to direct: over raw sockets on the embedded node, over a \
         driver on Cassandra. ",
    );
    match constant::choose(run) {
        Some(choice) => text
            .plain("Added latency, the proxy's CPU and the bytes that it copied are those of ")
            .code(&*choice.experiment.id)
            .plain(format!(
                ", in which every path is asked for the same work: {} op/s, {}.",
                number::grouped(choice.rate),
                choice.reason()
            )),
        None => text.plain("No experiment let every path do the same work."),
    }
}

/// The note on what a resident set includes.
fn memory(run: &Run) -> Text {
    let ours = run.measured().filter(|p| p.kind == PathKind::Ours);
    let ours: Vec<&str> = ours.map(|p| &*p.name).collect();
    let shared = match ours.split_last() {
        Some((last, others)) if !others.is_empty() => format!(
            " {} and {last} share one agent, so each of their rows shows its RSS.",
            others.join(", ")
        ),
        _ => String::new(),
    };
    Text::new().plain(format!(
        "RSS is the proxy's, the most of all experiments. Of a proxy of several processes it \
         counts the pages that they share once for each of them. BPF maps are the kernel's memory \
         and in nobody's RSS.{shared}"
    ))
}

/// How many of the differences are none: a table that makes hundreds of comparisons shows some
/// where there is nothing.
fn chance(run: &Run) -> Text {
    let all = run.usable().flat_map(|e| &e.series);
    let rounds = all.map(|s| s.rounds.len());
    // The fewest rounds that still claim something are the likeliest to be wrong.
    let chances = rounds.filter_map(|n| Some((n, stats::chance_of_difference(n)?)));
    let likeliest = chances.max_by(|(_, a), (_, b)| a.total_cmp(b));
    Text::new().plain(match likeliest {
        Some((rounds, chance)) => format!(
            "With {rounds} rounds, two equal paths look different in up to 1 of {} comparisons, so \
             some of the differences in the many tables are chance.",
            number::grouped((1.0 / chance).round())
        ),
        None => format!(
            "With fewer than {} rounds chance cannot be told from a difference: these figures show \
             what was measured, and nothing is claimed of them.",
            stats::MIN_ROUNDS
        ),
    })
}
