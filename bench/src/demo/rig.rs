//! The demo's set-up: an agent, and an application on each path.

use std::{net::SocketAddr, time::Duration};

use anyhow::{Context, bail, ensure};
use sandbox::Agent;

use super::{
    order::{Answer, Hello, Reply, Work},
    path::{ByPath, Path},
};
use crate::{interrupt, server::binary, ways::Cgroups, worker::Worker};

/// The subcommand that is an application.
pub const SUBCOMMAND: &str = "shop";

/// The time limit to connect, and for an answer beyond the order's time.
const ANSWER_LIMIT: Duration = Duration::from_secs(60);
/// The length of a turn. A round is cut into turns of about this length; a path's turns are summed
/// up. It is short because a shared machine changes its speed from second to second.
const TURN_SECONDS: f64 = 0.5;

/// An agent, and an application on each path.
pub struct Rig<'a> {
    /// The application on each path.
    pub applications: ByPath<Worker>,
    /// The agent between them and what they dial.
    pub agent: Agent<'a>,
}

/// The results of a round.
pub struct Round {
    /// The answer of each path.
    pub answers: ByPath<Answer>,
}

impl<'a> Rig<'a> {
    /// Starts the agent and the applications, which are connected on return.
    pub fn start(cgroups: &'a Cgroups, hello: &Hello) -> anyhow::Result<Self> {
        interrupt::check()?;
        let policy = policy(cgroups, hello.target);
        // The demo's paths need no settings of their own in `[agent]`.
        let ours = cgroups.ours().find(|(told, _)| told.is_empty());
        let (told, ours) = ours.context("no cgroup of ours")?;
        let agent = Agent::start(&binary("underpass")?, None, ours, told, &policy)?;
        let applications = ByPath::try_new(|path| {
            let mut worker =
                Worker::start(SUBCOMMAND, path.as_str(), None, cgroups.of(path.as_str()))?;
            worker.say(hello)?;
            answer(&mut worker, ANSWER_LIMIT)?;
            Ok(worker)
        })?;
        Ok(Self {
            applications,
            agent,
        })
    }

    /// Ends the applications, and stops the agent as an operator does.
    pub fn stop(self) -> anyhow::Result<()> {
        let Self {
            applications,
            mut agent,
        } = self;
        drop(applications);
        let status = agent.stop()?;
        let said = agent.log();
        ensure!(
            status.success(),
            "the agent ended with {status}; it said:\n{said}"
        );
        Ok(())
    }

    /// Plays one round: every path works for `seconds`, in turns. `number` decides which is first.
    pub fn round(&mut self, seconds: f64, number: usize) -> anyhow::Result<Round> {
        let turns = (seconds / TURN_SECONDS).round().max(1.0);
        let work = Work {
            seconds: seconds / turns,
        };
        let limit = Duration::from_secs_f64(work.seconds) + ANSWER_LIMIT;
        let mut answers = ByPath::try_new(|_| Answer::empty())?;
        for turn in 0..turns as usize {
            for path in rotated(number + turn) {
                let application = self.applications.of_mut(path);
                application.say(&work)?;
                answers.of_mut(path).add(answer(application, limit)?)?;
            }
        }
        Ok(Round { answers })
    }
}

fn answer(application: &mut Worker, limit: Duration) -> anyhow::Result<Answer> {
    match application.hear(limit)? {
        Reply::Done(answer) => Ok(answer),
        Reply::Failed(why) => bail!("the application failed: {why}"),
    }
}

/// A rule for each of our paths; named after it, as is its action.
fn policy(cgroups: &Cgroups, to: SocketAddr) -> String {
    let rule = |path: Path| {
        if path == Path::Direct {
            return None;
        }
        let cgroup = cgroups.of(path.as_str())?.rule_path();
        Some(format!(
            "[[rule]]\nname = \"{path}\"\nto = [\"{to}\"]\ncgroup = [{cgroup:?}]\n\
             action = \"{path}\"\n"
        ))
    };
    Path::ALL.into_iter().filter_map(rule).collect()
}

/// All six orders in turn: with three alone, each path would always follow the same other.
fn rotated(number: usize) -> [Path; 3] {
    let mut paths = Path::ALL;
    paths.rotate_left(number % 3);
    if (number / 3) % 2 == 1 {
        paths.reverse();
    }
    paths
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
}
