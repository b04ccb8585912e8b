//! Bounds, defaults and names of values: the file's form, its meaning and its schema share them.

use std::time::Duration;

use dataplane::{
    ClientAddress, Engine,
    edge::{Forward, WantedMode},
};
use policy::{Fail, LimitPer};
use proxy::paths::{Splicing, engine_name};

use crate::{
    backends::Established,
    containers::{Speaks, default_sockets},
};

/// `500ms`, `2s`, `1m`: see [`steps::duration`].
pub(super) const DURATION: &str = "^[0-9]+(ms|s|m)$";

/// `1%`, `0.5%`, and no more than 50%: see [`super::holdout`].
pub(super) const PERCENT_OF_CONNECTIONS: &str = "^0*(50([.]0+)?|[1-4]?[0-9]([.][0-9]+)?)%$";

/// Where the admin socket is unless the file says otherwise.
pub const DEFAULT_ADMIN_SOCKET: &str = "/run/underpass/admin.sock";

/// Where scrapers usually expect the admin interface, if it listens on TCP.
pub(super) const USUAL_ADMIN: &str = "127.0.0.1:9180";

/// Where scrapers usually expect metrics that come from OpenTelemetry's world.
pub(super) const USUAL_METRICS: &str = "127.0.0.1:9464";

/// Names by which the admin interface may be asked on TCP. Scrapers know a host by one or two.
pub(super) const MAX_ADMIN_HOSTS: usize = 16;

/// Where the control socket is unless the file says otherwise.
pub const DEFAULT_CONTROL: &str = "/run/underpass/control.sock";

/// Keys of labels that records have: each makes every record longer.
pub(super) const MAX_RECORD_LABELS: usize = 16;

/// Flows that the agent carries at the same time, unless the file says otherwise. Each costs
/// two descriptors and a few KiB.
pub const DEFAULT_MAX_FLOWS: usize = 10_000;

/// The most that `max_flows` can be: half of what the kernel's table of legs has room for,
/// so that clients which give up while they wait cannot fill it.
pub const MAX_FLOWS: usize = 32_768;

/// The share of `max_flows` that one user may hold, and one cgroup, unless the file says otherwise.
pub const DEFAULT_SHARE: f64 = 0.5;

/// The processor time that reading copies may take, unless the file says otherwise: what applications lose by it at
/// most.
pub(super) const DEFAULT_TAP_CPU: f64 = 0.25;

/// The share of connections that is held out where a rule only reads, unless the file says otherwise: little
/// goes unread, and of a connection a second there are 864 a day to compare with.
pub(super) const DEFAULT_HELD_OUT: f64 = 0.01;

/// The largest share that can be held out, in percent: with half of the connections a comparison is at its best.
pub(super) const MOST_HELD_OUT: f64 = 50.0;

/// The time that a client has to log in, unless the file says otherwise: several times what a
/// driver waits for its own log-in.
pub const DEFAULT_HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(30);

/// Bounds of `handshake_timeout`: below, a slow log-in fails; above, it bounds nothing.
pub(super) const HANDSHAKE_TIMEOUTS: [Duration; 2] =
    [Duration::from_secs(1), Duration::from_secs(600)];

/// The time that an agent keeps its flows after another one has taken over, unless the file says otherwise: what is asked
/// of databases is answered long before.
pub const DEFAULT_DRAIN: Duration = Duration::from_secs(300);

/// Bounds of `drain`: below, nothing would be answered any more; above, two agents would run for good.
pub(super) const DRAINS: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(3600)];

/// Values of `fail`.
pub(super) const FAILS: [(&str, Fail); 2] = [
    (Fail::Open.as_str(), Fail::Open),
    (Fail::Closed.as_str(), Fail::Closed),
];

/// Most connections that a limit can name. More would be no limit: a client has fewer ports towards an address.
pub(super) const MAX_LIMIT: usize = 65_536;

/// Values of a limit's `per`.
pub(super) const LIMITS_PER: [(&str, LimitPer); 3] = [
    ("uid", LimitPer::Uid),
    ("process", LimitPer::Process),
    ("address", LimitPer::Address),
];

/// Values of a rule's `mode`: whether it stands in shadow.
pub(super) const RULE_MODES: [(&str, bool); 2] = [("enforce", false), ("shadow", true)];

/// Values of `agent.splice`.
pub(super) const SPLICES: [(&str, Splicing); 4] = [
    ("auto", Splicing::Auto),
    (engine_name(Engine::Sender), Splicing::By(Engine::Sender)),
    (engine_name(Engine::Egress), Splicing::By(Engine::Egress)),
    ("off", Splicing::Off),
];

/// Most threads that carry flows. More would only wait for each other; eight carry a 10 Gbit/s link.
pub(super) const MAX_WORKERS: usize = 64;

/// Values of `health.established`.
pub(super) const ESTABLISHED: [(&str, Established); 2] =
    [("leave", Established::Leave), ("reset", Established::Reset)];

pub(super) const MOST_IN_A_ROW: usize = 10;

/// Values of `incoming.client_address`.
pub(super) const CLIENT_ADDRESSES: [(&str, ClientAddress); 2] = [
    ("keep", ClientAddress::Keep),
    ("agent", ClientAddress::Agent),
];

/// Most steps of a pipeline. Every request passes all of them, so more would be a mistake.
pub(super) const MAX_STEPS: usize = 32;

/// Bounds of `p99_ms`: below, the clock's steps show; above, a driver has given up.
pub(super) const LEAST_P99_MS: f64 = 0.01;

pub(super) const MOST_P99_MS: f64 = 60_000.0;

/// Values of `xdp.forward`.
pub(super) const FORWARDS: [(&str, Forward); 3] = [
    ("off", Forward::Off),
    ("snat", Forward::Snat),
    ("dsr", Forward::Dsr),
];

/// `IFNAMSIZ` of netdevice(7), without its end.
pub(super) const MAX_NAME_BYTES: usize = 15;

/// Most SYNs a second that a limit can name. More would be no limit.
pub(super) const MAX_SYN_RATE: usize = 10_000_000;

/// Values of `xdp.mode`.
pub(super) const MODES: [(&str, WantedMode); 3] = [
    ("auto", WantedMode::Auto),
    ("native", WantedMode::Native),
    ("generic", WantedMode::Generic),
];

/// Values of `policy.source`, and whether policies are objects of Kubernetes.
pub(super) const POLICY_SOURCES: [(&str, bool); 2] = [("etcd", false), ("kubernetes", true)];

/// Where a fleet's policy is in etcd unless the file says otherwise.
pub(super) const DEFAULT_PREFIX: &str = "/underpass";

/// Where the last policy of a fleet is kept unless the file says otherwise.
pub(super) const DEFAULT_CACHE: &str = "/var/lib/underpass/policy.json";

/// The longest name of a host: that of a name in DNS.
pub(super) const MAX_HOST_NAME_BYTES: usize = 253;

/// Labels of a host, at most. Rules name a few.
pub(super) const MAX_HOST_LABELS: usize = 64;

/// Bytes of a host's label, and of its value.
pub(super) const MAX_LABEL_BYTES: usize = 253;

/// The names of values, for the schema.
pub(super) fn names<T>(all: &[(&'static str, T)]) -> Vec<&'static str> {
    all.iter().map(|(name, _)| *name).collect()
}

/// Sockets that are asked if the file does not name any.
pub(super) fn default_paths(speaks: Speaks) -> Vec<std::path::PathBuf> {
    let sockets = default_sockets().into_iter();
    let speaking = sockets.filter(|socket| socket.speaks == speaks);
    speaking.map(|socket| socket.path).collect()
}
