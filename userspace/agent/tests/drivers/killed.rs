//! The agent is killed in the middle of a driver's work: what the application sees of it.

use std::time::{Duration, Instant};

use sandbox::Cgroup;
use scylla::{client::session::Session, statement::prepared::PreparedStatement};
use tokio::time;

use super::{
    cassandra::Cassandra,
    rust::{CONTROL_AND_POOL, clients, connect, flows, in_cgroup, sockets},
    workload::{create_keyspace, run},
};

/// A driver may wait before it dials again; the Rust driver at first 50 ms, then twice as long
/// each time.
const RECOVERY_LIMIT: Duration = Duration::from_secs(10);
/// Statements in a row after which all is well again.
const WELL: u32 = 50;
/// Between two statements.
const PAUSE: Duration = Duration::from_millis(10);
/// How long nothing may get through under `fail = "closed"`.
const CLOSED_FOR: Duration = Duration::from_secs(2);
/// A driver whose database is away may take this long for one statement's failure.
const STATEMENT_LIMIT: Duration = Duration::from_secs(2);

#[test]
fn fail_open_goes_on_untouched() {
    let test = "killed::fail_open_goes_on_untouched";
    let Some(cassandra) = Cassandra::provided(test) else {
        return;
    };
    let cgroup = Cgroup::new().unwrap();
    let mut agent = cassandra.agent(&cgroup, "enrich", "open");
    in_cgroup(&cgroup, async || {
        let worker = Worker::start(&cassandra, test, "underpass_killed_open").await;
        assert!(!flows(&agent, &cassandra).is_empty());
        agent.kill().unwrap();
        worker.recovers().await;
        // Straight to the database: it is what the kernel has for the other end.
        for socket in sockets(&worker.session, test).await {
            assert_eq!(socket.remote, cassandra.addr, "{socket:?}");
        }
        worker.end().await;
    });
}

#[test]
fn fail_closed_waits_for_the_agent() {
    let test = "killed::fail_closed_waits_for_the_agent";
    let Some(cassandra) = Cassandra::provided(test) else {
        return;
    };
    let cgroup = Cgroup::new().unwrap();
    let mut agent = cassandra.agent(&cgroup, "enrich", "closed");
    in_cgroup(&cgroup, async || {
        let worker = Worker::start(&cassandra, test, "underpass_killed_closed").await;
        agent.kill().unwrap();
        let until = Instant::now() + CLOSED_FOR;
        while Instant::now() < until {
            assert!(!worker.select().await, "a statement went past the agent");
            time::sleep(PAUSE).await;
        }
        agent.restart().unwrap();
        worker.recovers().await;
        for socket in sockets(&worker.session, test).await {
            assert_ne!(socket.remote, cassandra.addr, "{socket:?}");
        }
        worker.end().await;
    });
}

/// An application that keeps asking.
struct Worker {
    name: &'static str,
    session: Session,
    select: PreparedStatement,
    keyspace: &'static str,
}

impl Worker {
    async fn start(cassandra: &Cassandra, name: &'static str, keyspace: &'static str) -> Self {
        let session = connect(cassandra, name).await.unwrap();
        run(&session, &format!("DROP KEYSPACE IF EXISTS {keyspace}")).await;
        create_keyspace(&session, keyspace).await;
        run(&session, "CREATE TABLE t (id int PRIMARY KEY, v int)").await;
        run(&session, "INSERT INTO t (id, v) VALUES (1, 7)").await;
        let select = session.prepare("SELECT v FROM t WHERE id = ?").await;
        let worker = Self {
            name,
            session,
            select: select.unwrap(),
            keyspace,
        };
        for _ in 0..WELL {
            assert!(worker.select().await);
        }
        worker
    }

    /// Whether one statement succeeds, with the right answer.
    async fn select(&self) -> bool {
        let answer = self.session.execute_unpaged(&self.select, (1,));
        let Ok(Ok(rows)) = time::timeout(STATEMENT_LIMIT, answer).await else {
            return false;
        };
        let row: (i32,) = rows.into_rows_result().unwrap().first_row().unwrap();
        assert_eq!(row.0, 7);
        true
    }

    async fn end(&self) {
        run(&self.session, &format!("DROP KEYSPACE {}", self.keyspace)).await;
    }

    /// Keeps asking until [`WELL`] statements in a row have succeeded, and the driver has dialled again all that it
    /// has lost.
    async fn recovers(&self) {
        let start = Instant::now();
        loop {
            if self.select().await {
                break;
            }
            assert!(start.elapsed() < RECOVERY_LIMIT, "no statement succeeds");
            time::sleep(PAUSE).await;
        }
        for n in 0..WELL {
            assert!(self.select().await, "statement {n} after the recovery");
        }
        while clients(&self.session, self.name).await.len() < CONTROL_AND_POOL {
            assert!(start.elapsed() < RECOVERY_LIMIT, "a connection is missing");
            time::sleep(PAUSE).await;
        }
    }
}
