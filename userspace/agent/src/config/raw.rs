//! The form of the file, key by key. Unknown keys are errors.
//!
//! The same types are the JSON Schema ([`super::schema`]): doc comments are the descriptions, attributes say defaults,
//! bounds and examples. `x-min` and `x-max` are bounds of durations; `x-beside` is the key without which a
//! default has no meaning.

use std::collections::BTreeMap;

use dataplane::{
    DEFAULT_TAP_RING_BYTES, MAX_INCOMING, MAX_NAMESPACES, MAX_TAP_RING_BYTES, MIN_TAP_RING_BYTES,
    edge::{self, MAX_INTERFACES},
};
use policy::{
    Action, Compression, Fail, MAX_BACKENDS, MAX_CONTAINER_CONDITIONS, MAX_POD_CONDITIONS,
    MAX_RULES, Protocol, WindowSettings,
};
use serde::Deserialize;
use steps::otlp::{MAX_SERVICE_BYTES, SERVICE};
use toml::Spanned;

use super::{
    bounds::{
        self, DEFAULT_ADMIN_SOCKET, DEFAULT_CONTROL, DEFAULT_MAX_FLOWS, DEFAULT_SHARE, FAILS,
        MAX_ADMIN_HOSTS, MAX_FLOWS, MAX_WORKERS, SPLICES, USUAL_ADMIN, USUAL_METRICS, names,
    },
    error::Flaw,
    schema,
    users::RawId,
    value::{MAX_SOCKET_PATH_BYTES, said_by_parser},
};
use crate::{
    containers::{MAX_RUNTIMES, Speaks},
    log::{self, LogFormat},
};

/// `500ms`, `2s`, `1m`: see [`steps::duration`].
const DURATION: &str = "^[0-9]+(ms|s|m)$";

/// `1%`, `0.5%`, and no more than 50%: see [`super::holdout`].
const PERCENT_OF_CONNECTIONS: &str = "^0*(50([.]0+)?|[1-4]?[0-9]([.][0-9]+)?)%$";

/// `1%`, `0.5%`, and no more than 100%: see [`super::host`].
const PERCENT_OF_HOSTS: &str = "^0*(100([.]0+)?|[0-9]{1,2}([.][0-9]+)?)%$";

/// A policy file of underpass: the agent's own settings, and ordered rules that say what happens to connections.
#[derive(Debug, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "underpass")]
pub(super) struct RawConfig {
    #[serde(default)]
    pub agent: RawAgent,
    #[serde(default)]
    pub log: RawLog,
    #[serde(default)]
    pub host: super::host::RawHost,
    pub policy: Option<super::source::RawPolicy>,
    #[schemars(with = "Option<super::sharing::RawLimits>")]
    pub limits: Option<Spanned<super::sharing::RawLimits>>,
    pub otlp: Option<RawOtlp>,
    #[serde(default)]
    #[schemars(with = "Vec<RawRule>", length(max = MAX_RULES))]
    pub rule: Vec<Spanned<RawRule>>,
    #[serde(default)]
    pub default: RawDefault,
    #[serde(default)]
    #[schemars(with = "Vec<RawIncoming>", length(max = MAX_INCOMING))]
    pub incoming: Vec<Spanned<RawIncoming>>,
    #[serde(default)]
    #[schemars(with = "Vec<super::clusters::RawCluster>", length(max = names::MAX_CLUSTERS))]
    pub cluster: Vec<Spanned<super::clusters::RawCluster>>,
    #[serde(default)]
    pub health: RawHealth,
    #[serde(default)]
    pub containers: RawContainers,
    #[serde(default)]
    #[schemars(length(max = MAX_INTERFACES))]
    pub xdp: Vec<RawXdp>,
}

