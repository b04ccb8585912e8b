//! `[agent]` and `[log]`.

use dataplane::{
    DEFAULT_TAP_RING_BYTES, MAX_NAMESPACES, MAX_TAP_RING_BYTES, MIN_TAP_RING_BYTES, edge,
};
use serde::Deserialize;
use toml::Spanned;

use crate::{
    config::{
        bounds::{
            self, DEFAULT_ADMIN_SOCKET, DEFAULT_CONTROL, DEFAULT_MAX_FLOWS, DEFAULT_SHARE,
            DURATION, MAX_ADMIN_HOSTS, MAX_FLOWS, MAX_WORKERS, PERCENT_OF_CONNECTIONS, SPLICES,
            USUAL_ADMIN, USUAL_METRICS, names,
        },
        value::MAX_SOCKET_PATH_BYTES,
    },
    log::{self, LogFormat},
};

/// Settings of the agent itself. The agent reads them when it starts, as it does `[[incoming]]` and `[containers]`; all
/// other tables are read again when the file changes, and on SIGHUP.
#[derive(Debug, Default, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("examples" = [{"admin": "127.0.0.1:9180", "max_flows": 20_000}]))]
pub(in crate::config) struct RawAgent {
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
    /// read is faster by that. They do so while something for one flow comes every 50 µs and nobody else wants the processor.
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
    /// Bytes of the rings by which copies of packets come to the agent (`path = "tap"`): one for each processor, up to four, and
    /// so many bytes together, rounded up to a power of two; before each of 1 MiB and more one of 256 KiB is used. The default holds
    /// what 100,000 requests a second bring in 100 ms, where the processors share them. They are made when a rule taps.
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
pub(in crate::config) struct RawLog {
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
