//! A flow that is read from copies of its packets.
//!
//! The application's connection is its own. The kernel hands over a copy of what passes ([`Packet`]), as
//! packets come: twice, out of order, cut otherwise the second time, or not at all, where there was no room
//! for the copy. This crate makes of them what the decoder of [`cql`] wants: each byte once, in order.
//!
//! In the order in which a packet meets them:
//!
//! 1. `packet.rs`: [`Packet`], what the kernel says of one.
//! 2. `follower.rs`: [`Follower`], one direction by TCP sequence number. It gives [`Piece`]s.
//! 3. `flow.rs`: [`TappedFlow`], both directions and their decoder; what a gap means to it.
//! 4. `asking.rs`: the handshake, where the flow's rule depends on its session.
//!
//! **Invariants.** A byte is read once and in order, or it is in a gap. A gap is told before anything behind it.
//! Behind a gap, reading begins with a frame of which the kernel says where it begins; a request that was
//! waiting before it is never paired with a response that comes after it. Memory is bounded:
//! [`MAX_HELD_BYTES`] and [`MAX_HELD_PACKETS`] for each direction, and the decoder's.
//!
//! **Boundary**: no I/O and no clock. Time is the kernel's, and comes with each packet.

#![forbid(unsafe_code)]

mod asking;
mod flow;
mod follower;
mod packet;

pub use asking::AskedSession;
pub use flow::{Beside, Counts, Happened, TappedFlow};
pub use follower::{Follower, MAX_HELD_BYTES, MAX_HELD_PACKETS, Piece, Told};
pub use packet::{Direction, KernelFraming, Packet};