/// Settings of the agent itself. The agent reads them when it starts, as it does `[[incoming]]` and `[containers]`; all
/// other tables are read again when the file changes, and on SIGHUP.
#[derive(Debug, Default, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("examples" = [{"admin": "127.0.0.1:9180", "max_flows": 20_000}]))]
pub(super) struct RawAgent {
    /// Socket of the admin interface (HTTP): `/metrics`, `/healthz`, `/readyz`, `/flows`, `/statements`, `/overhead`, `/backends`,
    /// `/names`, `/namespaces`, `/marks`, `/config`. Root can open it, and the group `underpass` where there is one.
    #[schemars(
        with = "Option<String>",
        length(max = MAX_SOCKET_PATH_BYTES),
        extend("title" = "absolute path", "default" = DEFAULT_ADMIN_SOCKET)
    )]
    pub admin_socket: Option<Spanned<String>>,
    /// Address and port at which the admin interface listens on TCP as well, for scrapers. Whoever can connect can read
    /// it: without this key, it does not.
    #[schemars(with = "Option<String>", extend("title" = "IP:PORT", "examples" = [USUAL_ADMIN]))]
    pub admin: Option<Spanned<String>>,
    /// Address and port at which `/metrics`, `/healthz` and `/readyz` alone are on TCP, for scrapers and probes that are to see no flow and no statement.
    #[schemars(with = "Option<String>", extend("title" = "IP:PORT", "examples" = [USUAL_METRICS]))]
    pub metrics: Option<Spanned<String>>,
    /// Names in the `Host` header with which the admin interface may be asked on TCP, beside addresses, `localhost` and
    /// this host's own name. Any other name is refused, because a web page could have made it up.
    #[serde(default)]
    #[schemars(
        with = "Vec<String>",
        length(max = MAX_ADMIN_HOSTS),
        extend("examples" = [["db1.example.org"]])
    )]
    pub admin_hosts: Vec<Spanned<String>>,
    /// `true`: whoever can open the admin socket may see bound values and the literals in statements, by `underpass tail
    /// --values`.
    #[serde(default)]
    pub tail_values: bool,
    /// Control socket, through which `underpass mark`, `unmark` and `backend` reach the agent. Only root can open it.
    #[schemars(
        with = "Option<String>",
        length(max = MAX_SOCKET_PATH_BYTES),
        extend("title" = "absolute path", "default" = DEFAULT_CONTROL)
    )]
    pub control: Option<Spanned<String>>,
    /// Folder in the cgroup v2 hierarchy whose processes are served. `auto` is the root of the mount: every process
    /// of the host.
    #[schemars(
        with = "Option<String>",
        extend("title" = "absolute path", "default" = "auto", "examples" = ["/sys/fs/cgroup/system.slice"])
    )]
    pub cgroup: Option<Spanned<String>>,
    /// Folder on the BPF file system where the agent pins its links.
    #[schemars(
        with = "Option<String>",
        extend("title" = "absolute path", "default" = dataplane::DEFAULT_PINS)
    )]
    pub pins: Option<Spanned<String>>,
    /// Flows that the agent carries at the same time. A further one follows its rule's `fail`.
    #[schemars(
        with = "Option<i64>",
        range(min = 1, max = MAX_FLOWS),
        extend("default" = DEFAULT_MAX_FLOWS)
    )]
    pub max_flows: Option<Spanned<i64>>,
    /// Share of `max_flows` that one user without privileges may hold; in one cgroup (container, service) half of that.
    /// A further flow follows its rule's `fail`. 1: no limit.
    #[schemars(
        with = "Option<f64>",
        range(max = 1.0),
        extend("exclusiveMinimum" = 0.0, "default" = DEFAULT_SHARE)
    )]
    pub user_share: Option<Spanned<f64>>,
    /// Share of `max_flows` that the processes of one cgroup (container, service, all sessions of a user) may hold. A
    /// further flow follows its rule's `fail`. 1: no limit.
    #[schemars(
        with = "Option<f64>",
        range(max = 1.0),
        extend("exclusiveMinimum" = 0.0, "default" = DEFAULT_SHARE)
    )]
    pub cgroup_share: Option<Spanned<f64>>,
    /// Time that a client has to log in, where a rule asks for the session. Then its flow is closed. When the agent is
    /// full, a sixth of it is enough, and flows whose database has not said a word go, too.
    #[schemars(
        with = "Option<String>",
        regex(pattern = DURATION),
        extend("x-min" = "1s", "x-max" = "10m", "default" = "30s")
    )]
    pub handshake_timeout: Option<Spanned<String>>,
    /// Time that this agent keeps the flows that it carries after another one has taken over (`underpass upgrade`). Flows that
    /// are left then are closed.
    #[schemars(
        with = "Option<String>",
        regex(pattern = DURATION),
        extend("x-min" = "1s", "x-max" = "60m", "default" = "5m")
    )]
    pub drain: Option<Spanned<String>>,
    /// Connections that `[[xdp]]` forwards at the same time.
    #[schemars(
        with = "Option<i64>",
        range(min = 1, max = edge::MAX_CONNECTIONS),
        extend("default" = edge::DEFAULT_CONNECTIONS)
    )]
    pub max_forwarded: Option<Spanned<i64>>,
    /// Network namespaces other than the agent's own (containers, pods) whose processes are served. 0: none.
    #[schemars(
        with = "Option<i64>",
        range(min = 0, max = MAX_NAMESPACES),
        extend("default" = MAX_NAMESPACES)
    )]
    pub max_namespaces: Option<Spanned<i64>>,
    /// Threads that carry flows. Without this key: half of the processors.
    #[schemars(with = "Option<i64>", range(min = 1, max = MAX_WORKERS))]
    pub workers: Option<Spanned<i64>>,
    /// Whether workers look for what they expect within microseconds, instead of falling asleep and being woken: a lone connection that is
    /// read is faster by that. They do so while something comes every 50 µs and nobody else wants the processor.
    #[schemars(extend("default" = true))]
    pub busy_poll: Option<bool>,
    /// How the agent carries connections that it need not read and whose rule has a `shortcut`; all others it relays.
    /// `auto`: in the kernel, if that passes the canary; `sender` and `egress`: in the kernel by this engine alone;
    /// `off`: it relays these, too.
    #[schemars(
        with = "Option<String>",
        extend("enum" = names(&SPLICES), "default" = "auto")
    )]
    pub splice: Option<Spanned<String>>,
    /// Bytes of the ring by which copies of packets come to the agent (`path = "tap"`), rounded up to a power of two. The
    /// default holds what 100,000 requests a second bring in 100 ms. It is made when a rule taps.
    #[schemars(
        with = "Option<i64>",
        range(min = MIN_TAP_RING_BYTES, max = MAX_TAP_RING_BYTES),
        extend("default" = DEFAULT_TAP_RING_BYTES)
    )]
    pub tap_ring_bytes: Option<Spanned<i64>>,
    /// Processor time that reading copies of packets may take, in percent of one processor. Beyond it some flows of the
    /// busiest rules are not read, each as a whole (`underpass_tap_left_out`), until it fits again.
    #[schemars(
        with = "Option<String>",
        extend("pattern" = "^(100|[1-9][0-9]?)%$", "default" = "25%")
    )]
    pub tap_cpu: Option<Spanned<String>>,
    /// Whether connections that are there before a rule which only reads them are read, too: at the start, when the
    /// policy changes, and when something is marked. Nothing happens to such a connection; it is joined where a frame
    /// begins.
    #[schemars(extend("default" = true))]
    pub adopt: Option<bool>,
    /// Share of new connections that a rule leaves alone, though it holds for them, where it only reads (`path` is `tap`) and does
    /// not protect: `underpass overhead` compares the others with them (`docs/overhead.md`). A rule can say another in its own
    /// `holdout`. It is read again with the rules.
    #[schemars(
        with = "Option<String>",
        regex(pattern = PERCENT_OF_CONNECTIONS),
        extend("title" = "share from 0% to 50%", "default" = format!("{}%", bounds::DEFAULT_HELD_OUT * 100.0))
    )]
    pub holdout: Option<Spanned<String>>,
}

