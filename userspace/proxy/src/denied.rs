//! Denials of flows and requests, as operators see them.

use std::{convert::Infallible, io, time::SystemTime};

use dataplane::{Cause, KernelDenial, KernelDenials, Process};
use flow::Flow;
use steps::Refusal;
use telemetry::{Denial, Metrics};

/// A flow that its session, or a mark, denies. `reason`: empty where the rule says it all.
pub(super) fn flow(flow: &Flow, metrics: &Metrics, reason: &'static str) {
    let cause = match telemetry::is_marks(flow.rule().as_str()) {
        true => "mark",
        false => "session",
    };
    let user = || flow.decided().session?.user.value().cloned();
    metrics
        .denials
        .note(cause, || denial(flow, user(), cause, reason));
}

/// A request of this user's that a step refused.
pub(super) fn request(flow: &Flow, user: Option<&str>, metrics: &Metrics, refusal: Refusal) {
    let Refusal { step, reason } = refusal;
    let user = || user.map(str::to_owned);
    metrics
        .denials
        .note(step, || denial(flow, user(), step, reason));
}

/// Has what the kernel's hooks refuse listed and logged, too. It is counted there.
///
/// # Errors
/// The kernel's records cannot be waited for.
pub async fn tell_denials(mut denials: KernelDenials, metrics: &Metrics) -> io::Result<Infallible> {
    loop {
        let denial = denials.next().await?;
        let untold = u64::from(denial.untold);
        metrics.denials.list(untold, || kernels(denial));
    }
}

fn kernels(denial: KernelDenial) -> Denial {
    let KernelDenial {
        process,
        client,
        to,
        rule,
        cause,
        ..
    } = denial;
    let parts = |p: Process| (p.name, p.pid, p.uid, p.cgroup_id);
    let (name, pid, uid, cgroup_id) = process.map_or_else(Default::default, parts);
    Denial {
        at: SystemTime::now(),
        rule: rule.to_string(),
        cause: match cause {
            None => "rule",
            Some(Cause::ClientLimit) => "limit",
            Some(_) => "fail",
        },
        reason: cause.map_or("", Cause::as_str),
        process: name,
        pid,
        uid,
        cgroup_id,
        user: None,
        client: client.map_or_else(String::new, |client| client.to_string()),
        to: to.to_string(),
        more: 0,
    }
}

fn denial(flow: &Flow, user: Option<String>, cause: &'static str, reason: &'static str) -> Denial {
    Denial {
        at: SystemTime::now(),
        rule: flow.rule().to_string(),
        cause,
        reason,
        process: flow.process.name.clone(),
        pid: flow.process.pid,
        uid: flow.process.uid,
        cgroup_id: flow.process.cgroup_id,
        user,
        client: flow.client.to_string(),
        to: flow.orig_dst.to_string(),
        more: 0,
    }
}
