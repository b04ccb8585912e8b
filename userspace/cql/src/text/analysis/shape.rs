//! [`Shape`]: what a statement restricts, limits and writes; [`Object`]: what a definition is about.

use crate::labelled;
use crate::text::statement::Statement;

/// How many restrictions of columns are kept. A table has a few key columns, and each but those is
/// an index.
pub const MAX_RESTRICTIONS: usize = 64;

/// How many different kinds and tables of a batch's statements are kept.
pub const MAX_BATCH_PARTS: usize = 32;

/// The object of a CREATE, ALTER or DROP.
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
    /// The number in the text.
    Is(i64),
    /// A marker stands for it: the request's values tell.
    Marker,
}

impl Number {
    /// The one of two that allows more.
    pub(super) fn max(self, other: Self) -> Self {
        match (self, other) {
            (Self::Is(one), Self::Is(two)) => Self::Is(one.max(two)),
            _ => Self::Marker,
        }
    }
}

/// Properties of a statement that is wholly understood.
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
    /// Restrictions of WHERE, in the order of the text. Those of a batch's statements are not kept.
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
    /// The content of a text `BEGIN .. BATCH ..`.
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
    /// The column's name as the database stores it.
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
    /// The column is one of those whose `token()` is compared.
    Token,
    /// `<`, `<=`, `>`, `>=` or BETWEEN.
    Range,
    /// `!=`, NOT IN, LIKE, CONTAINS, IS NOT NULL, or an element of it.
    Other,
}

/// The content of a batch's text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// The batch's kind.
    pub kind: BatchKind,
    /// How many statements.
    pub statements: u32,
    /// The batch's statements, each kind and table once.
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
