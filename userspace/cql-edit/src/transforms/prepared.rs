//! [`Prepared`]: a transform's knowledge of statements that were prepared.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, PoisonError};

use crate::{Caller, Error, Outcome, Refused, Request, Statement};
use cql::{Database, Holds, Proof, Told};

/// Ids that are known, at most. Beyond it others are forgotten, as [`Told`] says. An application that prepares more has each
/// prepared again as its turn comes.
const MAX_IDS: usize = 65_536;

/// Numbers of PREPAREs that are out, beyond which the oldest are forgotten: their statements are
/// prepared again.
const MAX_OUT: usize = 4_096;

/// A PREPARE that goes out: what the database can be believed of its answer.
#[derive(Clone, Copy, Debug)]
pub struct Preparing {
    database: Database,
    proof: Proof,
}

impl Preparing {
    /// A PREPARE of which the step knows something because of its text and this keyspace alone. What is known because of
    /// anything else, such as the database's answer, is not to be known of flows to other databases
    /// ([`unproven`](Self::unproven)).
    pub fn of(request: &Request<'_>, keyspace: Option<&str>, caller: &Caller) -> Self {
        let proof = match request.statements().next() {
            Some(Statement::Text(text)) if !caller.texts_change => Proof::of(text, keyspace),
            _ => Proof::NONE,
        };
        Self {
            database: caller.database,
            proof,
        }
    }

    /// A PREPARE at a database that nobody knows, of which nothing is known.
    pub fn unknown() -> Self {
        Self {
            database: Database::default(),
            proof: Proof::NONE,
        }
    }

    /// Has the answer hold for flows to its own database alone.
    #[must_use]
    pub fn unproven(self) -> Self {
        Self {
            proof: Proof::NONE,
            ..self
        }
    }

    /// The database that answers.
    pub fn database(&self) -> Database {
        self.database
    }

    /// The databases for which this id stands for the statement, if it is the answer.
    pub fn holds(&self, id: &[u8]) -> Holds {
        match self.proof.holds(id) {
            true => Holds::Everywhere,
            false => Holds::There,
        }
    }
}

/// By id, for all flows of a rule. An id that its text proves means the same at every database; any other only at the one that
/// has given it ([`Told`]).
#[derive(Debug)]
pub struct Prepared<T> {
    state: Mutex<State<T>>,
}

#[derive(Debug)]
struct State<T> {
    next: u64,
    out: HashMap<u64, (Preparing, T)>,
    out_order: VecDeque<u64>,
    known: Told<T>,
}

impl<T> Default for Prepared<T> {
    fn default() -> Self {
        Self {
            state: Mutex::new(State {
                next: 0,
                out: HashMap::new(),
                out_order: VecDeque::new(),
                known: Told::of_at_most(MAX_IDS),
            }),
        }
    }
}

impl<T: Clone> Prepared<T> {
    /// A PREPARE goes out; gives the number of which its response is to be shown.
    pub fn goes_out(&self, preparing: Preparing, what: T) -> u64 {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let number = state.next;
        state.next += 1;
        state.out.insert(number, (preparing, what));
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
        if let (Some((preparing, what)), Some(id)) = (state.out.remove(&number), id) {
            let holds = preparing.holds(id);
            state.known.put(id, preparing.database, holds, what);
        }
    }

