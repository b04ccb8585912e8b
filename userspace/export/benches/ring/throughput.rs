//! Records in a second, from threads that write as fast as they can to one that only takes them out.

use std::{
    path::Path,
    sync::{Arc, Barrier},
    thread,
    time::{Duration, Instant},
};

use criterion::{Criterion, Throughput};

use crate::{
    results,
    ways::{WAYS, Way},
};

/// The records of one iteration: enough that starting threads is not what is measured.
const RECORDS: u64 = 10_000;
const WRITERS: [usize; 2] = [1, 2];
const BYTES: [usize; 3] = [64, 256, 512];

pub fn measure(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group(GROUP);
    group.throughput(Throughput::Elements(RECORDS));
    group.warm_up_time(Duration::from_millis(300));
    group.measurement_time(Duration::from_millis(1500));
    group.sample_size(20);
    for writers in WRITERS {
        for bytes in BYTES {
            // The ways of one size behind one another: a machine's mood changes slowly.
            for way in WAYS {
                group.bench_function(name(way, writers, bytes), |bencher| {
                    bencher.iter_custom(|iterations| run(way, writers, bytes, iterations));
                });
            }
        }
    }
    group.finish();
}

const GROUP: &str = "exports";

fn name(way: &str, writers: usize, bytes: usize) -> String {
    format!("{way}-{writers}-{bytes}")
}

fn run(name: &str, writers: usize, bytes: usize, iterations: u64) -> Duration {
    let mut way = Way::new(name, writers, bytes);
    let each = iterations * RECORDS / writers as u64;
    let barrier = Arc::new(Barrier::new(writers + 1));
    let threads: Vec<_> = way
        .writers
        .drain(..)
        .map(|mut write| {
            let barrier = barrier.clone();
            let record = vec![7; bytes];
            thread::spawn(move || {
                barrier.wait();
                for _ in 0..each {
                    while !write(&record) {
                        thread::yield_now();
                    }
                }
                write
            })
        })
        .collect();
    barrier.wait();
    let began = Instant::now();
    way.writers = threads.into_iter().map(|t| t.join().unwrap()).collect();
    while way.seen.records() < each * writers as u64 {
        thread::yield_now();
    }
    began.elapsed()
}

/// Reads Criterion's results of this run.
pub fn found(criterion: &Path) -> Vec<results::Rate> {
    let mut rates = Vec::new();
    for writers in WRITERS {
        for bytes in BYTES {
            for way in WAYS {
                let file = criterion.join(GROUP).join(name(way, writers, bytes));
                let text = std::fs::read_to_string(file.join("new/estimates.json"));
                let Ok(text) = text else { continue };
                let estimates: serde_json::Value = serde_json::from_str(&text).unwrap();
                let median = &estimates["median"];
                let rate = |ns: &serde_json::Value| RECORDS as f64 * 1e9 / ns.as_f64().unwrap();
                rates.push(results::Rate {
                    way: way.to_owned(),
                    writers,
                    bytes,
                    records_per_second: rate(&median["point_estimate"]),
                    low: rate(&median["confidence_interval"]["upper_bound"]),
                    high: rate(&median["confidence_interval"]["lower_bound"]),
                });
            }
        }
    }
    rates
}
