//! The selection of requests that are audited.
//!
//! An unknown property does not keep a request out: a request whose table is not known, a BATCH (of
//! which only the first table is) and a log-in are taken, unless their kind is left out.

use cql::{Statement, StatementKind as Kind};

use super::AuditSettings;

/// The kinds that only drivers ask, and no application.
const NOBODY_ASKS: [Kind; 2] = [Kind::Options, Kind::Register];

/// The selection of one rule.
#[derive(Debug)]
pub(super) struct Selection {
    kinds: Vec<Kind>,
    tables: Vec<Pattern>,
    not_tables: Vec<Pattern>,
    users: Vec<String>,
    not_users: Vec<String>,
}

#[derive(Debug)]
struct Pattern(String);

impl Selection {
    pub(super) fn new(settings: &AuditSettings) -> Result<Self, String> {
        let only = match &settings.kinds {
            Some(names) => kinds("kinds", names)?,
            None => Kind::ALL
                .iter()
                .copied()
                .filter(|k| !NOBODY_ASKS.contains(k))
                .collect(),
        };
        let not = kinds("not_kinds", &settings.not_kinds)?;
        let patterns = |key: &str, texts: &[String]| {
            let patterns = texts.iter().map(|text| Pattern::parse(key, text));
            patterns.collect::<Result<Vec<_>, _>>()
        };
        Ok(Self {
            kinds: only
                .into_iter()
                .filter(|kind| !not.contains(kind))
                .collect(),
            tables: patterns("tables", &settings.tables)?,
            not_tables: patterns("not_tables", &settings.not_tables)?,
            users: settings.users.clone(),
            not_users: settings.not_users.clone(),
        })
    }

    pub(super) fn takes(&self, statement: &Statement, user: Option<&str>) -> bool {
        self.kinds.contains(&statement.kind) && self.takes_table(statement) && self.takes_user(user)
    }

    fn takes_user(&self, user: Option<&str>) -> bool {
        let Some(user) = user else { return true };
        let among = |users: &[String]| users.iter().any(|other| other == user);
        (self.users.is_empty() || among(&self.users)) && !among(&self.not_users)
    }

    fn takes_table(&self, statement: &Statement) -> bool {
        let Statement {
            kind,
            keyspace,
            table,
        } = statement;
        let (Some(keyspace), false) = (keyspace, *kind == Kind::Batch) else {
            return true;
        };
        let among = |patterns: &[Pattern]| {
            patterns
                .iter()
                .any(|pattern| pattern.holds(keyspace, table.as_deref()))
        };
        (self.tables.is_empty() || among(&self.tables)) && !among(&self.not_tables)
    }
}

impl Pattern {
    fn parse(key: &str, text: &str) -> Result<Self, String> {
        let name = text.strip_suffix('*').unwrap_or(text);
        match text.is_empty() || name.contains('*') || name.matches('.').count() > 1 {
            true => Err(format!(
                "{key}: expected `keyspace`, `keyspace.table`, or a beginning of it and `*`; found {text:?}"
            )),
            false => Ok(Self(text.to_owned())),
        }
    }

    fn holds(&self, keyspace: &str, table: Option<&str>) -> bool {
        let (name, begins) = match self.0.strip_suffix('*') {
            Some(name) => (name, true),
            None => (self.0.as_str(), false),
        };
        let is = |whole: &str, part: &str| match begins {
            true => whole.starts_with(part),
            false => whole == part,
        };
        match name.split_once('.') {
            Some((in_keyspace, beginning)) => {
                keyspace == in_keyspace && table.is_some_and(|table| is(table, beginning))
            }
            None => is(keyspace, name),
        }
    }
}

fn kinds(key: &str, names: &[String]) -> Result<Vec<Kind>, String> {
    let mut found = Vec::new();
    for name in names {
        match (
            group(name),
            Kind::ALL.iter().find(|kind| kind.as_str() == name),
        ) {
            (Some(group), _) => found.extend(group),
            (None, Some(kind)) => found.push(*kind),
            (None, None) => {
                return Err(format!(
                    "{key}: expected any of {}; found {name:?}",
                    self::names().join(", ")
                ));
            }
        }
    }
    Ok(found)
}

/// Names of groups of kinds.
const GROUPS: [&str; 5] = ["reads", "writes", "ddl", "roles", "logins"];

