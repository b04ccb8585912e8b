//! SELECT: planning and carrying out.

use std::rc::Rc;

use super::ast::{Function, Operator, Output, Select};
use super::body::{Bound, Reader};
use super::failure::{Failure, Result};
use super::filter::Filter;
use super::plan_modify::ordered_key;
use super::request::Parameters;
use super::response::{ColumnSpec, Metadata, MetadataMode, RowsWriter};
use super::schema::{ColumnKind, TableDef};
use super::sources::{Markers, Source, Value, column};
use super::store::{Row, Table, scan};
use super::system_table::SystemTable;
use super::types::{CqlType, Native};
use super::wire::PROTOCOL_MAX_BODY;

/// A page ends once it is this long, however many rows the client asked for: what is waiting
/// to be written for one connection stays bounded.
const MAX_PAGE_BYTES: usize = 8 << 20;
/// Room for the metadata and paging state beside the rows of an unpaged result.
const MAX_RESULT_BYTES: usize = PROTOCOL_MAX_BODY - (1 << 20);

#[derive(Debug)]
pub(super) struct SelectPlan {
    pub(super) table: Rc<Table>,
    /// The rows are made up when asked for.
    pub(super) system: Option<SystemTable>,
    outputs: Vec<OutputPlan>,
    count: bool,
    distinct: bool,
    /// Equality on the key's first columns.
    pub(super) key: Vec<Source>,
    filters: Vec<Filter>,
    limit: Option<Source>,
    reverse: bool,
}

#[derive(Debug)]
enum OutputPlan {
    Column(usize),
    Function(Function, CqlType),
}

/// Plans a SELECT; with the columns of its result.
pub(super) fn plan(
    select: &Select,
    table: Rc<Table>,
    system: Option<SystemTable>,
    markers: &mut Markers,
) -> Result<(SelectPlan, Metadata)> {
    let def = &table.def;
    let (outputs, specs, count) = plan_outputs(select, def)?;
    let (key, filters) = plan_relations(select, def, markers, system.is_some())?;
    let reverse = plan_order(select, def, key.len())?;
    let int = CqlType::Native(Native::Int);
    let limit = select
        .limit
        .as_ref()
        .map(|term| markers.source(term, &int, "[limit]"))
        .transpose()?;
    let metadata = Metadata::of_table(def, &specs);
    let plan = SelectPlan {
        system,
        outputs,
        count,
        distinct: select.distinct,
        key,
        filters,
        limit,
        reverse,
        table: Rc::clone(&table),
    };
    Ok((plan, metadata))
}

fn plan_outputs(
    select: &Select,
    def: &TableDef,
) -> Result<(Vec<OutputPlan>, Vec<ColumnSpec>, bool)> {
    let mut outputs = Vec::new();
    let mut specs = Vec::new();
    if select.outputs.is_empty() {
        for (i, c) in def.columns.iter().enumerate() {
            outputs.push(OutputPlan::Column(i));
            specs.push(ColumnSpec {
                name: c.name.clone(),
                cql_type: c.cql_type.clone(),
            });
        }
        return Ok((outputs, specs, false));
    }
    let mut count = false;
    for (output, alias) in &select.outputs {
        let (plan, name, cql_type) = match output {
            Output::Column(name) => {
                let (i, spec) = column(def, name)?;
                let not_of_key = !matches!(spec.kind, ColumnKind::Partition);
                if select.distinct && not_of_key {
                    return Err(Failure::invalid(format!(
                        "SELECT DISTINCT queries must only request partition key columns (not {name})"
                    )));
                }
                (OutputPlan::Column(i), name.clone(), spec.cql_type.clone())
            }
            Output::Count => {
                count = true;
                specs.push(ColumnSpec {
                    name: alias.clone().unwrap_or_else(|| "count".into()),
                    cql_type: CqlType::Native(Native::Bigint),
                });
                continue;
            }
            Output::Function(function) => {
                let (name, native) = match function {
                    Function::Now => ("system.now()", Native::Timeuuid),
                    Function::Uuid => ("system.uuid()", Native::Uuid),
                    Function::Timestamp => ("system.totimestamp(system.now())", Native::Timestamp),
                };
                let cql_type = CqlType::Native(native);
                (
                    OutputPlan::Function(*function, cql_type.clone()),
                    name.to_owned(),
                    cql_type,
                )
            }
        };
        outputs.push(plan);
        specs.push(ColumnSpec {
            name: alias.clone().unwrap_or(name),
            cql_type,
        });
    }
    if count && specs.len() > 1 {
        return Err(Failure::invalid("count(*) stands alone on this node"));
    }
    Ok((outputs, specs, count))
}

