//! `audit`: who did what, as JSON lines.
//!
//! On the flow's thread a record is put together of texts that are there already ([`record`]): who the flow
//! is, written once, and what is asked, written once for each different thing. The journal's thread makes a
//! line of it.
//!
//! Values are not in it: of a statement it has the fingerprint, which has none. With `statement = true` the
//! text of a QUERY or PREPARE is shown, with the literals in it, unless there may be a password among them.
//! Bound values are never shown.

mod record;
mod selection;
mod text;

use std::{collections::VecDeque, fmt, path::PathBuf, sync::Arc, sync::OnceLock, time::Duration};

use cql::{Completed, Details, Fingerprint, Says, Statement};
use export::{Fsync, Full, LinesSettings};
use serde::Deserialize;

use super::{
    Following, Means, Refusal, Reporter, Whose,
    journal::{Journal, JournalSettings, WhenFull},
};
use crate::config::duration;
use record::{Outcome, Record};
use selection::Selection;

/// As in the configuration.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// The journal.
    pub file: PathBuf,
    /// A file that would become larger is moved to `FILE.1`.
    #[serde(default = "max_bytes")]
    pub max_bytes: u64,
    /// How many of those there are.
    #[serde(default = "keep")]
    pub keep: u32,
    /// `never`, `batch`, or how often.
    #[serde(default = "fsync")]
    pub fsync: String,
    /// What becomes of a record for which there is no room.
    #[serde(default)]
    pub full: WhenFull,
    /// Whether the texts of statements are shown.
    #[serde(default)]
    pub statement: bool,
    /// Only these: `keyspace`, `keyspace.table`, or a beginning and `*`.
    #[serde(default)]
    pub tables: Vec<String>,
    /// None of these.
    #[serde(default)]
    pub not_tables: Vec<String>,
    /// Only these, by name, or `reads`, `writes`, `ddl`, `roles`, `logins`.
    pub kinds: Option<Vec<String>>,
    /// None of these.
    #[serde(default)]
    pub not_kinds: Vec<String>,
    /// Only these.
    #[serde(default)]
    pub users: Vec<String>,
    /// None of these.
    #[serde(default)]
    pub not_users: Vec<String>,
}

fn max_bytes() -> u64 {
    100 << 20
}

fn keep() -> u32 {
    10
}

fn fsync() -> String {
    "1s".to_owned()
}

/// The name of its journal in metrics.
const NAME: &str = "audit";

/// Lines are written together; a file holds some of those.
const LEAST_BYTES: u64 = 256 << 10;

/// Moving them takes a system call each.
const MOST_KEPT: u32 = 1_000;

/// Less often, and nobody would think of it.
const SELDOM: Duration = Duration::from_secs(60);

struct Audit {
    journal: JournalSettings,
    open: OnceLock<Arc<Journal>>,
    selection: Arc<Selection>,
    shows_statements: bool,
}

impl fmt::Debug for Audit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Audit")
            .field("journal", &self.journal)
            .finish_non_exhaustive()
    }
}

impl Settings {
    pub(super) fn build(self) -> Result<Box<dyn Reporter>, String> {
        if !self.file.is_absolute() {
            let found = self.file.display();
            return Err(format!("file: expected an absolute path, found {found}"));
        }
        if self.max_bytes < LEAST_BYTES {
            let found = self.max_bytes;
            return Err(format!(
                "max_bytes: expected {LEAST_BYTES} or more, found {found}"
            ));
        }
        if self.keep > MOST_KEPT {
            let found = self.keep;
            return Err(format!("keep: expected at most {MOST_KEPT}, found {found}"));
        }
        let fsync = match self.fsync.as_str() {
            "never" => Fsync::Never,
            "batch" => Fsync::Batch,
            text => match duration(text) {
                Some(time) if !time.is_zero() && time <= SELDOM => Fsync::Every(time),
                _ => {
                    return Err(format!(
                        "fsync: expected `never`, `batch`, or how often, up to `1m`; found {text:?}"
                    ));
                }
            },
        };
        let selection = Selection::new(&self)?;
        Ok(Box::new(Audit {
            journal: JournalSettings {
                lines: LinesSettings {
                    path: self.file,
                    max_bytes: self.max_bytes,
                    keep: self.keep,
                    fsync,
                },
                when_full: self.full,
            },
            open: OnceLock::new(),
            selection: Arc::new(selection),
            shows_statements: self.statement,
        }))
    }
}

impl Reporter for Audit {
    fn name(&self) -> &'static str {
        NAME
    }

    fn journal(&self) -> Option<&JournalSettings> {
        Some(&self.journal)
    }

    fn open(&self, means: &Means) -> Result<(), String> {
        let journal = means.journals.open(NAME, &self.journal, record::line)?;
        // A step is of one file, which is put into force once.
        let _ = self.open.set(journal);
        Ok(())
    }

    fn wants_texts(&self) -> bool {
        self.shows_statements
    }

    fn follow(&self, whose: &Arc<Whose>, _: &Arc<Means>) -> Box<dyn Following> {
        // No rule is in force before its journal is open.
        let Some(journal) = self.open.get() else {
            return Box::new(Nobody);
        };
        Box::new(FlowAudit {
            who: text::who(whose, None),
            knows: whose.knows(),
            whose: whose.clone(),
            journal: journal.clone(),
            selection: self.selection.clone(),
            shows_statements: self.shows_statements,
            at_hand: Vec::new(),
            oldest: 0,
            record: Vec::new(),
            waiting: VecDeque::new(),
        })
    }
}

