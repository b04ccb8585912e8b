//! `null`: answers in place of the database, by an empty result. It is for measuring what everything but
//! the database costs.

use std::sync::Arc;

use serde::Deserialize;

use crate::{Caller, Outcome, Request, Statement, Transform};
use cql::Opcode;
use cql::StatementKind;
use cql::is_system_keyspace;

/// Answers SELECT, INSERT, UPDATE, DELETE, TRUNCATE, EXECUTE and BATCH by an empty result in place of the database, but
/// for the server's own keyspaces: to measure everything but the database.
#[derive(Clone, Debug, Default, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NullSettings {}

#[derive(Debug)]
struct Null;

impl NullSettings {
    pub(super) fn build(self) -> Result<Arc<dyn Transform>, String> {
        Ok(Arc::new(Null))
    }
}

/// Whether a statement is for the database to answer: drivers need it to begin, or it changes the session.
fn is_of_the_session(text: &[u8], caller: &Caller) -> bool {
    use StatementKind as S;
    let statement = cql::Statement::of(text);
    let keyspace = statement.keyspace.as_deref().or(caller.keyspace.as_deref());
    match statement.kind {
        S::Insert | S::Update | S::Delete | S::Batch | S::Truncate => false,
        S::Select => keyspace.is_some_and(is_system_keyspace),
        _ => true,
    }
}

impl Transform for Null {
    fn name(&self) -> &'static str {
        "null"
    }

    fn wants(&self, opcode: Opcode) -> bool {
        matches!(opcode, Opcode::Query | Opcode::Execute | Opcode::Batch)
    }

    fn request(&self, request: &mut Request<'_>, caller: &Caller, _: u64) -> Outcome {
        let passes = request.opcode() == Opcode::Query
            && request.statements().any(|statement| match statement {
                Statement::Text(text) => is_of_the_session(text, caller),
                Statement::Prepared(_) => false,
            });
        match passes {
            true => Outcome::Pass,
            false => Outcome::Answer,
        }
    }
}
