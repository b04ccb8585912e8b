//! The pipelines, and what their pages say that they do.

use std::{fmt, sync::Arc};

use cql_edit::{Pipeline, Transform, transforms::TransformSettings};

use super::{
    effects::{self, Asks, Ways},
    requests::{Kind, Request},
};

/// A pipeline, and its written effects.
pub struct Steps {
    settings: &'static [&'static str],
    /// The steps behind these that ask somebody outside, or for keys.
    asks: &'static [Asks],
    /// The clients' keyspace has another name in the database.
    renamed: bool,
    /// The page size that a client gets at most.
    pub at_most: Option<i32>,
    /// Whether a request is refused. None: that depends on more than the request.
    refuses: fn(&Request) -> Option<bool>,
}

impl fmt::Debug for Steps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut steps = f.debug_tuple("Steps");
        steps.field(&self.settings).field(&self.asks).finish()
    }
}

const NONE: Steps = Steps {
    settings: &[],
    asks: &[],
    renamed: false,
    at_most: None,
    refuses: |_| Some(false),
};

const GUARD: &str = "transform = \"guard\"\nrefuse = [\"truncate\", \"ddl\"]\nmax_batch = 2\nmax_in = 2\nnot_tables = [\"ks.u\"]";
const RENAMES: &str = "transform = \"rewrite\"\nkeyspaces = { ks = \"other\" }";
const PAGING: &str = "transform = \"paging\"\nat_most = 2";
const TAG: &str = "transform = \"tag\"\nservice = \"s\"\nhost = \"h\"\ncomment = true";
const CONSISTENCY: &str = "transform = \"consistency\"\nat_least = \"LOCAL_QUORUM\"";
const TRACING: &str = "transform = \"tracing\"\none_in = 3";
const CAPS: &str =
    "transform = \"rewrite\"\nmax_ttl = \"1h\"\ndefault_ttl = \"1m\"\ntimestamps = \"server\"";
const THROTTLE: &str = "transform = \"throttle\"\nrate = 10\nburst = 3\nmode = \"overloaded\"";

/// All of them.
pub const PIPELINES: [Steps; 18] = [
    NONE,
    Steps {
        settings: &[TAG, CONSISTENCY, TRACING],
        ..NONE
    },
    Steps {
        settings: &[RENAMES],
        renamed: true,
        refuses: rewritten,
        ..NONE
    },
    Steps {
        settings: &[PAGING, TAG],
        at_most: Some(2),
        ..NONE
    },
    Steps {
        settings: &[GUARD],
        refuses: guarded,
        ..NONE
    },
    Steps {
        settings: &[TAG, GUARD, RENAMES, PAGING],
        renamed: true,
        at_most: Some(2),
        refuses: guarded,
        ..NONE
    },
    Steps {
        settings: &[CAPS, CONSISTENCY],
        refuses: rewritten,
        ..NONE
    },
    Steps {
        settings: &[THROTTLE, RENAMES],
        renamed: true,
        // Whether there is a token; a PREPARE takes one, too.
        refuses: |_| None,
        ..NONE
    },
    Steps {
        asks: &[Asks::Redis],
        ..NONE
    },
    Steps {
        asks: &[Asks::Others],
        ..NONE
    },
    Steps {
        settings: &[CONSISTENCY],
        asks: &[Asks::Others, Asks::Redis],
        ..NONE
    },
    Steps {
        asks: &[Asks::Keys],
        refuses: protected,
        ..NONE
    },
    Steps {
        settings: &[GUARD],
        asks: &[Asks::Keys, Asks::Others],
        refuses: |request| match (guarded(request), protected(request)) {
            (Some(true), _) | (_, Some(true)) => Some(true),
            (Some(false), Some(false)) => Some(false),
            _ => None,
        },
        ..NONE
    },
    Steps {
        asks: &[Asks::Mirror(
            "what = [\"reads\", \"writes\"]\ncompare = true",
        )],
        ..NONE
    },
    Steps {
        asks: &[Asks::Mirror("dual_write = true")],
        ..NONE
    },
    Steps {
        asks: &[Asks::Mirror(STRICT)],
        ..NONE
    },
    Steps {
        asks: &[Asks::Shared],
        ..NONE
    },
    Steps {
        settings: &[CONSISTENCY],
        asks: &[Asks::Shared],
        ..NONE
    },
];

