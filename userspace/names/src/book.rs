//! [`Book`]: what is known of all names.

use std::collections::BTreeMap;

use policy::{Endpoint, Name};
use serde::Serialize;
use tokio::time::Instant;

use crate::known::{Known, State};

/// The knowledge of each name.
#[derive(Debug, Default)]
pub struct Book(BTreeMap<Name, Known>);

/// A name as `underpass names` lists it.
#[derive(Debug, Serialize)]
pub struct NameView {
    /// The name as rules have it.
    pub name: String,
    /// `host`, `service` or `cluster`.
    pub kind: &'static str,
    /// `known`, `stale`, `absent` or `unknown`.
    pub state: &'static str,
    /// The addresses for which rules hold.
    pub addresses: Vec<String>,
    /// How many of them the last answer did not have any more.
    pub lingering: usize,
    /// The time since the last answer, in milliseconds.
    pub answered_ms: Option<u64>,
    /// The time until the next look-up, in milliseconds.
    pub next_ms: u64,
    /// Why the last look-up has not brought everything.
    pub error: Option<String>,
}

impl Book {
    /// The addresses that a name stands for.
    pub fn endpoints(&self, name: &Name) -> Vec<Endpoint> {
        let known = self.0.get(name);
        known.map_or_else(Vec::new, |known| known.addresses().copied().collect())
    }

    /// Whether anybody has ever said what a name stands for.
    pub fn is_answered(&self, name: &Name) -> bool {
        let known = self.0.get(name);
        known.is_some_and(|known| known.answered().is_some())
    }

    /// All names, as they are listed.
    pub fn views(&self, now: Instant) -> Vec<NameView> {
        let views = self.0.iter().map(|(name, known)| NameView {
            name: name.to_string(),
            kind: name.kind(),
            state: known.state().as_str(),
            addresses: known.addresses().map(shown).collect(),
            lingering: known.lingering(),
            answered_ms: known.answered().map(|at| (now - at).as_millis() as u64),
            next_ms: (known.next() - now).as_millis() as u64,
            error: known.failure().map(ToString::to_string),
        });
        views.collect()
    }

    pub(crate) fn known(&mut self, name: &Name, now: Instant) -> &mut Known {
        let known = self.0.entry(name.clone());
        known.or_insert_with(|| Known::nothing(now))
    }

    pub(crate) fn next(&self, name: &Name) -> Option<Instant> {
        self.0.get(name).map(Known::next)
    }

    pub(crate) fn keep(&mut self, is_wanted: impl Fn(&Name) -> bool) {
        self.0.retain(|name, _| is_wanted(name));
    }

    pub(crate) fn count(&self, of: impl Fn(&Known) -> usize) -> usize {
        self.0.values().map(of).sum()
    }

    pub(crate) fn in_state(&self, state: State) -> usize {
        self.0
            .values()
            .filter(|known| known.state() == state)
            .count()
    }
}

fn shown(endpoint: &Endpoint) -> String {
    match (endpoint.ip, endpoint.port) {
        (ip, None) => ip.to_string(),
        (ip, Some(port)) => std::net::SocketAddr::new(ip, port).to_string(),
    }
}
