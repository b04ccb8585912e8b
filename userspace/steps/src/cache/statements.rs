//! The meaning of a statement for the cache: it reads a chosen table, changes some, or does
//! neither.

use cql::{Analysis, Statement, StatementKind};

use super::metrics::Bypass;

/// The most chosen tables. A set of them fits into a word, and into the number under which a
/// write's response is awaited.
pub(super) const MAX_TABLES: usize = 32;

/// The number of parts from which on a batch's text may have more parts than were analysed, so that
/// it may write other tables, too.
const MAX_PARTS: usize = cql::MAX_BATCH_PARTS;

/// The chosen tables: keyspace and name, as the database stores them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Tables(pub(super) Vec<(String, String)>);

/// A set of chosen tables, by their places.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Chosen(pub(super) u32);

impl Chosen {
    pub(super) fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub(super) fn places(self) -> impl Iterator<Item = usize> {
        (0..MAX_TABLES).filter(move |place| self.0 & 1 << place != 0)
    }
}

impl Tables {
    pub(super) fn all(&self) -> Chosen {
        Chosen(u32::MAX >> (MAX_TABLES - self.0.len().clamp(1, MAX_TABLES)))
    }

    fn place(&self, keyspace: &str, table: &str) -> Option<usize> {
        let mut all = self.0.iter();
        all.position(|(of, name)| of == keyspace && name == table)
    }

    /// Returns the tables that a write to this table may change: all, if its table is not known.
    fn written(&self, keyspace: Option<&str>, table: Option<&str>) -> Chosen {
        match (keyspace, table) {
            (Some(keyspace), Some(table)) => {
                let place = self.place(keyspace, table);
                Chosen(place.map_or(0, |place| 1 << place))
            }
            _ => self.all(),
        }
    }
}

/// The meaning of a statement for the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CacheEffect {
    /// The statement reads this table, and its answer can be kept.
    Reads(usize),
    /// The statement reads a chosen table, and its answer cannot be kept.
    Bypasses(Bypass),
    /// The statement may change these tables.
    Writes(Chosen),
    /// The statement changes the keyspace of its connection.
    Uses,
}

/// Finds the meaning of `text` in this keyspace. None: the keyspace is not known.
pub(super) fn cache_effect(text: &[u8], keyspace: Option<&str>, tables: &Tables) -> CacheEffect {
    use StatementKind as S;
    let statement = Statement::of(text);
    let Statement { kind, table, .. } = &statement;
    let keyspace = statement.keyspace.as_deref().or(keyspace);
    CacheEffect::Writes(match kind {
        S::Select => return reads(text, keyspace, table.as_deref(), tables),
        S::Use => return CacheEffect::Uses,
        S::Insert | S::Update | S::Delete | S::Truncate => {
            tables.written(keyspace, table.as_deref())
        }
        S::Batch => batch(text, keyspace, tables),
        S::List | S::Describe => Chosen::default(),
        // A definition may be of a keyspace or a permission, or the statement is not understood.
        _ => tables.all(),
    })
}

fn batch(text: &[u8], keyspace: Option<&str>, tables: &Tables) -> Chosen {
    let shape = Analysis::of(text, text.len()).shape;
    match shape.and_then(|shape| shape.batch) {
        Some(batch) if batch.parts.len() < MAX_PARTS => {
            let parts = batch.parts.iter().map(|part| {
                let keyspace = part.keyspace.as_deref().or(keyspace);
                tables.written(keyspace, part.table.as_deref()).0
            });
            Chosen(parts.fold(0, |all, of| all | of))
        }
        _ => tables.all(),
    }
}

fn reads(text: &[u8], keyspace: Option<&str>, table: Option<&str>, tables: &Tables) -> CacheEffect {
    let Some(table) = table else {
        return CacheEffect::Bypasses(Bypass::Statement);
    };
    let place = match keyspace {
        Some(keyspace) => tables.place(keyspace, table),
        None if tables.0.iter().any(|(_, name)| name == table) => {
            return CacheEffect::Bypasses(Bypass::Keyspace);
        }
        None => None,
    };
    let Some(place) = place else {
        return CacheEffect::Writes(Chosen::default());
    };
    let analysis = Analysis::of(text, text.len());
    let fingerprint = analysis.fingerprint.text();
    if analysis.shape.is_none() || fingerprint.ends_with("...") {
        return CacheEffect::Bypasses(Bypass::Statement);
    }
    match calls_only_these(fingerprint) {
        true => CacheEffect::Reads(place),
        false => CacheEffect::Bypasses(Bypass::Function),
    }
}

/// The words before a parenthesis that make no answer depend on the time, or on a function that
/// only its author knows.
const BEFORE: [&str; 10] = [
    "in", "token", "count", "min", "max", "sum", "avg", "cast", "where", "and",
];

