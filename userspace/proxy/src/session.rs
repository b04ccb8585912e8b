//! The session gate: finds the rule of a flow where only its handshake tells which one it meets.
//!
//! A [`Gate`] stands before the decoder of such a flow until the flow is decided. It holds back the
//! bytes that may not pass yet, so that nothing of a request that is denied reaches the database.
//! `cql::Handshake` says how far bytes may pass, `Policy::decide` what the facts mean. Once the
//! flow is decided, everything passes and the gate is dropped. But where another user would meet another rule, the gate
//! stays, and ends the flow before such a user logs in on it.
//!
//! **Invariant**: a direction is not read while bytes of it that were held back cannot be passed
//! on, so a gate holds at most a frame's beginning (v5: a segment) and a chunk in each direction.

use std::{mem, net::SocketAddr, num::NonZeroUsize, sync::Arc};

use cql::{Handshake, Refusal, Step};
use dataplane::Held;
use flow::{CloseReason, Flow};
use policy::{Action, Candidate, Decision, Fact, Match, Policy, Rule, RuleName, Session};
use telemetry::is_marks;

use super::{
    context::ProxyContext,
    passing::{Direction, Passing, Turn},
    question::{Question, candidate, facts, is_sampled},
};

/// Finds the mark that denies `held` and was set after `connect()` was decided. Later marks find
/// the flow among those that run.
pub(super) fn denied_since(held: &Held, policy: &Policy) -> Option<RuleName> {
    // A rule on the session is decided in the agent.
    let denies = |rule: &Rule| rule.action == Action::Deny && !rule.is_session();
    denied_by(policy, denies, || {
        policy.first_match(&candidate(
            held.client,
            held.orig_dst,
            &held.process,
            held.netns(),
            policy,
        ))
    })
}

/// Finds the mark that denies a flow that was taken over from an earlier agent: the mark was set
/// when the flow was not here.
pub(super) fn denied_before(flow: &Flow, policy: &Policy) -> Option<RuleName> {
    let decided = flow.decided();
    let session = decided.session.map_or_else(Session::default, |s| *s);
    denied_by(
        policy,
        |rule| rule.action == Action::Deny,
        || {
            let candidate = candidate(
                flow.client,
                flow.orig_dst,
                &flow.process,
                flow.netns.as_ref(),
                policy,
            );
            match policy.decide(&candidate, &session.known()) {
                Decision::Decided(found) => found,
                Decision::Undecided => policy.first_match(&candidate),
            }
        },
    )
}

/// Finds the mark that denies a flow. Most of the time no mark denies anything, and `found` is not
/// called.
fn denied_by(
    policy: &Policy,
    denies: impl Fn(&Rule) -> bool,
    found: impl FnOnce() -> Match,
) -> Option<RuleName> {
    let is_marks = |rule: &RuleName| is_marks(rule.as_str());
    let mut rules = policy.rules.iter().filter(|rule| is_marks(&rule.name));
    if !rules.any(denies) {
        return None;
    }
    let found = found();
    (found.action == Action::Deny && is_marks(&found.rule)).then_some(found.rule)
}

/// The backends behind the address that `held` was dialled to, if it is a virtual one.
pub(super) fn backends_behind(held: &Held, policy: &Policy) -> Vec<SocketAddr> {
    // Most policies have no backends, and the process need not be looked up.
    if policy.rules.iter().all(|rule| rule.backends.is_empty()) {
        return Vec::new();
    }
    let rule = policy.balances(&candidate(
        held.client,
        held.orig_dst,
        &held.process,
        held.netns(),
        policy,
    ));
    rule.map_or_else(Vec::new, |rule| rule.backends.clone())
}

pub(super) struct Gate {
    question: Question,
    handshake: Handshake,
    outcome: Outcome,
    /// Bytes from the client that have not passed yet.
    requests: Vec<u8>,
    responses: Vec<u8>,
    /// Set while requests wait for a response.
    waits: bool,
    /// The rule that was met, while another user would meet another one.
    watched: Option<Met>,
    shared: Arc<ProxyContext>,
    flow: Arc<Flow>,
}

/// The rule that a flow has met: its place in the policy, or none for the default.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Met(Option<usize>);

enum Outcome {
    Open,
    /// The flow is decided: everything passes. The decision is to be taken.
    Decided(Action),
    /// The flow is decided, and the decision was taken.
    Taken,
    Denied(LastWords),
    /// Somebody logs in anew who would meet another rule. The flow is to end.
    AnotherUser,
    /// The flow is to end for that, which was said.
    Ending,
    /// The database has ended before the flow was decided: nothing passes to it any more.
    Moot,
}

