//! The open windows of all flows of a rule: the writes that wait to be merged, by partition.
//!
//! **Invariant**: in a window no row is written twice. The statements of a batch share one
//! timestamp, and of two values with one timestamp the database keeps the larger, not the later.
//!
//! **Invariant**: while one of a flow's tickets is here, no other flow has its number.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use cql::Consistency;
use cql_edit::{Completion, Ticket};

use super::{
    metrics::{Became, Cause},
    settings::{Checked, Table},
};

/// The most partitions of a flow that are open at the same time.
const MAX_WINDOWS: usize = 64;

/// After this many windows in a row with one write, the flow gains nothing by waiting.
const LONELY: u32 = 8;

/// The number of writes for which nothing waits after that.
const REST: u32 = 64;

/// A window that is open for this long belongs to a flow that has ended: the flow's task would have
/// ended the window.
pub(super) const FORGOTTEN: Duration = Duration::from_secs(10);

/// The open windows of a rule, by flow.
#[derive(Debug, Default)]
pub(super) struct Windows {
    flows: HashMap<usize, Flow>,
}

#[derive(Debug, Default)]
struct Flow {
    windows: Vec<Window>,
    alone: u32,
    resting: u32,
}

#[derive(Debug)]
struct Window {
    table: Arc<Table>,
    partition: Box<[u8]>,
    consistency: Consistency,
    /// The row of each write, like the tickets.
    rows: Vec<Box<[u8]>>,
    tickets: Vec<Ticket>,
    bytes: usize,
    opened: Instant,
}

/// A write that can be merged.
#[derive(Debug)]
pub(super) struct Write {
    pub(super) table: Arc<Table>,
    pub(super) partition: Box<[u8]>,
    pub(super) row: Box<[u8]>,
    pub(super) consistency: Consistency,
    pub(super) bytes: usize,
}

/// A window that has ended.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) cause: Cause,
    pub(super) writes: usize,
    pub(super) letter: Completion,
}

/// The outcome of adding a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Added {
    /// The write waits, as the first of a new window, which has this number.
    Opens(u64),
    /// The write waits with others, or goes on with them.
    Joins,
    /// The write does not wait.
    Not(Became),
}

impl Windows {
    /// Adds a write. Returns the window that ends before the write goes on, if one does, and the
    /// outcome. `park`: makes the write wait.
    pub(super) fn add(
        &mut self,
        flow: usize,
        write: Write,
        now: Instant,
        bounds: &Checked,
        park: impl FnOnce() -> Option<Ticket>,
    ) -> (Option<Ended>, Added) {
        let flow = self.flows.entry(flow).or_default();
        let same = flow.windows.iter().position(|window| window.is_of(&write));
        if let Some(at) = same
            && let Some(window) = flow.windows.get_mut(at)
            && window.takes(&write, bounds)
        {
            let Some(ticket) = park() else {
                return (flow.end(at, Cause::Flush), Added::Not(Became::NoRoom));
            };
            window.bytes += write.bytes;
            window.rows.push(write.row);
            window.tickets.push(ticket);
            let full = window.tickets.len() >= bounds.max_statements;
            let ended = full.then(|| flow.end(at, Cause::Full)).flatten();
            return (ended, Added::Joins);
        }
        let ended = same.and_then(|at| flow.end(at, Cause::Flush));
        if write.bytes > bounds.max_bytes {
            return (ended, Added::Not(Became::Size));
        }
        if flow.resting > 0 {
            flow.resting -= 1;
            return (ended, Added::Not(Became::Resting));
        }
        if flow.windows.len() >= MAX_WINDOWS {
            return (ended, Added::Not(Became::Windows));
        }
        let Some(ticket) = park() else {
            return (ended, Added::Not(Became::NoRoom));
        };
        let number = ticket.number();
        flow.windows.push(Window {
            table: write.table,
            partition: write.partition,
            consistency: write.consistency,
            rows: vec![write.row],
            tickets: vec![ticket],
            bytes: write.bytes,
            opened: now,
        });
        (ended, Added::Opens(number))
    }

    /// Ends the windows of a flow that another request must not overtake: those of this keyspace
    /// and table, or all.
    pub(super) fn flush(&mut self, flow: usize, of: Option<(&str, &str)>) -> Vec<Ended> {
        let Some(flow) = self.flows.get_mut(&flow) else {
            return Vec::new();
        };
        let mut ended = Vec::new();
        let mut at = 0;
        while let Some(window) = flow.windows.get(at) {
            let table = &window.table;
            match of.is_none_or(|of| of == (&table.keyspace, &table.name)) {
                true => ended.extend(flow.end(at, Cause::Flush)),
                false => at += 1,
            }
        }
        ended
    }

    /// Ends the window with this number, if it is still open.
    pub(super) fn due(&mut self, flow: usize, number: u64) -> Option<Ended> {
        let flow = self.flows.get_mut(&flow)?;
        let at = flow
            .windows
            .iter()
            .position(|w| w.number() == Some(number))?;
        flow.end(at, Cause::Time)
    }

    /// Makes its flow end the window with this number.
    pub(super) fn nudge(&self, flow: usize, number: u64) {
        let windows = self.flows.get(&flow).into_iter().flat_map(|f| &f.windows);
        let mut same = windows.filter(|window| window.number() == Some(number));
        if let Some(first) = same.next().and_then(|window| window.tickets.first()) {
            first.fall_due();
        }
    }

    /// Forgets the windows of flows that have ended. Writes that still wait are given up, and so go
    /// on.
    pub(super) fn sweep(&mut self, now: Instant) {
        self.flows.retain(|_, flow| {
            flow.windows
                .retain(|window| now.saturating_duration_since(window.opened) < FORGOTTEN);
            !flow.windows.is_empty()
        });
    }
}

impl Flow {
    /// Ends a window, and keeps the others in the order in which they were opened.
    fn end(&mut self, at: usize, cause: Cause) -> Option<Ended> {
        if at >= self.windows.len() {
            return None;
        }
        let mut tickets = self.windows.remove(at).tickets.into_iter();
        let first = tickets.next()?;
        let others: Vec<Ticket> = tickets.collect();
        let writes = others.len() + 1;
        if writes > 1 {
            self.alone = 0;
            let letter = first.leads(others);
            return Some(Ended {
                cause,
                writes,
                letter,
            });
        }
        self.alone += 1;
        if self.alone >= LONELY {
            self.alone = 0;
            self.resting = REST;
        }
        Some(Ended {
            cause: Cause::Alone,
            writes,
            letter: first.passes(),
        })
    }
}

impl Window {
    /// Returns the window's number, which is that of its first write.
    fn number(&self) -> Option<u64> {
        self.tickets.first().map(Ticket::number)
    }

    fn is_of(&self, write: &Write) -> bool {
        Arc::ptr_eq(&self.table, &write.table) && self.partition == write.partition
    }

    fn takes(&self, write: &Write, bounds: &Checked) -> bool {
        self.consistency == write.consistency
            && self.bytes + write.bytes <= bounds.max_bytes
            && !self.rows.contains(&write.row)
    }
}
