//! [`Judge`]: which statements are refused, and why.

use std::fmt;

use super::objection::{Objection, shown};
use super::{GuardSettings, Kind};
use cql::StatementKind;
use cql::is_system_keyspace;
use cql::labelled;
use cql::{Analysis, Number, Object, Shape};

/// Why a statement is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// CREATE, ALTER, DROP
    Ddl,
    /// TRUNCATE
    Truncate,
    /// Roles and permissions
    Roles,
    /// The statement writes.
    Write,
    /// ALLOW FILTERING
    AllowFiltering,
    /// No LIMIT
    NoLimit,
    /// No WHERE
    NoWhere,
    /// IF
    Conditional,
    /// A LIMIT above what may be
    Limit,
    /// A list behind IN that is too long
    In,
    /// A batch of too many statements
    Batch,
    /// A text that is too long
    Bytes,
    /// A table that may not be touched
    Table,
    /// A table without its partition key
    PartitionKey,
    /// The statement is not understood.
    Unknown,
}

labelled!(Reason {
    Ddl => "ddl",
    Truncate => "truncate",
    Roles => "roles",
    Write => "write",
    AllowFiltering => "allow_filtering",
    NoLimit => "no_limit",
    NoWhere => "no_where",
    Conditional => "conditional",
    Limit => "limit",
    In => "in",
    Batch => "batch",
    Bytes => "bytes",
    Table => "table",
    PartitionKey => "partition_key",
    Unknown => "unknown",
});

/// `keyspace`, `keyspace.table`, or a beginning and `*`.
#[derive(Debug)]
struct Pattern(String);

impl Pattern {
    fn parse(key: &str, text: &str) -> Result<Self, String> {
        let name = text.strip_suffix('*').unwrap_or(text);
        match text.is_empty() || name.contains('*') || name.matches('.').count() > 1 {
            true => Err(format!(
                "{key}: expected `keyspace`, `keyspace.table`, or a beginning of it and `*`; found \
                 \"{text}\""
            )),
            false => Ok(Self(text.to_owned())),
        }
    }

    fn holds(&self, keyspace: &str, table: Option<&str>) -> bool {
        let whole = table.map(|table| format!("{keyspace}.{table}"));
        match self.0.strip_suffix('*') {
            Some(beginning) => {
                keyspace.starts_with(beginning)
                    || whole.is_some_and(|whole| whole.starts_with(beginning))
            }
            None => self.0 == keyspace || whole.is_some_and(|whole| whole == self.0),
        }
    }

    /// Whether the pattern is written for a keyspace of the server's.
    fn is_of_server(&self) -> bool {
        self.0.starts_with("system")
    }

    /// Whether the pattern may hold for some of a keyspace's tables.
    fn meets(&self, keyspace: &str) -> bool {
        let of = self.0.split('.').next().unwrap_or_default();
        of.trim_end_matches('*') == keyspace || self.holds(keyspace, None)
    }
}

#[derive(Debug)]
pub(super) struct Judge {
    settings: GuardSettings,
    only: Vec<Pattern>,
    not: Vec<Pattern>,
}

/// A statement, or one of a batch.
struct Target<'a> {
    kind: StatementKind,
    object: Option<Object>,
    keyspace: Option<&'a str>,
    table: Option<&'a str>,
}

