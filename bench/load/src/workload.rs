//! Workload files: the requests, their rates, and the origin of each workload.
//!
//! `bench/workloads/NAME.toml` is one [`Workload`]; each of its variants becomes a [`Job`].

mod check;
mod file;
pub mod words;

pub use file::{parse, read, read_file};
use report::schema::{Origin, Published};
use serde::{Deserialize, Serialize};

/// A workload file, checked.
#[derive(Clone, Debug)]
pub struct Workload {
    /// The file's name without its ending.
    pub name: String,
    /// The title, in one line.
    pub title: String,
    /// The origin of the workload.
    pub origin: Origin,
    /// The figures that others have published for it.
    pub published: Vec<Published>,
    /// The variants, at least one.
    pub variants: Vec<Variant>,
}

/// A workload's part for one experiment.
#[derive(Clone, Debug)]
pub struct Variant {
    /// The id, unique among all workloads: the workload's name, and the variant's where there are
    /// several (`kv-192-16`).
    pub id: String,
    /// The kind of database.
    pub database: Database,
    /// The number of databases (embedded nodes only).
    pub nodes: usize,
    /// The topology between clients and databases.
    pub topology: Topology,
    /// The paths that are compared with `direct`; none: all that can be.
    pub paths: Vec<String>,
    /// Whether the variant is part of `--quick`.
    pub quick: bool,
    /// The generator's job.
    pub job: Job,
}

impl Variant {
    /// Whether this path is compared.
    pub fn compares(&self, path: &str) -> bool {
        self.paths.is_empty() || self.paths.iter().any(|named| named == path)
    }
}

/// The kind of a database.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Database {
    /// The embedded CQL node: cheap, so that a proxy's cost shows.
    Node,
    /// A real Cassandra.
    Cassandra,
    /// A real redis-server.
    Redis,
    /// A socket that accepts and closes.
    Listener,
}

/// The topology between clients and databases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Topology {
    /// Nothing is in between: all are on this host.
    #[default]
    Host,
    /// A gateway is in between, for each way one of its own: network namespaces joined by veth.
    Gateway,
}

/// The job of a generator.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Job {
    /// The protocol.
    pub protocol: Protocol,
    /// The client.
    pub client: Client,
    /// Threads, at least 1.
    pub threads: usize,
    /// Connections in all, at least [`Job::threads`]; a driver takes it as a wish.
    pub connections: usize,
    /// Requests in flight on a connection, at least 1.
    pub depth: usize,
    /// Whether threads with one request in flight wait by epoll, too; see [`Job::blocks`].
    pub nonblocking: bool,
    /// The operations in a second in all; None: a closed loop.
    pub rate: Option<f64>,
    /// The keys, and how they are chosen.
    pub keys: Keys,
    /// Statements that make the tables (CQL), run once before anything else.
    pub create: Vec<String>,
    /// Statements that take the tables away.
    pub clear: Vec<String>,
    /// The operation that is run once for every key before anything is measured.
    pub fill: Option<String>,
    /// The operations, at least one.
    pub operations: Vec<Operation>,
}

impl Job {
    /// Whether each thread has one connection with one request in flight, so that `read` itself
    /// waits, which saves a call. All others' sockets are O_NONBLOCK from the first byte on, as a
    /// driver's are.
    pub fn blocks(&self) -> bool {
        let is_alone = self.depth == 1 && self.connections <= self.threads;
        self.client == Client::Raw && is_alone && !self.nonblocking
    }
}

/// A protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Protocol {
    /// The native protocol v4 (raw) or the driver's version.
    Cql,
    /// The protocol of Redis, RESP2.
    Redis,
    /// No protocol: an operation is a `connect()`.
    Connect,
}

/// A kind of client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Client {
    /// Sockets, and nothing in between.
    Raw,
    /// A driver as applications use it: `scylla`, `redis`.
    Driver,
}

/// The keys of a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Keys {
    /// The number of keys before anything is measured.
    pub count: u64,
    /// The choice of keys.
    pub distribution: Distribution,
}

