//! The room for frames that all editors share, and how each describes its flow's client.

use std::sync::{Arc, LazyLock};

use cql_edit::{Caller, Room};
use flow::Flow;

/// The most bytes of frames that are not small that all flows together may hold back: eight of the
/// largest frames that are held back at all.
const MAX_HELD_BYTES: usize = 256 << 20;

pub(super) static ROOM: LazyLock<Arc<Room>> = LazyLock::new(|| Room::new(MAX_HELD_BYTES));

/// Describes a flow's client for the steps of its rule.
pub(super) fn caller(flow: &Arc<Flow>) -> Caller {
    let process = &flow.process;
    let is_here = !process.is_elsewhere();
    let cgroup = || dataplane::host::cgroup_of(process.pid, process.cgroup_id);
    Caller {
        rule: flow.rule().as_str().to_owned(),
        client: flow.client.socket_addr().ip().to_string(),
        dialled: Some(flow.orig_dst.socket_addr()),
        database: steps::database(flow),
        texts_change: false,
        flow: Some(flow.clone()),
        keyspace: None,
        keyspace_unclear: false,
        keyspace_before: false,
        user: None,
        driver: None,
        logged_in: false,
        process: is_here.then(|| process.name.to_string()),
        cgroup: is_here
            .then(cgroup)
            .flatten()
            .map(|path| path.display().to_string()),
    }
}
