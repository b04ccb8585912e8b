//! Counts of rules' steps, and statements that are known by their ids: an agent that takes over goes on with both.

use std::net::SocketAddr;

use cql::Database;
use cql_edit::{Caller, Pipeline, Spent, Transform, prepared_in};
use policy::RuleName;
use serde::{Deserialize, Serialize};

use super::{context::ProxyContext, edit};

/// The most bytes of a part as it is written down: a message has room for it. What is longer alone stays.
const PART_BYTES: usize = 24 << 10;

/// Something that an agent goes on with.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Inherited {
    /// A prepared statement.
    Statement {
        /// The id, in hexadecimal.
        id: String,
        /// The database that alone calls it so: its address, and the cookie of the network namespace where that is dialled.
        #[serde(default)]
        database: Option<(SocketAddr, u64)>,
        /// The keyspace in which it was prepared.
        keyspace: Option<Box<str>>,
        /// The text.
        text: Box<str>,
    },
    /// Tokens that a step has given out.
    Spent {
        /// The rule.
        rule: String,
        /// The place of the step in the rule's pipeline.
        step: usize,
        /// The name of the step.
        name: String,
        /// The key of their bucket.
        key: Box<str>,
        /// See [`Spent`].
        tokens: f64,
        /// See [`Spent`].
        #[serde(default)]
        debt: f64,
    },
}

/// Gives what another agent goes on with, in parts that each go into a message: tokens, and statements. This one keeps half of
/// the tokens that are left, until its flows have gone ([`give_back`]).
pub fn bequeath(shared: &ProxyContext) -> [Vec<Vec<Inherited>>; 2] {
    let texts = shared.services.prepared.texts().into_iter();
    let statements = texts.map(|kept| Inherited::Statement {
        database: kept.at.and_then(|database| database.parts()),
        id: kept.id.iter().map(|byte| format!("{byte:02x}")).collect(),
        keyspace: kept.keyspace,
        text: (*kept.text).into(),
    });
    let spent = counted(shared, |step, now_ns| step.spent(now_ns));
    [parts(spent.into_iter()), parts(statements)]
}

/// Gives back tokens that this agent has kept for flows that have gone, in parts like those.
pub fn give_back(shared: &ProxyContext) -> Vec<Vec<Inherited>> {
    let unspent = counted(shared, |step, now_ns| {
        let unspent = step.unspent(now_ns).into_iter();
        let given_back = |tokens: f64| Spent {
            tokens: -tokens,
            debt: 0.0,
        };
        unspent
            .map(|(key, tokens)| (key, given_back(tokens)))
            .collect()
    });
    parts(unspent.into_iter())
}

/// Asks each step for its tokens.
fn counted(
    shared: &ProxyContext,
    count: impl Fn(&dyn Transform, u64) -> Vec<(Box<str>, Spent)>,
) -> Vec<Inherited> {
    let pipelines = shared.pipelines.borrow().clone();
    let now_ns = edit::now_ns();
    let mut counted = Vec::new();
    for (rule, pipeline) in pipelines.edits() {
        for (step, transform) in pipeline.iter().enumerate() {
            let spent = count(&**transform, now_ns).into_iter();
            counted.extend(spent.map(|(key, Spent { tokens, debt })| Inherited::Spent {
                rule: rule.as_str().to_owned(),
                step,
                name: transform.name().to_owned(),
                key,
                tokens,
                debt,
            }));
        }
    }
    counted
}

fn parts(all: impl Iterator<Item = Inherited>) -> Vec<Vec<Inherited>> {
    let mut parts = Vec::new();
    let mut bytes = PART_BYTES;
    for one in all {
        let written = serde_json::to_vec(&one);
        let more = written.map_or(usize::MAX, |written| written.len() + 1);
        if more > PART_BYTES {
            continue;
        }
        if bytes + more > PART_BYTES {
            parts.push(Vec::new());
            bytes = 0;
        }
        bytes += more;
        if let Some(part) = parts.last_mut() {
            part.push(one);
        }
    }
    parts
}

/// Goes on with what another agent has left. What this one's rules do not have is passed over.
pub fn inherit(shared: &ProxyContext, inherited: Vec<Inherited>) {
    let pipelines = shared.pipelines.borrow().clone();
    let now_ns = edit::now_ns();
    for one in inherited {
        match one {
            Inherited::Statement {
                id,
                database,
                keyspace,
                text,
            } => {
                let Some(id) = unhex(&id) else {
                    continue;
                };
                let (keyspace, text) = (keyspace.as_deref(), text.as_bytes());
                let database = database.map_or(Database::default(), |(address, netns)| {
                    Database::new(address, netns)
                });
                let prepared = shared.services.prepared.at(database);
                prepared.learn(&id, keyspace, text);
                // Steps decide by it: what some database has called a statement is not believed.
                let Some(keyspace) = prepared_in(&id, keyspace, text) else {
                    continue;
                };
                let caller = Caller {
                    database,
                    ..Caller::default()
                };
                // Where texts change, the database's is not what steps see of it.
                let is_seen = |steps: &Pipeline| !steps.iter().any(|step| step.changes_texts());
                for (_, steps) in pipelines.edits().filter(|(_, steps)| is_seen(steps)) {
                    let steps = steps.iter();
                    steps.for_each(|step| step.learns(&id, keyspace, text, &caller));
                }
            }
            Inherited::Spent {
                rule,
                step,
                name,
                key,
                tokens,
                debt,
            } => {
                let pipeline = pipelines.edits_of(&RuleName::new(&rule));
                let step = pipeline.as_ref().and_then(|steps| steps.get(step));
                if let Some(step) = step.filter(|step| step.name() == name)
                    && (tokens + debt).is_finite()
                {
                    step.spend(&key, Spent { tokens, debt }, now_ns);
                }
            }
        }
    }
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let pairs = text.as_bytes().chunks(2);
    let bytes = pairs.map(|pair| {
        let pair = str::from_utf8(pair).ok().filter(|pair| pair.len() == 2)?;
        u8::from_str_radix(pair, 16).ok()
    });
    bytes.collect()
}
