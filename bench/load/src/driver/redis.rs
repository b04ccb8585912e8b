//! The `redis` crate: a connection for each thread, which waits for each answer.

use std::net::SocketAddr;

use anyhow::{Context, ensure};
use redis::{
    Client, Connection, ConnectionAddr, ConnectionInfo, IntoConnectionInfo, Pipeline, Value,
};

use super::requests::Requests;
use crate::{
    order::{Answer, Credentials, Seed},
    pace::Pace,
    raw::{
        ANSWER_LIMIT,
        protocol::{At, Draw},
        redis::command::put_word,
    },
    tally::Tally,
    threads::{Run, on_threads},
    workload::{
        Job, Step,
        words::{self, Part},
    },
};

/// Threads with a connection each.
pub struct Driver {
    lanes: Vec<Lane>,
}

struct Lane {
    /// The connections, one for each target.
    connections: Vec<Connection>,
    operations: Vec<Vec<Commands>>,
    requests: Requests,
    pace: Pace,
    /// The buffer of a word, kept for its memory.
    word: Vec<u8>,
}

#[derive(Clone)]
struct Commands {
    words: Vec<Vec<Part>>,
    count: usize,
}

impl Driver {
    /// Connects.
    ///
    /// # Errors
    /// When a target refuses, or the job does not fit the targets.
    pub fn connect(
        job: &Job,
        targets: &[SocketAddr],
        credentials: Option<&Credentials>,
        seed: Seed,
    ) -> anyhow::Result<Self> {
        ensure!(!targets.is_empty(), "no targets");
        let operations = job.operations.iter();
        let operations = operations.map(|o| o.steps.iter().map(Commands::new).collect());
        let operations: Vec<Vec<_>> = operations.collect::<anyhow::Result<_>>()?;
        let requests = Requests::of_threads(job, targets.len(), seed)?;
        let lanes = requests.into_iter().enumerate().map(|(thread, requests)| {
            let connect = |target: &SocketAddr| connect(*target, credentials);
            Ok(Lane {
                connections: targets.iter().map(connect).collect::<anyhow::Result<_>>()?,
                operations: operations.clone(),
                requests,
                pace: Pace::new(job.rate, thread, job.threads),
                word: Vec::new(),
            })
        });
        Ok(Self {
            lanes: lanes.collect::<anyhow::Result<_>>()?,
        })
    }

    /// Works for so long.
    ///
    /// # Errors
    /// When a connection ends. Commands that Redis refuses are counted.
    pub fn work(&mut self, seconds: f64) -> anyhow::Result<Answer> {
        on_threads(&mut self.lanes, seconds, |lane, run| lane.work(run))
    }
}

impl Lane {
    fn work(&mut self, run: &Run) -> anyhow::Result<Tally> {
        let mut tally = Tally::new(run.end_ns)?;
        self.pace.restart(run, &mut tally);
        while let Some(intended_ns) = self.pace.next(run, &mut tally) {
            let (target, at, mut draw) = self.requests.next()?;
            let connection = self.connections.get_mut(target).context("no target")?;
            let steps = self.operations.get(at.operation).context("no operation")?;
            let mut done = Ok(());
            for commands in steps {
                let request = commands.request(at, &mut draw, &mut self.word);
                done = request.query::<Vec<Value>>(connection).map(drop);
                if done.is_err() {
                    break;
                }
            }
            let now_ns = self.pace.end(run);
            match done {
                Ok(()) => tally.done(intended_ns, now_ns),
                Err(error) if error.is_unrecoverable_error() => {
                    return Err(error).context("the connection");
                }
                Err(error) => tally.fail(error.to_string()),
            }
        }
        Ok(tally)
    }
}

impl Commands {
    fn new(step: &Step) -> anyhow::Result<Self> {
        let Step::Redis { command, count } = step else {
            anyhow::bail!("a step of CQL for Redis");
        };
        let words = command.iter().map(|word| words::parse(word));
        Ok(Self {
            words: words.collect::<anyhow::Result<_>>()?,
            count: *count,
        })
    }

    /// The first with the operation's key, the others each with one of its own.
    fn request(&self, at: At, draw: &mut Draw<'_>, word: &mut Vec<u8>) -> Pipeline {
        let mut pipeline = Pipeline::with_capacity(self.count);
        for n in 0..self.count {
            let key = if n == 0 { at.key } else { draw.further_key(at) };
            let mut command = redis::Cmd::new();
            for parts in &self.words {
                word.clear();
                put_word(parts, key, draw.values, word);
                command.arg(word.as_slice());
            }
            pipeline.add_command(command);
        }
        pipeline
    }
}

fn connect(target: SocketAddr, credentials: Option<&Credentials>) -> anyhow::Result<Connection> {
    let address = ConnectionAddr::Tcp(target.ip().to_string(), target.port());
    let info: ConnectionInfo = address.into_connection_info()?;
    let mut settings = info.redis_settings().clone();
    if let Some(Credentials { user, password }) = credentials {
        settings = settings.set_username(user).set_password(password);
    }
    let client = Client::open(info.set_redis_settings(settings))?;
    let connected = client.get_connection_with_timeout(ANSWER_LIMIT);
    let connection = connected.with_context(|| format!("the driver cannot connect to {target}"))?;
    connection.set_read_timeout(Some(ANSWER_LIMIT))?;
    connection.set_write_timeout(Some(ANSWER_LIMIT))?;
    Ok(connection)
}
