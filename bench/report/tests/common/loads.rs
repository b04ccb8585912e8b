//! The loads of made-up runs, and the costs of their paths.

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

/// The load of an experiment, as direct carries it.
#[derive(Clone, Copy)]
pub struct Load {
    pub id: &'static str,
    pub workload: &'static str,
    pub database: &'static str,
    pub client: &'static str,
    pub rate: Option<f64>,
    pub nodes: usize,
    /// Throughput of direct.
    pub op_s: f64,
    /// Median latency of direct.
    pub p50_us: f64,
}

pub const LOADS: [Load; 15] = [
    load(
        "node-raw", "node-raw", "node", "raw", None, 1, 92_000.0, 85.0,
    ),
    load(
        "connect", "connect", "listener", "raw", None, 1, 40_000.0, 20.5,
    ),
    load(
        "stress-read",
        "stress-read",
        "cassandra",
        "driver",
        None,
        1,
        24_000.0,
        311.0,
    ),
    load(
        "stress-read-raw",
        "stress-read",
        "cassandra",
        "raw",
        None,
        1,
        27_600.0,
        269.0,
    ),
    load(
        "stress-write",
        "stress-write",
        "cassandra",
        "driver",
        None,
        1,
        28_100.0,
        264.0,
    ),
    load(
        "stress-write-raw",
        "stress-write",
        "cassandra",
        "raw",
        None,
        1,
        31_900.0,
        225.0,
    ),
    load(
        "const-rate-1000",
        "const-rate",
        "cassandra",
        "raw",
        Some(1000.0),
        1,
        1000.0,
        240.0,
    ),
    load(
        "const-rate-2500",
        "const-rate",
        "cassandra",
        "raw",
        Some(2500.0),
        1,
        2500.0,
        230.0,
    ),
    load(
        "const-rate-5000",
        "const-rate",
        "cassandra",
        "raw",
        Some(5000.0),
        1,
        5000.0,
        260.0,
    ),
    load(
        "const-rate-10000",
        "const-rate",
        "cassandra",
        "raw",
        Some(10_000.0),
        1,
        10_000.0,
        420.0,
    ),
    load(
        "nodes-1",
        "nodes",
        "node",
        "raw",
        Some(5000.0),
        1,
        5000.0,
        90.0,
    ),
    load(
        "nodes-2",
        "nodes",
        "node",
        "raw",
        Some(5000.0),
        2,
        5000.0,
        95.0,
    ),
    load(
        "nodes-4",
        "nodes",
        "node",
        "raw",
        Some(5000.0),
        4,
        5000.0,
        104.0,
    ),
    load(
        "nodes-10",
        "nodes",
        "node",
        "raw",
        Some(5000.0),
        10,
        5000.0,
        131.0,
    ),
    load(
        "nodes-24",
        "nodes",
        "node",
        "raw",
        Some(5000.0),
        24,
        5000.0,
        190.0,
    ),
];

#[expect(clippy::too_many_arguments, reason = "a row of a table")]
const fn load(
    id: &'static str,
    workload: &'static str,
    database: &'static str,
    client: &'static str,
    rate: Option<f64>,
    nodes: usize,
    op_s: f64,
    p50_us: f64,
) -> Load {
    Load {
        id,
        workload,
        database,
        client,
        rate,
        nodes,
        op_s,
        p50_us,
    }
}
