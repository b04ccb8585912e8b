//! The stage of an experiment: databases, agents, peers, and a lane for each way to the databases.
//!
//! **Invariant**: nothing outlives the stage: generators go first, then peers, the agents, the
//! databases, and last (they are borrowed) the cgroups.

mod gateway;

use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, SocketAddr},
    path::Path,
};

use anyhow::ensure;
use load::{
    order::{Credentials, Hello, Seed},
    workload::{Protocol, Variant},
};
use peers::{Running, Setup};
use report::schema::{HandOvers, Shared};
use sandbox::{Agent, Cgroup, Netns};

use super::{cores::Cores, generator::Generator, hand_overs, shared, verify};
use crate::{
    databases::Databases,
    gateway::{Line, nftables},
    interrupt,
    paths::{AGAIN, DIRECT, FORWARD, OURS, Ours, SHORTCUT, Topology},
    server::binary,
    ways::{Cgroups, Ways},
};

pub use gateway::Lines;

/// The reason for a path that a workload does not name.
const NOT_COMPARED: &str = "not compared under this workload";

/// With more connections there is no second direct: a database has those of all ways at once, and may open no more than a
/// process may (20,000 on most hosts).
const MOST_AGAIN: usize = 5_000;
const TOO_MANY: &str = "the database could not open so many connections once more";

/// A way to the databases, and the generator that uses it.
pub struct Lane<'a> {
    /// The path's name.
    pub path: &'static str,
    /// The addresses that the generator dials.
    targets: Vec<SocketAddr>,
    netns: Option<&'a Netns>,
    cgroup: Option<&'a Cgroup>,
    /// The processes of the proxy: the agent's, or a peer's.
    pub proxy_pids: Vec<u32>,
    /// Whether all of the way's bytes pass through the proxy's memory; None: some may be spliced.
    pub is_copied: Option<bool>,
    /// The number of connections by which the generators have made themselves known.
    introductions: usize,
    introduces: bool,
    /// The hand-overs of the way's flows to the kernel, once the rounds are over.
    pub hand_overs: Option<HandOvers>,
    /// The use of connections that the way's flows share, likewise.
    pub shared: Option<Shared>,
    /// The generator, which runs between [`Lane::connect`] and the end of the round.
    pub generator: Option<Generator>,
    /// The reason why the lane is out of the experiment.
    pub failed: Option<String>,
    /// Whether it has done enough: it has no more rounds.
    pub rests: bool,
}

/// Everything that runs during an experiment.
pub struct Stage<'a> {
    /// The lanes, `direct` first.
    pub lanes: Vec<Lane<'a>>,
    /// The ways that cannot do this workload, with the reasons.
    pub left_out: BTreeMap<String, String>,
    _peers: Vec<(Running, tempfile::TempDir)>,
    /// The agents, by the lines of `[agent]` that they got.
    agents: Vec<(&'static str, Agent<'a>)>,
}

