//! `throttle`: token buckets, for all of a rule's flows, or for each client, user, keyspace, table or kind.

mod queue;

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use limits::{Limit, Share};
use serde::Deserialize;

use super::prepared::{Prepared, Preparing};
use crate::{
    Caller, Error, Outcome, Refused, Request, Response, Spent, Statement, Transform, Unpaired,
};
use cql::Opcode;
use queue::Queue;

/// Limits how many requests pass in a second, by token buckets.
#[derive(Clone, Debug, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("examples" = [{"rate": 500, "burst": 1000, "per": "client", "mode": "overloaded"}]))]
pub struct ThrottleSettings {
    /// Requests per second.
    #[schemars(range(min = LEAST_RATE))]
    pub rate: f64,
    /// Requests that pass at once after a rest. Without this key: those of a second, and 1 at least.
    #[schemars(range(min = 1.0))]
    pub burst: Option<f64>,
    /// Requests with the same one of these share a bucket of tokens. Those of which it is not known share
    /// one.
    #[serde(default)]
    pub per: Per,
    /// Treatment of a request for which there is no token.
    #[serde(default)]
    pub mode: Mode,
    /// Where requests share the rate.
    #[serde(default)]
    pub scope: Scope,
    /// The name of the limit in the fleet, which follows from the rule's.
    #[serde(skip)]
    pub limit: String,
}

/// Lowest rate: a request in about 17 minutes.
const LEAST_RATE: f64 = 0.001;

/// Requests with the same one of these share a bucket of tokens.
#[derive(
    Clone, Copy, Debug, Default, Deserialize, serde::Serialize, schemars::JsonSchema, PartialEq, Eq,
)]
#[serde(rename_all = "snake_case")]
pub enum Per {
    /// All flows of the rule.
    #[default]
    Rule,
    /// Each client address.
    Client,
    /// Each user who has logged in.
    User,
    /// Each keyspace.
    Keyspace,
    /// Each table.
    Table,
    /// Each kind of statement.
    Kind,
}

/// Treatment of a request for which there is no token.
#[derive(
    Clone, Copy, Debug, Default, Deserialize, serde::Serialize, schemars::JsonSchema, PartialEq, Eq,
)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// The request waits for its token, and what its flow sends after it waits, too. Clients that wait for one bucket
    /// have an equal share of it. None waits for longer than a minute: what then has no token goes on without one.
    #[default]
    Delay,
    /// The request is answered by the error `Overloaded`.
    Overloaded,
    /// The request passes, and is counted.
    Shadow,
}

/// Where requests share a rate.
#[derive(
    Clone, Copy, Debug, Default, Deserialize, serde::Serialize, schemars::JsonSchema, PartialEq, Eq,
)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// On each host by itself.
    #[default]
    Host,
    /// On all hosts of the fleet that have the rule (`[limits]`). Each has its share of the rate, and of the burst, by what is asked for
    /// there.
    Fleet,
}

/// Beyond this many, buckets that are full are forgotten; if none is, the newcomer shares one with
/// all others like it.
const MAX_BUCKETS: usize = 65_536;

/// The shared bucket's key, which is nobody's; also of requests of which it is not known whose they are.
const OTHERS: &str = "";

const SECOND_NS: f64 = 1e9;

/// No request waits for longer, so that its flow is seen to end; and no more than comes in meanwhile is lent. Where more
/// than these tokens are asked for at once, by many flows or after an answer from outside, the rate is exceeded.
const LONGEST_DELAY_NS: u64 = 60_000_000_000;

#[derive(Debug)]
struct Throttle {
    rate: Rate,
    /// The limit that the fleet shares. None: each host has the rate.
    limit: Option<Arc<Limit>>,
    per: Per,
    mode: Mode,
    buckets: Mutex<HashMap<Box<str>, Bucket>>,
    /// The bucket's key of each statement that was prepared.
    prepared: Prepared<Box<str>>,
}

