//! Rows in memory: one ordered map per table, and a bound on all of them together.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Bound;
use std::rc::Rc;

use super::failure::{Failure, Result};
use super::schema::TableDef;

/// Estimated cost of a row beside its bytes: map node, boxes, cells.
const ROW_OVERHEAD: usize = 96;

/// A stored value; `None` is null.
pub(super) type Datum = Option<Box<[u8]>>;

/// A table and its rows by their ordered key (see `ordered`).
#[derive(Debug)]
pub(super) struct Table {
    pub(super) def: TableDef,
    pub(super) rows: RefCell<Rows>,
    bytes: Cell<usize>,
    memory: Rc<Memory>,
}

pub(super) type Rows = BTreeMap<Box<[u8]>, Row>;

/// One row, with a cell for each of the table's columns.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) cells: Box<[Datum]>,
    /// Written by INSERT: such a row stays when all its regular cells are null.
    inserted: bool,
}

/// Memory that all tables of a node hold, and their limit.
#[derive(Debug)]
pub(super) struct Memory {
    pub(super) used: Cell<usize>,
    pub(super) max: usize,
}

impl Table {
    pub(super) fn new(def: TableDef, memory: Rc<Memory>) -> Self {
        Self {
            def,
            rows: RefCell::default(),
            bytes: Cell::new(0),
            memory,
        }
    }

    /// Writes `changes` (column and value) into the row, which is made if it is not there.
    /// `key_values` are the raw values of the key's columns.
    pub(super) fn upsert(
        &self,
        key: &[u8],
        key_values: impl Iterator<Item = Box<[u8]>>,
        changes: Vec<(usize, Datum)>,
        inserted: bool,
    ) -> Result<()> {
        let incoming: usize = changes.iter().map(|(_, v)| datum_len(v)).sum();
        if self.memory.used.get() + incoming > self.memory.max {
            return Err(Failure::overloaded(format!(
                "this node's {} bytes of memory are used up",
                self.memory.max
            )));
        }
        let mut rows = self.rows.borrow_mut();
        let mut added = 0;
        let row = rows.entry(key.into()).or_insert_with(|| {
            let mut cells: Vec<Datum> = key_values.map(Some).collect();
            cells.resize(self.def.columns.len(), None);
            added = ROW_OVERHEAD + key.len() + cells.iter().map(datum_len).sum::<usize>();
            Row {
                cells: cells.into(),
                inserted: false,
            }
        });
        row.inserted |= inserted;
        let mut removed = 0;
        for (column, value) in changes {
            if let Some(cell) = row.cells.get_mut(column) {
                added += datum_len(&value);
                removed += datum_len(cell);
                *cell = value;
            }
        }
        let gone = !row.inserted && row.cells.iter().skip(self.def.key_len).all(Option::is_none);
        if gone && let Some(row) = rows.remove(key) {
            removed += row_len(key, &row);
        }
        self.account(added, removed);
        Ok(())
    }

    pub(super) fn remove(&self, key: &[u8]) {
        if let Some(row) = self.rows.borrow_mut().remove(key) {
            self.account(0, row_len(key, &row));
        }
    }

    /// Removes every row whose key begins with `prefix`.
    pub(super) fn remove_prefix(&self, prefix: &[u8]) {
        let rows = self.rows.borrow();
        let keys: Vec<Box<[u8]>> = from_prefix(&rows, prefix)
            .map(|(key, _)| key.clone())
            .collect();
        drop(rows);
        keys.iter().for_each(|key| self.remove(key));
    }

    pub(super) fn clear(&self) {
        self.rows.borrow_mut().clear();
        self.account(0, self.bytes.get());
    }

    fn account(&self, added: usize, removed: usize) {
        self.bytes
            .set((self.bytes.get() + added).saturating_sub(removed));
        self.memory
            .used
            .set((self.memory.used.get() + added).saturating_sub(removed));
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        self.account(0, self.bytes.get());
    }
}

fn datum_len(datum: &Datum) -> usize {
    datum.as_ref().map_or(0, |v| v.len())
}

fn row_len(key: &[u8], row: &Row) -> usize {
    ROW_OVERHEAD + key.len() + row.cells.iter().map(datum_len).sum::<usize>()
}

/// The rows of a key prefix, in order.
fn from_prefix<'a>(
    rows: &'a Rows,
    prefix: &'a [u8],
) -> impl Iterator<Item = (&'a Box<[u8]>, &'a Row)> {
    rows.range::<[u8], _>((Bound::Included(prefix), Bound::Unbounded))
        .take_while(move |(key, _)| key.starts_with(prefix))
}

