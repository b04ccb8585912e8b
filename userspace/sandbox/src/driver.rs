//! A real driver under load, in a program that knows how long each of its requests took.
//!
//! Here and not in the test that uses it, because this crate is optimised in debug builds, too: a
//! driver that is busy measures itself.

use std::{
    net::SocketAddr,
    num::NonZeroUsize,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::Context;
use scylla::{
    client::{PoolSize, session::Session, session_builder::SessionBuilder},
    statement::prepared::PreparedStatement,
};

/// Every so many of its requests are answered with an error.
pub const ERROR_EVERY: usize = 50;

/// Longer than any run: all that is asked meanwhile is asked by the program.
const REFRESH_EVERY: Duration = Duration::from_secs(3_600);

/// Latencies and errors that the program saw.
#[derive(Debug, Default)]
pub struct Seen {
    /// Latency of each request, in µs, in no order.
    pub took_us: Vec<u32>,
    /// Requests that were answered with an error.
    pub errors: usize,
}

/// A session, and what it asks.
#[derive(Debug)]
pub struct Client {
    session: Session,
    select: PreparedStatement,
}

impl Client {
    /// A session of so many connections, and the driver's own one, to a database in which it makes
    /// a table.
    ///
    /// # Errors
    /// The driver's.
    pub async fn connect(addr: SocketAddr, connections: usize) -> anyhow::Result<Self> {
        // Another session's: a change of the schema has the driver ask for it, some time later.
        let session = open(addr, connections).await?;
        for text in [
            "CREATE KEYSPACE IF NOT EXISTS ks WITH replication = \
             {'class': 'SimpleStrategy', 'replication_factor': 1}",
            "CREATE TABLE IF NOT EXISTS ks.t (k int PRIMARY KEY, v text)",
            "INSERT INTO ks.t (k, v) VALUES (1, 'one')",
        ] {
            session.query_unpaged(text, ()).await?;
        }
        drop(session);
        let session = open(addr, connections).await?;
        let select = session.prepare("SELECT v FROM ks.t WHERE k = ?").await?;
        Ok(Self { session, select })
    }

    /// Sends a request, and returns whether it was answered with an error, as each [`ERROR_EVERY`]th is.
    async fn ask(&self, number: usize) -> anyhow::Result<bool> {
        if number.is_multiple_of(ERROR_EVERY) {
            let absent = "SELECT v FROM ks.absent WHERE k = 1";
            return Ok(self.session.query_unpaged(absent, ()).await.is_err());
        }
        self.session.execute_unpaged(&self.select, (1,)).await?;
        Ok(false)
    }
}

async fn open(addr: SocketAddr, connections: usize) -> anyhow::Result<Session> {
    let connections = NonZeroUsize::new(connections).context("no connections")?;
    let session = SessionBuilder::new()
        .known_node_addr(addr)
        .pool_size(PoolSize::PerHost(connections))
        .cluster_metadata_refresh_interval(REFRESH_EVERY)
        .build()
        .await;
    Ok(session?)
}

/// Makes so many requests: `in_flight` tasks that each ask again when they are answered.
///
/// # Errors
/// A request fails that should not.
pub async fn drive(
    client: &Arc<Client>,
    requests: usize,
    in_flight: usize,
) -> anyhow::Result<Seen> {
    let tasks: Vec<_> = (0..in_flight)
        .map(|task| tokio::spawn(ask_by_turns(Arc::clone(client), task, requests, in_flight)))
        .collect();
    let mut all = Seen::default();
    for task in tasks {
        let seen = task.await??;
        all.took_us.extend(seen.took_us);
        all.errors += seen.errors;
    }
    Ok(all)
}

async fn ask_by_turns(
    client: Arc<Client>,
    first: usize,
    requests: usize,
    step: usize,
) -> anyhow::Result<Seen> {
    let mut seen = Seen::default();
    for number in (first..requests).step_by(step) {
        let begin = Instant::now();
        let is_error = client.ask(number).await?;
        seen.took_us.push(begin.elapsed().as_micros() as u32);
        seen.errors += usize::from(is_error);
    }
    Ok(seen)
}