/// Splits WHERE into equality on the key's first columns and filters for the rest.
fn plan_relations(
    select: &Select,
    def: &TableDef,
    markers: &mut Markers,
    filtering_is_cheap: bool,
) -> Result<(Vec<Source>, Vec<Filter>)> {
    let mut key: Vec<Option<Source>> = vec![None; def.key_len];
    let mut filters = Vec::new();
    for relation in &select.relations {
        let (i, spec) = column(def, &relation.column)?;
        let list;
        let (cql_type, name) = if relation.operator == Operator::InMarker {
            list = CqlType::List(Box::new(spec.cql_type.clone()));
            (&list, format!("in({})", spec.name))
        } else {
            (&spec.cql_type, spec.name.clone())
        };
        let sources: Vec<Source> = relation
            .terms
            .iter()
            .map(|t| markers.source(t, cql_type, &name))
            .collect::<Result<_>>()?;
        match (relation.operator, key.get_mut(i), sources.as_slice()) {
            (Operator::Equal, Some(slot @ None), [source]) => *slot = Some(source.clone()),
            _ => filters.push(Filter {
                column: i,
                operator: relation.operator,
                sources,
            }),
        }
    }
    if !select.allow_filtering && !filtering_is_cheap && needs_filtering(select, def) {
        return Err(Failure::invalid(
            "Cannot execute this query as it might involve data filtering and thus may have unpredictable \
             performance. If you want to execute this query despite the performance unpredictability, use ALLOW FILTERING",
        ));
    }
    let prefix = key.iter().take_while(|s| s.is_some()).count();
    let mut sources = Vec::new();
    for (i, source) in key.into_iter().enumerate() {
        match source {
            Some(source) if i < prefix => sources.push(source),
            Some(source) => filters.push(Filter {
                column: i,
                operator: Operator::Equal,
                sources: vec![source],
            }),
            None => {}
        }
    }
    Ok((sources, filters))
}

/// Cassandra's rule: WHERE must fix the key's first columns, at least the partition's, by = or
/// IN; the next clustering column may have a range. Anything else reads more than it returns.
fn needs_filtering(select: &Select, def: &TableDef) -> bool {
    let fixed = |name: &str| {
        let by_value = |o| matches!(o, Operator::Equal | Operator::In | Operator::InMarker);
        select
            .relations
            .iter()
            .any(|r| r.column == name && by_value(r.operator))
    };
    let fixed_len = def
        .key_columns()
        .iter()
        .take_while(|c| fixed(&c.name))
        .count();
    let outside = |name: &str| {
        def.column(name)
            .is_none_or(|(i, _)| i > fixed_len || i >= def.key_len)
    };
    !select.relations.is_empty()
        && (fixed_len < def.partition_len || select.relations.iter().any(|r| outside(&r.column)))
}

/// Whether ORDER BY asks for the reverse of the table's own order.
fn plan_order(select: &Select, def: &TableDef, key_len: usize) -> Result<bool> {
    let Some((name, wants_descending)) = select.order_by.first() else {
        return Ok(false);
    };
    let (_, spec) = column(def, name)?;
    match spec.kind {
        ColumnKind::Clustering { descending } if key_len >= def.partition_len => {
            Ok(descending != *wants_descending)
        }
        ColumnKind::Clustering { .. } => Err(Failure::invalid(
            "ORDER BY is only supported when the partition key is restricted by an EQ or an IN.",
        )),
        ColumnKind::Partition | ColumnKind::Regular => Err(Failure::invalid(format!(
            "Order by is currently only supported on the clustered columns of the PRIMARY KEY, got {name}"
        ))),
    }
}

/// End of a page: rows still allowed by LIMIT, and the last row's key.
#[derive(Debug, Clone, Copy)]
struct PageState<'a> {
    remaining: usize,
    last: &'a [u8],
}

impl<'a> PageState<'a> {
    fn read(bytes: &'a [u8]) -> Result<Self> {
        let broken = |_| Failure::protocol("Invalid value for the paging state");
        let mut reader = Reader::new(bytes);
        let remaining = reader.i64().map_err(broken)?;
        let last = reader.bytes().map_err(broken)?.unwrap_or_default();
        Ok(Self {
            remaining: usize::try_from(remaining).unwrap_or(usize::MAX),
            last,
        })
    }

    fn write(self) -> Vec<u8> {
        let mut out = i64::try_from(self.remaining)
            .unwrap_or(i64::MAX)
            .to_be_bytes()
            .to_vec();
        super::body::put_bytes(&mut out, Some(self.last));
        out
    }
}

