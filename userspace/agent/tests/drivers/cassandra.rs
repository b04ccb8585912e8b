//! An agent before the node that `cargo xtask test` provides.

use std::path::Path;

use sandbox::{Agent, Cgroup};

pub use super::provided::Cassandra;

/// The one rule's name.
pub const RULE: &str = "cassandra";

/// Settings with so few flows that no host warns that it allows fewer.
const SETTINGS: &str = "max_flows = 1000";

/// Everything that changes no result, and what would refuse if it were to. The second guard has to
/// know each statement's keyspace. Nobody takes the spans.
pub const PIPELINE: &str = "pipeline = [
  { transform = \"throttle\", rate = 1000000, mode = \"overloaded\" },
  { transform = \"guard\", refuse = [\"unknown\", \"roles\"], max_in = 100000 },
  { transform = \"guard\", tables = [\"underpass_*\"], mode = \"shadow\" },
  { transform = \"consistency\", at_least = \"ONE\" },
  { transform = \"paging\", at_most = 5000 },
  { transform = \"rewrite\", addresses = \"dialled\" },
  { transform = \"lookup\" },
  { transform = \"tag\", service = \"suite\" },
  { transform = \"tracing\", one_in = 100 },
  { transform = \"stats\" },
  { transform = \"slowlog\", over = \"20ms\" },
  { transform = \"count\" },
  { transform = \"audit\", file = \"$FOLDER/audit\", statement = true },
  { transform = \"debug\", file = \"$FOLDER/debug\", values = true, per_second = 100000 },
  { transform = \"trace\", endpoint = \"http://127.0.0.1:1\", sample = 1 },
]";

/// [`PIPELINE`] of a rule that lets both sides' sockets into a sockmap: what the agent exchanges with them skips TCP.
pub fn past_tcp() -> String {
    format!("{PAST_TCP}\n{PIPELINE}")
}

/// The line of such a rule.
pub const PAST_TCP: &str = "shortcut = true";

impl Cassandra {
    /// An agent whose one rule is for connections from `cgroup` to this node.
    pub fn agent<'a>(&self, cgroup: &'a Cgroup, action: &str, fail: &str) -> Agent<'a> {
        self.agent_with(cgroup, action, fail, "")
    }

    /// With more in its rule.
    pub fn agent_with<'a>(
        &self,
        cgroup: &'a Cgroup,
        action: &str,
        fail: &str,
        more: &str,
    ) -> Agent<'a> {
        self.agent_with_settings(cgroup, "", action, fail, more)
    }

    /// With settings of the agent itself, too.
    pub fn agent_with_settings<'a>(
        &self,
        cgroup: &'a Cgroup,
        settings: &str,
        action: &str,
        fail: &str,
        more: &str,
    ) -> Agent<'a> {
        let policy = format!(
            "[[rule]]\nname = {RULE:?}\nto = [\"{}\"]\naction = {action:?}\nfail = {fail:?}\n{more}\n",
            self.addr
        );
        let binary = Path::new(env!("CARGO_BIN_EXE_underpass"));
        let settings = format!("{SETTINGS}\n{settings}");
        Agent::start(binary, None, cgroup, &settings, &policy).unwrap()
    }
}
