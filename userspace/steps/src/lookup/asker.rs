//! The thread that asks the databases of a rule for the texts of prepared statements.
//!
//! Each database has a task with one connection, which asks one thing at a time, and ends when there is nothing to ask for
//! a while. Nobody waits for an answer: a flow goes on without it.

use std::{
    collections::HashMap,
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use cql::{Compression, Database, PreparedStatements};
use cql_client::{ByName as _, Client, Hello, NoAnswer, Version};
use cql_edit::{Log as _, LookedUp, prepared_in, question_text};
use policy::RuleName;
use tokio::{
    net::TcpStream,
    sync::mpsc::{self, UnboundedReceiver, UnboundedSender, error::TrySendError},
    time::{sleep, timeout},
};

use crate::{
    login::Login,
    pipeline_metrics::Counting,
    register::{self, Dials},
};

/// The time after which an id is asked for again that was not found, or about which nobody answered.
pub(super) const AGAIN: Duration = Duration::from_secs(60);

/// After a question that has failed a database is asked nothing for this long: one without that table, or where the
/// user may not read it, gets one now and then.
const REST: Duration = Duration::from_secs(60);

/// The least time between two questions to a database: a client that invents ids has it asked no more often.
const PACE: Duration = Duration::from_millis(5);

/// The time limit for connecting and logging in, and for an answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// A connection on which nothing was asked for this long is closed.
const IDLE: Duration = Duration::from_secs(10);

/// The most databases of a rule that are asked at a time, each on a connection.
const MAX_DATABASES: usize = 256;

/// The most questions to a database that wait. Drivers have some dozens of statements.
const MAX_WAITING: usize = 256;

/// The most questions to all databases of a rule that the thread has not looked at.
const MAX_QUEUED: usize = 4_096;

/// The most questions that are remembered as asked; beyond it, the thread starts over.
const MAX_ASKED: usize = 16_384;

/// A rule's thread.
#[derive(Debug)]
pub(super) struct Asker {
    rule: RuleName,
    login: Option<Login>,
    questions: UnboundedSender<Question>,
    queued: Arc<AtomicUsize>,
    counting: Counting,
}

/// A statement that is not known, and the database that a client has asked for it.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Question {
    database: SocketAddr,
    id: Box<[u8]>,
}

/// The needs of a task that asks a database.
struct Asked {
    at: SocketAddr,
    rule: RuleName,
    login: Option<Login>,
    dials: Dials,
    prepared: Arc<PreparedStatements>,
    counting: Counting,
}

impl Asker {
    /// Starts the thread.
    ///
    /// # Errors
    /// There can be no more threads, or descriptors.
    pub(super) fn start(
        rule: RuleName,
        login: Option<Login>,
        dials: Dials,
        prepared: Arc<PreparedStatements>,
        counting: Counting,
    ) -> io::Result<Self> {
        let queued = Arc::new(AtomicUsize::new(0));
        let database = {
            let (rule, login, counting) = (rule.clone(), login.clone(), counting.clone());
            move |at| Asked {
                at,
                rule: rule.clone(),
                login: login.clone(),
                dials: dials.clone(),
                prepared: prepared.clone(),
                counting: counting.clone(),
            }
        };
        let of_thread = queued.clone();
        let run = move |taken| run(taken, of_thread, database);
        Ok(Self {
            questions: register::start("lookup", run)?,
            rule,
            login,
            queued,
            counting,
        })
    }

    /// Whether this is the thread of this rule with these credentials.
    pub(super) fn is_for(&self, rule: &RuleName, login: Option<&Login>) -> bool {
        self.rule == *rule && self.login.as_ref() == login
    }

    /// Has a database asked. Never waits.
    pub(super) fn ask(&self, database: SocketAddr, id: &[u8]) {
        if self.queued.load(Relaxed) >= MAX_QUEUED {
            return self.counting.clone().looked_up(LookedUp::Busy);
        }
        self.queued.fetch_add(1, Relaxed);
        let id = id.into();
        // The thread ends with this sender.
        let _ = self.questions.send(Question { database, id });
    }
}

