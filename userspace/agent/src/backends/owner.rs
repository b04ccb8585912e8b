//! The task that owns the state of backends: it has them checked, takes orders, and tells the
//! kernel and the agent which backends get new connections.
//!
//! **Invariant**: at most one check of a backend is under way, and none is awaited here: a slow
//! check delays no other.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{Arc, PoisonError},
    time::{Duration, SystemTime},
};

use dataplane::backends::{Probe, Severed, Weights};
use flow::{CloseReason, commands::FlowCommand};
use policy::{Policy, RuleName};
use proxy::{Choice, ProxyContext, Share};
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
    time::{self, Instant},
};

use super::{
    asked::Asked,
    check::check,
    health::{Health, Order, State},
    health_check::{Established, HealthCheck},
    member::Member,
    view::{BackendMetrics, BackendView},
};
use crate::{edge::SharedEdge, observed::SharedDataplane};

/// A weight that grows is told at most so often: a step that nobody would notice is not worth a write
/// into the kernel.
const SHORTEST_STEP: Duration = Duration::from_millis(50);
/// A slow start is told in so many steps.
const STEPS: u32 = 100;

/// The owner of all backends.
pub struct Owner {
    probe: Probe,
    severed: Severed,
    shared: Arc<ProxyContext>,
    dataplane: SharedDataplane,
    edge: SharedEdge,
    metrics: BackendMetrics,
    policy: watch::Receiver<Arc<Policy>>,
    settings: watch::Receiver<HealthCheck>,
    asked: mpsc::Receiver<Asked>,
    tell: watch::Sender<Choice>,
    members: BTreeMap<SocketAddr, Member>,
    checks: JoinSet<(SocketAddr, Instant, Result<(), String>)>,
    /// Set when what was published last may not hold any more.
    is_stale: bool,
}

impl Owner {
    /// Makes the owner of the backends of `shared`'s policy.
    pub fn new(
        (probe, severed): (Probe, Severed),
        shared: Arc<ProxyContext>,
        (dataplane, edge): (SharedDataplane, SharedEdge),
        metrics: BackendMetrics,
        settings: watch::Receiver<HealthCheck>,
        (asked, tell): (mpsc::Receiver<Asked>, watch::Sender<Choice>),
    ) -> Self {
        Self {
            probe,
            severed,
            policy: shared.policy.clone(),
            shared,
            dataplane,
            edge,
            metrics,
            settings,
            asked,
            tell,
            members: BTreeMap::new(),
            checks: JoinSet::new(),
            is_stale: false,
        }
    }

    /// Runs until nobody changes the policy any more.
    pub async fn run(mut self) {
        self.adopt(false);
        // Before anybody is told: orders that the agent before had.
        while let Ok(asked) = self.asked.try_recv() {
            self.answer(asked);
        }
        loop {
            if self.is_stale {
                self.tell();
            }
            let next = self.next_moment();
            tokio::select! {
                changed = self.policy.changed() => match changed {
                    Ok(()) => self.adopt(true),
                    Err(_) => return,
                },
                changed = self.settings.changed() => match changed {
                    Ok(()) => self.is_stale = true,
                    Err(_) => return,
                },
                Some(asked) = self.asked.recv() => self.answer(asked),
                Some(done) = self.checks.join_next() => match done {
                    Ok((backend, began, result)) => self.checked(backend, began, result),
                    Err(error) => tracing::error!(%error, "a health check ended without a result"),
                },
                () = at(next) => self.begin_checks(),
            }
        }
    }

    /// Takes in what the policy names; who stays keeps what is known of it. `joins`: backends were in
    /// use before.
    fn adopt(&mut self, joins: bool) {
        let policy = self.policy.borrow_and_update().clone();
        let mut named: BTreeMap<SocketAddr, Vec<RuleName>> = BTreeMap::new();
        for rule in &policy.rules {
            for backend in &rule.backends {
                named.entry(*backend).or_default().push(rule.name.clone());
            }
        }
        let joins = joins && !self.members.is_empty();
        let metrics = &self.metrics;
        self.members.retain(|at, _| {
            let stays = named.contains_key(at);
            if !stays {
                metrics.forget(*at);
            }
            stays
        });
        let now = Instant::now();
        for (at, rules) in named {
            let member = self.members.entry(at).or_insert_with(|| Member {
                health: Health::new(now, joins),
                rules: Vec::new(),
                changed_at: SystemTime::now(),
                last_error: None,
                good: 0,
                failed: 0,
                next_check: now,
                is_checked: false,
            });
            member.rules = rules;
        }
        self.is_stale = true;
    }

