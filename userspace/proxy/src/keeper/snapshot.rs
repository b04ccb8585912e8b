//! A flow's state, on its way from process to process.

use std::{
    net::SocketAddr,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::{Duration, SystemTime},
};

use dataplane::{
    ClientAddr, Holder, KernelMoved, Near, Netns, OrigDst, Process, Resumed, SockCookie, Splice,
};
use flow::{Decided, Flow, Past};
use policy::{Action, Compression, Fact, Protocol, RuleName, Session};
use serde::{Deserialize, Serialize};

/// A flow's state when it was enrolled; the rest is in the kernel.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FlowSnapshot {
    /// The flow's number in the kernel: the dialled socket's cookie.
    pub(super) id: u64,
    pub(super) engine: u32,
    client: SocketAddr,
    client_cookie: u64,
    orig_dst: SocketAddr,
    pid: u32,
    uid: u32,
    gid: u32,
    process: String,
    cgroup_id: u64,
    /// The user and the cgroup for whose quotas it counts.
    #[serde(default)]
    holder: Option<(u32, u64)>,
    /// The client's network namespace, if it was not the agent's: cookie, inode, name.
    #[serde(default)]
    netns: Option<(u64, u32, Option<String>)>,
    rule: String,
    first_rule: String,
    action: Option<String>,
    session: Option<Vec<(String, Option<String>)>>,
    opened_unix_ms: u64,
    /// Bytes that had been passed on when the flow was enrolled.
    to_database: u64,
    to_client: u64,
    /// The sequence number up to which the near application's bytes had been read.
    up_seq: u32,
}

impl FlowSnapshot {
    /// Describes a flow that is enrolled. `from_near`: the bytes that the agent has read from the
    /// near application. `since`: the bytes that were passed on to the database and to the client
    /// since the enrolment, by the agent or by the kernel.
    pub(crate) fn of(
        flow: &Flow,
        cookie: SockCookie,
        splice: &Splice,
        from_near: u64,
        since: [u64; 2],
    ) -> Self {
        let [to_database, to_client] = since;
        let carried = Self::of_carried(flow, cookie.number());
        Self {
            id: splice.id(),
            engine: splice.carrier(),
            to_database: carried.to_database.saturating_sub(to_database),
            to_client: carried.to_client.saturating_sub(to_client),
            up_seq: splice.up_seq(from_near),
            ..carried
        }
    }

    /// Describes a flow that the kernel does not carry. `cookie`: the client's socket; 0 on another host.
    pub(crate) fn of_carried(flow: &Flow, cookie: u64) -> Self {
        let decided = flow.decided();
        let opened = flow.opened_at().duration_since(SystemTime::UNIX_EPOCH);
        Self {
            id: flow.id.number(),
            engine: 0,
            client: flow.client.socket_addr(),
            client_cookie: cookie,
            orig_dst: flow.orig_dst.socket_addr(),
            pid: flow.process.pid,
            uid: flow.process.uid,
            gid: flow.process.gid,
            process: flow.process.name.clone(),
            cgroup_id: flow.process.cgroup_id,
            holder: flow
                .process
                .holder
                .map(|holder| (holder.uid, holder.cgroup_id)),
            netns: flow
                .netns
                .as_deref()
                .map(|n| (n.cookie, n.inode, n.name.clone())),
            rule: decided.rule.to_string(),
            first_rule: decided.first.to_string(),
            action: decided.action.map(|action| action.as_str().to_owned()),
            session: decided.session.as_deref().map(facts),
            opened_unix_ms: opened.unwrap_or_default().as_millis() as u64,
            to_database: flow.to_database.load(Relaxed),
            to_client: flow.to_client.load(Relaxed),
            up_seq: 0,
        }
    }

