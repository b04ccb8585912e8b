//! The checks whether each flow took its path. Pure, except for [`gone`].

use std::{collections::BTreeMap, net::SocketAddr, path::Path as FilePath};

use super::{
    evidence::{Evidence, Flow},
    path::Path,
    sockets::Socket,
};

/// A statement, and what contradicts it.
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

    /// Whether it holds.
    pub fn holds(&self) -> bool {
        self.wrong.is_empty()
    }
}

/// All that can be checked while the flows are open.
pub fn all(evidence: &Evidence) -> Vec<Check> {
    let mut checks = vec![
        worked(evidence),
        direct(evidence),
        bypass(evidence),
        tap(evidence),
        enrich(evidence),
        counted(evidence, Path::Tap),
        counted(evidence, Path::Enrich),
    ];
    checks.extend(seen(evidence));
    checks
}

fn worked(evidence: &Evidence) -> Check {
    let mut check = Check::new("every statement succeeded, on every path");
    for path in Path::ALL {
        let told = evidence.told.of(path);
        check.demand(told.ops() > 0, || format!("{path}: none was sent"));
        check.demand(told.errors == 0, || {
            let first = told.first_error.as_deref().unwrap_or_default();
            format!("{path}: {} failed, the first with: {first}", told.errors)
        });
        let open = evidence.sockets.of(path).len();
        check.demand(open > 0, || format!("{path}: no connection is open"));
    }
    check
}

/// The agent knows nothing of it.
fn direct(evidence: &Evidence) -> Check {
    let mut check = Check::new("direct: the agent has seen none of its connections");
    let rules = [Path::Bypass, Path::Tap, Path::Enrich].map(Path::as_str);
    let others = evidence.connections.iter();
    for c in others.filter(|c| !rules.contains(&&*c.rule) && c.count > 0) {
        check
            .wrong
            .push(format!("rule {}: {} {}", c.rule, c.count, c.outcome));
    }
    for path in [Path::Direct, Path::Again] {
        carried_by_nobody_else(evidence, path, &mut check);
        straight(evidence, path, &mut check);
    }
    check
}

/// The hook saw it and left it alone.
fn bypass(evidence: &Evidence) -> Check {
    let open = evidence.sockets.bypass.len() as u64;
    let untouched = evidence.connections("bypass", |o| o == "untouched");
    let otherwise = evidence.connections("bypass", |o| o != "untouched");
    let mut check = Check::new(format!(
        "bypass: all {untouched} connections untouched, none intercepted"
    ));
    check.demand(untouched > 0 && untouched >= open, || {
        format!("{open} are open, {untouched} were left untouched")
    });
    check.demand(otherwise == 0, || {
        format!("{otherwise} were not left untouched")
    });
    carried_by_nobody_else(evidence, Path::Bypass, &mut check);
    straight(evidence, Path::Bypass, &mut check);
    check
}

/// The agent found it running, reads it, and carries none of it.
fn tap(evidence: &Evidence) -> Check {
    let open = &evidence.sockets.tap;
    let found = evidence.found.connections;
    let mut check = Check::new(format!(
        "tap: all {found} connections were there before the agent, and are read where they are"
    ));
    check.demand(found == open.len(), || {
        format!("{} are open, {found} were found", open.len())
    });
    let own: Vec<_> = of_path(evidence, Path::Tap);
    check.demand(own.iter().all(|flow| flow.path == "tap"), || {
        let paths = own.iter().map(|flow| &*flow.path);
        format!("paths {:?}", paths.collect::<Vec<_>>())
    });
    let listed = sorted(own.iter().map(|f| f.client.port()));
    let dialled = sorted(open.iter().map(|s| s.local.port()));
    check.demand(listed == dialled, || {
        format!("the client's ports are {dialled:?}, the agent reads {listed:?}")
    });
    let intercepted = evidence.connections("tap", |o| o == "intercepted");
    check.demand(intercepted == 0, || {
        format!("{intercepted} were intercepted")
    });
    straight(evidence, Path::Tap, &mut check);
    check
}

/// The agent carries and decodes it.
fn enrich(evidence: &Evidence) -> Check {
    let open = &evidence.sockets.enrich;
    let intercepted = evidence.connections("enrich", |o| o == "intercepted");
    let otherwise = evidence.connections("enrich", |o| o != "intercepted");
    let mut check = Check::new(format!(
        "enrich: all {intercepted} connections intercepted, and decoded by the agent"
    ));
    check.demand(intercepted > 0 && intercepted >= open.len() as u64, || {
        format!("{} are open, {intercepted} were intercepted", open.len())
    });
    check.demand(otherwise == 0, || {
        format!("{otherwise} were not intercepted")
    });
    check.demand(evidence.safer == 0, || {
        format!("{} took a safer path", evidence.safer)
    });
    let own: Vec<_> = of_path(evidence, Path::Enrich);
    for flow in &own {
        let right = (&*flow.path, &*flow.rule, flow.orig_dst);
        check.demand(right == ("enrich", "enrich", evidence.target), || {
            format!(
                "{}: path {}, rule {}, dialled {}",
                flow.client, flow.path, flow.rule, flow.orig_dst
            )
        });
    }
    // The port alone: towards the agent the address is another.
    let carried = sorted(own.iter().map(|f| f.client.port()));
    let dialled = sorted(open.iter().map(|s| s.local.port()));
    check.demand(carried == dialled, || {
        format!("the client's ports are {dialled:?}, the agent carries {carried:?}")
    });
    for socket in open.iter().filter(|s| s.remote == evidence.target) {
        check
            .wrong
            .push(format!("{} goes straight to the database", socket.local));
    }
    check
}

