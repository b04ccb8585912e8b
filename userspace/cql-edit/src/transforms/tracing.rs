//! `tracing`: has the database trace one request of so many.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use serde::Deserialize;

use crate::{Caller, Outcome, Request, Transform};
use cql::Opcode;

/// Has the database trace some of the requests.
#[derive(Clone, Debug, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("examples" = [{"one_in": 10_000}]))]
pub struct TracingSettings {
    /// The database traces one request of this many.
    #[schemars(range(min = 1))]
    pub one_in: u64,
}

#[derive(Debug)]
struct Tracing {
    one_in: u64,
    seen: AtomicU64,
}

impl TracingSettings {
    pub(super) fn build(self) -> Result<Arc<dyn Transform>, String> {
        match self.one_in {
            0 => Err("one_in: expected 1 or more, found 0".to_owned()),
            one_in => Ok(Arc::new(Tracing {
                one_in,
                seen: AtomicU64::new(0),
            })),
        }
    }
}

impl Transform for Tracing {
    fn name(&self) -> &'static str {
        "tracing"
    }

    fn wants(&self, opcode: Opcode) -> bool {
        matches!(opcode, Opcode::Query | Opcode::Execute | Opcode::Batch)
    }

    fn request(&self, request: &mut Request<'_>, _: &Caller, _: u64) -> Outcome {
        if !self.seen.fetch_add(1, Relaxed).is_multiple_of(self.one_in) {
            return Outcome::Pass;
        }
        request.trace();
        Outcome::Changed
    }
}