/// How a bucket is filled.
#[derive(Clone, Copy, Debug)]
struct Rate {
    /// Tokens for each ns.
    each_ns: f64,
    burst: f64,
}

#[derive(Debug)]
struct Bucket {
    /// The part of it in what the fleet shares.
    share: Option<Arc<Share>>,
    /// Below 0: what was lent.
    tokens: f64,
    filled_ns: u64,
    /// Tokens that were kept when another process went on counting.
    kept: f64,
    /// The clients that wait for the debt to be paid back.
    queue: Queue,
}

impl ThrottleSettings {
    /// Returns the settings of a step of this rule.
    pub(super) fn of_rule(mut self, rule: &str) -> Self {
        let per = match self.per {
            Per::Rule => "rule",
            Per::Client => "client",
            Per::User => "user",
            Per::Keyspace => "keyspace",
            Per::Table => "table",
            Per::Kind => "kind",
        };
        self.limit = format!("{rule}.{per}");
        self
    }

    pub(super) fn build(self) -> Result<Arc<dyn Transform>, String> {
        let positive = |key: &str, n: f64| match n.is_finite() && n >= LEAST_RATE {
            true => Ok(n),
            false => Err(format!("{key}: expected {LEAST_RATE} or more, found {n}")),
        };
        let rate = positive("rate", self.rate)?;
        let burst = positive("burst", self.burst.unwrap_or(rate.max(1.0)))?;
        if burst < 1.0 {
            return Err(format!("burst: expected 1 or more, found {burst}"));
        }
        let limit = match self.scope {
            Scope::Host => None,
            Scope::Fleet => Some(Arc::new(Limit::new(&self.limit, rate))),
        };
        Ok(Arc::new(Throttle {
            rate: Rate {
                each_ns: rate / SECOND_NS,
                burst,
            },
            limit,
            per: self.per,
            mode: self.mode,
            buckets: Mutex::default(),
            prepared: Prepared::default(),
        }))
    }
}

impl Bucket {
    fn fill(&mut self, now_ns: u64, rate: Rate) {
        let since = now_ns.saturating_sub(self.filled_ns);
        self.tokens = (self.tokens + since as f64 * rate.each_ns).min(rate.burst);
        self.filled_ns = self.filled_ns.max(now_ns);
    }
}

impl Throttle {
    /// Returns how a bucket is filled now. A share that was taken back is replaced.
    fn rate_of(&self, share: &mut Option<Arc<Share>>, key: &str) -> Rate {
        let (Some(limit), Some(share)) = (&self.limit, share) else {
            return self.rate;
        };
        let now = share.rate().unwrap_or_else(|| {
            *share = limit.share(key);
            share.rate().unwrap_or(LEAST_RATE)
        });
        Rate {
            each_ns: now / SECOND_NS,
            burst: (self.rate.burst * now / limit.rate()).max(1.0),
        }
    }

    /// Takes a token for a client, or says for how many ns there is none.
    fn take(&self, key: &str, client: &str, now_ns: u64) -> Result<(), u64> {
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((bucket, rate)) = self.bucket(&mut buckets, key, now_ns) else {
            return Ok(());
        };
        let has_token = bucket.tokens >= 1.0 && bucket.queue.expire(now_ns);
        if let Some(share) = &bucket.share {
            share.count(!has_token);
        }
        if has_token {
            bucket.tokens -= 1.0;
            return Ok(());
        }
        let missing = (1.0 - bucket.tokens).max(0.0) / rate.each_ns;
        if self.mode != Mode::Delay {
            return Err(missing as u64);
        }
        // Lent: it comes in while they wait who have asked for it.
        let lendable = LONGEST_DELAY_NS as f64 * rate.each_ns;
        bucket.tokens = (bucket.tokens - 1.0).max(-lendable.max(1.0));
        let token_ns = 1.0 / rate.each_ns;
        let until = bucket.queue.wait(client, now_ns, missing as u64, token_ns);
        Err(until - now_ns)
    }

