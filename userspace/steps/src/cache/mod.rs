//! `cache`: answers reads of chosen tables from a Redis, until a write to their table is seen or
//! their TTL is over.
//!
//! - `settings`: the settings in the configuration, and their check. `statements`: the meaning of a
//!   statement for the cache.
//! - `envelope`: the key under which an answer is kept, and the layout of what is kept. `known`:
//!   the memory between two frames.
//! - `store`: the jobs that are handed to the thread that asks Redis; `connection`: that thread's work; `dialogue`, `resp`: the
//!   commands, and the meaning of replies.
//! - `by_hand`: the step for whoever carries these bytes himself, as a test does.

#[cfg(feature = "by-hand")]
mod by_hand;
mod connection;
mod dialogue;
mod envelope;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzed;
mod known;
mod metrics;
mod resp;
mod settings;
mod statements;
mod store;

use std::sync::{Arc, OnceLock};

#[cfg(feature = "by-hand")]
pub use by_hand::ByHand;
use cql::{Consistency, Opcode};
use cql_edit::{
    Caller, Error, Outcome, Refused, Request, Response, Statement, Transform, Unpaired,
    transforms::Preparing,
};
use envelope::{ENVELOPE_BYTES, digest, key, sealed};
use known::{Awaited, Reading};
pub use metrics::CacheMetrics;
use metrics::{Bypass, Store as Stored};
use policy::RuleName;
pub use settings::CacheSettings;
use settings::Checked;
use statements::{CacheEffect, Chosen, cache_effect};
pub use store::Caches;
use store::Store;

use super::{
    effect::Effect,
    register::{no_thread, once},
};

/// The step's name in the configuration.
const NAME: &str = "cache";

/// The bit of an awaited response's number that marks a write; the other bits are the tables.
const WRITE: u64 = 1 << 63;

/// The `cache` step of one rule.
#[derive(Debug)]
struct Cache {
    settings: Checked,
    store: OnceLock<Arc<Store>>,
}

impl CacheSettings {
    pub(super) fn build(self) -> Result<impl Effect, String> {
        Ok(Cache {
            settings: self.checked()?,
            store: OnceLock::new(),
        })
    }
}

impl Effect for Cache {
    fn reads(&self) -> Result<(), String> {
        let login = self.settings.login();
        login.map(drop).map_err(|e| e.to_string())
    }

    fn open(&self, rule: &RuleName, services: &crate::Services) -> Result<(), String> {
        once(&self.store, || {
            let login = self.settings.login().map_err(|e| e.to_string())?;
            let opened = services.caches.open(rule, &self.settings, login);
            opened.map_err(no_thread)
        })
    }

    /// A step behind the cache would not see the requests that the cache answers.
    fn is_last(&self) -> bool {
        true
    }
}

impl Transform for Cache {
    fn name(&self) -> &'static str {
        NAME
    }

    fn wants(&self, opcode: Opcode) -> bool {
        opcode.has_statements()
    }

    /// A write makes its tables' answers old, whichever response is its own; a read is not answered, and its answer
    /// not kept.
    fn unpaired(&self) -> Unpaired {
        Unpaired::Judged
    }

    fn response_unpaired(&self, number: u64) -> bool {
        let Some(store) = self.store.get() else {
            return false;
        };
        let is_write = number & WRITE != 0;
        match is_write {
            true => store.invalidate(Chosen(number as u32)),
            false => drop(store.shared.known.awaited(number)),
        }
        is_write
    }

    fn request(&self, request: &mut Request<'_>, caller: &Caller, _: u64) -> Outcome {
        let Some(store) = self.store.get() else {
            return Outcome::Pass;
        };
        match request.opcode() {
            Opcode::Prepare if request.is_unpaired() => {}
            Opcode::Prepare => prepares(store, request, caller),
            opcode => match asked(store, request, caller) {
                Ok((CacheEffect::Reads(table), statement)) if opcode != Opcode::Batch => {
                    reads(store, request, caller, table, statement.as_ref());
                }
                Ok((CacheEffect::Bypasses(why), _)) => store.shared.counters.bypassed(why),
                Ok((CacheEffect::Uses, _)) if opcode == Opcode::Execute => request.may_be_use(),
                Ok((CacheEffect::Writes(tables), _)) if !tables.is_empty() => {
                    // A read that begins now may see the state before the write, or after it.
                    store.invalidate(tables);
                    request.await_response(WRITE | u64::from(tables.0));
                }
                Ok(_) => {}
                Err(id) => {
                    return Outcome::Refuse(Refused {
                        reason: "unprepared",
                        error: Error::Unprepared(id),
                    });
                }
            },
        }
        Outcome::Pass
    }

    fn response(&self, response: &mut Response<'_>, _: &Caller, number: u64) -> bool {
        let Some(store) = self.store.get() else {
            return false;
        };
        if number & WRITE != 0 {
            // An error counts, too: the write may have been done.
            store.invalidate(Chosen(number as u32));
            return false;
        }
        match store.shared.known.awaited(number) {
            Some(Awaited::Prepare(preparing, statement)) => {
                if let Some(id) = response.prepared_id() {
                    store
                        .shared
                        .known
                        .remember_prepared(id, &preparing, statement);
                }
            }
            Some(Awaited::Read(reading)) => keeps(store, reading, response),
            None => {}
        }
        false
    }
}