    /// Returns the time when there is something to do unasked.
    fn next_moment(&self) -> Option<Instant> {
        let due = self.members.values().filter(|m| !m.is_checked);
        let due = due.map(|member| member.next_check).min();
        let now = Instant::now();
        let settings = self.settings.borrow();
        let mut members = self.members.values();
        let warms = members.any(|m| m.health.is_warming(now, &settings));
        let step = (settings.slow_start / STEPS).max(SHORTEST_STEP);
        due.into_iter().chain(warms.then(|| now + step)).min()
    }

    fn begin_checks(&mut self) {
        let now = Instant::now();
        let settings = self.settings.borrow().clone();
        for (at, member) in &mut self.members {
            if member.is_checked || member.next_check > now {
                continue;
            }
            member.is_checked = true;
            let (probe, at, settings) = (self.probe, *at, settings.clone());
            self.checks
                .spawn(async move { (at, now, check(probe, at, &settings).await) });
        }
        // Weights may have grown, too.
        self.is_stale = true;
    }

    fn checked(&mut self, backend: SocketAddr, began: Instant, result: Result<(), String>) {
        let Some(member) = self.members.get_mut(&backend) else {
            return;
        };
        member.is_checked = false;
        self.metrics.checked(backend, result.is_ok());
        match result {
            Ok(()) => member.good += 1,
            Err(_) => member.failed += 1,
        }
        self.learn(backend, began, result);
    }

    /// Notes the result of a check or dial that began at `began`.
    fn learn(&mut self, backend: SocketAddr, began: Instant, result: Result<(), String>) {
        let settings = self.settings.borrow().clone();
        let Some(member) = self.members.get_mut(&backend) else {
            return;
        };
        let now = Instant::now();
        let changed = member.health.checked(result.is_ok(), now, &settings);
        let wait = member.health.wait(fastrand::f64(), &settings);
        member.next_check = (began + wait).max(now);
        member.last_error = result.err().or(member.last_error.take());
        if let Some(state) = changed {
            member.changed_at = SystemTime::now();
            self.note_state(backend, state);
        }
    }

    fn answer(&mut self, asked: Asked) {
        // The one that asked may have gone.
        match asked {
            Asked::List(answer) => drop(answer.send(self.views())),
            Asked::Suspect(backend, why) => {
                let up = |m: &Member| m.health.state() == State::Up;
                if self.members.get(&backend).is_some_and(up) {
                    self.learn(backend, Instant::now(), Err(why));
                }
            }
            Asked::Order(backend, order, answer) => {
                self.order(backend, order);
                let all = self.views();
                let at = backend.to_string();
                drop(answer.send(all.into_iter().find(|view| view.backend == at)));
            }
        }
    }

    fn order(&mut self, backend: SocketAddr, order: Option<Order>) {
        let Some(member) = self.members.get_mut(&backend) else {
            return;
        };
        tracing::info!(%backend, ?order, "an operator gave an order for a backend");
        if let Some(state) = member.health.order(order, Instant::now()) {
            member.changed_at = SystemTime::now();
            self.note_state(backend, state);
        }
        // No connection of a moment later goes by what was before.
        self.tell();
    }

    fn note_state(&mut self, backend: SocketAddr, state: State) {
        self.is_stale = true;
        let why = self.members.get(&backend);
        let why = why.and_then(|member| member.last_error.as_deref());
        match state {
            State::Down => tracing::warn!(%backend, why, "backend is down"),
            state => tracing::info!(%backend, "backend is {}", state.as_str()),
        }
        if state == State::Down && self.settings.borrow().established == Established::Reset {
            self.reset_connections_to(backend);
        }
    }