/// The agent's log, on standard error or in systemd's journal. The format is read when the agent starts.
#[derive(Debug, Default, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("examples" = [{"format": "json", "level": "info,proxy=debug"}]))]
pub(super) struct RawLog {
    /// Form of each line: `text`, or `json`, an object; or `journald`: records in systemd's journal, with fields. Without this
    /// key: `journald` where standard error is a stream of the journal, as in a service, and `text` elsewhere. `underpass run
    /// --log-format` comes first.
    #[schemars(
        with = "Option<String>",
        extend("enum" = names(&log::FORMATS), "examples" = [LogFormat::Json.as_str()])
    )]
    pub format: Option<Spanned<String>>,
    /// Least severe level that is logged: `off`, `error`, `warn`, `info`, `debug` or `trace`; of parts of the program, another.
    /// `RUST_LOG` comes first, and `underpass log` changes it while the agent runs.
    #[schemars(
        with = "Option<String>",
        length(max = log::MAX_LEVEL_BYTES),
        extend("default" = "info", "examples" = ["info,proxy=debug"])
    )]
    pub level: Option<Spanned<String>>,
}

/// Collector of OpenTelemetry's (OTLP over gRPC), which is sent the agent's metrics; steps with `otlp = true` send log records
/// there, and `trace` spans, unless it names another.
#[derive(Debug, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("examples" = [{"endpoint": "http://127.0.0.1:4317", "metrics_interval": "15s"}]))]
pub(super) struct RawOtlp {
    /// Address of the collector: `http://HOST:PORT` or `https://HOST:PORT`.
    #[schemars(with = "String", extend("title" = "URL"))]
    pub endpoint: Spanned<String>,
    /// TLS towards the collector, with the keys of `upstream_tls`. Needed with `https`, and only there.
    pub tls: Option<tls::RawDialling>,
    /// `service.name` of everything that is sent.
    #[schemars(
        with = "Option<String>",
        length(min = 1, max = MAX_SERVICE_BYTES),
        extend("default" = SERVICE)
    )]
    pub service: Option<Spanned<String>>,
    /// Time between two messages with all metrics, cumulative since the start; `off`: none are sent.
    #[schemars(
        with = "Option<String>",
        regex(pattern = "^(off|[0-9]+(ms|s|m))$"),
        extend("title" = "`off`, or a duration from 1s to 60m", "default" = "1m")
    )]
    pub metrics_interval: Option<Spanned<String>>,
}

