//! Interleaved rounds: whatever else the machine does, it does to every path.

use std::fs;

use crate::{
    order::{Answer, Load, Order},
    path::{ByPath, Path},
    rig::Rig,
};

/// A round is cut into turns of about so long; a path's turns are summed up. Short, because
/// a shared machine changes its speed from second to second.
const TURN_SECONDS: f64 = 0.5;

/// What one round came to.
pub struct Round {
    /// Each path's work.
    pub answers: ByPath<Answer>,
    /// What the agent's threads ran meanwhile, in ns.
    pub agent_cpu_ns: ByPath<u64>,
}

/// One round: every path works for `seconds`, in turns. `number` decides who is first.
pub fn compare(
    rig: &mut Rig<'_>,
    load: Load,
    seconds: f64,
    number: usize,
) -> anyhow::Result<Round> {
    let turns = (seconds / TURN_SECONDS).round().max(1.0);
    let order = Order::Work {
        load,
        seconds: seconds / turns,
    };
    let mut round = Round {
        answers: ByPath::try_new(|_| Answer::empty())?,
        agent_cpu_ns: ByPath::default(),
    };
    for turn in 0..turns as usize {
        for path in rotated(number + turn) {
            let before = cpu_ns(rig.agent.pid());
            let answer = rig.clients.of_mut(path).order(order)?;
            let ran = cpu_ns(rig.agent.pid()).saturating_sub(before);
            round.answers.of_mut(path).add(answer)?;
            *round.agent_cpu_ns.of_mut(path) += ran;
        }
    }
    Ok(round)
}

/// All six orders in turn: with three alone, each path would always follow the same other.
pub fn rotated(number: usize) -> [Path; 3] {
    let mut paths = Path::ALL;
    paths.rotate_left(number % 3);
    if (number / 3) % 2 == 1 {
        paths.reverse();
    }
    paths
}

/// What a process's threads have run, in ns: the first number of `schedstat`
/// (sched-stats.rst). Threads that ended are not in it: the agent's live as long as it does.
/// 0 where the kernel does not count.
fn cpu_ns(pid: u32) -> u64 {
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return 0;
    };
    let ran = |task: fs::DirEntry| {
        let text = fs::read_to_string(task.path().join("schedstat")).ok()?;
        text.split(' ').next()?.parse::<u64>().ok()
    };
    tasks.flatten().filter_map(ran).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_order_comes_up_and_every_path_in_it() {
        let mut orders: Vec<_> = (0..6).map(|n| rotated(n).map(Path::as_str)).collect();
        for order in &orders {
            let mut sorted = *order;
            sorted.sort_unstable();
            assert_eq!(sorted, ["bypass", "direct", "enrich"]);
        }
        orders.sort_unstable();
        orders.dedup();
        assert_eq!(orders.len(), 6);
    }

    #[test]
    fn time_is_counted_where_there_is_a_process() {
        assert!(cpu_ns(std::process::id()) > 0);
        assert_eq!(cpu_ns(u32::MAX), 0);
    }
}
