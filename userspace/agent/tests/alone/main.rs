//! Tests that must have the machine or the process to themselves: they measure time, count allocations, or look at all that this process has made.
//!
//! `cargo test` runs one test program at a time, and the tests of this one take turns.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests say what they expect by failing, and so do their helpers"
)]

mod audit_rate;
#[path = "../common/mod.rs"]
mod common;
mod doctor;
mod edge;
mod gateway_flood;
mod observe_truth;
mod overtaken;
mod raw;
mod repeated;
mod reporters_cost;
mod stalls;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// The lock that each test of this program holds from its first line to its last.
static TURN: Mutex<()> = Mutex::new(());

/// Waits until no other test of this program runs. A test that failed has had its turn, too.
fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}
