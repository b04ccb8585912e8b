//! The checks whether each flow took its path: pure functions of what the kernel, the agent and the database say of the flows while
//! they are open.

use std::net::SocketAddr;

use sandbox::Metric;
use serde::Deserialize;

use super::{BYPASS, ENRICH, TAP, shop::KEYSPACE};
use crate::{
    account::Socket,
    paths::{AGAIN, DIRECT, ours::sum},
};

/// The evidence on all flows.
#[derive(Clone, Debug)]
pub struct Evidence {
    /// The address that every application dialled.
    pub target: SocketAddr,
    /// The applications, one for each path.
    pub applications: Vec<Seen>,
    /// The number of connections that the agent found when it started.
    pub found: usize,
    /// The agent's metrics.
    pub metrics: Metric,
    /// The flows in `/flows`.
    pub flows: Vec<Flow>,
    /// The statements in `/statements`.
    pub statements: Vec<Statement>,
    /// The clients in `system_views.clients`; None: the database has no such table.
    pub database_sees: Option<Vec<SocketAddr>>,
}

/// An application, as itself and its kernel see it.
#[derive(Clone, Debug)]
pub struct Seen {
    /// The path that it should take.
    pub path: &'static str,
    /// The process id.
    pub pid: u32,
    /// The connected sockets.
    pub sockets: Vec<Socket>,
    /// The statements that it has sent.
    pub sent: u64,
    /// The number of those that failed, and how the first of them did.
    pub failed: (u64, Option<String>),
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
    /// The kind of statement.
    pub kind: String,
    /// The number of statements.
    pub count: u64,
}

/// A statement about the flows, and what contradicts it.
#[derive(Debug)]
pub struct Check {
    /// The statement that should hold.
    pub what: String,
    /// The reasons why it does not hold; empty when it does.
    pub wrong: Vec<String>,
}

impl Check {
    fn new(what: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            wrong: Vec::new(),
        }
    }

    /// Notes `why` unless it holds.
    fn demand(&mut self, holds: bool, why: impl FnOnce() -> String) {
        if !holds {
            self.wrong.push(why());
        }
    }
}

/// All that can be checked while the flows are open.
pub fn all(evidence: &Evidence) -> Vec<Check> {
    let mut checks = vec![
        evidence.worked(),
        evidence.direct(),
        evidence.bypass(),
        evidence.tap(),
        evidence.enrich(),
        evidence.counted(TAP),
        evidence.counted(ENRICH),
    ];
    checks.extend(evidence.seen_by_database());
    checks
}

/// The application's statements that a rule has counted. Preparing is the driver's decision, as often as it
/// likes; sending is the application's.
pub fn counted(statements: &[Statement], rule: &str) -> u64 {
    let is_sent = |s: &&Statement| s.rule == rule && s.keyspace == KEYSPACE && s.kind != "prepare";
    statements.iter().filter(is_sent).map(|s| s.count).sum()
}

/// Checks that a statement was refused, and did nothing. `left`: orders that are still there.
pub fn guarded(refused: Option<&str>, left: i64) -> Check {
    let mut check = Check::new(format!(
        "guard: TRUNCATE was refused, and {left} orders are still there"
    ));
    check.demand(refused.is_some(), || "it was done".to_owned());
    check.demand(left > 0, || "there are none".to_owned());
    check
}

/// Checks what is left after the agent's end.
pub fn gone(pins: &std::path::Path) -> Check {
    let mut check = Check::new("the agent ended when told, and left nothing attached");
    check.demand(!pins.exists(), || {
        format!("{} is still there", pins.display())
    });
    check
}

impl Evidence {
    /// The application on a path.
    fn on(&self, path: &str) -> Option<&Seen> {
        self.applications.iter().find(|seen| seen.path == path)
    }

    fn sockets(&self, path: &str) -> &[Socket] {
        self.on(path).map_or(&[], |seen| &seen.sockets)
    }

    /// The flows of the application on a path that the agent knows.
    fn flows(&self, path: &str) -> Vec<&Flow> {
        let pid = self.on(path).map(|seen| seen.pid);
        let flows = self.flows.iter();
        flows.filter(|flow| Some(flow.pid) == pid).collect()
    }

