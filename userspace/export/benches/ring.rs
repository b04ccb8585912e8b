//! The cost of getting records out of a thread: records in a second, and the writer's own time for
//! one.
//!
//! `cargo bench -p underpass-export` prints it; with `UPDATE_RESULTS=1` it is written to
//! `bench/results/exports.json`, and the page beside it.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a benchmark that fails ends"
)]

#[path = "ring/own_time.rs"]
mod own_time;
#[path = "ring/results.rs"]
mod results;
#[path = "ring/throughput.rs"]
mod throughput;
#[path = "ring/ways.rs"]
mod ways;
#[path = "ring/words.rs"]
mod words;

use criterion::Criterion;

fn main() {
    let target = results::target();
    // Noted before the benchmark itself loads the machine.
    let circumstances = sandbox::measured::circumstances();
    let mut criterion = Criterion::default()
        .output_directory(&target.join("criterion"))
        .configure_from_args();
    throughput::measure(&mut criterion);
    criterion.final_summary();
    // `cargo test --benches` only asks whether it runs.
    if std::env::args().any(|arg| arg == "--bench") {
        let found = results::Results {
            schema: results::SCHEMA,
            circumstances,
            ring_bytes: export::RING_BYTES,
            throughput: throughput::found(&target.join("criterion")),
            clock_ns: own_time::clock_ns(),
            own_time: own_time::measure(),
        };
        print!("{}", found.page());
        if std::env::var_os("UPDATE_RESULTS").is_some() {
            found.write();
        }
    }
}