/// Is told, and tells nobody.
struct Nobody;

impl Following for Nobody {
    fn completed(&mut self, _: &Completed<'_>, _: &Details) {}
}

/// What a flow asks again and again; when it asks more, the text is made again.
const AT_HAND: usize = 16;

struct What {
    statement: Arc<Statement>,
    fingerprint: Option<Arc<Fingerprint>>,
    text: String,
}

/// One flow's.
struct FlowAudit {
    whose: Arc<Whose>,
    /// How much of it was known when `who` was written.
    knows: usize,
    who: String,
    journal: Arc<Journal>,
    selection: Arc<Selection>,
    shows_statements: bool,
    at_hand: Vec<What>,
    /// The next one to be replaced.
    oldest: usize,
    /// Kept for its room.
    record: Vec<u8>,
    /// For which there is no room; the flow is held meanwhile. As many as there were requests under way.
    waiting: VecDeque<Box<[u8]>>,
}

impl FlowAudit {
    fn report(
        &mut self,
        completed: &Completed<'_>,
        details: &Details,
        outcome: Outcome,
        by: Option<Refusal>,
    ) {
        let tried = match details.asked.says.as_deref() {
            Some(Says::User(name)) if !details.answered.accepts => Some(&**name),
            _ => None,
        };
        let user = tried.or_else(|| self.whose.user());
        if !self.selection.takes(completed.statement, user) {
            return;
        }
        if self.knows != self.whose.knows() {
            self.knows = self.whose.knows();
            self.who = text::who(&self.whose, None);
        }
        let mut record = std::mem::take(&mut self.record);
        record.clear();
        let parameters = details.asked.parameters.as_ref();
        let tried = tried.map(|name| text::who(&self.whose, Some(name)));
        let who = tried.as_ref().unwrap_or(&self.who).clone();
        let shown = self.shown(details);
        let what = self.what(completed.statement, details.asked.fingerprint.as_ref());
        Record {
            outcome,
            error: completed.error,
            latency_ns: completed.latency_ns,
            consistency: parameters.map(|p| p.consistency),
            values: parameters.map(|p| p.values),
            rows: details.answered.rows,
            who: &who,
            what,
            statement: shown.as_deref().unwrap_or_default(),
            by,
        }
        .put(&mut record);
        self.hand_over(&record);
        self.record = record;
    }

    /// The statement's text, where that may be shown.
    fn shown(&self, details: &Details) -> Option<String> {
        let text = details
            .asked
            .text
            .as_ref()
            .filter(|_| self.shows_statements)?;
        text::may_be_shown(text).then(|| text::quoted(text))
    }

    /// What is asked, in JSON.
    fn what(&mut self, statement: &Arc<Statement>, fingerprint: Option<&Arc<Fingerprint>>) -> &str {
        let is_it = |what: &What| {
            let same = match (&what.fingerprint, fingerprint) {
                (Some(a), Some(b)) => Arc::ptr_eq(a, b),
                (None, None) => true,
                _ => false,
            };
            same && Arc::ptr_eq(&what.statement, statement)
        };
        let at = self.at_hand.iter().position(is_it).unwrap_or_else(|| {
            let what = What {
                statement: statement.clone(),
                fingerprint: fingerprint.cloned(),
                text: text::what(statement, fingerprint.map(|f| &**f)),
            };
            let at = self.oldest;
            self.oldest = (at + 1) % AT_HAND;
            match self.at_hand.get_mut(at) {
                Some(oldest) => *oldest = what,
                None => self.at_hand.push(what),
            }
            at
        });
        self.at_hand.get(at).map_or("", |what| &what.text)
    }

    fn hand_over(&mut self, record: &[u8]) {
        let pushed = match self.waiting.is_empty() {
            true => self.journal.push(record),
            false => Err(Full::Now),
        };
        match pushed {
            Ok(()) => {}
            Err(Full::Now) if self.journal.holds() => {
                if self.waiting.is_empty() {
                    self.journal.has_held();
                }
                self.waiting.push_back(record.into());
            }
            Err(why) => self.journal.drops(why),
        }
    }
}

impl Following for FlowAudit {
    fn completed(&mut self, completed: &Completed<'_>, details: &Details) {
        let outcome = match completed.error {
            Some(_) => Outcome::Error,
            None => Outcome::Ok,
        };
        self.report(completed, details, outcome, None);
    }

    fn refused(&mut self, by: Refusal, completed: &Completed<'_>, details: &Details) {
        self.report(completed, details, Outcome::Refused, Some(by));
    }

    fn unanswered(&mut self, request: &Completed<'_>, details: &Details) {
        self.report(request, details, Outcome::Unanswered, None);
    }

    fn holds(&mut self) -> bool {
        while let Some(record) = self.waiting.front() {
            if self.journal.push(record).is_err() {
                return true;
            }
            self.waiting.pop_front();
        }
        false
    }
}

impl Drop for FlowAudit {
    fn drop(&mut self) {
        if self.holds() {
            self.journal.is_left(self.waiting.drain(..));
        }
    }
}
