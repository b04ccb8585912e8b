//! Frames in a second through the decoder and into statistics, on one core; and what they allocate.
//!
//! `cargo bench -p underpass-cql --bench frames` measures, `UPDATE_RESULTS=1` with it writes
//! `bench/results/frames.json` and `frames.md`.

mod cases;
mod core;
#[path = "../../tests/support/counting.rs"]
mod counting;
mod report;
mod stats;

use crate::core::CoreTime;
use cases::{CASES, Case, FRAME_BYTES, FRAMES, Flow, OPERATIONS};
use counting::{ALLOCATIONS, Counting};
use criterion::{Criterion, Throughput};
use report::Row;
use std::time::Duration;

#[global_allocator]
static COUNTING: Counting = Counting;

/// Before it is counted what is allocated, and while.
const ROUNDS: u64 = 100;

fn main() {
    let mut criterion = Criterion::default()
        .with_measurement(CoreTime)
        .warm_up_time(Duration::from_secs(1))
        .measurement_time(Duration::from_secs(3))
        .configure_from_args();
    let rows: Vec<Row> = CASES
        .iter()
        .filter_map(|case| match case.details {
            true => measure::<true>(*case, &mut criterion),
            false => measure::<false>(*case, &mut criterion),
        })
        .collect();
    if std::env::var_os("UPDATE_RESULTS").is_some() {
        report::write(&rows);
    }
}

/// `None`: it was not asked for.
fn measure<const DETAILS: bool>(case: Case, criterion: &mut Criterion<CoreTime>) -> Option<Row> {
    let mut flow = Flow::<DETAILS>::new(case);
    for _ in 0..ROUNDS {
        assert_eq!(flow.round(), OPERATIONS as u64, "{}", case.name);
    }
    // Every byte and every row was seen, or it would be fast for nothing.
    let (bytes, rows) = flow.sums();
    assert_eq!(rows, u64::from(DETAILS) * ROUNDS * OPERATIONS as u64);
    assert!(!case.is_plain() || bytes == FRAME_BYTES as u64 * ROUNDS * FRAMES);
    let before = ALLOCATIONS.get();
    for _ in 0..ROUNDS {
        flow.round();
    }
    let allocations = ALLOCATIONS.get() - before;
    let mut group = criterion.benchmark_group("frames");
    group.throughput(Throughput::Elements(FRAMES));
    group.bench_function(case.name, |bencher| bencher.iter(|| flow.round()));
    group.finish();
    Some(Row {
        case,
        ns: report::median_ns(case.name)? / FRAMES as f64,
        allocations: allocations as f64 / (ROUNDS * FRAMES) as f64,
    })
}
