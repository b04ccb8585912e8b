//! [`Prepared`]: a transform's knowledge of statements that were prepared.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, PoisonError};

use crate::{Error, Outcome, Refused};

/// Ids beyond this many push out those that came first. An application that prepares more has each
/// prepared again as its turn comes.
const MAX_IDS: usize = 65_536;

/// Numbers of PREPAREs that are out, beyond which the oldest are forgotten: their statements are
/// prepared again.
const MAX_OUT: usize = 4_096;

/// By id, for all flows of a rule: an id is a hash of keyspace and text, so it means the same everywhere.
#[derive(Debug)]
pub struct Prepared<T> {
    state: Mutex<State<T>>,
}

#[derive(Debug)]
struct State<T> {
    next: u64,
    out: HashMap<u64, T>,
    out_order: VecDeque<u64>,
    known: HashMap<Box<[u8]>, T>,
    known_order: VecDeque<Box<[u8]>>,
}

impl<T> State<T> {
    fn learn(&mut self, id: &[u8], what: T) {
        if self.known.insert(id.into(), what).is_none() {
            self.known_order.push_back(id.into());
        }
        while self.known_order.len() > MAX_IDS {
            if let Some(oldest) = self.known_order.pop_front() {
                self.known.remove(&oldest);
            }
        }
    }
}

impl<T> Default for Prepared<T> {
    fn default() -> Self {
        Self {
            state: Mutex::new(State {
                next: 0,
                out: HashMap::new(),
                out_order: VecDeque::new(),
                known: HashMap::new(),
                known_order: VecDeque::new(),
            }),
        }
    }
}

impl<T: Clone> Prepared<T> {
    /// A PREPARE goes out; gives the number of which its response is to be shown.
    pub fn goes_out(&self, what: T) -> u64 {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let number = state.next;
        state.next += 1;
        state.out.insert(number, what);
        state.out_order.push_back(number);
        while state.out_order.len() > MAX_OUT {
            if let Some(oldest) = state.out_order.pop_front() {
                state.out.remove(&oldest);
            }
        }
        number
    }

    /// A PREPARE is answered, by this id if the statement was prepared.
    pub fn came_back(&self, number: u64, id: Option<&[u8]>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let (Some(what), Some(id)) = (state.out.remove(&number), id) {
            state.learn(id, what);
        }
    }

    /// An id stands for this.
    pub(crate) fn learn(&self, id: &[u8], what: T) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.learn(id, what);
    }

    /// The knowledge of this id's statement, or the outcome that has the client prepare it again.
    pub fn known(&self, id: &[u8]) -> Result<T, Outcome> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.known.get(id).cloned().ok_or_else(|| {
            Outcome::Refuse(Refused {
                reason: "unprepared",
                error: Error::Unprepared(id.to_vec()),
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_known_once_its_prepare_was_answered() {
        let prepared = Prepared::default();
        let (a, b) = (prepared.goes_out('a'), prepared.goes_out('b'));
        assert!(prepared.known(b"b").is_err());
        prepared.came_back(b, Some(b"b"));
        prepared.came_back(a, None);
        prepared.came_back(a, Some(b"a"));
        assert_eq!(prepared.known(b"b"), Ok('b'));
        let Err(Outcome::Refuse(refused)) = prepared.known(b"a") else {
            panic!("it is not known")
        };
        assert_eq!(refused.error, Error::Unprepared(b"a".to_vec()));
    }

    #[test]
    fn there_are_never_too_many() {
        let prepared = Prepared::default();
        for n in 0..MAX_IDS as u64 + 10 {
            let number = prepared.goes_out(n);
            prepared.came_back(number, Some(&n.to_be_bytes()));
        }
        assert!(prepared.known(&9_u64.to_be_bytes()).is_err());
        assert_eq!(prepared.known(&10_u64.to_be_bytes()), Ok(10));
        let first = prepared.goes_out(0);
        for n in 0..MAX_OUT as u64 {
            prepared.goes_out(n);
        }
        prepared.came_back(first, Some(b"forgotten"));
        assert!(prepared.known(b"forgotten").is_err());
        let state = prepared.state.lock().unwrap();
        assert_eq!(state.out.len(), MAX_OUT);
    }
}