/// The object of a statement.
enum On<'a> {
    /// Nothing that patterns are about, or what is judged otherwise.
    Nothing,
    /// The table cannot be told.
    Unknown,
    Table(&'a str, &'a str),
    /// A keyspace. The tables that will be asked for in it are not known yet.
    Within(&'a str),
    /// With all that is in it.
    Keyspace(&'a str),
}

impl<'a> Target<'a> {
    fn on(&self) -> On<'a> {
        use StatementKind as S;
        let keyspace = |on: fn(&'a str) -> On<'a>| self.keyspace.map_or(On::Unknown, on);
        let table = || match (self.keyspace, self.table) {
            (Some(keyspace), Some(table)) => On::Table(keyspace, table),
            _ => On::Unknown,
        };
        match self.kind {
            S::Use => keyspace(On::Within),
            S::Select | S::Insert | S::Update | S::Delete | S::Truncate => table(),
            // Its statements are judged one by one.
            S::Batch => On::Nothing,
            S::Create | S::Alter | S::Drop => match self.object {
                Some(Object::Table) => table(),
                Some(Object::Keyspace) => keyspace(On::Keyspace),
                Some(Object::Role | Object::User | Object::Identity) => On::Nothing,
                // A view reads another table, a trigger may do anything, and so on.
                _ => On::Unknown,
            },
            _ => On::Nothing,
        }
    }

    /// The server's own tables: drivers do.
    fn may_read(&self, keyspace: &str) -> bool {
        let reads = matches!(self.kind, StatementKind::Select | StatementKind::Use);
        reads && is_system_keyspace(keyspace)
    }
}

impl fmt::Display for On<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing | Self::Unknown => f.write_str("a table whose name cannot be told"),
            Self::Table(keyspace, table) => write!(f, "table {}.{}", shown(keyspace), shown(table)),
            Self::Within(keyspace) | Self::Keyspace(keyspace) => {
                write!(f, "keyspace {}", shown(keyspace))
            }
        }
    }
}

fn not_allowed(reason: Reason, kind: StatementKind) -> Objection {
    let kind = kind.as_str().to_uppercase();
    Objection::new(reason, &format!("{kind} is not allowed"))
}

/// The objection to a statement that is not understood.
pub(super) fn not_understood() -> Objection {
    Objection::new(Reason::Unknown, "the statement is not understood")
}

impl Judge {
    pub(super) fn new(settings: GuardSettings) -> Result<Self, String> {
        let patterns = |key: &str, texts: &[String]| {
            let patterns = texts.iter().map(|text| Pattern::parse(key, text));
            patterns.collect::<Result<Vec<_>, _>>()
        };
        for (table, columns) in &settings.partition_keys {
            if table.split('.').count() != 2 || columns.is_empty() {
                return Err(format!(
                    "partition_keys: expected \"keyspace.table\" = [\"column\", ...], found \"{table}\""
                ));
            }
        }
        let judge = Self {
            only: patterns("tables", &settings.tables)?,
            not: patterns("not_tables", &settings.not_tables)?,
            settings,
        };
        match judge.refuses_nothing() {
            true => Err("guard: expected something to refuse, such as `refuse`".to_owned()),
            false => Ok(judge),
        }
    }

    fn refuses_nothing(&self) -> bool {
        let s = &self.settings;
        let limits = [
            s.max_in.is_some(),
            s.max_batch.is_some(),
            s.max_limit.is_some(),
        ];
        s.refuse.is_empty()
            && !limits.contains(&true)
            && s.max_bytes.is_none()
            && self.only.is_empty()
            && self.not.is_empty()
            && s.partition_keys.is_empty()
    }

    /// Whether the table of a statement decides.
    pub(super) fn minds_tables(&self) -> bool {
        !self.only.is_empty() || !self.not.is_empty() || !self.settings.partition_keys.is_empty()
    }

    fn refuses(&self, kind: Kind) -> bool {
        self.settings.refuse.contains(&kind)
    }

    /// The objection to a BATCH request with so many statements.
    pub(super) fn batch(&self, statements: u32) -> Option<Objection> {
        let writes = self.refuses(Kind::Writes);
        (writes.then(|| not_allowed(Reason::Write, StatementKind::Batch)))
            .or_else(|| self.too_many(statements))
    }

    fn too_many(&self, statements: u32) -> Option<Objection> {
        let most = self.settings.max_batch?;
        let words = || format!("a batch has {statements} statements, and {most} are allowed");
        (statements > most).then(|| Objection::new(Reason::Batch, &words()))
    }

