//! The result file: raw numbers of every round, and what follows from them.

use serde::{Deserialize, Serialize};

use super::machine::{Machine, Source, Versions};
use crate::{
    order::Answer,
    path::{ByPath, Path},
    rig::Round,
    stats::median,
};

/// Goes up when a reader of the old form would be misled.
pub const SCHEMA: u32 = 1;

/// All of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Results {
    /// [`SCHEMA`].
    pub schema: u32,
    /// When, in UTC (ISO 8601).
    pub date: String,
    /// What was measured.
    pub source: Source,
    /// Where.
    pub machine: Machine,
    /// With what.
    pub versions: Versions,
    /// How.
    pub settings: Settings,
    /// The embedded node, under reads and writes in turn.
    pub node: Comparison,
    /// A real Cassandra, where one was given.
    pub cassandra: Option<Cassandra>,
    /// `connect()` alone.
    pub connects: Connects,
}

/// How it was measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// Interleaved rounds, without those that warm up.
    pub rounds: u32,
    /// How long each path worked in a round, for each load.
    pub seconds: f64,
    /// Threads of each client.
    pub threads: usize,
}

/// Of a real Cassandra.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cassandra {
    /// `release_version`.
    pub version: String,
    /// Threads that share a driver's connections.
    pub driver: Loads,
    /// As many threads, each with a connection and one request in flight.
    pub raw: Loads,
}

/// Of a real Cassandra, by one kind of client.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Loads {
    /// Prepared reads of one row.
    pub read: Comparison,
    /// Prepared writes of one row.
    pub write: Comparison,
    /// The most memory that the agent had.
    pub agent_rss_peak_kib: AgentRss,
}

/// Peaks of the agent's resident memory, in KiB.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct AgentRss {
    /// Until the clients were connected: loading programs takes more than carrying flows.
    pub start: u64,
    /// From then on.
    pub under_load: u64,
}

/// The paths side by side, under one load.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// Every round that counts.
    pub rounds: Vec<ByPath<Numbers>>,
    /// Of each number over the rounds.
    pub medians: ByPath<Numbers>,
    /// Medians of the rounds' ratios to direct.
    pub ratios: ByPath<Ratios>,
}

/// What one path did.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Numbers {
    /// Operations in a second.
    pub op_s: f64,
    /// Latency, in µs.
    pub p50_us: f64,
    /// Latency, in µs.
    pub p99_us: f64,
    /// Latency, in µs.
    pub p999_us: f64,
    /// CPU time of the agent for each operation, in µs.
    pub agent_cpu_us: f64,
}

/// To direct, in the same round.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Ratios {
    /// Of operations in a second.
    pub op_s: f64,
    /// Of the median latency.
    pub p50: f64,
    /// Of the latency's 99th percentile.
    pub p99: f64,
}

/// `connect()` calls, in interleaved blocks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Connects {
    /// Calls of each path in a block.
    pub block: u32,
    /// Each block's median, in µs.
    pub blocks: Vec<ByPath<f64>>,
    /// Of all of a path's calls, in µs.
    pub p50_us: ByPath<f64>,
    /// Median of the blocks' differences to direct, in µs.
    pub added_us: ByPath<f64>,
}

impl Numbers {
    /// Of one path in one round.
    fn of(round: &Round, path: Path) -> Self {
        let answer: &Answer = round.answers.of(path);
        let quantile = |q| rounded(answer.latencies.quantile_us(q));
        let cpu_us = *round.agent_cpu_ns.of(path) as f64 / 1e3;
        Self {
            op_s: rounded(answer.op_s()),
            p50_us: quantile(0.5),
            p99_us: quantile(0.99),
            p999_us: quantile(0.999),
            agent_cpu_us: rounded(cpu_us / answer.ops() as f64),
        }
    }
}

