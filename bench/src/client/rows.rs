//! The table of the measurements, as cassandra-stress has it: keys of ten bytes, five
//! columns of 34.

use std::{
    net::SocketAddr,
    thread,
    time::{Duration, Instant},
};

use anyhow::Context;

use crate::{
    cql::Connection,
    order::{Answer, Credentials},
};

const KEYSPACE: &str = "underpass_bench";

/// They fit into any cache: the database is to answer as fast as it can.
const ROWS: u64 = 10_000;

/// Of a column.
const COLUMN_BYTES: usize = 34;

/// Selects a row by its key.
pub fn read() -> String {
    format!("SELECT * FROM {KEYSPACE}.standard WHERE key = ?")
}

/// Writes a row.
pub fn write() -> String {
    format!("INSERT INTO {KEYSPACE}.standard (key, c0, c1, c2, c3, c4) VALUES (?, ?, ?, ?, ?, ?)")
}

/// A row's key.
pub fn key(row: u64) -> String {
    format!("{row:010}")
}

/// What a row's columns hold.
pub fn column(row: u64) -> [u8; COLUMN_BYTES] {
    [(row % 251) as u8; COLUMN_BYTES]
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
    let write = connection.prepare(&write())?;
    for row in 0..ROWS {
        let (key, c) = (key(row), column(row));
        connection.execute(&write, &[key.as_bytes(), &c, &c, &c, &c, &c])?;
    }
    Ok(())
}

/// Takes the table away.
pub fn clear(to: SocketAddr, credentials: Option<&Credentials>) -> anyhow::Result<()> {
    let mut connection = Connection::open(to, credentials)?;
    connection.query(&format!("DROP KEYSPACE {KEYSPACE}"))
}

/// A sequence of rows, seemingly at random: SplitMix64 (Steele, Lea, Flood 2014). Another for
/// every seed, the same in every run.
pub struct Keys(u64);

impl Keys {
    /// The sequence of this seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next row.
    pub fn next(&mut self) -> u64 {
        self.random() % ROWS
    }

    /// Yes or no.
    pub fn toss(&mut self) -> bool {
        self.random() & 1 == 0
    }

    fn random(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }
}

/// Works with a thread for each lane until the seconds are over; sums their answers up.
pub fn on_threads<L: Send>(
    lanes: &mut [L],
    seconds: f64,
    work: impl Fn(&mut L, Instant) -> anyhow::Result<Answer> + Sync,
) -> anyhow::Result<Answer> {
    let start = Instant::now();
    let end = start + Duration::from_secs_f64(seconds);
    let work = &work;
    let answers: Vec<anyhow::Result<Answer>> = thread::scope(|scope| {
        let start = |lane| scope.spawn(move || work(lane, end));
        let threads: Vec<_> = lanes.iter_mut().map(start).collect();
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_ten_bytes_and_sequences_differ() {
        assert_eq!(key(ROWS - 1).len(), 10);
        assert_eq!(key(7), "0000000007");
        let begin = |seed| {
            let mut keys = Keys::new(seed);
            [keys.next(), keys.next(), keys.next()]
        };
        assert_ne!(begin(1), begin(2));
        assert_eq!(begin(1), begin(1));
        assert!(begin(3).iter().all(|row| *row < ROWS));
    }
}
