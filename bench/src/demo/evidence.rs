//! The evidence: what the kernel, the agent and the database report on the flows while they are
//! open.

use std::net::SocketAddr;

use anyhow::Context;
use sandbox::Metric;
use serde::{Deserialize, de::DeserializeOwned};

use super::{
    order::Answer,
    path::{ByPath, Path},
    rig::Rig,
    sockets::{self, Socket},
};

/// The evidence on all flows.
pub struct Evidence {
    /// The address that every client dialled.
    pub target: SocketAddr,
    /// The clients' process ids.
    pub pids: ByPath<u32>,
    /// The clients' sockets, by their kernel.
    pub sockets: ByPath<Vec<Socket>>,
    /// The clients' own reports.
    pub told: ByPath<Answer>,
    /// The counts of `underpass_connections_total`.
    pub connections: Vec<Connections>,
    /// The sum of `underpass_safer_path_total`.
    pub safer: u64,
    /// The flows in `/flows`.
    pub flows: Vec<Flow>,
    /// The statements in `/statements`.
    pub statements: Vec<Statement>,
    /// The clients in `system_views.clients`; or the reason why they cannot be had.
    pub database_sees: Result<Vec<SocketAddr>, String>,
}

/// `connect()` calls that a rule decided, and what became of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connections {
    /// The rule.
    pub rule: String,
    /// The outcome of the connections.
    pub outcome: String,
    /// The number of connections.
    pub count: u64,
}

/// The part of the agent's view of a flow that matters here.
#[derive(Clone, Debug, Deserialize)]
pub struct Flow {
    /// The client's address, as the database should see it.
    pub client: SocketAddr,
    /// The client's process id.
    pub pid: u32,
    /// The flow's path.
    pub path: String,
    /// The address that the client dialled.
    pub orig_dst: SocketAddr,
    /// The rule that marked it.
    pub rule: String,
}

/// A row of the statements that enrichment has seen.
#[derive(Clone, Debug, Deserialize)]
pub struct Statement {
    /// The rule of its flows.
    pub rule: String,
    /// The table's keyspace.
    pub keyspace: String,
    /// The table.
    pub table: String,
    /// The kind of statement.
    pub kind: String,
    /// The number of statements.
    pub count: u64,
    /// The median latency, in µs.
    pub p50_us: u64,
    /// The 99th percentile of latencies, in µs.
    pub p99_us: u64,
}

impl Evidence {
    /// Collects the evidence. The clients must be idle, and still connected.
    pub fn collect(
        rig: &Rig<'_>,
        target: SocketAddr,
        told: ByPath<Answer>,
        database_sees: anyhow::Result<Vec<SocketAddr>>,
    ) -> anyhow::Result<Self> {
        let pids = rig.applications.map(|client| client.pid());
        let metrics = rig.agent.metrics().context("the agent does not answer")?;
        Ok(Self {
            target,
            sockets: ByPath::try_new(|path: Path| sockets::of(*pids.of(path)))?,
            pids,
            told,
            connections: connections(&metrics),
            safer: metrics
                .iter()
                .filter(|(name, _)| name.starts_with("underpass_safer_path_total"))
                .map(|(_, count)| *count as u64)
                .sum(),
            flows: get(rig, "/flows")?,
            statements: get(rig, "/statements")?,
            database_sees: database_sees.map_err(|error| format!("{error:#}")),
        })
    }

    /// Connections of a rule that had this outcome, or any other.
    pub fn connections(&self, rule: &str, is: impl Fn(&str) -> bool) -> u64 {
        let of_rule = self.connections.iter().filter(|c| c.rule == rule);
        of_rule.filter(|c| is(&c.outcome)).map(|c| c.count).sum()
    }
}

fn get<T: DeserializeOwned>(rig: &Rig<'_>, path: &str) -> anyhow::Result<T> {
    let text = rig.agent.get(path)?;
    serde_json::from_str(&text).with_context(|| format!("{path} of the agent: {text}"))
}

fn connections(metrics: &Metric) -> Vec<Connections> {
    let samples = metrics.iter().filter_map(|(name, count)| {
        let labels = name.strip_prefix("underpass_connections_total{")?;
        Some(Connections {
            rule: label(labels, "rule")?,
            outcome: label(labels, "outcome")?,
            count: *count as u64,
        })
    });
    samples.collect()
}

/// A label's value; ours hold no quotes.
fn label(labels: &str, name: &str) -> Option<String> {
    let (_, rest) = labels.split_once(&format!("{name}=\""))?;
    let (value, _) = rest.split_once('"')?;
    Some(value.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_read_in_any_order_of_labels() {
        let metrics = Metric::from([
            (
                r#"underpass_connections_total{outcome="untouched",rule="bypass"}"#.to_owned(),
                2.0,
            ),
            (
                r#"underpass_connections_total{rule="enrich",outcome="denied"}"#.to_owned(),
                1.0,
            ),
            (
                r#"underpass_bytes_total{direction="to_client"}"#.to_owned(),
                7.0,
            ),
        ]);
        let read = connections(&metrics);
        let told: Vec<_> = read
            .iter()
            .map(|c| (&*c.rule, &*c.outcome, c.count))
            .collect();
        assert_eq!(told, [("bypass", "untouched", 2), ("enrich", "denied", 1)]);
    }
}