/// Whether a text without values has no other word than these before a parenthesis.
fn calls_only_these(fingerprint: &str) -> bool {
    let opens = fingerprint.match_indices('(');
    opens.map(|(at, _)| at).all(|at| {
        let before = fingerprint.get(..at).unwrap_or_default().trim_end();
        let is_word = |c: char| c.is_alphanumeric() || matches!(c, '_' | '.' | '"');
        let word = before.rsplit(|c| !is_word(c)).next().unwrap_or_default();
        word.is_empty() || BEFORE.iter().any(|known| word.eq_ignore_ascii_case(known))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tables() -> Tables {
        let named = |table: &str| ("shop".to_owned(), table.to_owned());
        Tables(vec![named("a"), named("b")])
    }

    fn found(text: &str, keyspace: Option<&str>) -> CacheEffect {
        cache_effect(text.as_bytes(), keyspace, &tables())
    }

    #[test]
    fn what_is_read_is_known_for_sure_or_not_kept() {
        let reads = [
            "SELECT * FROM shop.a WHERE k = 1",
            "select v from SHOP.A where k in (1, 2) and c > ? limit 10",
            "SELECT count(*), max(v) FROM shop.a WHERE token(k) > 7",
            "SELECT v FROM shop.a WHERE k = 1 AND (c, d) > (1, 2)",
            "SELECT v FROM shop.a WHERE k = 'now()'",
            "SELECT v FROM shop.a WHERE k = 1 USING TIMEOUT 5s",
        ];
        for text in reads {
            assert_eq!(found(text, None), CacheEffect::Reads(0), "{text}");
        }
        let used = found("SELECT v FROM b WHERE k = 1", Some("shop"));
        assert_eq!(used, CacheEffect::Reads(1));
        let bypasses = [
            ("SELECT v FROM a WHERE k = 1", Bypass::Keyspace),
            ("SELECT now() FROM shop.a", Bypass::Function),
            ("SELECT ttl(v) FROM shop.a WHERE k = 1", Bypass::Function),
            (
                "SELECT writetime(v) FROM shop.a WHERE k = 1",
                Bypass::Function,
            ),
            (
                "SELECT v FROM shop.a WHERE t > mintimeuuid(now())",
                Bypass::Function,
            ),
            (
                "SELECT shop.min(v) FROM shop.a WHERE k = 1",
                Bypass::Function,
            ),
            (
                "SELECT \"max\"(v) FROM shop.a WHERE k = 1",
                Bypass::Function,
            ),
            (
                "SELECT v FROM shop.a WHERE k = 1 USING PATIENCE 5s",
                Bypass::Statement,
            ),
            ("SELECT nothing", Bypass::Statement),
        ];
        for (text, why) in bypasses {
            assert_eq!(found(text, None), CacheEffect::Bypasses(why), "{text}");
        }
        let others = ["SELECT v FROM shop.c WHERE k = 1", "SELECT v FROM c"];
        for text in others {
            assert_eq!(found(text, None), CacheEffect::Writes(Chosen(0)), "{text}");
        }
    }

    #[test]
    fn what_may_be_written_is_never_too_little() {
        let writes = [
            ("INSERT INTO shop.a (k) VALUES (1)", Some("x"), 0b01),
            ("UPDATE b SET v = 1 WHERE k = 1", Some("shop"), 0b10),
            ("DELETE FROM b WHERE k = 1", None, 0b11),
            ("TRUNCATE shop.b", None, 0b10),
            ("INSERT INTO shop.c (k) VALUES (1)", None, 0),
            (
                "BEGIN BATCH INSERT INTO shop.c (k) VALUES (1); UPDATE shop.b SET v = 1 WHERE k = 1; APPLY BATCH",
                None,
                0b10,
            ),
            ("BEGIN BATCH oh no APPLY BATCH", None, 0b11),
            ("DROP KEYSPACE shop", None, 0b11),
            ("ALTER TABLE shop.c ADD w int", None, 0b11),
            ("REVOKE SELECT ON shop.a FROM ann", None, 0b11),
            ("\u{1F980}", None, 0b11),
            ("", None, 0b11),
        ];
        for (text, keyspace, expected) in writes {
            let expected = CacheEffect::Writes(Chosen(expected));
            assert_eq!(found(text, keyspace), expected, "{text}");
        }
        assert_eq!(found("USE shop", None), CacheEffect::Uses);
    }

    #[test]
    fn sets_are_as_large_as_they_can_be() {
        let named = |n: usize| ("shop".to_owned(), n.to_string());
        let full = Tables((0..MAX_TABLES).map(named).collect());
        assert_eq!(full.all(), Chosen(u32::MAX));
        assert_eq!(full.all().places().count(), MAX_TABLES);
        assert_eq!(tables().all().places().collect::<Vec<_>>(), [0, 1]);
    }
}