/// A rule. The first rule whose conditions all hold decides what happens to a connection. A condition that is left out
/// holds for every connection.
///
/// Conditions on the session (`user`, `keyspace`, `driver`, `driver_version`, `application`, `protocol`, `compression`,
/// `tls`) are known after the handshake only, so the agent decides such rules: see `docs/session-rules.md`.
#[derive(Debug, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("examples" = [{
    "name": "reports", "to": [":9042"], "process": ["spark*"], "action": "enrich", "fail": "closed"
}]))]
pub(super) struct RawRule {
    /// Name of the rule, in metrics, logs and `underpass flows`. Unique; not `default`, and not `mark-` and a number.
    #[schemars(with = "String", regex(pattern = "^[A-Za-z0-9._-]{1,63}$"))]
    pub name: Spanned<String>,
    /// Treatment of connections that the rule holds for. `bypass`: nothing; `observe`: the kernel measures them (with a
    /// condition on the session, where copies of the handshake tell it: see `path`); `enrich`: what passes is read; `deny`: they
    /// are refused.
    #[schemars(with = "String", extend("enum" = Action::ALL.map(Action::as_str)))]
    pub action: Spanned<String>,
    /// Treatment of connections while the agent is away. `open`: they go straight to the database; `closed`: they are
    /// refused (EPERM). A rule that protects (`deny`, or the steps `guard`, `audit`, `protect`, `throttle`) has to say which.
    #[schemars(
        with = "Option<String>",
        extend("enum" = names(&FAILS), "default" = Fail::Open.as_str())
    )]
    pub fail: Option<Spanned<String>>,
    /// `enforce`: the rule decides. `shadow`: it matches and counts (`underpass_connections_total`, outcome `shadowed`), nothing is
    /// done, and the rules behind it are asked. Only for connections that this host opens, and without a condition on the session.
    #[schemars(
        with = "Option<String>",
        extend("enum" = names(&bounds::RULE_MODES), "default" = "enforce")
    )]
    pub mode: Option<Spanned<String>>,
    /// The action of a rule that [`stands in shadow`](RawConfig::put_into_shadow).
    #[serde(skip)]
    #[schemars(skip)]
    pub in_shadow: Option<Action>,
    /// Labels that a host has to have, each one of the values (`[host]`); `name` is its name. On other hosts it is as if the rule were
    /// not there.
    #[serde(default)]
    #[schemars(
        with = "BTreeMap<String, super::host::RawWanted>",
        extend("examples" = [{"role": "db", "rack": ["r1", "r2"]}])
    )]
    pub hosts: BTreeMap<String, Spanned<toml::Value>>,
    /// Share of hosts that the rule is for, by a hash of their names: the same hosts for each rule, and a larger share has the
    /// hosts of a smaller one, too. Without this key: all.
    #[schemars(
        with = "Option<String>",
        regex(pattern = PERCENT_OF_HOSTS),
        extend("title" = "share from 0% to 100%", "examples" = ["10%"])
    )]
    pub rollout: Option<Spanned<String>>,
    /// Networks of clients on other hosts. Holds for connections that `[[incoming]]` or `[[xdp]]` brings.
    #[serde(default)]
    #[schemars(with = "Vec<String>", extend("title" = "list of networks", "examples" = [["10.1.0.0/16", "fd00::/8"]]))]
    pub from: Vec<Spanned<String>>,
    /// Addresses that clients dial: `NETWORK:PORT`, `NETWORK` or `:PORT`. IPv6 in brackets. `9042-9044` stands for three
    /// ports, of 128 at most. Or names, which are looked up in DNS and followed: `HOST:PORT`, or a service with SRV records,
    /// `_cql._tcp.DOMAIN`, or `cluster:NAME`, all nodes of a `[[cluster]]`; 128 in all rules at most. A rule holds for no address of a name that has never been resolved
    /// (`docs/names.md`).
    #[serde(default)]
    #[schemars(
        with = "Vec<String>",
        extend(
            "title" = "list of NETWORK:PORT and HOST:PORT",
            "examples" = [["10.1.0.0/16:9042", "[fd00::/8]:9042", ":9142-9144", "db.shop.svc:9042", "_cql._tcp.shop.example"]]
        )
    )]
    pub to: Vec<Spanned<String>>,
    /// Users of client processes, by id or by name. Names are looked up in `/etc/passwd` when the file is read.
    #[serde(default)]
    #[schemars(
        with = "Vec<u32>",
        extend(
            "title" = "list of user ids and names",
            "items" = {"type": ["integer", "string"], "minimum": 0, "maximum": u32::MAX},
            "examples" = [[1000, "root"]]
        )
    )]
    pub uid: Vec<Spanned<RawId>>,
    /// Groups of client processes, by id or by name. A process has the group that it runs with; others that its user is a
    /// member of do not count. Names are looked up in `/etc/group` when the file is read.
    #[serde(default)]
    #[schemars(
        with = "Vec<u32>",
        extend(
            "title" = "list of group ids and names",
            "items" = {"type": ["integer", "string"], "minimum": 0, "maximum": u32::MAX},
            "examples" = [[1000, "root"]]
        )
    )]
    pub gid: Vec<Spanned<RawId>>,
    /// Names of client processes as in `/proc/PID/comm`: exact, or the beginning and `*`.
    #[serde(default)]
    #[schemars(with = "Vec<String>", extend("examples" = [["java", "spark*"]]))]
    pub process: Vec<Spanned<String>>,
    /// Cgroups of client processes, each with everything below it, as in `/proc/PID/cgroup`.
    #[serde(default)]
    #[schemars(
        with = "Vec<String>",
        extend("title" = "list of absolute paths", "examples" = [["/system.slice/reports.service"]])
    )]
    pub cgroup: Vec<Spanned<String>>,
    /// Network namespaces of clients: a name in `/run/netns`, an inode's number, or an absolute path.
    #[serde(default)]
    #[schemars(with = "Vec<String>", extend("examples" = [["shop", "/proc/1/ns/net"]]))]
    pub netns: Vec<Spanned<String>>,
    /// Names of the clients' containers, as the container runtime says them. `*` stands for anything.
    #[serde(default)]
    #[schemars(
        with = "Vec<String>",
        length(max = MAX_CONTAINER_CONDITIONS),
        extend("examples" = [["cassandra-app-*"]])
    )]
    pub container: Vec<Spanned<String>>,
    /// Labels of the client's container or of its pod. Each has to hold; `*` in a value stands for anything.
    #[serde(default)]
    #[schemars(with = "BTreeMap<String, String>", extend("examples" = [{"app": "billing"}]))]
    pub labels: BTreeMap<String, Spanned<String>>,
    /// Namespaces of Kubernetes that the client's pod is in. `*` stands for anything. The container runtime tells it.
    #[serde(default)]
    #[schemars(
        with = "Vec<String>",
        length(max = MAX_POD_CONDITIONS),
        extend("examples" = [["shop"]])
    )]
    pub namespace: Vec<Spanned<String>>,
    /// Service accounts of the client's pod. `*` stands for anything. Only an API server tells it: needs `[policy]` with
    /// `source = "kubernetes"`.
    #[serde(default)]
    #[schemars(
        with = "Vec<String>",
        length(max = MAX_POD_CONDITIONS),
        extend("examples" = [["web"]])
    )]
    pub service_account: Vec<Spanned<String>>,
    /// Owners of the client's pod: `KIND/NAME`, where KIND is `deploy`, `sts`, `ds`, `rs`, `job` or `cronjob`, and `*` in the
    /// name stands for anything. Only an API server tells it, as for `service_account`.
    #[serde(default)]
    #[schemars(
        with = "Vec<String>",
        length(max = MAX_POD_CONDITIONS),
        extend("title" = "list of KIND/NAME", "examples" = [["deploy/shop"]])
    )]
    pub owner: Vec<Spanned<String>>,
    /// Condition on the session: users who log in. Exact, or the beginning and `*`.
    #[serde(default)]
    #[schemars(with = "Vec<String>", extend("examples" = [["etl*"]]))]
    pub user: Vec<Spanned<String>>,
    /// Condition on the session: keyspaces that the connection uses. Exact, or the beginning and `*`.
    #[serde(default)]
    #[schemars(with = "Vec<String>", extend("examples" = [["shop"]]))]
    pub keyspace: Vec<Spanned<String>>,
    /// Condition on the session: names of drivers. Exact, or the beginning and `*`.
    #[serde(default)]
    #[schemars(with = "Vec<String>", extend("examples" = [["DataStax*"]]))]
    pub driver: Vec<Spanned<String>>,
    /// Condition on the session: versions of drivers. Exact, or the beginning and `*`.
    #[serde(default)]
    #[schemars(with = "Vec<String>", extend("examples" = [["4.*"]]))]
    pub driver_version: Vec<Spanned<String>>,
    /// Condition on the session: names that applications give themselves. Exact, or the beginning and `*`.
    #[serde(default)]
    #[schemars(with = "Vec<String>", extend("examples" = [["batch"]]))]
    pub application: Vec<Spanned<String>>,
    /// Condition on the session: versions of the protocol.
    #[serde(default)]
    #[schemars(
        with = "Vec<String>",
        extend("items" = {"type": "string", "enum": Protocol::ALL.map(Protocol::as_str)}, "examples" = [["v4", "v5"]])
    )]
    pub protocol: Vec<Spanned<String>>,
    /// Condition on the session: compression.
    #[serde(default)]
    #[schemars(
        with = "Vec<String>",
        extend("items" = {"type": "string", "enum": Compression::ALL.map(Compression::as_str)}, "examples" = [["none"]])
    )]
    pub compression: Vec<Spanned<String>>,
    /// `true` or `false`: a condition on the session, whether the client encrypts. A table: the certificate with which
    /// TLS ends in the agent (`docs/tls.md`).
    #[schemars(with = "Option<super::tls::RawTls>")]
    pub tls: Option<Spanned<toml::Value>>,
    /// TLS towards the databases (`docs/tls.md`). Needs `action = "enrich"`.
    #[schemars(with = "Option<tls::RawDialling>")]
    pub upstream_tls: Option<Spanned<toml::Table>>,
    /// Databases behind the addresses in `to`, which then are virtual addresses, `IP:PORT` each.
    #[serde(default)]
    #[schemars(
        with = "Vec<String>",
        length(max = MAX_BACKENDS),
        extend("title" = "list of IP:PORT", "examples" = [["10.1.0.1:9042", "10.1.0.2:9042"]])
    )]
    pub backends: Vec<Spanned<String>>,
    /// How flows are read: `inline`, they come to the agent, and may be changed and held; `tap`, they are left alone, and the
    /// agent gets copies of their packets; `auto`, `tap` if every step only reads (`docs/pipelines.md`). Without this key
    /// `auto`, and `inline` in a rule without steps. Needs `action = "enrich"`, or a condition on the session, which copies of
    /// the handshake tell where nothing needs the bytes.
    #[schemars(
        with = "Option<String>",
        extend("enum" = ["auto", "tap", "inline"])
    )]
    pub path: Option<Spanned<String>>,
    /// Sides whose sockets the rule lets into the kernel's sockmaps: `true` the client's and the database's, `"client"` or
    /// `"database"` one of them, `false` nobody's. With `true`, bytes of a bypassed connection whose ends are both on this
    /// host skip TCP. With `action = "enrich"`, bytes skip TCP between the agent and each side that is let in and on this
    /// host. A connection that the agent has taken in and need not read is carried by the kernel where the side on
    /// this host is let in, and relayed otherwise. Applications can notice it: read `docs/decisions/0005-shortcut.md`
    /// first. Not with `action = "observe"` or `"deny"`.
    #[schemars(
        with = "Option<super::shortcut::RawShortcut>",
        extend("default" = false, "title" = "true, false, \"client\" or \"database\"")
    )]
    pub shortcut: Option<Spanned<toml::Value>>,
    /// How long later connections of the same process to the same address are bypassed without being asked for their
    /// session. Needs `action = "bypass"`, and a condition on the session here or in a rule above.
    #[schemars(
        with = "Option<String>",
        regex(pattern = "^[0-9]+[smh]$"),
        extend("title" = "duration", "x-min" = "1s", "x-max" = "24h")
    )]
    pub remember: Option<Spanned<String>>,
    /// Fraction of connections that the rule enriches; the others are bypassed. Needs `action = "enrich"`. Without this
    /// key: all.
    #[schemars(
        with = "Option<f64>",
        range(max = 1.0),
        extend("exclusiveMinimum" = 0.0, "examples" = [0.01])
    )]
    pub sample: Option<Spanned<f64>>,
    /// Share of new connections that the rule leaves alone, though it holds for them, so that `underpass overhead` can compare
    /// the others with them (`docs/overhead.md`). Needs `action = "enrich"`; not in a rule that protects, with `fail = "closed"`, a
    /// condition on the session, `from`, `shortcut`, `tls` or `upstream_tls`. Without this key that of `[agent]` where the rule
    /// only reads, and does not `mirror`; none elsewhere.
    #[schemars(
        with = "Option<String>",
        regex(pattern = PERCENT_OF_CONNECTIONS),
        extend("title" = "share from 0% to 50%", "examples" = ["5%"])
    )]
    pub holdout: Option<Spanned<String>>,
    /// Days and hours during which the rule is there. Outside of them it is as if the file did not have it: new connections
    /// meet the rules behind it, and running ones stay what they are, as after a reload.
    #[schemars(with = "Option<WindowSettings>")]
    pub when: Option<Spanned<WindowSettings>>,
    /// Bound on the connections that one client has by this rule at the same time. Not with `action = "deny"` or a condition on
    /// the session; with `from` by address.
    #[schemars(with = "Option<RawLimit>")]
    pub limit: Option<Spanned<RawLimit>>,
    /// When a rule that observes has new connections enriched. Needs `action = "observe"`, and no condition on the session.
    #[schemars(with = "Option<RawTrigger>")]
    pub trigger: Option<Spanned<RawTrigger>>,
    /// Steps that requests pass, in this order (`docs/pipelines.md`). Needs `action = "enrich"`, or a `trigger`.
    #[serde(default)]
    #[schemars(with = "Vec<schema::Step>", length(max = bounds::MAX_STEPS))]
    pub pipeline: Vec<Spanned<toml::Table>>,
}

