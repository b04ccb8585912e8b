//! The proxy: carries flows from a held SYN to the last byte.
//!
//! - `intake.rs`: a held SYN is dialled, answered, and meets its accepted connection.
//! - `incoming.rs`: a connection from another host to a database on this one, or to a virtual
//!   address.
//! - `admission.rs`: the limit on the number of flows.
//! - `workers.rs`: the threads on which bytes move.
//! - `relay.rs`: moves bytes, with back-pressure and half-close.
//! - `direction.rs`: one direction of a flow.
//! - `splice.rs`: hands a flow to the kernel, and takes it back; `wait.rs`: waits while the kernel
//!   has it; `drain.rs`: waits until the bytes that the kernel had have arrived.
//! - `resume.rs`: carries on flows that another process has begun.
//! - `canary.rs`: tries the splice out before it is used.
//! - `read.rs`: one read in one system call.
//! - `chunk.rs`: the verdict on bytes that were read.
//! - `decode.rs` reads the bytes that pass, `recorder.rs` counts them, `edit.rs` changes them;
//!   `parked.rs` brings the completions of requests and responses that wait.
//! - `session.rs`: finds the rule of a flow by its handshake.
//! - `marked.rs`: carries out a mark's commands to a running flow.
//! - `leg.rs`: one of a flow's connections; `legs.rs`: both, and where TLS ends, on which terms
//!   (`terms.rs`); `tls_io.rs`: TLS on one connection.
//! - `close.rs`: the end of a flow.

#![forbid(unsafe_code)]

mod admission;
mod canary;
mod choice;
mod chunk;
mod close;
mod decode;
mod direction;
mod drain;
mod edit;
mod incoming;
mod intake;
pub mod keeper;
mod leg;
mod legs;
mod marked;
mod parked;
pub mod paths;
mod place;
mod read;
mod reader;
mod recorder;
mod relay;
mod resume;
mod session;
mod splice;
mod terms;
mod tls_io;
mod wait;
mod workers;

use std::sync::{Arc, OnceLock};

pub use admission::{Admission, STRAGGLERS};
pub use canary::try_out;
pub use choice::{Backends, Choice, Share};
pub use close::end_all;
use cql::PreparedStatements;
use dataplane::{Answers, Door, Holds, Listeners, Remembered, Settled, Splices};
use flow::Flows;
use keeper::{Adopted, Keeper};
use policy::Policy;
pub use resume::CarriedOn;
pub(crate) use resume::carry_on;
use steps::{
    Means,
    pipelines::{PipelineMetrics, Pipelines},
};
use telemetry::Metrics;
use tls::TlsRules;
use tokio::sync::{mpsc, watch};

/// The state that all flows share.
pub struct Shared {
    /// Answers held SYNs.
    pub answers: Answers,
    /// Stores decisions that stand for later connections.
    pub remembered: Arc<Remembered>,
    /// The kernel's splice, once it has been tried out, or the reason why there is none.
    pub splices: OnceLock<Result<Splices, String>>,
    /// The keeper's handle: it holds spliced flows, so that they outlive the agent. Set before
    /// `splices`.
    pub keeper: OnceLock<Keeper>,
    /// The flows that are carried.
    pub flows: Flows,
    /// Counters.
    pub metrics: Metrics,
    /// Admits flows up to the limit.
    pub admission: Arc<Admission>,
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
    pub means: Arc<Means>,
    /// Statements by prepared id. One store for all databases: an id is a hash of keyspace
    /// and text, so it means the same everywhere.
    pub prepared: Arc<PreparedStatements>,
}

/// The sources of new connections.
pub struct Entrances {
    /// The listeners for connections that this host opens.
    pub listeners: Listeners,
    /// The doors for connections that other hosts open; they come as policies want them.
    pub doors: mpsc::UnboundedReceiver<Door>,
    /// The listeners for connections that are opened in other network namespaces, as these are
    /// found.
    pub settled: mpsc::Receiver<Settled>,
}

/// Runs until the ring of held SYNs fails. Dropped, it stops taking flows in.
///
/// # Errors
/// Workers cannot be started, or the ring cannot be read.
pub async fn run(
    shared: Arc<Shared>,
    entrances: Entrances,
    holds: Holds,
    adopted: mpsc::UnboundedReceiver<Adopted>,
    workers: usize,
) -> anyhow::Result<()> {
    let workers = workers::Workers::start(workers)?;
    intake::run(shared, entrances, holds, adopted, workers).await
}
