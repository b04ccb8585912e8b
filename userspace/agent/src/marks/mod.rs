//! Marks: an operator's commands on flows while the agent runs, which come before every rule of the
//! file.
//!
//! - `selector.rs`: the flows that a mark matches.
//! - `apply.rs`: the application to running flows.
//! - `server.rs`: requests to set a mark, to end one, to list them, by the control socket ([`crate::socket_file`]).
//!
//! Later connections meet a mark as a rule (`mark-N`) before those of the file. When it ends, they
//! meet the file's rules again; flows that it has changed stay as they are.

mod apply;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzed;
mod lasting;
mod selector;
mod server;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, SystemTime},
};

pub use lasting::{LONGEST, lasting};
use policy::{Action, Policy, RuleName};
pub use selector::{FlowNumber, Target};
use serde::Serialize;
pub use server::{Asked, Desk, MarkReader, Set, Still, serve};
use tokio::time::Instant;

use crate::upgrade::Message;

/// Marks at the same time. Each is a rule that every `connect()` is held against, and a line that
/// somebody has to remember.
pub const MAX_MARKS: usize = 64;

/// A request for a mark.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// The flows that it is for.
    pub target: Target,
    /// The action that they are to get.
    pub action: Action,
    /// The time for which the mark holds. None: until it is taken back.
    pub lasts: Option<Duration>,
    /// Whether flows that cannot get that action are to be closed.
    pub reset: bool,
}

/// A mark that holds.
#[derive(Debug)]
pub struct Mark {
    /// The mark's number within this agent's life.
    pub id: u64,
    /// The mark's rule.
    pub rule: RuleName,
    /// The flows that it is for.
    pub target: Target,
    /// The action that they are to get.
    pub action: Action,
    since: SystemTime,
    lasts: Option<Duration>,
    until: Option<Instant>,
    changed: AtomicU64,
}

/// A mark as `marks` shows it.
#[derive(Debug, Serialize)]
pub struct MarkView {
    id: u64,
    selector: String,
    action: &'static str,
    /// Connections that are made while it lasts meet it, too.
    later: bool,
    since_unix_ms: u64,
    until_unix_ms: Option<u64>,
    flows_changed: u64,
}

impl Mark {
    /// Counts flows that it has changed.
    pub fn count(&self, changed: u64) {
        self.changed.fetch_add(changed, Relaxed);
    }

    /// Returns the view in `marks`.
    pub fn view(&self) -> MarkView {
        let unix_ms = |at: SystemTime| {
            let since_epoch = at.duration_since(SystemTime::UNIX_EPOCH);
            since_epoch.unwrap_or_default().as_millis() as u64
        };
        MarkView {
            id: self.id,
            selector: self.target.to_string(),
            action: self.action.as_str(),
            later: self.target.holds_later(),
            since_unix_ms: unix_ms(self.since),
            until_unix_ms: self.lasts.map(|lasts| unix_ms(self.since + lasts)),
            flows_changed: self.changed.load(Relaxed),
        }
    }
}

impl MarkView {
    /// Returns what an agent is told that takes over. None: it is for running flows only.
    pub fn told(&self, now: SystemTime) -> Option<Message> {
        let now = now.duration_since(SystemTime::UNIX_EPOCH);
        let now = now.unwrap_or_default().as_millis() as u64;
        let left = |until: u64| until.saturating_sub(now).div_ceil(1000).max(1);
        self.later.then(|| Message::Mark {
            target: self.selector.clone(),
            action: self.action.into(),
            lasts_s: self.until_unix_ms.map(left),
        })
    }
}

/// The marks that hold.
#[derive(Debug, Default)]
pub struct Marks {
    next: u64,
    /// The marks, the newest last.
    marks: Vec<Arc<Mark>>,
}

impl Marks {
    /// Adds a mark, which is not in force yet.
    ///
    /// # Errors
    /// There are as many marks as there may be.
    pub fn add(&mut self, wanted: &Wanted) -> Result<Arc<Mark>, String> {
        if self.marks.len() >= MAX_MARKS {
            return Err(format!(
                "there are {MAX_MARKS} marks, and may not be more: `underpass unmark N` takes one \
                 back"
            ));
        }
        self.next += 1;
        let rule = RuleName::new(&format!("mark-{}", self.next));
        let mark = Arc::new(Mark {
            id: self.next,
            target: wanted.target.clone().named(&rule),
            rule,
            action: wanted.action,
            since: SystemTime::now(),
            lasts: wanted.lasts,
            until: wanted.lasts.map(|lasts| Instant::now() + lasts),
            changed: AtomicU64::new(0),
        });
        self.marks.push(mark.clone());
        Ok(mark)
    }

    /// Takes a mark back, and returns it.
    pub fn remove(&mut self, id: u64) -> Option<Arc<Mark>> {
        let at = self.marks.iter().position(|mark| mark.id == id)?;
        Some(self.marks.remove(at))
    }

    /// Takes back those whose time is over, and those of single flows for which `is_gone` holds.
    pub fn end(&mut self, now: Instant, is_gone: impl Fn(FlowNumber) -> bool) -> Vec<Arc<Mark>> {
        let is_over = |mark: &Arc<Mark>| {
            mark.until.is_some_and(|until| until <= now) || mark.target.flow().is_some_and(&is_gone)
        };
        self.marks.extract_if(.., |mark| is_over(mark)).collect()
    }

    /// Returns the time when the next mark ends by itself.
    pub fn next_end(&self) -> Option<Instant> {
        self.marks.iter().filter_map(|mark| mark.until).min()
    }

    /// Returns the number of marks.
    pub fn len(&self) -> usize {
        self.marks.len()
    }

    /// Whether there is no mark.
    pub fn is_empty(&self) -> bool {
        self.marks.is_empty()
    }

    /// Returns the views of all marks, oldest first.
    pub fn views(&self) -> Vec<MarkView> {
        self.marks.iter().map(|mark| mark.view()).collect()
    }

    /// The file's policy, with the marks before it; the newest is the first that is asked.
    pub fn before(&self, file: &Policy) -> Policy {
        let rules = self
            .marks
            .iter()
            .rev()
            .filter_map(|mark| mark.target.rule());
        Policy {
            rules: rules.chain(&file.rules).cloned().collect(),
            ..file.clone()
        }
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
