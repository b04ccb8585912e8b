//! Threads with one connection each, and one request in flight on each: next to no client,
//! and no two requests in one system call, so that every cost shows.

use std::{net::SocketAddr, time::Instant};

use anyhow::Context;

use super::rows::{self, Keys};
use crate::{
    cql::{Connection, Prepared},
    order::{Answer, Credentials, Load},
};

/// Threads with their connections.
pub struct Client {
    lanes: Vec<Lane>,
}

/// One connection, with its statements.
struct Lane {
    connection: Connection,
    read: Prepared,
    write: Prepared,
    keys: Keys,
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
        rows::on_threads(&mut self.lanes, seconds, |lane, end| lane.work(load, end))
    }
}

impl Lane {
    fn new(mut connection: Connection, seed: u64) -> anyhow::Result<Self> {
        Ok(Self {
            read: connection.prepare(&rows::read())?,
            write: connection.prepare(&rows::write())?,
            connection,
            keys: Keys::new(seed),
        })
    }

    /// Ends at the first error: the connection may be of no use then.
    fn work(&mut self, load: Load, end: Instant) -> anyhow::Result<Answer> {
        let mut answer = Answer::empty()?;
        let mut before = Instant::now();
        while before < end {
            let row = self.keys.next();
            let done = match load {
                Load::Read => self.read(row),
                Load::Write => self.write(row),
                Load::Mixed if self.keys.toss() => self.read(row),
                Load::Mixed => self.write(row),
            };
            done.context("a request failed")?;
            let now = Instant::now();
            answer.latencies.record((now - before).as_nanos());
            before = now;
        }
        Ok(answer)
    }

    fn read(&mut self, row: u64) -> anyhow::Result<()> {
        let key = rows::key(row);
        self.connection.execute(&self.read, &[key.as_bytes()])
    }

    fn write(&mut self, row: u64) -> anyhow::Result<()> {
        let (key, c) = (rows::key(row), rows::column(row));
        let values: [&[u8]; 6] = [key.as_bytes(), &c, &c, &c, &c, &c];
        self.connection.execute(&self.write, &values)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use testkit::node::{Node, NodeOptions};

    #[test]
    fn every_load_works_on_every_connection() {
        let node = Node::start(NodeOptions::default()).unwrap();
        rows::fill(node.addr(), None).unwrap();
        let mut client = Client::connect(node.addr(), None, 3).unwrap();
        for load in [Load::Read, Load::Write, Load::Mixed] {
            let answer = client.work(load, 0.1).unwrap();
            assert!(answer.ops() > 3, "{load:?}: {}", answer.ops());
            assert!(answer.seconds >= 0.1 && answer.op_s() > 0.0);
        }
        let clients = node.clients();
        assert_eq!(clients.len(), 3);
        assert!(clients.iter().all(|c| c.requests > 5), "{clients:?}");
    }

    #[test]
    fn without_its_table_it_says_so() {
        let node = Node::start(NodeOptions::default()).unwrap();
        rows::fill(node.addr(), None).unwrap();
        rows::clear(node.addr(), None).unwrap();
        let error = Client::connect(node.addr(), None, 1).err().unwrap();
        assert!(format!("{error:#}").contains("SELECT *"), "{error:#}");
    }
}
