//! The cost of BPF programs under load: how often each ran, for how long on average, and the size
//! of what it became after translation to the machine's instructions.
//!
//! The kernel counts runs only while somebody asks for it, and then reads the clock before and
//! after each. That slows every run down, and part of it is in the mean: measure latency without a
//! [`Counter`], and compare means with means.

mod held;

use std::{collections::BTreeMap, os::fd::OwnedFd};

use anyhow::{Context, Result};
use aya::{
    programs::{ProgramInfo, loaded_programs},
    sys::{Stats, enable_stats},
};

/// A program's cost between [`Counter::start`] and [`Counter::finish`].
#[derive(Clone, Debug, PartialEq)]
pub struct ProgramCost {
    /// The function's name, of which the kernel keeps 15 bytes.
    pub name: String,
    /// The program's type: `cgroup_sock_addr`, …
    pub kind: String,
    /// The number of runs.
    pub runs: u64,
    /// The mean time of a run, in ns; 0 when there was none.
    pub mean_ns: f64,
    /// The size after translation to the machine's instructions, all of its functions together.
    pub jited_bytes: u64,
    /// The BPF instructions that the verifier looked at, each as often as it did so.
    pub verified_instructions: u64,
}

/// A counter of the runs of the programs that one process holds. The kernel stops counting when the
/// last counter is gone, however it went.
#[derive(Debug)]
pub struct Counter {
    pid: u32,
    before: BTreeMap<u32, Runs>,
    _stats: OwnedFd,
}

#[derive(Clone, Copy, Debug, Default)]
struct Runs {
    count: u64,
    time_ns: u64,
}

impl Counter {
    /// Counts from here on. Needs root.
    ///
    /// # Errors
    /// There is no such process, or this is not root.
    pub fn start(pid: u32) -> Result<Self> {
        let stats = enable_stats(Stats::RunTime).context("cannot have BPF programs timed")?;
        let before = programs(pid)?;
        Ok(Self {
            pid,
            before: before.iter().map(|info| (info.id(), runs(info))).collect(),
            _stats: stats,
        })
    }

    /// The programs that the process holds now, by name. One that it let go of meanwhile is not
    /// among them.
    ///
    /// # Errors
    /// The process is gone.
    pub fn finish(self) -> Result<Vec<ProgramCost>> {
        let after = programs(self.pid)?;
        let mut costs: Vec<ProgramCost> = after.iter().map(|info| self.cost(info)).collect();
        costs.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(costs)
    }

    fn cost(&self, info: &ProgramInfo) -> ProgramCost {
        let before = self.before.get(&info.id()).copied().unwrap_or_default();
        let after = runs(info);
        let count = after.count.saturating_sub(before.count);
        let time_ns = after.time_ns.saturating_sub(before.time_ns);
        ProgramCost {
            name: info.name_as_str().unwrap_or_default().to_owned(),
            kind: kind(&format!("{:?}", info.program_type())),
            runs: count,
            mean_ns: if count == 0 {
                0.0
            } else {
                time_ns as f64 / count as f64
            },
            jited_bytes: info.size_jitted().into(),
            verified_instructions: info.verified_instruction_count().unwrap_or(0).into(),
        }
    }
}

/// Returns the kernel's information on the programs that `pid` holds.
fn programs(pid: u32) -> Result<Vec<ProgramInfo>> {
    let held = held::program_ids(pid)?;
    // A program may go between the kernel's list and the look at it.
    Ok(loaded_programs()
        .filter_map(Result::ok)
        .filter(|info| held.contains(&info.id()))
        .collect())
}

fn runs(info: &ProgramInfo) -> Runs {
    Runs {
        count: info.run_count(),
        time_ns: u64::try_from(info.run_time().as_nanos()).unwrap_or(u64::MAX),
    }
}

/// `BPF_PROG_TYPE_SOCK_OPS` as bpftool would write it: `sock_ops`.
fn kind(constant: &str) -> String {
    let name = constant.strip_prefix("BPF_PROG_TYPE_");
    name.unwrap_or(constant).to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_those_of_bpftool() {
        assert_eq!(kind("BPF_PROG_TYPE_CGROUP_SOCK_ADDR"), "cgroup_sock_addr");
        assert_eq!(kind("Other"), "other");
    }

    #[test]
    fn a_process_that_is_gone_is_an_error() {
        assert!(programs(u32::MAX).is_err());
    }
}
