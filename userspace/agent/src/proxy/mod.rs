//! Carries flows: from a held SYN to the last byte.
//!
//! - `intake.rs`: a held SYN is dialled, answered, and meets its accepted connection.
//! - `incoming.rs`: a connection from another host to a database on this one, or to a virtual address.
//! - `admission.rs`: how many flows there may be.
//! - `workers.rs`: the threads on which bytes move.
//! - `relay.rs`: moves them, with back-pressure and half-close.
//! - `direction.rs`: one way of a flow.
//! - `splice.rs`: hands a flow to the kernel, and takes it back; `wait.rs`: while it is there;
//!   `drain.rs`: until what the kernel had has arrived.
//! - `resume.rs`: carries on what another process has begun.
//! - `canary.rs`: tries the splice out before it is used.
//! - `read.rs`: one read in one system call.
//! - `chunk.rs`: what becomes of bytes that were read.
//! - `decode.rs`: what passes, read; `recorder.rs`: and counted; `edit.rs`: and changed; `parked.rs`: what is
//!   said of what waits.
//! - `session.rs`: which rule it is, by what the handshake tells.
//! - `marked.rs`: what a mark asks of a running flow.
//! - `leg.rs`: one of a flow's connections; `legs.rs`: both, and where TLS ends,
//!   on which terms (`terms.rs`); `tls.rs`: TLS on one.
//! - `close.rs`: how a flow ends.

mod admission;
mod canary;
mod chunk;
mod close;
mod decode;
mod direction;
mod drain;
mod edit;
mod incoming;
mod intake;
mod leg;
mod legs;
mod marked;
mod parked;
mod place;
mod read;
mod reader;
mod recorder;
mod relay;
mod resume;
mod session;
mod splice;
mod terms;
mod tls;
mod wait;
mod workers;

use std::sync::{Arc, OnceLock};

use cql::PreparedStatements;
use dataplane::{Answers, Door, Holds, Listeners, Remembered, Settled, Splices};
use policy::Policy;
use tokio::sync::{mpsc, watch};

pub use admission::{Admission, STRAGGLERS};
pub use canary::try_out;
pub use close::{BACKEND_DOWN, CLOSE_REASONS, end_all};
pub use resume::CarriedOn;
pub(crate) use resume::carry_on;
pub use terms::Opaque;

use crate::{
    backends::{Backends, Dice},
    flows::Flows,
    keeper::{Adopted, Keeper},
    metrics::Metrics,
    pipelines::{PipelineMetrics, Pipelines},
    reporters::Means,
    tls::TlsRules,
};

/// What flows share.
pub struct Shared {
    /// The way to answer held SYNs.
    pub answers: Answers,
    /// The way to have decisions stand for later connections.
    pub remembered: Arc<Remembered>,
    /// The kernel's way to carry flows, once it has been tried out, or why there is none.
    pub splices: OnceLock<Result<Splices, String>>,
    /// Who holds spliced flows, so that they outlive the agent. Set before `splices`.
    pub keeper: OnceLock<Keeper>,
    /// The flows that are carried.
    pub flows: Flows,
    /// Counters.
    pub metrics: Metrics,
    /// Who may come in.
    pub admission: Arc<Admission>,
    /// Who behind virtual addresses gets new connections.
    pub backends: Backends,
    /// What the agent draws them with.
    pub dice: Dice,
    /// The policy in force.
    pub policy: watch::Receiver<Arc<Policy>>,
    /// What its rules do to requests, and who is told of them.
    pub pipelines: watch::Receiver<Arc<Pipelines>>,
    /// Which of them have TLS end in the agent.
    pub tls: watch::Receiver<Arc<TlsRules>>,
    /// What came of pipelines.
    pub pipeline_metrics: PipelineMetrics,
    /// What enrichment saw, and what reporters need.
    pub means: Arc<Means>,
    /// Statements by prepared id. One store for all databases: an id is a hash of keyspace
    /// and text, so it means the same everywhere.
    pub prepared: Arc<PreparedStatements>,
}

/// Where connections come in.
pub struct Entrances {
    /// Those that this host opens.
    pub listeners: Listeners,
    /// Those that others open, at doors that come as policies want them.
    pub doors: mpsc::UnboundedReceiver<Door>,
    /// Those that are opened in other network namespaces, as these are found.
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
