//! The watch: once a second it samples what the agent takes of the host, and notes which routes carry something.

use std::{
    fs,
    sync::atomic::Ordering::Relaxed,
    thread,
    time::{Duration, Instant},
};

use super::{
    faults::Fault,
    run::{Run, descriptors},
};

/// The pause between two looks at the clock.
const TICK: Duration = Duration::from_millis(50);

/// A look that is later than this means that no thread ran.
const LATE: Duration = Duration::from_millis(300);

/// The looks at the clock for one at the agent.
const TICKS: u32 = 20;

/// Bytes of a page of memory, on every architecture that matters here.
const PAGE: u64 = 4096;

/// A sample: what the agent takes of the host at a moment.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    pub at: Duration,
    pub pid: u32,
    pub resident: u64,
    pub descriptors: u64,
    /// Bytes that the kernel holds for agents and keepers.
    pub kernel: u64,
    /// TCP sockets of the namespace: in use, and waiting for their end (TIME_WAIT).
    pub sockets: [u64; 2],
}

/// Watches until the run is over. Returns the samples.
pub fn watch(run: &Run<'_>) -> Vec<Sample> {
    let mut samples = Vec::new();
    for tick in 0_u32.. {
        if run.is_over() {
            break;
        }
        let (from, before) = (run.log.now(), Instant::now());
        thread::sleep(TICK);
        if before.elapsed() > TICK + LATE {
            run.log.note_fault(Fault::Machine, from, false);
        }
        if tick % TICKS == TICKS - 1 {
            samples.extend(sample(run));
            // A fault that is at work on the agent has noted it before.
            if let Some(agent) = run.idle_agent() {
                run.note_carried(&agent);
            }
        }
    }
    samples
}

/// Takes a sample. None: the agent has just ended.
fn sample(run: &Run<'_>) -> Option<Sample> {
    let pid = run.pid.load(Relaxed);
    let read = |name: &str| fs::read_to_string(format!("/proc/{pid}/{name}")).ok();
    let pages: u64 = read("statm")?.split(' ').nth(1)?.parse().ok()?;
    let sockets = read("net/sockstat")?;
    let tcp: Vec<&str> = sockets
        .lines()
        .find_map(|line| line.strip_prefix("TCP: "))?
        .split(' ')
        .collect();
    let socket = |name: &str| {
        let at = tcp.iter().position(|word| *word == name)?;
        tcp.get(at + 1)?.parse().ok()
    };
    let kernel = run.memory.as_ref().and_then(|m| m.kernel_bytes().ok());
    Some(Sample {
        at: run.log.now(),
        pid,
        resident: pages * PAGE,
        descriptors: descriptors(pid)?,
        kernel: kernel.unwrap_or(0),
        sockets: [socket("inuse")?, socket("tw")?],
    })
}

/// Returns the samples of the last agent's life, but for its first quarter.
pub fn settled(samples: &[Sample]) -> &[Sample] {
    let pid = samples.last().map(|sample| sample.pid);
    let first = samples.iter().position(|s| Some(s.pid) == pid);
    let life = &samples[first.unwrap_or(0)..];
    &life[life.len() / 4..]
}

/// The parts of that life whose least values are compared.
const PARTS: usize = 12;

/// Returns the least value of each of [`PARTS`] equal parts, with the time in hours of its middle: what load takes for a moment
/// is no leak.
pub fn minima(samples: &[Sample], of: impl Fn(&Sample) -> u64) -> Vec<(f64, u64)> {
    let bounds = |n: usize| samples.len() * n / PARTS;
    let parts = (0..PARTS).map(|n| &samples[bounds(n)..bounds(n + 1)]);
    let least = parts.filter_map(|part| {
        let at = part.get(part.len() / 2)?.at.as_secs_f64() / 3600.0;
        Some((at, part.iter().map(&of).min()?))
    });
    least.collect()
}

/// The growth of a figure in an hour.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Growth {
    pub per_hour: f64,
    /// The standard error. None: there are too few samples.
    pub error: Option<f64>,
}

/// Computes the growth of a figure by least squares over its [`minima`].
pub fn growth(samples: &[Sample], of: impl Fn(&Sample) -> u64) -> Growth {
    let points: Vec<(f64, f64)> = minima(samples, of)
        .into_iter()
        .map(|(at, least)| (at, least as f64))
        .collect();
    let n = points.len() as f64;
    let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / n;
    let (mean_x, mean_y) = (mean(|p| p.0), mean(|p| p.1));
    let of_x: f64 = points.iter().map(|(x, _)| (x - mean_x).powi(2)).sum();
    let of_both = points.iter().map(|(x, y)| (x - mean_x) * (y - mean_y));
    if of_x <= 0.0 {
        return Growth {
            per_hour: 0.0,
            error: None,
        };
    }
    let per_hour = of_both.sum::<f64>() / of_x;
    let off = |(x, y): &(f64, f64)| (y - mean_y - per_hour * (x - mean_x)).powi(2);
    let rest: f64 = points.iter().map(off).sum();
    let error = (points.len() > 2).then(|| (rest / (n - 2.0) / of_x).sqrt());
    Growth { per_hour, error }
}

#[test]
fn growth_is_what_it_is_by_hand_and_load_is_none() {
    let sample = |minutes: u64, resident: u64| Sample {
        at: Duration::from_secs(60 * minutes),
        pid: 1,
        resident,
        descriptors: 0,
        kernel: 0,
        sockets: [0; 2],
    };
    let of = |resident: fn(u64) -> u64| {
        let samples: Vec<Sample> = (0..120).map(|m| sample(m, resident(m))).collect();
        growth(&samples, |s| s.resident)
    };
    let grows = of(|m| 1000 + 5 * m);
    assert!((grows.per_hour - 300.0).abs() < 1e-6 && grows.error.unwrap() < 1e-6);
    // Nine minutes of ten it has more, and ever more.
    let loaded = of(|m| 1000 + if m % 10 == 0 { 0 } else { 50 * m });
    assert_eq!(loaded.per_hour, 0.0);
    let shakes = of(|m| 1000 + 100 * (m / 10 % 2));
    assert!(shakes.per_hour.abs() < 2.0 * shakes.error.unwrap());
    let none = growth(&[], |s| s.resident);
    assert_eq!((none.per_hour, none.error), (0.0, None));
}
