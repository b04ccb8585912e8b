//! `mirror`: asks a second cluster the same as the flows' own database, without delaying the flows;
//! compares what both answer; makes writes wait until both have them.
//!
//! - `settings`: the settings in the configuration, and their check.
//! - `texts`: the prepared statements. `out`: the awaited responses.
//! - `exchange`: one request at both databases. `compare`, `telling`: the differences.
//! - `budget`: the limit on what may be in hand. `cluster`: the thread that asks;
//!   `keyspace_connection`: a connection for each keyspace; `connection`, `wire`: its work.

mod budget;
mod cluster;
mod compare;
mod connection;
mod exchange;
mod keyspace_connection;
mod metrics;
mod out;
mod settings;
mod shared;
mod telling;
mod texts;
mod wire;

use std::{
    sync::{Arc, OnceLock},
    time::Instant,
};

use cluster::Cluster;
pub use cluster::Mirrors;
use cql::{Consistency, Opcode, StatementKind, is_system_keyspace};
use cql_edit::{
    Caller, Copies, Error, NotCopied, Outcome, Refused, Request, Resolution, Response, Statement,
    Transform, Unpaired, transforms::Preparing,
};
use exchange::{Exchange, MAX_NAMED_BYTES, Named};
use metrics::Fate;
pub use metrics::MirrorMetrics;
use out::{Awaited, Found};
use policy::RuleName;
use settings::Checked;
pub use settings::MirrorSettings;
use shared::Job;
use texts::Text;

use super::{
    effect::Effect,
    register::{no_thread, once},
    stream,
};
use crate::Services;

/// The step's name in the configuration.
const NAME: &str = "mirror";

/// The `mirror` step of one rule.
#[derive(Debug)]
struct Mirror {
    settings: Checked,
    cluster: OnceLock<Arc<Cluster>>,
}

impl MirrorSettings {
    pub(super) fn build(self) -> Result<impl Effect, String> {
        Ok(Mirror {
            settings: self.checked()?,
            cluster: OnceLock::new(),
        })
    }
}

impl Effect for Mirror {
    fn reads(&self) -> Result<(), String> {
        self.settings.login().map_err(|e| e.to_string())?;
        self.settings.outward().map(drop)
    }

    fn open(&self, rule: &RuleName, services: &Services) -> Result<(), String> {
        once(&self.cluster, || {
            let login = self.settings.login().map_err(|e| e.to_string())?;
            let tls = self.settings.outward()?;
            let opened = services.mirrors.open(rule, &self.settings, login, tls);
            opened.map_err(no_thread)
        })
    }

    fn is_last(&self) -> bool {
        true
    }
}

/// The content of a request, and its keyspace.
struct Asked<'r> {
    is_write: bool,
    keyspace: Option<Arc<str>>,
    prepared: Vec<Arc<Text>>,
    first: Option<&'r [u8]>,
    /// The reason why the request cannot be asked of the mirror.
    not: Option<Fate>,
}

/// The reason why a request is not asked of the mirror.
enum Not {
    /// The request is not of a wanted kind.
    Wanted,
    /// The request is a prepared USE.
    Use,
    /// The client has to prepare a statement again.
    Known(Vec<u8>),
}

