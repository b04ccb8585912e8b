//! A second cluster, as the steps of a rule know it: what they hand over, and the thread that takes it.
//!
//! Handing over never waits: what is in hand is bounded by the [`Budget`], so that queues need no bound of their own.

use std::{
    collections::HashMap,
    fmt, io,
    sync::Arc,
    time::{Duration, Instant},
};

use cql_edit::Copied;
use dataplane::backends::Probe;
use policy::RuleName;
use tokio::sync::mpsc;

use super::super::register::{self, Dials, Register};
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
use crate::tls::Outward;

/// Keyspaces at the same time, each with a connection of its own.
pub(super) const MAX_LEGS: usize = 64;

/// What was not answered is looked for as often.
const SWEEP_EVERY: Duration = Duration::from_secs(1);

/// The open ones, and what they need of the agent.
#[derive(Debug)]
pub struct Mirrors {
    open: Register<Cluster>,
    pub(super) metrics: MirrorMetrics,
}

/// One of them.
#[derive(Debug)]
pub(super) struct Cluster {
    pub(super) shared: Arc<Shared>,
    messages: mpsc::UnboundedSender<Message>,
}

/// What its thread shares with flows.
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
    /// For texts whose PREPARE is not answered.
    preparing: Arc<Budget>,
}

/// A request to be asked of the mirror.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) copied: Copied,
    /// Its prepared statements, in their order.
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
    /// None is open yet.
    pub fn new(metrics: MirrorMetrics) -> Self {
        Self {
            open: Register::new(),
            metrics,
        }
    }

    /// From now on they can be reached.
    pub fn dial_by(&self, probe: Probe) {
        self.open.dial_by(probe);
    }

    /// Gives each metric a first sample, so that the documentation sees it.
    pub fn declare_for_docs(&self) {
        self.metrics.declare_for_docs();
    }

    /// The one of this rule. Whether it is there is found out with the first request. One that is open has these certificates
    /// from its next connection on.
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

    /// Room for a request of so many bytes. None: as much is in hand as may be.
    pub(super) fn permit(&self, bytes: usize) -> Option<Permit> {
        self.shared.budget.take(bytes)
    }

    /// Room for a text that is prepared. None: it is not remembered, and has to be prepared again.
    pub(super) fn permit_to_prepare(&self, bytes: usize) -> Option<Permit> {
        self.shared.preparing.take(bytes)
    }

    /// Has it asked, where the flow is in this keyspace.
    pub(super) fn ask(&self, keyspace: Option<Arc<str>>, job: Job) {
        self.send(Message::Ask(keyspace, job));
    }

    /// Has the answers compared.
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
    /// There is no answer, for this reason.
    pub(super) fn fails(self, fate: Fate, shared: &Shared) {
        self.exchange.is_mirrored(Err(fate), shared);
    }
}

/// Until no rule and no flow has it any more.
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
        // One that had nothing to do for a while has ended.
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