    /// Why a statement may not pass. `keyspace`: which one the flow is in.
    pub(super) fn objection(
        &self,
        text: &[u8],
        analysis: &Analysis,
        keyspace: Option<&str>,
    ) -> Option<Objection> {
        if let Some(most) = self.settings.max_bytes
            && text.len() > most
        {
            let words = format!("the text has {} bytes, and {most} are allowed", text.len());
            return Some(Objection::new(Reason::Bytes, &words));
        }
        let statement = &analysis.statement;
        let own = Target {
            kind: statement.kind,
            object: analysis.object,
            // Not of what a text without a name drops.
            keyspace: statement.keyspace.as_deref().or(keyspace.filter(|_| {
                analysis.object != Some(Object::Keyspace) && statement.kind != StatementKind::Use
            })),
            table: statement.table.as_deref(),
        };
        self.by_kind(&own)
            .or_else(|| self.by_table(&own))
            .or_else(|| match &analysis.shape {
                Some(shape) => self.by_shape(&own, shape, keyspace),
                None => self.unknown(statement.kind),
            })
    }

    fn by_kind(&self, target: &Target<'_>) -> Option<Objection> {
        use StatementKind as S;
        let of_roles = matches!(
            target.object,
            Some(Object::Role | Object::User | Object::Identity)
        );
        let (kind, reason) = match target.kind {
            S::Grant | S::Revoke => (Kind::Roles, Reason::Roles),
            S::Create | S::Alter | S::Drop if of_roles => (Kind::Roles, Reason::Roles),
            S::Create | S::Alter | S::Drop => (Kind::Ddl, Reason::Ddl),
            S::Truncate if self.refuses(Kind::Truncate) => (Kind::Truncate, Reason::Truncate),
            S::Truncate | S::Insert | S::Update | S::Delete | S::Batch => {
                (Kind::Writes, Reason::Write)
            }
            _ => return None,
        };
        self.refuses(kind).then(|| not_allowed(reason, target.kind))
    }

    fn by_table(&self, target: &Target<'_>) -> Option<Objection> {
        if self.only.is_empty() && self.not.is_empty() {
            return None;
        }
        let any =
            |patterns: &[Pattern], holds: &dyn Fn(&Pattern) -> bool| patterns.iter().any(holds);
        let is_allowed =
            |holds: &dyn Fn(&Pattern) -> bool| self.only.is_empty() || any(&self.only, holds);
        let passes = match target.on() {
            On::Nothing => true,
            On::Unknown => false,
            On::Table(keyspace, table) if target.may_read(keyspace) => {
                !any(&self.not, &|pattern| {
                    pattern.is_of_server() && pattern.holds(keyspace, Some(table))
                })
            }
            On::Within(keyspace) if target.may_read(keyspace) => !any(&self.not, &|pattern| {
                pattern.is_of_server() && pattern.holds(keyspace, None)
            }),
            On::Table(keyspace, table) => {
                let holds = |pattern: &Pattern| pattern.holds(keyspace, Some(table));
                is_allowed(&holds) && !any(&self.not, &holds)
            }
            On::Within(keyspace) => {
                is_allowed(&|pattern| pattern.meets(keyspace))
                    && !any(&self.not, &|pattern| pattern.holds(keyspace, None))
            }
            On::Keyspace(keyspace) => {
                is_allowed(&|pattern| pattern.holds(keyspace, None))
                    && !any(&self.not, &|pattern| pattern.meets(keyspace))
            }
        };
        (!passes).then(|| Objection::closed(&target.on().to_string()))
    }

