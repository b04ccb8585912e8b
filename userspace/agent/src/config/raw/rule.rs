//! `[[rule]]`.

use std::collections::BTreeMap;

use policy::{
    Action, Compression, Fail, MAX_BACKENDS, MAX_CONTAINER_CONDITIONS, MAX_POD_CONDITIONS,
    Protocol, WindowSettings,
};
use serde::Deserialize;
use toml::Spanned;

use crate::config::{
    bounds::{self, FAILS, PERCENT_OF_CONNECTIONS, names},
    schema,
    users::RawId,
};

/// `1%`, `0.5%`, and no more than 100%: see [`crate::config::host`].
const PERCENT_OF_HOSTS: &str = "^0*(100([.]0+)?|[0-9]{1,2}([.][0-9]+)?)%$";

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
pub(in crate::config) struct RawRule {
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
        with = "BTreeMap<String, crate::config::host::RawWanted>",
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
    #[schemars(with = "Option<crate::config::tls::RawTls>")]
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
        with = "Option<crate::config::shortcut::RawShortcut>",
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
pub(in crate::config) struct RawLimit {
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
pub(in crate::config) struct RawTrigger {
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

/// A value that is in no file.
pub(in crate::config) fn spanned<T>(value: T) -> Spanned<T> {
    Spanned::new(0..0, value)
}

impl RawRule {
    /// Makes a rule without conditions.
    pub(in crate::config) fn new(name: &str, action: &str) -> Self {
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
