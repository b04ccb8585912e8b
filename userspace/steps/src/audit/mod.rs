//! `audit`: a record of who did what, as JSON lines in a file ([`lines`]), or as log records for a collector
//! ([`otlp`]).
//!
//! The flow's thread puts a record together from texts that are there already ([`record`]): the
//! flow's identity, written once, and the statement, written once for each different one. The
//! journal's thread makes a line of it.
//!
//! Values are left out: of a statement the line has the fingerprint, which has none. With
//! `statement = true` the text of a QUERY or PREPARE is shown, with the literals in it, unless
//! there may be a password among them. Bound values are never shown.

mod lines;
mod record;
mod selection;
mod text;

pub use text::may_be_shown;

use std::{
    fmt,
    path::PathBuf,
    sync::{Arc, LazyLock},
};

use cql::{Completed, Details, Says};
use lines::Lines;
use selection::Selection;
use serde::Deserialize;

use super::{
    Following, Keeps, Nobody, Refusal, Reporter, Services, Whose,
    journal::{self, JournalSettings, Place, WhenFull},
    otlp::{self, CollectorSettings, Kind, Sends, Signal, Telling, Told},
};

/// Writes who did what, as JSON lines, or sends it to a collector (`docs/audit.md`). Needs `file` or `otlp`, or both.
#[derive(Clone, Debug, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("examples" = [{"file": "/var/log/underpass/audit.jsonl", "kinds": ["writes", "ddl"]}]))]
pub struct AuditSettings {
    /// File that lines go to.
    #[schemars(with = "Option<String>", extend("title" = "absolute path", "examples" = ["/var/log/underpass/audit.jsonl"]))]
    pub file: Option<PathBuf>,
    /// `true`: each request is a log record for the collector of `[otlp]`, too. What does not fit is dropped and counted,
    /// whatever `full` says of the file.
    #[serde(default)]
    pub otlp: bool,
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
    /// The collector of `[otlp]`.
    #[serde(skip)]
    pub(super) collector: Option<CollectorSettings>,
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
    journal: Option<Keeps>,
    sends: Option<Sends>,
    selection: Arc<Selection>,
    shows_statements: bool,
}

impl fmt::Debug for Audit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Audit")
            .field("journal", &self.journal)
            .field("sends", &self.sends)
            .finish_non_exhaustive()
    }
}

impl AuditSettings {
    pub(super) fn build(self) -> Result<Box<dyn Reporter>, String> {
        let fsync = journal::fsync(&self.fsync)?;
        let selection = Selection::new(&self)?;
        if self.file.is_none() && !self.otlp {
            return Err("expected one of `file`, `otlp = true`".to_owned());
        }
        let to = self
            .file
            .map(|path| Place::file(path, self.max_bytes, self.keep, fsync))
            .transpose()?;
        let collector = otlp::wanted(self.otlp, self.collector)?;
        Ok(Box::new(Audit {
            journal: to.map(|to| {
                Keeps::new(JournalSettings {
                    to,
                    when_full: self.full,
                })
            }),
            sends: collector.map(|to| Sends::new(Signal::Logs, to)),
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
        self.journal.as_ref().map(|journal| &journal.settings)
    }

    fn reads(&self) -> Result<(), String> {
        self.sends.as_ref().map_or(Ok(()), Sends::reads)
    }

    fn open(&self, services: &Services) -> Result<(), String> {
        if let Some(journal) = &self.journal {
            journal.open(&services.journals, NAME, record::line)?;
        }
        let sends = self.sends.as_ref();
        sends.map_or(Ok(()), |sends| sends.open(&services.collectors))
    }

    fn wants_texts(&self) -> bool {
        self.shows_statements
    }

    fn wants_contexts(&self) -> bool {
        self.sends.is_some()
    }

    fn follow(&self, whose: &Arc<Whose>, _: &Arc<Services>) -> Box<dyn Following> {
        let journal = self.journal.as_ref().and_then(Keeps::get);
        let collector = self.sends.as_ref().and_then(Sends::get);
        if journal.is_none() && collector.is_none() {
            return Box::new(Nobody);
        }
        // While the process is there.
        LazyLock::force(&whose.cgroup);
        Box::new(FlowAudit {
            whose: whose.clone(),
            lines: journal.map(|journal| Lines::new(whose, journal.clone())),
            telling: collector.map(|collector| Telling::new(collector, Kind::Audit, whose)),
            selection: self.selection.clone(),
            shows_statements: self.shows_statements,
        })
    }
}

/// The audit of one flow.
struct FlowAudit {
    whose: Arc<Whose>,
    lines: Option<Lines>,
    telling: Option<Telling>,
    selection: Arc<Selection>,
    shows_statements: bool,
}

impl FlowAudit {
    fn report(&mut self, told: &Told<'_>) {
        let (completed, details) = (told.completed, told.details);
        let tried = match details.asked.says.as_deref() {
            Some(Says::User(name)) if !details.answered.accepts => Some(&**name),
            _ => None,
        };
        let logged_in = self.whose.user();
        let user = tried.or(logged_in.as_deref());
        if !self.selection.takes(completed.statement, user) {
            return;
        }
        let shown = self.shown(details);
        if let Some(lines) = &mut self.lines {
            lines.report(&self.whose, told, tried, shown);
        }
        if let Some(telling) = &mut self.telling {
            telling.log(told, tried, shown.unwrap_or_default());
        }
    }

    /// Returns the statement's text, where it may be shown.
    fn shown<'d>(&self, details: &'d Details) -> Option<&'d str> {
        let text = details.asked.text().filter(|_| self.shows_statements)?;
        may_be_shown(text).then_some(text)
    }
}

impl Following for FlowAudit {
    fn completed(&mut self, completed: &Completed<'_>, details: &Details) {
        self.report(&Told::answered(completed, details));
    }

    fn refused(&mut self, by: Refusal, completed: &Completed<'_>, details: &Details) {
        self.report(&Told::refused(by, completed, details));
    }

    fn unanswered(&mut self, request: &Completed<'_>, details: &Details) {
        self.report(&Told::unanswered(request, details));
    }

    fn holds(&mut self) -> bool {
        self.lines.as_mut().is_some_and(Lines::holds)
    }
}
