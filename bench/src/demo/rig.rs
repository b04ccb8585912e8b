//! The demo's set-up: an agent, and an application on each path.

use std::{
    net::SocketAddr,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, bail, ensure};
use sandbox::Agent;

use super::{
    order::{Answer, Hello, Reply, Work},
    path::{ByPath, Path},
    sockets,
};
use crate::{interrupt, server::binary, ways::Cgroups, worker::Worker};

/// The subcommand that is an application.
pub const SUBCOMMAND: &str = "shop";

/// The time limit to connect, and for an answer beyond the order's time.
const ANSWER_LIMIT: Duration = Duration::from_secs(60);
/// The time limit for the agent to find connections that were there before it.
const FIND_LIMIT: Duration = Duration::from_secs(5);
/// The length of a turn. A round is cut into turns of about this length; a path's turns are summed
/// up. It is short because a shared machine changes its speed from second to second.
const TURN_SECONDS: f64 = 0.5;

/// An agent, and an application on each path.
pub struct Rig<'a> {
    /// The application on each path.
    pub applications: ByPath<Worker>,
    /// The agent between them and what they dial.
    pub agent: Agent<'a>,
    /// The connections that were there before the agent.
    pub found: Found,
}

/// Connections that the agent found when it started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// The number of connections.
    pub connections: usize,
    /// The time from the agent's being ready until it read all of them.
    pub after: Duration,
}

/// The results of a round.
pub struct Round {
    /// The answer of each path.
    pub answers: ByPath<Answer>,
}

impl<'a> Rig<'a> {
    /// Starts the agent and the applications, which are connected on return. The tapped application is
    /// there first.
    pub fn start(cgroups: &'a Cgroups, hello: &Hello) -> anyhow::Result<Self> {
        interrupt::check()?;
        let policy = policy(cgroups, hello.target);
        let application = |path: Path| {
            let mut worker =
                Worker::start(SUBCOMMAND, path.as_str(), None, cgroups.of(path.as_str()))?;
            worker.say(hello)?;
            answer(&mut worker, ANSWER_LIMIT)?;
            Ok(worker)
        };
        let mut tapped = Some(application(Path::Tap)?);
        let connected = sockets::of(tapped.as_ref().map_or(0, Worker::pid))?.len();
        // The demo's paths need no settings of their own in `[agent]`.
        let ours = cgroups.ours().find(|(told, _)| told.is_empty());
        let (told, ours) = ours.context("no cgroup of ours")?;
        let agent = Agent::start(&binary("underpass")?, None, ours, told, &policy)?;
        let found = find(&agent, connected)?;
        let applications = ByPath::try_new(|path| match path {
            Path::Tap => tapped.take().context("one application is tapped"),
            _ => application(path),
        })?;
        Ok(Self {
            applications,
            agent,
            found,
        })
    }

    /// Ends the applications, and stops the agent as an operator does.
    pub fn stop(self) -> anyhow::Result<()> {
        let Self {
            applications,
            mut agent,
            ..
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

/// Waits until the agent reads the connections that were there before it.
fn find(agent: &Agent<'_>, connected: usize) -> anyhow::Result<Found> {
    let start = Instant::now();
    loop {
        let found = agent.metric("underpass_observed_adopted_total{rule=\"tap\"}")?;
        if found as usize >= connected {
            return Ok(Found {
                connections: found as usize,
                after: start.elapsed(),
            });
        }
        ensure!(
            start.elapsed() < FIND_LIMIT,
            "of {connected} running connections the agent reads {found}; it said:\n{}",
            agent.log()
        );
        thread::sleep(Duration::from_millis(5));
    }
}

/// A rule for each of our paths, named after it.
fn policy(cgroups: &Cgroups, to: SocketAddr) -> String {
    let rule = |path: Path| {
        let does = match path {
            Path::Direct => return None,
            Path::Bypass => "action = \"bypass\"",
            Path::Tap => STATS_BY_TAP,
            Path::Enrich => STATS_INLINE,
        };
        let cgroup = cgroups.of(path.as_str())?.rule_path();
        Some(format!(
            "[[rule]]\nname = \"{path}\"\nto = [\"{to}\"]\ncgroup = [{cgroup:?}]\n{does}\n"
        ))
    };
    Path::ALL.into_iter().filter_map(rule).collect()
}

const STATS_BY_TAP: &str =
    "action = \"enrich\"\npath = \"tap\"\npipeline = [{ transform = \"stats\" }]";
const STATS_INLINE: &str =
    "action = \"enrich\"\npath = \"inline\"\npipeline = [{ transform = \"stats\" }]";

/// Eight orders in turn: by rotating alone, each path would always follow the same other.
fn rotated(number: usize) -> [Path; 4] {
    let mut paths = Path::ALL;
    paths.rotate_left(number % 4);
    if (number / 4) % 2 == 1 {
        paths.reverse();
    }
    paths
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_order_comes_up_and_every_path_in_it() {
        let mut orders: Vec<_> = (0..8).map(|n| rotated(n).map(Path::as_str)).collect();
        for order in &orders {
            let mut sorted = *order;
            sorted.sort_unstable();
            assert_eq!(sorted, ["bypass", "direct", "enrich", "tap"]);
        }
        orders.sort_unstable();
        orders.dedup();
        assert_eq!(orders.len(), 8);
    }
}
