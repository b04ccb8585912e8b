//! Preparation and clean-up: tables, rows, and the database's version.

use std::net::SocketAddr;

use anyhow::{Context, ensure};

use crate::{
    order::{Credentials, Seed},
    raw::{
        Engine, Purpose,
        cql::{Cql, session::Session},
        protocol,
        redis::Redis,
    },
    workload::{Client, Distribution, Job, Keys, Protocol},
};

/// Connections to each target, and requests in flight on each: a database is kept busy, and
/// none is overrun.
const CONNECTIONS: usize = 4;
const DEPTH: usize = 32;

/// Longer than any fill that makes sense before a measurement.
const LIMIT_SECONDS: f64 = 1_800.0;

/// The seed of the values that fill; readers do not look at them.
const SEED: Seed = Seed {
    value: 1,
    number: 0,
};

/// Makes the tables anew on every target (a run that was killed may have left its own), and runs
/// the operation `fill` once for every key, at each target.
///
/// # Errors
/// The database refuses anything.
pub fn prepare(
    job: &Job,
    targets: &[SocketAddr],
    credentials: Option<&Credentials>,
) -> anyhow::Result<()> {
    // Without the keyspace there is nothing to take away, and the database says so.
    let _ = ask_all(&job.clear, targets, credentials);
    ask_all(&job.create, targets, credentials)?;
    let Some(fill) = filling(job, targets.len())? else {
        return Ok(());
    };
    match job.protocol {
        Protocol::Cql => run::<Cql>(&fill, targets, credentials),
        Protocol::Redis => run::<Redis>(&fill, targets, credentials),
        Protocol::Connect => Ok(()),
    }
}

/// Takes the tables away. Keys of Redis stay.
///
/// # Errors
/// When the database refuses.
pub fn clear(
    job: &Job,
    targets: &[SocketAddr],
    credentials: Option<&Credentials>,
) -> anyhow::Result<()> {
    ask_all(&job.clear, targets, credentials)
}

/// Returns the version that a Cassandra, or a database that acts as one, reports.
///
/// # Errors
/// The database does not answer.
pub fn version_of_cassandra(
    target: SocketAddr,
    credentials: Option<&Credentials>,
) -> anyhow::Result<String> {
    Session::open(target, credentials)?.text("SELECT release_version FROM system.local")
}

fn ask_all(
    statements: &[String],
    targets: &[SocketAddr],
    credentials: Option<&Credentials>,
) -> anyhow::Result<()> {
    if statements.is_empty() {
        return Ok(());
    }
    for target in targets {
        let mut session = Session::open(*target, credentials)?;
        for statement in statements {
            session.query(statement)?;
        }
    }
    Ok(())
}

/// A job that only fills.
fn filling(job: &Job, targets: usize) -> anyhow::Result<Option<Job>> {
    let Some(name) = &job.fill else {
        return Ok(None);
    };
    let found = job.operations.iter().find(|o| o.name == *name);
    let mut operation = found
        .with_context(|| format!("no operation {name:?}"))?
        .clone();
    operation.weight = 1;
    operation.connections = 0;
    operation.new_key = false;
    Ok(Some(Job {
        client: Client::Raw,
        threads: 1,
        connections: CONNECTIONS * targets,
        depth: DEPTH,
        nonblocking: false,
        rate: None,
        keys: Keys {
            count: job.keys.count,
            distribution: Distribution::Sequential,
        },
        operations: vec![operation],
        ..job.clone()
    }))
}

fn run<P: protocol::Protocol>(
    job: &Job,
    targets: &[SocketAddr],
    credentials: Option<&Credentials>,
) -> anyhow::Result<()> {
    let mut engine = Engine::<P>::connect(job, targets, credentials, SEED, Purpose::Fill)?;
    let answer = engine.work(LIMIT_SECONDS)?;
    let why = answer.first_error.unwrap_or_default();
    ensure!(
        answer.errors == 0,
        "filling: {} requests failed: {why}",
        answer.errors
    );
    ensure!(
        engine.is_exhausted(),
        "filling took longer than {LIMIT_SECONDS} s"
    );
    Ok(())
}