    /// `connect()` calls that a rule decided and that had this outcome, and those that had another.
    fn outcomes(&self, rule: &str, outcome: &str) -> (f64, f64) {
        let (rule, outcome) = (format!("rule=\"{rule}\""), format!("outcome=\"{outcome}\""));
        let count = |labels: &[&str]| sum(&self.metrics, CONNECTIONS, labels);
        let right = count(&[&rule, &outcome]);
        (right, count(&[&rule]) - right)
    }

    fn worked(&self) -> Check {
        let mut check = Check::new("every statement succeeded, on every path");
        for Seen {
            path,
            sockets,
            sent,
            failed: (failed, first),
            ..
        } in &self.applications
        {
            check.demand(*sent > 0, || format!("{path}: none was sent"));
            check.demand(*failed == 0, || {
                let first = first.as_deref().unwrap_or_default();
                format!("{path}: {failed} failed, the first with: {first}")
            });
            check.demand(!sockets.is_empty(), || {
                format!("{path}: no connection is open")
            });
        }
        check
    }

    /// The agent knows nothing of it.
    fn direct(&self) -> Check {
        let mut check = Check::new("direct: the agent has seen none of its connections");
        let rules = [BYPASS, TAP, ENRICH].map(|path| format!("rule=\"{path}\""));
        for (name, count) in &self.metrics {
            let is_ours = rules.iter().any(|rule| name.contains(rule));
            let is_wrong = name.starts_with(CONNECTIONS) && !is_ours && *count > 0.0;
            check.demand(!is_wrong, || format!("{name}: {count}"));
        }
        for path in [DIRECT, AGAIN] {
            let carried = self.flows(path).len();
            check.demand(carried == 0, || {
                format!("{path}: the agent carries {carried} flows")
            });
            self.straight(path, &mut check);
        }
        check
    }

    /// The hook saw it and left it alone.
    fn bypass(&self) -> Check {
        let open = self.sockets(BYPASS).len();
        let (untouched, otherwise) = self.outcomes(BYPASS, "untouched");
        let mut check = Check::new(format!(
            "bypass: all {untouched} connections untouched, none intercepted"
        ));
        check.demand(untouched > 0.0 && untouched >= open as f64, || {
            format!("{open} are open, {untouched} were left untouched")
        });
        check.demand(otherwise == 0.0, || {
            format!("{otherwise} were not left untouched")
        });
        let carried = self.flows(BYPASS).len();
        check.demand(carried == 0, || format!("the agent carries {carried}"));
        self.straight(BYPASS, &mut check);
        check
    }

    /// The agent found it running, reads it, and carries none of it.
    fn tap(&self) -> Check {
        let (open, found) = (self.sockets(TAP).len(), self.found);
        let mut check = Check::new(format!(
            "tap: all {found} connections were there before the agent, and are read where they are"
        ));
        check.demand(found == open, || {
            format!("{open} are open, {found} were found")
        });
        let (intercepted, _) = self.outcomes(TAP, "intercepted");
        check.demand(intercepted == 0.0, || {
            format!("{intercepted} were intercepted")
        });
        self.known(TAP, &mut check);
        self.straight(TAP, &mut check);
        check
    }

    /// The agent carries and decodes it.
    fn enrich(&self) -> Check {
        let open = self.sockets(ENRICH);
        let (intercepted, otherwise) = self.outcomes(ENRICH, "intercepted");
        let mut check = Check::new(format!(
            "enrich: all {intercepted} connections intercepted, and decoded by the agent"
        ));
        check.demand(
            intercepted > 0.0 && intercepted >= open.len() as f64,
            || format!("{} are open, {intercepted} were intercepted", open.len()),
        );
        check.demand(otherwise == 0.0, || {
            format!("{otherwise} were not intercepted")
        });
        let safer = sum(&self.metrics, "underpass_safer_path_total", &[]);
        check.demand(safer == 0.0, || format!("{safer} took a safer path"));
        for flow in self.flows(ENRICH) {
            check.demand(flow.orig_dst == self.target, || {
                format!("{} dialled {}", flow.client, flow.orig_dst)
            });
        }
        self.known(ENRICH, &mut check);
        for socket in open {
            check.demand(socket.remote != self.target, || {
                format!("{} goes straight to the database", socket.local)
            });
        }
        check
    }

