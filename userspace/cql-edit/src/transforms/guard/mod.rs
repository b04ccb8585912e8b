//! `guard`: lets statements pass, or refuses them, by what they ask for.

mod judge;
mod objection;
mod whom;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use policy::{Timestamp, Window, WindowSettings};
use serde::Deserialize;

pub use self::judge::Reason;
use self::judge::{Judge, not_understood};
use self::objection::Objection;
use self::whom::Whom;
use super::prepared::{Prepared, Preparing};
use crate::{
    Caller, Copies, Error, Outcome, Refused, Request, Response, Statement, Transform, Unpaired,
};
use cql::Analysis;
use cql::Opcode;
use cql::StatementKind;

/// Refuses statements by what they ask for, with a CQL error.
#[derive(Clone, Debug, Default, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("examples" = [{"refuse": ["ddl", "truncate", "no_limit"], "max_batch": 100}]))]
pub struct GuardSettings {
    /// Whether statements are refused, or pass with a warning, or are only counted.
    #[serde(default)]
    pub mode: Mode,
    /// Days and hours during which the guard is there ([`when`](#when-of-a-rule-or-of-a-step)). Without this key: always.
    pub when: Option<Box<WindowSettings>>,
    /// Users for whom the guard is there: exact, or the beginning and `*`. It is there for a user who is not known, too. Without
    /// this key: all.
    #[serde(default)]
    #[schemars(extend("examples" = [["report*"]]))]
    pub users: Vec<String>,
    /// Users for whom the guard is not there, in the same form.
    #[serde(default)]
    #[schemars(extend("examples" = [["admin"]]))]
    pub not_users: Vec<String>,
    /// Drivers for which the guard is there, by the names that they give themselves: exact, or the beginning and `*`. It is
    /// there for a client that names none, too. Without this key: all.
    #[serde(default)]
    #[schemars(extend("examples" = [["DataStax Python*"]]))]
    pub drivers: Vec<String>,
    /// Drivers for which the guard is not there, in the same form.
    #[serde(default)]
    #[schemars(extend("examples" = [["cqlsh*"]]))]
    pub not_drivers: Vec<String>,
    /// Kinds of statements that are refused.
    #[serde(default)]
    pub refuse: Vec<Kind>,
    /// Most elements of a list behind IN, where the text has them.
    #[schemars(extend("examples" = [100]))]
    pub max_in: Option<u32>,
    /// Most statements of a batch.
    #[schemars(extend("examples" = [100]))]
    pub max_batch: Option<u32>,
    /// Highest LIMIT, where it is a number in the text.
    #[schemars(extend("examples" = [10_000]))]
    pub max_limit: Option<i64>,
    /// Most bytes of a statement's text.
    #[schemars(extend("examples" = [65_536]))]
    pub max_bytes: Option<usize>,
    /// Tables that statements may name: `keyspace`, `keyspace.table`, or the beginning of that and `*`. The server's own
    /// keyspaces can always be read. Without this key: all.
    #[serde(default)]
    #[schemars(extend("examples" = [["shop", "logs.day_*"]]))]
    pub tables: Vec<String>,
    /// Tables that statements may not name, in the same form; those of the server's own keyspaces, too, where they are named.
    #[serde(default)]
    #[schemars(extend("examples" = [["shop.customers"]]))]
    pub not_tables: Vec<String>,
    /// Columns that SELECT, UPDATE and DELETE have to restrict by `=` or IN, by `keyspace.table`.
    #[serde(default)]
    #[schemars(extend("examples" = [{"shop.orders": ["customer", "day"]}]))]
    pub partition_keys: HashMap<String, Vec<String>>,
}

/// The treatment of statements to which a guard objects.
#[derive(
    Clone, Copy, Debug, Default, Deserialize, serde::Serialize, schemars::JsonSchema, PartialEq, Eq,
)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// The statement is answered by an error.
    #[default]
    Enforce,
    /// The statement passes, and its answer carries a warning, which drivers log. Protocol v3 has no warnings.
    Warn,
    /// The statement passes, and is counted.
    Shadow,
}

/// Kinds of statements that a guard can refuse.
#[derive(
    Clone, Copy, Debug, Deserialize, serde::Serialize, schemars::JsonSchema, PartialEq, Eq,
)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// CREATE, ALTER, DROP
    Ddl,
    /// TRUNCATE
    Truncate,
    /// GRANT, REVOKE; CREATE, ALTER, DROP of roles and users
    Roles,
    /// INSERT, UPDATE, DELETE, TRUNCATE, batches
    Writes,
    /// ALLOW FILTERING
    AllowFiltering,
    /// A SELECT without LIMIT
    NoLimit,
    /// A SELECT without WHERE
    NoWhere,
    /// IF: a light-weight transaction
    Conditional,
    /// A statement that is not understood
    Unknown,
}

