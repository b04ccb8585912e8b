//! `/denied`: the latest refusals, each with the container of its client.

use std::{sync::Arc, time::SystemTime};

use serde::Serialize;
use steps::containers::Contained;
use telemetry::Denial;

use super::{
    containers::{Known, pointee},
    state::Admin,
};

/// A refusal as `/denied` gives it.
#[derive(Serialize)]
pub(super) struct View {
    at_unix_ms: u64,
    rule: String,
    cause: &'static str,
    reason: &'static str,
    process: String,
    pid: u32,
    uid: u32,
    user: Option<String>,
    client: String,
    orig_dst: String,
    not_listed_before: u64,
    /// The container that the client's process was in, if that still runs and a runtime has told of it.
    #[serde(flatten, serialize_with = "pointee")]
    container: Option<Arc<Contained>>,
}

/// Returns the latest refusals. Reads files in `/proc`.
pub(super) fn views(admin: &Admin) -> Vec<View> {
    let mut known = Known::new(&admin.shared.services.containers);
    let denials = admin.shared.metrics.denials.recent();
    denials
        .into_iter()
        .map(|denial| view(denial, &mut known))
        .collect()
}

fn view(denial: Denial, known: &mut Known<'_>) -> View {
    let Denial {
        at,
        rule,
        cause,
        reason,
        process,
        pid,
        uid,
        cgroup_id,
        user,
        client,
        to,
        more,
    } = denial;
    let at = at.duration_since(SystemTime::UNIX_EPOCH);
    View {
        at_unix_ms: at.unwrap_or_default().as_millis() as u64,
        rule,
        cause,
        reason,
        container: known.of(pid, cgroup_id),
        process,
        pid,
        uid,
        user,
        client,
        orig_dst: to,
        not_listed_before: more,
    }
}
