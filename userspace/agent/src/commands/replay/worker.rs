//! A connection, and requests on it in their time.

use std::{
    collections::{HashMap, VecDeque},
    net::SocketAddr,
    time::Duration,
};

use ::capture::{Batch, Op, Record, Value};
use anyhow::Context as _;
use cql::{Compression, Consistency, StatementKind};
use cql_client::{
    BatchQuery, BatchQuerySubj, BatchType, BodyReqBatch, CBytesShort, Client, Hello, NoAnswer,
    Outcome, Prepared, QueryParams, QueryValues, Request, Version,
};
use parking_lot::Mutex;
use tokio::{
    net::TcpStream,
    time::{Instant, sleep_until, timeout},
};
use zeroize::Zeroizing;

use super::{PATIENCE, plan::Job, values::sent};

/// Statements that a connection remembers to have prepared; beyond it, it starts over.
const MAX_PREPARED: usize = 1024;

/// Connections in a row that fail before the replay is given up.
const MAX_FAILURES: u32 = 10;

/// The pause before another connection.
const PAUSE: Duration = Duration::from_millis(200);

/// ERROR of an EXECUTE whose statement the node has forgotten.
const UNPREPARED: i32 = 0x2500;

/// The version that is spoken: every Cassandra since 2.2 and ScyllaDB do.
const VERSION: Version = Version::V4;

/// The database.
pub(super) struct Target {
    pub(super) address: SocketAddr,
    pub(super) startup: Vec<u8>,
    pub(super) login: Option<Zeroizing<Vec<u8>>>,
}

/// The requests that all connections share.
pub(super) struct Shared {
    jobs: Mutex<VecDeque<Job>>,
    begun: Instant,
    /// None: without pauses.
    speed: Option<f64>,
}

/// A request that was asked.
pub(super) struct Answered {
    pub(super) job: Job,
    /// None: no answer has come, or none that could be read.
    pub(super) outcome: Option<Outcome>,
    pub(super) latency: Duration,
    /// Time by which it was asked too late.
    pub(super) behind: Duration,
}

/// A connection, and what it has prepared.
pub(super) struct Connection {
    client: Client<TcpStream>,
    keyspace: Option<String>,
    prepared: HashMap<(Option<String>, String), Prepared>,
}

impl Target {
    /// Opens a connection.
    pub(super) async fn open(&self) -> anyhow::Result<Connection> {
        let stream = timeout(PATIENCE, TcpStream::connect(self.address)).await;
        let stream = stream.context("no connection in time")??;
        stream.set_nodelay(true)?;
        let hello = Hello {
            version: VERSION,
            compression: Compression::None,
            startup: &self.startup,
            auth_response: self.login.as_ref().map(|body| body.as_slice()),
            keyspace: None,
        };
        let client = Client::open(stream, &hello, until()).await;
        let client = client.map_err(|error| match error {
            NoAnswer::LoginWanted => {
                anyhow::anyhow!("it wants a log-in: give --user and --password-file")
            }
            other => other.into(),
        })?;
        Ok(Connection {
            client,
            keyspace: None,
            prepared: HashMap::new(),
        })
    }
}

impl Shared {
    pub(super) fn new(jobs: Vec<Job>, begun: Instant, speed: Option<f64>) -> Self {
        Self {
            jobs: Mutex::new(jobs.into()),
            begun,
            speed,
        }
    }

    /// The next request, and when it is to be asked.
    fn next(&self) -> Option<(Job, Option<Instant>)> {
        let job = self.jobs.lock().pop_front()?;
        let due = self.speed.and_then(|speed| {
            let after = Duration::from_micros(job.record.at_us).as_secs_f64() / speed;
            let after = Duration::try_from_secs_f64(after).ok()?;
            self.begun.checked_add(after)
        });
        Some((job, due))
    }

    /// Takes a request back that was not asked.
    fn gives_back(&self, job: Job) {
        self.jobs.lock().push_front(job);
    }