/// Every name that `kinds` and `not_kinds` may have in them.
pub(super) fn names() -> Vec<&'static str> {
    let kinds = Kind::ALL.iter().map(|kind| kind.as_str());
    GROUPS.into_iter().chain(kinds).collect()
}

fn group(name: &str) -> Option<&'static [Kind]> {
    // A role is made and changed by CREATE, ALTER and DROP; a statement that is not known may be
    // anything.
    Some(match name {
        "reads" => &[
            Kind::Select,
            Kind::List,
            Kind::Describe,
            Kind::Query,
            Kind::Execute,
        ],
        "writes" => &[
            Kind::Insert,
            Kind::Update,
            Kind::Delete,
            Kind::Batch,
            Kind::Truncate,
            Kind::Query,
            Kind::Execute,
            Kind::Unknown,
        ],
        "ddl" => &[
            Kind::Create,
            Kind::Alter,
            Kind::Drop,
            Kind::Truncate,
            Kind::Query,
            Kind::Unknown,
        ],
        "roles" => &[
            Kind::Create,
            Kind::Alter,
            Kind::Drop,
            Kind::Grant,
            Kind::Revoke,
            Kind::Query,
            Kind::Unknown,
        ],
        "logins" => &[Kind::Startup, Kind::AuthResponse],
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn statement(kind: Kind, keyspace: Option<&str>, table: Option<&str>) -> Statement {
        Statement {
            kind,
            keyspace: keyspace.map(Into::into),
            table: table.map(Into::into),
        }
    }

    fn selection(text: &str) -> Result<Selection, String> {
        Selection::new(&toml::from_str(&format!("file = \"/a\"\n{text}")).unwrap())
    }

    #[test]
    fn what_is_selected() {
        let shop = statement(Kind::Insert, Some("shop"), Some("orders"));
        let cases = [
            ("", &shop, Some("ann"), true),
            ("tables = [\"shop\"]", &shop, None, true),
            ("tables = [\"sho*\"]", &shop, None, true),
            ("tables = [\"shop.orders\"]", &shop, None, true),
            ("tables = [\"shop.ord*\"]", &shop, None, true),
            ("tables = [\"sh\"]", &shop, None, false),
            ("tables = [\"shop.o\"]", &shop, None, false),
            ("not_tables = [\"shop.*\"]", &shop, None, false),
            (
                "tables = [\"shop\"]\nnot_tables = [\"shop.orders\"]",
                &shop,
                None,
                false,
            ),
            ("kinds = [\"writes\"]", &shop, None, true),
            ("kinds = [\"insert\"]", &shop, None, true),
            ("kinds = [\"reads\", \"ddl\"]", &shop, None, false),
            ("not_kinds = [\"writes\"]", &shop, None, false),
            ("users = [\"ann\"]", &shop, Some("ann"), true),
            ("users = [\"ann\"]", &shop, Some("bob"), false),
            ("users = [\"ann\"]", &shop, None, true),
            ("not_users = [\"ann\"]", &shop, Some("ann"), false),
            ("not_users = [\"ann\"]", &shop, None, true),
        ];
        for (text, statement, user, expected) in cases {
            assert_eq!(
                selection(text).unwrap().takes(statement, user),
                expected,
                "{text}"
            );
        }
    }

    #[test]
    fn what_is_not_known_is_taken() {
        let elsewhere = selection("tables = [\"elsewhere\"]").unwrap();
        for kind in [
            Kind::Execute,
            Kind::Query,
            Kind::Unknown,
            Kind::AuthResponse,
        ] {
            assert!(
                elsewhere.takes(&statement(kind, None, None), None),
                "{kind}"
            );
        }
        let batch = statement(Kind::Batch, Some("shop"), Some("orders"));
        assert!(elsewhere.takes(&batch, None));
        assert!(
            !selection("kinds = [\"logins\"]")
                .unwrap()
                .takes(&batch, None)
        );
        let options = statement(Kind::Options, None, None);
        assert!(!selection("").unwrap().takes(&options, None));
        assert!(
            selection("kinds = [\"options\"]")
                .unwrap()
                .takes(&options, None)
        );
    }

    #[test]
    fn mistakes_are_named() {
        for (text, expected) in [
            ("kinds = [\"inserts\"]", "kinds: expected any of reads"),
            ("not_kinds = [\"\"]", "not_kinds: expected any of"),
            ("tables = [\"a.b.c\"]", "tables: expected `keyspace`"),
            ("not_tables = [\"\"]", "not_tables: expected `keyspace`"),
        ] {
            let error = selection(text).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