impl Transform for Mirror {
    fn name(&self) -> &'static str {
        NAME
    }

    fn wants(&self, opcode: Opcode) -> bool {
        opcode.has_statements()
    }

    /// Without `dual_write` nothing is held, and nothing is done to what passes.
    fn copies(&self) -> Option<Copies> {
        let needs = match self.settings.compare {
            true => Copies::Answers,
            false => Copies::Requests,
        };
        (!self.settings.dual_write).then_some(needs)
    }

    /// Whether a request that cannot be read is refused: with `dual_write` a write must be in both
    /// databases.
    fn is_strict(&self) -> bool {
        self.settings.dual_write && self.settings.fails
    }

    /// A write goes to both databases, and nobody waits for the answers. One of which both are to be sure is refused.
    fn unpaired(&self) -> Unpaired {
        match self.is_strict() {
            true => Unpaired::Refused,
            false => Unpaired::Judged,
        }
    }

    fn response_unpaired(&self, number: u64) -> bool {
        if let Some(cluster) = self.cluster.get() {
            // Nothing is compared, and nobody waits.
            drop(cluster.shared.out.take(number));
        }
        false
    }

    fn request(&self, request: &mut Request<'_>, caller: &Caller, _: u64) -> Outcome {
        let Some(cluster) = self.cluster.get() else {
            return Outcome::Pass;
        };
        if request.opcode() == Opcode::Prepare {
            if !request.is_unpaired() {
                prepares(cluster, request, caller);
            }
            return Outcome::Pass;
        }
        let asked = match asked(cluster, request, caller) {
            Ok(asked) if self.chooses(asked.is_write) => asked,
            Ok(_) | Err(Not::Wanted) => return Outcome::Pass,
            Err(Not::Use) => {
                request.may_be_use();
                return Outcome::Pass;
            }
            Err(Not::Known(_)) if request.is_copy() => {
                cluster.shared.counters.fate(Fate::Unprepared);
                return Outcome::Pass;
            }
            Err(Not::Known(id)) => {
                return Outcome::Refuse(Refused {
                    reason: "unprepared",
                    error: Error::Unprepared(id),
                });
            }
        };
        let is_write = asked.is_write;
        match self.ask(cluster, request, asked) {
            Ok(Some(number)) => request.await_response(number),
            Ok(None) => {}
            Err(fate) => return self.is_not_copied(cluster, fate, is_write),
        }
        Outcome::Pass
    }

    fn response(&self, response: &mut Response<'_>, _: &Caller, number: u64) -> bool {
        let Some(cluster) = self.cluster.get() else {
            return false;
        };
        match cluster.shared.out.take(number) {
            Found::Awaited(Awaited::Prepare {
                text, preparing, ..
            }) => {
                if let Some(id) = response.prepared_id() {
                    cluster.shared.texts.put(id, &preparing, text);
                }
            }
            Found::Awaited(Awaited::Copy(exchange) | Awaited::Dual(exchange)) => {
                if exchange.take_database_answer(response, &cluster.shared) {
                    cluster.compare(exchange);
                }
            }
            Found::ForgottenDual if self.settings.fails && response.error().is_none() => {
                response.refuse(forgotten());
            }
            Found::ForgottenDual | Found::Forgotten => {}
        }
        false
    }

    fn given_up(&self) -> Resolution {
        match self.settings.fails {
            true => Resolution::Refuse(forgotten()),
            false => Resolution::Pass,
        }
    }
}

/// Makes the refusal of a write of which nobody knows whether the mirror has it.
fn forgotten() -> Refused {
    const ONE: Consistency = Consistency(0x0001);
    Refused {
        reason: Fate::Late.as_str(),
        error: exchange::timeout(Fate::Late.as_str(), ONE),
    }
}

/// Remembers a statement that is prepared; its id comes with the response.
fn prepares(cluster: &Cluster, request: &mut Request<'_>, caller: &Caller) {
    let Some(Statement::Text(text)) = request.statements().next() else {
        return;
    };
    let keyspace = request.sure_keyspace(caller);
    // Of a copy: it would be prepared in another keyspace, or in none.
    if request.lacks_keyspace(caller) && cql::Statement::of(text).keyspace.is_none() {
        return;
    }
    let Some(permit) = cluster.permit_to_prepare(text.len()) else {
        return;
    };
    let awaited = Awaited::Prepare {
        text: Arc::new(Text::new(text, keyspace)),
        preparing: Preparing::of(request, keyspace, caller),
        _room: permit,
    };
    let number = cluster.shared.out.put(awaited, Instant::now());
    request.await_response(number);
}

/// Reads what a request asks.
fn asked<'r>(
    cluster: &Cluster,
    request: &'r Request<'_>,
    caller: &Caller,
) -> Result<Asked<'r>, Not> {
    let given = request.sure_keyspace(caller);
    let mut asked = Asked {
        is_write: request.opcode() == Opcode::Batch,
        keyspace: given.map(Arc::from),
        prepared: Vec::new(),
        first: None,
        not: None,
    };
    for (place, statement) in request.statements().enumerate() {
        let (kind, names) = match statement {
            Statement::Text(text) => {
                asked.first.get_or_insert(text);
                let cql::Statement { kind, keyspace, .. } = cql::Statement::of(text);
                (kind, keyspace)
            }
            Statement::Prepared(id) => {
                let known = cluster.shared.texts.get(id, caller.database);
                let text = known.ok_or_else(|| Not::Known(id.to_vec()))?;
                // A statement without a keyspace in its text means the keyspace in which it was
                // prepared, and so do all statements of its request.
                if text.names.is_none() && text.keyspace != asked.keyspace {
                    if place > 0 {
                        asked.not = Some(Fate::Version);
                    }
                    asked.keyspace = text.keyspace.clone();
                }
                if text.is_too_long {
                    asked.not = Some(Fate::TooLong);
                }
                asked.prepared.push(text.clone());
                (text.kind, text.names.clone())
            }
        };
        let of = names.as_deref().or(asked.keyspace.as_deref());
        if of.is_none() && request.lacks_keyspace(caller) {
            asked.not = Some(Fate::KeyspaceUnknown);
        }
        if of.is_some_and(is_system_keyspace) {
            return Err(Not::Wanted);
        }
        if request.opcode() == Opcode::Batch {
            continue;
        }
        use StatementKind as S;
        asked.is_write = match kind {
            S::Select => false,
            S::Insert | S::Update | S::Delete | S::Batch | S::Truncate => true,
            S::Use if request.opcode() == Opcode::Execute => return Err(Not::Use),
            _ => return Err(Not::Wanted),
        };
    }
    Ok(asked)
}

