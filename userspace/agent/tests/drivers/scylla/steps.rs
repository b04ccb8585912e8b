//! The steps that the suites go through, and what the operator sees behind them.

use std::{
    net::{TcpListener, TcpStream},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use sandbox::{Agent, Cgroup, skip};

use super::Server;
use crate::{cassandra::RULE, seen};

const PROGRAM: &str = "redis-server";

/// The level that `consistency` puts into every request.
const TWO: u16 = 2;

/// Rows of a page that `paging` leaves.
pub const PAGE: i32 = 7;

/// A redis-server, until it is dropped.
struct Redis(Child, u16);

impl Redis {
    fn start() -> Self {
        let port = {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            listener.local_addr().unwrap().port()
        };
        let mut command = Command::new(PROGRAM);
        command.args(["--bind", "127.0.0.1", "--port", &port.to_string()]);
        command.args(["--save", "", "--appendonly", "no", "--dir", "/tmp"]);
        let redis = Self(command.stdout(Stdio::null()).spawn().unwrap(), port);
        let deadline = Instant::now() + super::PATIENCE;
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(Instant::now() < deadline, "Redis does not listen");
            thread::sleep(Duration::from_millis(5));
        }
        redis
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The steps that stand between a client and what the database calls its keyspace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Last {
    /// `rewrite`: the database calls it otherwise.
    Rewrite,
    /// `cache`, which cannot stand behind such a `rewrite`.
    Cache,
}

/// Steps that look at what the extensions change.
const STEPS: &str = "
  { transform = \"guard\", refuse = [\"truncate\", \"unknown\"], not_tables = [\"app.closed\"] },
  { transform = \"consistency\", exactly = \"TWO\" },
  { transform = \"paging\", at_most = 7 },
  { transform = \"tag\", service = \"suite\" },
  { transform = \"throttle\", rate = 1000000 },
  { transform = \"stats\" },
";

/// Runs a suite in a cgroup whose flows go through the steps, and looks at what has become of its requests. `suite` is
/// given the server.
pub fn through(
    test: &str,
    extensions: &[&'static str],
    last: Last,
    suite: impl FnOnce(&Server, &Cgroup),
) {
    if Command::new(PROGRAM).arg("--version").output().is_err() {
        return skip::skip(test, "redis-server is not installed");
    }
    let redis = Redis::start();
    let (keyspace, step) = match last {
        Last::Rewrite => (
            "app_v2",
            "{ transform = \"rewrite\", keyspaces = { app = \"app_v2\" } }".to_owned(),
        ),
        Last::Cache => (
            "app",
            format!(
                // Beside other suites a Redis may not get its turn for a while, and is not away.
                "{{ transform = \"cache\", redis = \"127.0.0.1:{}\", tables = [\"app.cached\"], ttl = \"60s\", timeout = \"5s\" }}",
                redis.1
            ),
        ),
    };
    let server = Server::start(extensions, keyspace);
    let cgroup = Cgroup::new().unwrap();
    let more = format!("pipeline = [{STEPS}  {step},\n]");
    let agent = server.access.agent_with(&cgroup, "enrich", "closed", &more);
    if last == Last::Cache {
        agent.wait_for_log("the cache is there").unwrap();
    }
    suite(&server, &cgroup);
    seen::all_enriched(&agent);
    all_edited(&agent, last);
}

/// Every step has read every request that it looks at.
fn all_edited(agent: &Agent<'_>, last: Last) {
    let metrics = agent.metrics().unwrap();
    let unseen = metrics
        .iter()
        .filter(|(sample, n)| sample.starts_with("underpass_pipeline_un") && **n > 0.0);
    assert_eq!(unseen.collect::<Vec<_>>(), []);
    let transforms = seen::transforms(agent);
    assert!(transforms["changed"] > 0.0, "{transforms:?}");
    assert!(transforms["refused"] > 0.0, "{transforms:?}");
    if last == Last::Rewrite {
        return;
    }
    let sample = format!("underpass_cache_reads_total{{outcome=\"hit\",rule=\"{RULE}\"}}");
    assert!(metrics[&sample] > 0.0, "the cache has answered nothing");
}

/// A connection has asked at the level that the step says.
pub async fn wait_for_raised(server: &Server) {
    server
        .wait_for("somebody asks at TWO", |clients| {
            clients.iter().any(|client| client.consistency == Some(TWO))
        })
        .await;
}
