//! `rewrite`: something else in place of what clients ask for, or of what they are told.
//!
//! - `addresses`: the cluster behind a virtual address is that address alone.
//! - `caps`: how long writes live, and whose clock says when they were.
//! - `renames`: what the database calls otherwise; `naming`, `definitions`: its names in the texts of statements;
//!   `lookups`: what is asked of the server's own tables by name, and answered.
//! - `json`: strings of rows that come as JSON; `text`: a text, followed once, and changes within it; `markers`: which values are bound to what.

mod addresses;
mod caps;
mod definitions;
mod json;
mod lookups;
mod markers;
mod naming;
mod refusal;
mod renames;
mod text;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Deserialize;

use self::addresses::{Addresses, Nodes};
use self::caps::{Caps, Markers, Timestamps};
use self::lookups::Lookups;
use self::naming::Named;
use self::refusal::refusal;
use self::renames::Renames;
use self::text::{Edits, Text};
use super::prepared::{Prepared, Preparing};
use crate::{
    Caller, Change, Outcome, Refused, Request, Response, Statement, Transform,
    request_editor::may_use,
};
use cql::MAX_ANALYSED_BYTES;
use cql::Opcode;

/// Replaces addresses, names, TTLs and timestamps in requests and responses. Needs one of its keys.
#[derive(Clone, Debug, Default, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("examples" = [{"keyspaces": {"shop": "shop_v2"}, "max_ttl": "90d"}]))]
pub struct RewriteSettings {
    /// Addresses of nodes that drivers find in the server's tables.
    pub addresses: Option<Addresses>,
    /// Names of keyspaces in the database, by the clients' names for them.
    #[serde(default)]
    #[schemars(extend("examples" = [{"shop": "shop_v2"}]))]
    pub keyspaces: BTreeMap<String, String>,
    /// Names of tables in the database, by the clients' names for them: `keyspace.table` both.
    #[serde(default)]
    #[schemars(extend("examples" = [{"shop.orders": "shop_v2.orders_2026"}]))]
    pub tables: BTreeMap<String, String>,
    /// Longest TTL. TTLs that are longer, or 0, become this one.
    #[schemars(
        regex(pattern = "^[0-9]+(ms|s|m|h|d)$"),
        extend("title" = "duration", "x-min" = "1s", "x-max" = "7300d")
    )]
    pub max_ttl: Option<String>,
    /// TTL of INSERT and UPDATE that have none.
    #[schemars(
        regex(pattern = "^[0-9]+(ms|s|m|h|d)$"),
        extend("title" = "duration", "x-min" = "1s", "x-max" = "7300d")
    )]
    pub default_ttl: Option<String>,
    /// Clock that says when something was written. `"server"`: the database's; `{ max_ahead = "1s" }`: the client's, no
    /// further ahead of the agent's clock than that.
    #[schemars(extend("examples" = ["server", {"max_ahead": "1s"}]))]
    pub timestamps: Option<Timestamps>,
}

#[derive(Debug)]
struct Rewrite {
    addresses: Option<Addresses>,
    caps: Caps,
    renames: Renames,
    prepared: Prepared<Known>,
}

/// The facts of a statement that are needed when it is executed.
#[derive(Clone, Debug, Default)]
struct Known {
    nodes: Nodes,
    markers: Markers,
    lookups: Option<Arc<Lookups>>,
    /// The statement's response may have names in it.
    names: bool,
}

/// The numbers of responses that are shown: this bit and a number of `prepared`, or others.
const PREPARES: u64 = 1 << 63;
const OWN: u64 = 1;
const PEERS: u64 = 2;
/// There may be names in it.
const NAMES: u64 = 4;
/// The response's rows have names in them.
const ROWS: u64 = 8;

