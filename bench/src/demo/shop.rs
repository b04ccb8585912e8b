//! An application: the `scylla` driver, two tables, every common kind of statement.

use std::{
    io::{BufRead, Write, stdin, stdout},
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::Context;
use scylla::{
    client::{session::Session, session_builder::SessionBuilder},
    statement::{
        batch::{Batch, BatchType},
        prepared::PreparedStatement,
    },
};
use tokio::{runtime::Runtime, task::JoinSet};

use load::order::Credentials;

use super::order::{Answer, Hello, Reply, Work};

/// The keyspace in which the application works.
pub const KEYSPACE: &str = "underpass_demo";

/// The number of customers, and of orders of each: enough that tasks seldom meet.
const CUSTOMERS: i32 = 1_000;
const ORDERS: i32 = 100;

/// Runs `underpass-bench shop`: carries out the orders on standard input until that ends. An error
/// has been reported to the parent.
pub fn serve() -> anyhow::Result<()> {
    let served = obey();
    if let Err(error) = &served {
        answer(&Reply::Failed(format!("{error:#}")))?;
    }
    served
}

fn obey() -> anyhow::Result<()> {
    let mut lines = stdin().lock().lines();
    let Some(hello) = lines.next() else {
        return Ok(());
    };
    let Hello {
        target,
        credentials,
        tasks,
    } = serde_json::from_str(&hello?)?;
    let mut client = Client::connect(target, credentials.as_ref(), tasks)?;
    answer(&Reply::Done(Answer::empty()?))?;
    for line in lines {
        let work: Work = serde_json::from_str(&line?)?;
        answer(&Reply::Done(client.work(work.seconds)?))?;
    }
    Ok(())
}

fn answer(reply: &Reply) -> anyhow::Result<()> {
    let mut line = serde_json::to_string(reply)?;
    line.push('\n');
    let mut stdout = stdout().lock();
    stdout.write_all(line.as_bytes())?;
    stdout.flush().context("nobody reads our answers")
}

/// A session that stays open.
struct Client {
    runtime: Runtime,
    shop: Arc<Shop>,
    tasks: usize,
    /// The number of calls of [`Client::work`]: each works on other customers.
    rounds: i32,
}

struct Shop {
    session: Session,
    add_order: PreparedStatement,
    find_order: PreparedStatement,
    drop_order: PreparedStatement,
    rename: PreparedStatement,
    /// Adds an order and another one of the same customer, at once.
    add_two: Batch,
}

/// A session of the driver.
pub async fn session(to: SocketAddr, credentials: Option<&Credentials>) -> anyhow::Result<Session> {
    let mut builder = SessionBuilder::new().known_node_addr(to);
    if let Some(Credentials { user, password }) = credentials {
        builder = builder.user(user, password);
    }
    let session = builder.build().await;
    session.with_context(|| format!("the driver cannot connect to {to}"))
}

/// Makes the tables.
pub async fn create(session: &Session) -> anyhow::Result<()> {
    for statement in [
        "DROP KEYSPACE IF EXISTS {}".to_owned(),
        "CREATE KEYSPACE {} WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}"
            .to_owned(),
        "CREATE TABLE {}.customers (id int PRIMARY KEY, name text)".to_owned(),
        "CREATE TABLE {}.orders \
         (customer int, id int, item text, amount int, PRIMARY KEY (customer, id))"
            .to_owned(),
    ] {
        let statement = statement.replace("{}", KEYSPACE);
        let done = session.query_unpaged(statement.as_str(), ()).await;
        done.with_context(|| statement.clone())?;
    }
    Ok(())
}

/// Takes them away.
pub async fn clear(session: &Session) -> anyhow::Result<()> {
    let drop = format!("DROP KEYSPACE IF EXISTS {KEYSPACE}");
    session
        .query_unpaged(drop.as_str(), ())
        .await
        .context(drop)?;
    Ok(())
}

impl Client {
    /// Connects and prepares.
    fn connect(
        to: SocketAddr,
        credentials: Option<&Credentials>,
        tasks: usize,
    ) -> anyhow::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let shop = runtime.block_on(async {
            let session = session(to, credentials).await?;
            Shop::open(session).await
        })?;
        Ok(Self {
            runtime,
            shop: Arc::new(shop),
            tasks,
            rounds: 0,
        })
    }

    /// Works for so long with every task.
    fn work(&mut self, seconds: f64) -> anyhow::Result<Answer> {
        self.rounds += 1;
        let start = Instant::now();
        let end = start + Duration::from_secs_f64(seconds);
        let mut sum = self.runtime.block_on(async {
            let mut tasks = JoinSet::new();
            for task in 0..self.tasks {
                let shop = self.shop.clone();
                let seed = i32::try_from(task)?.wrapping_mul(7919) + self.rounds;
                tasks.spawn(async move { shop.work(seed, end).await });
            }
            let mut sum = Answer::empty()?;
            while let Some(answer) = tasks.join_next().await {
                sum.add(answer.context("a task panicked")??)?;
            }
            anyhow::Ok(sum)
        })?;
        sum.seconds = start.elapsed().as_secs_f64();
        Ok(sum)
    }
}

