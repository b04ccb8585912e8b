//! Workload files: what is asked, how often, and who asked it first.
//!
//! `bench/workloads/NAME.toml` is one [`Workload`]; each of its variants becomes a [`Job`].

mod check;
mod file;
pub mod words;

pub use file::{read, read_file};
use serde::{Deserialize, Serialize};

/// A workload file, checked.
#[derive(Clone, Debug)]
pub struct Workload {
    /// The file's name without its ending.
    pub name: String,
    /// One line.
    pub title: String,
    /// Where it comes from.
    pub origin: Origin,
    /// Figures of others for it.
    pub published: Vec<Published>,
    /// The workload's variants, at least one.
    pub variants: Vec<Variant>,
}

/// Where a workload comes from.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Origin {
    /// `cassandra-stress 5.0`, `YCSB core workloads`, …
    pub name: String,
    /// Where it is described.
    pub url: String,
    /// The changes for a machine like ours; empty: none.
    #[serde(default)]
    pub changed: String,
}

/// A figure that somebody else published, on other hardware.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Published {
    /// The variant that was measured; None: all of them.
    pub variant: Option<String>,
    /// The system that was measured.
    pub system: String,
    /// Operations in a second.
    pub op_s: Option<f64>,
    /// Median latency, in ms.
    pub p50_ms: Option<f64>,
    /// 99th percentile of latency, in ms.
    pub p99_ms: Option<f64>,
    /// Mean latency, in ms.
    pub mean_ms: Option<f64>,
    /// The hardware, as far as the source says.
    pub hardware: String,
    /// Where it is published.
    pub url: String,
}

/// One experiment's worth of a workload.
#[derive(Clone, Debug)]
pub struct Variant {
    /// Unique among all workloads: the workload's name, and the variant's where there are
    /// several (`kv-192-16`).
    pub id: String,
    /// The database that has to answer.
    pub database: Database,
    /// How many of them (embedded nodes only).
    pub nodes: usize,
    /// The network between clients and databases.
    pub topology: Topology,
    /// The paths that are compared with `direct`; none: all that can be.
    pub paths: Vec<String>,
    /// Part of `--quick`.
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

/// A database that answers.
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

/// A network between clients and databases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Topology {
    /// Nothing: all live on this host.
    #[default]
    Host,
    /// A gateway, for each way one of its own: network namespaces joined by veth.
    Gateway,
}

/// All that a generator needs to know.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Job {
    /// The protocol that is spoken.
    pub protocol: Protocol,
    /// By whom.
    pub client: Client,
    /// Threads, at least 1.
    pub threads: usize,
    /// Connections in all, at least [`Job::threads`]; a driver takes it as a wish.
    pub connections: usize,
    /// Requests in flight on a connection, at least 1.
    pub depth: usize,
    /// Threads with one request in flight wait by epoll, too; see [`Job::blocks`].
    pub nonblocking: bool,
    /// Operations in a second in all; None: a closed loop.
    pub rate: Option<f64>,
    /// The keys, and how they are chosen.
    pub keys: Keys,
    /// Statements that make the tables (CQL), run once before anything else.
    pub create: Vec<String>,
    /// Statements that take them away.
    pub clear: Vec<String>,
    /// The operation that is run once for every key before anything is measured.
    pub fill: Option<String>,
    /// At least one.
    pub operations: Vec<Operation>,
}

impl Job {
    /// Each thread has one connection with one request in flight, and `read` itself waits, which
    /// saves a call. All others' sockets are O_NONBLOCK from the first byte on, as a driver's are.
    pub fn blocks(&self) -> bool {
        let is_alone = self.depth == 1 && self.connections <= self.threads;
        self.client == Client::Raw && is_alone && !self.nonblocking
    }
}

/// A protocol that is spoken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Protocol {
    /// Native protocol v4 (raw) or what the driver speaks.
    Cql,
    /// RESP2.
    Redis,
    /// Nothing: an operation is a `connect()`.
    Connect,
}

/// A client that speaks it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Client {
    /// Sockets, and nothing in the way.
    Raw,
    /// A driver as applications have it: `scylla`, `redis`.
    Driver,
}

/// Keys.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Keys {
    /// How many there are before anything is measured.
    pub count: u64,
    /// How they are chosen.
    pub distribution: Distribution,
}

/// How keys are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Distribution {
    /// All alike.
    Uniform,
    /// A few often: YCSB's scrambled zipfian, constant 0.99.
    Zipfian,
    /// Zipfian keys, the newest most often.
    Latest,
    /// One after the other, round and round.
    Sequential,
}

/// One kind of operation. It is done when its last step is answered; that is one latency.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Operation {
    /// Unique in its workload.
    pub name: String,
    /// The operation's share among those of the connections that mix.
    #[serde(default)]
    pub weight: u32,
    /// Connections that do nothing else (writers, readers); 0: it is mixed by weight.
    #[serde(default)]
    pub connections: usize,
    /// A new key each time, beyond those that are there (inserts); otherwise an existing one.
    #[serde(default)]
    pub new_key: bool,
    /// One after the other, all with the same key; none where an operation is a `connect()`.
    #[serde(default)]
    pub steps: Vec<Step>,
}

impl Operation {
    /// Whether it is done at all: another one is there for the sake of [`Job::fill`].
    pub fn is_active(&self) -> bool {
        self.weight > 0 || self.connections > 0
    }
}

/// One request and its response.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Step {
    /// A prepared statement.
    Statement {
        /// The statement's text.
        cql: String,
        /// One for each `?`.
        #[serde(default)]
        bind: Vec<Bind>,
    },
    /// One statement several times in one batch, with values of their own (the key is the
    /// operation's in all of them unless `keys` is true).
    Batch {
        /// The statement's text.
        cql: String,
        /// One for each `?`.
        bind: Vec<Bind>,
        /// How many times.
        count: usize,
        /// With a batch log.
        #[serde(default)]
        logged: bool,
        /// Each with a key of its own.
        #[serde(default)]
        keys: bool,
    },
    /// Commands of Redis, sent together; each element of a command is a text or a bind.
    Redis {
        /// Words of one command: `["SET", "{key}", "{value:64}"]`.
        command: Vec<String>,
        /// How many times, each with a key of its own, in one pipeline.
        #[serde(default = "one")]
        count: usize,
    },
}

/// A value. In files: `key`, `key:text`, `value:34`, `text:12`, `int:1000`, `bigint`, `uuid`, `now`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum Bind {
    /// The key as a blob of ten digits (cassandra-stress's shape).
    Key,
    /// The key as text of YCSB's form: `user` and digits.
    KeyText,
    /// So many bytes.
    Value(usize),
    /// So many characters.
    Text(usize),
    /// An int from 0 up to, and without, this.
    Int(i32),
    /// A bigint: counts up.
    Bigint,
    /// A random uuid.
    Uuid,
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
            Bind::Uuid => "uuid".into(),
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
                "uuid" => Self::Uuid,
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
