//! [`Analysis`]: what a statement asks for, as far as its text tells.
//!
//! Its kind, keyspace and table are those that [`parse`] finds. Beyond that the text is followed by
//! the grammar of Cassandra 5 (`Parser.g`), from the first word to the last. Where it goes another
//! way, by a mistake or by another database's extension, nothing is guessed: the shape and the
//! fingerprint are unknown.
//!
//! `token` is what a text consists of, `walk` the statements, `relation` and `term` what stands in
//! them, `definition` the statements that change no data; `fingerprint` is written on the way. `sites` is for
//! who changes a text, `row_write` for who merges writes. Where a text has columns, and what stands for their
//! values, `columns` says.

mod definition;
mod fingerprint;
mod relation;
mod row_write;
mod term;
#[cfg(test)]
mod tests;
mod token;
mod walk;

use crate::event::labelled;
use crate::parse::parse;
use crate::statement::Statement;

pub use fingerprint::{Fingerprint, MAX_FINGERPRINT_BYTES};
pub use row_write::RowWrite;
pub use token::{Token, Tokens};
pub use walk::{MAX_DEPTH, is_reserved, is_understood};

/// The longest text that is followed. At 12 to 200 MB in a second this much holds up the other
/// flows of a worker for 20 ms at worst. What an application sends as text is rarely a hundredth of
/// it, and Cassandra refuses batches beyond 50 KiB unless it is told otherwise.
pub const MAX_ANALYSED_BYTES: usize = 256 << 10;

/// How many restrictions of columns are kept. A table has a few key columns, and each but those is
/// an index.
pub const MAX_RESTRICTIONS: usize = 64;

/// How many different kinds and tables of a batch's statements are kept.
pub const MAX_BATCH_PARTS: usize = 32;

/// What a statement asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Analysis {
    /// Its kind, and the names that the text itself has.
    pub statement: Statement,
    /// What a CREATE, ALTER or DROP is about; `None`: it is none of them, or it is not known.
    pub object: Option<Object>,
    /// The text without its values.
    pub fingerprint: Fingerprint,
    /// What else there is to know; `None`: unknown.
    pub shape: Option<Shape>,
}

impl Analysis {
    /// `text`: the beginning of a statement that is `declared` bytes long. Takes time in proportion
    /// to the text up to [`MAX_ANALYSED_BYTES`], and no more beyond.
    pub fn of(text: &[u8], declared: usize) -> Self {
        let statement = parse(text, declared).statement.to_owned();
        let whole = text.len() == declared && declared <= MAX_ANALYSED_BYTES;
        let walked = match whole {
            true => walk::walk(text),
            false => None,
        };
        let (shape, fingerprint) = match walked {
            Some((shape, fingerprint)) => (Some(shape), fingerprint),
            None => (None, Fingerprint::unknown()),
        };
        Self {
            object: definition::object(text.get(..MAX_ANALYSED_BYTES).unwrap_or(text)),
            statement,
            fingerprint,
            shape,
        }
    }
}

/// What a CREATE, ALTER or DROP is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Object {
    /// KEYSPACE or SCHEMA
    Keyspace,
    /// TABLE or COLUMNFAMILY
    Table,
    /// TYPE
    Type,
    /// FUNCTION
    Function,
    /// AGGREGATE
    Aggregate,
    /// INDEX
    Index,
    /// MATERIALIZED VIEW
    MaterializedView,
    /// TRIGGER
    Trigger,
    /// ROLE
    Role,
    /// USER
    User,
    /// IDENTITY
    Identity,
}

labelled!(Object {
    Keyspace => "keyspace",
    Table => "table",
    Type => "type",
    Function => "function",
    Aggregate => "aggregate",
    Index => "index",
    MaterializedView => "materialized_view",
    Trigger => "trigger",
    Role => "role",
    User => "user",
    Identity => "identity",
});

/// A number that a statement gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Number {
    /// This one.
    Is(i64),
    /// A marker stands for it: the request's values tell.
    Marker,
}

impl Number {
    /// The one of two that allows more.
    fn max(self, other: Self) -> Self {
        match (self, other) {
            (Self::Is(one), Self::Is(two)) => Self::Is(one.max(two)),
            _ => Self::Marker,
        }
    }
}

/// What a statement that is wholly understood has, and what it has not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shape {
    /// ALLOW FILTERING
    pub allow_filtering: bool,
    /// LIMIT
    pub limit: Option<Number>,
    /// PER PARTITION LIMIT
    pub per_partition_limit: Option<Number>,
    /// WHERE; not a materialized view's.
    pub has_where: bool,
    /// What WHERE restricts, in the order of the text. Not of a batch's statements.
    pub restrictions: Box<[Restriction]>,
    /// Elements of the longest list behind an IN, in the text; `None`: there is no such list.
    pub longest_in: Option<u32>,
    /// An IN whose list is a marker: its length is in the request's values.
    pub marked_in: bool,
    /// USING TTL; of a batch the longest of all, if none is a marker.
    pub ttl: Option<Number>,
    /// USING TIMESTAMP; of a batch the latest of all, if none is a marker.
    pub timestamp: Option<Number>,
    /// IF: a light-weight transaction; of a batch, any of it.
    pub conditional: bool,
    /// What a text `BEGIN .. BATCH ..` holds.
    pub batch: Option<Batch>,
}

impl Shape {
    /// Each of these columns, by the name that the database stores, is restricted by `=` or IN.
    /// With a table's partition key: the statement names its partitions.
    pub fn names_all(&self, columns: &[&str]) -> bool {
        columns.iter().all(|column| {
            self.restrictions.iter().any(|restriction| {
                *restriction.column == **column && matches!(restriction.by, By::Equal | By::In(_))
            })
        })
    }
}

/// A column that WHERE restricts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restriction {
    /// As the database stores its name.
    pub column: Box<str>,
    /// How.
    pub by: By,
}

/// How a column is restricted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// `=`, alone or within a tuple.
    Equal,
    /// IN a list of so many elements; `None`: a marker stands for the list.
    In(Option<u32>),
    /// It is one of those whose `token()` is compared.
    Token,
    /// `<`, `<=`, `>`, `>=` or BETWEEN.
    Range,
    /// `!=`, NOT IN, LIKE, CONTAINS, IS NOT NULL, or an element of it.
    Other,
}

/// What a batch's text holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// Its kind.
    pub kind: BatchKind,
    /// How many statements.
    pub statements: u32,
    /// What they do, each kind and table once.
    pub parts: Box<[Statement]>,
}

/// A batch's kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BatchKind {
    /// BATCH
    Logged,
    /// UNLOGGED BATCH
    Unlogged,
    /// COUNTER BATCH
    Counter,
}

labelled!(BatchKind {
    Logged => "logged",
    Unlogged => "unlogged",
    Counter => "counter",
});