    /// Exactly: nothing is lost, and nothing is counted twice. Of connections that were found in the middle, the
    /// first requests have no response that is theirs for sure: these are counted apart, the driver's own among them.
    fn counted(&self, path: &str) -> Check {
        let sent = self.on(path).map_or(0, |seen| seen.sent);
        let counted = counted(&self.statements, path);
        let short = sent.saturating_sub(counted);
        let abandoned = match path {
            TAP => sum(&self.metrics, "underpass_tap_abandoned_total", &[]) as u64,
            _ => 0,
        };
        let what =
            format!("{path}: exactly the {sent} statements were counted that its client sent");
        let mut check = Check::new(match short {
            0 => what,
            _ => format!("{what}, {short} of them while the connections were being found"),
        });
        check.demand(counted <= sent && short <= abandoned, || {
            format!("{sent} sent, {counted} counted")
        });
        check
    }

    /// Checks the addresses that the database sees. No check where the database does not tell.
    fn seen_by_database(&self) -> Option<Check> {
        let seen = self.database_sees.as_ref()?;
        let mut check = Check::new("the database sees every client's own address and port");
        let from = self.sockets(DIRECT).first().map(|direct| direct.local.ip());
        for Seen { path, sockets, .. } in &self.applications {
            for Socket { local, .. } in sockets {
                // Towards the agent the address is another: without it, it would be that of this host.
                let client = match (*path, from) {
                    (ENRICH, Some(from)) => SocketAddr::new(from, local.port()),
                    _ => *local,
                };
                check.demand(seen.contains(&client), || {
                    format!("{path}: {client} is not in system_views.clients")
                });
            }
        }
        Some(check)
    }

    /// Demands that the agent knows each connection of a path, by the path and the rule of that name.
    fn known(&self, path: &str, check: &mut Check) {
        let own = self.flows(path);
        for flow in &own {
            check.demand(flow.path == path && flow.rule == path, || {
                format!("{}: path {}, rule {}", flow.client, flow.path, flow.rule)
            });
        }
        // The ports alone: towards the agent the address is another.
        let mut listed: Vec<u16> = own.iter().map(|flow| flow.client.port()).collect();
        let sockets = self.sockets(path).iter();
        let mut dialled: Vec<u16> = sockets.map(|socket| socket.local.port()).collect();
        listed.sort_unstable();
        dialled.sort_unstable();
        check.demand(listed == dialled, || {
            format!("the client's ports are {dialled:?}, the agent knows {listed:?}")
        });
    }

    fn straight(&self, path: &str, check: &mut Check) {
        for Socket { local, remote } in self.sockets(path) {
            check.demand(*remote == self.target, || {
                format!("{local} goes to {remote}")
            });
        }
    }
}

/// The counter of `connect()` calls, by rule and outcome.
const CONNECTIONS: &str = "underpass_connections_total";

#[cfg(test)]
mod tests {
    use super::*;

