//! `protect`: chosen columns are stored encrypted, and their applications see them plain.
//!
//! What is written is encrypted on its way to the database, what is read decrypted on its way back. What
//! cannot be followed for sure in a statement that names a table with protected columns is refused.
//!
//! - `envelope`: what is stored in place of a value; `keys`: by which keys, and who has them ([`Vault`]).
//! - `plan`: what is to be done to a statement, by its text; `refusal`: why it does not pass.
//! - `ready`: the same of one that was prepared; `writing`, `reading`: values on their ways.

pub(crate) mod columns;
mod envelope;
mod keys;
mod plan;
mod reading;
mod ready;
mod refusal;
mod writing;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

pub use envelope::PREFIX;
pub use keys::{Fate, KEY_BYTES, KeySet, MAX_ID_BYTES, MAX_KEYS, NONCE_BYTES, Vault, is_id};
pub use plan::{Columns, MAX_COLUMNS};

use self::plan::{Plan, Reads};
use self::ready::Ready;
use self::refusal::Why;
use crate::transforms::{Prepared, Preparing};
use crate::{Caller, Error, Outcome, Refused, Request, Response, Statement, Transform};
use cql::Opcode;
use cql::StatementKind;
use cql::text::parse;

/// Texts whose plan is kept, and how long each may be. One with a value of a protected column in it is not.
const MAX_CACHED: usize = 4_096;
const MAX_CACHED_BYTES: usize = 4 << 10;

/// The most bytes of a batch's texts that are read; more is refused. Reading holds up the other flows of a
/// worker.
const MAX_READ_BYTES: usize = 256 << 10;

/// Numbers of responses.
const PREPARED: u64 = 0;
const ROWS: u64 = 1;

/// The handling of a result with a value that cannot be decrypted, by the cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failures {
    /// A value that was stored as it is goes on so.
    pub unencrypted_passes: bool,
    /// A value whose key is not there goes on as it is stored. What was tampered with never does.
    pub keyless_passes: bool,
}

/// See the module.
#[derive(Debug)]
pub struct Protect {
    columns: Columns,
    failures: Failures,
    vault: Arc<dyn Vault>,
    prepared: Prepared<Option<Arc<Ready>>>,
    cache: Mutex<HashMap<CacheKey, Arc<Plan>>>,
}

/// A key of the plans' cache: the keyspace that the flow is in, and the text.
type CacheKey = (Option<Box<str>>, Box<[u8]>);

impl Protect {
    /// Makes the step.
    pub fn new(columns: Columns, failures: Failures, vault: Arc<dyn Vault>) -> Self {
        Self {
            columns,
            failures,
            vault,
            prepared: Prepared::default(),
            cache: Mutex::default(),
        }
    }

    fn plan(&self, text: &[u8], keyspace: Option<&str>) -> Arc<Plan> {
        if !self.columns.are_named_in(text) {
            return Arc::new(Plan::Passes);
        }
        let key = || (keyspace.map(Box::from), Box::from(text));
        let lock = || self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        let is_short = text.len() <= MAX_CACHED_BYTES;
        if is_short && let Some(known) = lock().get(&key()) {
            return known.clone();
        }
        let plan = Arc::new(Plan::of(&self.columns, text, keyspace));
        let is_kept = match &*plan {
            // Quickly made again, and an application has many of them.
            Plan::Passes => false,
            Plan::Touches(touches) => touches.literal().is_none(),
            // There may be values in its text.
            Plan::Refused(_) => false,
        };
        if is_short && is_kept {
            let mut cache = lock();
            if cache.len() >= MAX_CACHED {
                cache.clear();
            }
            cache.insert(key(), plan.clone());
        }
        plan
    }

    /// The plans for each statement of a request. `Err`: the request does not pass.
    fn plans(&self, request: &Request<'_>, caller: &Caller) -> Result<Vec<Step>, Stop> {
        let keyspace = request.keyspace().or(caller.keyspace.as_deref());
        let mut read = 0_usize;
        let mut steps = Vec::new();
        for statement in request.statements() {
            steps.push(match statement {
                Statement::Prepared(id) => {
                    Step::Prepared(self.prepared.known(id, caller).map_err(Stop::Again)?)
                }
                Statement::Text(text) => {
                    if self.columns.are_named_in(text) {
                        read += text.len();
                    }
                    // One that is longer is refused for that.
                    if read > MAX_READ_BYTES && read > text.len() {
                        return Err(Stop::Refused(Why::TooLarge));
                    }
                    let plan = self.plan(text, keyspace);
                    if let Plan::Refused(why) = &*plan {
                        return Err(Stop::Refused(why.clone()));
                    }
                    Step::Text(plan)
                }
            });
        }
        Ok(steps)
    }

