//! The networks of an experiment whose clients and databases are apart.

use std::collections::BTreeMap;

use anyhow::Context;
use load::workload::{Topology, Variant};

use super::stage;
use crate::{
    databases::Databases,
    gateway::{self, Line},
    ways::Ways,
};

/// The networks by the ways that they are for; none where everything is on this host.
pub struct Lines(pub BTreeMap<&'static str, Line>);

impl Lines {
    /// Makes the networks.
    ///
    /// # Errors
    /// The user is not root, or a tool is missing.
    pub fn new(variant: &Variant, databases: &Databases, ways: &Ways) -> anyhow::Result<Self> {
        match variant.topology {
            Topology::Host => Ok(Self(BTreeMap::new())),
            Topology::Gateway => {
                let network = databases.netns.as_ref().context("no network")?;
                let ways = stage::ways_at_gateways(variant, ways);
                Ok(Self(gateway::lines(&ways, network)?))
            }
        }
    }
}
