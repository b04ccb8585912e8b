//! How bytes travel, and who decides it: what application and database see on each path.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests say what they expect by failing, and so do their helpers"
)]

mod busy_poll;
mod clients;
#[path = "../common/mod.rs"]
mod common;
mod full;
mod integrity;
mod keeper;
mod marks;
mod observe;
mod refusals;
mod remember;
mod sends;
mod session_rules;
mod short_legs;
mod shortcut;
mod soak;
mod splice;
mod tls;
mod transparency;
mod urgent;
