//! The time that a record costs the thread that writes it, while the thread has other things to do
//! in between.

use std::{
    hint::spin_loop,
    sync::{Arc, Barrier},
    thread,
    time::{Duration, Instant},
};

use hdrhistogram::Histogram;

use crate::{
    results::OwnTime,
    ways::{WAYS, Way, Write},
};

/// The ways take turns, and of each figure the median of the rounds counts.
const ROUNDS: usize = 5;
const WRITERS: [usize; 2] = [1, 2];
const BYTES: [usize; 3] = [64, 256, 512];

/// The pause between two records, and the number of records: for a busy worker, and for one that
/// writes now and then, so that the reader has nothing to do in between.
const LOADS: [(Duration, usize); 2] = [
    (Duration::from_micros(5), 40_000),
    (Duration::from_micros(200), 2_000),
];

pub fn measure() -> Vec<OwnTime> {
    let mut found = Vec::new();
    for writers in WRITERS {
        for (gap, records) in LOADS {
            for bytes in BYTES {
                let mut rounds: Vec<Vec<Histogram<u64>>> = vec![Vec::new(); WAYS.len()];
                for _ in 0..ROUNDS {
                    for (way, rounds) in WAYS.iter().zip(&mut rounds) {
                        rounds.push(run(way, writers, bytes, gap, records));
                    }
                }
                for (way, rounds) in WAYS.iter().zip(&rounds) {
                    let quantile = |q| {
                        let mut all: Vec<_> = rounds
                            .iter()
                            .map(|round| round.value_at_quantile(q))
                            .collect();
                        all.sort_unstable();
                        all[all.len() / 2]
                    };
                    found.push(OwnTime {
                        way: (*way).to_owned(),
                        writers,
                        bytes,
                        gap_us: gap.as_micros() as u64,
                        p50_ns: quantile(0.5),
                        p99_ns: quantile(0.99),
                        p999_ns: quantile(0.999),
                        full: (ROUNDS * writers * records) as u64
                            - rounds.iter().map(Histogram::len).sum::<u64>(),
                    });
                }
            }
        }
    }
    found
}

fn run(name: &str, writers: usize, bytes: usize, gap: Duration, records: usize) -> Histogram<u64> {
    let mut way = Way::new(name, writers, bytes);
    let barrier = Arc::new(Barrier::new(writers));
    let threads: Vec<_> = way
        .writers
        .drain(..)
        .map(|write| {
            let barrier = barrier.clone();
            thread::spawn(move || {
                barrier.wait();
                write_at(write, bytes, gap, records)
            })
        })
        .collect();
    let mut all = empty();
    for thread in threads {
        let (write, times) = thread.join().unwrap();
        all.add(times).unwrap();
        way.writers.push(write);
    }
    all
}

fn write_at(
    mut write: Write,
    bytes: usize,
    gap: Duration,
    records: usize,
) -> (Write, Histogram<u64>) {
    let record = vec![7; bytes];
    let mut times = empty();
    for _ in 0..records {
        wait(gap);
        let began = Instant::now();
        let written = write(&record);
        let took = began.elapsed();
        // A full ring costs nothing, and nothing was written: the reader got no processor.
        if written {
            times.record(took.as_nanos() as u64).unwrap();
        }
    }
    (write, times)
}

/// A thread that works keeps its processor. One that has long to wait gives it up, as a worker does.
fn wait(time: Duration) {
    if time >= Duration::from_micros(100) {
        return thread::sleep(time);
    }
    let end = Instant::now() + time;
    while Instant::now() < end {
        spin_loop();
    }
}

fn empty() -> Histogram<u64> {
    Histogram::new(3).unwrap()
}

/// Measures two readings of the clock, whose time is in every figure.
pub fn clock_ns() -> u64 {
    let mut times = empty();
    for _ in 0..100_000 {
        let began = Instant::now();
        times.record(began.elapsed().as_nanos() as u64).unwrap();
    }
    times.value_at_quantile(0.5)
}
