//! The step of a rule that protects and refuses what it cannot read (`fail = "closed"`), whose own steps would let such
//! requests pass: a throttle that does not see a request does not count it, and an audit has nothing to write.

use std::sync::Arc;

use cql::Opcode;

use crate::{Caller, Outcome, Request, Transform};

/// Makes the step. It changes nothing, and refuses what cannot be read.
pub fn readable() -> Arc<dyn Transform> {
    Arc::new(Readable)
}

#[derive(Debug)]
struct Readable;

impl Transform for Readable {
    fn name(&self) -> &'static str {
        "readable"
    }

    fn wants(&self, opcode: Opcode) -> bool {
        matches!(
            opcode,
            Opcode::Query | Opcode::Prepare | Opcode::Execute | Opcode::Batch
        )
    }

    fn is_strict(&self) -> bool {
        true
    }

    fn request(&self, _: &mut Request<'_>, _: &Caller, _: u64) -> Outcome {
        Outcome::Pass
    }
}
