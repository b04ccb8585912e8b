//! The demo's set-up: an agent, and an application on each path.

use std::{
    net::SocketAddr,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, bail, ensure};
use sandbox::Agent;

use super::{
    order::{Answer, Hello, Order, Reply, Work},
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
/// Policies that the agent has put into force.
const RELOADED: &str = "underpass_reloads_total{result=\"ok\"}";

/// The length of a turn. A round is cut into turns of about this length; a path's turns are summed
/// up. It is short because a shared machine changes its speed from second to second.
const TURN_SECONDS: f64 = 0.5;

/// An agent, and an application that was there before it.
pub struct Stage<'a> {
    cgroups: &'a Cgroups,
    hello: Hello,
    /// The application whose connections are read from copies.
    pub tapped: Worker,
    /// The agent between applications and what they dial.
    pub agent: Agent<'a>,
    /// The connections that were there before the agent.
    pub found: Found,
}

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

/// Starts an application, which is connected on return.
fn application(cgroups: &Cgroups, hello: &Hello, path: Path) -> anyhow::Result<Worker> {
    let cgroup = cgroups.of(path.cgroup());
    let mut worker = Worker::start(SUBCOMMAND, path.as_str(), None, cgroup)?;
    worker.say(hello)?;
    hear(&mut worker, ANSWER_LIMIT)?;
    Ok(worker)
}

impl<'a> Stage<'a> {
    /// Starts an application, and an agent that finds it running. Nothing is guarded yet.
    pub fn start(cgroups: &'a Cgroups, hello: &Hello) -> anyhow::Result<Self> {
        interrupt::check()?;
        let tapped = application(cgroups, hello, Path::Tap)?;
        let connected = sockets::of(tapped.pid())?.len();
        // The demo's paths need no settings of their own in `[agent]`.
        let ours = cgroups.ours().find(|(told, _)| told.is_empty());
        let (told, ours) = ours.context("no cgroup of ours")?;
        let policy = policy(cgroups, hello.target, &[Path::Bypass, Path::Tap]);
        let agent = Agent::start(&binary("underpass")?, None, ours, told, &policy)?;
        let found = find(&agent, connected)?;
        Ok(Self {
            cgroups,
            hello: hello.clone(),
            tapped,
            agent,
            found,
        })
    }

    /// Puts a rule into force that guards, before the others. Returns its text.
    pub fn guard(&self) -> anyhow::Result<String> {
        let before = self.agent.metric(RELOADED)?;
        let paths = [Path::Enrich, Path::Bypass, Path::Tap];
        self.agent
            .write_policy(&policy(self.cgroups, self.hello.target, &paths))?;
        let start = Instant::now();
        while self.agent.metric(RELOADED)? <= before {
            ensure!(
                start.elapsed() < FIND_LIMIT,
                "the agent does not read its file; it said:\n{}",
                self.agent.log()
            );
            thread::sleep(Duration::from_millis(5));
        }
        Ok(policy(self.cgroups, self.hello.target, &[Path::Enrich]))
    }

    /// Has a new process in the cgroup of this path execute a statement. Returns how it failed, if it did.
    pub fn execute(&self, path: Path, statement: &str) -> anyhow::Result<Option<String>> {
        let mut worker = application(self.cgroups, &self.hello, path)?;
        worker.say(&Order::Execute(statement.to_owned()))?;
        Ok(hear(&mut worker, ANSWER_LIMIT)?.first_error)
    }

    /// Starts an application on each of the other paths.
    pub fn fill(self) -> anyhow::Result<Rig<'a>> {
        let mut tapped = Some(self.tapped);
        let applications = ByPath::try_new(|path| match path {
            Path::Tap => tapped.take().context("one application is tapped"),
            _ => application(self.cgroups, &self.hello, path),
        })?;
        Ok(Rig {
            applications,
            agent: self.agent,
            found: self.found,
        })
    }
}

impl Rig<'_> {
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
    pub fn round(&mut self, seconds: f64, per_second: f64, number: usize) -> anyhow::Result<Round> {
        let turns = (seconds / TURN_SECONDS).round().max(1.0);
        let work = Work {
            seconds: seconds / turns,
            per_second,
            reports: false,
        };
        let mut answers = ByPath::try_new(|_| Answer::empty())?;
        for turn in 0..turns as usize {
            for path in rotated(number + turn) {
                let application = self.applications.of_mut(path);
                application.say(&Order::Work(work))?;
                answers.of_mut(path).add(answer(application, work)?)?;
            }
        }
        Ok(Round { answers })
    }
}

/// The answer to an order to work.
pub fn answer(application: &mut Worker, work: Work) -> anyhow::Result<Answer> {
    hear(
        application,
        Duration::from_secs_f64(work.seconds) + ANSWER_LIMIT,
    )
}

fn hear(application: &mut Worker, limit: Duration) -> anyhow::Result<Answer> {
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

/// A rule for each of these paths, named after it.
fn policy(cgroups: &Cgroups, to: SocketAddr, paths: &[Path]) -> String {
    let rule = |path: &Path| {
        let does = match path {
            Path::Direct | Path::Again => return None,
            Path::Bypass => "action = \"bypass\"",
            Path::Tap => READ,
            Path::Enrich => GUARDED,
        };
        let cgroup = cgroups.of(path.cgroup())?.rule_path();
        Some(format!(
            "[[rule]]\nname = \"{path}\"\nto = [\"{to}\"]\ncgroup = [{cgroup:?}]\n{does}\n"
        ))
    };
    paths.iter().filter_map(rule).collect()
}

const READ: &str = "action = \"enrich\"\npipeline = [{ transform = \"stats\" }]";
const GUARDED: &str = "action = \"enrich\"\nfail = \"closed\"\n\
                       pipeline = [{ transform = \"guard\", refuse = [\"truncate\"] }, { transform = \"stats\" }]";

/// Ten orders in turn: by rotating alone, each path would always follow the same other.
fn rotated(number: usize) -> [Path; 5] {
    let mut paths = Path::ALL;
    paths.rotate_left(number % 5);
    if (number / 5) % 2 == 1 {
        paths.reverse();
    }
    paths
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_order_comes_up_and_every_path_in_it() {
        let mut orders: Vec<_> = (0..10).map(|n| rotated(n).map(Path::as_str)).collect();
        for order in &orders {
            let mut sorted = *order;
            sorted.sort_unstable();
            assert_eq!(
                sorted,
                ["bypass", "direct", "direct, again", "enrich", "tap"]
            );
        }
        orders.sort_unstable();
        orders.dedup();
        assert_eq!(orders.len(), 10);
    }
}
