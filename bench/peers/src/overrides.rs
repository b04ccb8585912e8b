//! Binaries that stand in for those that are found.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

/// Binaries that are named on the command line, by peer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Overrides(pub(crate) BTreeMap<String, PathBuf>);

impl Overrides {
    /// The binary that was named for this peer.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Path> {
        self.0.get(name).map(PathBuf::as_path)
    }
}
