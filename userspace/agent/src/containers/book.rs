//! The containers that runtimes have named.

use std::{collections::BTreeMap, path::Path};

use policy::Container;

/// The containers of each runtime.
#[derive(Clone, Debug, Default)]
pub struct Book(pub(super) Vec<Page>);

/// The containers of one runtime.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Page {
    pub(super) containers: Vec<Container>,
    /// The number of running containers without a cgroup of their own.
    pub(super) shared: usize,
    /// The number of containers beyond the limit.
    pub(super) too_many: usize,
}

impl Book {
    /// Returns all running containers.
    pub fn running(&self) -> impl Iterator<Item = &Container> + Clone {
        self.0.iter().flat_map(|page| &page.containers)
    }

    /// Returns the name of the container whose processes are in this cgroup.
    pub fn name_at(&self, cgroup: &str) -> Option<&str> {
        let mut running = self.running();
        let container = running.find(|one| Path::new(cgroup).starts_with(&one.cgroup))?;
        container.names.first().map(String::as_str)
    }
}

/// A container as it is listed.
pub(super) struct Running {
    pub id: String,
    pub names: Vec<String>,
    pub labels: BTreeMap<String, String>,
}
