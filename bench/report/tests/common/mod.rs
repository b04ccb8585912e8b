//! Runs that never were: deterministic, by seed.

#![expect(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]
#![allow(
    clippy::allow_attributes,
    dead_code,
    reason = "each test uses its part of them"
)]

use std::collections::BTreeMap;

use base64::{Engine, prelude::BASE64_STANDARD};
use hdrhistogram::{
    Histogram,
    serialization::{Serializer, V2DeflateSerializer},
};
use report::schema::{
    Experiment, Headroom, Latency, Machine, Origin, Path, PathKind, Program, Published, Round, Run,
    RunSettings, SCHEMA, Series, Source, Usage,
};

/// The cost of a path, relative to direct.
#[derive(Clone, Copy)]
pub struct Cost {
    pub path: &'static str,
    /// op/s ÷ direct.
    pub op_s: f64,
    /// Latency added, in µs.
    pub added_us: f64,
    /// The proxy's CPU for an operation, in µs.
    pub cpu_us: f64,
    pub rss_kib: u64,
    /// Copies of each byte.
    pub copies: u64,
}

pub const COSTS: [Cost; 5] = [
    cost("direct", 1.0, 0.0, 0.0, 0, 0),
    cost("bypass", 1.0, 0.0, 0.02, 7_300, 0),
    cost("enrich", 0.84, 72.0, 11.0, 8_200, 2),
    cost("haproxy", 0.74, 94.0, 14.5, 12_400, 2),
    cost("nginx", 0.66, 127.0, 19.0, 9_900, 2),
];

const fn cost(
    path: &'static str,
    op_s: f64,
    added_us: f64,
    cpu_us: f64,
    rss_kib: u64,
    copies: u64,
) -> Cost {
    Cost {
        path,
        op_s,
        added_us,
        cpu_us,
        rss_kib,
        copies,
    }
}

/// Experiments as direct carries them: id, workload, database, client, rate (0: a closed loop), nodes, op/s, median latency in µs.
const LOADS: &str = "\
    node-raw         node-raw     node      raw    0     1  92000 85
    connect          connect      listener  raw    0     1  40000 20.5
    stress-read      stress-read  cassandra driver 0     1  24000 311
    stress-read-raw  stress-read  cassandra raw    0     1  27600 269
    stress-write     stress-write cassandra driver 0     1  28100 264
    stress-write-raw stress-write cassandra raw    0     1  31900 225
    const-rate-1000  const-rate   cassandra raw    1000  1  1000  240
    const-rate-2500  const-rate   cassandra raw    2500  1  2500  230
    const-rate-5000  const-rate   cassandra raw    5000  1  5000  260
    const-rate-10000 const-rate   cassandra raw    10000 1  10000 420
    nodes-1          nodes        node      raw    5000  1  5000  90
    nodes-2          nodes        node      raw    5000  2  5000  95
    nodes-4          nodes        node      raw    5000  4  5000  104
    nodes-10         nodes        node      raw    5000  10 5000  131
    nodes-24         nodes        node      raw    5000  24 5000  190";

struct Load {
    rate: Option<f64>,
    nodes: usize,
    op_s: f64,
    p50_us: f64,
    is_raw: bool,
}

/// xorshift64*: a test needs no more.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// From 0 to 1.
    pub fn unit(&mut self) -> f64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// About 1, give or take so much.
    pub fn about(&mut self, give: f64) -> f64 {
        1.0 + (self.unit() * 2.0 - 1.0) * give
    }
}

pub const ROUNDS: usize = 5;
/// In a histogram: enough for 99.9 %.
const SAMPLES: u32 = 4000;
const SECONDS: f64 = 3.0;
/// The relative difference between rounds.
const NOISE: f64 = 0.01;
/// Bytes of an operation, request and response.
const BYTES: u64 = 250;

/// A whole run.
pub fn run(seed: u64) -> Run {
    run_of(seed, &COSTS)
}