/// Texts whose analysis is kept; what is longer is rarely sent twice.
const MAX_CACHED: usize = 4_096;
const MAX_CACHED_BYTES: usize = 4 << 10;

/// The most bytes of a batch's texts that are read; the rest is unknown. Reading holds up the other flows
/// of a worker.
const MAX_READ_BYTES: usize = 256 << 10;

/// The first version whose responses have warnings (`native_protocol_v4.spec` §2.2).
const FIRST_WITH_WARNINGS: u8 = 4;

/// The number of a response to something else than a PREPARE. [`Prepared`] counts from 0, and does not come so far.
const NO_PREPARE: u64 = u64::MAX;

/// The warning that a response is to carry.
#[derive(Debug)]
struct Warning(String);

#[cfg(test)]
mod tests;

#[derive(Debug)]
struct Guard {
    judge: Judge,
    mode: Mode,
    when: Option<Window>,
    users: Whom,
    drivers: Whom,
    prepared: Prepared<Option<Objection>>,
    cache: Mutex<HashMap<Box<[u8]>, Arc<Analysis>>>,
}

impl GuardSettings {
    pub(super) fn build(self) -> Result<Arc<dyn Transform>, String> {
        let mode = self.mode;
        let when = self.when.as_ref().map(|when| when.build()).transpose()?;
        let users = Whom::parse(["users", "not_users"], [&self.users, &self.not_users])?;
        let drivers = Whom::parse(
            ["drivers", "not_drivers"],
            [&self.drivers, &self.not_drivers],
        )?;
        Ok(Arc::new(Guard {
            judge: Judge::new(self)?,
            mode,
            when,
            users,
            drivers,
            prepared: Prepared::default(),
            cache: Mutex::default(),
        }))
    }
}

impl Guard {
    fn analysis(&self, text: &[u8]) -> Arc<Analysis> {
        if text.len() > MAX_CACHED_BYTES {
            return Arc::new(Analysis::of(text, text.len()));
        }
        let lock = || self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = lock().get(text) {
            return known.clone();
        }
        let analysis = Arc::new(Analysis::of(text, text.len()));
        let mut cache = lock();
        if cache.len() >= MAX_CACHED {
            cache.clear();
        }
        cache.insert(text.into(), analysis.clone());
        analysis
    }

    /// Whether the guard is there for a request. Where nobody says what time it is, it is.
    fn is_there(&self, request: &Request<'_>, caller: &Caller) -> bool {
        let now = || Timestamp::from_microsecond(request.unix_us()?).ok();
        let is_open = |when: &Window| now().is_none_or(|now| when.is_open(now));
        self.users.holds_for(caller.user.as_deref())
            && self.drivers.holds_for(caller.driver.as_deref())
            && self.when.as_ref().is_none_or(is_open)
    }

    /// Lets a request pass for which the guard is not there, and learns what it prepares: it may be executed when the guard
    /// is.
    fn looks_on(&self, request: &mut Request<'_>, caller: &Caller) {
        match self.judged(request, caller) {
            // The guard cannot tell which keyspace the flow is in, if this is a USE.
            Err(_) if request.opcode() == Opcode::Execute => request.may_be_use(),
            Ok(objection) if request.opcode() == Opcode::Prepare && !self.is_use(request) => {
                let preparing = preparing(request, caller);
                request.await_response(self.prepared.goes_out(preparing, objection));
            }
            Err(_) | Ok(_) => {}
        }
    }

    /// The outcome for a request to which there is an objection. `number`: that of a PREPARE.
    fn objects(
        &self,
        objection: &Objection,
        request: &mut Request<'_>,
        caller: &Caller,
        number: Option<u64>,
    ) -> Outcome {
        let reason = objection.reason.as_str();
        match self.mode {
            Mode::Shadow => Outcome::WouldRefuse(reason),
            Mode::Warn => {
                let is_told = request.version() >= FIRST_WITH_WARNINGS && !request.is_unpaired();
                if is_told {
                    let told = objection.told_to(caller.user.as_deref());
                    let warning = Warning(format!(
                        "underpass: rule {} would refuse this: {told}",
                        caller.rule
                    ));
                    let number = number.unwrap_or(NO_PREPARE);
                    request.await_response_with(number, Arc::new(warning));
                }
                Outcome::Warn { reason, is_told }
            }
            Mode::Enforce => Outcome::Refuse(Refused {
                reason,
                error: Error::Invalid(objection.told_to(caller.user.as_deref())),
            }),
        }
    }

