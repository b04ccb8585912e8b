//! A second cluster, as the steps of a rule see it: jobs are handed over to a thread that asks the
//! cluster.
//!
//! Handing over never waits: everything in hand is bounded by the [`Budget`], so that queues need
//! no bound of their own.

use std::{
    collections::HashMap,
    io,
    sync::Arc,
    time::{Duration, Instant},
};

use dataplane::backends::Probe;
use policy::RuleName;
use tls::Outward;
use tokio::sync::mpsc;

use super::{
    budget::{Budget, Permit},
    exchange::Exchange,
    keyspace_connection,
    metrics::{Fate, MirrorMetrics},
    out::Out,
    settings::Checked,
    shared::{Job, MAX_KEYSPACES, Shared},
    telling::{Away, Told},
    texts::Texts,
};
use crate::{
    login::Login,
    register::{self, Register},
};

/// The interval at which unanswered requests are looked for.
const SWEEP_EVERY: Duration = Duration::from_secs(1);

/// The open mirrors, and what they need of the agent.
#[derive(Debug)]
pub struct Mirrors {
    open: Register<Cluster>,
    pub(super) metrics: MirrorMetrics,
}

/// The cluster of one rule.
#[derive(Debug)]
pub(super) struct Cluster {
    pub(super) shared: Arc<Shared>,
    messages: mpsc::UnboundedSender<Message>,
}

#[derive(Debug)]
enum Message {
    Ask(Option<Arc<str>>, Job),
    Compare(Arc<Exchange>),
}

impl Mirrors {
    /// Makes the register; no mirror is open yet.
    pub fn new(metrics: MirrorMetrics) -> Self {
        Self {
            open: Register::new(),
            metrics,
        }
    }

    /// Gives the mirrors the probe with which they connect from now on.
    pub fn dial_by(&self, probe: Probe) {
        self.open.dial_by(probe);
    }

    /// Gives each metric a first sample, so that the documentation sees it.
    pub fn declare_for_docs(&self) {
        self.metrics.declare_for_docs();
    }

    /// Opens this rule's mirror, or returns the one that is open. The first request finds out
    /// whether the cluster is there. A mirror that is open gets these certificates from its next
    /// connection on.
    ///
    /// # Errors
    /// There can be no more threads, or descriptors.
    pub(super) fn open(
        &self,
        rule: &RuleName,
        settings: &Checked,
        login: Option<Login>,
        tls: Option<Outward>,
    ) -> io::Result<Arc<Cluster>> {
        let tls = tls.map(Arc::new);
        let is_same = |cluster: &Cluster| {
            let shared = &cluster.shared;
            shared.rule == *rule && shared.settings == *settings && shared.login == login
        };
        let cluster = self.open.one(is_same, |dials| {
            Cluster::start(Shared {
                rule: rule.clone(),
                settings: settings.clone(),
                login: login.clone(),
                tls: tls.clone(),
                counters: self.metrics.of(rule.as_str()),
                texts: Texts::default(),
                out: Out::default(),
                told: Told::default(),
                away: Away::default(),
                dials,
                budget: Budget::new(),
                preparing: Budget::new(),
            })
        })?;
        if let (Some(old), Some(new)) = (&cluster.shared.tls, &tls) {
            old.renew(new);
        }
        Ok(cluster)
    }
}

impl Cluster {
    fn start(shared: Shared) -> io::Result<Self> {
        let shared = Arc::new(shared);
        let of_thread = shared.clone();
        let messages = register::start("mirror", move |taken| run(of_thread, taken))?;
        Ok(Self { shared, messages })
    }

    /// Takes room for a request of this size. None: as much is in hand as may be.
    pub(super) fn permit(&self, bytes: usize) -> Option<Permit> {
        self.shared.budget.take(bytes)
    }

    /// Takes room for a text that is being prepared. None: the text is not remembered, and has to
    /// be prepared again.
    pub(super) fn permit_to_prepare(&self, bytes: usize) -> Option<Permit> {
        self.shared.preparing.take(bytes)
    }

    /// Asks the mirror, in this keyspace.
    pub(super) fn ask(&self, keyspace: Option<Arc<str>>, job: Job) {
        self.send(Message::Ask(keyspace, job));
    }

    /// Compares the answers on the mirror's thread.
    pub(super) fn compare(&self, exchange: Arc<Exchange>) {
        self.send(Message::Compare(exchange));
    }

    fn send(&self, message: Message) {
        if let Err(mpsc::error::SendError(Message::Ask(_, job))) = self.messages.send(message) {
            job.fails(Fate::Away, &self.shared);
        }
    }
}

/// Runs until no rule and no flow has the cluster any more.
async fn run(shared: Arc<Shared>, mut messages: mpsc::UnboundedReceiver<Message>) {
    let mut connections = HashMap::<Option<Arc<str>>, mpsc::UnboundedSender<Job>>::new();
    let mut sweep = tokio::time::interval(SWEEP_EVERY);
    loop {
        let message = tokio::select! {
            message = messages.recv() => message,
            _ = sweep.tick() => {
                shared.out.sweep(Instant::now());
                continue;
            }
        };
        let (keyspace, job) = match message {
            None => return,
            Some(Message::Compare(exchange)) => {
                shared.compare(&exchange);
                continue;
            }
            Some(Message::Ask(keyspace, job)) => (keyspace, job),
        };
        // A connection that had nothing to do for a while has ended.
        if connections
            .get(&keyspace)
            .is_none_or(|connection| connection.is_closed())
        {
            connections.retain(|_, connection| !connection.is_closed());
            if connections.len() >= MAX_KEYSPACES {
                job.fails(Fate::Keyspaces, &shared);
                continue;
            }
            let connection = keyspace_connection::start(shared.clone(), keyspace.clone());
            connections.insert(keyspace.clone(), connection);
        }
        let Some(connection) = connections.get(&keyspace) else {
            continue;
        };
        if let Err(mpsc::error::SendError(job)) = connection.send(job) {
            job.fails(Fate::Away, &shared);
        }
    }
}
