//! Flows whose rule depends on their session, which copies of their handshake tell.

use std::{collections::HashMap, sync::Arc};

use dataplane::{Settled, SockCookie, TapFlow};
use flow::{Flow, Newcomer};
use parking_lot::Mutex;
use policy::{Action, Decision, Match, Policy, TapDepth};

use tap::AskedSession;
use telemetry::SessionMetrics;

use crate::question::{Question, facts, is_sampled};

/// The flows whose session is asked for, or was, by cookie. Whoever lists flows asks it.
#[derive(Clone, Debug, Default)]
pub(super) struct AskedFlows(Arc<Mutex<HashMap<SockCookie, Arc<Flow>>>>);

impl AskedFlows {
    pub(super) fn insert(&self, cookie: SockCookie, flow: &Arc<Flow>) {
        self.0.lock().insert(cookie, flow.clone());
    }

    pub(super) fn retain(&self, keeps: impl Fn(SockCookie) -> bool) {
        self.0.lock().retain(|cookie, _| keeps(*cookie));
    }

    pub(super) fn remove(&self, cookie: SockCookie) {
        self.0.lock().remove(&cookie);
    }

    pub(super) fn get(&self, cookie: SockCookie) -> Option<Arc<Flow>> {
        self.0.lock().get(&cookie).cloned()
    }
}

/// The question which rule a tapped flow meets. None: the rule that the kernel has found needs no session.
pub(super) fn question(tapped: &TapFlow, flow: &Flow, policy: &Arc<Policy>) -> Option<Question> {
    let newcomer = Newcomer {
        client: flow.client,
        application: None,
        orig_dst: flow.orig_dst,
        rule: tapped.rule.clone(),
        process: flow.process.clone(),
        netns: None,
        opener: None,
    };
    let question = Question::of(&newcomer, policy)?;
    flow.await_session();
    flow.waits_for(question.waits_for(&policy::Session::default()));
    Some(question)
}

/// The answer to it, by what is known of the session. None: more has to be known.
pub(super) fn answer(
    question: &Question,
    asked: AskedSession<'_>,
    flow: &Flow,
    metrics: &SessionMetrics,
) -> Option<(Match, Settled)> {
    let mut session = facts(asked.session);
    let mut decision = question.decide(&session);
    let count = |why| metrics.unknowable.with_label_values(&[why]).inc();
    if let Some(why) = asked.over
        && decision == Decision::Undecided
    {
        count(why);
        session = session.closed();
        decision = question.decide(&session);
    }
    flow.knows(&session);
    flow.waits_for(question.waits_for(&session));
    let Decision::Decided(by) = decision else {
        return None;
    };
    asked.unknowable.iter().for_each(|why| count(why.as_str()));
    let policy = &question.policy;
    let is_left = !is_sampled(policy, &by, flow.id);
    let settled = match is_left {
        true => Settled::LeftAlone,
        false => settled(policy, &by),
    };
    metrics.count(&by);
    flow.decide(&by);
    if is_left {
        flow.leave_out_of_sample();
    }
    tracing::debug!(
        flow = ?flow.id,
        rule = %by.rule,
        action = by.action.as_str(),
        "decided by copies of its handshake"
    );
    Some((by, settled))
}

/// A session rule is asked by copies only if no rule denies that its flows may meet, and none needs their bytes
/// ([`Policy::takes_in`]).
fn settled(policy: &Policy, by: &Match) -> Settled {
    let rule = by.index.and_then(|index| policy.rules.get(index));
    match by.action {
        Action::Bypass | Action::Deny => Settled::LeftAlone,
        Action::Observe => Settled::Observed,
        Action::Enrich => {
            let depth = rule.and_then(|rule| rule.taps);
            Settled::Tapped(depth.unwrap_or(TapDepth::Details))
        }
    }
}
