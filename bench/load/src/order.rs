//! The protocol between the parent and a generator: a line of JSON each, orders on the generator's
//! standard input, replies on its standard output.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::{latencies::Latencies, used::Used, workload::Job};

/// A role of the database. Everybody who reads a command line sees it: for test databases.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Credentials {
    /// The role's name.
    pub user: String,
    /// The role's password.
    pub password: String,
}

/// The seed of keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seed {
    /// The part that is the same in every generator that is compared in a round.
    pub value: u64,
    /// The part that differs in every generator that works on the same tables: the keys that one
    /// adds, no other has.
    pub number: u64,
}

/// The first line: the generator's job, for all of its life. It connects, prepares its statements,
/// and answers with an empty [`Answer`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Hello {
    /// The requests to make.
    pub job: Job,
    /// The addresses to dial. Connections are spread over them; each has every key.
    pub targets: Vec<SocketAddr>,
    /// The role to log in as, where the database asks.
    pub credentials: Option<Credentials>,
    /// The seed of keys and values.
    pub seed: Seed,
    /// Whether to log in at each target once, and leave, before anything else (CQL). Then a proxy
    /// that remembers processes has seen this one.
    #[serde(default)]
    pub introduce: bool,
}

/// An order to a generator, in every other line.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// Work for this long; requests in flight at the end are waited for and count.
    Work {
        /// The seconds to work.
        seconds: f64,
    },
}

/// A line from a generator.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    /// The order is done.
    Done(Box<Answer>),
    /// The generator could not go on, and ends.
    Failed(String),
}

/// The result of an order.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Answer {
    /// The seconds in which requests began: the order's length. Requests under way at the end are
    /// waited for.
    pub seconds: f64,
    /// Operations that succeeded within that time.
    pub in_time: u64,
    /// The latencies of operations that succeeded; counted from the intended time where there is a
    /// schedule.
    pub latencies: Latencies,
    /// Operations that failed.
    pub errors: u64,
    /// The reason why the first of them failed.
    pub first_error: Option<String>,
    /// Operations that the schedule called for; None: a closed loop.
    pub scheduled: Option<u64>,
    /// The delay with which requests left after their intended time, while their connection had
    /// room: the generator's own fault. Empty in a closed loop.
    pub lateness: Latencies,
    /// The bytes written to sockets and read from them. 0 where a driver owns the sockets.
    pub bytes: u64,
    /// The usage of the generator's process, from the order to here.
    pub used: Used,
}

impl Answer {
    /// Makes an empty answer.
    ///
    /// # Errors
    /// None in practice: the histogram's bounds are constants.
    pub fn empty() -> anyhow::Result<Self> {
        Ok(Self {
            seconds: 0.0,
            in_time: 0,
            latencies: Latencies::new()?,
            errors: 0,
            first_error: None,
            scheduled: None,
            lateness: Latencies::new()?,
            bytes: 0,
            used: Used::default(),
        })
    }

    /// Adds another answer, as if both orders had been one, the other after this.
    ///
    /// # Errors
    /// None in practice: all histograms have one shape.
    pub fn add(&mut self, other: Self) -> anyhow::Result<()> {
        self.seconds += other.seconds;
        self.in_time += other.in_time;
        self.latencies.add(&other.latencies)?;
        self.fail(other.errors, other.first_error);
        self.scheduled = match (self.scheduled, other.scheduled) {
            (None, None) => None,
            (a, b) => Some(a.unwrap_or(0) + b.unwrap_or(0)),
        };
        self.lateness.add(&other.lateness)?;
        self.bytes += other.bytes;
        self.used.add(&other.used);
        Ok(())
    }

    /// Counts failures, and keeps the first one's reason.
    pub fn fail(&mut self, errors: u64, why: Option<String>) {
        self.errors += errors;
        self.first_error = self.first_error.take().or(why);
    }

    /// Successful operations.
    pub fn ops(&self) -> u64 {
        self.latencies.count()
    }

    /// Operations that succeeded in a second. Those that ended after the order do not count: to
    /// wait for the slowest is no work.
    pub fn op_s(&self) -> f64 {
        self.in_time as f64 / self.seconds.max(f64::MIN_POSITIVE)
    }
}