impl Comparison {
    /// From rounds as they were.
    pub fn new(rounds: &[Round]) -> Self {
        let numbers = |round| ByPath::new(|path| Numbers::of(round, path));
        Self::from_rounds(rounds.iter().map(numbers).collect())
    }

    /// From each round's numbers.
    pub fn from_rounds(rounds: Vec<ByPath<Numbers>>) -> Self {
        let medians = ByPath::new(|path| {
            let of = |number: fn(&Numbers) -> f64| {
                rounded(median(rounds.iter().map(|r| number(r.of(path)))))
            };
            Numbers {
                op_s: of(|n| n.op_s),
                p50_us: of(|n| n.p50_us),
                p99_us: of(|n| n.p99_us),
                p999_us: of(|n| n.p999_us),
                agent_cpu_us: of(|n| n.agent_cpu_us),
            }
        });
        let ratios = ByPath::new(|path| {
            let of = |number: fn(&Numbers) -> f64| {
                let ratio = |r: &ByPath<Numbers>| number(r.of(path)) / number(&r.direct);
                rounded_ratio(median(rounds.iter().map(ratio)))
            };
            Ratios {
                op_s: of(|n| n.op_s),
                p50: of(|n| n.p50_us),
                p99: of(|n| n.p99_us),
            }
        });
        Self {
            rounds,
            medians,
            ratios,
        }
    }
}

impl Connects {
    /// From each block's medians and all calls' medians, in µs.
    pub fn new(block: u32, blocks: Vec<ByPath<f64>>, p50_us: &ByPath<f64>) -> Self {
        let added_us =
            ByPath::new(|path| rounded(median(blocks.iter().map(|b| b.of(path) - b.direct))));
        Self {
            block,
            added_us,
            p50_us: p50_us.map(|us| rounded(*us)),
            blocks: blocks.iter().map(|b| b.map(|us| rounded(*us))).collect(),
        }
    }
}

/// To what a clock is good for: the file is read by people, too.
fn rounded(number: f64) -> f64 {
    (number * 100.0).round() / 100.0
}

fn rounded_ratio(number: f64) -> f64 {
    (number * 10_000.0).round() / 10_000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(op_s: f64, p50_us: f64) -> Numbers {
        Numbers {
            op_s,
            p50_us,
            p99_us: 2.0 * p50_us,
            ..Numbers::default()
        }
    }

    #[test]
    fn ratios_are_medians_of_rounds_and_not_of_medians() {
        let round = |direct, bypass, enrich| ByPath {
            direct: numbers(direct, 10.0),
            bypass: numbers(bypass, 11.0),
            enrich: numbers(enrich, 20.0),
        };
        // The machine slows down to a half; within each round the paths keep their ratio.
        let rounds = vec![
            round(100.0, 99.0, 80.0),
            round(50.0, 49.5, 40.0),
            round(60.0, 59.4, 48.0),
        ];
        let comparison = Comparison::from_rounds(rounds);
        assert_eq!(comparison.medians.direct.op_s, 60.0);
        assert_eq!(
            comparison.ratios.direct,
            Ratios {
                op_s: 1.0,
                p50: 1.0,
                p99: 1.0
            }
        );
        assert_eq!(comparison.ratios.bypass.op_s, 0.99);
        assert_eq!(comparison.ratios.bypass.p50, 1.1);
        assert_eq!(
            comparison.ratios.enrich,
            Ratios {
                op_s: 0.8,
                p50: 2.0,
                p99: 2.0
            }
        );
    }

    #[test]
    fn added_time_is_of_blocks() {
        let block = |direct| ByPath {
            direct,
            bypass: direct + 1.25,
            enrich: direct + 50.0,
        };
        let connects = Connects::new(100, vec![block(10.0), block(30.0)], &block(20.0));
        assert_eq!(
            (connects.added_us.direct, connects.added_us.bypass),
            (0.0, 1.25)
        );
        assert_eq!(connects.p50_us.enrich, 70.0);
    }
}
