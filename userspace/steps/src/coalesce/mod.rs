//! `coalesce` (write batching): writes of one flow to one partition within a moment go on as one
//! batch.
//!
//! - `settings`: the settings in the configuration, and their check.
//! - `windows`: the open windows. `clock`: the thread that says when a window has been open for
//!   long enough.
//! - `metrics`: the counters.
//!
//! `docs/decisions/0020-coalesce.md` says which writes are merged, and why no others are.

mod clock;
mod metrics;
mod settings;
mod windows;

use std::{
    sync::{Arc, OnceLock},
    time::Instant,
};

use clock::Clock;
use cql::{Opcode, RowWrite, StatementKind};
use cql_edit::{
    Caller, Completion, NotMerged, Outcome, Request, Response, Statement, Transform, Unpaired,
    Value,
    transforms::{Prepared, Preparing},
};
pub use metrics::CoalesceMetrics;
use metrics::{Became, Counters};
use policy::RuleName;
pub use settings::CoalesceSettings;
use settings::{Checked, Table};
use windows::{Added, Ended, Write};

use super::{
    effect::Effect,
    register::{no_thread, once},
};
use crate::Services;

/// The step's name in the configuration.
const NAME: &str = "coalesce";

/// The `coalesce` step of one rule.
#[derive(Debug)]
struct Coalesce {
    settings: Checked,
    statements: Prepared<Arc<Known>>,
    open: OnceLock<Open>,
}

#[derive(Debug)]
struct Open {
    counters: Counters,
    clock: Clock,
}

/// A statement that was prepared.
#[derive(Debug)]
enum Known {
    /// A write that can be merged: the markers of its row's key, in the table's order.
    Write(Arc<Table>, Vec<usize>),
    /// Something else, about this table if that is known.
    Other(Option<(String, String)>),
    /// A statement that changes the keyspace of its connection.
    Use,
}

impl CoalesceSettings {
    pub(super) fn build(self) -> Result<impl Effect, String> {
        Ok(Coalesce {
            settings: self.checked()?,
            statements: Prepared::default(),
            open: OnceLock::new(),
        })
    }
}

impl Effect for Coalesce {
    fn open(&self, rule: &RuleName, services: &Services) -> Result<(), String> {
        once(&self.open, || {
            let clock = Clock::start(self.settings.window).map_err(no_thread)?;
            let counters = services.coalesce.of(rule.as_str());
            Ok(Open { counters, clock })
        })
    }
}

impl Transform for Coalesce {
    fn name(&self) -> &'static str {
        NAME
    }

    fn wants(&self, opcode: Opcode) -> bool {
        opcode.has_statements()
    }

    /// The request goes on by itself, and overtakes nothing that waits.
    fn unpaired(&self) -> Unpaired {
        Unpaired::Judged
    }

    fn response_unpaired(&self, number: u64) -> bool {
        self.statements.came_back(number, None);
        false
    }

    fn request(&self, request: &mut Request<'_>, caller: &Caller, _: u64) -> Outcome {
        let Some(open) = self.open.get() else {
            return Outcome::Pass;
        };
        if request.is_unpaired() {
            open.flush(request, None);
            return Outcome::Pass;
        }
        let first = request.statements().next();
        let (text, id) = match (request.opcode(), first) {
            (Opcode::Prepare, Some(Statement::Text(text))) => (Some(text), None),
            (Opcode::Execute, Some(Statement::Prepared(id))) => (None, Some(id)),
            _ => (None, None),
        };
        if let Some(text) = text {
            let keyspace = request.sure_keyspace(caller);
            let known = Arc::new(self.known(text, keyspace));
            let preparing = Preparing::of(request, keyspace, caller);
            request.await_response(self.statements.goes_out(preparing, known));
            return Outcome::Pass;
        }
        let known = id.and_then(|id| self.statements.known(id, caller).ok());
        match known.as_deref() {
            Some(Known::Write(table, markers)) => self.writes(open, request, table, markers),
            Some(Known::Other(Some((keyspace, table)))) => {
                if self.is_chosen(keyspace, table) {
                    open.flush(request, Some((keyspace, table)));
                }
            }
            Some(Known::Use) => {
                open.flush(request, None);
                request.may_be_use();
            }
            Some(Known::Other(None)) | None => open.flush(request, None),
        }
        Outcome::Pass
    }

    fn response(&self, response: &mut Response<'_>, _: &Caller, number: u64) -> bool {
        self.statements.came_back(number, response.prepared_id());
        false
    }

    fn due(&self, flow: usize, number: u64) -> Vec<Completion> {
        let Some(open) = self.open.get() else {
            return Vec::new();
        };
        let ended = open.clock.windows().due(flow, number);
        ended.into_iter().map(|ended| open.counted(ended)).collect()
    }
}

