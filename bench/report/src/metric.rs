//! Metrics: each asks a round for one number.

use crate::schema::{Round, Usage};

/// A process of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Process {
    /// Makes the load.
    Generator,
    /// The agent, or a peer.
    Proxy,
    /// Answers.
    Database,
}

impl Process {
    /// All, in the order of tables.
    pub const ALL: [Self; 3] = [Self::Generator, Self::Proxy, Self::Database];

    /// In tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Generator => "generator",
            Self::Proxy => "proxy",
            Self::Database => "database",
        }
    }

    /// The process's usage in a round.
    pub fn of(self, round: &Round) -> &Usage {
        match self {
            Self::Generator => &round.generator,
            Self::Proxy => &round.proxy,
            Self::Database => &round.database,
        }
    }
}

/// A question to a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Metric {
    /// Operations in a second: of those that ended while requests began. A queue that is worked
    /// off afterwards is no throughput.
    OpS,
    /// Mean latency, in µs.
    Mean,
    /// Latency, in µs.
    P50,
    /// Latency, in µs.
    P90,
    /// Latency, in µs.
    P99,
    /// Latency, in µs.
    P999,
    /// The longest latency, in µs.
    Max,
    /// How late requests left: p99, in µs.
    Lateness,
    /// CPU time outside of the kernel for an operation, in µs.
    User(Process),
    /// CPU time in the kernel for an operation, in µs.
    System(Process),
    /// All CPU time for an operation, in µs.
    Cpu(Process),
    /// All CPU time of the kernel's own threads for an operation, in µs.
    KernelCpu,
    /// All CPU time of generator, proxy, database and the kernel's threads for an operation, in µs.
    AllCpu,
    /// Times that a process went to sleep for an operation.
    Voluntary(Process),
    /// Times that a process had to make room for an operation.
    Involuntary(Process),
    /// The proxy's memory, in KiB.
    RssPeak,
    /// Bytes that a proxy copied for an operation.
    Copied,
    /// Bytes that a copying proxy would have copied for an operation, and this one did not.
    Avoided,
}

/// A proxy that copies takes each byte in and gives it out again.
const COPIES: f64 = 2.0;

impl Metric {
    /// The latencies of tables.
    pub const LATENCIES: [Self; 4] = [Self::P50, Self::P90, Self::P99, Self::P999];

    /// In tables.
    pub fn name(self) -> String {
        match self {
            Self::OpS => "op/s".into(),
            Self::Mean => "mean".into(),
            Self::P50 => "p50".into(),
            Self::P90 => "p90".into(),
            Self::P99 => "p99".into(),
            Self::P999 => "p99.9".into(),
            Self::Max => "max".into(),
            Self::Lateness => "sent late, p99".into(),
            Self::User(process) => format!("{}, user", process.name()),
            Self::System(process) => format!("{}, system", process.name()),
            Self::Cpu(process) => format!("{}'s CPU per operation", process.name()),
            Self::KernelCpu => "kernel threads' CPU per operation".into(),
            Self::AllCpu => "CPU per operation".into(),
            Self::Voluntary(process) => format!("{}, voluntary switches", process.name()),
            Self::Involuntary(process) => format!("{}, involuntary switches", process.name()),
            Self::RssPeak => "RSS peak".into(),
            Self::Copied => "copied".into(),
            Self::Avoided => "copies avoided".into(),
        }
    }

    /// The round's answer; None where it has none: no operation, no time, not known.
    pub fn of(self, round: &Round) -> Option<f64> {
        let per_operation = |total: f64| (round.ops > 0).then(|| total / round.ops as f64);
        let latency = |us: f64| (round.ops > 0).then_some(us);
        let answer = match self {
            Self::OpS => (round.seconds > 0.0).then(|| round.in_time as f64 / round.seconds),
            Self::Mean => latency(round.latency.mean_us),
            Self::P50 => latency(round.latency.p50_us),
            Self::P90 => latency(round.latency.p90_us),
            Self::P99 => latency(round.latency.p99_us),
            Self::P999 => latency(round.latency.p999_us),
            Self::Max => latency(round.latency.max_us),
            Self::Lateness => latency(round.lateness_p99_us),
            Self::User(process) => per_operation(process.of(round).user_us),
            Self::System(process) => per_operation(process.of(round).system_us),
            Self::Cpu(process) => per_operation(cpu(process.of(round))),
            Self::KernelCpu => per_operation(cpu(round.kernel.as_ref()?)),
            Self::AllCpu => {
                let processes = Process::ALL.map(|process| cpu(process.of(round)));
                per_operation(processes.iter().sum::<f64>() + cpu(round.kernel.as_ref()?))
            }
            Self::Voluntary(process) => per_operation(process.of(round).voluntary_switches as f64),
            Self::Involuntary(process) => {
                per_operation(process.of(round).involuntary_switches as f64)
            }
            Self::RssPeak => Some(round.proxy.rss_peak_kib as f64).filter(|kib| *kib > 0.0),
            Self::Copied => per_operation(round.copied_bytes? as f64),
            Self::Avoided => {
                let bytes = (round.bytes > 0).then_some(round.bytes as f64)?;
                let avoided = COPIES * bytes - round.copied_bytes? as f64;
                per_operation(avoided.max(0.0))
            }
        };
        answer.filter(|number| number.is_finite())
    }
}

fn cpu(usage: &Usage) -> f64 {
    usage.user_us + usage.system_us
}
