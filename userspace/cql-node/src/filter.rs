//! Conditions of WHERE that are tried on row after row.

use super::ast::Operator;
use super::body::{Bound, Reader};
use super::failure::Result;
use super::ordered;
use super::sources::Source;
use super::store::{Datum, Row};
use super::types::{CqlType, Native};

/// `column operator term…`, for the columns that no look-up by key covers.
#[derive(Debug)]
pub(super) struct Filter {
    pub(super) column: usize,
    pub(super) operator: Operator,
    pub(super) sources: Vec<Source>,
}

/// A filter with its values, as ordered keys where order matters.
#[derive(Debug)]
pub(super) struct BoundFilter {
    column: usize,
    operator: Operator,
    cql_type: CqlType,
    values: Vec<Vec<u8>>,
}

impl Filter {
    /// With the values of one execution.
    pub(super) fn bind(&self, values: &[Bound<'_>]) -> Result<BoundFilter> {
        let mut bound = Vec::new();
        let mut cql_type = None;
        for source in &self.sources {
            let value = source.value(values)?;
            let bytes = value.bytes("a column in WHERE")?;
            match (&source.cql_type, self.operator) {
                (CqlType::List(element), Operator::InMarker) => {
                    cql_type = Some((**element).clone());
                    let mut reader = Reader::new(bytes);
                    for _ in 0..reader.i32()? {
                        bound.push(order(element, reader.bytes()?.unwrap_or_default()));
                    }
                }
                (source_type, _) => {
                    cql_type = Some(source_type.clone());
                    bound.push(order(source_type, bytes));
                }
            }
        }
        let cql_type = cql_type.unwrap_or(CqlType::Native(Native::Blob));
        Ok(BoundFilter {
            column: self.column,
            operator: self.operator,
            cql_type,
            values: bound,
        })
    }
}

fn order(cql_type: &CqlType, value: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    ordered::put(cql_type, value, false, &mut out);
    out
}

impl BoundFilter {
    /// Null matches nothing.
    pub(super) fn matches(&self, row: &Row) -> bool {
        let cell: Option<&Datum> = row.cells.get(self.column);
        let Some(Some(cell)) = cell else { return false };
        let cell = order(&self.cql_type, cell);
        match (self.operator, self.values.first()) {
            (Operator::In | Operator::InMarker, _) => self.values.contains(&cell),
            (_, None) => false,
            (Operator::Equal, Some(v)) => cell == *v,
            (Operator::Less, Some(v)) => cell < *v,
            (Operator::LessOrEqual, Some(v)) => cell <= *v,
            (Operator::Greater, Some(v)) => cell > *v,
            (Operator::GreaterOrEqual, Some(v)) => cell >= *v,
        }
    }
}
