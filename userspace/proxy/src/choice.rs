//! The choice of the backend for a new connection.

use std::{
    net::SocketAddr,
    sync::{Arc, OnceLock},
};

use dataplane::{
    backends::{BackendSlots, Weight, Weights},
    edge::maglev::Table,
};
use policy::{Rule, RuleName};
use tokio::sync::watch;

/// The proxy's view of backends: which of them get new connections, and whom to tell that one did not answer.
pub struct Backends {
    choice: watch::Receiver<Choice>,
    suspect: Box<dyn Fn(SocketAddr, String) + Send + Sync>,
}

impl Backends {
    /// `suspect` is called with a backend that did not answer, and why. It must not wait.
    pub fn new(
        choice: watch::Receiver<Choice>,
        suspect: impl Fn(SocketAddr, String) + Send + Sync + 'static,
    ) -> Self {
        Self {
            choice,
            suspect: Box::new(suspect),
        }
    }

    pub(crate) fn choice(&self) -> &watch::Receiver<Choice> {
        &self.choice
    }

    pub(crate) fn suspect(&self, backend: SocketAddr, why: String) {
        (self.suspect)(backend, why);
    }
}

/// The backends behind the virtual addresses of one rule.
#[derive(Clone, Debug)]
pub struct Share {
    /// The rule.
    pub rule: RuleName,
    /// The rule's backends, in its order; those with weight 0 get no new connections.
    pub backends: Vec<(SocketAddr, Weight)>,
    /// The edge's table, made when it is first needed: only gateways need it.
    table: Arc<OnceLock<Option<Table>>>,
}

impl Share {
    /// Makes the share of these backends.
    pub fn new(rule: RuleName, backends: Vec<(SocketAddr, Weight)>) -> Self {
        Self {
            rule,
            backends,
            table: Arc::default(),
        }
    }

    fn is_of(&self, rule: &Rule) -> bool {
        let backends = self.backends.iter().map(|(at, _)| at);
        self.rule == rule.name && backends.eq(&rule.backends)
    }

    fn at(&self, client: SocketAddr, virtual_address: SocketAddr) -> Option<SocketAddr> {
        let table = self.table.get_or_init(|| Table::new(&self.backends));
        let number = table.as_ref()?.choose(client, virtual_address);
        self.backends.get(number).map(|(at, _)| *at)
    }
}

/// A table follows from the rest.
impl PartialEq for Share {
    fn eq(&self, other: &Self) -> bool {
        (&self.rule, &self.backends) == (&other.rule, &other.backends)
    }
}

impl Eq for Share {}

/// The choice of backends at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Choice {
    /// The weights by backend, whatever rules name it.
    pub weights: Arc<Weights>,
    /// The shares by rule, in the order of the policy.
    pub shares: Arc<Vec<Share>>,
}

impl Choice {
    /// Returns the backend to which the edge would forward this connection. None: no backend takes
    /// new connections.
    pub fn as_the_edge(
        &self,
        rule: &Rule,
        (client, virtual_address): (SocketAddr, SocketAddr),
    ) -> Option<SocketAddr> {
        let mut shares = self.shares.iter();
        match shares.find(|share| share.is_of(rule)) {
            Some(share) => share.at(client, virtual_address),
            // The rule is another policy's, for a moment.
            None => self.draw(&rule.backends),
        }
    }

    /// Draws one of these by its weight. None: none of them takes new connections.
    pub fn draw(&self, backends: &[SocketAddr]) -> Option<SocketAddr> {
        let drawn = BackendSlots::of(backends, &self.weights).draw(fastrand::u32(..))?;
        backends.get(drawn).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backends_are_drawn_by_their_weight() {
        let backends: Vec<SocketAddr> = (1..=3)
            .map(|n| SocketAddr::from(([10, 1, 0, n], 9042)))
            .collect();
        let weights = backends.iter().copied().zip([100, 0, 50]).collect();
        let choice = Choice {
            weights: Arc::new(weights),
            ..Choice::default()
        };
        let mut drawn = [0_u32; 3];
        for _ in 0..30_000 {
            let at = choice.draw(&backends).unwrap();
            drawn[backends.iter().position(|b| *b == at).unwrap()] += 1;
        }
        assert_eq!(drawn[1], 0);
        // Ten standard deviations.
        assert!(drawn[0].abs_diff(20_000) < 820, "{drawn:?}");
        assert_eq!(choice.draw(&backends[1..2]), None);
        assert_eq!(choice.draw(&[]), None);
    }
}