impl SelectPlan {
    /// Writes the Rows result. `table` is the plan's, or what stands for a system table.
    pub(super) fn run(
        &self,
        table: &Table,
        parameters: &Parameters<'_>,
        metadata: &Metadata,
        mode: MetadataMode,
        out: &mut Vec<u8>,
    ) -> Result<()> {
        let values = &parameters.values;
        let key = ordered_key(&table.def, &self.key, values)?;
        let rows = table.rows.borrow();
        let is_point =
            self.key.len() == table.def.key_len && self.filters.is_empty() && !self.count;
        if is_point && self.limit.is_none() && parameters.paging_state.is_none() {
            let mut writer = RowsWriter::begin(out, metadata, mode);
            if let Some(row) = rows.get(key.as_slice()) {
                self.put_row(row, &mut writer, out)?;
            }
            writer.finish(out, None);
            return Ok(());
        }
        let resume = parameters.paging_state.map(PageState::read).transpose()?;
        let limit = match (&resume, &self.limit) {
            (Some(state), _) => state.remaining,
            (None, Some(source)) => limit_of(source, values)?,
            (None, None) => usize::MAX,
        };
        let filters = self
            .filters
            .iter()
            .map(|f| f.bind(values))
            .collect::<Result<Vec<_>>>()?;
        let last = resume.map(|state| state.last);
        let mut previous = last.and_then(|key| rows.get(key));
        let matching = scan(&rows, &key, last, self.reverse).filter(|(_, row)| {
            let first =
                !self.distinct || !previous.is_some_and(|p| same_partition(&table.def, p, row));
            previous = Some(row);
            first && filters.iter().all(|f| f.matches(row))
        });
        let mut writer = RowsWriter::begin(out, metadata, mode);
        if self.count {
            let count = i64::try_from(matching.take(limit).count()).unwrap_or(i64::MAX);
            writer.row(out, std::iter::once(Some(&count.to_be_bytes()[..])));
            writer.finish(out, None);
            return Ok(());
        }
        self.put_page(matching, limit, parameters.page_size, writer, out)
    }

    fn put_page<'a>(
        &self,
        rows: impl Iterator<Item = (&'a Box<[u8]>, &'a Row)>,
        limit: usize,
        page_size: Option<usize>,
        mut writer: RowsWriter,
        out: &mut Vec<u8>,
    ) -> Result<()> {
        let start = out.len();
        let mut rows = rows.take(limit).peekable();
        while let Some((key, row)) = rows.next() {
            self.put_row(row, &mut writer, out)?;
            let bytes = out.len() - start;
            if bytes > MAX_RESULT_BYTES {
                return Err(Failure::server(
                    "the result does not fit into a frame: ask for pages",
                ));
            }
            let full = page_size.is_some_and(|n| writer.rows() >= n || bytes >= MAX_PAGE_BYTES);
            if full && rows.peek().is_some() {
                let state = PageState {
                    remaining: limit - writer.rows(),
                    last: key,
                };
                writer.finish(out, Some(&state.write()));
                return Ok(());
            }
        }
        writer.finish(out, None);
        Ok(())
    }

    fn put_row(&self, row: &Row, writer: &mut RowsWriter, out: &mut Vec<u8>) -> Result<()> {
        let mut made = Vec::new();
        for output in &self.outputs {
            if let OutputPlan::Function(function, cql_type) = output {
                let mut bytes = Vec::new();
                super::literal::encode(
                    &super::ast::Term::Function(*function),
                    cql_type,
                    &mut bytes,
                )?;
                made.push(bytes);
            }
        }
        let mut made = made.iter();
        let cells = self.outputs.iter().map(|output| match output {
            OutputPlan::Column(i) => row.cells.get(*i).and_then(Option::as_deref),
            OutputPlan::Function(..) => made.next().map(Vec::as_slice),
        });
        writer.row(out, cells);
        Ok(())
    }
}

fn limit_of(source: &Source, values: &[Bound<'_>]) -> Result<usize> {
    let value = match source.value(values)? {
        Value::Unset => return Ok(usize::MAX),
        value => value
            .bytes("LIMIT")?
            .first_chunk()
            .map_or(0, |b| i32::from_be_bytes(*b)),
    };
    usize::try_from(value)
        .ok()
        .filter(|n| *n > 0)
        .ok_or_else(|| Failure::invalid("LIMIT must be strictly positive"))
}

fn same_partition(def: &TableDef, a: &Row, b: &Row) -> bool {
    a.cells
        .iter()
        .zip(&b.cells)
        .take(def.partition_len)
        .all(|(a, b)| a == b)
}