    /// The number of requests that nobody has asked.
    pub(super) fn left(&self) -> usize {
        self.jobs.lock().len()
    }
}

fn until() -> std::time::Instant {
    std::time::Instant::now() + PATIENCE
}

/// Asks until there is no request left. Gives the answers, and the error if the database cannot be connected to any more: then the
/// others ask what is left.
pub(super) async fn work(
    target: std::sync::Arc<Target>,
    shared: std::sync::Arc<Shared>,
    mut connection: Option<Connection>,
) -> (Vec<Answered>, Option<anyhow::Error>) {
    let mut answers = Vec::new();
    let mut failures = 0;
    while let Some((job, due)) = shared.next() {
        if let Some(due) = due {
            sleep_until(due).await;
        }
        let mut open = match connection.take() {
            Some(open) => open,
            None => loop {
                match target.open().await {
                    Ok(open) => break open,
                    Err(error) if failures >= MAX_FAILURES => {
                        shared.gives_back(job);
                        return (answers, Some(error));
                    }
                    Err(_) => {
                        failures += 1;
                        tokio::time::sleep(PAUSE).await;
                    }
                }
            },
        };
        let behind = due.map_or(Duration::ZERO, |due| due.elapsed());
        let (asked, latency) = open.asks(&job.record).await;
        let outcome = match asked {
            Ok(outcome) => {
                failures = 0;
                connection = Some(open);
                Some(outcome)
            }
            // The connection is of no further use.
            Err(_) => None,
        };
        answers.push(Answered {
            job,
            outcome,
            latency,
            behind,
        });
    }
    (answers, None)
}

impl Connection {
    /// Asks, once more if the node has forgotten what was prepared. Gives how long the answer took, without what is done
    /// before.
    async fn asks(&mut self, record: &Record) -> (Result<Outcome, NoAnswer>, Duration) {
        let mut took = Duration::ZERO;
        let mut asked = self.asks_once(record, &mut took).await;
        if let Ok(Outcome::Error { code: UNPREPARED }) = asked {
            self.prepared.clear();
            asked = self.asks_once(record, &mut took).await;
        }
        (asked, took)
    }

    async fn asks_once(
        &mut self,
        record: &Record,
        took: &mut Duration,
    ) -> Result<Outcome, NoAnswer> {
        match self.asks_as(record, took).await {
            // What is not prepared or chosen is answered by an ERROR as well.
            Err(NoAnswer::Refused { code, .. }) => Ok(Outcome::Error { code }),
            other => other,
        }
    }

    async fn asks_as(&mut self, record: &Record, took: &mut Duration) -> Result<Outcome, NoAnswer> {
        if let Some(keyspace) = &record.keyspace
            && !defines_keyspace(record)
            && self.keyspace.as_deref() != Some(keyspace)
        {
            let text = format!("USE \"{}\"", keyspace.replace('"', "\"\""));
            self.keyspace = None;
            let used = self
                .client
                .ask(&Request::Query(&text), until())
                .await?
                .outcome()?;
            if let Outcome::Error { .. } = used {
                return Ok(used);
            }
            self.keyspace = Some(keyspace.clone());
        }
        if record.op == Some(Op::Batch) {
            return self.asks_batch(record, took).await;
        }
        let Some(statement) = record.statements.first() else {
            return Err(NoAnswer::NotAsked);
        };
        let text = statement.text.as_deref().unwrap_or_default();
        let has_lengths = statement
            .values
            .iter()
            .any(|value| matches!(value, Value::Length(_)));
        // The types of values are the database's to tell.
        let prepared = match record.op == Some(Op::Execute) || has_lengths {
            true => Some(self.prepares(text).await?),
            false => None,
        };
        let parameters = parameters(record, &statement.values, prepared.as_ref());
        let request = match &prepared {
            Some(prepared) => Request::ExecuteWith(prepared, &parameters),
            None => Request::QueryWith(text, &parameters),
        };
        let begun = Instant::now();
        let answer = self.client.ask(&request, until()).await;
        *took = begun.elapsed();
        answer?.outcome()
    }