/// Bound on the connections that one client has by a rule at the same time. A further `connect()` is refused (EPERM; with
/// `per = "address"` by a reset), whatever `fail` says. A socket counts from its `connect()` until it is closed, that of a
/// client on another host while it is established.
#[derive(Debug, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("examples" = [{"connections": 64, "per": "process"}]))]
pub(super) struct RawLimit {
    /// Connections, at most.
    #[schemars(with = "i64", range(min = 1, max = bounds::MAX_LIMIT))]
    pub connections: Spanned<i64>,
    /// Kind of client that is counted. `uid`: all processes of a user; `process`: a process; `address`: an address of another
    /// host, in a rule with `from`.
    #[schemars(
        with = "Option<String>",
        extend("enum" = names(&bounds::LIMITS_PER), "default" = "uid")
    )]
    pub per: Option<Spanned<String>>,
}

/// When a rule that observes has new connections enriched: while responses are slow, and for a while after.
#[derive(Debug, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("examples" = [{"p99_ms": 50, "for": "30s"}]))]
pub(super) struct RawTrigger {
    /// 99th percentile of the latency, in milliseconds, above which new connections are enriched. It is taken over the
    /// responses of a second, if there are 20 or more.
    #[schemars(range(min = bounds::LEAST_P99_MS, max = bounds::MOST_P99_MS))]
    pub p99_ms: f64,
    /// How long new connections are enriched after the last slow second.
    #[serde(rename = "for")]
    #[schemars(
        regex(pattern = "^[0-9]+[smhd]$"),
        extend("title" = "duration", "x-min" = "1s", "x-max" = "7d")
    )]
    pub lasts: String,
}

