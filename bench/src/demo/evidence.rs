//! The evidence: what the kernel, the agent and the database report on the flows while they are
//! open.

use std::{
    net::SocketAddr,
    thread,
    time::{Duration, Instant},
};

use anyhow::Context;
use sandbox::Metric;
use serde::{Deserialize, de::DeserializeOwned};

use super::{
    order::Answer,
    path::{ByPath, Path},
    rig::{Found, Rig},
    shop::KEYSPACE,
    sockets::{self, Socket},
};

/// How long copies may be on their way to the agent after the last answer.
const UNDER_WAY: Duration = Duration::from_secs(2);

/// The evidence on all flows.
pub struct Evidence {
    /// The address that every client dialled.
    pub target: SocketAddr,
    /// The clients' process ids.
    pub pids: ByPath<u32>,
    /// The clients' sockets, by their kernel.
    pub sockets: ByPath<Vec<Socket>>,
    /// The connections that the agent found when it started.
    pub found: Found,
    /// The clients' own reports.
    pub told: ByPath<Answer>,
    /// The counts of `underpass_connections_total`.
    pub connections: Vec<Connections>,
    /// The tapped requests whose response could not be told for sure: `underpass_tap_abandoned_total`.
    pub abandoned: u64,
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
}

impl Statement {
    fn is_sent_by(&self, path: Path) -> bool {
        self.rule == path.as_str() && self.keyspace == KEYSPACE && self.kind != "prepare"
    }
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
        let statements = statements(rig, told.tap.sent.iter().map(|s| s.count).sum())?;
        let metrics = rig.agent.metrics().context("the agent does not answer")?;
        Ok(Self {
            target,
            sockets: ByPath::try_new(|path: Path| sockets::of(*pids.of(path)))?,
            pids,
            found: rig.found,
            told,
            connections: connections(&metrics),
            abandoned: sum(&metrics, "underpass_tap_abandoned_total"),
            safer: sum(&metrics, "underpass_safer_path_total"),
            flows: get(rig, "/flows")?,
            statements,
            database_sees: database_sees.map_err(|error| format!("{error:#}")),
        })
    }

    /// The application's statements that a rule has counted. Preparing is the driver's decision, as often as it
    /// likes; sending is the application's.
    pub fn sent_by(&self, path: Path) -> impl Iterator<Item = &Statement> {
        self.statements
            .iter()
            .filter(move |statement| statement.is_sent_by(path))
    }

    /// Connections of a rule that had this outcome, or any other.
    pub fn connections(&self, rule: &str, is: impl Fn(&str) -> bool) -> u64 {
        let of_rule = self.connections.iter().filter(|c| c.rule == rule);
        of_rule.filter(|c| is(&c.outcome)).map(|c| c.count).sum()
    }
}

/// The statements, as soon as all that was `sent` on the tapped path is among them.
fn statements(rig: &Rig<'_>, sent: u64) -> anyhow::Result<Vec<Statement>> {
    let deadline = Instant::now() + UNDER_WAY;
    loop {
        let statements: Vec<Statement> = get(rig, "/statements")?;
        let tapped = statements.iter().filter(|s| s.is_sent_by(Path::Tap));
        let counted: u64 = tapped.map(|s| s.count).sum();
        if counted >= sent || Instant::now() > deadline {
            return Ok(statements);
        }
        thread::sleep(Duration::from_millis(10));
    }
}

fn get<T: DeserializeOwned>(rig: &Rig<'_>, path: &str) -> anyhow::Result<T> {
    let text = rig.agent.get(path)?;
    serde_json::from_str(&text).with_context(|| format!("{path} of the agent: {text}"))
}

/// The sum of a metric over its labels.
fn sum(metrics: &Metric, name: &str) -> u64 {
    let of_name = metrics.iter().filter(|(full, _)| full.starts_with(name));
    of_name.map(|(_, count)| *count as u64).sum()
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