impl<'a> Stage<'a> {
    /// Starts everything between generators and databases.
    pub fn set(
        variant: &Variant,
        databases: &'a Databases,
        ways: &Ways,
        cgroups: &'a Cgroups,
        lines: &'a Lines,
        cores: Cores,
    ) -> anyhow::Result<Self> {
        let _proxys = cores.take_proxys()?;
        if variant.topology == Topology::Gateway {
            return Self::at_gateways(variant, databases, ways, lines);
        }
        let mut stage = Self::empty();
        for name in [FORWARD.name, nftables::NAME] {
            if ways.has(name) {
                stage.leave_out(name, "a path of a gateway");
            }
        }
        stage
            .lanes
            .push(Lane::new(DIRECT, &databases.addresses, cgroups));
        if ways.has(AGAIN) && variant.job.connections > MOST_AGAIN {
            stage.leave_out(AGAIN, TOO_MANY);
        } else if ways.has(AGAIN) {
            let again = Lane::new(AGAIN, &databases.addresses, cgroups);
            stage.lanes.push(again);
        }
        for (told, cgroup) in cgroups.ours() {
            stage.add_agent((told, cgroup), variant, databases, ways, cgroups)?;
        }
        match &databases.home {
            Some(home) => {
                stage.add_agent((SHORTCUT.agent, home), variant, databases, ways, cgroups)?;
            }
            None if ways.has(SHORTCUT.name) => {
                stage.leave_out(
                    SHORTCUT.name,
                    "the database has no threaded cgroup of its own",
                );
            }
            None => {}
        }
        for (peer, found) in &ways.peers {
            interrupt::check()?;
            if !variant.compares(peer.name) {
                stage.leave_out(peer.name, NOT_COMPARED);
                continue;
            }
            if variant.job.protocol == Protocol::Connect {
                // The peer accepts before it dials: that is not the same as reaching a database.
                stage.leave_out(peer.name, "it answers connect() itself");
                continue;
            }
            if peer.is_cql_only && variant.job.protocol != Protocol::Cql {
                stage.leave_out(peer.name, "does not carry this protocol");
                continue;
            }
            let folder = tempfile::tempdir()?;
            let setup = Setup {
                host: Ipv4Addr::LOCALHOST,
                backends: databases.addresses.clone(),
                folder: folder.path().to_owned(),
            };
            match peer.start(found, &setup) {
                Ok(running) => {
                    let mut lane = Lane::new(peer.name, &running.fronts, cgroups);
                    lane.proxy_pids = running.pids();
                    lane.is_copied = (!peer.may_splice).then_some(true);
                    stage.lanes.push(lane);
                    stage._peers.push((running, folder));
                }
                Err(error) => stage.leave_out(peer.name, format!("failed: {error:#}")),
            }
        }
        Ok(stage)
    }

    fn empty() -> Self {
        Self {
            lanes: Vec::new(),
            left_out: BTreeMap::new(),
            _peers: Vec::new(),
            agents: Vec::new(),
        }
    }

    /// Starts one agent for all of our paths that need the same lines of `[agent]`, with a rule for
    /// each.
    fn add_agent(
        &mut self,
        (told, cgroup): (&'static str, &'a Cgroup),
        variant: &Variant,
        databases: &'a Databases,
        ways: &Ways,
        cgroups: &'a Cgroups,
    ) -> anyhow::Result<()> {
        let mut carrying: Vec<(&Ours, &Cgroup)> = Vec::new();
        let its =
            |path: &&Ours| path.agent == told && path.at == Topology::Host && ways.has(path.name);
        for path in OURS.into_iter().filter(its) {
            if !variant.compares(path.name) {
                self.leave_out(path.name, NOT_COMPARED);
                continue;
            }
            match (path.carries)(&variant.job) {
                Ok(()) => carrying.extend(cgroups.of(path.name).map(|cgroup| (path, cgroup))),
                Err(why) => self.leave_out(path.name, why),
            }
        }
        if carrying.is_empty() {
            return Ok(());
        }
        let rules = carrying
            .iter()
            .map(|(path, cgroup)| rule(path, cgroup, databases));
        let policy: String = rules.collect();
        let agent = start(&binary("underpass")?, told, cgroup, &policy)?;
        for (path, _) in &carrying {
            let mut lane = Lane::new(path.name, &databases.addresses, cgroups);
            lane.proxy_pids = vec![agent.pid()];
            lane.is_copied = path.is_copied;
            lane.introduces = path.introduces;
            self.lanes.push(lane);
        }
        self.agents.push((told, agent));
        Ok(())
    }

    fn leave_out(&mut self, path: &str, why: impl Into<String>) {
        self.left_out.insert(path.to_owned(), why.into());
    }

    /// Fails every path of ours that was not taken.
    ///
    /// # Errors
    /// The agent does not report its metrics.
    pub fn verify(&mut self) -> anyhow::Result<()> {
        for (told, agent) in &self.agents {
            let metrics = agent.metrics()?;
            for path in OURS.into_iter().filter(|path| path.agent == *told) {
                let mut lanes = self.lanes.iter_mut();
                let Some(lane) = lanes.find(|lane| lane.path == path.name) else {
                    continue;
                };
                lane.hand_overs = hand_overs::of(&metrics);
                lane.shared = shared::of(path.name, &metrics);
                if let Some(why) = verify::taken(path, lane.introductions, &metrics) {
                    lane.failed.get_or_insert(why);
                }
            }
        }
        Ok(())
    }

