//! The state that all flows share, and the sources of new connections.

use std::sync::{Arc, OnceLock};

use dataplane::{
    Answers, IncomingListener, Legs, Listeners, NewNetnsListeners, Remembered, Splicer,
};
use flow::Flows;
use policy::Policy;
use steps::{
    Services,
    pipelines::{PipelineMetrics, Pipelines},
};
use telemetry::Metrics;
use tls::TlsRules;
use tokio::sync::{mpsc, watch};

use super::{
    admission::Admission, choice::Backends, keeper::Keeper, read_on::Handed, tap::TapThread,
    unsettled::Unsettled,
};

/// The state that all flows share.
pub struct ProxyContext {
    /// Answers held SYNs.
    pub answers: Answers,
    /// Stores decisions that stand for later connections.
    pub remembered: Arc<Remembered>,
    /// The kernel's splice, once it has been tried out, or the reason why there is none.
    pub splices: OnceLock<Result<Splicer, String>>,
    /// The kernel's way to shorten the legs of flows that the agent reads.
    pub legs: Legs,
    /// The keeper's handle: it holds spliced flows, so that they outlive the agent. Set before
    /// `splices`.
    pub keeper: OnceLock<Keeper>,
    /// The flows that are carried.
    pub flows: Flows,
    /// Counters.
    pub metrics: Metrics,
    /// Admits flows up to the limit.
    pub admission: Arc<Admission>,
    /// The flows that have not begun in earnest.
    pub unsettled: Unsettled,
    /// The backends behind virtual addresses.
    pub backends: Backends,
    /// The policy in force.
    pub policy: watch::Receiver<Arc<Policy>>,
    /// The pipelines of the policy's rules: their transforms and reporters.
    pub pipelines: watch::Receiver<Arc<Pipelines>>,
    /// The TLS settings of the policy's rules.
    pub tls: watch::Receiver<Arc<TlsRules>>,
    /// The counters of pipelines.
    pub pipeline_metrics: PipelineMetrics,
    /// The statements that enrichment has seen, and the services that reporters need.
    pub services: Arc<Services>,
    /// The reader of tapped flows.
    pub tap: TapThread,
    /// The way to the agent that has taken over, once there is one.
    pub handing: OnceLock<mpsc::Sender<Handed>>,
}

/// The sources of new connections.
pub struct IncomingListeners {
    /// The listeners for connections that this host opens.
    pub listeners: Listeners,
    /// The listeners for connections that other hosts open; they come as policies want them.
    pub incoming_listeners: mpsc::UnboundedReceiver<IncomingListener>,
    /// The listeners for connections that are opened in other network namespaces, as these are
    /// found.
    pub settled: mpsc::Receiver<NewNetnsListeners>,
}