    async fn asks_batch(
        &mut self,
        record: &Record,
        took: &mut Duration,
    ) -> Result<Outcome, NoAnswer> {
        let mut queries = Vec::new();
        for statement in &record.statements {
            let text = statement.text.as_deref().unwrap_or_default();
            let prepared = match statement.values.is_empty() {
                true => None,
                false => Some(self.prepares(text).await?),
            };
            queries.push(BatchQuery {
                values: simple(&statement.values, prepared.as_ref()),
                subject: match prepared {
                    Some(prepared) => {
                        BatchQuerySubj::PreparedId(CBytesShort::new(prepared.id.into()))
                    }
                    None => BatchQuerySubj::QueryString(text.to_owned()),
                },
            });
        }
        let batch = BodyReqBatch {
            batch_type: match record.batch {
                Some(Batch::Unlogged) => BatchType::Unlogged,
                Some(Batch::Counter) => BatchType::Counter,
                Some(Batch::Logged) | None => BatchType::Logged,
            },
            queries,
            consistency: level(record.consistency.as_deref()).unwrap_or_default(),
            serial_consistency: level(record.serial_consistency.as_deref()),
            timestamp: record.timestamp_us,
            keyspace: None,
            now_in_seconds: None,
        };
        let begun = Instant::now();
        let answer = self.client.ask(&Request::Batch(&batch), until()).await;
        *took = begun.elapsed();
        answer?.outcome()
    }

    /// The statement of this text in the present keyspace, which is prepared if it was not.
    async fn prepares(&mut self, text: &str) -> Result<Prepared, NoAnswer> {
        let key = (self.keyspace.clone(), text.to_owned());
        if let Some(prepared) = self.prepared.get(&key) {
            return Ok(prepared.clone());
        }
        let prepared = self.client.prepare(text, until()).await?;
        if self.prepared.len() >= MAX_PREPARED {
            self.prepared.clear();
        }
        self.prepared.insert(key, prepared.clone());
        Ok(prepared)
    }
}

/// Whether a request makes, changes or drops a keyspace: the one that is said to be its own, and that may not be there.
fn defines_keyspace(record: &Record) -> bool {
    let text = record
        .statements
        .first()
        .and_then(|one| one.text.as_deref());
    let statement = cql::Statement::of(text.unwrap_or_default().as_bytes());
    let is_definition = matches!(
        statement.kind,
        StatementKind::Create | StatementKind::Alter | StatementKind::Drop
    );
    is_definition && statement.keyspace.is_some() && statement.table.is_none()
}

/// The parameters that stand beside a statement.
fn parameters(record: &Record, values: &[Value], prepared: Option<&Prepared>) -> QueryParams {
    let has_names = !record.names.is_empty() && record.names.len() == values.len();
    let values = match (values.is_empty(), has_names) {
        (true, _) => None,
        (false, false) => Some(simple(values, prepared)),
        (false, true) => {
            let named = record.names.iter().cloned().zip(values);
            let named = named.map(|(name, value)| (name, sent(value, None)));
            Some(QueryValues::NamedValues(named.collect()))
        }
    };
    QueryParams {
        consistency: level(record.consistency.as_deref()).unwrap_or_default(),
        serial_consistency: level(record.serial_consistency.as_deref()),
        with_names: has_names,
        values,
        page_size: record.page_size,
        timestamp: record.timestamp_us,
        ..QueryParams::default()
    }
}

fn simple(values: &[Value], prepared: Option<&Prepared>) -> QueryValues {
    let kind = |at: usize| {
        prepared
            .and_then(|prepared| prepared.types.get(at))
            .copied()
    };
    let values = values.iter().enumerate();
    QueryValues::SimpleValues(values.map(|(at, value)| sent(value, kind(at))).collect())
}

/// A level by its name.
fn level(name: Option<&str>) -> Option<cql_client::Consistency> {
    let Consistency(number) = Consistency::by_name(name?)?;
    i16::try_from(number).ok()?.try_into().ok()
}
