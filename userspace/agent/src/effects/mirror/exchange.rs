//! One request at both databases: what each has answered, and who waits for that.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cql::Consistency;
use cql_edit::{Error, Refused, Resolution, Response, Ticket};

use super::{budget::Permit, cluster::Shared, compare::Answer, metrics::Fate, texts::Text};

/// A text is analysed for its fingerprint up to this.
pub(super) const MAX_NAMED_BYTES: usize = 16 << 10;

/// What a statement is known by, when it is told of.
#[derive(Debug)]
pub(super) enum Named {
    Text(Box<[u8]>),
    Prepared(Arc<Text>),
    /// Nobody will tell of it.
    Not,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Exchange {
    pub(super) named: Named,
    consistency: Consistency,
    /// Its client waits for both.
    is_dual: bool,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Until there is nothing in hand any more.
    permit: Option<Permit>,
    ours: Option<Answer>,
    theirs: Option<Result<Answer, Fate>>,
    ticket: Option<Ticket>,
}

impl Exchange {
    pub(super) fn new(
        named: Named,
        consistency: Consistency,
        is_dual: bool,
        permit: Permit,
    ) -> Arc<Self> {
        Arc::new(Self {
            named,
            consistency,
            is_dual,
            state: Mutex::new(State {
                permit: Some(permit),
                ours: None,
                theirs: None,
                ticket: None,
            }),
        })
    }

    /// The database's answer, on the flow's thread. It may have to wait for the mirror's, and may be refused for
    /// that. True: both are there, to be compared.
    pub(super) fn is_answered(&self, response: &mut Response<'_>, shared: &Shared) -> bool {
        let error = response.error();
        let waits = self.is_dual && error.is_none();
        let mut state = self.lock();
        if shared.settings.compare {
            let answer = match error {
                Some(code) => Answer::Error(code),
                None => Answer::Result(kept(response, state.permit.as_mut())),
            };
            state.ours = Some(answer);
        }
        let failed = match &state.theirs {
            Some(theirs) => failure(theirs),
            None if !waits => None,
            None => match response.park() {
                Some(ticket) => {
                    state.ticket = Some(ticket);
                    None
                }
                None => Some(Fate::Full),
            },
        };
        if let Some(fate) = failed.filter(|_| waits)
            && let Resolution::Refuse(refused) = self.settled(Some(fate), shared)
        {
            response.refuse(refused);
        }
        state.ours.is_some() && state.theirs.is_some()
    }

    /// The mirror's answer, or why there is none, on its own thread. True: both are there, to be compared.
    pub(super) fn is_mirrored(&self, theirs: Result<Answer, Fate>, shared: &Shared) -> bool {
        let fate = failure(&theirs);
        shared.counters.fate(fate.unwrap_or(Fate::Acknowledged));
        let mut state = self.lock();
        state.theirs = Some(theirs);
        let ticket = state.ticket.take();
        let both = state.ours.is_some();
        if !shared.settings.compare {
            state.permit = None;
        }
        drop(state);
        if let Some(ticket) = ticket {
            ticket.resolve(self.settled(fate, shared));
        }
        both
    }

    /// Whether somebody wants to see what the mirror answers, beyond that it does; and has room for so much.
    pub(super) fn keeps(&self, bytes: usize, shared: &Shared) -> bool {
        let grows = |permit: &mut Permit| permit.grow(bytes);
        shared.settings.compare && self.lock().permit.as_mut().is_some_and(grows)
    }

    /// What both have answered, once.
    pub(super) fn answers(&self) -> Option<(Answer, Result<Answer, Fate>)> {
        let mut state = self.lock();
        Some((state.ours.take()?, state.theirs.take()?))
    }

    /// What becomes of the response to a write that is to be at both.
    fn settled(&self, failed: Option<Fate>, shared: &Shared) -> Resolution {
        match failed {
            Some(fate) if shared.settings.fails => Resolution::Refuse(Refused {
                reason: fate.as_str(),
                error: timeout(fate.as_str(), self.consistency),
            }),
            _ => Resolution::Pass,
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// That one of two has a write, and of the other it is not known.
pub(super) fn timeout(why: &str, consistency: Consistency) -> Error {
    let message =
        format!("the write is in its database, and is not acknowledged by the mirror: {why}");
    Error::WriteTimeout(message, consistency)
}

/// None: the mirror has it.
fn failure(theirs: &Result<Answer, Fate>) -> Option<Fate> {
    match theirs {
        Ok(Answer::Result(_)) => None,
        Ok(Answer::Error(_)) => Some(Fate::Refused),
        Err(fate) => Some(*fate),
    }
}

fn kept(response: &Response<'_>, permit: Option<&mut Permit>) -> Option<Box<[u8]>> {
    let body = response.proper()?;
    let fits = body.len() <= super::MAX_COMPARED_BYTES && permit?.grow(body.len());
    fits.then(|| body.into())
}

impl Shared {
    /// Compares, counts, and tells of it.
    pub(super) fn compare(&self, exchange: &Exchange) {
        let Some((ours, Ok(theirs))) = exchange.answers() else {
            return;
        };
        let found = super::compare::compare(&ours, &theirs);
        self.counters.compared(found.kind);
        if found.kind.is_difference() {
            self.tell(exchange, &found);
        }
    }
}