impl Coalesce {
    fn is_chosen(&self, keyspace: &str, table: &str) -> bool {
        let mut tables = self.settings.tables.iter();
        tables.any(|of| of.keyspace == keyspace && of.name == table)
    }

    fn known(&self, text: &[u8], keyspace: Option<&str>) -> Known {
        if let Some(write) = RowWrite::of(text)
            && let Some(keyspace) = write.keyspace.as_deref().or(keyspace)
        {
            let mut tables = self.settings.tables.iter();
            let table = tables.find(|of| of.keyspace == keyspace && of.name == write.table);
            if let Some(table) = table
                && let Some(markers) = write.row(&table.key, &table.columns)
            {
                return Known::Write(table.clone(), markers);
            }
        }
        let statement = cql::Statement::of(text);
        if statement.kind == StatementKind::Use {
            return Known::Use;
        }
        let is_of_one_table = matches!(
            statement.kind,
            StatementKind::Select
                | StatementKind::Insert
                | StatementKind::Update
                | StatementKind::Delete
        );
        let keyspace = statement.keyspace.as_deref().or(keyspace);
        let names = keyspace.zip(statement.table.as_deref());
        let names = names.filter(|_| is_of_one_table);
        Known::Other(names.map(|(keyspace, table)| (keyspace.to_owned(), table.to_owned())))
    }

    /// Makes the write wait, or counts why it does not. Requests that it must not overtake go on
    /// first.
    fn writes(
        &self,
        open: &Open,
        request: &mut Request<'_>,
        table: &Arc<Table>,
        markers: &[usize],
    ) {
        let write = write(request, table, markers);
        let (write, flow) = match (write, request.flow()) {
            (Ok(write), Some(flow)) => (write, flow),
            (Err(why), _) => {
                open.counters.became(why);
                return open.flush(request, Some((&table.keyspace, &table.name)));
            }
            // The connection's STARTUP has not been answered yet.
            (Ok(_), None) => return open.counters.became(Became::NoRoom),
        };
        let now = Instant::now();
        let mut windows = open.clock.windows();
        let (ended, added) = windows.add(flow, write, now, &self.settings, || request.suspend());
        drop(windows);
        if let Some(ended) = ended {
            request.first(open.counted(ended));
        }
        match added {
            Added::Opens(number) => open.clock.ends_at(now + self.settings.window, flow, number),
            Added::Joins => {}
            Added::Not(why) => open.counters.became(why),
        }
    }
}

impl Open {
    fn flush(&self, request: &mut Request<'_>, of: Option<(&str, &str)>) {
        let Some(flow) = request.flow() else { return };
        let ended = self.clock.windows().flush(flow, of);
        for ended in ended {
            request.first(self.counted(ended));
        }
    }

    fn counted(&self, ended: Ended) -> Completion {
        self.counters.ended(ended.cause, ended.writes);
        ended.letter
    }
}

/// Reads the write of an EXECUTE, or the reason why it cannot be merged.
fn write(request: &Request<'_>, table: &Arc<Table>, markers: &[usize]) -> Result<Write, Became> {
    let consistency = request.mergeable().map_err(|why| match why {
        NotMerged::Timestamp => Became::Timestamp,
        NotMerged::Parameters => Became::Parameters,
    })?;
    let bound = request.bound(0);
    let value = |marker: &usize| match bound.get(*marker)?.value {
        Value::Is(value) => Some(value),
        Value::Null | Value::Unset => None,
    };
    let (mut partition, mut row) = (Vec::new(), Vec::new());
    for (number, marker) in markers.iter().enumerate() {
        let value = value(marker).ok_or(Became::Shape)?;
        let key = match number < table.of_partition {
            true => &mut partition,
            false => &mut row,
        };
        key.extend(value.len().to_be_bytes());
        key.extend_from_slice(value);
    }
    Ok(Write {
        table: table.clone(),
        partition: partition.into(),
        row: row.into(),
        consistency,
        bytes: request.body_bytes(),
    })
}
