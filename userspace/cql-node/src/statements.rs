//! Statements: from text to plans that are kept, and from plans to results.

use std::collections::HashMap;
use std::rc::Rc;

use super::ast::{Modify, Statement};
use super::body::Bound;
use super::database::Database;
use super::failure::{Failure, Result};
use super::plan::{Plan, Prepared, assemble};
use super::plan_modify::{self, ModifyPlan, Outcome};
use super::plan_select::{self, SelectPlan};
use super::request::{BatchItem, BatchStatement, Parameters};
use super::response::{Metadata, MetadataMode, put_applied, put_set_keyspace, put_void};
use super::schema::digest;
use super::sources::Markers;
use super::{describe, parse};

/// Statements kept for EXECUTE. When there are more, all are forgotten: drivers prepare again
/// when told UNPREPARED.
const MAX_PREPARED: usize = 16_384;
/// Texts of QUERY whose plans are kept, on the same terms.
const MAX_QUERIED: usize = 1024;
/// A longer QUERY is planned anew each time: it is mostly constants.
const MAX_QUERIED_TEXT: usize = 4096;
/// Plans keep their constants, so the text of PREPARE is bounded: Cassandra's own limit is that of a frame.
const MAX_PREPARED_TEXT: usize = 16 << 20;
/// Length from which a prepared text counts as long, and how many of those are kept, on the same
/// terms.
const LONG_TEXT: usize = 64 << 10;
const MAX_LONG: usize = 16;

pub(super) type StatementId = [u8; 16];

/// Plans by the digest of keyspace and text.
#[derive(Debug, Default)]
pub(super) struct Statements {
    prepared: HashMap<StatementId, Rc<Prepared>>,
    queried: HashMap<StatementId, Rc<Prepared>>,
    /// How many of the former may be long.
    long: usize,
}

impl Statements {
    /// The statement that EXECUTE names.
    pub(super) fn get(&self, id: &[u8]) -> Result<Rc<Prepared>> {
        let found = StatementId::try_from(id)
            .ok()
            .and_then(|id| self.prepared.get(&id));
        found.map(Rc::clone).ok_or_else(|| Failure::unprepared(id))
    }

    /// Drops the plans that stand on a table, or on any table of a keyspace.
    pub(super) fn forget(&mut self, keyspace: &str, table: Option<&str>) {
        self.prepared
            .retain(|_, p| !p.plan.depends_on(keyspace, table));
        self.queried
            .retain(|_, p| !p.plan.depends_on(keyspace, table));
    }
}

impl Database {
    /// PREPARE.
    pub(super) fn prepare(&mut self, text: &str, keyspace: Option<&str>) -> Result<Rc<Prepared>> {
        if text.len() > MAX_PREPARED_TEXT {
            return Err(Failure::invalid(format!(
                "a prepared statement may have {MAX_PREPARED_TEXT} bytes on this node"
            )));
        }
        let id = statement_id(text, keyspace);
        if let Some(found) = self.statements.prepared.get(&id) {
            return Ok(Rc::clone(found));
        }
        let prepared = Rc::new(self.plan(id, text, keyspace)?);
        if text.len() > LONG_TEXT {
            if self.statements.long >= MAX_LONG {
                self.statements.prepared.clear();
                self.statements.long = 0;
            }
            self.statements.long += 1;
        }
        keep(&mut self.statements.prepared, MAX_PREPARED, &prepared);
        Ok(prepared)
    }

    /// The plan of a QUERY's text.
    pub(super) fn query_plan(
        &mut self,
        text: &str,
        keyspace: Option<&str>,
    ) -> Result<Rc<Prepared>> {
        let keeps = text.len() <= MAX_QUERIED_TEXT;
        let id = if keeps {
            statement_id(text, keyspace)
        } else {
            StatementId::default()
        };
        if let Some(found) = self.statements.queried.get(&id) {
            return Ok(Rc::clone(found));
        }
        let planned = Rc::new(self.plan(id, text, keyspace)?);
        if keeps {
            keep(&mut self.statements.queried, MAX_QUERIED, &planned);
        }
        Ok(planned)
    }

