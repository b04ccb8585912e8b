//! `rewrite`: something else in place of what clients ask for, or of what they are told.
//!
//! - `addresses`: the cluster behind a virtual address is that address alone.
//! - `caps`: how long writes live, and whose clock says when they were; `text`: changes within a text.

mod addresses;
mod caps;
mod text;

use serde::Deserialize;

use self::addresses::{Addresses, Nodes};
use self::caps::{Caps, Markers, Timestamps};
use self::text::Edits;
use super::prepared::Prepared;
use crate::edit::{Caller, Change, Outcome, Refused, Request, Response, Statement, Transform};
use crate::frame::Opcode;

/// As in the configuration.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// Which addresses drivers find.
    pub addresses: Option<Addresses>,
    /// How long what is written may live.
    pub max_ttl: Option<String>,
    /// How long what is written lives if nothing is said.
    pub default_ttl: Option<String>,
    /// Whose clock says when something was written.
    pub timestamps: Option<Timestamps>,
}

#[derive(Debug)]
struct Rewrite {
    addresses: Option<Addresses>,
    caps: Caps,
    prepared: Prepared<Known>,
}

/// What has to be known of a statement when it is executed.
#[derive(Clone, Debug, Default)]
struct Known {
    nodes: Nodes,
    markers: Markers,
}

/// What responses are shown for: this bit and a number of `prepared`, or others.
const PREPARES: u64 = 1 << 63;
const OWN: u64 = 1;
const PEERS: u64 = 2;

impl Settings {
    pub(super) fn build(self) -> Result<Box<dyn Transform>, String> {
        let caps = Caps::new(
            self.max_ttl.as_deref(),
            self.default_ttl.as_deref(),
            self.timestamps.as_ref(),
        )?;
        if self.addresses.is_none() && !caps.is_any() {
            return Err(
                "expected one of `addresses`, `max_ttl`, `default_ttl`, `timestamps`".to_owned(),
            );
        }
        Ok(Box::new(Rewrite {
            addresses: self.addresses,
            caps,
            prepared: Prepared::default(),
        }))
    }
}

/// Why a request does not go on.
enum Not {
    Prepared(Outcome),
    Allowed(Refused),
}

impl From<Refused> for Not {
    fn from(refused: Refused) -> Self {
        Self::Allowed(refused)
    }
}

impl Rewrite {
    /// Notes what is to be changed of one text.
    fn text(
        &self,
        text: &[u8],
        request: &Request<'_>,
        edits: &mut Edits,
    ) -> Result<Known, Refused> {
        let is_prepared = request.opcode() == Opcode::Prepare;
        let nodes = match self.addresses {
            Some(Addresses::Dialled) => Nodes::of(text),
            None => Nodes::Nobody,
        };
        let caps = match request.is_counter_batch() {
            true => self.caps.without_default(),
            false => self.caps,
        };
        let markers = match caps.is_any() {
            true => caps.text(text, request.unix_us(), is_prepared, edits)?,
            false => Markers::default(),
        };
        Ok(Known { nodes, markers })
    }

    /// What becomes of a request's statements; and what is known of the first one.
    fn statements(&self, request: &Request<'_>) -> Result<(Vec<Change>, Known), Not> {
        let mut changes = Vec::new();
        let mut first = None;
        for (number, statement) in request.statements().enumerate() {
            let known = match statement {
                Statement::Prepared(id) => self.prepared.known(id).map_err(Not::Prepared)?,
                Statement::Text(text) => {
                    let mut edits = Edits::new();
                    let known = self.text(text, request, &mut edits)?;
                    if !edits.is_empty() {
                        let text = text::edited(text, edits);
                        changes.extend(request.text_becomes(number, &text));
                    }
                    known
                }
            };
            self.caps
                .values(request, number, &known.markers, &mut changes)?;
            first.get_or_insert(known);
        }
        Ok((changes, first.unwrap_or_default()))
    }

    fn rewritten(&self, request: &mut Request<'_>) -> Result<bool, Not> {
        let (changes, known) = self.statements(request)?;
        let mut changed = !changes.is_empty();
        request.change(changes);
        changed |= self.caps.request(request)?;
        let number = match (request.opcode(), known.nodes) {
            (Opcode::Prepare, _) => PREPARES | self.prepared.goes_out(known),
            (_, Nodes::Nobody) => 0,
            (_, Nodes::Own) => OWN,
            (_, Nodes::Peers) => PEERS,
        };
        if number != 0 {
            request.await_response(number);
            changed |= number & PREPARES == 0 && request.want_metadata();
        }
        Ok(changed)
    }
}

impl Transform for Rewrite {
    fn name(&self) -> &'static str {
        "rewrite"
    }

    fn wants(&self, opcode: Opcode) -> bool {
        match opcode {
            Opcode::Query | Opcode::Prepare | Opcode::Execute => true,
            Opcode::Batch => self.caps.is_any(),
            _ => false,
        }
    }

    fn is_strict(&self) -> bool {
        self.caps.is_any()
    }

    fn request(&self, request: &mut Request<'_>, _: &Caller, _: u64) -> Outcome {
        match self.rewritten(request) {
            Ok(true) => Outcome::Changed,
            Ok(false) => Outcome::Pass,
            Err(Not::Prepared(again)) => again,
            Err(Not::Allowed(refused)) => Outcome::Refuse(refused),
        }
    }

    fn response(&self, response: &mut Response<'_>, caller: &Caller, number: u64) -> bool {
        if number & PREPARES != 0 {
            let id = response.prepared_id();
            self.prepared.came_back(number & !PREPARES, id);
            return false;
        }
        let nodes = match number {
            OWN => Nodes::Own,
            PEERS => Nodes::Peers,
            _ => Nodes::Nobody,
        };
        nodes.show(response, caller.dialled)
    }

    fn wants_events(&self) -> bool {
        self.addresses.is_some()
    }

    fn lets_pass(&self, event: &Response<'_>) -> bool {
        self.addresses.is_none() || addresses::lets_pass(event)
    }
}