    /// A USE that is prepared, as no driver does it, would change the keyspace unseen.
    fn is_use(&self, request: &Request<'_>) -> bool {
        self.judge.minds_tables()
            && request.statements().any(|statement| match statement {
                Statement::Text(text) => self.analysis(text).statement.kind == StatementKind::Use,
                Statement::Prepared(_) => false,
            })
    }

    /// The first objection to a request; `Err`: it has to be prepared again.
    fn judged(&self, request: &Request<'_>, caller: &Caller) -> Result<Option<Objection>, Outcome> {
        let keyspace = request.keyspace().or(caller.keyspace.as_deref());
        let mut count = 0_u32;
        let mut read = 0_usize;
        for statement in request.statements() {
            count = count.saturating_add(1);
            let objection = match statement {
                Statement::Text(_) if read > MAX_READ_BYTES => Some(not_understood()),
                Statement::Text(text) => {
                    read += text.len();
                    let analysis = self.analysis(text);
                    let objection = self.judge.objection(text, &analysis, keyspace);
                    let is_somewhere =
                        analysis.statement.keyspace.is_some() || !request.lacks_keyspace(caller);
                    objection.filter(|objection| is_somewhere || objection.reason != Reason::Table)
                }
                Statement::Prepared(id) => self.prepared.known(id, caller)?,
            };
            if objection.is_some() {
                return Ok(objection);
            }
        }
        Ok(match request.opcode() {
            Opcode::Batch => self.judge.batch(count),
            _ => None,
        })
    }
}

/// Returns what can be believed of the answer to a PREPARE, which was judged by its text and this keyspace.
fn preparing(request: &Request<'_>, caller: &Caller) -> Preparing {
    let keyspace = request.keyspace().or(caller.keyspace.as_deref());
    Preparing::of(request, keyspace, caller)
}

impl Transform for Guard {
    fn name(&self) -> &'static str {
        "guard"
    }

    fn wants(&self, opcode: Opcode) -> bool {
        opcode.has_statements()
    }

    fn copies(&self) -> Option<Copies> {
        (self.mode == Mode::Shadow).then_some(Copies::Requests)
    }

    fn is_strict(&self) -> bool {
        self.mode == Mode::Enforce
    }

    /// A guard decides by the request alone. The answer to a PREPARE it does not learn.
    fn unpaired(&self) -> Unpaired {
        Unpaired::Judged
    }

    fn response_unpaired(&self, number: u64) -> bool {
        self.prepared.came_back(number, None);
        false
    }

    fn lacks(&self, id: &[u8], caller: &Caller) -> bool {
        self.prepared.known(id, caller).is_err()
    }

    fn learns(&self, id: &[u8], keyspace: Option<&str>, text: &[u8], caller: &Caller) {
        let analysis = self.analysis(text);
        let objection = match analysis.statement.kind {
            StatementKind::Use if self.judge.minds_tables() => Some(not_understood()),
            _ => self.judge.objection(text, &analysis, keyspace),
        };
        self.prepared.learn(id, caller, objection);
    }

    fn request(&self, request: &mut Request<'_>, caller: &Caller, _: u64) -> Outcome {
        if !self.is_there(request, caller) {
            self.looks_on(request, caller);
            return Outcome::Pass;
        }
        if request.opcode() == Opcode::Prepare && self.is_use(request) {
            return self.objects(&not_understood(), request, caller, None);
        }
        let objection = match (self.judged(request, caller), self.mode) {
            (Ok(objection), _) => objection,
            (Err(again), Mode::Enforce) => return again,
            // Nothing is done to a flow that is only looked at.
            (Err(_), Mode::Shadow) => return Outcome::Pass,
            (Err(_), Mode::Warn) => {
                self.looks_on(request, caller);
                return Outcome::Pass;
            }
        };
        let is_learned = request.opcode() == Opcode::Prepare
            && (objection.is_none() || self.mode != Mode::Enforce);
        let number = is_learned.then(|| {
            let preparing = preparing(request, caller);
            self.prepared.goes_out(preparing, objection.clone())
        });
        if let Some(number) = number {
            request.await_response(number);
        }
        match objection {
            None => Outcome::Pass,
            Some(objection) => self.objects(&objection, request, caller, number),
        }
    }

    fn response(&self, response: &mut Response<'_>, _: &Caller, number: u64) -> bool {
        self.prepared.came_back(number, response.prepared_id());
        let note = response.note();
        let warning = note
            .as_ref()
            .and_then(|note| note.downcast_ref::<Warning>());
        warning.is_some_and(|Warning(text)| response.add_warning(text))
    }
}
