//! Denials of flows and requests, as operators see them.

use std::time::SystemTime;

use flow::Flow;
use steps::Refusal;
use telemetry::{Denial, Metrics};

/// A flow that its session, or a mark, denies.
pub(super) fn flow(flow: &Flow, metrics: &Metrics) {
    let cause = match telemetry::is_marks(flow.rule().as_str()) {
        true => "mark",
        false => "session",
    };
    metrics.denials.note(cause, || denial(flow, cause, ""));
}

/// A request that a step refused.
pub(super) fn request(flow: &Flow, metrics: &Metrics, refusal: Refusal) {
    let Refusal { step, reason } = refusal;
    metrics.denials.note(step, || denial(flow, step, reason));
}

fn denial(flow: &Flow, cause: &'static str, reason: &'static str) -> Denial {
    let session = flow.decided().session;
    Denial {
        at: SystemTime::now(),
        rule: flow.rule().to_string(),
        cause,
        reason,
        process: flow.process.name.clone(),
        pid: flow.process.pid,
        uid: flow.process.uid,
        user: session.and_then(|session| session.user.value().cloned()),
        client: flow.client.to_string(),
        to: flow.orig_dst.to_string(),
        more: 0,
    }
}
