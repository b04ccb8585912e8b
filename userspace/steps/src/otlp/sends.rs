//! The collector that a step sends to.

use std::sync::{Arc, OnceLock};

use super::{
    collectors::{Collector, Collectors},
    settings::CollectorSettings,
    signal::Signal,
};
use crate::register::once;

/// A step's collector: described when the policy file is read, opened when its rule is put into force.
#[derive(Debug)]
pub(crate) struct Sends {
    to: CollectorSettings,
    signal: Signal,
    open: OnceLock<Arc<Collector>>,
}

impl Sends {
    pub(crate) fn new(signal: Signal, to: CollectorSettings) -> Self {
        Self {
            to,
            signal,
            open: OnceLock::new(),
        }
    }

    /// Reads the certificates, only to check whether they are good.
    ///
    /// # Errors
    /// Names the bad file, and the reason.
    pub(crate) fn reads(&self) -> Result<(), String> {
        self.to.read_certificates()
    }

    /// Opens the collector once. It is called again when the policy file that was to replace this one could not be put
    /// into force.
    ///
    /// # Errors
    /// A certificate cannot be used, or there can be no more threads.
    pub(crate) fn open(&self, collectors: &Collectors) -> Result<(), String> {
        once(&self.open, || collectors.open(self.signal, &self.to))
    }

    /// Returns the collector. None before it is opened: no rule is in force then.
    pub(crate) fn get(&self) -> Option<&Arc<Collector>> {
        self.open.get()
    }
}
