//! The way out of the I/O threads: records that go to something slow.
//!
//! A flow's thread writes everything that goes to a file, or to anything else that can be slow,
//! into a [ring](mod@ring) of its own, to which no other thread writes: no lock, no allocation, and
//! no system call unless the consumer sleeps. One thread for each [`Export`] reads all rings in
//! turn, in batches, and gives the records to a [`Sink`].
//!
//! - `ring`: one writer, one reader, records of bytes.
//! - `bell`: how the reader sleeps, and how writers wake it.
//! - `outlet`: [`Export`]: a ring for each thread that writes; the thread that reads.
//! - `lines`: a file of lines that is rotated, made durable, and opened again; a [`Sink`]'s other
//!   end.
//!
//! `docs/decisions/0015-ring.md` gives the reasons, and the alternatives that were measured.
//!
//! **Invariants.** A writer never waits. It is told of a record that cannot be written, and a
//! record that was accepted is not lost. Memory is bounded: [`RING_BYTES`] for each thread that has
//! written.

#![forbid(unsafe_code)]

mod bell;
mod lines;
mod outlet;
pub mod ring;

pub use lines::{Fsync, Lines, LinesSettings};
pub use outlet::{Export, MAX_RINGS, RING_BYTES, Sink};
pub use ring::{Full, MAX_RECORD_BYTES};
