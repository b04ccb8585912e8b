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

use super::order::{Answer, Hello, Order, Reply, Work};

/// The keyspace in which the application works.
pub const KEYSPACE: &str = "underpass_demo";

/// The number of customers, and of orders of each: enough that tasks seldom meet.
const CUSTOMERS: i32 = 1_000;
const ORDERS: i32 = 100;

/// The orders of each of the first customers that are there at the beginning, and how many of these customers there are: so many
/// that to read all of them takes a moment.
const EARLIER: [i32; 2] = [ORDERS, 400];

/// The interval of reports.
const EVERY: Duration = Duration::from_secs(1);

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
        let done = match serde_json::from_str(&line?)? {
            Order::Work(work) => client.work(work)?,
            Order::Execute(statement) => client.execute(&statement)?,
        };
        answer(&Reply::Done(done))?;
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
    fill(session).await
}

/// Adds the orders that are there at the beginning.
async fn fill(session: &Session) -> anyhow::Result<()> {
    let text =
        format!("INSERT INTO {KEYSPACE}.orders (customer, id, item, amount) VALUES (?, ?, ?, ?)");
    let add = session.prepare(text.as_str()).await.context(text)?;
    let [orders, customers] = EARLIER;
    let mut all = Batch::new(BatchType::Unlogged);
    for _ in 0..orders {
        all.append_statement(add.clone());
    }
    for customer in 0..customers {
        let values: Vec<_> = (0..orders)
            .map(|id| (customer, id, "a box of pencils", id))
            .collect();
        session
            .batch(&all, values)
            .await
            .context("earlier orders")?;
    }
    Ok(())
}

/// Returns how many orders there are.
pub async fn orders(session: &Session) -> anyhow::Result<i64> {
    let text = format!("SELECT count(*) FROM {KEYSPACE}.orders");
    let rows = session
        .query_unpaged(text.as_str(), ())
        .await
        .context(text)?;
    let (orders,) = rows.into_rows_result()?.first_row::<(i64,)>()?;
    Ok(orders)
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

    /// Executes a statement, and counts its failure.
    fn execute(&self, statement: &str) -> anyhow::Result<Answer> {
        let mut answer = Answer::empty()?;
        let session = &self.shop.session;
        if let Err(error) = self.runtime.block_on(session.query_unpaged(statement, ())) {
            answer.fail(1, Some(error.to_string()));
        }
        Ok(answer)
    }

    /// Works with every task.
    fn work(&mut self, work: Work) -> anyhow::Result<Answer> {
        self.rounds += 1;
        let start = Instant::now();
        let end = start + Duration::from_secs_f64(work.seconds);
        let pause = Duration::from_secs_f64(self.tasks as f64 / work.per_second);
        let mut sum = self.runtime.block_on(async {
            let mut tasks = JoinSet::new();
            for task in 0..self.tasks {
                let shop = self.shop.clone();
                let seed = i32::try_from(task)?.wrapping_mul(7919) + self.rounds;
                let first = start + pause.mul_f64(task as f64 / self.tasks as f64);
                tasks.spawn(async move { shop.work(seed, first, pause, end).await });
            }
            if work.reports {
                let shop = self.shop.clone();
                tasks.spawn(async move { shop.report(end).await });
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

    /// Executes a statement every `pause`. A latency begins when its statement is sent.
    async fn work(
        &self,
        seed: i32,
        first: Instant,
        pause: Duration,
        end: Instant,
    ) -> anyhow::Result<Answer> {
        let mut answer = Answer::empty()?;
        let mut due = first;
        let mut n = seed;
        while due < end {
            tokio::time::sleep_until(due.into()).await;
            // What a slow answer has delayed is not made up for.
            due = (due + pause).max(Instant::now());
            n = n.wrapping_add(1);
            let before = Instant::now();
            let (table, kind, done) = self.step(n).await;
            let took = before.elapsed();
            answer.count_sent(table, kind, 1);
            match done {
                Ok(()) => answer
                    .latencies
                    .record(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX)),
                Err(error) => answer.fail(1, Some(format!("{kind} on {table}: {error:#}"))),
            }
        }
        Ok(answer)
    }

    /// Makes a report each second. Its latencies are not among those of the others.
    async fn report(&self, end: Instant) -> anyhow::Result<Answer> {
        let mut answer = Answer::empty()?;
        let text =
            format!("SELECT customer, id FROM {KEYSPACE}.orders WHERE amount = 1 ALLOW FILTERING");
        while Instant::now() < end {
            answer.count_sent("orders", "select", 1);
            if let Err(error) = self.session.query_unpaged(text.as_str(), ()).await {
                answer.fail(1, Some(format!("report: {error}")));
            }
            tokio::time::sleep(EVERY).await;
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
        let work = Work {
            seconds: 0.3,
            per_second: 1000.0,
            reports: true,
        };
        let answer = client.work(work).unwrap();
        assert_eq!((answer.errors, &answer.first_error), (0, &None));
        let sent: u64 = answer.sent.iter().map(|s| s.count).sum();
        // A report is sent and not timed.
        assert_eq!(sent, answer.ops() + 1);
        let rate = answer.ops() as f64 / work.seconds;
        assert!((500.0..1050.0).contains(&rate), "{rate}");
        assert_eq!(answer.sent.len(), 6, "{:?}", answer.sent);
    }
}