/// Treatment of connections that no rule holds for.
#[derive(Debug, Default, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("examples" = [{"action": "bypass"}]))]
pub(super) struct RawDefault {
    /// Action, as in a rule.
    #[schemars(
        with = "Option<String>",
        extend("enum" = Action::ALL.map(Action::as_str), "default" = Action::Bypass.as_str())
    )]
    pub action: Option<Spanned<String>>,
    /// Treatment of connections while the agent is away, as in a rule.
    #[schemars(
        with = "Option<String>",
        extend("enum" = names(&FAILS), "default" = Fail::Open.as_str())
    )]
    pub fail: Option<Spanned<String>>,
}

/// Connections from other hosts to databases on this host. The agent takes those that rules with `to` or `from` hold
/// for.
#[derive(Debug, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("examples" = [{"netns": "/run/netns/db", "client_address": "keep"}]))]
pub(super) struct RawIncoming {
    /// Network namespace of the databases. Without this key: the agent's own.
    #[schemars(
        with = "Option<String>",
        extend("title" = "absolute path", "examples" = ["/run/netns/db"])
    )]
    pub netns: Option<Spanned<String>>,
    /// Address from which the database sees the connection. `keep`: the client's address and port; `agent`: the
    /// agent's.
    #[schemars(
        with = "Option<String>",
        extend("enum" = names(&bounds::CLIENT_ADDRESSES), "default" = "keep")
    )]
    pub client_address: Option<Spanned<String>>,
}

