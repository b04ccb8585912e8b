//! Policies in a real cluster of etcd: how hosts follow, what they believe, and which versions there are.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "tests say what they expect by failing, and so do their helpers"
)]

mod common;
mod following;
mod limits;
mod trust;
mod versions;
