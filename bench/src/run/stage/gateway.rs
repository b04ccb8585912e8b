//! A stage with a gateway between clients and the database.

use std::{collections::BTreeMap, net::SocketAddr};

use anyhow::Context;
use load::workload::{Database, Protocol, Topology, Variant};
use peers::Setup;
use sandbox::{Agent, run_in};

use super::{Lane, Stage};
use crate::{
    databases::Databases,
    gateway::{self, Line, nftables},
    interrupt,
    paths::{AGAIN, DIRECT, FORWARD, OURS},
    server::binary,
    ways::Ways,
};

const ELSEWHERE: &str = "a path of the clients' own host";

impl<'a> Stage<'a> {
    /// Sets up what each way's gateway does.
    pub(super) fn at_gateways(
        variant: &Variant,
        databases: &Databases,
        ways: &Ways,
        lines: &'a Lines,
    ) -> anyhow::Result<Self> {
        let mut stage = Self::empty();
        let database = *databases.addresses.first().context("no database")?;
        for path in OURS.iter().filter(|path| path.at != variant.topology) {
            if ways.has(path.name) {
                stage.leave_out(path.name, ELSEWHERE);
            }
        }
        for (way, line) in &lines.0 {
            interrupt::check()?;
            match stage.open(way, line, variant, database, ways) {
                Ok(lane) => stage.lanes.push(lane),
                Err(why) => stage.leave_out(way, format!("failed: {why:#}")),
            }
        }
        stage.lanes.sort_by_key(|lane| lane.path != DIRECT);
        Ok(stage)
    }

    fn open(
        &mut self,
        way: &'static str,
        line: &'a Line,
        variant: &Variant,
        database: SocketAddr,
        ways: &Ways,
    ) -> anyhow::Result<Lane<'a>> {
        let virtual_address = gateway::virtual_of(database);
        let mut lane = Lane::at(way, line);
        lane.targets = match way {
            DIRECT | AGAIN => vec![database],
            nftables::NAME => {
                nftables::set(&line.gateway, virtual_address, database)?;
                vec![virtual_address]
            }
            name if name == FORWARD.name => {
                let agent = forwarding(line, variant, database)?;
                lane.proxy_pids = vec![agent.pid()];
                self.agents.push((FORWARD.agent, agent));
                vec![virtual_address]
            }
            name => {
                let (peer, found) = ways.peer(name).context("no such peer")?;
                let folder = tempfile::tempdir()?;
                let setup = Setup {
                    host: line.front,
                    backends: vec![database],
                    folder: folder.path().to_owned(),
                };
                let running = run_in(Some(&line.gateway), None, || peer.start(found, &setup))??;
                lane.proxy_pids = running.pids();
                let fronts = running.fronts.clone();
                self._peers.push((running, folder));
                fronts
            }
        };
        for target in &lane.targets {
            line.wait_until_open(*target)?;
        }
        Ok(lane)
    }
}

fn forwarding<'a>(
    line: &'a Line,
    variant: &Variant,
    database: SocketAddr,
) -> anyhow::Result<Agent<'a>> {
    let speaks_cql = variant.database == Database::Node;
    let policy = Line::policy(FORWARD.name, FORWARD.rule, database, speaks_cql);
    let (binary, netns) = (binary("underpass")?, Some(&line.gateway));
    Agent::start(&binary, netns, &line.cgroup, FORWARD.agent, &policy)
}

/// The networks of an experiment whose clients and databases are apart, by the ways that they are for; none where everything is
/// on this host.
pub struct Lines(BTreeMap<&'static str, Line>);

impl Lines {
    /// Makes the networks.
    ///
    /// # Errors
    /// The user is not root, or a tool is missing.
    pub fn new(variant: &Variant, databases: &Databases, ways: &Ways) -> anyhow::Result<Self> {
        if variant.topology == Topology::Host {
            return Ok(Self(BTreeMap::new()));
        }
        let network = databases.netns.as_ref().context("no network")?;
        let ways = self::ways(variant, ways);
        Ok(Self(gateway::lines(&ways, network)?))
    }
}

/// The ways that this can be done over.
fn ways(variant: &Variant, ways: &Ways) -> Vec<&'static str> {
    let job = &variant.job;
    let ours = OURS
        .into_iter()
        .filter(|path| path.at == variant.topology && ways.has(path.name));
    let carries = ours.filter(|path| (path.carries)(job).is_ok());
    let kernel = ways.has(nftables::NAME).then_some(nftables::NAME);
    // A proxy accepts before it dials: another thing than to reach a database.
    let reaches = job.protocol != Protocol::Connect;
    let peers = ways.peers.iter().map(|(peer, _)| *peer);
    let peers =
        peers.filter(|peer| reaches && (!peer.is_cql_only || job.protocol == Protocol::Cql));
    let again = ways.has(AGAIN).then_some(AGAIN);
    [DIRECT]
        .into_iter()
        .chain(again)
        .chain(carries.map(|path| path.name))
        .chain(kernel)
        .chain(peers.map(|peer| peer.name))
        .collect()
}
