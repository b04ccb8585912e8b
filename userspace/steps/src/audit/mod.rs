//! `audit`: a record of who did what, as JSON lines.
//!
//! The flow's thread puts a record together from texts that are there already ([`record`]): the
//! flow's identity, written once, and the statement, written once for each different one. The
//! journal's thread makes a line of it.
//!
//! Values are left out: of a statement the line has the fingerprint, which has none. With
//! `statement = true` the text of a QUERY or PREPARE is shown, with the literals in it, unless
//! there may be a password among them. Bound values are never shown.

mod record;
mod selection;
mod text;

pub(crate) use text::may_be_shown;

use std::{collections::VecDeque, fmt, path::PathBuf, sync::Arc};

use cql::{Completed, Details, Says};
use export::Full;
use record::{Outcome, Record};
use selection::Selection;
use serde::Deserialize;

use super::{
    Following, Keeps, Nobody, Refusal, Reporter, Services, Whose,
    at_hand::AtHand,
    journal::{self, Journal, JournalSettings, Place, WhenFull},
};

/// Writes who did what, as JSON lines (`docs/audit.md`).
#[derive(Clone, Debug, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("examples" = [{"file": "/var/log/underpass/audit.jsonl", "kinds": ["writes", "ddl"]}]))]
pub struct AuditSettings {
    /// File that lines go to.
    #[schemars(with = "String", extend("title" = "absolute path"))]
    pub file: PathBuf,
    /// Size of the file, in bytes, beyond which it is moved to `FILE.1`.
    #[serde(default = "journal::max_bytes")]
    #[schemars(range(min = journal::LEAST_BYTES))]
    pub max_bytes: u64,
    /// Files that are kept beside it.
    #[serde(default = "journal::keep")]
    #[schemars(range(max = journal::MOST_KEPT))]
    pub keep: u32,
    /// When the file is synchronised with the disk: `never`, after each `batch`, or as often as this time says, up to
    /// `1m`.
    #[serde(default = "fsync")]
    #[schemars(regex(pattern = "^(never|batch|[0-9]+(ms|s|m))$"))]
    pub fsync: String,
    /// Treatment of a record for which there is no room.
    #[serde(default = "full")]
    pub full: WhenFull,
    /// `true`: lines have the texts of statements, with the values in them.
    #[serde(default)]
    pub statement: bool,
    /// Tables whose requests are written: `keyspace`, `keyspace.table`, or the beginning of that and `*`. Without this
    /// key: all.
    #[serde(default)]
    #[schemars(extend("examples" = [["shop"]]))]
    pub tables: Vec<String>,
    /// Tables whose requests are left out, in the same form.
    #[serde(default)]
    #[schemars(extend("examples" = [["shop.sessions"]]))]
    pub not_tables: Vec<String>,
    /// Kinds of requests that are written, by name, or `reads`, `writes`, `ddl`, `roles`, `logins`. Without this key:
    /// all but OPTIONS and REGISTER.
    #[schemars(extend("items" = {"type": "string", "enum": selection::names()}, "examples" = [["writes", "ddl"]]))]
    pub kinds: Option<Vec<String>>,
    /// Kinds of requests that are left out.
    #[serde(default)]
    #[schemars(extend("items" = {"type": "string", "enum": selection::names()}, "examples" = [["reads"]]))]
    pub not_kinds: Vec<String>,
    /// Users whose requests are written. Without this key: all.
    #[serde(default)]
    #[schemars(extend("examples" = [["alice"]]))]
    pub users: Vec<String>,
    /// Users whose requests are left out.
    #[serde(default)]
    #[schemars(extend("examples" = [["monitoring"]]))]
    pub not_users: Vec<String>,
}

fn fsync() -> String {
    "1s".to_owned()
}

/// A log for auditors is complete unless somebody chooses otherwise.
fn full() -> WhenFull {
    WhenFull::Hold
}

/// The name of its journal in metrics.
const NAME: &str = "audit";

struct Audit {
    journal: Keeps,
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

impl AuditSettings {
    pub(super) fn build(self) -> Result<Box<dyn Reporter>, String> {
        let fsync = journal::fsync(&self.fsync)?;
        let selection = Selection::new(&self)?;
        let to = Place::file(self.file, self.max_bytes, self.keep, fsync)?;
        Ok(Box::new(Audit {
            journal: Keeps::new(JournalSettings {
                to,
                when_full: self.full,
            }),
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
        Some(&self.journal.settings)
    }

    fn open(&self, services: &Services) -> Result<(), String> {
        self.journal.open(&services.journals, NAME, record::line)
    }

    fn wants_texts(&self) -> bool {
        self.shows_statements
    }

    fn follow(&self, whose: &Arc<Whose>, _: &Arc<Services>) -> Box<dyn Following> {
        let Some(journal) = self.journal.get() else {
            return Box::new(Nobody);
        };
        Box::new(FlowAudit {
            who: text::who(whose, None),
            knows: whose.knows(),
            whose: whose.clone(),
            journal: journal.clone(),
            selection: self.selection.clone(),
            shows_statements: self.shows_statements,
            at_hand: AtHand::new(),
            record: Vec::new(),
            waiting: VecDeque::new(),
        })
    }
}

/// The audit of one flow.
struct FlowAudit {
    whose: Arc<Whose>,
    /// The number of facts of the flow that were known when `who` was written.
    knows: usize,
    who: String,
    journal: Arc<Journal>,
    selection: Arc<Selection>,
    shows_statements: bool,
    /// The statements, in JSON.
    at_hand: AtHand<String>,
    /// The buffer of a record, kept for reuse.
    record: Vec<u8>,
    /// Records for which there is no room. The flow is held meanwhile, so there are at most as many
    /// as requests were under way.
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
        let logged_in = self.whose.user();
        let user = tried.or(logged_in.as_deref());
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
        let shown = self.shown(details);
        let fingerprint = details.asked.fingerprint.as_ref();
        let what = self
            .at_hand
            .of(completed.statement, fingerprint, text::what);
        Record {
            outcome,
            error: completed.error,
            latency_ns: completed.latency_ns,
            consistency: parameters.map(|p| p.consistency),
            values: parameters.map(|p| p.values),
            rows: details.answered.rows,
            who: tried.as_ref().unwrap_or(&self.who),
            what: what.map_or("", String::as_str),
            statement: shown.as_deref().unwrap_or_default(),
            by,
        }
        .put(&mut record);
        self.hand_over(&record);
        self.record = record;
    }

    /// Returns the statement's text, where it may be shown.
    fn shown(&self, details: &Details) -> Option<String> {
        let text = details.asked.text().filter(|_| self.shows_statements)?;
        may_be_shown(text).then(|| text::quoted(text))
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
                    self.journal.count_held();
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
            self.journal.take_over_left(self.waiting.drain(..));
        }
    }
}
