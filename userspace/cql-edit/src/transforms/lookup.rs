//! `lookup`: has the database asked for the texts of statements that were prepared where nobody looked.
//!
//! The editor does it ([`Transform::looks_up`]): the question goes on the flow's own connection, where no transform
//! can put one.

use std::sync::Arc;

use crate::{Caller, Outcome, Request, Transform};
use cql::Opcode;

#[derive(Debug)]
struct Lookup;

/// Makes the step, which has no settings of its own.
pub fn lookup() -> Arc<dyn Transform> {
    Arc::new(Lookup)
}

impl Transform for Lookup {
    fn name(&self) -> &'static str {
        "lookup"
    }

    fn wants(&self, opcode: Opcode) -> bool {
        matches!(opcode, Opcode::Execute | Opcode::Batch)
    }

    fn looks_up(&self) -> bool {
        true
    }

    fn request(&self, _: &mut Request<'_>, _: &Caller, _: u64) -> Outcome {
        Outcome::Pass
    }
}
