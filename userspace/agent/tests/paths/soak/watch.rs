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

/// Computes the growth of a figure in an hour, by least squares.
pub fn slope(samples: &[Sample], of: impl Fn(&Sample) -> u64) -> f64 {
    let n = samples.len().max(1) as f64;
    let points = || {
        let point = |s: &Sample| (s.at.as_secs_f64() / 3600.0, of(s) as f64);
        samples.iter().map(point)
    };
    let mean_x = points().map(|(x, _)| x).sum::<f64>() / n;
    let mean_y = points().map(|(_, y)| y).sum::<f64>() / n;
    let of_both = points().map(|(x, y)| (x - mean_x) * (y - mean_y));
    let of_x = points().map(|(x, _)| (x - mean_x) * (x - mean_x));
    match of_x.sum::<f64>() {
        0.0 => 0.0,
        of_x => of_both.sum::<f64>() / of_x,
    }
}

#[test]
fn a_slope_is_what_it_is_by_hand() {
    let sample = |minutes: u64, resident: u64| Sample {
        at: Duration::from_secs(60 * minutes),
        pid: 1,
        resident,
        descriptors: 0,
        kernel: 0,
        sockets: [0; 2],
    };
    let grows: Vec<Sample> = (0..60).map(|m| sample(m, 1000 + 5 * m)).collect();
    assert!((slope(&grows, |s| s.resident) - 300.0).abs() < 1e-6);
    let shakes: Vec<Sample> = (0..60).map(|m| sample(m, 1000 + m % 2)).collect();
    assert!(slope(&shakes, |s| s.resident).abs() < 2.0);
    assert_eq!(slope(&[], |s| s.resident), 0.0);
}