    /// A PREPARE of which no number was given is answered by this id.
    pub(crate) fn answered(&self, preparing: &Preparing, id: &[u8], what: T) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let holds = preparing.holds(id);
        state.known.put(id, preparing.database, holds, what);
    }

    /// An id stands for this, by a text that makes the id.
    pub(crate) fn learn(&self, id: &[u8], caller: &Caller, what: T) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        // The text is the database's, and the flow's clients have others.
        let holds = match caller.texts_change {
            true => Holds::There,
            false => Holds::Everywhere,
        };
        state.known.put(id, caller.database, holds, what);
    }

    /// The knowledge of this id's statement on flows to the caller's database, or the outcome that has the client prepare it
    /// again.
    pub fn known(&self, id: &[u8], caller: &Caller) -> Result<T, Outcome> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = state.known.get(id, caller.database);
        kept.map(|kept| kept.value.clone()).ok_or_else(|| {
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

    fn caller(address: &str) -> Caller {
        Caller {
            database: Database::new(address.parse().unwrap(), 0),
            ..Caller::default()
        }
    }

    fn preparing(caller: &Caller, text: &str) -> Preparing {
        Preparing {
            database: caller.database,
            proof: Proof::of(text.as_bytes(), Some("shop")),
        }
    }

    const TEXT: &str = "SELECT v FROM t";

    fn id_of(text: &str) -> Vec<u8> {
        use md5::{Digest, Md5};
        Md5::digest(format!("shop{text}"))[..].to_vec()
    }

    #[test]
    fn an_id_is_known_once_its_prepare_was_answered() {
        let prepared = Prepared::default();
        let caller = caller("192.0.2.1:9042");
        let out = |what| prepared.goes_out(preparing(&caller, TEXT), what);
        let (a, b) = (out('a'), out('b'));
        assert!(prepared.known(b"b", &caller).is_err());
        prepared.came_back(b, Some(b"b"));
        prepared.came_back(a, None);
        prepared.came_back(a, Some(b"a"));
        assert_eq!(prepared.known(b"b", &caller), Ok('b'));
        let Err(Outcome::Refuse(refused)) = prepared.known(b"a", &caller) else {
            panic!("it is not known")
        };
        assert_eq!(refused.error, Error::Unprepared(b"a".to_vec()));
    }

    #[test]
    fn no_database_says_what_an_id_means_at_another() {
        let prepared = Prepared::default();
        let callers = ["192.0.2.1:9042", "192.0.2.2:9042", "127.0.0.2:9042"].map(caller);
        let [real, node, hostile] = &callers;
        let id = id_of(TEXT);
        let says = |caller: &Caller, text: &str, what| {
            prepared.answered(&preparing(caller, text), &id, what);
        };
        says(hostile, "SELECT v FROM x.y", 'x');
        assert!(prepared.known(&id, real).is_err());
        assert_eq!(prepared.known(&id, hostile), Ok('x'));
        says(real, TEXT, 'a');
        says(hostile, "SELECT v FROM x.y", 'x');
        for caller in [real, node, hostile] {
            assert_eq!(prepared.known(&id, caller), Ok('a'));
        }
    }

    #[test]
    fn where_texts_change_nothing_is_proven() {
        let prepared = Prepared::default();
        let [mut real, mut node] = ["192.0.2.1:9042", "192.0.2.2:9042"].map(caller);
        (real.texts_change, node.texts_change) = (true, true);
        prepared.learn(b"id", &real, 'a');
        assert_eq!(prepared.known(b"id", &real), Ok('a'));
        assert!(prepared.known(b"id", &node).is_err());
        let unproven = preparing(&real, TEXT).unproven();
        assert_eq!(unproven.holds(&id_of(TEXT)), Holds::There);
    }

    #[test]
    fn who_invents_ids_forgets_his_own() {
        let prepared = Prepared::default();
        let [real, hostile] = ["192.0.2.1:9042", "127.0.0.2:9042"].map(caller);
        prepared.answered(&preparing(&real, TEXT), &id_of(TEXT), 0);
        prepared.answered(&preparing(&real, TEXT), b"not proven", 1);
        for n in 0..MAX_IDS as u64 + 10 {
            prepared.answered(&preparing(&hostile, TEXT), &n.to_be_bytes(), n);
        }
        assert_eq!(prepared.known(&id_of(TEXT), &real), Ok(0));
        assert_eq!(prepared.known(b"not proven", &real), Ok(1));
        assert!(prepared.known(&0_u64.to_be_bytes(), &hostile).is_err());
    }

    #[test]
    fn there_are_never_too_many() {
        let prepared = Prepared::default();
        let caller = caller("192.0.2.1:9042");
        let out = |n| prepared.goes_out(preparing(&caller, TEXT), n);
        for n in 0..MAX_IDS as u64 + 10 {
            prepared.came_back(out(n), Some(&n.to_be_bytes()));
        }
        assert!(prepared.known(&9_u64.to_be_bytes(), &caller).is_err());
        assert_eq!(prepared.known(&10_u64.to_be_bytes(), &caller), Ok(10));
        let first = out(0);
        for n in 0..MAX_OUT as u64 {
            out(n);
        }
        prepared.came_back(first, Some(b"forgotten"));
        assert!(prepared.known(b"forgotten", &caller).is_err());
        let state = prepared.state.lock().unwrap();
        assert_eq!(state.out.len(), MAX_OUT);
    }
}
