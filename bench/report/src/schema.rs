//! The result file: one run, with every round of it. Units are in the names; `_us` is
//! microseconds, `_ns` nanoseconds.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Goes up when a reader of the old form would be misled.
pub const SCHEMA: u32 = 2;

/// All of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// [`SCHEMA`].
    pub schema: u32,
    /// When it began, in UTC (ISO 8601).
    pub started: String,
    /// How long it took.
    pub seconds: f64,
    /// Everything that was asked for was measured; false: it was interrupted.
    pub complete: bool,
    /// The source that was measured.
    pub source: Source,
    /// Where.
    pub machine: Machine,
    /// With what: versions by name (`underpass`, `rustc`, `cassandra`, `haproxy`, …).
    pub versions: BTreeMap<String, String>,
    /// How.
    pub settings: RunSettings,
    /// Every path there is, in the order of tables: those that were not measured with the
    /// reason.
    pub paths: Vec<Path>,
    /// The experiments, in the order of tables.
    pub experiments: Vec<Experiment>,
    /// Experiments that were asked for and could not be measured, by id, with the reason.
    #[serde(default)]
    pub failed: BTreeMap<String, String>,
    /// The costs of the BPF programs, where they were counted.
    pub programs: Vec<Program>,
    /// Where the CPU's time went, where it was profiled.
    pub profiles: Vec<Profile>,
}

/// The code.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Source {
    /// The commit that was checked out.
    pub commit: String,
    /// There were changes that it does not hold.
    pub dirty: bool,
}

/// The host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// `uname -r`.
    pub kernel: String,
    /// The processor's name in /proc/cpuinfo.
    pub cpu: String,
    /// Logical.
    pub cores: usize,
    /// MemTotal.
    pub memory_mib: u64,
    /// By vulnerability, as in /sys/devices/system/cpu/vulnerabilities.
    pub mitigations: BTreeMap<String, String>,
    /// Other circumstances that move figures: clock source, governor, BPF JIT, hypervisor.
    pub circumstances: BTreeMap<String, String>,
}

/// How it was measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunSettings {
    /// The command line.
    pub command: String,
    /// Interleaved rounds.
    pub rounds: u32,
    /// How long each path worked in a round.
    pub seconds: f64,
    /// How long each path worked before the first round that counts.
    pub warm_up_seconds: f64,
    /// A turn: a path's round is made of several, between which the others have theirs.
    pub turn_seconds: f64,
    /// The seed of the order of turns and of the keys.
    pub seed: u64,
}

/// A way from a client to the database.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Path {
    /// `direct`, `bypass`, `haproxy`, …
    pub name: String,
    /// The path's owner.
    pub kind: PathKind,
    /// One line on how bytes travel.
    pub about: String,
    /// Why it was not measured (`has not landed`, `not installed`); None: it was.
    pub absent: Option<String>,
}

/// The owner of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PathKind {
    /// No proxy.
    Direct,
    /// One of underpass's paths.
    Ours,
    /// Another proxy.
    Peer,
}

/// One workload in one variant: every path did the same.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Experiment {
    /// Workload and variant: `kv-192-16`.
    pub id: String,
    /// The workload's file, without its ending.
    pub workload: String,
    /// One line.
    pub title: String,
    /// Where the workload comes from, and where to read of it.
    pub origin: Origin,
    /// Figures of others for it.
    pub published: Vec<Published>,
    /// The server that answered: `node`, `cassandra`, `redis`, `listener`.
    pub database: String,
    /// How many of them.
    pub nodes: usize,
    /// `raw` or `driver`.
    pub client: String,
    /// Threads of the generator.
    pub threads: usize,
    /// Connections of the generator; where a driver decides, what was asked of it.
    pub connections: usize,
    /// Requests in flight on a connection.
    pub depth: usize,
    /// Operations a second that the schedule calls for; None: a closed loop, which shows the
    /// maximum of throughput, and whose latencies leave out what waiting would have cost.
    pub rate: Option<f64>,
    /// Each proxy had one core for itself, and client and database another one; false: all shared all.
    #[serde(default)]
    pub is_proxy_apart: bool,
    /// The most that the generator can do when nothing else is slow.
    pub headroom: Option<Headroom>,
    /// Why no path's figures may be used (the generator was the bottleneck); None: they may.
    pub refused: Option<String>,
    /// One of each path that was measured, `direct` first.
    pub series: Vec<Series>,
    /// Paths that are there but cannot do this workload, by name, with the reason.
    pub left_out: BTreeMap<String, String>,
}

/// The origin of a workload.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Origin {
    /// `cassandra-stress 5.0`, `YCSB core workloads`, …
    pub name: String,
    /// The URL of its description.
    pub url: String,
    /// The changes for this machine; empty: none.
    #[serde(default)]
    pub changed: String,
}

/// A figure that somebody else published for a workload, on other hardware.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Published {
    /// The variant to which it belongs; None: it belongs to all.
    pub variant: Option<String>,
    /// The system that was measured: `shotover-proxy, Passthrough`.
    pub system: String,
    /// Operations in a second.
    pub op_s: Option<f64>,
    /// Latency at the median, in ms.
    pub p50_ms: Option<f64>,
    /// Latency at the 99th percentile, in ms.
    pub p99_ms: Option<f64>,
    /// Mean latency, in ms.
    pub mean_ms: Option<f64>,
    /// The hardware, as far as the source says.
    pub hardware: String,
    /// The URL of the publication.
    pub url: String,
}