    /// Returns the bucket of this key, filled to now, and how it is filled. None never: it was put in.
    fn bucket<'b>(
        &self,
        buckets: &'b mut HashMap<Box<str>, Bucket>,
        key: &str,
        now_ns: u64,
    ) -> Option<(&'b mut Bucket, Rate)> {
        let mut key = key;
        if !buckets.contains_key(key) {
            if buckets.len() >= MAX_BUCKETS {
                buckets.retain(|key, bucket| {
                    let rate = self.rate_of(&mut bucket.share, key);
                    bucket.fill(now_ns, rate);
                    bucket.tokens < rate.burst
                });
            }
            if buckets.len() >= MAX_BUCKETS {
                key = OTHERS;
            }
        }
        if !buckets.contains_key(key) {
            let mut share = self.limit.as_ref().map(|limit| limit.share(key));
            let bucket = Bucket {
                tokens: self.rate_of(&mut share, key).burst,
                share,
                filled_ns: now_ns,
                kept: 0.0,
                queue: Queue::default(),
            };
            buckets.insert(key.into(), bucket);
        }
        let bucket = buckets.get_mut(key)?;
        let rate = self.rate_of(&mut bucket.share, key);
        bucket.fill(now_ns, rate);
        Some((bucket, rate))
    }
}

impl Throttle {
    /// Tells a client that there is no token, and not what others share the bucket.
    fn too_many(&self) -> String {
        let whose = match self.per {
            Per::Rule => "under this rule",
            Per::Client => "of this client",
            Per::User => "of this user",
            Per::Keyspace => "to this keyspace",
            Per::Table => "to this table",
            Per::Kind => "of this kind",
        };
        let rate = self.rate.each_ns * SECOND_NS;
        let of_fleet = match self.limit {
            Some(_) => ", on all hosts together",
            None => "",
        };
        format!("too many requests: more than {rate} a second {whose}{of_fleet}")
    }

    /// Returns the bucket of a statement; of a batch, its first statement's.
    fn by_statement<'r>(&self, request: &'r Request<'_>, caller: &'r Caller) -> Cow<'r, str> {
        let text = match request.statements().next() {
            Some(Statement::Text(text)) => text,
            Some(Statement::Prepared(id)) => {
                let known = self.prepared.known(id, caller).ok();
                return known.map_or(Cow::Borrowed(OTHERS), |key| Cow::Owned(key.into()));
            }
            None => return Cow::Borrowed(OTHERS),
        };
        self.key_of(text, request.keyspace().or(caller.keyspace.as_deref()))
    }

    /// Returns the bucket's key of a text. `given`: the keyspace of the request or of its flow.
    fn key_of<'t>(&self, text: &[u8], given: Option<&'t str>) -> Cow<'t, str> {
        let statement = cql::Statement::of(text);
        if self.per == Per::Kind {
            return Cow::Borrowed(statement.kind.as_str());
        }
        let keyspace = statement.keyspace.as_deref().or(given);
        match (self.per, keyspace, statement.table) {
            (Per::Keyspace, Some(keyspace), _) => Cow::Owned(keyspace.to_owned()),
            (Per::Table, Some(keyspace), Some(table)) => Cow::Owned(format!("{keyspace}.{table}")),
            _ => Cow::Borrowed(OTHERS),
        }
    }
}

