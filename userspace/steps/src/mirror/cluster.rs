//! A second cluster, as the steps of a rule see it: jobs are handed over to a thread that asks the
//! cluster.
//!
//! Handing over never waits: everything in hand is bounded by the [`Budget`], so that queues need
//! no bound of their own.

use std::{
    collections::HashMap,
    fmt, io,
    sync::Arc,
    time::{Duration, Instant},
};

use cql_edit::Copied;
use dataplane::backends::Probe;
use policy::RuleName;
use tls::Outward;
use tokio::sync::mpsc;

use super::{
    Checked, Login,
    budget::{Budget, Permit},
    exchange::Exchange,
    leg,
    metrics::{Counters, Fate, MirrorMetrics},
    out::Out,
    telling::{Away, Told},
    texts::{Text, Texts},
};
use crate::register::{self, Dials, Register};

/// The most keyspaces in use at the same time; each has a connection of its own.
pub(super) const MAX_LEGS: usize = 64;

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

/// The state that the cluster's thread shares with flows.
pub(super) struct Shared {
    pub(super) rule: RuleName,
    pub(super) settings: Checked,
    pub(super) login: Option<Login>,
    pub(super) tls: Option<Arc<Outward>>,
    pub(super) counters: Counters,
    pub(super) texts: Texts,
    pub(super) out: Out,
    pub(super) told: Told,
    pub(super) away: Away,
    pub(super) dials: Dials,
    budget: Arc<Budget>,
    /// The budget for texts whose PREPARE is not answered.
    preparing: Arc<Budget>,
}

/// A request to be asked of the mirror.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) copied: Copied,
    /// The request's prepared statements, in their order.
    pub(super) prepared: Vec<Arc<Text>>,
    pub(super) deadline: Instant,
    pub(super) exchange: Arc<Exchange>,
}

#[derive(Debug)]
enum Message {
    Ask(Option<Arc<str>>, Job),
    Compare(Arc<Exchange>),
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shared = f.debug_struct("Shared");
        shared.field("rule", &self.rule).finish_non_exhaustive()
    }
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

impl Job {
    /// Ends the job without an answer, for this reason.
    pub(super) fn fails(self, fate: Fate, shared: &Shared) {
        self.exchange.take_mirror_answer(Err(fate), shared);
    }
}

/// Runs until no rule and no flow has the cluster any more.
async fn run(shared: Arc<Shared>, mut messages: mpsc::UnboundedReceiver<Message>) {
    let mut legs = HashMap::<Option<Arc<str>>, mpsc::UnboundedSender<Job>>::new();
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
        if legs.get(&keyspace).is_none_or(|leg| leg.is_closed()) {
            legs.retain(|_, leg| !leg.is_closed());
            if legs.len() >= MAX_LEGS {
                job.fails(Fate::Keyspaces, &shared);
                continue;
            }
            let leg = leg::start(shared.clone(), keyspace.clone());
            legs.insert(keyspace.clone(), leg);
        }
        let Some(leg) = legs.get(&keyspace) else {
            continue;
        };
        if let Err(mpsc::error::SendError(job)) = leg.send(job) {
            job.fails(Fate::Away, &shared);
        }
    }
}