/// With these paths.
pub fn run_of(seed: u64, costs: &[Cost]) -> Run {
    let mut random = Random::new(seed);
    let experiments = LOADS
        .lines()
        .map(|load| experiment(&mut random, load, costs))
        .collect();
    let pairs = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
        let owned = pairs.iter().map(|(a, b)| (a.to_string(), b.to_string()));
        owned.collect()
    };
    Run {
        schema: SCHEMA,
        started: "2025-01-31T12:00:00Z".into(),
        seconds: 1830.0,
        complete: true,
        source: Source {
            commit: "0123456789abcdef0123456789abcdef01234567".into(),
            dirty: false,
        },
        machine: Machine {
            kernel: "6.1.0".into(),
            cpu: "A CPU".into(),
            cores: 2,
            memory_mib: 4096,
            mitigations: pairs(&[("spectre_v2", "Mitigation: Retpolines")]),
            circumstances: pairs(&[("clock source", "tsc"), ("BPF JIT", "on")]),
        },
        versions: pairs(&[
            ("underpass", "0.1.0"),
            ("cassandra", "5.0.9"),
            ("haproxy", "2.6.12"),
            ("nginx", "1.22.1"),
        ]),
        settings: RunSettings {
            command: "cargo xtask bench run".into(),
            rounds: ROUNDS as u32,
            seconds: SECONDS,
            warm_up_seconds: 2.0,
            turn_seconds: 0.5,
            seed,
        },
        paths: paths(costs),
        experiments,
        failed: BTreeMap::new(),
        programs: vec![Program {
            name: "connect4".into(),
            kind: "cgroup_sock_addr".into(),
            experiment: "connect".into(),
            runs: 120_000,
            mean_ns: 412.5,
            jited_bytes: 2900,
            verified_instructions: 8123,
        }],
        profiles: Vec::new(),
    }
}

fn paths(costs: &[Cost]) -> Vec<Path> {
    let path = |name: &str, kind, about: &str, absent: Option<&str>| Path {
        name: name.into(),
        kind,
        about: about.into(),
        absent: absent.map(str::to_owned),
    };
    let mut all = vec![
        path("direct", PathKind::Direct, "no proxy", None),
        path("bypass", PathKind::Ours, "the socket is left alone", None),
        path(
            "observe",
            PathKind::Ours,
            "read in the kernel",
            Some("has not landed"),
        ),
        path(
            "shortcut",
            PathKind::Ours,
            "socket to socket",
            Some("has not landed"),
        ),
        path("enrich", PathKind::Ours, "through the agent, decoded", None),
        path("haproxy", PathKind::Peer, "haproxy, tcp, splicing on", None),
        path("nginx", PathKind::Peer, "nginx, stream", None),
        path(
            "shotover",
            PathKind::Peer,
            "shotover",
            Some("not installed"),
        ),
    ];
    for cost in costs
        .iter()
        .filter(|c| !COSTS.iter().any(|k| k.path == c.path))
    {
        all.push(path(cost.path, PathKind::Peer, "another", None));
    }
    all
}

fn experiment(random: &mut Random, load: &str, costs: &[Cost]) -> Experiment {
    let words: Vec<&str> = load.split_whitespace().collect();
    let [id, workload, database, client, rate, nodes, op_s, p50_us] = words[..] else {
        panic!("{load}");
    };
    let number = |text: &str| text.parse::<f64>().unwrap();
    let load = Load {
        rate: Some(number(rate)).filter(|rate| *rate > 0.0),
        nodes: nodes.parse().unwrap(),
        op_s: number(op_s),
        p50_us: number(p50_us),
        is_raw: client == "raw",
    };
    let is_stress = workload.starts_with("stress");
    Experiment {
        id: id.into(),
        workload: workload.into(),
        title: format!("what {workload} does"),
        origin: Origin {
            name: "somewhere".into(),
            url: "https://example.org/somewhere".into(),
            changed: "fewer keys".into(),
        },
        published: Vec::from_iter(is_stress.then(|| Published {
            variant: None,
            system: "shotover-proxy, Passthrough".into(),
            op_s: Some(11_051.0),
            p50_ms: Some(0.6),
            p99_ms: None,
            mean_ms: None,
            hardware: "not said".into(),
            url: "https://example.org/figures".into(),
        })),
        database: database.into(),
        nodes: load.nodes,
        client: client.into(),
        threads: 8,
        connections: 8,
        depth: 1,
        rate: load.rate,
        is_proxy_apart: false,
        headroom: Some(Headroom {
            server: "null".into(),
            op_s: 310_000.0,
            p50_us: 21.0,
            p99_us: 44.0,
            generator_cpu_us: 5.1,
        }),
        refused: None,
        series: costs
            .iter()
            .map(|cost| series(random, &load, cost))
            .collect(),
        left_out: BTreeMap::new(),
    }
}

