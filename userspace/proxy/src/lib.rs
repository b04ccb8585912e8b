//! The proxy: carries flows from a held SYN to the last byte.
//!
//! - `intake.rs`: a held SYN is dialled, answered, and meets its accepted connection.
//! - `incoming.rs`: a connection from another host to a database on this one, or to a virtual
//!   address.
//! - `admission.rs`: the limit on the number of flows; `quotas.rs`: a user's and a cgroup's share of it;
//!   `unsettled.rs`: flows that make room; `entered.rs`: a flow's entries in everything shared (`context.rs`).
//! - `workers.rs`: the threads on which bytes move.
//! - `relay.rs`: moves bytes, with back-pressure and half-close.
//! - `direction_pump.rs`: one direction of a flow.
//! - `splice.rs`: hands a flow to the kernel, and takes it back; `wait.rs`: waits while the kernel
//!   has it; `drain.rs`: waits until the bytes that the kernel had have arrived.
//! - `short_legs.rs`: has what a flow that is read exchanges with applications on this host skip TCP.
//! - `resume.rs`: carries on flows that another process has begun; `adopt.rs`: takes them over.
//! - `canary.rs`: tries the splice out before it is used.
//! - `read.rs`: a direction's reads, each in one system call.
//! - `passing.rs`: the verdict on bytes that were read.
//! - `reader.rs`: the state of a flow's reading: not begun, decoding, or relayed unread;
//!   `frame_position.rs` tells the kernel where in a frame such a flow is.
//! - `decode.rs` reads the bytes that pass, `recorder.rs` counts them, `edit.rs` changes them (`caller.rs` is what it says of a flow);
//!   `completions.rs` brings the completions of requests and responses that wait.
//! - `question.rs`: which rule a flow meets, where its session decides that; `session.rs` finds it by the handshake of a
//!   flow that is carried.
//! - `marked.rs`: carries out a mark's commands to a running flow.
//! - `leg_io.rs`: one of a flow's connections; `legs.rs`: both, and where TLS ends, on which terms
//!   (`terms.rs`); `tls_io.rs`: TLS on one connection.
//! - `close.rs`: the end of a flow.
//! - `hand_over.rs` hands a flow that is read to another agent, which takes it (`handed.rs`) and reads it on (`read_on.rs`).
//!   `inherited.rs`: what is not of one flow.
//! - `link.rs`: messages between two processes of this program.

#![forbid(unsafe_code)]

mod admission;
mod adopt;
mod busy_poll;
mod caller;
mod canary;
mod choice;
mod close;
mod completions;
mod context;
mod decode;
mod denied;
mod direction_pump;
mod drain;
mod edit;
mod entered;
mod frame_position;
#[cfg(any(test, fuzzing))]
pub mod fuzzed;
mod hand_over;
mod handed;
mod incoming;
mod inherited;
mod intake;
pub mod keeper;
mod leg_io;
mod legs;
pub mod link;
mod marked;
mod outbox;
mod passing;
pub mod paths;
mod question;
mod quotas;
mod read;
mod read_on;
mod reader;
mod recorder;
mod relay;
mod resume;
mod session;
mod short_legs;
mod splice;
pub mod tap;
mod terms;
mod tls_io;
mod unsettled;
mod wait;
mod workers;

pub use admission::{Admission, NotAdmitted, STRAGGLERS};
pub use canary::try_out;
pub use choice::{Backends, Choice, Share};
pub use close::end_all;
pub use context::{IncomingListeners, ProxyContext};
pub use denied::tell_denials;
pub use hand_over::would_stay;
pub use inherited::{Inherited, bequeath, give_back, inherit};
pub use intake::run;
pub use outbox::SendRings;
pub use question::candidate;
pub use quotas::QuotaLimits;
pub use read_on::{FLOW_FORMAT, Handed, HandedFlow, NotTaken, SealedFlow};
pub use resume::CarriedOn;
pub(crate) use resume::carry_on;
pub use unsettled::Unsettled;
pub use workers::Workers;