    /// Returns the flow's number in the kernel.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    pub(crate) fn client_cookie(&self) -> SockCookie {
        SockCookie::new(self.client_cookie)
    }

    pub(crate) fn process(&self) -> Process {
        Process {
            pid: self.pid,
            uid: self.uid,
            gid: self.gid,
            name: self.process.clone(),
            cgroup_id: self.cgroup_id,
            holder: self
                .holder
                .map(|(uid, cgroup_id)| Holder { uid, cgroup_id }),
        }
    }

    /// Returns the rule that the flow is under.
    pub(crate) fn rule(&self) -> RuleName {
        RuleName::new(&self.rule)
    }

    /// Returns which of the flow's applications is on this host.
    pub(crate) fn near(&self) -> Near {
        self.process().near()
    }

    /// Makes the flow, which gets this number here.
    pub(crate) fn flow(&self, number: u64, resumed: &Resumed) -> Flow {
        let KernelMoved { up, down, .. } = resumed.moved;
        // The order's numbers wrap. If more than 4 GiB of a flow were relayed since it was
        // enrolled, a multiple of that is not counted; everything else is.
        let relayed_up = resumed.up_seq.wrapping_sub(self.up_seq);
        let flow = self.carried(number);
        let to_far = up + u64::from(relayed_up);
        let to_near = down + resumed.position.to_near;
        let [to_database, to_client] = self.near().directions(to_far, to_near);
        flow.to_database.fetch_add(to_database, Relaxed);
        flow.to_client.fetch_add(to_client, Relaxed);
        flow
    }

    /// Makes the flow as [`Self::flow`] does, if the kernel did not carry it.
    pub(crate) fn carried(&self, number: u64) -> Flow {
        let flow = Flow::resumed(
            number,
            ClientAddr::new(self.client),
            self.process(),
            OrigDst::new(self.orig_dst),
            Past {
                netns: self.netns.clone().map(|(cookie, inode, name)| {
                    Arc::new(Netns {
                        cookie,
                        inode,
                        name,
                    })
                }),
                opened_at: SystemTime::UNIX_EPOCH + Duration::from_millis(self.opened_unix_ms),
                decided: Decided {
                    rule: RuleName::new(&self.rule),
                    first: RuleName::new(&self.first_rule),
                    action: self.action.as_deref().and_then(Action::parse),
                    session: self
                        .session
                        .as_deref()
                        .map(|facts| Box::new(session(facts))),
                },
            },
        );
        flow.to_database.store(self.to_database, Relaxed);
        flow.to_client.store(self.to_client, Relaxed);
        flow
    }
}

/// Lists the known facts by their keys; None for a fact that is absent.
fn facts(session: &Session) -> Vec<(String, Option<String>)> {
    let text = |fact: &Fact<String>| fact.clone();
    let facts = [
        ("user", text(&session.user)),
        ("keyspace", text(&session.keyspace)),
        ("driver", text(&session.driver)),
        ("driver_version", text(&session.driver_version)),
        ("application", text(&session.application)),
        ("protocol", named(&session.protocol, |p| p.as_str().into())),
        (
            "compression",
            named(&session.compression, |c| c.as_str().into()),
        ),
        ("tls", named(&session.tls, bool::to_string)),
    ];
    facts
        .into_iter()
        .filter_map(|(key, fact)| match fact {
            // Nobody will ask for it again.
            Fact::Open | Fact::Unknowable => None,
            Fact::Absent => Some((key.to_owned(), None)),
            Fact::Is(value) => Some((key.to_owned(), Some(value))),
        })
        .collect()
}

fn named<T>(fact: &Fact<T>, name: impl FnOnce(&T) -> String) -> Fact<String> {
    match fact {
        Fact::Open | Fact::Unknowable => Fact::Open,
        Fact::Absent => Fact::Absent,
        Fact::Is(value) => Fact::Is(name(value)),
    }
}

fn session(facts: &[(String, Option<String>)]) -> Session {
    let text = |key: &str| match facts.iter().find(|(k, _)| k == key) {
        None => Fact::Open,
        Some((_, None)) => Fact::Absent,
        Some((_, Some(value))) => Fact::Is(value.clone()),
    };
    Session {
        user: text("user"),
        keyspace: text("keyspace"),
        driver: text("driver"),
        driver_version: text("driver_version"),
        application: text("application"),
        protocol: one_of(&text("protocol"), &Protocol::ALL, |p| p.as_str()),
        compression: one_of(&text("compression"), &Compression::ALL, |c| c.as_str()),
        tls: one_of(&text("tls"), &[true, false], |tls| match tls {
            true => "true",
            false => "false",
        }),
    }
}

fn one_of<T: Copy>(fact: &Fact<String>, all: &[T], name: fn(T) -> &'static str) -> Fact<T> {
    match fact {
        Fact::Open | Fact::Unknowable => Fact::Open,
        Fact::Absent => Fact::Absent,
        Fact::Is(value) => {
            let known = all.iter().copied().find(|one| name(*one) == value);
            known.map_or(Fact::Absent, Fact::Is)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_survives_the_way_to_another_process() {
        let known = Session {
            user: Fact::Is("alice".into()),
            keyspace: Fact::Absent,
            driver: Fact::Open,
            protocol: Fact::Is(Protocol::V5),
            compression: Fact::Is(Compression::Lz4),
            tls: Fact::Is(false),
            ..Session::default()
        };
        assert_eq!(session(&facts(&known)), known);
    }
}