/// Writes that the mirror does not have are told as writes that one of two databases has.
const STRICT: &str = "dual_write = true\non_failure = \"error\"";

/// The guard's page on a request: whether it is refused.
fn guarded(request: &Request) -> Option<bool> {
    // A text that a client made up may be anything; what an id stands for was looked at when it was prepared.
    match (request.is_free, request.kind) {
        (true, _) => None,
        (false, Kind::Execute) => Some(false),
        (false, _) => Some(
            request.is_ddl
                || request.of_u
                || request.in_list > 2
                || request.batched > 2
                || request.is_prepared_use(),
        ),
    }
}

/// The page of `protect`: a PREPARE with a value of such a column in its text is refused, and so is one of USE.
fn protected(request: &Request) -> Option<bool> {
    match (request.is_free, request.kind) {
        (true, _) => None,
        (false, Kind::Prepare) => Some(request.is_prepared_use() || request.has_hidden_text()),
        (false, _) => Some(false),
    }
}

/// The page of `rewrite`: a text that it does not understand is refused.
fn rewritten(request: &Request) -> Option<bool> {
    (!request.is_free).then_some(false)
}

impl Steps {
    /// Builds the steps, and the ways to those whom they ask.
    pub fn pipeline(&self) -> (Pipeline, Ways) {
        let step = |text: &&str| {
            let settings: TransformSettings = toml::from_str(text).expect(text);
            settings.build().expect(text)
        };
        let mut steps: Vec<Arc<dyn Transform>> = self.settings.iter().map(step).collect();
        let mut ways = Ways::default();
        for asks in self.asks {
            steps.push(effects::build(asks, &mut ways));
        }
        (steps.into(), ways)
    }

    /// Whether a step asks somebody outside, or for keys.
    pub fn ask(&self) -> bool {
        !self.asks.is_empty()
    }

    /// Whether reads may be answered from what was read before.
    pub fn caches(&self) -> bool {
        self.asks.contains(&Asks::Redis)
    }

    /// Whether a write may wait for others.
    pub fn merges(&self) -> bool {
        self.asks.contains(&Asks::Others)
    }

    /// Whether columns are encrypted.
    pub fn hides(&self) -> bool {
        self.asks.contains(&Asks::Keys)
    }

    /// Whether a client is told of each write that only its own database has it.
    pub fn is_strict(&self) -> bool {
        self.asks.contains(&Asks::Mirror(STRICT))
    }

    /// Whether clients share connections.
    pub fn folds(&self) -> bool {
        self.asks.contains(&Asks::Shared)
    }

    /// The schema of the database behind them.
    pub fn schema(&self) -> Vec<String> {
        schema(if self.renamed { "other" } else { "ks" })
    }

    /// Whether a request is refused. None: that depends on more than the request.
    pub fn refuses(&self, request: &Request) -> Option<bool> {
        // The page of `rewrite`: a USE that is prepared would give the session a name of the database's.
        match self.renamed && request.is_prepared_use() {
            true => Some(true),
            false => (self.refuses)(request),
        }
    }
}

/// The schema of a database as its clients see it.
pub fn plain_schema() -> Vec<String> {
    schema("ks")
}

/// A schema with the same tables in two keyspaces.
pub fn two_keyspaces() -> Vec<String> {
    [schema("ks"), schema("other")].concat()
}

fn schema(keyspace: &str) -> Vec<String> {
    let replication = "WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}";
    vec![
        format!("CREATE KEYSPACE {keyspace} {replication}"),
        format!("CREATE TABLE {keyspace}.t (a int, b int, v text, w int, PRIMARY KEY (a, b))"),
        format!("CREATE TABLE {keyspace}.u (a int PRIMARY KEY, v text)"),
    ]
}