/// The choice of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Distribution {
    /// Every key is as likely as every other.
    Uniform,
    /// A few keys are frequent: YCSB's scrambled zipfian, constant 0.99.
    Zipfian,
    /// Keys are as frequent as with zipfian, the newest most often.
    Latest,
    /// Keys come one after the other, round and round.
    Sequential,
}

/// A kind of operation. An operation is done when its last step is answered; that is one latency.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Operation {
    /// The name, unique in its workload.
    pub name: String,
    /// The share among the operations of the connections that mix.
    #[serde(default)]
    pub weight: u32,
    /// The number of connections that do nothing else (writers, readers); 0: the operation is mixed
    /// by weight.
    #[serde(default)]
    pub connections: usize,
    /// Whether each key is a new one, beyond those that are there (inserts); otherwise it is an
    /// existing one.
    #[serde(default)]
    pub new_key: bool,
    /// The steps, one after the other, all with the same key; none where an operation is a
    /// `connect()`.
    #[serde(default)]
    pub steps: Vec<Step>,
}

impl Operation {
    /// Whether the operation is done at all: an inactive one is there for the sake of
    /// [`Job::fill`].
    pub fn is_active(&self) -> bool {
        self.weight > 0 || self.connections > 0
    }
}

/// A request and its response.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Step {
    /// A prepared statement.
    Statement {
        /// The statement's text.
        cql: String,
        /// The binds, one for each `?`.
        #[serde(default)]
        bind: Vec<Bind>,
    },
    /// A batch of one statement several times, with values of their own (the key is the
    /// operation's in all of them unless `keys` is true).
    Batch {
        /// The statement's text.
        cql: String,
        /// The binds, one for each `?`.
        bind: Vec<Bind>,
        /// The number of statements.
        count: usize,
        /// Whether the batch has a batch log.
        #[serde(default)]
        logged: bool,
        /// Whether each statement has a key of its own.
        #[serde(default)]
        keys: bool,
    },
    /// Commands of Redis, sent together; each element of a command is a text or a bind.
    Redis {
        /// The words of one command: `["SET", "{key}", "{value:64}"]`.
        command: Vec<String>,
        /// The number of commands, each with a key of its own, in one pipeline.
        #[serde(default = "one")]
        count: usize,
    },
}

/// A kind of value. In files: `key`, `key:text`, `value:34`, `text:12`, `int:1000`, `bigint`,
/// `now`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum Bind {
    /// The key as a blob of ten digits (cassandra-stress's shape).
    Key,
    /// The key as text of YCSB's form: `user` and digits.
    KeyText,
    /// A value of this many bytes.
    Value(usize),
    /// A text of this many characters.
    Text(usize),
    /// An int from 0 up to, and without, this.
    Int(i32),
    /// A bigint: counts up.
    Bigint,
    /// A timestamp: milliseconds of now.
    Now,
}

fn one() -> usize {
    1
}

impl From<Bind> for String {
    fn from(bind: Bind) -> Self {
        match bind {
            Bind::Key => "key".into(),
            Bind::KeyText => "key:text".into(),
            Bind::Value(bytes) => format!("value:{bytes}"),
            Bind::Text(characters) => format!("text:{characters}"),
            Bind::Int(below) => format!("int:{below}"),
            Bind::Bigint => "bigint".into(),
            Bind::Now => "now".into(),
        }
    }
}

impl TryFrom<String> for Bind {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let number = |digits: &str| digits.parse().map_err(|_| format!("{text}: not a number"));
        Ok(match text.split_once(':') {
            None => match &*text {
                "key" => Self::Key,
                "bigint" => Self::Bigint,
                "now" => Self::Now,
                _ => return Err(format!("{text}: no such value")),
            },
            Some(("key", "text")) => Self::KeyText,
            Some(("value", bytes)) => Self::Value(number(bytes)?),
            Some(("text", characters)) => Self::Text(number(characters)?),
            Some(("int", below)) => {
                Self::Int(below.parse().map_err(|_| format!("{text}: not an int"))?)
            }
            Some(_) => return Err(format!("{text}: no such value")),
        })
    }
}

#[cfg(test)]
pub(crate) mod tests;
