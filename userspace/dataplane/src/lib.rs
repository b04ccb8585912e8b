//! The kernel's half of underpass, as the agent sees it: it speaks of flows and rules, never of map
//! names.
//!
//! The crate loads the BPF programs of `ebpf`, attaches and pins them, writes policies into their maps
//! and reads their counters. Start at [`Dataplane`]. Files, in reading order:
//!
//! - `compile.rs`: a policy as the sets of rules that the BPF programs AND together; `tables.rs` puts it
//!   into force in one step, and reads counters over generations.
//! - `attach.rs`, `attach/loaded.rs`, `hooks.rs`, `load.rs`, `maps.rs`: loads and attaches; `detach.rs`: detaches.
//!   `pins.rs`: one folder of pins per agent, built aside, and the lock on it.
//! - `listeners.rs`, `holds.rs`, `dial.rs`, `answers.rs`, `packet.rs`: one intercepted connection, from the
//!   SYN that is held to the database's answer to it.
//! - `backends/`: the databases behind virtual addresses, and which of them gets a new connection.
//! - `netns_agents/`, `netns_handle.rs`: other network namespaces, whose processes are served from inside.
//! - `incoming/`, `gateway/`: connections from other hosts to databases on this one, or to virtual
//!   addresses.
//! - `rivals.rs`: other agents at the same cgroup.
//! - `denials.rs`: connections that the hooks refused.
//! - `quota.rs`: users and cgroups that hold as many flows as one may.
//! - `remembered.rs`: decisions that stand for later connections of the same process.
//! - `splice/`: flows that were taken in and are carried by the kernel. `near.rs` tells which application
//!   is on this host, `carrier.rs` holds the maps and the program by which a flow is handed over and taken
//!   back, `position.rs` says where in a frame it is, `adopt.rs` goes on with it in another process.
//!   `hangup_watch.rs` watches a socket for its end only.
//! - `shortcut/`: flows whose two ends are both on this host, past TCP; `legs.rs`: connections between an
//!   application on this host and the agent likewise.
//! - `limit_hooks.rs`: the beginning and the end of connections that a limit counts.
//! - `meter_hooks.rs`, `meters.rs`, `untouched.rs`, `counters.rs`: flows that are left alone, and counts.
//! - `ledger.rs`: connections that were left alone for comparison, and those that they are compared with.
//! - `rule_names.rs`: names of rules by the kernel's numbers, which are other rules' two policies later.
//! - `left_out.rs`: tapped flows that are not copied while there is no time for all.
//! - `tap.rs`: copies of the packets of flows that are only read. `tap_outcomes.rs`: which rule such a flow meets whose
//!   session was asked for. `running/`: connections that were there before the
//!   policy that has them read.
//! - `probe_result.rs`, `probe_traffic.rs`: whether a path works on this kernel, and what canaries send to
//!   find out.
//! - `edge/`: connections from elsewhere, as they arrive on an interface.
//! - `host.rs`, `doctor.rs`, `sock_diag.rs`, `netlink.rs`: facts about this host, and what it lacks.
//! - `sys.rs`: the system calls that no crate wraps.
//!
//! **Invariant**: this is the only crate that touches a BPF map, link or pin, and `sys.rs` is its only
//! file with `unsafe`.
//!
//! **Invariant**: a flow is intercepted only when everything that it will meet is attached: the connect
//! hooks come last, and a predecessor's go only after they are there.
//!
//! **Invariant**: the listeners' ports are below 1024, so that nobody without privileges can take a dead
//! agent's place and be handed the connections that wait for it.
//!
//! **Invariant**: the agent's own sockets carry its mark (random, new with each start), so its dials are
//! never intercepted. In other namespaces they carry none, and are known by their process.
//!
//! **Invariant**: the connect hook sends a flow to a listener only after it has found it listening, by its
//! cookie: that is how it knows the agent is alive. No flow is sent to a listener that is about to be
//! closed.
//!
//! **Invariant**: of a namespace's routing, only what is exactly the agent's is removed, and only when its
//! last connection there has ended.
//!
//! **Boundary**: no map name and no descriptor of a map leaves this crate, but for the descriptors by which
//! another process carries spliced flows on.

pub mod address;
mod answers;
mod attach;
pub mod backends;
mod before;
mod causes;
pub mod compile;
mod counters;
mod denials;
mod detach;
mod dial;
pub mod doctor;
pub mod edge;
mod gateway;
mod hangup_watch;
mod holds;
mod hooks;
pub mod host;
mod incoming;
mod ledger;
mod left_out;
mod legs;
mod limit_hooks;
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
mod quota;
pub mod readers;
mod remembered;
mod rivals;
mod rule_names;
mod running;
pub mod shortcut;
mod sock_diag;
mod splice;
mod sys;
mod tables;
mod tap;
mod tap_outcomes;
mod untouched;

pub use self::tap::{
    DEFAULT_TAP_RING_BYTES, MAX_TAP_RING_BYTES, MIN_TAP_RING_BYTES, TAP_BODY_BYTES,
    TAP_COMPRESSED_BODY_BYTES, TAP_FRAME_BYTES, TAP_ID_BYTES, TAP_ROWS_BYTES, TapConsumer,
    TapEvent, TapFlow, TapFlows, TapReader,
};
pub use address::{ClientAddr, LocalAddr, OrigDst, SockCookie};
pub use answers::{Answers, Refusal, is_exhaustion};
pub use attach::{AttachError, Attached, Dataplane, Options};
pub use before::{Before, Terms};
pub use counters::{Cause, Counters, Outcome, RuleCount, Turn};
pub use denials::{KernelDenial, KernelDenials};
pub use detach::detach;
pub use dial::{Dialled, dial};
pub use edge::Edge;
pub use hangup_watch::HangupWatch;
pub use holds::{Held, Holds, MAX_HELD, Process};
pub use incoming::{
    Arrived, ClientAddress, IncomingDialled, IncomingError, IncomingListener, IncomingOptions,
    MAX_INCOMING, NotKept, remove_routes_left,
};
pub use ledger::{Compared, Groups};
pub use legs::{Leg, LegApplication, LegLeft, LegSide, LegState, Legs, LongLeg};
pub use listeners::{Accepted, Listeners};
pub use meters::{BUCKETS, Latencies, OPCODES, Side, Traffic, bucket_begins};
pub use netns_agents::{
    DESCRIPTORS_PER_NAMESPACE, MAX_NAMESPACES, Netns, NetnsAgentView, NetnsAgents,
    NewNetnsListeners, NotServed, ServeRequest, ServeRequests,
};
pub use netns_handle::NetnsHandle;
pub use pins::DEFAULT_PINS;
pub use policy;
pub use probe_result::ProbeResult;
pub use quota::{Holder, Quota};
pub use remembered::{NotRemembered, Opener, Remembered};
pub use running::{Adopted, Around, NotAdopted, OpenedHere, Scope, Survey};
pub use splice::position::{FlowPosition, FramePosition, Redirected, UNKNOWN_POSITION, framing};
pub use splice::refusal::SpliceRefusal;
pub use splice::{
    AgentMoved, Application, Calls, Drained, Engine, KernelMoved, Near, Splice, Splicer,
    adopt::{NotResumed, Resumed, fingerprint},
    cookie,
};
pub use sys::{SendRing, Sending, link_to_cgroup};
pub use tables::InstallError;
pub use tap_outcomes::Settled;
pub use untouched::Untouched;
