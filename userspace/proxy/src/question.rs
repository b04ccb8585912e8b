//! [`Question`]: which rule a flow meets, where its session decides that.

use std::{path::PathBuf, sync::Arc};

use dataplane::{ClientAddr, Netns, Opener, OrigDst, Process, host};
use flow::{FlowId, Newcomer};
use policy::{
    Candidate, Compression, Decision, Fact, Match, Policy, Protocol, RuleName, Session, SessionKey,
};
use tls::{Common, TlsRules};

/// The question which rule a flow meets, asked of the policy in force when it came.
pub(super) struct Question {
    pub(super) policy: Arc<Policy>,
    pub(super) candidate: Candidate,
    /// The process and endpoint for which a decision is remembered. None for a client on another
    /// host, of which nothing can be remembered.
    pub(super) opener: Option<Opener>,
}

impl Question {
    /// Makes the question. None: the rule that marked the flow decides by itself.
    pub(super) fn of(newcomer: &Newcomer, policy: &Arc<Policy>) -> Option<Self> {
        if newcomer.rule == RuleName::of_default() {
            return None;
        }
        let mut rules = policy.rules.iter();
        let marked_by = rules.find(|rule| rule.name == newcomer.rule);
        // A rule that is gone was part of a policy that has just been replaced.
        if marked_by.is_some_and(|rule| !rule.is_session()) {
            return None;
        }
        Some(Self {
            policy: policy.clone(),
            opener: newcomer.opener,
            candidate: candidate(
                newcomer.client,
                newcomer.orig_dst,
                &newcomer.process,
                newcomer.netns.as_ref(),
                policy,
            ),
        })
    }
}

impl Question {
    /// Returns the TLS settings that all rules share that the flow may still meet, if its client
    /// encrypts or does not.
    pub(super) fn common(&self, rules: &TlsRules, is_encrypted: bool) -> Common {
        Common::of(rules, &self.policy, &self.candidate, is_encrypted)
    }

    /// Returns the rule that the flow meets, by what is known of its session.
    pub(super) fn decide(&self, session: &Session) -> Decision {
        self.policy.decide(&self.candidate, session)
    }

    /// Returns the facts of a session that have to be known to answer the question.
    pub(super) fn waits_for(&self, session: &Session) -> Vec<SessionKey> {
        self.policy.waits_for(&self.candidate, session)
    }
}

/// Whether the flow is in the sample that its rule enriches.
pub(super) fn is_sampled(policy: &Policy, by: &Match, flow: FlowId) -> bool {
    let rule = by.index.and_then(|index| policy.rules.get(index));
    let sample = rule.and_then(|rule| rule.sample);
    sample.is_none_or(|sample| sample.takes(flow.number()))
}

/// Describes a flow as rules see it.
pub fn candidate(
    client: ClientAddr,
    to: OrigDst,
    process: &Process,
    netns: Option<&Arc<Netns>>,
    policy: &Policy,
) -> Candidate {
    if process.is_elsewhere() {
        return Candidate::elsewhere(client.socket_addr().ip(), to.socket_addr());
    }
    let cgroup = match policy.names_cgroups() {
        true => host::cgroup_of(process.pid, process.cgroup_id),
        false => None,
    };
    Candidate {
        from: None,
        to: to.socket_addr(),
        uid: process.uid,
        gid: process.gid,
        process: process.name.clone(),
        // A process that is gone is in no cgroup that a rule can name.
        cgroup: cgroup.unwrap_or_else(PathBuf::new),
        netns: match netns {
            Some(netns) => Some(netns.inode),
            None if policy.names_namespaces() => host::own_netns_inode(),
            None => None,
        },
    }
}

/// Converts the facts of a handshake into the policy's types.
pub(super) fn facts(session: &cql::Session) -> Session {
    fn fact<T, U>(fact: &cql::Fact<T>, value: impl Fn(&T) -> U) -> Fact<U> {
        match fact {
            cql::Fact::Open => Fact::Open,
            cql::Fact::Absent => Fact::Absent,
            cql::Fact::Unknowable => Fact::Unknowable,
            cql::Fact::Is(is) => Fact::Is(value(is)),
        }
    }
    let text = |text: &cql::Fact<Box<str>>| fact(text, |text| text.to_string());
    Session {
        user: text(&session.user),
        keyspace: text(&session.keyspace),
        driver: text(&session.driver),
        driver_version: text(&session.driver_version),
        application: text(&session.application),
        protocol: fact(&session.protocol, |version| match version {
            cql::ProtocolVersion::V3 => Protocol::V3,
            cql::ProtocolVersion::V4 => Protocol::V4,
            cql::ProtocolVersion::V5 => Protocol::V5,
        }),
        compression: fact(&session.compression, |compression| match compression {
            cql::Compression::None => Compression::None,
            cql::Compression::Lz4 => Compression::Lz4,
            cql::Compression::Snappy => Compression::Snappy,
        }),
        tls: fact(&session.tls, |tls| *tls),
    }
}
