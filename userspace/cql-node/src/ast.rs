//! Parsed statements, before they meet the schema.

use std::collections::BTreeMap;

use super::schema::Column;

/// `keyspace.table`, or a table of the session's keyspace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TableName {
    pub(super) keyspace: Option<String>,
    pub(super) table: String,
}

#[derive(Debug, Clone)]
pub(super) enum Statement {
    Select(Select),
    Modify(Modify),
    Batch(Vec<Modify>),
    Use(String),
    Describe(Describe),
    Schema(SchemaStatement),
}

#[derive(Debug, Clone)]
pub(super) enum SchemaStatement {
    CreateKeyspace {
        name: String,
        if_not_exists: bool,
        replication: BTreeMap<String, String>,
        durable_writes: bool,
    },
    CreateTable {
        name: TableName,
        if_not_exists: bool,
        columns: Vec<Column>,
        comment: String,
    },
    DropKeyspace {
        name: String,
        if_exists: bool,
    },
    DropTable {
        name: TableName,
        if_exists: bool,
    },
    Truncate(TableName),
}

#[derive(Debug, Clone)]
pub(super) enum Describe {
    Cluster,
    Schema,
    Keyspaces,
    Keyspace(Option<String>),
    Tables,
    Table(TableName),
    /// `DESCRIBE name`: a keyspace, or else a table.
    Anything(TableName),
    /// Types, functions and aggregates: there are none.
    Nothing,
}

#[derive(Debug, Clone)]
pub(super) struct Select {
    pub(super) table: TableName,
    pub(super) distinct: bool,
    /// Empty for `*`.
    pub(super) outputs: Vec<(Output, Option<String>)>,
    pub(super) relations: Vec<Relation>,
    pub(super) order_by: Vec<(String, bool)>,
    pub(super) limit: Option<Term>,
    pub(super) allow_filtering: bool,
}

/// One item of a selection.
#[derive(Debug, Clone)]
pub(super) enum Output {
    Column(String),
    Count,
    Function(Function),
}

#[derive(Debug, Clone)]
pub(super) struct Relation {
    pub(super) column: String,
    pub(super) operator: Operator,
    /// One term, or for `IN (…)` any number.
    pub(super) terms: Vec<Term>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Operator {
    Equal,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    In,
    /// `IN ?`: one marker for a list.
    InMarker,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Function {
    /// A new version 1 UUID.
    Now,
    /// A new version 4 UUID.
    Uuid,
    /// `toTimestamp(now())`, `currentTimestamp()`.
    Timestamp,
}

#[derive(Debug, Clone)]
pub(super) enum Term {
    Null,
    Bool(bool),
    Text(String),
    Number(String),
    Uuid([u8; 16]),
    Blob(Vec<u8>),
    List(Vec<Term>),
    /// `{a, b}`; `{}` may also be an empty map.
    Set(Vec<Term>),
    Map(Vec<(Term, Term)>),
    Tuple(Vec<Term>),
    Function(Function),
    /// The n-th marker of the statement, and its name if it has one.
    Marker(usize, Option<String>),
}

#[derive(Debug, Clone)]
pub(super) struct Modify {
    pub(super) kind: ModifyKind,
    pub(super) table: TableName,
    /// INSERT: the columns. UPDATE: SET. DELETE: the columns to clear.
    pub(super) sets: Vec<Assignment>,
    /// UPDATE and DELETE: WHERE.
    pub(super) relations: Vec<Relation>,
    /// Terms of USING TTL and TIMESTAMP: bound, checked, and then ignored.
    pub(super) using: Vec<(&'static str, Term)>,
    pub(super) condition: Condition,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ModifyKind {
    Insert,
    Update,
    Delete,
}

#[derive(Debug, Clone)]
pub(super) struct Assignment {
    pub(super) column: String,
    pub(super) change: Change,
}

#[derive(Debug, Clone)]
pub(super) enum Change {
    Set(Term),
    /// `c = c + n`
    Add(Term),
    /// `c = c - n`
    Subtract(Term),
}

#[derive(Debug, Clone)]
pub(super) enum Condition {
    None,
    NotExists,
    Exists,
    /// `IF column = term AND …`
    Equal(Vec<(String, Term)>),
}