fn series(random: &mut Random, load: &Load, cost: &Cost) -> Series {
    let p50 = load.p50_us + cost.added_us * (1.0 + load.nodes as f64 / 20.0);
    let mut histogram = Histogram::<u64>::new_with_bounds(1, 60_000_000_000, 3).unwrap();
    for _ in 0..SAMPLES {
        histogram.saturating_record((latency_us(p50, random.unit()) * 1e3) as u64);
    }
    let rounds = (0..ROUNDS)
        .map(|_| round(random, load, cost, p50))
        .collect();
    Series {
        path: cost.path.into(),
        rounds,
        histogram: encoded(&histogram),
        ..Series::default()
    }
}

/// A long tail: each nine takes twice as long as the one before.
fn latency_us(p50: f64, quantile: f64) -> f64 {
    p50 * 0.8 * (1.0 - quantile).max(1e-6).powf(-0.32)
}

pub fn encoded(histogram: &Histogram<u64>) -> String {
    let mut bytes = Vec::new();
    V2DeflateSerializer::new()
        .serialize(histogram, &mut bytes)
        .unwrap();
    BASE64_STANDARD.encode(bytes)
}

fn round(random: &mut Random, load: &Load, cost: &Cost, p50: f64) -> Round {
    let op_s = match load.rate {
        Some(rate) => rate,
        None => load.op_s * cost.op_s * random.about(NOISE),
    };
    let ops = (op_s * SECONDS) as u64;
    let p50 = p50 * random.about(NOISE);
    let usage = |us: f64, rss_peak_kib| Usage {
        user_us: us * 0.3 * ops as f64,
        system_us: us * 0.7 * ops as f64,
        voluntary_switches: (ops as f64 * 0.9) as u64,
        involuntary_switches: ops / 40,
        rss_peak_kib,
    };
    let proxy = match cost.path {
        "direct" => Usage::default(),
        _ => usage(cost.cpu_us * random.about(NOISE), cost.rss_kib),
    };
    Round {
        seconds: SECONDS,
        ops,
        in_time: ops,
        scheduled: load.rate.map(|rate| (rate * SECONDS) as u64),
        errors: 0,
        first_error: None,
        latency: Latency {
            mean_us: p50 * 1.2,
            p50_us: p50,
            p90_us: latency_us(p50, 0.9),
            p95_us: latency_us(p50, 0.95),
            p99_us: latency_us(p50, 0.99) * random.about(NOISE * 4.0),
            p999_us: latency_us(p50, 0.999) * random.about(NOISE * 20.0),
            max_us: latency_us(p50, 0.99999),
        },
        lateness_p99_us: load.rate.map_or(0.0, |_| 12.0),
        generator: usage(14.0 * random.about(NOISE), 21_000),
        proxy,
        database: usage(33.0 * random.about(NOISE), 1_100_000),
        kernel: Some(usage(1.5 * random.about(NOISE), 0)),
        bytes: if load.is_raw { ops * BYTES } else { 0 },
        copied_bytes: (cost.path != "direct").then_some(ops * BYTES * cost.copies),
    }
}

/// So many operations, all of them in time.
pub fn did(round: &mut Round, ops: u64) {
    (round.ops, round.in_time) = (ops, ops);
}

/// The series, to be changed.
pub fn series_mut<'a>(run: &'a mut Run, experiment: &str, path: &str) -> &'a mut Series {
    let experiment = experiment_mut(run, experiment);
    let mut all = experiment.series.iter_mut();
    all.find(|series| series.path == path).unwrap()
}

/// The experiment, to be changed.
pub fn experiment_mut<'a>(run: &'a mut Run, id: &str) -> &'a mut Experiment {
    run.experiments.iter_mut().find(|e| e.id == id).unwrap()
}