/// The generator against a server that does nothing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Headroom {
    /// The server that answered: `null`, or `node` where a driver needs a database that can be queried.
    pub server: String,
    /// Operations in a second.
    pub op_s: f64,
    /// Latency, in µs.
    pub p50_us: f64,
    /// Latency, in µs.
    pub p99_us: f64,
    /// The generator's CPU for an operation, in µs.
    pub generator_cpu_us: f64,
}

/// One path in one experiment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Series {
    /// Name of a [`Path`].
    pub path: String,
    /// Every round that counts, in order; the n-th of every path was measured in turns.
    pub rounds: Vec<Round>,
    /// Latencies of all rounds: HdrHistogram V2, deflated, base64; values in ns. From the
    /// intended time where there is a schedule.
    pub histogram: String,
    /// How its flows were handed to the kernel, in all rounds; None: nobody hands them over.
    #[serde(default)]
    pub hand_overs: Option<HandOvers>,
    /// The use of connections that its flows shared, in all rounds; None: they share none.
    #[serde(default)]
    pub shared: Option<Shared>,
}

/// How long flows paused when they were handed to the kernel, as the agent counts it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HandOvers {
    /// How often that was.
    pub count: u64,
    /// So many of them took at most so many µs, from the shortest pause to the longest.
    pub at_most_us: Vec<(f64, u64)>,
}

impl HandOvers {
    /// A pause that this fraction of them did not exceed, in µs: a bound from above, as fine as what was
    /// counted. None: there were none, or more than the rest took longer than anything that is counted.
    pub fn quantile_us(&self, fraction: f64) -> Option<f64> {
        let wanted = (fraction * self.count as f64).ceil();
        let mut counted = self.at_most_us.iter();
        let found = counted.find(|(_, count)| self.count > 0 && *count as f64 >= wanted);
        found.map(|(us, _)| *us)
    }
}

/// The use of the connections to a database that flows share, as the agent counts it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Shared {
    /// Requests that went over them.
    pub requests: u64,
    /// How often something was written to one.
    pub writes: u64,
    /// How often something was read from one.
    pub reads: u64,
}

/// The work of one path in one round.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Round {
    /// In which requests began: the orders' times, summed up, and not the time until the last
    /// response.
    pub seconds: f64,
    /// Operations that succeeded, also after that time: what is said of *an* operation (CPU,
    /// switches, bytes) is divided by them.
    pub ops: u64,
    /// Operations that succeeded and ended within `seconds`: throughput.
    pub in_time: u64,
    /// Operations that the schedule called for; None: a closed loop.
    // Spelled out, for serde takes an `Option` that is missing for None.
    #[serde(deserialize_with = "Option::deserialize")]
    pub scheduled: Option<u64>,
    /// Operations that failed.
    pub errors: u64,
    /// Why the first of them did.
    pub first_error: Option<String>,
    /// Latencies, in µs.
    pub latency: Latency,
    /// How much later than intended requests left though their connection had room: p99, in
    /// µs; 0 in a closed loop.
    pub lateness_p99_us: f64,
    /// The generator's process.
    pub generator: Usage,
    /// The proxy's: the agent, or a peer; zeros for `direct`. The agent runs for every path
    /// of ours, also where no byte passes through it.
    pub proxy: Usage,
    /// The databases'; zeros where they run elsewhere.
    pub database: Usage,
    /// The kernel's own threads, which do what no process is charged with; None: nobody looked.
    #[serde(default)]
    pub kernel: Option<Usage>,
    /// Bytes that the generator wrote and read; 0 where a driver owns the sockets.
    pub bytes: u64,
    /// Bytes that a proxy copied: into its memory and out of it again each count; None: not known.
    pub copied_bytes: Option<u64>,
}

/// Quantiles of a round, in µs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "they say what they are")]
pub struct Latency {
    pub mean_us: f64,
    pub p50_us: f64,
    pub p90_us: f64,
    pub p95_us: f64,
    pub p99_us: f64,
    pub p999_us: f64,
    pub max_us: f64,
}

/// The kernel's account of a process (or of several that are one program) in a round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Usage {
    /// CPU time outside of the kernel.
    pub user_us: f64,
    /// CPU time in it.
    pub system_us: f64,
    /// Times that it went to sleep.
    pub voluntary_switches: u64,
    /// Times that it had to make room.
    pub involuntary_switches: u64,
    /// The most memory that it had resident since the round began, in KiB.
    pub rss_peak_kib: u64,
}

/// The cost of a BPF program under load.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Program {
    /// The program's name, as in its section.
    pub name: String,
    /// `cgroup_sock_addr`, …
    pub kind: String,
    /// The experiment under which it was counted.
    pub experiment: String,
    /// How often it ran.
    pub runs: u64,
    /// Mean time of a run, in ns (`run_time_ns / run_cnt`).
    pub mean_ns: f64,
    /// The size after translation to the machine's instructions, in bytes.
    pub jited_bytes: u64,
    /// Instructions of BPF that the verifier looked at.
    pub verified_instructions: u64,
}

/// Where the time of all CPUs went while one path was under load.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Profile {
    /// The experiment under which it was taken.
    pub experiment: String,
    /// Name of a [`Path`].
    pub path: String,
    /// Samples that were not idle.
    pub samples: u64,
    /// The shares of the samples by who ran: `generator`, `proxy`, `database`, `other`; they sum up to 1.
    pub shares: BTreeMap<String, f64>,
    /// The system calls for an operation, by who calls (`generator`, `proxy`, `database`) and by name, as
    /// `recvfrom`. Runs from before they were counted have none.
    #[serde(default)]
    pub calls: BTreeMap<String, BTreeMap<String, f64>>,
    /// The flame graph, from the project's root; None: not rendered.
    pub flame_graph: Option<String>,
}