/// How backends are checked, and what happens to connections of a backend that is found dead.
#[derive(Debug, Default, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("examples" = [{"interval": "1s", "fall": 2, "established": "leave"}]))]
pub(super) struct RawHealth {
    /// Time between two checks of a backend.
    #[schemars(
        with = "Option<String>",
        regex(pattern = DURATION),
        extend("title" = "duration", "default" = "1s", "x-min" = "100ms", "x-max" = "60s")
    )]
    pub interval: Option<Spanned<String>>,
    /// Time that a check may take. `fall` of them have to fit into nine tenths of `interval`. Without this key: two
    /// fifths of `interval`, or what fits.
    #[schemars(
        with = "Option<String>",
        regex(pattern = DURATION),
        extend("title" = "duration", "examples" = ["400ms"])
    )]
    pub timeout: Option<Spanned<String>>,
    /// Good checks in a row that bring a backend back.
    #[schemars(with = "Option<i64>", range(min = 1, max = bounds::MOST_IN_A_ROW), extend("default" = 2))]
    pub rise: Option<Spanned<i64>>,
    /// Failed checks in a row that take a backend out.
    #[schemars(with = "Option<i64>", range(min = 1, max = bounds::MOST_IN_A_ROW), extend("default" = 2))]
    pub fall: Option<Spanned<i64>>,
    /// Time after which a backend that comes back has its full share of new connections.
    #[schemars(
        with = "Option<String>",
        regex(pattern = DURATION),
        extend("title" = "duration", "default" = "10s", "x-min" = "0ms", "x-max" = "3600s")
    )]
    pub slow_start: Option<Spanned<String>>,
    /// `true`: a backend has to answer OPTIONS in CQL; `false`: to accept a connection is enough, as for databases
    /// that speak TLS only.
    #[schemars(extend("default" = true))]
    pub cql: Option<bool>,
    /// Treatment of established connections of a backend that is found dead. `leave`: nothing; `reset`: they are
    /// reset.
    #[schemars(
        with = "Option<String>",
        extend("enum" = names(&bounds::ESTABLISHED), "default" = "leave")
    )]
    pub established: Option<Spanned<String>>,
}

/// Sockets of container runtimes. The agent asks them if a rule names containers or pods.
#[derive(Debug, Default, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("examples" = [{"docker": ["/run/podman/podman.sock"], "cri": []}]))]
pub(super) struct RawContainers {
    /// Sockets that speak Docker's API. Those that do not exist are passed over. Both lists together have at most 8.
    #[schemars(
        with = "Option<Vec<String>>",
        length(max = MAX_RUNTIMES),
        extend("title" = "list of absolute paths", "default" = bounds::default_paths(Speaks::Docker))
    )]
    pub docker: Option<Vec<Spanned<String>>>,
    /// Sockets that speak the Container Runtime Interface (containerd, CRI-O).
    #[schemars(
        with = "Option<Vec<String>>",
        length(max = MAX_RUNTIMES),
        extend("title" = "list of absolute paths", "default" = bounds::default_paths(Speaks::Cri))
    )]
    pub cri: Option<Vec<Spanned<String>>>,
    /// Labels that records of `audit`, `slowlog` and `trace`, and metrics of `stats`, have of a client's container and pod, beside names. With
    /// this key runtimes are asked whatever rules say; so they are where the policy is in Kubernetes.
    #[serde(default)]
    #[schemars(
        with = "Vec<String>",
        length(max = bounds::MAX_RECORD_LABELS),
        extend("title" = "list of keys of labels", "examples" = [["app.kubernetes.io/name", "team"]])
    )]
    pub record_labels: Vec<Spanned<String>>,
}