    fn address(port: u16) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], port))
    }

    /// Makes the evidence of one connection on each path, as it should be.
    fn good() -> Evidence {
        let seen = |path, n: u16, remote| Seen {
            path,
            pid: u32::from(n),
            sockets: vec![Socket {
                local: address(1_000 + n),
                remote: address(remote),
            }],
            sent: 3,
            failed: (0, None),
        };
        let flow = |path: &str, n: u16| Flow {
            client: address(1_000 + n),
            pid: u32::from(n),
            path: path.into(),
            orig_dst: address(9042),
            rule: path.into(),
        };
        let statement = |rule: &str, kind: &str, count| Statement {
            rule: rule.into(),
            keyspace: KEYSPACE.into(),
            kind: kind.into(),
            count,
        };
        let decided = |rule: &str, outcome: &str, count| {
            let name = format!("{CONNECTIONS}{{outcome=\"{outcome}\",rule=\"{rule}\"}}");
            (name, count)
        };
        Evidence {
            target: address(9042),
            applications: vec![
                seen(DIRECT, 1, 9042),
                seen(AGAIN, 2, 9042),
                seen(BYPASS, 3, 9042),
                seen(TAP, 4, 9042),
                seen(ENRICH, 5, 5555),
            ],
            found: 1,
            metrics: Metric::from([
                decided(BYPASS, "untouched", 1.0),
                decided(BYPASS, "intercepted", 0.0),
                decided(ENRICH, "intercepted", 1.0),
            ]),
            flows: vec![flow(TAP, 4), flow(ENRICH, 5)],
            statements: vec![
                statement(TAP, "insert", 3),
                statement(ENRICH, "insert", 3),
                statement(ENRICH, "prepare", 2),
            ],
            database_sees: Some((1_000..1_006).map(address).collect()),
        }
    }

    /// Joins everything that the checks complain about.
    fn wrong(evidence: &Evidence) -> String {
        let wrong = all(evidence).into_iter().flat_map(|check| check.wrong);
        wrong.collect::<Vec<_>>().join("; ")
    }

    fn decided(evidence: &mut Evidence, rule: &str, outcome: &str, count: f64) {
        let name = format!("{CONNECTIONS}{{outcome=\"{outcome}\",rule=\"{rule}\"}}");
        evidence.metrics.insert(name, count);
    }

    #[test]
    fn every_deviation_is_found() {
        assert_eq!(wrong(&good()), "");
        assert_eq!(all(&good()).len(), 8);
        // A table: what is spoilt, and what is said of it.
        macro_rules! found {
            ($($spoil:expr => $said:literal,)*) => {$(
                let mut evidence = good();
                let spoil: fn(&mut Evidence) = $spoil;
                spoil(&mut evidence);
                let found = wrong(&evidence);
                assert!(found.contains($said), "{}: {found}", $said);
            )*};
        }
        found! {
            |e| e.applications[2].failed.0 = 1 => "bypass: 1 failed",
            |e| e.applications[0].sent = 0 => "direct: none was sent",
            |e| e.applications[0].sockets.clear() => "no connection is open",
            |e| decided(e, "default", "untouched", 1.0) => "rule=\"default\"}: 1",
            |e| decided(e, BYPASS, "intercepted", 1.0) => "1 were not left untouched",
            |e| decided(e, BYPASS, "untouched", 0.0) => "1 are open, 0 were left",
            |e| decided(e, ENRICH, "failed_open", 1.0) => "1 were not intercepted",
            |e| decided(e, ENRICH, "intercepted", 0.0) => "1 are open, 0 were intercepted",
            |e| decided(e, TAP, "intercepted", 1.0) => "1 were intercepted",
            |e| e.applications[2].sockets[0].remote.set_port(5) => "goes to 127.0.0.1:5",
            |e| e.applications[3].sockets[0].remote.set_port(5) => "1004 goes to 127.0.0.1:5",
            |e| e.applications[4].sockets[0].remote.set_port(9042) => "straight to the database",
            |e| e.flows[1].pid = 3 => "the agent carries 1",
            |e| e.flows[1].path = "relay".into() => "path relay, rule enrich",
            |e| _ = e.flows.remove(1) => "the agent knows []",
            |e| _ = e.metrics.insert("underpass_safer_path_total".into(), 2.0) => "2 took a safer",
            |e| e.statements[1].count = 4 => "3 sent, 4 counted",
            |e| e.statements[0].count = 2 => "3 sent, 2 counted",
            |e| e.database_sees.as_mut().unwrap().truncate(5) => "enrich: 127.0.0.1:1005 is not",
            |e| e.found = 0 => "1 are open, 0 were found",
        }
    }

    #[test]
    fn requests_without_a_sure_response_are_accounted_for() {
        let mut evidence = good();
        evidence.statements[0].count = 2;
        // One is the driver's own.
        let name = "underpass_tap_abandoned_total{rule=\"tap\"}";
        evidence.metrics.insert(name.into(), 2.0);
        assert_eq!(wrong(&evidence), "");
        evidence.statements[0].count = 0;
        assert_ne!(wrong(&evidence), "");
        // Others' statements do not count.
        let mut other = evidence.statements[1].clone();
        other.keyspace = "system".into();
        evidence = good();
        evidence.statements.push(other);
        assert_eq!(wrong(&evidence), "");
        evidence.database_sees = None;
        assert_eq!(all(&evidence).len(), 7);
    }
}
