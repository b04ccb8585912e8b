//! Statements that have met the schema: names are column numbers, constants are bytes, and
//! every marker has a type.

use super::ast::{Describe, SchemaStatement};
use super::plan_modify::ModifyPlan;
use super::plan_select::SelectPlan;
use super::response::{Metadata, PreparedResult};
use super::schema::TableDef;
use super::sources::{Markers, Source};

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

impl Prepared {
    /// The parts that a client is told of.
    pub(super) fn told(&self) -> PreparedResult<'_> {
        PreparedResult {
            id: &self.id,
            markers: &self.markers,
            key_markers: &self.key_markers,
            result: &self.result,
            is_conditional: self.plan.is_conditional(),
        }
    }
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
    /// Whether it is a lightweight transaction.
    fn is_conditional(&self) -> bool {
        match self {
            Self::Modify(modify) => modify.is_conditional(),
            Self::Batch(parts) => parts.iter().any(ModifyPlan::is_conditional),
            Self::Select(_) | Self::Use(_) | Self::Describe(_) | Self::Schema(_) => false,
        }
    }

    /// The table that it reads or writes, or whose rows are written first.
    pub(super) fn table(&self) -> Option<&TableDef> {
        match self {
            Self::Select(select) => Some(&select.table.def),
            Self::Modify(modify) => Some(&modify.table.def),
            Self::Batch(parts) => parts.first().map(|part| &part.table.def),
            Self::Use(_) | Self::Describe(_) | Self::Schema(_) => None,
        }
    }

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
