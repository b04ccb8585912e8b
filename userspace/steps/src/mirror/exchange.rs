//! One request at both databases: the answer of each, and the client that waits for them.

use std::sync::Arc;

use cql::Consistency;
use cql_edit::{Error, Refused, Resolution, Response, Ticket};
use parking_lot::{Mutex, MutexGuard};

use super::{budget::Permit, compare::Answer, metrics::Fate, shared::Shared, texts::Text};

/// The most bytes of a text that are analysed for its fingerprint.
pub(super) const MAX_NAMED_BYTES: usize = 16 << 10;

/// The name of a statement in reports.
#[derive(Debug)]
pub(super) enum Named {
    Text(Box<[u8]>),
    Prepared(Arc<Text>),
    /// The statement is not reported.
    Not,
}

/// A request at both databases.
#[derive(Debug)]
pub(super) struct Exchange {
    pub(super) named: Named,
    consistency: Consistency,
    /// Whether the client waits for both answers.
    is_dual: bool,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// The permit, while the request is in hand.
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

    /// Takes the database's answer, on the flow's thread. The answer may have to wait for the
    /// mirror's, and may be refused because of it. True: both answers are there, to be compared.
    pub(super) fn take_database_answer(
        &self,
        response: &mut Response<'_>,
        shared: &Shared,
    ) -> bool {
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
            None => match response.suspend() {
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

    /// Takes the mirror's answer, or the reason why there is none, on the mirror's thread. True:
    /// both answers are there, to be compared.
    pub(super) fn take_mirror_answer(&self, theirs: Result<Answer, Fate>, shared: &Shared) -> bool {
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

    /// Whether the mirror's answer is wanted beyond the fact that it came, and there is room for so
    /// many bytes.
    pub(super) fn keeps(&self, bytes: usize, shared: &Shared) -> bool {
        let grows = |permit: &mut Permit| permit.grow(bytes);
        shared.settings.compare && self.lock().permit.as_mut().is_some_and(grows)
    }

    /// Takes both answers. Some only once.
    pub(super) fn answers(&self) -> Option<(Answer, Result<Answer, Fate>)> {
        let mut state = self.lock();
        Some((state.ours.take()?, state.theirs.take()?))
    }

    /// Decides on the response to a write that is to be in both databases.
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
        self.state.lock()
    }
}

/// Makes the error for a write that one database has and of which it is not known whether the other
/// has it.
pub(super) fn timeout(why: &str, consistency: Consistency) -> Error {
    let message =
        format!("the write is in its database, and is not acknowledged by the mirror: {why}");
    Error::WriteTimeout(message, consistency)
}

/// Returns the failure of a mirrored request. None: the mirror has done it.
fn failure(theirs: &Result<Answer, Fate>) -> Option<Fate> {
    match theirs {
        Ok(Answer::Result(_)) => None,
        Ok(Answer::Error(_)) => Some(Fate::Refused),
        Err(fate) => Some(*fate),
    }
}

fn kept(response: &Response<'_>, permit: Option<&mut Permit>) -> Option<Box<[u8]>> {
    let body = response.proper().filter(|_| !response.is_cut())?;
    let fits = body.len() <= super::compare::MAX_COMPARED_BYTES && permit?.grow(body.len());
    fits.then(|| body.into())
}

impl Shared {
    /// Compares both answers, counts the outcome, and reports a difference.
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