enum LastWords {
    /// The last bytes have to wait for the end of a response.
    Later,
    Ready(Vec<u8>),
    Said,
}

impl Gate {
    pub(super) fn new(question: Question, shared: &Arc<ProxyContext>, flow: &Arc<Flow>) -> Self {
        Self {
            question,
            handshake: Handshake::new(shared.services.prepared.at(steps::database(flow))),
            outcome: Outcome::Open,
            requests: Vec::new(),
            responses: Vec::new(),
            waits: false,
            watched: None,
            shared: shared.clone(),
            flow: flow.clone(),
        }
    }

    /// Takes bytes that were read, and says which bytes pass.
    pub(super) fn offer(&mut self, direction: Direction, bytes: &[u8]) -> Passing {
        let mut held = mem::take(self.held(direction));
        if held.is_empty() {
            let passing = self.look(direction, bytes).min(bytes.len());
            if passing == bytes.len() {
                return Passing::All;
            }
            let (pass, rest) = bytes.split_at(passing);
            self.hold(direction, rest.to_vec());
            return Passing::These(pass.to_vec());
        }
        held.extend_from_slice(bytes);
        let passing = self.look(direction, &held).min(held.len());
        let rest = held.split_off(passing);
        self.hold(direction, rest);
        Passing::These(held)
    }

    /// Keeps bytes that may still pass.
    fn hold(&mut self, direction: Direction, rest: Vec<u8>) {
        if !(self.is_ending() && direction == Direction::ToDatabase) {
            *self.held(direction) = rest;
        }
    }

    /// Says whether to read from this side, or which bytes pass first.
    pub(super) fn turn(&mut self, direction: Direction) -> Turn<Vec<u8>> {
        match (&self.outcome, direction) {
            (Outcome::Denied(LastWords::Later), Direction::ToClient) => {
                Turn::Read(NonZeroUsize::MAX)
            }
            (Outcome::Denied(_) | Outcome::AnotherUser | Outcome::Ending, _) => Turn::Wait,
            (Outcome::Moot, _) => Turn::Read(NonZeroUsize::MAX),
            (Outcome::Decided(_) | Outcome::Taken, Direction::ToDatabase)
                if self.watched.is_some() =>
            {
                match self.offer(direction, &[]) {
                    Passing::These(bytes) if !bytes.is_empty() => Turn::Pass(bytes),
                    _ if self.is_ending() => Turn::Wait,
                    _ => Turn::Read(NonZeroUsize::MAX),
                }
            }
            (Outcome::Decided(_) | Outcome::Taken, _) => match mem::take(self.held(direction)) {
                rest if rest.is_empty() => Turn::Read(NonZeroUsize::MAX),
                rest => Turn::Pass(rest),
            },
            (Outcome::Open, Direction::ToDatabase) if self.waits => {
                match self.offer(direction, &[]) {
                    Passing::These(bytes) if !bytes.is_empty() => Turn::Pass(bytes),
                    _ if self.waits || !self.is_open() => Turn::Wait,
                    _ => Turn::Read(NonZeroUsize::MAX),
                }
            }
            (Outcome::Open, _) => Turn::Read(NonZeroUsize::MAX),
        }
    }

    /// Handles the end of a side. Returns the bytes of that side that were held back.
    pub(super) fn end(&mut self, direction: Direction) -> Vec<u8> {
        if direction == Direction::ToClient {
            match &mut self.outcome {
                Outcome::Open => self.outcome = Outcome::Moot,
                Outcome::Denied(words @ LastWords::Later) => *words = LastWords::Ready(Vec::new()),
                _ => {}
            }
        }
        match (&self.outcome, direction) {
            (Outcome::Denied(_) | Outcome::AnotherUser | Outcome::Ending, _)
            | (Outcome::Moot, Direction::ToDatabase) => Vec::new(),
            _ => mem::take(self.held(direction)),
        }
    }

    /// Takes the decision, once, unless that is to deny.
    pub(super) fn take_decision(&mut self) -> Option<Action> {
        let Outcome::Decided(action) = self.outcome else {
            return None;
        };
        self.outcome = Outcome::Taken;
        Some(action)
    }

    /// Whether the decision was taken, nothing is held back, and no log-in matters.
    pub(super) fn is_over(&self) -> bool {
        matches!(self.outcome, Outcome::Taken) && self.is_empty() && self.watched.is_none()
    }

    /// Whether the gate stays until the flow ends: another user would meet another rule.
    pub(super) fn stays(&self) -> bool {
        matches!(self.outcome, Outcome::Taken) && self.watched.is_some()
    }

