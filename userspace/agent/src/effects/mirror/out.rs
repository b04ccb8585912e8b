//! What responses are awaited for, by the numbers under which they are shown.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use super::{exchange::Exchange, texts::Text};

/// Beyond so many the oldest are forgotten. Requests that were mirrored are no more than the budget allows; the others
/// are PREPAREs.
const MAX_OUT: usize = 16_384;

/// What is not answered for so long is forgotten: its flow has ended, or its client has given up.
const LONGEST: Duration = Duration::from_secs(30);

/// What a response is awaited for.
#[derive(Debug)]
pub(super) enum Awaited {
    /// What is prepared.
    Prepare(Arc<Text>),
    /// To be compared.
    Copy(Arc<Exchange>),
    /// To be at both.
    Dual(Arc<Exchange>),
}

/// What is told for a number.
#[derive(Debug)]
pub(super) enum Found {
    Awaited(Awaited),
    /// It was forgotten, and was to be at both.
    ForgottenDual,
    Forgotten,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Out(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    next: u64,
    awaited: HashMap<u64, Awaited>,
    order: VecDeque<(u64, Instant)>,
}

/// The last bit of a number: what is awaited is to be at both, also when it was forgotten.
const DUAL: u64 = 1;

impl Out {
    /// Gives the number.
    pub(super) fn put(&self, awaited: Awaited, now: Instant) -> u64 {
        let dual = matches!(awaited, Awaited::Dual(_));
        let mut state = self.lock();
        let number = state.next << 1 | if dual { DUAL } else { 0 };
        state.next += 1;
        state.awaited.insert(number, awaited);
        state.order.push_back((number, now));
        while state.order.len() > MAX_OUT
            && let Some((oldest, _)) = state.order.pop_front()
        {
            state.awaited.remove(&oldest);
        }
        number
    }

    pub(super) fn take(&self, number: u64) -> Found {
        match self.lock().awaited.remove(&number) {
            Some(awaited) => Found::Awaited(awaited),
            None if number & DUAL != 0 => Found::ForgottenDual,
            None => Found::Forgotten,
        }
    }

    /// Forgets what is old.
    pub(super) fn sweep(&self, now: Instant) {
        let mut state = self.lock();
        while let Some((oldest, since)) = state.order.front().copied()
            && (now.saturating_duration_since(since) >= LONGEST
                || !state.awaited.contains_key(&oldest))
        {
            state.order.pop_front();
            state.awaited.remove(&oldest);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_old_or_too_much_is_forgotten() {
        let out = Out::default();
        let now = Instant::now();
        let text = Arc::new(Text::new(b"x", None));
        let first = out.put(Awaited::Prepare(text.clone()), now);
        let second = out.put(Awaited::Prepare(text.clone()), now + LONGEST);
        out.sweep(now + LONGEST);
        assert!(matches!(out.take(first), Found::Forgotten));
        assert!(matches!(out.take(first | DUAL), Found::ForgottenDual));
        let found = out.take(second);
        assert!(matches!(found, Found::Awaited(Awaited::Prepare(_))));
        let numbers: Vec<u64> = (0..=MAX_OUT)
            .map(|_| out.put(Awaited::Prepare(text.clone()), now))
            .collect();
        assert!(matches!(out.take(numbers[0]), Found::Forgotten));
        assert!(matches!(out.take(numbers[1]), Found::Awaited(_)));
        assert!(out.lock().order.len() <= MAX_OUT);
    }
}