    fn reset_connections_to(&self, backend: SocketAddr) {
        for flow in self.shared.flows.all() {
            if flow.backend() == Some(backend) {
                // The answer is not waited for.
                drop(
                    flow.commands
                        .post(FlowCommand::close(CloseReason::BackendDown)),
                );
            }
        }
        let severed = self.severed.clone();
        // Nor is this: it looks at every connection of the host.
        drop(tokio::task::spawn_blocking(move || {
            match severed.reset(backend) {
                Ok(0) => {}
                Ok(connections) => {
                    tracing::info!(%backend, connections, "balanced connections reset")
                }
                Err(error) => {
                    tracing::error!(%backend, %error, "cannot reset balanced connections");
                }
            }
        }));
        let edge = self.edge.clone();
        drop(tokio::task::spawn_blocking(move || {
            let mut edge = edge.lock().unwrap_or_else(PoisonError::into_inner);
            match edge.as_mut().map(|edge| edge.reset(backend)) {
                None | Some(Ok(0)) => {}
                Some(Ok(connections)) => {
                    tracing::info!(%backend, connections, "forwarded connections given up")
                }
                Some(Err(error)) => {
                    tracing::error!(%backend, %error, "cannot give up forwarded connections");
                }
            }
        }));
    }

    fn tell(&mut self) {
        let now = Instant::now();
        let settings = self.settings.borrow().clone();
        let weight = |m: &Member| m.health.weight(now, &settings);
        let weights: Weights = self
            .members
            .iter()
            .map(|(at, m)| (*at, weight(m)))
            .collect();
        let told = self.tell.borrow().clone();
        let mut shares = shares(&self.policy.borrow(), &weights);
        for share in &mut shares {
            // The table that the share may have by now is kept.
            let mut before = told.shares.iter();
            if let Some(same) = before.find(|before| *before == &*share) {
                *share = same.clone();
            }
        }
        for (at, weight) in &weights {
            if told.weights.get(at) != Some(weight) {
                self.metrics.stands(*at, *weight);
            }
        }
        if *told.weights != weights {
            let mut dataplane = self
                .dataplane
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            let written = dataplane.as_mut().map(|d| d.set_weights(&weights));
            if let Some(Err(error)) = written {
                // Writing is tried again at the next moment.
                tracing::error!(%error, "cannot tell the kernel which backends get new connections: it balances as before");
                return;
            }
        }
        self.is_stale = false;
        let choice = Choice {
            weights: Arc::new(weights),
            shares: Arc::new(shares),
        };
        if told != choice {
            self.tell.send_replace(choice);
        }
    }

    fn views(&self) -> Vec<BackendView> {
        let (now, settings) = (Instant::now(), self.settings.borrow());
        let mut flows: BTreeMap<SocketAddr, usize> = BTreeMap::new();
        for backend in self.shared.flows.all().iter().filter_map(|f| f.backend()) {
            *flows.entry(backend).or_default() += 1;
        }
        let connections = self.connections();
        let view = |(at, member): (&SocketAddr, &Member)| {
            let flows = flows.get(at).copied().unwrap_or(0);
            let balanced = connections.get(at).copied().unwrap_or(0);
            BackendView::new(*at, member, (now, &settings), flows, balanced)
        };
        self.members.iter().map(view).collect()
    }

    /// New ones that the kernel has sent there, whatever the rule.
    fn connections(&self) -> BTreeMap<SocketAddr, u64> {
        let dataplane = self
            .dataplane
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let counts = dataplane.as_ref().map(|d| d.backend_counts());
        let mut sums = BTreeMap::new();
        for count in counts.and_then(Result::ok).unwrap_or_default() {
            *sums.entry(count.backend).or_default() += count.connections;
        }
        sums
    }
}

fn shares(policy: &Policy, weights: &Weights) -> Vec<Share> {
    let weight = |at: &SocketAddr| weights.get(at).copied().unwrap_or(0);
    let rules = policy.rules.iter().filter(|rule| !rule.backends.is_empty());
    rules
        .map(|rule| {
            let backends = rule.backends.iter().map(|at| (*at, weight(at)));
            Share::new(rule.name.clone(), backends.collect())
        })
        .collect()
}

async fn at(when: Option<Instant>) {
    match when {
        Some(when) => time::sleep_until(when).await,
        None => std::future::pending().await,
    }
}