/// The rows of a key prefix, after the row `resume` if one is given, backwards if `reverse`.
/// No range is bounded on both sides: `BTreeMap::range` panics on a start beyond the end,
/// and `resume` comes from the client.
pub(super) fn scan<'a>(
    rows: &'a Rows,
    prefix: &'a [u8],
    resume: Option<&'a [u8]>,
    reverse: bool,
) -> Box<dyn Iterator<Item = (&'a Box<[u8]>, &'a Row)> + 'a> {
    if !reverse {
        return match resume {
            None => Box::new(from_prefix(rows, prefix)),
            Some(last) => Box::new(
                rows.range::<[u8], _>((Bound::Excluded(last), Bound::Unbounded))
                    .take_while(move |(key, _)| key.starts_with(prefix)),
            ),
        };
    }
    let after = prefix_end(prefix);
    let end = match (resume, &after) {
        (Some(last), _) => Bound::Excluded(last),
        (None, Some(after)) => Bound::Excluded(&after[..]),
        (None, None) => Bound::Unbounded,
    };
    Box::new(
        rows.range::<[u8], _>((Bound::Unbounded, end))
            .rev()
            .take_while(move |(key, _)| key.starts_with(prefix)),
    )
}

/// The first key after all that begin with `prefix`; none when the prefix is all ones.
fn prefix_end(prefix: &[u8]) -> Option<Vec<u8>> {
    let keep = prefix.iter().rposition(|b| *b != 0xff)? + 1;
    let mut end = prefix.get(..keep)?.to_vec();
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    Some(end)
}

#[cfg(test)]
mod tests {
    use super::super::schema::{Column, ColumnKind};
    use super::super::types::{CqlType, Native};
    use super::*;

    fn table(max: usize) -> Table {
        let column = |name: &str, kind| Column {
            name: name.into(),
            cql_type: CqlType::Native(Native::Blob),
            kind,
        };
        let columns = vec![
            column("k", ColumnKind::Partition),
            column("v", ColumnKind::Regular),
        ];
        let memory = Rc::new(Memory {
            used: Cell::new(0),
            max,
        });
        Table::new(TableDef::new("ks", "t", columns, String::new()), memory)
    }

    fn put(table: &Table, key: &[u8], value: Option<&[u8]>, inserted: bool) -> Result<()> {
        table.upsert(
            key,
            std::iter::once(key.into()),
            vec![(1, value.map(Into::into))],
            inserted,
        )
    }

    #[test]
    fn memory_is_bounded_and_given_back() {
        let table = table(1000);
        put(&table, b"a", Some(&[0; 500]), true).unwrap();
        assert!(put(&table, b"b", Some(&[0; 500]), true).is_err());
        put(&table, b"a", Some(b""), true).unwrap();
        put(&table, b"b", Some(&[0; 500]), true).unwrap();
        table.remove(b"a");
        table.remove_prefix(b"");
        assert_eq!(table.memory.used.get(), 0);
    }

    #[test]
    fn an_updated_row_dies_with_its_last_cell_and_an_inserted_one_does_not() {
        let table = table(1000);
        put(&table, b"a", Some(b"x"), false).unwrap();
        put(&table, b"a", None, false).unwrap();
        assert!(table.rows.borrow().is_empty());
        assert_eq!(table.memory.used.get(), 0);
        put(&table, b"a", None, true).unwrap();
        assert_eq!(table.rows.borrow().len(), 1);
    }

    #[test]
    fn scans_resume_both_ways_and_survive_any_resume_key() {
        let table = table(100_000);
        for key in ["a1", "b1", "b2", "b3", "c1"] {
            put(&table, key.as_bytes(), Some(b"v"), true).unwrap();
        }
        let rows = table.rows.borrow();
        let keys = |prefix: &str, resume: Option<&str>, reverse| -> String {
            scan(&rows, prefix.as_bytes(), resume.map(str::as_bytes), reverse)
                .map(|(k, _)| String::from_utf8_lossy(k).into_owned() + " ")
                .collect()
        };
        assert_eq!(keys("b", None, false), "b1 b2 b3 ");
        assert_eq!(keys("b", Some("b1"), false), "b2 b3 ");
        assert_eq!(keys("b", None, true), "b3 b2 b1 ");
        assert_eq!(keys("b", Some("b3"), true), "b2 b1 ");
        assert_eq!(keys("", None, true), "c1 b3 b2 b1 a1 ");
        assert_eq!(keys("b", Some("zz"), false), "");
        assert_eq!(keys("b", Some(""), true), "");
    }
}
