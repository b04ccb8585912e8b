//! `fold`: flows that are alike share connections to their database.
//!
//! Every flow has a connection of its own, on which it has begun and on which all goes that could show whose it is.
//! Plain reads and writes are handed over to one that it shares with others, and come back on its own streams.
//!
//! - `settings`, `metrics`.
//! - `identity`: who is alike. `pools`: who shares what.
//! - `leg`: a shared connection as flows know it; `connection`: as its task does; `begin`: how it begins.
//! - `room`: how much of long answers may wait.
//!
//! What is folded, why nothing else is, and what the database sees: `docs/decisions/0021-fold.md`.

mod begin;
mod connection;
mod identity;
mod leg;
mod metrics;
mod pools;
mod room;
mod settings;

use std::sync::{Arc, OnceLock};

use cql::{Opcode, StatementKind, is_system_keyspace};
use cql_edit::{Caller, Note, Outcome, Request, Response, Statement, Transform};
use policy::RuleName;

pub use metrics::FoldMetrics;
pub use pools::Folds;
pub use settings::Settings;

use super::{Effect, register::once};
use crate::{flows::Flow, reporters::Means, tls::Towards};
use identity::Identity;
use metrics::Became;
use pools::{Member, Shared};
use settings::Checked;

/// As in the configuration.
const NAME: &str = "fold";

/// A larger request goes by its flow's own connection: others would wait behind it.
const MAX_REQUEST_BYTES: usize = 64 << 10;

/// A step.
#[derive(Debug)]
struct Fold {
    settings: Checked,
    shared: OnceLock<Arc<Shared>>,
}

impl Settings {
    pub(super) fn build(self) -> Result<impl Effect, String> {
        Ok(Fold {
            settings: self.checked()?,
            shared: OnceLock::new(),
        })
    }
}

impl Effect for Fold {
    fn open(&self, rule: &RuleName, means: &Means) -> Result<(), String> {
        once(&self.shared, || {
            let opened = means.folds.open(rule, &self.settings);
            opened.map_err(|error| error.to_string())
        })
    }

    fn is_last(&self) -> bool {
        true
    }
}

impl Transform for Fold {
    fn name(&self) -> &'static str {
        NAME
    }

    fn wants(&self, opcode: Opcode) -> bool {
        opcode.has_statements()
    }

    fn wants_opening(&self) -> bool {
        true
    }

    fn request(&self, request: &mut Request<'_>, caller: &Caller, _: u64) -> Outcome {
        let Some(shared) = self.shared.get() else {
            return Outcome::Pass;
        };
        if request.opcode() == Opcode::Prepare {
            let text = match request.statements().next() {
                Some(Statement::Text(text)) => text,
                _ => return Outcome::Pass,
            };
            let known = is_read(text, request, caller);
            request.await_response(shared.statements.goes_out(known));
        } else if let Err(why) = folds(shared, request, caller) {
            shared.counters.became(why);
        }
        Outcome::Pass
    }

    fn response(&self, response: &mut Response<'_>, _: &Caller, number: u64) -> bool {
        if let Some(shared) = self.shared.get() {
            shared.statements.came_back(number, response.prepared_id());
        }
        false
    }
}

/// Hands it over to a shared connection.
fn folds(shared: &Arc<Shared>, request: &mut Request<'_>, caller: &Caller) -> Result<(), Became> {
    let is_read = match asks(shared, request, caller) {
        Ok(is_read) => is_read,
        Err(why) => {
            if request.opcode() == Opcode::Execute {
                request.may_be_use();
            }
            return Err(why);
        }
    };
    if request.body_bytes() > MAX_REQUEST_BYTES {
        return Err(Became::Large);
    }
    let member = match member(shared, request, caller) {
        Ok(member) => member,
        Err(why) => {
            // It is not one of those any more.
            request.keep(None);
            return Err(why);
        }
    };
    member.may_ask()?;
    match request.hand_over(member, u64::from(is_read)) {
        true => Ok(()),
        false => Err(Became::Full),
    }
}

/// Whether it is a read, if it reads or writes, and does nothing else.
fn asks(shared: &Shared, request: &Request<'_>, caller: &Caller) -> Result<bool, Became> {
    if request.is_traced() {
        return Err(Became::Traced);
    }
    if !request.is_ordinary() {
        return Err(Became::Statement);
    }
    let mut statements = request.statements();
    match (request.opcode(), statements.next()) {
        (Opcode::Query, Some(Statement::Text(text))) => {
            is_read(text, request, caller).ok_or(Became::Statement)
        }
        (Opcode::Execute, Some(Statement::Prepared(id))) => {
            let known = shared.statements.known(id);
            let known = known.map_err(|_| Became::Unprepared)?;
            known.ok_or(Became::Statement)
        }
        // A database takes nothing but writes in one.
        (Opcode::Batch, _) => Ok(false),
        _ => Err(Became::Statement),
    }
}

/// The same, of a text. System tables say who asks, and on which connection.
fn is_read(text: &[u8], request: &Request<'_>, caller: &Caller) -> Option<bool> {
    let statement = cql::Statement::of(text);
    let given = request.keyspace().or(caller.keyspace.as_deref());
    let keyspace = statement.keyspace.as_deref().or(given);
    if keyspace.is_some_and(is_system_keyspace) {
        return None;
    }
    use StatementKind as S;
    match statement.kind {
        S::Select => Some(true),
        S::Insert | S::Update | S::Delete | S::Batch => Some(false),
        _ => None,
    }
}

/// The flow's place among those like it.
fn member(
    shared: &Arc<Shared>,
    request: &mut Request<'_>,
    caller: &Caller,
) -> Result<Arc<Member>, Became> {
    if caller.keyspace_unclear {
        return Err(Became::Keyspace);
    }
    let opening = request.opening().ok_or(Became::Handshake)?;
    let kept = request.kept().cloned().map(Note::downcast::<Member>);
    if let Some(Ok(member)) = kept
        && member.pool.identity.keyspace.as_deref() == caller.keyspace.as_deref()
    {
        return Ok(member);
    }
    let Some(Ok(flow)) = caller.flow.clone().map(Note::downcast::<Flow>) else {
        return Err(Became::Elsewhere);
    };
    let (at, towards) = flow.database().ok_or(Became::Elsewhere)?;
    // Its own has begun before the file was read again.
    if shared.settings.encrypts && *towards == Towards::Plain {
        return Err(Became::Unencrypted);
    }
    let identity = Identity::of((at, towards), caller.keyspace.as_deref(), opening);
    let identity = identity.ok_or(Became::Handshake)?;
    let member = shared.join(identity).ok_or(Became::Identities)?;
    let member = Arc::new(member);
    request.shares_opening(&member.pool.identity.opening);
    request.keep(Some(member.clone()));
    Ok(member)
}
