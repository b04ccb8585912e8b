//! [`Queue`]: the clients that wait for the tokens of one bucket, in turn, however much each of them asks
//! for.

use std::collections::{BTreeSet, HashMap};

/// Clients beyond this many wait as one.
const MAX_CLIENTS: usize = 4_096;

/// The client that is all others; no address.
const OTHERS: &str = "";

/// While `n` clients wait, each has an `n`th of the rate. What one has asked for delays what it asks for
/// next, and not the others.
#[derive(Debug, Default)]
pub(super) struct Queue {
    /// Until when each has to wait, in ns.
    until: HashMap<Box<str>, u64>,
    /// The times at which clients may go on, in order.
    order: BTreeSet<(u64, Box<str>)>,
}

impl Queue {
    /// Forgets who waits no longer. True: nobody waits any more.
    pub(super) fn expire(&mut self, now_ns: u64) -> bool {
        while let Some((until, _)) = self.order.first()
            && *until <= now_ns
        {
            if let Some((_, client)) = self.order.pop_first() {
                self.until.remove(&client);
            }
        }
        self.order.is_empty()
    }

    /// A client takes a token that is not there: when it may ask for the next one. Tokens come in each
    /// `token_ns`; `first_ns`: in how many ns there is one if nobody waits.
    pub(super) fn wait(&mut self, client: &str, now_ns: u64, first_ns: u64, token_ns: f64) -> u64 {
        let nobody = self.expire(now_ns);
        let client = match self.until.contains_key(client) || self.until.len() < MAX_CLIENTS {
            true => client,
            false => OTHERS,
        };
        let before = self.until.remove(client);
        if let Some(before) = before {
            self.order.remove(&(before, client.into()));
        }
        let share = (self.order.len() + 1) as f64 * token_ns;
        let until = match nobody {
            true => now_ns.saturating_add(first_ns),
            false => before
                .unwrap_or(now_ns)
                .max(now_ns)
                .saturating_add(share as u64),
        };
        self.until.insert(client.into(), until);
        self.order.insert((until, client.into()));
        until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ten a second.
    const TOKEN_NS: f64 = 1e8;
    const FIRST_NS: u64 = 100_000_000;

    fn wait(queue: &mut Queue, client: &str, now_ns: u64) -> u64 {
        (queue.wait(client, now_ns, FIRST_NS, TOKEN_NS) - now_ns) / 1_000_000
    }

    #[test]
    fn one_alone_has_the_whole_rate() {
        let mut queue = Queue::default();
        let waits: Vec<u64> = (0..4).map(|_| wait(&mut queue, "a", 0)).collect();
        assert_eq!(waits, [100, 200, 300, 400]);
        assert!(!queue.expire(399_999_999));
        assert!(queue.expire(400_000_000));
        assert_eq!(wait(&mut queue, "a", 400_000_000), 100);
    }

    #[test]
    fn who_asks_for_much_waits_and_not_the_others() {
        let mut queue = Queue::default();
        for _ in 0..1_000 {
            wait(&mut queue, "greedy", 0);
        }
        // An equal share each, whatever the first has asked for.
        assert_eq!(wait(&mut queue, "modest", 0), 200);
        assert_eq!(wait(&mut queue, "third", 0), 300);
        assert_eq!(wait(&mut queue, "greedy", 0), 100_000 + 300);
        // When the others have what they wanted, all is for the one who is left.
        assert_eq!(
            wait(&mut queue, "greedy", 1_000_000_000) + 1_000,
            100_300 + 100
        );
    }

    #[test]
    fn there_are_never_too_many() {
        let mut queue = Queue::default();
        for n in 0..3 * MAX_CLIENTS {
            wait(&mut queue, &n.to_string(), 0);
        }
        assert_eq!(queue.until.len(), MAX_CLIENTS + 1);
        assert_eq!(queue.order.len(), MAX_CLIENTS + 1);
        assert!(queue.expire(u64::MAX));
        assert_eq!(queue.until.len(), 0);
    }
}
