//! `/flows`: the flows that the agent carries, then those of which the kernel keeps the state, each with the container of its client.

use std::sync::Arc;

use flow::FlowView;
use serde::Serialize;
use steps::containers::Contained;

use super::{
    containers::{Known, pointee},
    state::{Admin, left_alone},
};
use crate::{observed::ObservedView, shortcuts::ShortcutView};

/// A flow as `/flows` gives it.
#[derive(Serialize)]
pub(super) struct View {
    #[serde(flatten)]
    flow: Kind,
    /// The container that the client's process was in when it dialled, where a runtime has told of it.
    #[serde(flatten, serialize_with = "pointee")]
    container: Option<Arc<Contained>>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Kind {
    Carried(FlowView),
    Observed(ObservedView),
    Shortcut(ShortcutView),
}

/// Returns all flows. Waits for the kernel, and reads a file in `/proc` for each cgroup of clients.
pub(super) fn views(admin: &Admin) -> Vec<View> {
    let carried = admin.shared.flows.views();
    let (observed, shortcuts) = left_alone(admin);
    let carried = carried
        .into_iter()
        .map(|flow| (flow.process(), Kind::Carried(flow)));
    let observed = observed
        .into_iter()
        .map(|flow| (flow.process(), Kind::Observed(flow)));
    let shortcuts = shortcuts
        .into_iter()
        .map(|flow| (flow.process(), Kind::Shortcut(flow)));
    let mut known = Known::new(&admin.shared.services.containers);
    let all = carried.chain(observed).chain(shortcuts);
    let named = all.map(|(process, flow)| View {
        container: process.and_then(|(pid, cgroup)| known.of(pid, cgroup)),
        flow,
    });
    named.collect()
}
