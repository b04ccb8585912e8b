//! Values of a planned statement: constants, functions and bind markers.

use std::borrow::Cow;
use std::fmt::Display;

use super::ast::{Function, Term};
use super::body::Bound;
use super::failure::{Failure, Result};
use super::literal;
use super::response::ColumnSpec;
use super::schema::{Column, TableDef};
use super::types::CqlType;

/// Markers of one statement: counts travel as `[short]`.
const MAX_MARKERS: usize = u16::MAX as usize;

/// A term of a planned statement: where its value comes from, and its type.
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

    pub(super) fn into_specs(self) -> Vec<ColumnSpec> {
        self.specs.into_iter().flatten().collect()
    }
}

/// The column of that name.
pub(super) fn column<'d>(def: &'d TableDef, name: &str) -> Result<(usize, &'d Column)> {
    def.column(name).ok_or_else(|| {
        Failure::invalid(format!(
            "Undefined column name {name} in table {}.{}",
            def.keyspace, def.name
        ))
    })
}
