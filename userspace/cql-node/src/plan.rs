//! Statements that have met the schema: names are column numbers, constants are bytes, and
//! every marker has a type.

use std::borrow::Cow;
use std::fmt::Display;

use super::ast::{Describe, Function, SchemaStatement, Term};
use super::body::Bound;
use super::failure::{Failure, Result};
use super::literal;
use super::plan_modify::ModifyPlan;
use super::plan_select::SelectPlan;
use super::response::{ColumnSpec, Metadata};
use super::schema::TableDef;
use super::types::CqlType;

/// Markers of one statement: counts travel as `[short]`.
const MAX_MARKERS: usize = u16::MAX as usize;

/// A statement ready to execute.
#[derive(Debug)]
pub(super) struct Prepared {
    pub(super) id: [u8; 16],
    pub(super) plan: Plan,
    /// The bind markers; those of one statement are told as of one table.
    pub(super) markers: Metadata,
    /// Names of the markers, for values that come by name.
    pub(super) marker_names: Vec<String>,
    /// The markers that make up the partition key, in its order, when all of it is bound.
    pub(super) key_markers: Vec<u16>,
    /// Columns of the rows a SELECT returns; empty for anything else.
    pub(super) result: Metadata,
}

#[derive(Debug)]
pub(super) enum Plan {
    Select(SelectPlan),
    Modify(ModifyPlan),
    Batch(Vec<ModifyPlan>),
    Use(String),
    Describe(Describe),
    Schema(SchemaStatement),
}

impl Plan {
    /// Whether the plan stands on the table, or for `None` on any table of the keyspace.
    pub(super) fn depends_on(&self, keyspace: &str, table: Option<&str>) -> bool {
        let on = |def: &TableDef| def.keyspace == keyspace && table.is_none_or(|t| def.name == t);
        match self {
            Self::Select(select) => on(&select.table.def),
            Self::Modify(modify) => on(&modify.table.def),
            Self::Batch(parts) => parts.iter().any(|m| on(&m.table.def)),
            Self::Use(_) | Self::Describe(_) | Self::Schema(_) => false,
        }
    }
}

/// Where a value comes from.
#[derive(Debug, Clone)]
pub(super) struct Source {
    pub(super) cql_type: CqlType,
    kind: SourceKind,
}

#[derive(Debug, Clone)]
enum SourceKind {
    Constant(Option<Box<[u8]>>),
    Function(Function),
    Marker(usize),
}

/// A value at execution.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Value<'a> {
    Null,
    Unset,
    Bytes(Cow<'a, [u8]>),
}

impl Value<'_> {
    /// The value of something that must have one.
    pub(super) fn bytes(&self, what: impl Display) -> Result<&[u8]> {
        match self {
            Self::Bytes(b) => Ok(b),
            Self::Null => Err(Failure::invalid(format!("Invalid null value for {what}"))),
            Self::Unset => Err(Failure::invalid(format!("Invalid unset value for {what}"))),
        }
    }
}

impl Source {
    /// The value, which for a marker is checked against its type.
    pub(super) fn value<'a>(&'a self, values: &[Bound<'a>]) -> Result<Value<'a>> {
        match &self.kind {
            SourceKind::Constant(None) => Ok(Value::Null),
            SourceKind::Constant(Some(bytes)) => Ok(Value::Bytes(Cow::Borrowed(bytes))),
            SourceKind::Function(function) => {
                let mut bytes = Vec::new();
                literal::encode(&Term::Function(*function), &self.cql_type, &mut bytes)?;
                Ok(Value::Bytes(Cow::Owned(bytes)))
            }
            SourceKind::Marker(n) => match values.get(*n) {
                Some(Bound::Null) => Ok(Value::Null),
                Some(Bound::Unset) => Ok(Value::Unset),
                Some(Bound::Bytes(bytes)) => {
                    self.cql_type.check(bytes)?;
                    Ok(Value::Bytes(Cow::Borrowed(bytes)))
                }
                None => Err(Failure::invalid("Invalid amount of bind variables")),
            },
        }
    }

    pub(super) fn marker(&self) -> Option<usize> {
        match self.kind {
            SourceKind::Marker(n) => Some(n),
            SourceKind::Constant(_) | SourceKind::Function(_) => None,
        }
    }
}

/// Collects the markers of a statement while its terms become sources.
#[derive(Debug, Default)]
pub(super) struct Markers {
    /// Clauses are not planned in the order of their markers.
    specs: Vec<Option<ColumnSpec>>,
}

impl Markers {
    /// `name` is what an unnamed marker is called.
    pub(super) fn source(&mut self, term: &Term, cql_type: &CqlType, name: &str) -> Result<Source> {
        let kind = match term {
            Term::Marker(n, own_name) => {
                if *n >= MAX_MARKERS {
                    return Err(Failure::invalid(
                        "Too many markers(?). markers count: over 65535",
                    ));
                }
                if self.specs.len() <= *n {
                    self.specs.resize(n + 1, None);
                }
                let name = own_name.clone().unwrap_or_else(|| name.to_owned());
                if let Some(spec) = self.specs.get_mut(*n) {
                    *spec = Some(ColumnSpec {
                        name,
                        cql_type: cql_type.clone(),
                    });
                }
                SourceKind::Marker(*n)
            }
            Term::Null => SourceKind::Constant(None),
            Term::Function(function) => {
                // Encoded once now, so that a wrong type fails when the statement is prepared.
                literal::encode(term, cql_type, &mut Vec::new())?;
                SourceKind::Function(*function)
            }
            constant => {
                let mut bytes = Vec::new();
                literal::encode(constant, cql_type, &mut bytes)?;
                SourceKind::Constant(Some(bytes.into()))
            }
        };
        Ok(Source {
            cql_type: cql_type.clone(),
            kind,
        })
    }

    fn into_specs(self) -> Vec<ColumnSpec> {
        self.specs.into_iter().flatten().collect()
    }
}

/// Puts a planned statement together; `key` holds the sources of the key's first columns.
pub(super) fn assemble(
    id: [u8; 16],
    plan: Plan,
    markers: Markers,
    key: &[Source],
    def: Option<&TableDef>,
    result: Metadata,
) -> Prepared {
    let specs = markers.into_specs();
    let (keyspace, table) = def.map_or(("", ""), |d| (d.keyspace.as_str(), d.name.as_str()));
    let metadata = Metadata::new(keyspace, table, &specs);
    let partition_len = def.map_or(0, |d| d.partition_len);
    let bound: Vec<u16> = key
        .iter()
        .take(partition_len)
        .filter_map(|s| u16::try_from(s.marker()?).ok())
        .collect();
    let key_markers = if bound.len() == partition_len {
        bound
    } else {
        Vec::new()
    };
    let marker_names = specs.into_iter().map(|s| s.name).collect();
    Prepared {
        id,
        plan,
        markers: metadata,
        marker_names,
        key_markers,
        result,
    }
}

/// The column of that name.
pub(super) fn column<'d>(
    def: &'d TableDef,
    name: &str,
) -> Result<(usize, &'d super::schema::Column)> {
    def.column(name).ok_or_else(|| {
        Failure::invalid(format!(
            "Undefined column name {name} in table {}.{}",
            def.keyspace, def.name
        ))
    })
}
