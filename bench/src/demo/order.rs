//! The protocol between the demo and its applications: a line of JSON each.

use std::net::SocketAddr;

use load::{latencies::Latencies, order::Credentials};
use serde::{Deserialize, Serialize};

/// The first line to an application.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Hello {
    /// The address to dial.
    pub target: SocketAddr,
    /// The role to log in as, where the database asks.
    pub credentials: Option<Credentials>,
    /// The number of requests at the same time.
    pub tasks: usize,
}

/// An order, in every other line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// To work for a while.
    Work(Work),
    /// To execute a statement, once.
    Execute(String),
}

/// Work at a fixed rate.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Work {
    /// The seconds to work.
    pub seconds: f64,
    /// The operations in a second, of all tasks.
    pub per_second: f64,
    /// Whether the first task also makes a report each second, for which the database reads the whole table.
    pub reports: bool,
}

/// A line from an application. The first one, after [`Hello`], is an empty answer: the application
/// is connected.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    /// The order is done.
    Done(Answer),
    /// The application could not go on, and ends.
    Failed(String),
}

/// The result of an order.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Answer {
    /// The seconds that the order took.
    pub seconds: f64,
    /// The latencies of operations that succeeded.
    pub latencies: Latencies,
    /// The number of operations that failed.
    pub errors: u64,
    /// The reason why the first of them failed.
    pub first_error: Option<String>,
    /// Statements sent.
    pub sent: Vec<Sent>,
}

/// Statements of one kind on one table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sent {
    /// The table, without its keyspace.
    pub table: String,
    /// The kind, as enrichment names it.
    pub kind: String,
    /// The number of statements.
    pub count: u64,
}

impl Answer {
    /// Makes an empty answer.
    pub fn empty() -> anyhow::Result<Self> {
        Ok(Self {
            seconds: 0.0,
            latencies: Latencies::new()?,
            errors: 0,
            first_error: None,
            sent: Vec::new(),
        })
    }

    /// Adds another answer, as if both orders had been one.
    pub fn add(&mut self, other: Self) -> anyhow::Result<()> {
        self.seconds += other.seconds;
        self.latencies.add(&other.latencies)?;
        self.fail(other.errors, other.first_error);
        for sent in other.sent {
            self.count_sent(&sent.table, &sent.kind, sent.count);
        }
        Ok(())
    }

    /// Counts failures, and keeps the first one's reason.
    pub fn fail(&mut self, errors: u64, why: Option<String>) {
        self.errors += errors;
        self.first_error = self.first_error.take().or(why);
    }

    /// Counts statements.
    pub fn count_sent(&mut self, table: &str, kind: &str, count: u64) {
        let same = |s: &&mut Sent| s.table == table && s.kind == kind;
        match self.sent.iter_mut().find(same) {
            Some(sent) => sent.count += count,
            None => self.sent.push(Sent {
                table: table.to_owned(),
                kind: kind.to_owned(),
                count,
            }),
        }
    }

    /// Successful operations.
    pub fn ops(&self) -> u64 {
        self.latencies.count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_survive_the_way() {
        let mut answer = Answer::empty().unwrap();
        answer.seconds = 2.0;
        answer.latencies.record(1_000);
        answer.count_sent("orders", "insert", 1);
        answer.fail(1, Some("one".into()));
        let line = serde_json::to_string(&Reply::Done(answer)).unwrap();
        assert!(!line.contains('\n'));
        let Reply::Done(mut back) = serde_json::from_str(&line).unwrap() else {
            panic!("{line}")
        };
        back.add(back.clone()).unwrap();
        assert_eq!((back.ops(), back.seconds, back.errors), (2, 4.0, 2));
        assert_eq!(back.sent[0].count, 2);
        assert_eq!(back.first_error.as_deref(), Some("one"));
    }
}