/// Network interfaces on which an XDP program applies the rules that have `from` or `to`, before the kernel's own
/// network stack sees a packet (`docs/decisions/0008-edge.md`).
#[derive(Debug, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("examples" = [{"interface": "eth0", "forward": "dsr", "syn_rate": 100}]))]
pub(super) struct RawXdp {
    /// Name of the interface.
    #[schemars(with = "String", length(min = 1, max = bounds::MAX_NAME_BYTES))]
    pub interface: Spanned<String>,
    /// Where the program is attached. `native`: in the driver; `generic`: behind it, which every driver can; `auto`:
    /// in the driver if it can.
    #[schemars(
        with = "Option<String>",
        extend("enum" = names(&bounds::MODES), "default" = "auto")
    )]
    pub mode: Option<Spanned<String>>,
    /// Forwards connections to the backends of a rule that has some. `snat`: answers come back through this host;
    /// `dsr`: the database answers the client directly; `off`: nothing is forwarded.
    #[schemars(
        with = "Option<String>",
        extend("enum" = names(&bounds::FORWARDS), "default" = "off")
    )]
    pub forward: Option<Spanned<String>>,
    /// Connections that one source address may open in a second. Without this key: no limit.
    #[schemars(with = "Option<i64>", range(min = 1, max = bounds::MAX_SYN_RATE))]
    pub syn_rate: Option<Spanned<i64>>,
    /// Connections that one source address may open at once. Needs `syn_rate`, which is the default.
    #[schemars(with = "Option<i64>", range(min = 1, max = bounds::MAX_SYN_RATE))]
    pub syn_burst: Option<Spanned<i64>>,
}

/// A value that is in no file.
pub(super) fn spanned<T>(value: T) -> Spanned<T> {
    Spanned::new(0..0, value)
}

impl RawRule {
    /// Makes a rule without conditions.
    pub(super) fn new(name: &str, action: &str) -> Self {
        Self {
            name: spanned(name.to_owned()),
            hosts: BTreeMap::new(),
            rollout: None,
            from: Vec::new(),
            to: Vec::new(),
            uid: Vec::new(),
            gid: Vec::new(),
            process: Vec::new(),
            cgroup: Vec::new(),
            netns: Vec::new(),
            container: Vec::new(),
            labels: BTreeMap::new(),
            namespace: Vec::new(),
            service_account: Vec::new(),
            owner: Vec::new(),
            user: Vec::new(),
            keyspace: Vec::new(),
            driver: Vec::new(),
            driver_version: Vec::new(),
            application: Vec::new(),
            protocol: Vec::new(),
            compression: Vec::new(),
            tls: None,
            upstream_tls: None,
            backends: Vec::new(),
            action: spanned(action.to_owned()),
            fail: None,
            mode: None,
            in_shadow: None,
            path: None,
            shortcut: None,
            remember: None,
            sample: None,
            holdout: None,
            when: None,
            limit: None,
            trigger: None,
            pipeline: Vec::new(),
        }
    }
}

/// A file of `conf.d`: lists, whose items follow those of the files before it. What there is once is in the main file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawFurther {
    #[serde(default)]
    rule: Vec<Spanned<RawRule>>,
    #[serde(default)]
    incoming: Vec<Spanned<RawIncoming>>,
    #[serde(default)]
    xdp: Vec<RawXdp>,
}

/// A file of a fleet's policy.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawFleets {
    #[serde(default)]
    rule: Vec<Spanned<RawRule>>,
}

/// Tables of which there is one, in the main file.
const MAIN_ONLY: [&str; 10] = [
    "agent",
    "log",
    "host",
    "policy",
    "limits",
    "otlp",
    "default",
    "health",
    "containers",
    "cluster",
];

impl RawConfig {
    /// Adds the lists of a further file.
    pub(super) fn extend(&mut self, further: RawFurther) {
        self.rule.extend(further.rule);
        self.incoming.extend(further.incoming);
        self.xdp.extend(further.xdp);
    }
}

/// Parses the main file.
pub(super) fn parse(text: &str) -> Result<RawConfig, Flaw> {
    from_toml(text)
}

/// Parses a file of `conf.d`.
pub(super) fn parse_further(text: &str) -> Result<RawFurther, Flaw> {
    from_toml(text).map_err(|mut flaw| {
        let only = "files of conf.d have `[[rule]]`, `[[incoming]]` and `[[xdp]]`, all else is in the main file";
        for table in MAIN_ONLY {
            if flaw.message.starts_with(&format!("unknown field `{table}`")) {
                flaw.message = format!("{table}: {only}");
            }
        }
        flaw
    })
}

/// Parses a file of the fleet's policy: it has rules alone.
pub(super) fn parse_fleets(text: &str) -> Result<RawFurther, Flaw> {
    let further = from_toml::<RawFleets>(text).map_err(|mut flaw| {
        let only = "files of a fleet's policy have `[[rule]]`, all else is a host's own";
        for table in MAIN_ONLY.iter().chain(&["incoming", "xdp"]) {
            if flaw
                .message
                .starts_with(&format!("unknown field `{table}`"))
            {
                flaw.message = format!("{table}: {only}");
            }
        }
        flaw
    })?;
    Ok(RawFurther {
        rule: further.rule,
        incoming: Vec::new(),
        xdp: Vec::new(),
    })
}

fn from_toml<T: serde::de::DeserializeOwned>(text: &str) -> Result<T, Flaw> {
    toml::from_str(text).map_err(|e| {
        let start = text.len() - text.trim_start().len();
        Flaw::new(e.span().unwrap_or(start..start), said_by_parser(&e))
    })
}
