//! Through the agent, by a connection to the database that flows share.

use super::{enrich::ENRICH, ours::Ours};

/// The path `fold`: what the database saves where it has one connection to wake up for.
pub const FOLD: Ours = Ours {
    name: "fold",
    about: "as enrich, with the step `fold`: reads and writes by one connection for all",
    rule: Ok("action = \"enrich\"\npipeline = [{ transform = \"fold\" }]"),
    ..ENRICH
};