impl Transform for Throttle {
    fn name(&self) -> &'static str {
        "throttle"
    }

    fn wants(&self, opcode: Opcode) -> bool {
        opcode.has_statements()
    }

    fn limit(&self) -> Option<&Arc<Limit>> {
        self.limit.as_ref()
    }

    /// A throttle decides by the request alone.
    fn unpaired(&self) -> Unpaired {
        Unpaired::Judged
    }

    fn response_unpaired(&self, number: u64) -> bool {
        self.prepared.came_back(number, None);
        false
    }

    fn learns(&self, id: &[u8], keyspace: Option<&str>, text: &[u8], caller: &Caller) {
        if matches!(self.per, Per::Keyspace | Per::Table | Per::Kind) {
            let key = self.key_of(text, keyspace);
            self.prepared.learn(id, caller, Box::from(&*key));
        }
    }

    fn spent(&self, now_ns: u64) -> Vec<(Box<str>, Spent)> {
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        let spent = buckets.iter_mut().map(|(key, bucket)| {
            let rate = self.rate_of(&mut bucket.share, key);
            bucket.fill(now_ns, rate);
            let left = bucket.tokens.max(0.0);
            // Half of them is the other one's to give.
            bucket.kept = (left / 2.0).floor();
            let spent = Spent {
                tokens: rate.burst - left + bucket.kept,
                debt: left - bucket.tokens,
            };
            bucket.tokens = bucket.tokens.min(bucket.kept);
            (key.clone(), spent)
        });
        let is_some = |(_, spent): &(Box<str>, Spent)| spent.tokens + spent.debt > 0.0;
        spent.filter(is_some).collect()
    }

    fn unspent(&self, now_ns: u64) -> Vec<(Box<str>, f64)> {
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        let left = buckets.iter_mut().map(|(key, bucket)| {
            let rate = self.rate_of(&mut bucket.share, key);
            bucket.fill(now_ns, rate);
            let left = bucket.tokens.min(std::mem::take(&mut bucket.kept));
            bucket.tokens -= left.max(0.0);
            (key.clone(), left)
        });
        left.filter(|(_, left)| *left > 0.0).collect()
    }

    fn spend(&self, key: &str, spent: Spent, now_ns: u64) {
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((bucket, rate)) = self.bucket(&mut buckets, key, now_ns) else {
            return;
        };
        let lendable = (LONGEST_DELAY_NS as f64 * rate.each_ns).max(1.0);
        // The other process's bucket may be larger than there are tokens here: an empty one is no debt.
        let tokens = spent.tokens.min(rate.burst) + spent.debt;
        if !tokens.is_nan() {
            bucket.tokens = (bucket.tokens - tokens).max(-lendable).min(rate.burst);
        }
    }

    fn request(&self, request: &mut Request<'_>, caller: &Caller, now_ns: u64) -> Outcome {
        let key = match self.per {
            Per::Rule => Cow::Borrowed(OTHERS),
            Per::Client => Cow::Borrowed(caller.client.as_str()),
            Per::User => Cow::Borrowed(caller.user.as_deref().unwrap_or(OTHERS)),
            Per::Keyspace | Per::Table | Per::Kind => self.by_statement(request, caller),
        };
        let taken = self.take(&key, &caller.client, now_ns);
        let minds = matches!(self.per, Per::Keyspace | Per::Table | Per::Kind);
        if minds
            && request.opcode() == Opcode::Prepare
            && (taken.is_ok() || self.mode != Mode::Overloaded)
        {
            let keyspace = request.keyspace().or(caller.keyspace.as_deref());
            let preparing = Preparing::of(request, keyspace, caller);
            let number = self.prepared.goes_out(preparing, Box::from(&*key));
            request.await_response(number);
        }
        let Err(missing_ns) = taken else {
            return Outcome::Pass;
        };
        match self.mode {
            Mode::Delay => Outcome::Slow(missing_ns.min(LONGEST_DELAY_NS)),
            Mode::Overloaded => Outcome::Refuse(Refused {
                reason: "rate",
                error: Error::Overloaded(self.too_many()),
            }),
            Mode::Shadow => Outcome::WouldRefuse("rate"),
        }
    }

    fn response(&self, response: &mut Response<'_>, _: &Caller, number: u64) -> bool {
        self.prepared.came_back(number, response.prepared_id());
        false
    }
}
