//! `fold` (connection multiplexing): flows that are alike share connections to their database.
//!
//! Every flow has a connection of its own, on which it has begun, and which carries everything by
//! which the database could tell whose it is. Plain reads and writes are handed over to a
//! connection that the flow shares with others, and come back on the flow's own streams.
//!
//! - `settings`, `metrics`.
//! - `identity`: the test whether flows are alike. `pools`: the flows that share connections.
//! - `shared_connection`: a shared connection as flows see it; `task`: its task; `begin`: its
//!   opening; `plain_stream`: its bytes, where they are not encrypted.
//! - `room`: the limit on long answers that wait.
//! - `by_hand`: the step for whoever carries the bytes of shared connections himself, as a test does.
//!
//! `docs/decisions/0021-fold.md` says which requests are folded, why no others are, and what the
//! database sees.

mod begin;
#[cfg(feature = "by-hand")]
mod by_hand;
mod identity;
mod metrics;
mod plain_stream;
mod pools;
mod room;
mod settings;
mod shared_connection;
mod task;

use std::sync::{Arc, OnceLock};

#[cfg(feature = "by-hand")]
pub use by_hand::{ByHand, DatabaseEnd};
use cql::{Opcode, StatementKind, is_system_keyspace};
use cql_edit::{
    Caller, Note, Outcome, Request, Response, Statement, Transform, transforms::Preparing,
};
use flow::Flow;
use identity::Identity;
use metrics::Became;
pub use metrics::FoldMetrics;
use policy::RuleName;
pub use pools::Folds;
use pools::{Member, Shared};
use settings::Checked;
pub use settings::FoldSettings;
use tls::Towards;

use super::{effect::Effect, register::once};
use crate::Services;

/// The step's name in the configuration.
const NAME: &str = "fold";

/// The largest request that is folded. A larger one goes by its flow's own connection: others would
/// wait behind it.
const MAX_REQUEST_BYTES: usize = 64 << 10;

/// The `fold` step of one rule.
#[derive(Debug)]
struct Fold {
    settings: Checked,
    shared: OnceLock<Arc<Shared>>,
}

impl FoldSettings {
    pub(super) fn build(self) -> Result<impl Effect, String> {
        Ok(Fold {
            settings: self.checked()?,
            shared: OnceLock::new(),
        })
    }
}

impl Effect for Fold {
    fn open(&self, rule: &RuleName, services: &Services) -> Result<(), String> {
        once(&self.shared, || {
            let opened = services.folds.open(rule, &self.settings);
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

    fn response_unpaired(&self, number: u64) -> bool {
        if let Some(shared) = self.shared.get() {
            shared.statements.came_back(number, None);
        }
        false
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
            let preparing = Preparing::of(request, request.sure_keyspace(caller), caller);
            request.await_response(shared.statements.goes_out(preparing, known));
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

/// Hands the request over to a shared connection.
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
            // The flow does not belong to its pool any more.
            request.keep(None);
            stays_alone(shared, caller, why);
            return Err(why);
        }
    };
    if let Err(why) = member.may_ask() {
        stays_alone(shared, caller, why);
        return Err(why);
    }
    match request.hand_over(member, u64::from(is_read)) {
        true => Ok(()),
        false => Err(Became::Full),
    }
}

/// Has the reason be seen why nothing of a flow is folded, if there is one: with the flow, and, the first time in a rule,
/// in the log.
#[cold]
fn stays_alone(shared: &Shared, caller: &Caller, why: Became) {
    let Some(reason) = why.keeps_flow() else {
        return;
    };
    if shared.is_first(why) {
        let rule = &shared.rule;
        tracing::info!(%rule, "a connection shares none with others: {reason}; `flows --why` says it of each, this is logged once");
    }
    if let Some(flow) = flow_of(caller) {
        flow.set_alone(Some(reason));
    }
}

fn flow_of(caller: &Caller) -> Option<Arc<Flow>> {
    caller.flow.clone()?.downcast::<Flow>().ok()
}

/// Whether the request is a read. An error if it does anything else than read or write.
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
            let known = shared.statements.known(id, caller);
            let known = known.map_err(|_| Became::Unprepared)?;
            known.ok_or(Became::Statement)
        }
        // A database accepts only writes in a batch.
        (Opcode::Batch, _) => Ok(false),
        _ => Err(Became::Statement),
    }
}

/// Whether a statement's text is a read; None if it is neither read nor write. System tables are
/// left out, because their rows depend on the client and the connection.
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

/// Finds the flow's membership in a pool, or makes it.
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
    let flow = flow_of(caller).ok_or(Became::Elsewhere)?;
    let (at, towards) = flow.database().ok_or(Became::Elsewhere)?;
    // The flow's own connection has begun before the policy file was read again.
    if shared.settings.encrypts && *towards == Towards::Plain {
        return Err(Became::Unencrypted);
    }
    let skips_tcp = flow.opted_in().takes_database();
    let identity = Identity::of(
        (at, towards),
        skips_tcp,
        caller.keyspace.as_deref(),
        opening,
    );
    let identity = identity.ok_or(Became::Handshake)?;
    let member = shared.join(identity).ok_or(Became::Identities)?;
    let member = Arc::new(member);
    request.shares_opening(&member.pool.identity.opening);
    request.keep(Some(member.clone()));
    flow.set_alone(None);
    Ok(member)
}
