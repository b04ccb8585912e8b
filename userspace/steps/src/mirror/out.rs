//! The awaited responses, by the numbers under which they are shown.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use super::{budget::Permit, exchange::Exchange, texts::Text};
use cql_edit::transforms::Preparing;
use parking_lot::{Mutex, MutexGuard};

/// The most unanswered requests of all flows of a rule; beyond that the oldest are forgotten. Two
/// flows can have as many out.
const MAX_OUT: usize = 65_536;

/// The time after which an unanswered request is forgotten: its flow has ended, or its client has
/// given up.
const LONGEST: Duration = Duration::from_secs(30);

/// The purpose for which a response is awaited.
#[derive(Debug)]
pub(super) enum Awaited {
    /// A PREPARE: the statement, and the room that it takes until it is answered.
    Prepare {
        text: Arc<Text>,
        preparing: Preparing,
        _room: Permit,
    },
    /// A copied request, to be compared.
    Copy(Arc<Exchange>),
    /// A write that must be in both databases.
    Dual(Arc<Exchange>),
}

/// The result of looking a number up.
#[derive(Debug)]
pub(super) enum Found {
    Awaited(Awaited),
    /// The entry was forgotten; it was a write that must be in both databases.
    ForgottenDual,
    Forgotten,
}

/// The awaited responses of a rule's flows.
#[derive(Debug, Default)]
pub(super) struct Out(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    next: u64,
    /// The entries, each with its time. Numbers grow, so the first is the oldest.
    awaited: BTreeMap<u64, (Instant, Awaited)>,
}

/// The last bit of a number: set for a write that must be in both databases, so that this is known
/// even when the entry was forgotten.
const DUAL: u64 = 1;

impl Out {
    /// Adds an entry. Returns its number.
    pub(super) fn put(&self, awaited: Awaited, now: Instant) -> u64 {
        let dual = matches!(awaited, Awaited::Dual(_));
        let mut state = self.lock();
        let number = state.next << 1 | if dual { DUAL } else { 0 };
        state.next += 1;
        state.awaited.insert(number, (now, awaited));
        if state.awaited.len() > MAX_OUT {
            state.awaited.pop_first();
        }
        number
    }

    pub(super) fn take(&self, number: u64) -> Found {
        match self.lock().awaited.remove(&number) {
            Some((_, awaited)) => Found::Awaited(awaited),
            None if number & DUAL != 0 => Found::ForgottenDual,
            None => Found::Forgotten,
        }
    }

    /// Forgets old entries.
    pub(super) fn sweep(&self, now: Instant) {
        let mut state = self.lock();
        while let Some(oldest) = state.awaited.first_entry()
            && now.saturating_duration_since(oldest.get().0) >= LONGEST
        {
            oldest.remove();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mirror::budget::Budget;

    #[test]
    fn what_is_old_or_too_much_is_forgotten() {
        let out = Out::default();
        let now = Instant::now();
        let text = Arc::new(Text::new(b"x", None));
        let budget = Budget::new();
        let awaited = || {
            // More bytes than a budget has.
            let permit = budget.take(0).or_else(|| Budget::new().take(0));
            Awaited::Prepare {
                text: text.clone(),
                preparing: Preparing::unknown(),
                _room: permit.unwrap(),
            }
        };
        let first = out.put(awaited(), now);
        let second = out.put(awaited(), now + LONGEST);
        out.sweep(now + LONGEST);
        assert!(matches!(out.take(first), Found::Forgotten));
        assert!(matches!(out.take(first | DUAL), Found::ForgottenDual));
        let found = out.take(second);
        assert!(matches!(found, Found::Awaited(Awaited::Prepare { .. })));
        let numbers: Vec<u64> = (0..=MAX_OUT).map(|_| out.put(awaited(), now)).collect();
        assert!(matches!(out.take(numbers[0]), Found::Forgotten));
        assert!(matches!(out.take(numbers[1]), Found::Awaited(_)));
        assert_eq!(out.lock().awaited.len(), MAX_OUT - 1);
        // An answered entry takes no room.
        for _ in 0..2 * MAX_OUT {
            let number = out.put(awaited(), now);
            assert!(matches!(out.take(number), Found::Awaited(_)));
        }
        assert!(matches!(out.take(numbers[2]), Found::Awaited(_)));
    }
}
