//! `paging`: caps how many rows a page may have.

use std::sync::Arc;

use serde::Deserialize;

use crate::{Caller, Outcome, Request, Transform, Unpaired};
use cql::Opcode;

/// Limits how many rows a page may have.
#[derive(Clone, Debug, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("examples" = [{"at_most": 1000}]))]
pub struct Settings {
    /// Rows of a page. Requests without a page size are given this one.
    #[schemars(range(min = 1, max = i32::MAX))]
    pub at_most: i32,
}

#[derive(Debug)]
struct Paging {
    at_most: i32,
}

impl Settings {
    pub(super) fn build(self) -> Result<Arc<dyn Transform>, String> {
        match self.at_most {
            1.. => Ok(Arc::new(Paging {
                at_most: self.at_most,
            })),
            rows => Err(format!("at_most: expected 1 row or more, found {rows}")),
        }
    }
}

impl Transform for Paging {
    fn name(&self) -> &'static str {
        "paging"
    }

    fn wants(&self, opcode: Opcode) -> bool {
        matches!(opcode, Opcode::Query | Opcode::Execute)
    }

    fn is_strict(&self) -> bool {
        true
    }

    /// The size of a page does not depend on the response.
    fn unpaired(&self) -> Unpaired {
        Unpaired::Judged
    }

    fn request(&self, request: &mut Request<'_>, _: &Caller, _: u64) -> Outcome {
        match request.page_size() {
            Some(rows) if (1..=self.at_most).contains(&rows) => Outcome::Pass,
            _ => {
                request.set_page_size(self.at_most);
                Outcome::Changed
            }
        }
    }
}
