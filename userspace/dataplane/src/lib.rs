//! The kernel's half, as the agent sees it: flows and rules, never map names.
//!
//! - [`compile`]: a policy as the sets that the BPF programs AND together.
//! - [`Dataplane`]: loads, attaches, pins; installs policies; counts.
//! - [`Listeners`], [`Holds`], [`dial`], [`Answers`]: one intercepted connection, from the
//!   SYN that is being held to the database's answer to it.
//! - [`backends`]: the databases behind virtual addresses: who gets new connections.
//! - [`NetnsAgents`]: other network namespaces, whose processes are served from inside.
//! - [`IncomingListener`], [`Arrived`]: connections from other hosts to databases on this one, or to virtual
//!   addresses.
//! - [`Remembered`]: decisions that stand for later connections.
//! - [`Splicer`]: flows that were taken in and are carried by the kernel.
//! - [`shortcut`]: flows whose two ends are both on this host, past TCP.
//! - [`Untouched`], [`Traffic`]: flows that are left alone and observed, and what went over them.
//! - [`probe_traffic`]: what canaries send to find out whether a path works here.
//! - [`edge`]: connections from elsewhere, as they arrive on an interface.
//! - [`host`], [`doctor`]: what this host has, and what it lacks.
//!
//! **Invariant**: this is the only crate that touches a BPF map, link or pin, and `sys.rs`
//! is its only file with `unsafe`.

pub mod address;
mod answers;
mod attach;
pub mod backends;
pub mod compile;
mod counters;
mod dial;
pub mod doctor;
pub mod edge;
mod gateway;
mod hangup_watch;
mod holds;
mod hooks;
pub mod host;
mod incoming;
mod listeners;
mod load;
mod maps;
mod meter_hooks;
mod meters;
mod netlink;
mod netns_agents;
mod netns_handle;
mod packet;
mod pins;
mod probe_result;
pub mod probe_traffic;
mod remembered;
pub mod shortcut;
mod sock_diag;
mod splice;
mod sys;
mod tables;
mod untouched;

pub use address::{ClientAddr, LocalAddr, OrigDst, SockCookie};
pub use answers::{Answers, Refusal, is_exhaustion};
pub use attach::{AttachError, Attached, Dataplane, Options};
pub use counters::{Cause, Counters, Outcome, RuleCount, Turn};
pub use dial::{Dialled, dial};
pub use edge::Edge;
pub use hangup_watch::HangupWatch;
pub use holds::{Held, Holds, Process};
pub use incoming::{
    Arrived, ClientAddress, IncomingDialled, IncomingError, IncomingListener, IncomingOptions,
    MAX_INCOMING, NotKept, remove_routes_left,
};
pub use listeners::{Accepted, Listeners};
pub use load::switched_off;
pub use meters::{Latencies, OPCODES, Side, Traffic};
pub use netns_agents::{
    DESCRIPTORS_PER_NAMESPACE, MAX_NAMESPACES, Netns, NetnsAgentView, NetnsAgents,
    NewNetnsListeners, NotServed, ServeRequest, ServeRequests,
};
pub use netns_handle::NetnsHandle;
pub use pins::{DEFAULT_PINS, detach};
pub use policy;
pub use probe_result::ProbeResult;
pub use remembered::{NotRemembered, Opener, Remembered};
pub use splice::position::{FlowPosition, FramePosition, Redirected, UNKNOWN_POSITION, framing};
pub use splice::refusal::SpliceRefusal;
pub use splice::{
    AgentMoved, Application, Calls, Drained, Engine, KernelMoved, Near, Splice, Splicer,
    adopt::{NotResumed, Resumed, fingerprint},
    cookie,
};
pub use tables::InstallError;
pub use untouched::Untouched;
