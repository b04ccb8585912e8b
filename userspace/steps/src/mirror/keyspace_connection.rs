//! A mirror's connection for one keyspace, which is made, lost and made again.

use std::{
    collections::VecDeque,
    io,
    sync::Arc,
    time::{Duration, Instant},
};

use cql_client::{Client, Hello, NoAnswer, Version};
use tokio::{
    sync::mpsc,
    time::{sleep, timeout},
};

use super::{
    connection::{Connection, Ended},
    metrics::Fate,
    shared::{Job, Shared},
    stream::{self, Stream},
};
use crate::login::Login;

/// The time limit for connecting, TLS, logging in and USE.
const OPENING: Duration = Duration::from_secs(5);

/// The first and the longest pause between two attempts.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

type Jobs = mpsc::UnboundedReceiver<Job>;

/// Starts the connection's task, which ends when it has nothing to do for a while. Jobs that are
/// sent to it are bounded by the budget.
pub(super) fn start(shared: Arc<Shared>, keyspace: Option<Arc<str>>) -> mpsc::UnboundedSender<Job> {
    let (sender, mut jobs) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        run(&shared, &keyspace, &mut jobs).await;
        jobs.close();
        while let Some(job) = jobs.recv().await {
            job.fails(Fate::Away, &shared);
        }
    });
    sender
}

async fn run(shared: &Arc<Shared>, keyspace: &Option<Arc<str>>, jobs: &mut Jobs) {
    let mut pause = FIRST_PAUSE;
    loop {
        let mut waiting = VecDeque::new();
        match opened(shared, keyspace.as_deref(), jobs, &mut waiting).await {
            Some(Ok(stream)) => {
                shared.report_back(keyspace);
                pause = FIRST_PAUSE;
                match Connection::new(stream, shared, waiting).serve(jobs).await {
                    Ended::Idle => return,
                    Ended::Broken(error) => shared.report_away(keyspace, &error),
                }
            }
            Some(Err(error)) => {
                shared.report_away(keyspace, &error);
                for job in waiting {
                    job.fails(Fate::Away, shared);
                }
            }
            None => return,
        }
        let asked = fail_for(pause, shared, jobs).await;
        if !asked {
            return;
        }
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Connects. Jobs that come meanwhile wait until their deadlines. None: nobody asks any more.
async fn opened(
    shared: &Shared,
    keyspace: Option<&str>,
    jobs: &mut Jobs,
    waiting: &mut VecDeque<Job>,
) -> Option<io::Result<Stream>> {
    let mut opening = Box::pin(timeout(OPENING, open(shared, keyspace)));
    let mut is_over = false;
    loop {
        let next = waiting.front().map(|job| job.deadline);
        tokio::select! {
            opened = &mut opening => {
                let late = || io::Error::from(io::ErrorKind::TimedOut);
                return Some(opened.unwrap_or_else(|_| Err(late())));
            }
            job = jobs.recv(), if !is_over => match job {
                Some(job) => waiting.push_back(job),
                None if waiting.is_empty() => return None,
                None => is_over = true,
            },
            () = until(next), if next.is_some() => {
                let now = Instant::now();
                while waiting.front().is_some_and(|job| job.deadline <= now)
                    && let Some(job) = waiting.pop_front()
                {
                    job.fails(Fate::Late, shared);
                }
            }
        }
    }
}

/// Sleeps until `time`; for ever without one.
async fn until(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time.into()).await,
        None => std::future::pending().await,
    }
}

async fn open(shared: &Shared, keyspace: Option<&str>) -> io::Result<Stream> {
    let dials = shared.dials.get().ok_or(io::ErrorKind::NotConnected)?;
    let stream = dials.connect(shared.settings.to).await?;
    let stream = stream::begin(stream, shared.tls.as_deref()).await?;
    let compression = shared.settings.compression;
    let startup = cql_client::startup(compression);
    let login = shared.login.as_ref().map(Login::auth_response);
    let hello = Hello {
        version: Version::V4,
        compression,
        startup: &startup,
        auth_response: login.as_ref().map(|body| &body[..]),
        keyspace,
    };
    // Its own deadline is never the earlier one.
    let client = Client::open(stream, &hello, Instant::now() + OPENING).await;
    let (stream, incoming) = client.map_err(said)?.into_parts();
    match incoming.held_bytes() {
        0 => Ok(stream),
        _ => Err(said(NoAnswer::NotAsked)),
    }
}

/// The reason why a mirror does not let the agent in, for the log.
fn said(why: NoAnswer) -> io::Error {
    match why {
        NoAnswer::Io(error) => error,
        NoAnswer::LoginWanted => io::Error::other("it wants a log-in: `username`, `password_file`"),
        why => io::Error::other(why),
    }
}

/// Fails all jobs for this long, because the mirror is away. False: there was none.
async fn fail_for(pause: Duration, shared: &Shared, jobs: &mut Jobs) -> bool {
    let mut asked = false;
    let mut over = Box::pin(sleep(pause));
    loop {
        tokio::select! {
            () = &mut over => return asked,
            job = jobs.recv() => match job {
                Some(job) => {
                    asked = true;
                    job.fails(Fate::Away, shared);
                }
                None => return false,
            }
        }
    }
}
