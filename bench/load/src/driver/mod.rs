//! The `scylla` driver: threads that share one session to each target.
//!
//! In a closed loop each thread waits for each answer (the shape of cassandra-stress); on a
//! schedule threads hand requests to the driver when they are due, and up to
//! `connections × depth` are in flight.

mod lane;
mod requests;
mod statements;

use std::{
    net::SocketAddr,
    num::NonZeroUsize,
    sync::Arc,
    thread::{self, JoinHandle},
};

use anyhow::{Context, ensure};
use scylla::{
    client::{PoolSize, session::Session, session_builder::SessionBuilder},
    statement::Consistency,
};
use tokio::sync::oneshot;

use crate::{
    order::{Answer, Credentials, Seed},
    pace::Pace,
    threads::on_threads,
    workload::Job,
};
use lane::Lane;
use requests::Requests;
use statements::Target;

/// Threads around sessions.
pub struct Driver {
    lanes: Vec<Lane>,
    /// The sender whose drop ends the thread below.
    _stop: oneshot::Sender<()>,
    /// The thread on which the driver's own tasks run.
    _thread: JoinHandle<()>,
}

impl Driver {
    /// Connects and prepares.
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
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let connections = job.connections.div_ceil(targets.len());
        let sessions = runtime.block_on(async {
            let mut sessions = Vec::new();
            for target in targets {
                let session = session(*target, credentials, connections).await?;
                sessions.push(Target::open(session, job).await?);
            }
            anyhow::Ok(sessions)
        })?;
        let sessions: Arc<[Target]> = sessions.into();
        let in_flight = (job.connections * job.depth / job.threads).max(1);
        let requests = Requests::of_threads(job, targets.len(), seed)?;
        let lanes = requests
            .into_iter()
            .enumerate()
            .map(|(thread, requests)| Lane {
                targets: Arc::clone(&sessions),
                runtime: runtime.handle().clone(),
                requests,
                pace: Pace::new(job.rate, thread, job.threads),
                in_flight,
            });
        let lanes = lanes.collect();
        let (stop, stopped) = oneshot::channel();
        let thread = thread::Builder::new()
            .name("driver".into())
            .spawn(move || drop(runtime.block_on(stopped)))?;
        Ok(Self {
            lanes,
            _stop: stop,
            _thread: thread,
        })
    }

    /// Works for so long.
    ///
    /// # Errors
    /// When the driver does not end. Requests that fail are counted.
    pub fn work(&mut self, seconds: f64) -> anyhow::Result<Answer> {
        on_threads(&mut self.lanes, seconds, Lane::work)
    }
}

async fn session(
    to: SocketAddr,
    credentials: Option<&Credentials>,
    connections: usize,
) -> anyhow::Result<Session> {
    let profile = scylla::client::execution_profile::ExecutionProfile::builder()
        .consistency(Consistency::One)
        .build();
    let mut builder = SessionBuilder::new()
        .known_node_addr(to)
        .default_execution_profile_handle(profile.into_handle());
    if let Some(connections) = NonZeroUsize::new(connections) {
        builder = builder.pool_size(PoolSize::PerHost(connections));
    }
    if let Some(Credentials { user, password }) = credentials {
        builder = builder.user(user, password);
    }
    let session = builder.build().await;
    session.with_context(|| format!("the driver cannot connect to {to}"))
}