    /// Stops the agents as an operator does; everything else ends when it is dropped.
    pub fn strike(mut self) -> anyhow::Result<()> {
        self.lanes.clear();
        for (_, agent) in &mut self.agents {
            let status = agent.stop()?;
            let said = agent.log();
            ensure!(
                status.success(),
                "the agent ended with {status}; it said:\n{said}"
            );
        }
        Ok(())
    }
}

impl<'a> Lane<'a> {
    fn new(path: &'static str, targets: &[SocketAddr], cgroups: &'a Cgroups) -> Self {
        Self::within(path, targets, cgroups.of(path))
    }

    /// Makes a lane whose generators are in this cgroup.
    pub fn within(path: &'static str, targets: &[SocketAddr], cgroup: Option<&'a Cgroup>) -> Self {
        Self {
            targets: targets.to_vec(),
            cgroup,
            is_copied: Some(false),
            ..Self::of(path)
        }
    }

    /// Makes a lane at a gateway. Nobody counts its bytes, because they are in networks of their
    /// own.
    fn at(path: &'static str, line: &'a Line) -> Self {
        Self {
            netns: Some(&line.client),
            ..Self::of(path)
        }
    }

    fn of(path: &'static str) -> Self {
        Self {
            path,
            targets: Vec::new(),
            netns: None,
            cgroup: None,
            proxy_pids: Vec::new(),
            is_copied: None,
            introductions: 0,
            introduces: false,
            hand_overs: None,
            shared: None,
            generator: None,
            failed: None,
            rests: false,
        }
    }

    /// Gives it a new generator. Which thread of a database serves a connection, and where a
    /// process lies in memory, is luck; this way it is another one in every round.
    pub fn connect(
        &mut self,
        variant: &Variant,
        credentials: Option<&Credentials>,
        seed: Seed,
    ) -> anyhow::Result<()> {
        let hello = Hello {
            job: variant.job.clone(),
            targets: self.targets.clone(),
            credentials: credentials.cloned(),
            seed,
            introduce: self.introduces,
        };
        if self.introduces {
            self.introductions += self.targets.len();
        }
        self.generator = None;
        self.generator = Some(Generator::start(
            self.path,
            self.netns,
            self.cgroup,
            &hello,
        )?);
        Ok(())
    }

    /// The addresses that the generator dials.
    pub fn targets(&self) -> &[SocketAddr] {
        &self.targets
    }

    /// The cgroup of its generators.
    pub fn cgroup(&self) -> Option<&'a Cgroup> {
        self.cgroup
    }

    /// Whether it takes part in the next round.
    pub fn works(&self) -> bool {
        self.failed.is_none() && !self.rests
    }

    /// Takes the lane out of the experiment from here on.
    pub fn fail(&mut self, error: &anyhow::Error) {
        self.failed.get_or_insert(format!("{error:#}"));
    }
}

/// Starts an agent, and waits until all that it may use has been tried out.
pub fn start<'a>(
    program: &Path,
    told: &str,
    cgroup: &'a Cgroup,
    policy: &str,
) -> anyhow::Result<Agent<'a>> {
    let agent = Agent::start(program, None, cgroup, told, policy)?;
    if told.contains("splice = ") && !told.contains("off") {
        // Flows are relayed until every engine was tried out; this is the last one.
        agent.wait_for_log("path=\"splice_egress\"")?;
    }
    Ok(agent)
}

/// The rule by which clients in a cgroup take a path.
pub fn rule(path: &Ours, cgroup: &Cgroup, databases: &Databases) -> String {
    let to: Vec<String> = databases
        .addresses
        .iter()
        .map(|a| format!("\"{a}\""))
        .collect();
    let (name, cgroup) = (path.name, cgroup.rule_path());
    let lines = path.rule;
    let to = to.join(", ");
    format!("[[rule]]\nname = \"{name}\"\nto = [{to}]\ncgroup = [{cgroup:?}]\n{lines}\n")
}