/// Remembers a statement that is prepared; its id comes with the response.
fn prepares(store: &Store, request: &mut Request<'_>, caller: &Caller) {
    let Some(Statement::Text(text)) = request.statements().next() else {
        return;
    };
    let keyspace = request.sure_keyspace(caller);
    let preparing = Preparing::of(request, keyspace, caller);
    let statement = known::Statement {
        effect: cache_effect(text, keyspace, &store.shared.settings.tables),
        digest: digest([text, keyspace.unwrap_or_default().as_bytes()]),
    };
    let number = store
        .shared
        .known
        .awaits(Awaited::Prepare(preparing, statement));
    request.await_response(number);
}

/// Finds the meaning of a request, and the digest of its prepared statement.
///
/// # Errors
/// The id of a statement that the client has to prepare again.
fn asked(
    store: &Store,
    request: &Request<'_>,
    caller: &Caller,
) -> Result<(CacheEffect, Option<envelope::Key>), Vec<u8>> {
    let keyspace = request.sure_keyspace(caller);
    let is_batch = request.opcode() == Opcode::Batch;
    let mut written = Chosen::default();
    for statement in request.statements() {
        let (effect, digest) = match statement {
            Statement::Text(text) => {
                let tables = &store.shared.settings.tables;
                // While a read waits, a USE may overtake it: the read itself has to name its
                // keyspace.
                let effect = match cache_effect(text, request.keyspace(), tables) {
                    CacheEffect::Writes(_) => cache_effect(text, keyspace, tables),
                    reads => reads,
                };
                (effect, None)
            }
            Statement::Prepared(id) => {
                let known = store.shared.known.prepared(id, caller.database);
                let known = known.ok_or_else(|| id.to_vec())?;
                (known.effect, Some(known.digest))
            }
        };
        match effect {
            CacheEffect::Writes(tables) => written.0 |= tables.0,
            _ if is_batch => {}
            _ => return Ok((effect, digest)),
        }
    }
    Ok((CacheEffect::Writes(written), None))
}

/// Returns the reason why a read of a chosen table bypasses the cache, although its statement could
/// be cached.
fn bypass(request: &Request<'_>, caller: &Caller) -> Option<Bypass> {
    const SERIAL: Consistency = Consistency(0x0008);
    const LOCAL_SERIAL: Consistency = Consistency(0x0009);
    let is_serial = matches!(request.consistency(), Some(SERIAL | LOCAL_SERIAL) | None);
    match () {
        () if request.is_unpaired() => Some(Bypass::Stream),
        () if request.has_paging_state() => Some(Bypass::Page),
        () if is_serial => Some(Bypass::Serial),
        () if request.is_traced() => Some(Bypass::Traced),
        () if request.has_now_in_seconds() => Some(Bypass::Now),
        () if caller.logged_in && caller.user.is_none() => Some(Bypass::User),
        () => None,
    }
}

fn reads(
    store: &Store,
    request: &mut Request<'_>,
    caller: &Caller,
    table: usize,
    statement: Option<&envelope::Key>,
) {
    if let Some(why) = bypass(request, caller) {
        return store.shared.counters.bypassed(why);
    }
    let reading = Arc::new(Reading {
        key: key(&store.shared.database(caller), caller, request, statement),
        table,
        generation: OnceLock::new(),
    });
    let mut waits = false;
    store.find(&reading, || {
        let ticket = request.suspend();
        waits = ticket.is_some();
        ticket
    });
    if waits {
        let number = store.shared.known.awaits(Awaited::Read(reading));
        request.await_response(number);
    }
}

/// Keeps the answer to a read, if it did not come from the cache itself.
fn keeps(store: &Store, reading: Arc<Reading>, response: &Response<'_>) {
    let Some(generation) = reading.generation.get().copied() else {
        return;
    };
    let counters = &store.shared.counters;
    let Some(proper) = response.proper() else {
        return counters.store(Stored::Unfit);
    };
    if proper.len() > store.shared.settings.max_bytes {
        return counters.store(Stored::TooLarge);
    }
    let Some(body) = response.whole_rows() else {
        return counters.store(Stored::Unfit);
    };
    let key = reading.key;
    store.keep(reading, ENVELOPE_BYTES + body.len(), || {
        sealed(&generation, &key, body)
    });
}
