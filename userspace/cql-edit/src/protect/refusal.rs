//! Why a statement, or its result, does not pass.

use std::fmt;

/// See the module. What it holds are names, never values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Why {
    /// A column is compared, ordered or grouped by.
    Predicate(Box<str>),
    /// A column is in an expression of what is selected.
    Hidden(Box<str>),
    /// The result, or what is written, is JSON.
    Json(Box<str>),
    /// The text writes a value whose place is not known.
    Value(Box<str>),
    /// A value is in the text of a PREPARE.
    Literal(Box<str>),
    /// The markers or values of columns cannot be told apart.
    Markers(Box<str>),
    /// A column is part of the partition key.
    Key(Box<str>),
    /// A column's type cannot hold an envelope.
    Type(Box<str>),
    /// An index over a column.
    Index(Box<str>),
    /// A materialized view of a table.
    View(Box<str>),
    /// A table is named without a keyspace, and in which one the flow is is not known.
    Keyspace(Box<str>),
    /// The statement names a table, and is not understood.
    Unknown(Box<str>),
    /// A USE that is prepared.
    Use,
    /// There are no keys.
    NoKeys,
    /// The request would become too large.
    TooLarge,
}

impl Why {
    /// The reason, as a metric's label.
    pub(super) fn reason(&self) -> &'static str {
        match self {
            Self::Predicate(_) => "predicate",
            Self::Hidden(_) => "hidden",
            Self::Json(_) => "json",
            Self::Value(_) => "value",
            Self::Literal(_) => "literal",
            Self::Markers(_) => "markers",
            Self::Key(_) => "key",
            Self::Type(_) => "type",
            Self::Index(_) => "index",
            Self::View(_) => "view",
            Self::Keyspace(_) => "keyspace",
            Self::Unknown(_) => "unknown",
            Self::Use => "use",
            Self::NoKeys => "no_keys",
            Self::TooLarge => "too_large",
        }
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Predicate(column) => write!(
                f,
                "{column} is encrypted and cannot be compared, ordered or grouped by: leave it out of WHERE, \
                 IF, ORDER BY and GROUP BY"
            ),
            Self::Hidden(column) => write!(
                f,
                "{column} is encrypted, and only the column itself can be selected, with or without another \
                 name: take it out of functions, casts and other expressions"
            ),
            Self::Json(table) => write!(
                f,
                "{table} has encrypted columns, which cannot be read or written as JSON: name the columns"
            ),
            Self::Value(column) => write!(
                f,
                "{column} is encrypted and is written as a whole, from a bound value, a string, a blob or \
                 NULL: bind the value"
            ),
            Self::Literal(column) => write!(
                f,
                "{column} is encrypted, and a prepared statement cannot have a value of it in its text: bind \
                 the value"
            ),
            Self::Markers(column) => write!(
                f,
                "which of the values is that of {column}, which is encrypted, cannot be told: bind each by a \
                 marker of its own, all of them with names or none"
            ),
            Self::Key(column) => write!(
                f,
                "{column} is part of the partition key and cannot be encrypted: take it out of the policy's \
                 `columns`"
            ),
            Self::Type(column) => write!(
                f,
                "{column} is neither text nor blob, and cannot hold an encrypted value: change its type, or \
                 take it out of the policy's `columns`"
            ),
            Self::Index(column) => write!(
                f,
                "{column} is encrypted, and an index over it would find nothing"
            ),
            Self::View(table) => write!(
                f,
                "{table} has encrypted columns, which a materialized view would hide: name the other columns \
                 only"
            ),
            Self::Keyspace(table) => write!(
                f,
                "{table} may have encrypted columns, and in which keyspace it is is not known: write \
                 keyspace.table"
            ),
            Self::Unknown(table) => write!(
                f,
                "the statement names {table}, which has encrypted columns, and is not understood: write it \
                 in Cassandra's CQL, and in no more than 256 KiB"
            ),
            Self::Use => f.write_str("USE cannot be prepared: send it as a query"),
            Self::NoKeys => {
                f.write_str("there are no keys for the encrypted columns now: try again later")
            }
            Self::TooLarge => f.write_str("with its values encrypted the request is too large"),
        }
    }
}