/// Exactly: nothing is lost, and nothing is counted twice. Of connections that were found in the middle, the
/// first requests have no response that is theirs for sure: these are counted apart, the driver's own among them.
fn counted(evidence: &Evidence, path: Path) -> Check {
    let told = &evidence.told.of(path).sent;
    let sent: BTreeMap<_, _> = told
        .iter()
        .map(|s| ((&*s.table, &*s.kind), s.count))
        .collect();
    let counted: BTreeMap<_, _> = evidence
        .sent_by(path)
        .map(|s| ((&*s.table, &*s.kind), s.count))
        .collect();
    let abandoned = match path {
        Path::Tap => evidence.abandoned,
        _ => 0,
    };
    let (mut short, mut wrong, mut whys) = (0, Vec::new(), Vec::new());
    let keys: std::collections::BTreeSet<_> = sent.keys().chain(counted.keys()).collect();
    for key in keys {
        let count = |of: &BTreeMap<_, u64>| of.get(key).copied().unwrap_or(0);
        let (sent, counted) = (count(&sent), count(&counted));
        let (table, kind) = key;
        let why = format!("{kind} on {table}: {sent} sent, {counted} counted");
        match counted > sent {
            true => wrong.push(why),
            false if counted < sent => whys.push(why),
            false => {}
        }
        short += sent.saturating_sub(counted);
    }
    if short > abandoned {
        wrong.append(&mut whys);
    }
    let all: u64 = sent.values().sum();
    let what = format!("{path}: exactly the {all} statements were counted that its client sent");
    let mut check = Check::new(match short {
        0 => what,
        _ => format!("{what}, {short} of them while the connections were being found"),
    });
    check.wrong = wrong;
    check
}

fn of_path(evidence: &Evidence, path: Path) -> Vec<&Flow> {
    let pid = *evidence.pids.of(path);
    evidence.flows.iter().filter(|f| f.pid == pid).collect()
}

/// Checks the addresses that the database sees. No check where the database does not tell.
fn seen(evidence: &Evidence) -> Option<Check> {
    let seen = evidence.database_sees.as_ref().ok()?;
    let mut check = Check::new("the database sees every client's own address and port");
    let mut demand = |path: Path, client: SocketAddr| {
        check.demand(seen.contains(&client), || {
            format!("{path}: {client} is not in system_views.clients")
        });
    };
    for path in [Path::Direct, Path::Again, Path::Bypass, Path::Tap] {
        let sockets = evidence.sockets.of(path).iter();
        sockets.for_each(|s| demand(path, s.local));
    }
    for socket in &evidence.sockets.enrich {
        demand(Path::Enrich, own_address(evidence, socket));
    }
    Some(check)
}

/// Returns the address that the client's socket would have without the agent: its port, and the
/// address from which this host reaches the database.
fn own_address(evidence: &Evidence, socket: &Socket) -> SocketAddr {
    let ip = match evidence.sockets.direct.first() {
        Some(direct) => direct.local.ip(),
        None => socket.local.ip(),
    };
    SocketAddr::new(ip, socket.local.port())
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
pub fn gone(pins: &FilePath) -> Check {
    let mut check = Check::new("the agent ended when told, and left nothing attached");
    check.demand(!pins.exists(), || {
        format!("{} is still there", pins.display())
    });
    check
}

fn carried_by_nobody_else(evidence: &Evidence, path: Path, check: &mut Check) {
    let pid = *evidence.pids.of(path);
    let carried = evidence.flows.iter().filter(|f| f.pid == pid).count();
    check.demand(carried == 0, || {
        format!("the agent carries {carried} of its flows")
    });
}

fn straight(evidence: &Evidence, path: Path, check: &mut Check) {
    for socket in evidence.sockets.of(path) {
        check.demand(socket.remote == evidence.target, || {
            format!("{} goes to {}", socket.local, socket.remote)
        });
    }
}

fn sorted(ports: impl Iterator<Item = u16>) -> Vec<u16> {
    let mut ports: Vec<u16> = ports.collect();
    ports.sort_unstable();
    ports
}

#[cfg(test)]
#[path = "checks_tests.rs"]
mod tests;
