//! The figures that are compared, and the moves that are too small to count.

use crate::{
    metric::{Metric, Process},
    schema::{Experiment, Round, Series},
    stats::{CHANCE, Difference, Estimate},
};

/// A figure that is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Figure {
    /// Operations in a second ÷ those of direct.
    OpS,
    /// Median latency ÷ that of direct.
    P50,
    /// 99th percentile ÷ that of direct.
    P99,
    /// The proxy's CPU for an operation ÷ what generator and database need for one of direct's:
    /// on a slower host both take longer.
    Cpu,
    /// The proxy's memory at its peak, in MiB.
    Rss,
}

impl Figure {
    /// All, in the order of reports.
    pub const ALL: [Self; 5] = [Self::OpS, Self::P50, Self::P99, Self::Cpu, Self::Rss];

    /// In reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::OpS => "op/s ÷ direct",
            Self::P50 => "p50 ÷ direct",
            Self::P99 => "p99 ÷ direct",
            Self::Cpu => "proxy's CPU/op ÷ direct's",
            Self::Rss => "RSS peak, MiB",
        }
    }

    /// Moves below this are none, whatever the interval: relative, and in the figure's unit.
    pub(super) fn floor(self) -> (f64, f64) {
        match self {
            // Two builds of the same code differ by so much through where the linker puts it.
            Self::OpS | Self::P50 => (0.03, 0.0),
            // A few late wake-ups in each round decide it.
            Self::P99 => (0.10, 0.0),
            // An agent that only waits has a cost, divided by operations: hundredths of a µs
            // beside tens.
            Self::Cpu => (0.05, 0.005),
            // Allocators ask in steps.
            Self::Rss => (0.05, 0.5),
        }
    }

    pub(super) fn is_better(self, from: f64, to: f64) -> bool {
        match self {
            Self::OpS => to > from,
            _ => to < from,
        }
    }

    pub(super) fn estimate(self, experiment: &Experiment, series: &Series) -> Option<Estimate> {
        let ratios = |metric| {
            let pairs = experiment.by_ratios(series, metric)?;
            Difference::of_ratios(&pairs, CHANCE).map(|difference| difference.estimate)
        };
        match self {
            Self::OpS => ratios(Metric::OpS),
            Self::P50 => ratios(Metric::P50),
            Self::P99 => ratios(Metric::P99),
            Self::Cpu => {
                let both = series.rounds.iter().zip(&experiment.direct()?.rounds);
                Estimate::of(both.filter_map(|(path, direct)| cpu(path, direct)), CHANCE)
            }
            Self::Rss => {
                let mib = series.values(Metric::RssPeak).map(|kib| kib / 1024.0);
                Estimate::of(mib, CHANCE)
            }
        }
    }
}

fn cpu(path: &Round, direct: &Round) -> Option<f64> {
    let of = |process, round| Metric::Cpu(process).of(round);
    let work = of(Process::Generator, direct)? + of(Process::Database, direct)?;
    let proxy = of(Process::Proxy, path)?;
    (work > 0.0).then(|| proxy / work)
}
