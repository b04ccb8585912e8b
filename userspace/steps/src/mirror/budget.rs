//! The budget of a mirror: the requests that it has in hand, and the answers that are to be
//! compared.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

/// The most requests in hand of one mirror: as many as a cluster answers in half a second at 16,000
/// a second.
pub(super) const MAX_REQUESTS: usize = 8_192;

/// The most bytes of those requests and of answers: 8 KiB each, or two of the largest requests that
/// are shown.
pub(super) const MAX_BYTES: usize = 64 << 20;

/// The part of the budget that is left.
#[derive(Debug)]
pub(super) struct Budget {
    requests: AtomicUsize,
    bytes: AtomicUsize,
}

/// One request's permit, given back when it is dropped.
#[derive(Debug)]
pub(super) struct Permit {
    budget: Arc<Budget>,
    bytes: usize,
}

impl Budget {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            requests: AtomicUsize::new(MAX_REQUESTS),
            bytes: AtomicUsize::new(MAX_BYTES),
        })
    }

    /// Takes a permit. None: there is as much in hand as may be.
    pub(super) fn take(self: &Arc<Self>, bytes: usize) -> Option<Permit> {
        take(&self.requests, 1)?;
        // Dropped without bytes, the permit gives only the request back.
        let mut permit = Permit {
            budget: self.clone(),
            bytes: 0,
        };
        permit.grow(bytes).then_some(permit)
    }
}

fn take(left: &AtomicUsize, n: usize) -> Option<usize> {
    left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(n))
        .ok()
}

impl Permit {
    /// Takes more bytes. False: there are none.
    pub(super) fn grow(&mut self, bytes: usize) -> bool {
        let taken = take(&self.budget.bytes, bytes).is_some();
        if taken {
            self.bytes += bytes;
        }
        taken
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.budget.requests.fetch_add(1, Relaxed);
        self.budget.bytes.fetch_add(self.bytes, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_comes_back() {
        let budget = Budget::new();
        let mut half = budget.take(MAX_BYTES / 2).unwrap();
        assert!(budget.take(MAX_BYTES / 2 + 1).is_none());
        assert!(half.grow(MAX_BYTES / 2) && !half.grow(1));
        drop(half);
        let all: Vec<Permit> = (0..MAX_REQUESTS).map_while(|_| budget.take(1)).collect();
        assert_eq!(all.len(), MAX_REQUESTS);
        assert!(budget.take(0).is_none());
        drop(all);
        assert!(budget.take(MAX_BYTES).is_some());
    }
}