    /// A statement whose text is not understood, if that matters here.
    fn unknown(&self, kind: StatementKind) -> Option<Objection> {
        use StatementKind as S;
        // What follows from a shape would be a guess.
        let matters = match kind {
            S::Select => {
                self.refuses(Kind::AllowFiltering)
                    || self.refuses(Kind::NoLimit)
                    || self.refuses(Kind::NoWhere)
                    || self.settings.max_limit.is_some()
                    || self.settings.max_in.is_some()
                    || !self.settings.partition_keys.is_empty()
            }
            S::Insert | S::Update | S::Delete | S::Batch => {
                // Whatever its rest, an INSERT has no IN, and is no batch.
                self.refuses(Kind::Conditional)
                    || (kind != S::Insert && self.settings.max_in.is_some())
                    || (kind == S::Batch && self.settings.max_batch.is_some())
                    || !self.settings.partition_keys.is_empty()
                    || !self.only.is_empty()
                    || !self.not.is_empty()
            }
            S::Unknown | S::Query => true,
            _ => false,
        };
        (matters || self.refuses(Kind::Unknown)).then(not_understood)
    }

    fn by_shape(
        &self,
        target: &Target<'_>,
        shape: &Shape,
        keyspace: Option<&str>,
    ) -> Option<Objection> {
        let settings = &self.settings;
        let selects = target.kind == StatementKind::Select;
        let system = target.keyspace.is_some_and(is_system_keyspace);
        let limit = match shape.limit {
            Some(Number::Is(limit)) => Some(limit),
            _ => None,
        };
        let checks = [
            (
                self.refuses(Kind::AllowFiltering) && shape.allow_filtering,
                Reason::AllowFiltering,
            ),
            // Drivers read the server's own tables whole.
            (
                self.refuses(Kind::NoLimit) && selects && !system && shape.limit.is_none(),
                Reason::NoLimit,
            ),
            (
                self.refuses(Kind::NoWhere) && selects && !system && !shape.has_where,
                Reason::NoWhere,
            ),
            (
                self.refuses(Kind::Conditional) && shape.conditional,
                Reason::Conditional,
            ),
            (
                settings
                    .max_limit
                    .is_some_and(|most| limit.is_some_and(|n| n > most)),
                Reason::Limit,
            ),
            (
                settings
                    .max_in
                    .is_some_and(|most| shape.longest_in.is_some_and(|n| n > most)),
                Reason::In,
            ),
        ];
        if let Some((_, reason)) = checks.into_iter().find(|(refused, _)| *refused) {
            return Some(Objection::new(reason, &self.words_on_shape(reason)));
        }
        if let Some(batch) = &shape.batch {
            if let Some(objection) = self.too_many(batch.statements) {
                return Some(objection);
            }
            return batch.parts.iter().find_map(|part| {
                self.by_table(&Target {
                    kind: part.kind,
                    object: None,
                    keyspace: part.keyspace.as_deref().or(keyspace),
                    table: part.table.as_deref(),
                })
            });
        }
        self.by_partition_key(target, shape)
    }

    fn words_on_shape(&self, reason: Reason) -> String {
        let most = |most: Option<i64>| most.unwrap_or_default();
        match reason {
            Reason::AllowFiltering => "ALLOW FILTERING is not allowed".to_owned(),
            Reason::NoLimit => "a SELECT needs a LIMIT".to_owned(),
            Reason::NoWhere => "a SELECT needs a WHERE".to_owned(),
            Reason::Conditional => "IF is not allowed".to_owned(),
            Reason::Limit => format!("its LIMIT is above {}", most(self.settings.max_limit)),
            Reason::In => format!(
                "a list behind IN has more than {} elements",
                most(self.settings.max_in.map(i64::from))
            ),
            other => other.as_str().to_owned(),
        }
    }

    fn by_partition_key(&self, target: &Target<'_>, shape: &Shape) -> Option<Objection> {
        use StatementKind as S;
        if !matches!(target.kind, S::Select | S::Update | S::Delete) {
            return None;
        }
        let whole = format!("{}.{}", target.keyspace?, target.table?);
        let columns = self.settings.partition_keys.get(&whole)?;
        let columns: Vec<&str> = columns.iter().map(String::as_str).collect();
        (!shape.names_all(&columns)).then(|| {
            let words = format!(
                "table {} needs {} restricted by = or IN",
                shown(&whole),
                columns.join(", ")
            );
            Objection::new(Reason::PartitionKey, &words)
        })
    }
}