    fn is_empty(&self) -> bool {
        self.requests.is_empty() && self.responses.is_empty()
    }

    /// Whether a direction's turn may bring bytes now.
    pub(super) fn holds_what_may_pass(&self) -> bool {
        match self.outcome {
            Outcome::Open => self.waits,
            Outcome::Decided(_) => !self.is_empty(),
            // Requests that were held back since are a frame's beginning.
            Outcome::Taken if self.watched.is_some() => !self.responses.is_empty(),
            Outcome::Taken => !self.is_empty(),
            _ => false,
        }
    }

    /// Returns, once, the last bytes for the client of a denied flow, and the reason why it ends. A flow that has gone
    /// on for a while has none: nobody knows here where its responses end.
    pub(super) fn last_words(&mut self) -> Option<(Vec<u8>, CloseReason)> {
        match &mut self.outcome {
            Outcome::Denied(said @ LastWords::Ready(_)) => {
                match mem::replace(said, LastWords::Said) {
                    LastWords::Ready(words) => Some((words, CloseReason::Denied)),
                    _ => None,
                }
            }
            Outcome::AnotherUser => {
                self.outcome = Outcome::Ending;
                Some((Vec::new(), CloseReason::AnotherUser))
            }
            _ => None,
        }
    }

    fn held(&mut self, direction: Direction) -> &mut Vec<u8> {
        match direction {
            Direction::ToDatabase => &mut self.requests,
            Direction::ToClient => &mut self.responses,
        }
    }

    /// Returns how many of the bytes that are held of a direction pass.
    fn look(&mut self, direction: Direction, held: &[u8]) -> usize {
        let mut passing = 0;
        loop {
            match (&self.outcome, direction) {
                (Outcome::Open, _) | (Outcome::Denied(LastWords::Later), Direction::ToClient) => {}
                (Outcome::Decided(_) | Outcome::Taken, Direction::ToDatabase)
                    if self.watched.is_some() => {}
                (Outcome::Decided(_) | Outcome::Taken, _) => return held.len(),
                (Outcome::Denied(_) | Outcome::AnotherUser | Outcome::Ending, _) => {
                    return passing;
                }
                (Outcome::Moot, Direction::ToDatabase) => return 0,
                (Outcome::Moot, Direction::ToClient) => return held.len(),
            }
            let rest = held.get(passing..).unwrap_or_default();
            let step = match direction {
                Direction::ToDatabase => self.handshake.requests(rest),
                Direction::ToClient => self.handshake.responses(rest),
            };
            if direction == Direction::ToDatabase {
                self.waits = step == Step::Wait;
            }
            match step {
                Step::More | Step::Wait => return passing,
                Step::Pass(bytes) => passing += bytes,
                Step::Told(bytes) if self.is_open() => {
                    self.judge();
                    if self.is_open() || self.watched.is_some() {
                        passing += bytes;
                    }
                }
                Step::Told(bytes) => {
                    if let Some(met) = self.watched {
                        self.judge_again(met);
                    }
                    if !self.is_ending() {
                        passing += bytes;
                    }
                }
            }
            if let Outcome::Denied(LastWords::Later) = self.outcome {
                self.refuse();
            }
        }
    }

    /// Whether nothing that follows matters.
    pub(super) fn is_ending(&self) -> bool {
        matches!(
            self.outcome,
            Outcome::Denied(_) | Outcome::AnotherUser | Outcome::Ending | Outcome::Moot
        )
    }

    /// Whether the flow is not decided, and can be.
    pub(super) fn is_open(&self) -> bool {
        matches!(self.outcome, Outcome::Open)
    }

    /// Lets this policy decide from now on, when the next fact is learned.
    pub(super) fn ask(&mut self, policy: Arc<Policy>) {
        self.question.policy = policy;
        self.flow.waits_for(self.question.waits_for(&self.facts()));
    }

    /// Takes over the decision of a mark.
    pub(super) fn mark(&mut self, action: Action) {
        self.outcome = Outcome::Decided(action);
    }

    /// Returns the facts that are known. A client whose TLS ends in the agent counts as encrypting,
    /// though the bytes that are read are plain.
    fn facts(&self) -> Session {
        let mut session = facts(self.handshake.session());
        if self.flow.client_encrypts() {
            session.tls = Fact::Is(true);
        }
        if self.handshake.over().is_some() {
            // Whoever logs in from here on is not seen.
            session.user = match session.user {
                Fact::Is(_) => Fact::Unknowable,
                other => other,
            };
        }
        session
    }