    fn plan(&self, id: StatementId, text: &str, keyspace: Option<&str>) -> Result<Prepared> {
        let mut markers = Markers::default();
        match parse::parse(text)? {
            Statement::Select(select) => {
                let (table, system) = self.table(&select.table, keyspace)?;
                let (plan, metadata) =
                    plan_select::plan(&select, Rc::clone(&table), system, &mut markers)?;
                let key = plan.key.clone();
                Ok(assemble(
                    id,
                    Plan::Select(plan),
                    markers,
                    &key,
                    Some(&table.def),
                    metadata,
                ))
            }
            Statement::Modify(modify) => {
                let plan = self.plan_modify(&modify, keyspace, &mut markers)?;
                let (table, key) = (Rc::clone(&plan.table), plan.key.clone());
                Ok(assemble(
                    id,
                    Plan::Modify(plan),
                    markers,
                    &key,
                    Some(&table.def),
                    Metadata::default(),
                ))
            }
            Statement::Batch(parts) => {
                let parts: Vec<ModifyPlan> = parts
                    .iter()
                    .map(|m| self.plan_modify(m, keyspace, &mut markers))
                    .collect::<Result<_>>()?;
                let first = parts.first().map(|p| Rc::clone(&p.table));
                let def = first.as_ref().map(|t| &t.def);
                Ok(assemble(
                    id,
                    Plan::Batch(parts),
                    markers,
                    &[],
                    def,
                    Metadata::default(),
                ))
            }
            Statement::Use(name) => Ok(assemble(
                id,
                Plan::Use(name),
                markers,
                &[],
                None,
                Metadata::default(),
            )),
            Statement::Describe(what) => Ok(assemble(
                id,
                Plan::Describe(what),
                markers,
                &[],
                None,
                Metadata::default(),
            )),
            Statement::Schema(statement) => Ok(assemble(
                id,
                Plan::Schema(statement),
                markers,
                &[],
                None,
                Metadata::default(),
            )),
        }
    }

    fn plan_modify(
        &self,
        modify: &Modify,
        keyspace: Option<&str>,
        markers: &mut Markers,
    ) -> Result<ModifyPlan> {
        let (table, system) = self.table(&modify.table, keyspace)?;
        if system.is_some() {
            return Err(Failure::unauthorized(format!(
                "{} keyspace is not user-modifiable.",
                table.def.keyspace
            )));
        }
        plan_modify::plan(modify, table, markers)
    }

    /// Executes a plan and writes the RESULT's body. `keyspace` is the session's, and USE
    /// sets it.
    pub(super) fn execute(
        &mut self,
        prepared: &Prepared,
        parameters: &mut Parameters<'_>,
        mode: MetadataMode,
        keyspace: &mut Option<String>,
        out: &mut Vec<u8>,
    ) -> Result<()> {
        arrange_values(prepared, parameters)?;
        match &prepared.plan {
            Plan::Select(select) => self.select(select, prepared, parameters, mode, out),
            Plan::Modify(modify) => run_batch(&[(modify, &parameters.values)], out),
            Plan::Batch(parts) => {
                let parts: Vec<_> = parts.iter().map(|m| (m, &parameters.values)).collect();
                run_batch(&parts, out)
            }
            Plan::Use(name) => {
                if !self.has_keyspace(name) {
                    return Err(Failure::invalid(format!(
                        "Keyspace '{name}' does not exist"
                    )));
                }
                *keyspace = Some(name.clone());
                put_set_keyspace(out, name);
                Ok(())
            }
            Plan::Describe(what) => describe::describe(self, what, keyspace.as_deref(), out),
            Plan::Schema(statement) => {
                match self.change_schema(statement, keyspace.as_deref())? {
                    Some(change) => change.put_result(out),
                    None => put_void(out),
                }
                Ok(())
            }
        }
    }

