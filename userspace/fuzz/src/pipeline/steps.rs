//! The pipelines, and what their pages say that they do.

use std::fmt;

use cql_edit::{Pipeline, transforms::TransformSettings};

use super::requests::{Kind, Request};

/// A pipeline, and its written effects.
pub struct Steps {
    settings: &'static [&'static str],
    /// The clients' keyspace has another name in the database.
    renamed: bool,
    /// The page size that a client gets at most.
    pub at_most: Option<i32>,
    /// Whether a request is refused. None: that depends on more than the request.
    refuses: fn(&Request) -> Option<bool>,
}

impl fmt::Debug for Steps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.settings.fmt(f)
    }
}

const NONE: Steps = Steps {
    settings: &[],
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
pub const PIPELINES: [Steps; 8] = [
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
    },
    Steps {
        settings: &[CAPS, CONSISTENCY],
        refuses: rewritten,
        ..NONE
    },
    Steps {
        settings: &[THROTTLE, RENAMES],
        renamed: true,
        refuses: |request| match request.kind {
            Kind::Prepare => rewritten(request),
            _ => None,
        },
        ..NONE
    },
];

/// The guard's page on a request: whether it is refused.
fn guarded(request: &Request) -> Option<bool> {
    // A text that a client made up may be anything; what an id stands for was looked at when it was prepared.
    match (request.is_free, request.kind) {
        (true, _) => None,
        (false, Kind::Execute) => Some(false),
        (false, _) => {
            Some(request.is_ddl || request.of_u || request.in_list > 2 || request.batched > 2)
        }
    }
}

/// The page of `rewrite`: a text that it does not understand is refused.
fn rewritten(request: &Request) -> Option<bool> {
    (!request.is_free).then_some(false)
}

impl Steps {
    /// Builds the steps.
    pub fn pipeline(&self) -> Pipeline {
        let step = |text: &&str| {
            let settings: TransformSettings = toml::from_str(text).expect(text);
            settings.build().expect(text)
        };
        self.settings.iter().map(step).collect()
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

fn schema(keyspace: &str) -> Vec<String> {
    let replication = "WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}";
    vec![
        format!("CREATE KEYSPACE {keyspace} {replication}"),
        format!("CREATE TABLE {keyspace}.t (a int, b int, v text, w int, PRIMARY KEY (a, b))"),
        format!("CREATE TABLE {keyspace}.u (a int PRIMARY KEY, v text)"),
    ]
}