impl RewriteSettings {
    pub(super) fn build(self) -> Result<Arc<dyn Transform>, String> {
        let caps = Caps::new(
            self.max_ttl.as_deref(),
            self.default_ttl.as_deref(),
            self.timestamps.as_ref(),
        )?;
        let renames = Renames::new(&self.keyspaces, &self.tables)?;
        if self.addresses.is_none() && !caps.is_any() && !renames.is_any() {
            return Err(
                "expected one of `addresses`, `keyspaces`, `tables`, `max_ttl`, `default_ttl`, \
                 `timestamps`"
                    .to_owned(),
            );
        }
        Ok(Arc::new(Rewrite {
            addresses: self.addresses,
            caps,
            renames,
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

/// The changes of a request, and the wishes for its response.
#[derive(Default)]
struct Plan {
    changes: Vec<Change>,
    /// The facts of the request's first statement.
    first: Known,
    names: bool,
}

impl Rewrite {
    /// Notes what is to be changed of one text. `keyspace`: of what it names without one.
    fn text(
        &self,
        text: &Text<'_>,
        request: &Request<'_>,
        keyspace: Option<&str>,
        edits: &mut Edits,
    ) -> Result<Known, Refused> {
        let is_prepared = request.opcode() == Opcode::Prepare;
        let nodes = match self.addresses {
            Some(Addresses::Dialled) => Nodes::of(text.bytes),
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
        let named = match self.renames.is_any() {
            true => self.names(text, is_prepared, keyspace, edits)?,
            false => Named::default(),
        };
        Ok(Known {
            nodes,
            markers,
            lookups: named.lookups.map(Arc::new),
            names: named.answers_names,
        })
    }

    fn names(
        &self,
        text: &Text<'_>,
        is_prepared: bool,
        keyspace: Option<&str>,
        edits: &mut Edits,
    ) -> Result<Named, Refused> {
        // Executed, it would change unseen what names mean.
        if is_prepared && may_use(text.bytes) {
            return Err(refusal(
                "prepared_use",
                "the proxy's policy calls keyspaces otherwise, and needs to see USE; send it as a query",
            ));
        }
        naming::rename(&self.renames, text, keyspace, edits)
    }

    fn plan(&self, request: &Request<'_>, caller: &Caller) -> Result<Plan, Not> {
        let mut plan = Plan::default();
        let given = request.keyspace();
        let keyspace = match given {
            Some(given) => Ok(Some(given)),
            None => self.renames.keyspace_of(caller),
        };
        if let Some(given) = given.filter(|given| self.renames.renames_keyspace(given)) {
            let called = self.renames.database_keyspace(given);
            plan.changes.extend(request.keyspace_becomes(called));
        }
        // Of all of its texts together.
        let mut bytes = 0;
        for (number, statement) in request.statements().enumerate() {
            let known = match statement {
                Statement::Prepared(id) => {
                    self.prepared.known(id, caller).map_err(Not::Prepared)?
                }
                Statement::Text(text) => {
                    bytes += text.len();
                    let text = Text::new(text, bytes <= MAX_ANALYSED_BYTES);
                    let keyspace = match &keyspace {
                        Ok(keyspace) => *keyspace,
                        // By which it is in another one.
                        Err(_) if may_use(text.bytes) => None,
                        Err(refused) => return Err(Not::Allowed(refused.clone())),
                    };
                    let mut edits = Edits::new();
                    let known = self.text(&text, request, keyspace, &mut edits)?;
                    if !edits.is_empty() {
                        let text = text::edited(text.bytes, edits);
                        plan.changes.extend(request.text_becomes(number, &text));
                    }
                    known
                }
            };
            self.caps
                .values(request, number, &known.markers, &mut plan.changes)?;
            if let Some(lookups) = &known.lookups {
                lookups.values(&self.renames, request, number, &mut plan.changes)?;
            }
            plan.names |= known.names;
            if number == 0 {
                plan.first = known;
            }
        }
        Ok(plan)
    }

    fn rewritten(&self, request: &mut Request<'_>, caller: &Caller) -> Result<bool, Not> {
        let Plan {
            changes,
            first,
            names,
        } = self.plan(request, caller)?;
        let mut changed = !changes.is_empty();
        request.change(changes);
        changed |= self.caps.request(request)?;
        if request.opcode() == Opcode::Prepare {
            let keyspace = request.keyspace().or(caller.keyspace.as_deref());
            let preparing = Preparing::of(request, keyspace, caller);
            request.await_response(PREPARES | self.prepared.goes_out(preparing, first));
            return Ok(changed);
        }
        let mut wanted = match first.nodes {
            Nodes::Nobody => 0,
            Nodes::Own => OWN,
            Nodes::Peers => PEERS,
        };
        if first.lookups.is_some() {
            wanted |= ROWS;
        }
        if wanted != 0 {
            changed |= request.want_metadata();
        }
        if names && !request.skips_metadata() {
            wanted |= NAMES;
        }
        match first.lookups {
            Some(lookups) => request.await_response_with(wanted, lookups),
            None if wanted != 0 => request.await_response(wanted),
            None => {}
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
            Opcode::Batch => self.is_strict(),
            _ => false,
        }
    }

    fn is_strict(&self) -> bool {
        self.caps.is_any() || self.renames.is_any()
    }

    fn changes_texts(&self) -> bool {
        self.caps.is_any() || self.renames.is_any()
    }

    fn response_unpaired(&self, number: u64) -> bool {
        if number & PREPARES != 0 {
            self.prepared.came_back(number & !PREPARES, None);
        }
        false
    }

    fn request(&self, request: &mut Request<'_>, caller: &Caller, _: u64) -> Outcome {
        match self.rewritten(request, caller) {
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
            return self.renames.is_any() && response.rename(&self.renames);
        }
        let nodes = match number {
            _ if number & OWN != 0 => Nodes::Own,
            _ if number & PEERS != 0 => Nodes::Peers,
            _ => Nodes::Nobody,
        };
        let mut changed = nodes.show(response, caller.dialled);
        if number & ROWS != 0
            && let Some(lookups) = response.note()
            && let Ok(lookups) = lookups.downcast::<Lookups>()
        {
            changed |= lookups::show(&self.renames, &lookups, response);
        }
        if number & NAMES != 0 {
            changed |= response.rename(&self.renames);
        }
        changed
    }

    fn wants_events(&self) -> bool {
        self.addresses.is_some() || self.renames.is_any()
    }

    fn lets_pass(&self, event: &Response<'_>) -> bool {
        let is_hidden = event
            .schema_change()
            .is_some_and(|(keyspace, table)| self.renames.hides(keyspace, table));
        !is_hidden && (self.addresses.is_none() || addresses::lets_pass(event))
    }

    fn event(&self, event: &mut Response<'_>) -> bool {
        self.renames.is_any() && event.rename(&self.renames)
    }
}
