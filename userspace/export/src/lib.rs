//! The way out of the I/O threads.
//!
//! What a flow's thread has to say to a file, or to anything else that can be slow, it writes into a
//! [ring](mod@ring) of its own, which nobody else writes to: no lock, no allocation, and no system call
//! unless the consumer sleeps. One thread for each [`Export`] reads all rings in turn, in batches, and gives
//! what it finds to a [`Sink`].
//!
//! - `ring`: one writer, one reader, records of bytes.
//! - `bell`: how the reader sleeps, and who wakes it.
//! - `outlet`: [`Export`]: a ring for each thread that writes; the thread that reads.
//! - `lines`: a file of lines that is rotated, made durable, and opened anew; a [`Sink`]'s other end.
//!
//! Why it is made like this, and what else was measured:
//! `docs/decisions/0015-ring.md`.
//!
//! **Invariants.** A writer never waits. What it cannot write it is told of, and nothing is lost that was
//! accepted. Memory is bounded: [`RING_BYTES`] for each thread that has written.

#![forbid(unsafe_code)]

mod bell;
mod lines;
mod outlet;
pub mod ring;

pub use lines::{Fsync, Lines, LinesSettings};
pub use outlet::{Export, MAX_RINGS, RING_BYTES, Sink};
pub use ring::{Full, MAX_RECORD_BYTES};
