//! Sessions, as copies of handshakes tell them: to be shown, and for the rules that depend on them.

use std::sync::Arc;

use dataplane::{ClientAddr, Settled, TapFlow};
use flow::{Flow, FlowId, Newcomer};
use policy::{Action, Decision, Fact, Match, Policy, RuleName, TapDepth};

use tap::AskedSession;
use telemetry::SessionMetrics;

use crate::question::{Question, facts, is_sampled};

/// The name of the reason in metrics: there was no time for the flow when it began.
const LEFT_OUT: &str = "left_out";

/// The question which rule a tapped flow meets. None: the rule that the kernel has found needs no session, whatever it is in the
/// policy of now.
fn unanswered(tapped: &TapFlow, client: ClientAddr, policy: &Arc<Policy>) -> Option<Question> {
    if !tapped.asks {
        return None;
    }
    let newcomer = Newcomer {
        client,
        application: None,
        orig_dst: tapped.orig_dst,
        rule: tapped.rule.clone(),
        process: tapped.process.clone(),
        netns: None,
        opener: None,
    };
    Question::of(&newcomer, policy)
}

/// The question which rule a flow meets that is read, if there is one. The flow waits for the answer.
pub(super) fn question(tapped: &TapFlow, flow: &Flow, policy: &Arc<Policy>) -> Option<Question> {
    let question = unanswered(tapped, flow.client, policy)?;
    flow.await_session();
    flow.waits_for(question.waits_for(&policy::Session::default()));
    Some(question)
}

/// Notes what is known of the session of a flow whose rule is known. Whether that is all that will be known.
pub(super) fn note(asked: AskedSession<'_>, flow: &Flow) -> bool {
    let mut session = facts(asked.session);
    if asked.over.is_some() {
        session = session.closed();
    }
    let is_all = session.user != Fact::Open && session.keyspace != Fact::Open;
    flow.knows(&session);
    is_all
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

/// Answers the question for a flow that is not read from its beginning on, because there is no time: nothing of its session can
/// become known. None: it is not asked.
pub(super) fn answer_unread(
    tapped: &TapFlow,
    client: ClientAddr,
    id: FlowId,
    policy: &Arc<Policy>,
    metrics: &SessionMetrics,
) -> Option<(RuleName, Settled)> {
    let Question {
        policy, candidate, ..
    } = unanswered(tapped, client, policy)?;
    let session = policy::Session::default().closed();
    let Decision::Decided(by) = policy.decide(&candidate, &session) else {
        return None;
    };
    metrics.unknowable.with_label_values(&[LEFT_OUT]).inc();
    metrics.count(&by);
    let settled = match is_sampled(&policy, &by, id) {
        true => settled(&policy, &by),
        false => Settled::LeftAlone,
    };
    Some((by.rule, settled))
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
