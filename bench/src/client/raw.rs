//! Threads with one connection each, in a closed loop: the shape of cassandra-stress (one
//! table, 10-byte keys, five columns of 34 bytes), with next to no client in it.

use std::{
    net::SocketAddr,
    thread,
    time::{Duration, Instant},
};

use anyhow::Context;

use crate::{
    cql::{Connection, Prepared},
    order::{Answer, Credentials, Load},
};

/// What the load works on.
pub const KEYSPACE: &str = "underpass_bench";

/// Rows. They fit into any cache: the database is to answer as fast as it can.
const ROWS: u64 = 10_000;

/// Of a column; cassandra-stress's default.
const COLUMN_BYTES: usize = 34;

/// Threads with their connections.
pub struct Client {
    lanes: Vec<Lane>,
}

/// One connection, with its statements.
struct Lane {
    connection: Connection,
    read: Prepared,
    write: Prepared,
    /// Of the sequence of keys.
    state: u64,
    /// Which of [`Load::Mixed`] is next.
    reads_next: bool,
}

/// Makes the table and writes every row.
pub fn fill(to: SocketAddr, credentials: Option<&Credentials>) -> anyhow::Result<()> {
    let mut connection = Connection::open(to, credentials)?;
    let replication = "{'class': 'SimpleStrategy', 'replication_factor': 1}";
    connection.query(&format!(
        "CREATE KEYSPACE IF NOT EXISTS {KEYSPACE} WITH replication = {replication}"
    ))?;
    connection.query(&format!(
        "CREATE TABLE IF NOT EXISTS {KEYSPACE}.standard \
         (key blob PRIMARY KEY, c0 blob, c1 blob, c2 blob, c3 blob, c4 blob)"
    ))?;
    let mut lane = Lane::new(connection, 0)?;
    for row in 0..ROWS {
        lane.write(row)?;
    }
    Ok(())
}

/// Takes the table away.
pub fn clear(to: SocketAddr, credentials: Option<&Credentials>) -> anyhow::Result<()> {
    let mut connection = Connection::open(to, credentials)?;
    connection.query(&format!("DROP KEYSPACE {KEYSPACE}"))
}

impl Client {
    /// Opens a connection for each thread.
    pub fn connect(
        to: SocketAddr,
        credentials: Option<&Credentials>,
        threads: usize,
    ) -> anyhow::Result<Self> {
        let lanes = (1..=threads as u64)
            .map(|seed| Lane::new(Connection::open(to, credentials)?, seed))
            .collect::<anyhow::Result<_>>()?;
        Ok(Self { lanes })
    }

    /// Works for so long on every connection.
    pub fn work(&mut self, load: Load, seconds: f64) -> anyhow::Result<Answer> {
        let start = Instant::now();
        let end = start + Duration::from_secs_f64(seconds);
        let answers: Vec<anyhow::Result<Answer>> = thread::scope(|scope| {
            let threads: Vec<_> = self
                .lanes
                .iter_mut()
                .map(|lane| scope.spawn(move || lane.work(load, end)))
                .collect();
            let join = |t: thread::ScopedJoinHandle<'_, _>| t.join().ok();
            let joined = threads.into_iter().map(join);
            joined
                .map(|answer| answer.context("a thread panicked")?)
                .collect()
        });
        let mut sum = Answer::empty()?;
        for answer in answers {
            sum.add(answer?)?;
        }
        sum.seconds = start.elapsed().as_secs_f64();
        Ok(sum)
    }
}

impl Lane {
    fn new(mut connection: Connection, seed: u64) -> anyhow::Result<Self> {
        Ok(Self {
            read: connection.prepare(&format!("SELECT * FROM {KEYSPACE}.standard WHERE key = ?"))?,
            write: connection.prepare(&format!(
                "INSERT INTO {KEYSPACE}.standard (key, c0, c1, c2, c3, c4) VALUES (?, ?, ?, ?, ?, ?)"
            ))?,
            connection,
            state: seed,
            reads_next: true,
        })
    }

    fn work(&mut self, load: Load, end: Instant) -> anyhow::Result<Answer> {
        let mut answer = Answer::empty()?;
        let mut before = Instant::now();
        while before < end {
            let row = self.random() % ROWS;
            let done = match load {
                Load::Read => self.read(row),
                Load::Write => self.write(row),
                Load::Mixed => {
                    self.reads_next = !self.reads_next;
                    if self.reads_next {
                        self.write(row)
                    } else {
                        self.read(row)
                    }
                }
            };
            let now = Instant::now();
            match done {
                Ok(()) => answer.latencies.record((now - before).as_nanos()),
                // After this the connection may be of no use, and an error a microsecond
                // is no result: it ends the run.
                Err(error) => return Err(error.context("a request failed")),
            }
            before = now;
        }
        Ok(answer)
    }

    fn read(&mut self, row: u64) -> anyhow::Result<()> {
        self.connection.execute(&self.read, &[key(row).as_bytes()])
    }

    fn write(&mut self, row: u64) -> anyhow::Result<()> {
        let column = [u8::try_from(row % 251)?; COLUMN_BYTES];
        let key = key(row);
        let values: [&[u8]; 6] = [key.as_bytes(), &column, &column, &column, &column, &column];
        self.connection.execute(&self.write, &values)
    }

    /// SplitMix64 (Steele, Lea, Flood 2014): every thread another sequence, every run the same.
    fn random(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }
}

fn key(row: u64) -> String {
    format!("{row:010}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use testkit::node::{Node, NodeOptions};

    #[test]
    fn every_load_works_on_every_connection() {
        let node = Node::start(NodeOptions::default()).unwrap();
        fill(node.addr(), None).unwrap();
        let mut client = Client::connect(node.addr(), None, 3).unwrap();
        for load in [Load::Read, Load::Write, Load::Mixed] {
            let answer = client.work(load, 0.1).unwrap();
            assert!(answer.ops() > 3, "{load:?}: {}", answer.ops());
            assert_eq!(answer.errors, 0);
            assert!(answer.seconds >= 0.1 && answer.op_s() > 0.0);
        }
        let clients = node.clients();
        assert_eq!(clients.len(), 3);
        assert!(clients.iter().all(|c| c.requests > 5), "{clients:?}");
    }

    #[test]
    fn reads_find_their_rows() {
        let node = Node::start(NodeOptions::default()).unwrap();
        fill(node.addr(), None).unwrap();
        let mut connection = Connection::open(node.addr(), None).unwrap();
        let count = connection.text(&format!(
            "SELECT cast(count(*) AS text) FROM {KEYSPACE}.standard"
        ));
        // Where the node cannot cast, a row's presence has to do.
        if let Ok(count) = count {
            assert_eq!(count, ROWS.to_string());
        }
        let lanes = Client::connect(node.addr(), None, 1).unwrap().lanes;
        for mut lane in lanes {
            lane.read(ROWS - 1).unwrap();
        }
        clear(node.addr(), None).unwrap();
        assert!(Client::connect(node.addr(), None, 1).is_err());
    }

    #[test]
    fn keys_are_ten_bytes_and_sequences_differ() {
        assert_eq!(key(ROWS - 1).len(), 10);
        assert_eq!(key(7), "0000000007");
    }
}