    fn judge(&mut self) {
        let Question {
            policy, candidate, ..
        } = &self.question;
        let mut session = self.facts();
        let mut decision = policy.decide(candidate, &session);
        let metrics = &self.shared.metrics;
        if let Some(why) = self.handshake.over()
            && decision == Decision::Undecided
        {
            metrics
                .sessions
                .unknowable
                .with_label_values(&[why.as_str()])
                .inc();
            if self.handshake.ended_before_login() {
                // Whatever `fail` says: the database refuses it, too, and would go on with the log-in,
                // past the rule for its user.
                decision = refused(policy, candidate, &session);
            } else {
                session = session.closed();
                decision = policy.decide(candidate, &session);
            }
        }
        self.flow.knows(&session);
        self.flow.waits_for(self.question.waits_for(&session));
        let Decision::Decided(mut by) = decision else {
            return;
        };
        let is_denied = by.action == Action::Deny;
        let is_left = !is_denied && !is_sampled(policy, &by, self.flow.id);
        if is_left {
            by.action = Action::Bypass;
        }
        for why in self.handshake.unknowable() {
            metrics
                .sessions
                .unknowable
                .with_label_values(&[why.as_str()])
                .inc();
        }
        metrics.sessions.count(&by);
        self.flow.decide(&by);
        self.flow.opt_in(policy.shortcut_of(&by.rule));
        if is_left {
            self.flow.leave_out_of_sample();
        }
        if !is_denied {
            self.remember(&by);
            let anybody = Session {
                user: Fact::Open,
                ..session
            };
            let depends = policy.decide(candidate, &anybody) == Decision::Undecided;
            if depends && self.handshake.over().is_none() {
                self.handshake.watch();
                self.flow
                    .set_relayed("another user would meet another rule, so log-ins are looked for");
                self.watched = Some(Met(by.index));
            }
        }
        tracing::debug!(
            flow = ?self.flow.id,
            rule = %by.rule,
            action = by.action.as_str(),
            "decided by its session"
        );
        if is_denied {
            self.outcome = Outcome::Denied(LastWords::Later);
        } else {
            self.outcome = Outcome::Decided(by.action);
        }
    }

    /// Has the flow end if the user who logs in now does not meet the rule that the flow has met, or if nobody can tell
    /// from here on who logs in.
    fn judge_again(&mut self, met: Met) {
        let Question {
            policy, candidate, ..
        } = &self.question;
        let session = self.facts();
        let by = match policy.decide(candidate, &session) {
            Decision::Decided(by) if Met(by.index) == met && by.action != Action::Deny => {
                if self.handshake.over().is_some() {
                    self.watched = None;
                }
                return self.flow.knows(&session);
            }
            Decision::Decided(by) => Some(by),
            Decision::Undecided => policy
                .possible(candidate, &session)
                .next()
                .map(|first| first.met),
        };
        if let Some(by) = by {
            self.flow.knows(&session);
            self.flow.set_action(&by.rule, Action::Deny);
        }
        self.outcome = Outcome::AnotherUser;
    }

    /// Stores the decision before the client knows that it is let in, so that its next connection
    /// is decided at once.
    fn remember(&self, by: &Match) {
        let Question { policy, opener, .. } = &self.question;
        let rule = by.index.and_then(|index| policy.rules.get(index));
        let lasts = rule.and_then(|rule| rule.remember);
        let (Some(index), Some(lasts), Some(opener)) = (by.index, lasts, opener) else {
            return;
        };
        if let Err(why) = self.shared.remembered.remember(opener, index, lasts) {
            let reason = [why.as_str()];
            let counter = &self.shared.metrics.sessions.not_remembered;
            counter.with_label_values(&reason).inc();
            tracing::debug!(flow = ?self.flow.id, %why, "not remembered");
        }
    }

    fn refuse(&mut self) {
        let message = format!("underpass: denied by rule {}", self.flow.rule());
        let words = match self.handshake.refusal(&message) {
            Refusal::Later => return,
            Refusal::Now(words) => words,
            Refusal::Silence => Vec::new(),
        };
        self.outcome = Outcome::Denied(LastWords::Ready(words));
    }
}

/// Denies a flow by the first rule that could still hold for it.
fn refused(policy: &Policy, candidate: &Candidate, session: &Session) -> Decision {
    let first = policy.possible(candidate, session).next();
    first.map_or(Decision::Undecided, |first| {
        let action = Action::Deny;
        Decision::Decided(Match {
            action,
            ..first.met
        })
    })
}