impl Shop {
    async fn open(session: Session) -> anyhow::Result<Self> {
        let prepare = async |text: &str| {
            let text = text.replace("{}", KEYSPACE);
            let prepared = session.prepare(text.as_str()).await;
            prepared.with_context(|| text.clone())
        };
        let add_order =
            prepare("INSERT INTO {}.orders (customer, id, item, amount) VALUES (?, ?, ?, ?)")
                .await?;
        let mut add_two = Batch::new(BatchType::Unlogged);
        add_two.append_statement(add_order.clone());
        add_two.append_statement(add_order.clone());
        Ok(Self {
            find_order: prepare("SELECT item, amount FROM {}.orders WHERE customer = ? AND id = ?")
                .await?,
            drop_order: prepare("DELETE FROM {}.orders WHERE customer = ? AND id = ?").await?,
            rename: prepare("UPDATE {}.customers SET name = ? WHERE id = ?").await?,
            add_order,
            add_two,
            session,
        })
    }

    async fn work(&self, seed: i32, end: Instant) -> anyhow::Result<Answer> {
        let mut answer = Answer::empty()?;
        let mut before = Instant::now();
        let mut n = seed;
        while before < end {
            n = n.wrapping_add(1);
            let (table, kind, done) = self.step(n).await;
            let now = Instant::now();
            answer.count_sent(table, kind, 1);
            match done {
                Ok(()) => answer
                    .latencies
                    .record(u64::try_from((now - before).as_nanos()).unwrap_or(u64::MAX)),
                Err(error) => answer.fail(1, Some(format!("{kind} on {table}: {error:#}"))),
            }
            before = now;
        }
        Ok(answer)
    }

    /// Executes one statement. Returns its table, its kind, and the outcome.
    async fn step(&self, n: i32) -> (&'static str, &'static str, anyhow::Result<()>) {
        let customer = n.wrapping_mul(31).rem_euclid(CUSTOMERS);
        let id = n.rem_euclid(ORDERS);
        let session = &self.session;
        let item = "a box of pencils";
        match n.rem_euclid(10) {
            0..=2 => {
                let values = (customer, id, item, n);
                let done = session.execute_unpaged(&self.add_order, values).await;
                ("orders", "insert", checked(done))
            }
            3..=5 => {
                let done = session
                    .execute_unpaged(&self.find_order, (customer, id))
                    .await;
                ("orders", "select", checked(done))
            }
            6 => {
                let (one, two) = ((customer, id, item, n), (customer, id + 1, item, n));
                let done = session.batch(&self.add_two, (one, two)).await;
                ("orders", "batch", checked(done))
            }
            7 => {
                // Not prepared: the driver sends the text.
                let text = format!("SELECT name FROM {KEYSPACE}.customers WHERE id = {customer}");
                let done = session.query_unpaged(text, ()).await;
                ("customers", "select", checked(done))
            }
            8 => {
                let done = session
                    .execute_unpaged(&self.rename, ("Ann", customer))
                    .await;
                ("customers", "update", checked(done))
            }
            _ => {
                let done = session
                    .execute_unpaged(&self.drop_order, (customer, id))
                    .await;
                ("orders", "delete", checked(done))
            }
        }
    }
}

fn checked<T, E: std::error::Error + Send + Sync + 'static>(
    done: Result<T, E>,
) -> anyhow::Result<()> {
    Ok(done.map(drop)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use cql_node::{Node, NodeOptions};

    #[test]
    fn it_counts_what_it_sends() {
        let node = Node::start(NodeOptions::default()).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime
            .block_on(async { create(&session(node.addr(), None).await?).await })
            .unwrap();
        let mut client = Client::connect(node.addr(), None, 4).unwrap();
        let answer = client.work(0.2).unwrap();
        assert_eq!((answer.errors, &answer.first_error), (0, &None));
        let sent: u64 = answer.sent.iter().map(|s| s.count).sum();
        assert_eq!(sent, answer.ops());
        assert_eq!(answer.sent.len(), 6, "{:?}", answer.sent);
    }
}