/// Hands questions to the tasks of their databases, each once in a while.
async fn run(
    mut taken: UnboundedReceiver<Question>,
    queued: Arc<AtomicUsize>,
    database: impl Fn(SocketAddr) -> Asked,
) {
    let mut databases = HashMap::<SocketAddr, mpsc::Sender<Box<[u8]>>>::new();
    let mut asked = HashMap::<Question, Instant>::new();
    while let Some(question) = taken.recv().await {
        queued.fetch_sub(1, Relaxed);
        let now = Instant::now();
        let lately = |at: &Instant| now.saturating_duration_since(*at) < AGAIN;
        if asked.get(&question).is_some_and(lately) {
            continue;
        }
        if asked.len() >= MAX_ASKED {
            asked.clear();
        }
        let (at, id) = (question.database, question.id.clone());
        asked.insert(question, now);
        databases.retain(|_, sender| !sender.is_closed());
        let busy = || database(at).counting.looked_up(LookedUp::Busy);
        let sender = match databases.get(&at) {
            Some(sender) => sender,
            None if databases.len() >= MAX_DATABASES => {
                busy();
                continue;
            }
            None => {
                let (sender, ids) = mpsc::channel(MAX_WAITING);
                tokio::spawn(serve(database(at), ids));
                databases.entry(at).or_insert(sender)
            }
        };
        // One whose task ends at this moment is asked again in a while.
        if let Err(TrySendError::Full(_) | TrySendError::Closed(_)) = sender.try_send(id) {
            busy();
        }
    }
}

/// Asks a database, until there is nothing to ask.
async fn serve(mut database: Asked, mut ids: mpsc::Receiver<Box<[u8]>>) {
    let mut client = None;
    let mut rests_until: Option<Instant> = None;
    loop {
        let idle = match rests_until {
            Some(until) => until.saturating_duration_since(Instant::now()).max(IDLE),
            None => IDLE,
        };
        let Ok(Some(id)) = timeout(idle, ids.recv()).await else {
            return;
        };
        if rests_until.is_some_and(|until| Instant::now() < until) {
            database.counting.looked_up(LookedUp::Failed);
            continue;
        }
        rests_until = None;
        let found = database.ask(&mut client, &id).await;
        let outcome = found.unwrap_or_else(|why| {
            let (rule, at) = (&database.rule, database.at);
            tracing::warn!(%rule, database = %at, error = %said(&why),
                "a database does not tell texts of prepared statements, and is asked again in a minute");
            client = None;
            rests_until = Some(Instant::now() + REST);
            LookedUp::Failed
        });
        database.counting.looked_up(outcome);
        sleep(PACE).await;
    }
}

impl Asked {
    /// Asks for one statement.
    ///
    /// # Errors
    /// The database does not answer as it should.
    async fn ask(
        &self,
        client: &mut Option<Client<TcpStream>>,
        id: &[u8],
    ) -> Result<LookedUp, NoAnswer> {
        let until = Instant::now() + PATIENCE;
        let client = match client {
            Some(client) => client,
            None => client.insert(self.open(until).await?),
        };
        let rows = client.query(&question_text(id), until).await?;
        let told = rows.read(|row| {
            let keyspace: Option<String> = row.by_name("logged_keyspace").ok()?;
            let text: Option<String> = row.by_name("query_string").ok()?;
            Some((keyspace, text?))
        })?;
        let Some((keyspace, text)) = told.first() else {
            return Ok(LookedUp::NotFound);
        };
        match prepared_in(id, keyspace.as_deref(), text.as_bytes()) {
            Some(keyspace) => {
                let prepared = self.prepared.at(Database::new(self.at, 0));
                prepared.learn(id, keyspace, text.as_bytes());
                Ok(LookedUp::Found)
            }
            None => Ok(LookedUp::Mismatch),
        }
    }

    async fn open(&self, until: Instant) -> Result<Client<TcpStream>, NoAnswer> {
        let dials = self.dials.get().ok_or(io::ErrorKind::NotConnected);
        let dials = dials.map_err(io::Error::from)?;
        let connected = tokio::time::timeout_at(until.into(), dials.connect(self.at)).await;
        let stream = connected.map_err(|_| NoAnswer::Late)??;
        let startup = cql_client::startup(Compression::None);
        let login = self.login.as_ref().map(Login::auth_response);
        let hello = Hello {
            version: Version::V4,
            compression: Compression::None,
            startup: &startup,
            auth_response: login.as_ref().map(|body| &body[..]),
            keyspace: None,
        };
        Client::open(stream, &hello, until).await
    }
}

/// The reason why a database does not tell, for the log.
fn said(why: &NoAnswer) -> String {
    match why {
        NoAnswer::LoginWanted => "it wants a log-in: `username`, `password_file`".to_owned(),
        why => why.to_string(),
    }
}
