//! The edge as the file configures it: opened while an interface is named, in step with the policy,
//! and left in the kernel when the agent goes.

use std::{
    collections::BTreeSet,
    io,
    net::SocketAddr,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use dataplane::{
    Edge,
    edge::{self, EdgeError, Forward, Guarded, Interface},
};
use policy::Policy;
use prometheus::{
    IntCounterVec, Opts,
    core::{Collector, Desc},
    proto::MetricFamily,
};
use proxy::{Choice, Share};
use telemetry::Rarely;
use tokio::sync::watch;

use crate::seconds;

/// The interval at which the host is asked for MACs that packets lacked.
const TEND_EVERY: Duration = Duration::from_secs(1);

/// Lines about an upkeep that fails.
static FAILED: Rarely = Rarely::failing();

/// Returns the virtual addresses that the agent takes: on a host that forwards, those of which a
/// rule wants it to see connections.
pub fn taken(interfaces: &[Interface], policy: &Policy) -> BTreeSet<SocketAddr> {
    match interfaces.iter().any(|i| i.forward != Forward::Off) {
        true => policy.taken_addresses(),
        false => BTreeSet::new(),
    }
}

/// The edge; None while no interface is named.
pub type SharedEdge = Arc<Mutex<Option<Edge>>>;

/// The part of the file that the edge needs besides the policy.
#[derive(Clone)]
pub struct EdgeControl {
    edge: SharedEdge,
    pins: PathBuf,
    max_forwarded: u32,
    guarded: Vec<Interface>,
}

impl EdgeControl {
    /// Makes the control of an agent with these pins; nothing is touched yet.
    pub fn new(edge: SharedEdge, pins: PathBuf, max_forwarded: u32) -> Self {
        Self {
            edge,
            pins,
            max_forwarded,
            guarded: Vec::new(),
        }
    }

    /// Guards `interfaces` by `policy`, and no others.
    ///
    /// # Errors
    /// An interface cannot be guarded; the caller applies again what was in force.
    pub fn apply(&mut self, interfaces: &[Interface], policy: &Policy) -> anyhow::Result<()> {
        let mut shared = self.edge.lock().unwrap_or_else(PoisonError::into_inner);
        if interfaces.is_empty() {
            *shared = None;
            self.guarded.clear();
            if edge::remove(&self.pins)? {
                tracing::info!("no [[xdp]] in the file: the edge is open");
            }
            return Ok(());
        }
        if shared.is_some() {
            return Self::guard(&mut self.guarded, &mut shared, interfaces, policy);
        }
        *shared = Some(Edge::open(&self.pins, self.max_forwarded)?);
        let guarded = Self::guard(&mut self.guarded, &mut shared, interfaces, policy);
        if guarded.is_err() {
            // Nothing stays of an edge that was opened in vain.
            *shared = None;
            edge::remove_unless_guarding(&self.pins)?;
        }
        guarded
    }

    fn guard(
        before: &mut Vec<Interface>,
        shared: &mut Option<Edge>,
        interfaces: &[Interface],
        policy: &Policy,
    ) -> anyhow::Result<()> {
        let Some(edge) = shared else {
            return Ok(());
        };
        edge.install(policy)?;
        if before != interfaces {
            // Should it fail half-way, the next attempt starts from the beginning.
            before.clear();
            let guarded = edge.guard(interfaces)?;
            guarded.iter().for_each(say);
            *before = interfaces.to_vec();
        }
        Ok(())
    }

    /// Returns [`taken`] of the interfaces that are guarded.
    pub fn taken(&self, policy: &Policy) -> BTreeSet<SocketAddr> {
        taken(&self.guarded, policy)
    }

    /// Puts another policy into force for the same interfaces.
    ///
    /// # Errors
    /// The old policy is still in force then.
    pub fn install(&self, policy: &Policy) -> anyhow::Result<()> {
        let mut shared = self.edge.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *shared {
            Some(edge) => Ok(edge.install(policy)?),
            None => Ok(()),
        }
    }
}

fn say(guarded: &Guarded) {
    let (interface, mode) = (&guarded.interface, guarded.mode.as_str());
    if guarded.taken_over {
        tracing::info!(interface, mode, "edge taken over");
    } else {
        tracing::info!(interface, mode, "edge attached");
    }
    if let Some(reason) = &guarded.not_native {
        tracing::warn!(interface, reason, "the driver does not run the XDP program");
    }
}

/// Looks after it for ever, and tells it which backends get new connections.
///
/// # Errors
/// Those who choose are gone: the agent ends.
pub async fn tend(edge: SharedEdge, mut choice: watch::Receiver<Choice>) -> io::Result<()> {
    let mut looks = seconds::every(TEND_EVERY);
    loop {
        let chosen = tokio::select! {
            _ = looks.tick() => false,
            changed = choice.changed() => {
                changed.map_err(io::Error::other)?;
                true
            }
        };
        let mut shared = edge.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(edge) = shared.as_mut() else {
            continue;
        };
        let done = match chosen {
            true => tell(edge, &choice.borrow_and_update()),
            false => edge.tend(),
        };
        if let Err(error) = done {
            FAILED.say(|not_said_before| {
                tracing::error!(
                    %error,
                    not_said_before,
                    "the upkeep of the edge fails, and is tried again"
                );
            });
        }
    }
}

fn tell(edge: &mut Edge, choice: &Choice) -> Result<(), EdgeError> {
    let mut shares = choice.shares.iter();
    shares.try_for_each(|share: &Share| edge.set_backends(&share.rule, &share.backends))
}

/// The counts of the edge, read when they are asked for.
pub struct EdgeMetrics {
    edge: SharedEdge,
    descriptions: [IntCounterVec; 2],
}

impl EdgeMetrics {
    /// Reads from the edge, which may be closed.
    ///
    /// # Errors
    /// A name is wrong.
    pub fn new(edge: SharedEdge) -> prometheus::Result<Self> {
        Ok(Self {
            edge,
            descriptions: Self::empty()?,
        })
    }

    fn empty() -> prometheus::Result<[IntCounterVec; 2]> {
        let packets = Opts::new(
            "underpass_edge_packets_total",
            "Packets that arrived on guarded interfaces, by what became of them.",
        );
        let by_rule = Opts::new(
            "underpass_edge_connections_total",
            "Connections from elsewhere, by the rule that decided at the edge and what became of \
             them; denied packets are counted one by one.",
        );
        Ok([
            IntCounterVec::new(packets, &["verdict"])?,
            IntCounterVec::new(by_rule, &["rule", "outcome"])?,
        ])
    }

    /// Returns what [`Collector::collect`] gives, with one sample each that says zero: for
    /// documentation.
    pub fn declared(&self) -> Vec<MetricFamily> {
        let [packets, by_rule] = &self.descriptions;
        packets.with_label_values(&[""]);
        by_rule.with_label_values(&["", ""]);
        let each = self.descriptions.iter();
        each.flat_map(Collector::collect).collect()
    }

    fn read(&self) -> Option<[IntCounterVec; 2]> {
        let edge = self.edge.lock().unwrap_or_else(PoisonError::into_inner);
        let counters = edge.as_ref()?.counters();
        let counters = counters
            .inspect_err(|e| tracing::error!("cannot read the edge's counters: {e}"))
            .ok()?;
        let [packets, by_rule] = Self::empty().ok()?;
        for (verdict, count) in counters.packets {
            packets.with_label_values(&[verdict.as_str()]).inc_by(count);
        }
        for count in counters.by_rule {
            by_rule
                .with_label_values(&[count.rule.as_str(), count.outcome.as_str()])
                .inc_by(count.connections);
        }
        Some([packets, by_rule])
    }
}

impl Collector for EdgeMetrics {
    fn desc(&self) -> Vec<&Desc> {
        self.descriptions.iter().flat_map(|d| d.desc()).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let read = self.read();
        read.iter().flatten().flat_map(Collector::collect).collect()
    }
}