impl Mirror {
    /// Whether the request is to be asked of the mirror, by its kind and by chance.
    fn chooses(&self, is_write: bool) -> bool {
        let by_kind = match is_write {
            true => self.settings.writes,
            false => self.settings.reads,
        };
        by_kind && (self.settings.sample >= 1.0 || fastrand::f64() < self.settings.sample)
    }

    /// Hands the request over. Returns the number under which the response is to be shown.
    fn ask(
        &self,
        cluster: &Cluster,
        request: &Request<'_>,
        asked: Asked<'_>,
    ) -> Result<Option<u64>, Fate> {
        if let Some(fate) = asked.not {
            return Err(fate);
        }
        let mut permit = cluster.permit(request.body_bytes()).ok_or(Fate::Full)?;
        let copied = request.copied().map_err(|why| match why {
            NotCopied::Page => Fate::Page,
            NotCopied::Version => Fate::Version,
        })?;
        let is_paired = !request.is_unpaired();
        let is_dual = self.settings.dual_write && asked.is_write && is_paired;
        let compares = self.settings.compare && is_paired;
        let named = match (asked.prepared.first(), asked.first) {
            _ if !compares => Named::Not,
            (Some(text), _) => Named::Prepared(text.clone()),
            (None, Some(text)) => {
                let named = text.get(..MAX_NAMED_BYTES).unwrap_or(text);
                Named::Text(named.into())
            }
            (None, None) => Named::Not,
        };
        // A batch of very many very small statements takes more room than its body.
        let named_bytes = match &named {
            Named::Text(text) => text.len(),
            Named::Prepared(_) | Named::Not => 0,
        };
        let bytes = copied.bytes() + named_bytes;
        if !permit.grow(bytes.saturating_sub(request.body_bytes())) {
            return Err(Fate::Full);
        }
        let consistency = request.consistency().unwrap_or(Consistency(0));
        let exchange = Exchange::new(named, consistency, is_dual, permit);
        let now = Instant::now();
        let awaited = match (is_dual, compares) {
            (true, _) => Some(Awaited::Dual(exchange.clone())),
            (false, true) => Some(Awaited::Copy(exchange.clone())),
            (false, false) => None,
        };
        let number = awaited.map(|awaited| cluster.shared.out.put(awaited, now));
        let job = Job {
            copied,
            prepared: asked.prepared,
            deadline: now + self.settings.timeout,
            exchange,
        };
        cluster.ask(asked.keyspace, job);
        Ok(number)
    }

    /// Counts a request that is not asked of the mirror. A write that must be in both databases is
    /// refused.
    fn is_not_copied(&self, cluster: &Cluster, fate: Fate, is_write: bool) -> Outcome {
        cluster.shared.counters.fate(fate);
        if !(is_write && self.settings.dual_write && self.settings.fails) {
            return Outcome::Pass;
        }
        let message = "the proxy cannot have it written to the mirror, and has not let it pass";
        Outcome::Refuse(Refused {
            reason: fate.as_str(),
            error: match fate {
                Fate::Full => Error::Overloaded(message.to_owned()),
                _ => Error::Invalid(message.to_owned()),
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_is_of_the_size_that_was_asked_for() {
        let settings: MirrorSettings =
            toml::from_str("to = \"127.0.0.1:9\"\nsample = 0.1\n").unwrap();
        let mirror = Mirror {
            settings: settings.checked().unwrap(),
            cluster: OnceLock::new(),
        };
        // Of the same numbers in each run.
        fastrand::seed(7);
        let taken = (0..10_000).filter(|_| mirror.chooses(true)).count();
        assert!((900..1_100).contains(&taken), "{taken}");
        assert!((0..100).all(|_| !mirror.chooses(false)));
    }
}