    fn select(
        &self,
        select: &SelectPlan,
        prepared: &Prepared,
        parameters: &Parameters<'_>,
        mode: MetadataMode,
        out: &mut Vec<u8>,
    ) -> Result<()> {
        match select.system {
            None => select.run(&select.table, parameters, &prepared.result, mode, out),
            Some(kind) => {
                let table = kind.table(self, &select.table.def)?;
                select.run(&table, parameters, &prepared.result, mode, out)
            }
        }
    }

    /// BATCH.
    pub(super) fn batch(
        &mut self,
        items: &[BatchItem<'_>],
        keyspace: Option<&str>,
        out: &mut Vec<u8>,
    ) -> Result<()> {
        let mut plans = Vec::with_capacity(items.len());
        for item in items {
            let plan = match item.statement {
                BatchStatement::Text(text) => self.query_plan(text, keyspace)?,
                BatchStatement::Prepared(id) => self.statements.get(id)?,
            };
            check_count(&plan, item.values.len())?;
            plans.push((plan, &item.values));
        }
        let mut parts = Vec::with_capacity(plans.len());
        for (plan, values) in &plans {
            match &plan.plan {
                Plan::Modify(modify) => parts.push((modify, *values)),
                _ => {
                    return Err(Failure::invalid(
                        "Invalid statement in batch: only UPDATE, INSERT and DELETE statements are allowed.",
                    ));
                }
            }
        }
        run_batch(&parts, out)
    }
}

fn statement_id(text: &str, keyspace: Option<&str>) -> StatementId {
    digest(&[
        keyspace.unwrap_or_default().as_bytes(),
        &[0],
        text.as_bytes(),
    ])
}

fn keep(map: &mut HashMap<StatementId, Rc<Prepared>>, max: usize, prepared: &Rc<Prepared>) {
    if map.len() >= max {
        map.clear();
    }
    map.insert(prepared.id, Rc::clone(prepared));
}

/// Applies modifications in order, all of them or, when a condition does not hold, none.
fn run_batch(parts: &[(&ModifyPlan, &Vec<Bound<'_>>)], out: &mut Vec<u8>) -> Result<()> {
    let conditional = parts
        .iter()
        .find(|(m, _)| m.is_conditional())
        .map(|(m, _)| m);
    for (modify, values) in parts {
        if let Outcome::NotApplied(existing) = modify.check(values)? {
            put_applied(out, &modify.table.def, existing.as_deref(), false);
            return Ok(());
        }
    }
    for (modify, values) in parts {
        modify.apply(values)?;
    }
    match conditional {
        Some(modify) => put_applied(out, &modify.table.def, None, true),
        None => put_void(out),
    }
    Ok(())
}

/// Puts values that came by name in the order of the markers, and checks how many there are.
fn arrange_values<'a>(prepared: &Prepared, parameters: &mut Parameters<'a>) -> Result<()> {
    if !parameters.names.is_empty() {
        let by_name: HashMap<&str, Bound<'a>> = parameters
            .names
            .iter()
            .copied()
            .zip(parameters.values.iter().copied())
            .collect();
        let value_of = |name: &String| {
            let missing = || Failure::invalid(format!("no value for the bind variable :{name}"));
            by_name.get(name.as_str()).copied().ok_or_else(missing)
        };
        parameters.values = prepared
            .marker_names
            .iter()
            .map(value_of)
            .collect::<Result<_>>()?;
    }
    check_count(prepared, parameters.values.len())
}

fn check_count(prepared: &Prepared, given: usize) -> Result<()> {
    let wanted = prepared.markers.count;
    if wanted == given {
        return Ok(());
    }
    Err(Failure::invalid(format!(
        "there were {wanted} markers(?) in CQL but {given} bound variables"
    )))
}
