//! INSERT, UPDATE and DELETE: planning and carrying out.

use std::rc::Rc;

use super::ast::{Assignment, Change, Condition, Modify, ModifyKind, Operator};
use super::body::Bound;
use super::failure::{Failure, Result};
use super::ordered;
use super::schema::{ColumnKind, TableDef};
use super::sources::{Markers, Source, Value, column};
use super::store::{Datum, Row, Table};
use super::types::Native;

/// Cassandra's limit for a component of a key.
const MAX_KEY_COMPONENT: usize = u16::MAX as usize;

#[derive(Debug)]
pub(super) struct ModifyPlan {
    pub(super) table: Rc<Table>,
    kind: ModifyKind,
    /// A source for each key column; fewer when DELETE names a partition or part of one.
    pub(super) key: Vec<Source>,
    changes: Vec<(usize, ChangePlan)>,
    /// TTLs and timestamps: checked, then dropped.
    using: Vec<Source>,
    condition: ConditionPlan,
}

#[derive(Debug)]
enum ChangePlan {
    Set(Source),
    /// By how much, and whether downwards.
    Add(Source, bool),
}

#[derive(Debug)]
enum ConditionPlan {
    None,
    Exists(bool),
    Equal(Vec<(usize, Source)>),
}

/// Outcome of a modification.
#[derive(Debug)]
pub(super) enum Outcome {
    Done,
    /// There was a condition; with the row as it is when it did not hold.
    Applied,
    NotApplied(Option<Box<[Datum]>>),
}

/// Plans one modification; its markers are added to `markers`.
pub(super) fn plan(modify: &Modify, table: Rc<Table>, markers: &mut Markers) -> Result<ModifyPlan> {
    let def = &table.def;
    let mut using = Vec::new();
    for (name, term) in &modify.using {
        let native = if *name == "[ttl]" {
            Native::Int
        } else {
            Native::Bigint
        };
        using.push(markers.source(term, &super::types::CqlType::Native(native), name)?);
    }
    let mut key: Vec<Option<Source>> = vec![None; def.key_len];
    let mut changes = Vec::new();
    for assignment in &modify.sets {
        let (i, spec) = column(def, &assignment.column)?;
        let change = plan_change(assignment, &spec.cql_type, markers)?;
        match (key.get_mut(i), change, modify.kind) {
            (Some(slot), ChangePlan::Set(source), ModifyKind::Insert) => *slot = Some(source),
            (Some(_), _, _) => {
                return Err(Failure::invalid(format!(
                    "PRIMARY KEY part {} found in SET part",
                    spec.name
                )));
            }
            (None, change, _) => changes.push((i, change)),
        }
    }
    for relation in &modify.relations {
        let (i, spec) = column(def, &relation.column)?;
        let slot = key.get_mut(i).ok_or_else(|| {
            Failure::invalid(format!(
                "Non PRIMARY KEY columns found in where clause: {}",
                spec.name
            ))
        })?;
        match (relation.operator, relation.terms.as_slice(), &slot) {
            (Operator::Equal, [term], None) => {
                *slot = Some(markers.source(term, &spec.cql_type, &spec.name)?)
            }
            (Operator::Equal, _, _) => {
                return Err(Failure::invalid(format!(
                    "{} cannot be restricted by more than one relation",
                    spec.name
                )));
            }
            _ => {
                return Err(Failure::invalid(
                    "UPDATE and DELETE take only equality on this node",
                ));
            }
        }
    }
    let condition = match &modify.condition {
        Condition::None => ConditionPlan::None,
        Condition::Exists => ConditionPlan::Exists(true),
        Condition::NotExists => ConditionPlan::Exists(false),
        Condition::Equal(pairs) => {
            let mut expected = Vec::new();
            for (name, term) in pairs {
                let (i, spec) = column(def, name)?;
                expected.push((i, markers.source(term, &spec.cql_type, name)?));
            }
            ConditionPlan::Equal(expected)
        }
    };
    let key = complete_key(
        def,
        key,
        modify.kind == ModifyKind::Delete && changes.is_empty(),
    )?;
    if key.len() < def.key_len && !matches!(condition, ConditionPlan::None) {
        return Err(Failure::invalid("Conditions need the whole PRIMARY KEY"));
    }
    Ok(ModifyPlan {
        table,
        kind: modify.kind,
        key,
        changes,
        using,
        condition,
    })
}

fn plan_change(
    assignment: &Assignment,
    cql_type: &super::types::CqlType,
    markers: &mut Markers,
) -> Result<ChangePlan> {
    let counter = cql_type.native() == Some(Native::Counter);
    let (term, down) = match &assignment.change {
        Change::Set(super::ast::Term::Null) => (&super::ast::Term::Null, None),
        Change::Set(_) if counter => {
            return Err(Failure::invalid(format!(
                "Cannot set the value of counter column {}",
                assignment.column
            )));
        }
        Change::Set(term) => (term, None),
        Change::Add(term) => (term, Some(false)),
        Change::Subtract(term) => (term, Some(true)),
    };
    let source = markers.source(term, cql_type, &assignment.column)?;
    match down {
        None => Ok(ChangePlan::Set(source)),
        Some(down) if counter => Ok(ChangePlan::Add(source, down)),
        Some(_) => Err(Failure::invalid(format!(
            "Invalid operation for non counter column {} (collections are set as a whole on this node)",
            assignment.column
        ))),
    }
}