    fn changed(&self, request: &mut Request<'_>, caller: &Caller) -> Result<bool, Stop> {
        if request.opcode() == Opcode::Prepare {
            self.prepares(request, caller)?;
            return Ok(false);
        }
        let steps = self.plans(request, caller)?;
        if let Some(reads) = steps.iter().find_map(Step::reads) {
            request.await_response_with(ROWS, reads.clone());
        }
        let mut changed = writing::seal(request, &steps, &*self.vault)?;
        if steps.iter().any(|step| step.reads().is_some()) {
            changed |= request.want_metadata();
        }
        Ok(changed)
    }

    fn prepares(&self, request: &mut Request<'_>, caller: &Caller) -> Result<(), Stop> {
        let keyspace = request.keyspace().or(caller.keyspace.as_deref());
        let Some(Statement::Text(text)) = request.statements().next() else {
            return Ok(());
        };
        // It would change the keyspace unseen.
        if parse(text, text.len()).statement.kind == StatementKind::Use {
            return Err(Stop::Refused(Why::Use));
        }
        let plan = self.plan(text, keyspace);
        match &*plan {
            Plan::Refused(why) => return Err(Stop::Refused(why.clone())),
            Plan::Touches(touches) => {
                if let Some(place) = touches.literal() {
                    return Err(Stop::Refused(Why::Literal(place.column.label())));
                }
            }
            Plan::Passes => {}
        }
        let preparing = Preparing::of(request, keyspace, caller);
        request.await_response_with(PREPARED, Arc::new(Asked { plan, preparing }));
        Ok(())
    }

    /// A PREPARE is answered.
    fn learn(&self, response: &Response<'_>, asked: &Asked) -> Result<(), Why> {
        let Some(id) = response.prepared_id() else {
            return Ok(());
        };
        let found = response.bindings();
        let mut preparing = asked.preparing;
        let ready = match &*asked.plan {
            Plan::Touches(touches) => {
                if touches.any_named {
                    // Where its values are, this database alone has said.
                    preparing = preparing.unproven();
                }
                Some(Arc::new(Ready::of(&self.columns, touches, found)?))
            }
            Plan::Passes => {
                ready::touches_nothing(&self.columns, found)?;
                None
            }
            Plan::Refused(why) => return Err(why.clone()),
        };
        self.prepared.answered(&preparing, id, ready);
        Ok(())
    }
}

/// A PREPARE that goes out.
#[derive(Debug)]
struct Asked {
    plan: Arc<Plan>,
    preparing: Preparing,
}

/// The plan for a statement of a request.
#[derive(Debug)]
enum Step {
    Text(Arc<Plan>),
    /// None: nothing.
    Prepared(Option<Arc<Ready>>),
}

impl Step {
    fn reads(&self) -> Option<&Arc<Reads>> {
        match self {
            Self::Text(plan) => match &**plan {
                Plan::Touches(touches) => touches.reads.as_ref(),
                _ => None,
            },
            Self::Prepared(ready) => ready.as_ref()?.reads.as_ref(),
        }
    }
}

/// Why a request does not go on.
#[derive(Debug)]
enum Stop {
    Refused(Why),
    /// The statement has to be prepared again.
    Again(Outcome),
}

impl From<Why> for Stop {
    fn from(why: Why) -> Self {
        Self::Refused(why)
    }
}

fn error(why: &Why) -> Error {
    let message = why.to_string();
    match why {
        Why::NoKeys => Error::Overloaded(message),
        _ => Error::Invalid(message),
    }
}

impl Transform for Protect {
    fn name(&self) -> &'static str {
        "protect"
    }

    fn wants(&self, opcode: Opcode) -> bool {
        opcode.has_statements()
    }

    fn is_strict(&self) -> bool {
        true
    }

    fn must_see(&self) -> bool {
        true
    }

    fn request(&self, request: &mut Request<'_>, caller: &Caller, _: u64) -> Outcome {
        match self.changed(request, caller) {
            Ok(true) => Outcome::Changed,
            Ok(false) => Outcome::Pass,
            Err(Stop::Again(outcome)) => outcome,
            Err(Stop::Refused(why)) => Outcome::Refuse(Refused {
                reason: why.reason(),
                error: error(&why),
            }),
        }
    }

    fn response(&self, response: &mut Response<'_>, caller: &Caller, number: u64) -> bool {
        let Some(note) = response.note() else {
            return false;
        };
        if number == PREPARED {
            let learned = note
                .downcast_ref::<Asked>()
                .map_or(Ok(()), |asked| self.learn(response, asked));
            if let Err(why) = &learned {
                response.fail(&error(why).by(&caller.rule));
            }
            return learned.is_err();
        }
        match note.downcast_ref::<Reads>() {
            Some(reads) => reading::open(response, reads, self.failures, &*self.vault, caller),
            None => false,
        }
    }
}
