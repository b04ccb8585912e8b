//! Keyspaces, tables and columns.

use std::collections::BTreeMap;
use std::rc::Rc;

use super::store::Table;
use super::types::CqlType;

#[derive(Debug)]
pub(super) struct Keyspace {
    pub(super) name: String,
    pub(super) replication: BTreeMap<String, String>,
    pub(super) durable_writes: bool,
    pub(super) tables: BTreeMap<String, Rc<Table>>,
}

/// A table's shape. `columns` holds the partition key, then the clustering key, then the
/// rest by name, which is the order of `SELECT *`.
#[derive(Debug)]
pub(super) struct TableDef {
    pub(super) keyspace: String,
    pub(super) name: String,
    pub(super) columns: Vec<Column>,
    pub(super) partition_len: usize,
    /// Partition key and clustering key.
    pub(super) key_len: usize,
    pub(super) id: [u8; 16],
    pub(super) comment: String,
}

#[derive(Debug, Clone)]
pub(super) struct Column {
    pub(super) name: String,
    pub(super) cql_type: CqlType,
    pub(super) kind: ColumnKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ColumnKind {
    Partition,
    Clustering { descending: bool },
    Regular,
}

impl TableDef {
    /// `columns`: key columns in key order, then the others in any order.
    pub(super) fn new(
        keyspace: &str,
        name: &str,
        mut columns: Vec<Column>,
        comment: String,
    ) -> Self {
        let partition_len = columns
            .iter()
            .filter(|c| c.kind == ColumnKind::Partition)
            .count();
        let key_len = columns
            .iter()
            .filter(|c| c.kind != ColumnKind::Regular)
            .count();
        if let Some(regular) = columns.get_mut(key_len..) {
            regular.sort_by(|a, b| a.name.cmp(&b.name));
        }
        let id = uuid_of(&[keyspace.as_bytes(), b".", name.as_bytes()]);
        Self {
            keyspace: keyspace.to_owned(),
            name: name.to_owned(),
            columns,
            partition_len,
            key_len,
            id,
            comment,
        }
    }

    pub(super) fn column(&self, name: &str) -> Option<(usize, &Column)> {
        self.columns
            .iter()
            .enumerate()
            .find(|(_, c)| c.name == name)
    }

    pub(super) fn key_columns(&self) -> &[Column] {
        self.columns.get(..self.key_len).unwrap_or_default()
    }
}

/// A 128-bit FNV-1a digest: stable names for statements, tables and hosts. Not for secrets.
pub(super) fn digest(parts: &[&[u8]]) -> [u8; 16] {
    const BASIS: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013B;
    let fold = |h: u128, b: &u8| (h ^ u128::from(*b)).wrapping_mul(PRIME);
    parts
        .iter()
        .flat_map(|p| p.iter())
        .fold(BASIS, fold)
        .to_be_bytes()
}

/// A version 3 style UUID made of a digest.
pub(super) fn uuid_of(parts: &[&[u8]]) -> [u8; 16] {
    let id = u128::from_be_bytes(digest(parts));
    (id & !(0xf << 76) & !(0x3 << 62) | (0x3 << 76) | (0x2 << 62)).to_be_bytes()
}