/// The sources of the key without gaps: all of it, or with `may_be_partial` at least a partition's.
fn complete_key(
    def: &TableDef,
    key: Vec<Option<Source>>,
    may_be_partial: bool,
) -> Result<Vec<Source>> {
    let given = key.iter().flatten().count();
    let contiguous: Vec<Source> = key.into_iter().map_while(|s| s).collect();
    let needed = if may_be_partial {
        def.partition_len.max(given)
    } else {
        def.key_len
    };
    if contiguous.len() >= needed {
        return Ok(contiguous);
    }
    let missing: Vec<&str> = def
        .key_columns()
        .iter()
        .skip(contiguous.len())
        .take(1)
        .map(|c| c.name.as_str())
        .collect();
    Err(Failure::invalid(format!(
        "Some partition key or clustering parts are missing: {}",
        missing.join(", ")
    )))
}

/// The ordered key of the values of `sources`, which belong to the key's first columns.
pub(super) fn ordered_key(
    def: &TableDef,
    sources: &[Source],
    values: &[Bound<'_>],
) -> Result<Vec<u8>> {
    let mut key = Vec::with_capacity(32);
    for (column, source) in def.columns.iter().zip(sources) {
        let value = source.value(values)?;
        put_key_component(
            column,
            value.bytes(format_args!("column {}", column.name))?,
            &mut key,
        )?;
    }
    Ok(key)
}

/// Appends one column's part of the ordered key.
pub(super) fn put_key_component(
    column: &super::schema::Column,
    value: &[u8],
    key: &mut Vec<u8>,
) -> Result<()> {
    if value.len() > MAX_KEY_COMPONENT {
        let n = value.len();
        return Err(Failure::invalid(format!(
            "Key length of {n} is longer than maximum of {MAX_KEY_COMPONENT}"
        )));
    }
    let descending = column.kind == ColumnKind::Clustering { descending: true };
    ordered::put(&column.cql_type, value, descending, key);
    Ok(())
}

impl ModifyPlan {
    pub(super) fn is_conditional(&self) -> bool {
        !matches!(self.condition, ConditionPlan::None)
    }

    /// Whether the condition, if there is one, holds now.
    pub(super) fn check(&self, values: &[Bound<'_>]) -> Result<Outcome> {
        if !self.is_conditional() {
            return Ok(Outcome::Done);
        }
        let key = ordered_key(&self.table.def, &self.key, values)?;
        let rows = self.table.rows.borrow();
        let row = rows.get(key.as_slice());
        if self.holds(row, values)? {
            return Ok(Outcome::Applied);
        }
        Ok(Outcome::NotApplied(row.map(|r| r.cells.clone())))
    }

    fn holds(&self, row: Option<&Row>, values: &[Bound<'_>]) -> Result<bool> {
        match &self.condition {
            ConditionPlan::None => Ok(true),
            ConditionPlan::Exists(wanted) => Ok(row.is_some() == *wanted),
            ConditionPlan::Equal(expected) => {
                for (i, source) in expected {
                    let cell = row.and_then(|r| r.cells.get(*i)).and_then(Option::as_deref);
                    let equal = match source.value(values)? {
                        Value::Bytes(b) => cell == Some(&*b),
                        Value::Null => cell.is_none(),
                        Value::Unset => {
                            return Err(Failure::invalid("Invalid unset value in a condition"));
                        }
                    };
                    if !equal {
                        return Ok(false);
                    }
                }
                Ok(true)
            }
        }
    }

    /// Writes, whatever the condition says.
    pub(super) fn apply(&self, values: &[Bound<'_>]) -> Result<()> {
        for source in &self.using {
            source.value(values)?;
        }
        let table = &*self.table;
        let key = ordered_key(&table.def, &self.key, values)?;
        if self.kind == ModifyKind::Delete && self.changes.is_empty() {
            if self.key.len() < table.def.key_len {
                table.remove_prefix(&key);
            } else {
                table.remove(&key);
            }
            return Ok(());
        }
        let mut changes = Vec::with_capacity(self.changes.len());
        for (i, change) in &self.changes {
            match change {
                ChangePlan::Set(source) => match source.value(values)? {
                    Value::Bytes(b) => changes.push((*i, Some(b.into()))),
                    Value::Null => changes.push((*i, None)),
                    Value::Unset => {}
                },
                ChangePlan::Add(source, down) => match source.value(values)? {
                    Value::Unset => {}
                    value => changes.push((
                        *i,
                        Some(self.added(&key, *i, value.bytes("counter update")?, *down)),
                    )),
                },
            }
        }
        let deletes_of_nothing =
            self.kind == ModifyKind::Delete && !table.rows.borrow().contains_key(key.as_slice());
        if deletes_of_nothing {
            return Ok(());
        }
        let key_values = self.key.iter().filter_map(|s| match s.value(values) {
            Ok(Value::Bytes(b)) => Some(Box::from(&*b)),
            _ => None,
        });
        table.upsert(&key, key_values, changes, self.kind == ModifyKind::Insert)
    }

    /// A counter's new value; one that is not there counts from zero.
    fn added(&self, key: &[u8], column: usize, by: &[u8], down: bool) -> Box<[u8]> {
        let number = |b: &[u8]| b.first_chunk().map_or(0, |b| i64::from_be_bytes(*b));
        let rows = self.table.rows.borrow();
        let cell = rows
            .get(key)
            .and_then(|r| r.cells.get(column))
            .and_then(Option::as_deref);
        let (old, by) = (number(cell.unwrap_or_default()), number(by));
        let new = if down {
            old.wrapping_sub(by)
        } else {
            old.wrapping_add(by)
        };
        Box::new(new.to_be_bytes())
    }
}
