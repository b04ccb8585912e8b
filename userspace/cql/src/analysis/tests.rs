//! Statements, and what is known of them.

use super::*;
use proptest::prelude::*;
use std::time::Duration;

fn analyse(text: &str) -> Analysis {
    Analysis::of(text.as_bytes(), text.len())
}

fn fingerprint(text: &str) -> String {
    analyse(text).fingerprint.text().to_string()
}

fn shape(text: &str) -> Shape {
    analyse(text)
        .shape
        .unwrap_or_else(|| panic!("unknown: {text}"))
}

/// "a= b[2] c.. token(d) e*": columns and how they are restricted.
fn restricted(text: &str) -> String {
    let restrictions = shape(text).restrictions;
    let one = |Restriction { column, by }: &Restriction| match by {
        By::Equal => format!("{column}="),
        By::In(Some(elements)) => format!("{column}[{elements}]"),
        By::In(None) => format!("{column}[?]"),
        By::Token => format!("token({column})"),
        By::Range => format!("{column}.."),
        By::Other => format!("{column}*"),
    };
    restrictions.iter().map(one).collect::<Vec<_>>().join(" ")
}

#[test]
fn fingerprints() {
    for (text, expected) in [
        // the spelling
        (
            "select * from Ks.T where A=1 and b in (1,2 , 3)",
            "SELECT * FROM ks.t WHERE a = ? AND b IN (?)",
        ),
        (
            "/* a */ SELECT\t* -- b\nFROM \"Ks\".\"T\"\"b\" // c\n WHERE \"A\" = 'x' ; ",
            "SELECT * FROM \"Ks\".\"T\"\"b\" WHERE \"A\" = ?",
        ),
        (
            "SELECT a FROM t WHERE a = :name",
            "SELECT a FROM t WHERE a = ?",
        ),
        (
            "SELECT a FROM t WHERE a IN ?",
            "SELECT a FROM t WHERE a IN ?",
        ),
        (
            "SELECT a FROM t WHERE a IN ()",
            "SELECT a FROM t WHERE a IN (?)",
        ),
        // literals of every kind
        (
            "INSERT INTO t (a, b, c, d, e, f, g, h, i, j, k) VALUES \
             (-1, 1.5e-3, 'it''s', $$ it's $$, 0xCAFE, 12345678-1234-1234-1234-123456789abc, \
             true, NULL, -NaN, 1h30m, P1Y)",
            "INSERT INTO t (a, b, c, d, e, f, g, h, i, j, k) VALUES \
             (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        ),
        (
            "INSERT INTO t (a, b, c, d, e) VALUES ([1, 'a'], {'a': 1}, {x: ['s']}, (1, 'a'), {})",
            "INSERT INTO t (a, b, c, d, e) VALUES (?, ?, ?, ?, ?)",
        ),
        (
            "INSERT INTO t JSON '{\"a\": 1}' DEFAULT UNSET",
            "INSERT INTO t JSON ? DEFAULT UNSET",
        ),
        (
            "INSERT INTO t (a) VALUES (?) IF NOT EXISTS USING TTL 5 AND TIMESTAMP ?",
            "INSERT INTO t (a) VALUES (?) IF NOT EXISTS USING TTL ? AND TIMESTAMP ?",
        ),
        // functions, casts, arithmetic
        (
            "INSERT INTO t (a, b, c) VALUES (now(), Ks.\"F\"(1, 'x'), -f(g(?)))",
            "INSERT INTO t (a, b, c) VALUES (now(), ks.\"F\"(?, ?), f(g(?)))",
        ),
        (
            "INSERT INTO t (a, b, c, d) VALUES ((int) 5, (frozen<list<int>>) [1], (ks.t) ?, (f(1), 2))",
            "INSERT INTO t (a, b, c, d) VALUES (?, ?, ?, ?)",
        ),
        (
            "SELECT a FROM t WHERE a = 1 + 2 * ? - CAST('3' AS int)",
            "SELECT a FROM t WHERE a = ? + ? * ? - CAST(? AS int)",
        ),
        // what is selected
        (
            "SELECT JSON DISTINCT a AS B, count(*), writetime(c), m['k'], l[0..2], u.f.g, (int) 5, \
             CAST(a AS text), a + 1, -a, 'x', ? FROM t",
            "SELECT JSON DISTINCT a AS b, count(*), writetime(c), m[?], l[?], u.f.g, (int) ?, \
             CAST(a AS text), a + ?, a, ?, ? FROM t",
        ),
        (
            "SELECT json, distinct FROM t",
            "SELECT json, distinct FROM t",
        ),
        ("SELECT json FROM t", "SELECT json FROM t"),
        ("SELECT JSON * FROM t", "SELECT JSON * FROM t"),
        (
            "SELECT ttl, key, values, as, token(a) FROM t",
            "SELECT ttl, key, values, as, token(a) FROM t",
        ),
        (
            "SELECT a FROM t WHERE b=1 GROUP BY a, f(b) ORDER BY c DESC, d ASC, v ANN OF [1.0, 2] \
             PER PARTITION LIMIT 2 LIMIT 10 ALLOW FILTERING",
            "SELECT a FROM t WHERE b = ? GROUP BY a, f(b) ORDER BY c DESC, d ASC, v ANN OF ? \
             PER PARTITION LIMIT ? LIMIT ? ALLOW FILTERING",
        ),
        // relations
        (
            "SELECT a FROM t WHERE token(a, b) > token(1, 'x') AND (c, d) IN ((1, 2), (3, 4)) AND \
             (e) >= (5) AND (f = 1) AND m['x'] != 2 AND g CONTAINS KEY 'x' AND h LIKE '%x' AND \
             i IS NOT NULL AND expr(ix, 'secret') AND j BETWEEN 1 AND 2 AND k NOT IN (1)",
            "SELECT a FROM t WHERE TOKEN(a, b) > token(?, ?) AND (c, d) IN (?) AND \
             (e) >= ? AND (f = ?) AND m[?] != ? AND g CONTAINS KEY ? AND h LIKE ? AND \
             i IS NOT NULL AND expr(ix, ?) AND j BETWEEN ? AND ? AND k NOT IN (?)",
        ),
        // changes
        (
            "UPDATE t USING TTL 1 SET a = a + 1, b = b -1, c['x'] = 'y', d.e = 1, f += {1}, \
             l = [0] + l WHERE k = 1 IF v = 2 AND w IN (1, 2) AND m['x'] = 1 AND u.f != 3",
            "UPDATE t USING TTL ? SET a = a + ?, b = b - ?, c[?] = ?, d.e = ?, f += ?, \
             l = ? + l WHERE k = ? IF v = ? AND w IN (?) AND m[?] = ? AND u.f != ?",
        ),
        (
            "DELETE a['x'], b, c.d FROM ks.t USING TIMESTAMP 1 WHERE k = 1 IF EXISTS",
            "DELETE a[?], b, c.d FROM ks.t USING TIMESTAMP ? WHERE k = ? IF EXISTS",
        ),
        ("DELETE FROM t WHERE k = 1", "DELETE FROM t WHERE k = ?"),
        // batches
        (
            "BEGIN UNLOGGED BATCH USING TIMESTAMP 1 INSERT INTO t (a) VALUES (1); \
             INSERT INTO t (a) VALUES (2) INSERT INTO T(a) VALUES (?); DELETE FROM u WHERE a = 1; \
             INSERT INTO t (a) VALUES (3) APPLY BATCH;",
            "BEGIN UNLOGGED BATCH USING TIMESTAMP ? INSERT INTO t (a) VALUES (?); \
             DELETE FROM u WHERE a = ?; INSERT INTO t (a) VALUES (?); APPLY BATCH",
        ),
        ("BEGIN BATCH APPLY BATCH", "BEGIN BATCH APPLY BATCH"),
        // definitions
        (
            "create table if not exists Ks.T (a int primary key, b map<text, frozen<list<int>>>, \
             v vector<float, 3>) with comment = 'it''s' and caching = {'keys': 'ALL'} and x = word \
             and y = -1.5 and clustering order by (b desc)",
            "CREATE TABLE IF NOT EXISTS ks.t (a int PRIMARY KEY, b map < text, frozen < list < int > > >, \
             v vector < float, ? >) WITH comment = ? AND caching = ? AND x = ? \
             AND y = ? AND CLUSTERING ORDER BY (b DESC)",
        ),
        (
            "CREATE ROLE alice WITH PASSWORD = 'secret' AND LOGIN = true",
            "CREATE ROLE alice WITH PASSWORD = ? AND LOGIN = ?",
        ),
        (
            "CREATE USER alice WITH PASSWORD secret NOSUPERUSER",
            "CREATE USER alice WITH PASSWORD ? NOSUPERUSER",
        ),
        (
            "CREATE MATERIALIZED VIEW v AS SELECT a FROM t WHERE a IS NOT NULL AND b = 'secret' \
             PRIMARY KEY (a)",
            "CREATE MATERIALIZED VIEW v AS SELECT a FROM t WHERE a IS NOT NULL AND b = ? \
             PRIMARY KEY (a)",
        ),
        (
            "CREATE FUNCTION f (a int) RETURNS NULL ON NULL INPUT RETURNS int LANGUAGE java AS \
             $$ return 'x'; $$",
            "CREATE FUNCTION f (a int) RETURNS NULL ON NULL INPUT RETURNS int LANGUAGE java AS ?",
        ),
        (
            "CREATE AGGREGATE a (int) SFUNC f STYPE tuple<int> INITCOND (0, 'x')",
            "CREATE AGGREGATE a (int) SFUNC f STYPE tuple < int > INITCOND ?",
        ),
        (
            "ALTER TABLE t ALTER c MASKED WITH mask_inner(1, 'x')",
            "ALTER TABLE t ALTER c MASKED WITH mask_inner(?, ?)",
        ),
        ("TRUNCATE TABLE Ks.t", "TRUNCATE TABLE ks.t"),
        ("USE \"Ks\"", "USE \"Ks\""),
        ("GRANT SELECT ON ks.t TO r", "GRANT SELECT ON ks.t TO r"),
        ("LIST ROLES", "LIST roles"),
    ] {
        assert_eq!(fingerprint(text), expected, "{text}");
    }
}

/// What Cassandra refuses, or what is not its CQL: nothing of it is shown.
#[test]
fn no_guesses() {
    for text in [
        "",
        ";",
        "secret",
        "EXPLAIN SELECT a FROM t",
        "SELECT",
        "SELECT a",
        "SELECT a FROM t WHERE",
        "SELECT a FROM t WHERE name = secret",
        "SELECT a FROM t WHERE name = \"secret\"",
        "SELECT a FROM t WHERE name IN secret",
        "SELECT a FROM t WHERE name = f(secret)",
        "SELECT a FROM t WHERE name = a.secret",
        "SELECT a FROM t WHERE name = (secret)",
        "SELECT a FROM t WHERE name = 'it's secret'",
        "SELECT a FROM t WHERE name = 'it's secret' AND x = 'y'",
        "SELECT a FROM t WHERE name = 'secret",
        "SELECT a FROM t WHERE name = $$secret",
        "SELECT a FROM t WHERE name = 12secret",
        "SELECT a FROM t WHERE name = {'secret'",
        "SELECT a FROM t WHERE name = ['secret')",
        "SELECT a FROM t WHERE name = 1 secret",
        "SELECT a FROM t WHERE expr(x, secret)",
        "SELECT a FROM t LIMIT secret",
        "SELECT a FROM t LIMIT 1.5",
        "SELECT a FROM t LIMIT 99999999999999999999",
        "SELECT a FROM t LIMIT 1 PER PARTITION LIMIT 1",
        "SELECT a FROM t; SELECT b FROM t",
        // Nobody knows whether that is a comment, or two signs.
        "SELECT a FROM t WHERE b = 1 --1 ALLOW FILTERING",
        "SELECT a FROM t WHERE b = 1 /* ALLOW FILTERING",
        "SELECT a, FROM t",
        "SELECT caf\u{e9} FROM t",
        "INSERT INTO t (a) VALUES (secret)",
        "INSERT INTO t (a) VALUES (1) secret",
        "UPDATE t SET a = secret WHERE k = 1",
        "UPDATE t SET a = a + secret WHERE k = 1",
        "UPDATE t SET a = 1",
        "DELETE FROM t",
        "BEGIN BATCH SELECT a FROM t APPLY BATCH",
        "BEGIN BATCH INSERT INTO t (a) VALUES (1)",
        "CREATE TABLE t (a int) WITH comment = 'it's a 'secret' thing'",
        "CREATE TABLE t (a int CHECK a > secret)",
        "CREATE TABLE t (a int) WITH comment = ''}secret''",
        "CREATE TABLE t (a int) WITH comment = '', secret ''",
        "CREATE TABLE t (a int) WITH comment = '') secret (''",
        "CREATE TABLE t (a int) WITH comment = 'he said: ' and secret plans '",
        "CREATE TABLE t (a int) WITH comment = 'he said: ' and secret 'plans'",
        "CREATE TABLE t (a int",
        "TRUNCATE - t",
        "USE true",
        "CREATE KEYSPACE 'secret'",
        "CREATE AGGREGATE a (int) SFUNC f STYPE int INITCOND secret",
    ] {
        let analysis = analyse(text);
        assert_eq!(analysis.fingerprint.text(), "unknown", "{text}");
        assert_eq!(analysis.shape, None, "{text}");
    }
}

#[test]
fn a_text_that_is_not_all_there_is_unknown() {
    let text = "SELECT a FROM ks.t WHERE b = 1";
    let analysis = Analysis::of(text.as_bytes(), text.len() + 1);
    assert!(!analysis.fingerprint.is_known());
    assert_eq!(analysis.shape, None);
    assert_eq!(analysis.statement.table.as_deref(), Some("t"));
}

#[test]
fn a_text_beyond_the_limit_is_unknown() {
    let text = |len: usize| {
        let start = "SELECT a FROM ks.t WHERE b = '";
        format!("{start}{}'", "x".repeat(len - start.len() - 1))
    };
    assert!(analyse(&text(MAX_ANALYSED_BYTES)).shape.is_some());
    let beyond = analyse(&text(MAX_ANALYSED_BYTES + 1));
    assert_eq!(beyond.shape, None);
    assert_eq!(beyond.fingerprint, Fingerprint::unknown());
    assert_eq!(beyond.statement.table.as_deref(), Some("t"));
}

#[test]
fn restrictions() {
    for (text, expected) in [
        ("SELECT a FROM t", ""),
        ("SELECT a FROM t WHERE A = 1 AND \"B\" IN (1, 2)", "a= B[2]"),
        (
            "SELECT a FROM t WHERE a IN ? AND b IN :b AND c IN () AND d IN (?)",
            "a[?] b[?] c[0] d[1]",
        ),
        (
            "SELECT a FROM t WHERE a IN ((1, 2), (3, 4), f(5, 6))",
            "a[3]",
        ),
        (
            "SELECT a FROM t WHERE token(a, b) > 1 AND token(a, b) <= ?",
            "token(a) token(b) token(a) token(b)",
        ),
        (
            "SELECT a FROM t WHERE (a, b) = (1, 2) AND (c, d) > ? AND (e, f) IN (?, ?)",
            "a= b= c.. d.. e[2] f[2]",
        ),
        (
            "SELECT a FROM t WHERE a < 1 AND b >= 2 AND c BETWEEN 1 AND 2",
            "a.. b.. c..",
        ),
        (
            "SELECT a FROM t WHERE a != 1 AND b LIKE 'x' AND c CONTAINS 1 AND d['x'] = 1",
            "a* b* c* d*",
        ),
        (
            "SELECT a FROM t WHERE (a = 1) AND key = 2 AND contains CONTAINS 3",
            "a= key= contains*",
        ),
        ("UPDATE t SET x = 1 WHERE a = 1 IF b = 2", "a="),
        ("DELETE FROM t WHERE a = 1 AND b > 2", "a= b.."),
        ("INSERT INTO t (a) VALUES (1)", ""),
    ] {
        assert_eq!(restricted(text), expected, "{text}");
    }
}

#[test]
fn whether_partitions_are_named() {
    let names = |text: &str| shape(text).names_all(&["a", "B"]);
    assert!(names(
        "SELECT x FROM t WHERE a = 1 AND \"B\" IN (1, 2) AND c > 3"
    ));
    assert!(names("SELECT x FROM t WHERE (a, \"B\") = (1, 2)"));
    assert!(!names("SELECT x FROM t WHERE a = 1 AND b = 2"));
    assert!(!names(
        "SELECT x FROM t WHERE token(a, \"B\") = token(1, 2)"
    ));
    assert!(!names(
        "SELECT x FROM t WHERE a = 1 AND \"B\" > 2 ALLOW FILTERING"
    ));
    assert!(!names("SELECT x FROM t"));
}

#[test]
fn what_a_guard_asks() {
    let select = shape("SELECT a FROM t WHERE b = 1 LIMIT 10 ALLOW FILTERING");
    assert!(select.has_where && select.allow_filtering && !select.conditional);
    assert_eq!(select.limit, Some(Number::Is(10)));
    assert_eq!(select.per_partition_limit, None);
    let select = shape("SELECT a FROM t PER PARTITION LIMIT ?");
    assert!(!select.has_where && !select.allow_filtering);
    assert_eq!(select.limit, None);
    assert_eq!(select.per_partition_limit, Some(Number::Marker));
    // Words of the same letters are no keywords.
    let select = shape(
        "SELECT allow FROM t WHERE filtering = 'ALLOW FILTERING LIMIT 1'"
            .replace("allow", "limits")
            .as_str(),
    );
    assert!(!select.allow_filtering && select.limit.is_none());

    let insert = shape("INSERT INTO t (a) VALUES (1) IF NOT EXISTS USING TTL 60 AND TIMESTAMP :t");
    assert!(insert.conditional && !insert.has_where);
    assert_eq!(
        (insert.ttl, insert.timestamp),
        (Some(Number::Is(60)), Some(Number::Marker))
    );
    let update = shape("UPDATE t USING TIMESTAMP -5 SET a = 1 WHERE k IN (1, 2, 3) IF EXISTS");
    assert!(update.conditional && update.has_where);
    assert_eq!((update.ttl, update.timestamp), (None, Some(Number::Is(-5))));
    assert_eq!((update.longest_in, update.marked_in), (Some(3), false));
    let delete = shape("DELETE FROM t WHERE k IN ? AND c IN (1)");
    assert_eq!((delete.longest_in, delete.marked_in), (Some(1), true));
}

#[test]
fn batches() {
    let shape = shape(
        "BEGIN COUNTER BATCH USING TIMESTAMP 5 UPDATE ks.t USING TTL 9 SET a = a + 1 WHERE k = 1; \
         UPDATE KS.T USING TTL 7 SET a = a + 1 WHERE k IN (1, 2); DELETE FROM u WHERE k = 1 IF EXISTS; \
         APPLY BATCH",
    );
    assert_eq!(
        (shape.ttl, shape.timestamp),
        (Some(Number::Is(9)), Some(Number::Is(5)))
    );
    assert_eq!(shape.longest_in, Some(2));
    assert!(shape.conditional && !shape.has_where && shape.restrictions.is_empty());
    let batch = shape.batch.unwrap();
    assert_eq!((batch.kind, batch.statements), (BatchKind::Counter, 3));
    let parts: Vec<_> = batch
        .parts
        .iter()
        .map(|part| format!("{} {:?} {:?}", part.kind, part.keyspace, part.table))
        .collect();
    assert_eq!(
        parts,
        ["update Some(\"ks\") Some(\"t\")", "delete None Some(\"u\")"]
    );
}

#[test]
fn bounds_hold() {
    let unknown = |text: String| assert_eq!(analyse(&text).shape, None);
    let known = |text: String| assert!(analyse(&text).shape.is_some(), "{text}");
    let relations = |n: usize| {
        let all: Vec<_> = (0..n).map(|n| format!("c{n} = 1")).collect();
        format!("SELECT a FROM t WHERE {}", all.join(" AND "))
    };
    known(relations(MAX_RESTRICTIONS));
    unknown(relations(MAX_RESTRICTIONS + 1));
    let batch = |n: usize| {
        let all: Vec<_> = (0..n)
            .map(|n| format!("DELETE FROM t{n} WHERE k = 1;"))
            .collect();
        format!("BEGIN BATCH {} APPLY BATCH", all.concat())
    };
    known(batch(MAX_BATCH_PARTS));
    unknown(batch(MAX_BATCH_PARTS + 1));
    for (open, close) in [
        ("f(", ")"),
        ("(int) ", ""),
        ("[", "]"),
        ("(", ")"),
        ("CAST(", " AS int)"),
    ] {
        let nested = |n: usize| {
            format!(
                "SELECT a FROM t WHERE b = {}1{}",
                open.repeat(n),
                close.repeat(n)
            )
        };
        known(nested(20));
        unknown(nested(100_000 / open.len()));
    }
    unknown(format!(
        "SELECT a FROM t WHERE {}b = 1",
        "(".repeat(100_000)
    ));
    unknown(format!("SELECT {}a FROM t", "(".repeat(100_000)));
    unknown(format!("SELECT a FROM {} WHERE b = 1", "x".repeat(257)));
    let columns = "column_name, ".repeat(1000);
    let values = "1, ".repeat(1000);
    let long = format!("INSERT INTO t ({columns}a) VALUES ({values}1)");
    assert!(fingerprint(&long).len() <= MAX_FINGERPRINT_BYTES);
    assert!(fingerprint(&long).ends_with("..."));
}

#[test]
fn objects() {
    use Object::*;
    for (text, object) in [
        ("CREATE KEYSPACE x", Some(Keyspace)),
        ("create schema x", Some(Keyspace)),
        ("ALTER TABLE x", Some(Table)),
        ("DROP COLUMNFAMILY x", Some(Table)),
        ("DROP TYPE x", Some(Type)),
        ("CREATE OR REPLACE FUNCTION f", Some(Function)),
        ("CREATE OR REPLACE AGGREGATE f", Some(Aggregate)),
        ("CREATE CUSTOM INDEX i", Some(Index)),
        ("/* x */ DROP /* y */ INDEX i", Some(Index)),
        ("CREATE MATERIALIZED VIEW v", Some(MaterializedView)),
        ("CREATE TRIGGER t", Some(Trigger)),
        ("ALTER ROLE r", Some(Role)),
        ("DROP USER u", Some(User)),
        ("DROP IDENTITY 'x'", Some(Identity)),
        ("CREATE MATERIALIZED x", None),
        ("CREATE", None),
        ("CREATE \"TABLE\"", None),
        ("SELECT table FROM t", None),
    ] {
        assert_eq!(analyse(text).object, object, "{text}");
    }
}

#[test]
fn statements_are_those_of_the_parser() {
    for text in [
        "SELECT * FROM ks.t WHERE a = 1",
        "INSERT INTO t (a) VALUES (1)",
        "UPDATE \"Ks\".t SET a = 1 WHERE b = 2",
        "DELETE a FROM t WHERE b = 1",
        "DROP TABLE ks.t",
        "nonsense",
    ] {
        agrees_with_the_parser(text);
    }
}

/// The parser, which knows nothing of the grammar, finds in the text what it finds in the fingerprint that
/// the grammar led to.
fn agrees_with_the_parser(text: &str) {
    let parsed = |text: &str| parse(text.as_bytes(), text.len()).statement.to_owned();
    let analysis = analyse(text);
    assert_eq!(analysis.statement, parsed(text), "{text}");
    if analysis.fingerprint.is_known() {
        assert_eq!(
            analysis.statement,
            parsed(analysis.fingerprint.text()),
            "{text}"
        );
    }
}

/// A literal that holds `secret` where it can, and a letter or digit everywhere.
fn literal() -> impl Strategy<Value = String> {
    let scalar = prop_oneof![
        "[0-9]{1,18}",
        "-[0-9]{1,18}",
        "-?[0-9]{1,9}\\.[0-9]{0,9}(e[+-]?[0-9]{1,3})?",
        "'([a-zA-Z0-9 \"();,$/*-]|'')*secret([a-zA-Z0-9 \"();,$/*-]|'')*'",
        "\\$\\$[a-zA-Z0-9 '\"();,/*-]*secret[a-zA-Z0-9 '\"();,/*-]*\\$\\$",
        "0[xX][0-9a-fA-F]{0,40}",
        "[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}",
        "([0-9]{1,3}(y|mo|w|d|h|m|s|ms|us|ns)){1,4}",
        "P[0-9]{1,3}Y[0-9]{1,3}M(T[0-9]{1,2}H)?",
        "PT[0-9]{1,2}H[0-9]{1,2}S",
        "P[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}",
        Just("true".to_string()),
        Just("NULL".to_string()),
        Just("NaN".to_string()),
        Just("-Infinity".to_string()),
    ];
    scalar.prop_recursive(3, 20, 4, |inner| {
        let some = prop::collection::vec(inner.clone(), 1..4);
        let pairs = prop::collection::vec((inner.clone(), inner), 1..4);
        prop_oneof![
            some.clone().prop_map(|all| format!("[{}]", all.join(", "))),
            some.clone()
                .prop_map(|all| format!("{{{}}}", all.join(","))),
            some.prop_map(|all| format!("({})", all.join(", "))),
            pairs.prop_map(|all| {
                let all: Vec<_> = all.iter().map(|(k, v)| format!("{k}: {v}")).collect();
                format!("{{{}}}", all.join(", "))
            }),
        ]
    })
}

/// `@` stands for a literal, `#` for a list of them.
const TEMPLATES: [&str; 11] = [
    "SELECT a FROM ks.t WHERE b = @ AND c IN (#) AND d > @",
    "SELECT a, f(@), @ FROM t WHERE token(b) > token(@) AND (c, d) = (@, @) AND m[@] = @",
    "SELECT a FROM t WHERE b = @ AND c CONTAINS @ AND d BETWEEN @ AND @ AND e LIKE @ ALLOW FILTERING",
    "INSERT INTO ks.t (a, b, c) VALUES (@, @, f(@))",
    "INSERT INTO t (a) VALUES ([#, @])",
    "UPDATE t SET a = @, b = b + @, c[@] = @, d += @ WHERE k = @ AND l IN (#) IF v = @ AND w IN (#)",
    "DELETE a[@] FROM t WHERE b = @ AND (c, d) > (@, @)",
    "BEGIN BATCH INSERT INTO t (a, b) VALUES (@, @); UPDATE t SET a = @ WHERE b = @; APPLY BATCH",
    "CREATE TABLE t (a int) WITH comment = @ AND x = @",
    "CREATE ROLE r WITH PASSWORD = @ AND OPTIONS = @",
    "CREATE AGGREGATE a (int) SFUNC f STYPE int INITCOND @",
];

fn fill(template: &str, literals: &[String]) -> String {
    let mut literals = literals.iter().cycle();
    let mut text = String::new();
    for c in template.chars() {
        match c {
            '@' => text += literals.next().unwrap(),
            '#' => {
                let all: Vec<_> = literals.by_ref().take(3).map(String::as_str).collect();
                text += &all.join(",");
            }
            c => text.push(c),
        }
    }
    text
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    /// Whatever the values, the fingerprint is one, and shows none of them.
    #[test]
    fn values_do_not_show(
        template in prop::sample::select(TEMPLATES.to_vec()),
        literals in prop::collection::vec(literal(), 1..6),
    ) {
        let text = fill(template, &literals);
        let expected = fingerprint(&fill(template, &["1".to_string()]));
        prop_assert_ne!(&expected, "unknown");
        let found = fingerprint(&text);
        prop_assert!(!found.contains("secret"));
        prop_assert_eq!(found, expected, "{}", text);
    }

    /// Neither does the way it is written: case of keywords, blanks, comments.
    #[test]
    fn spelling_does_not_show(
        template in prop::sample::select(TEMPLATES.to_vec()),
        blanks in prop::collection::vec(
            prop::sample::select(vec![" ", "\n", "\t ", "/* secret */", "-- secret\n", "//\n"]), 1..9,
        ),
        upper: bool,
    ) {
        let text = fill(template, &["'x'".to_string()]);
        let expected = fingerprint(&text);
        let mut blanks = blanks.iter().cycle();
        let cased = if upper { text.to_uppercase() } else { text.to_lowercase() };
        let spaced: String = cased
            .split_inclusive(' ')
            .flat_map(|word| [word, blanks.next().unwrap()])
            .collect();
        prop_assert_eq!(fingerprint(&spaced), expected);
    }

    /// A literal with a mistake in it: the fingerprint may be unknown, but shows no part of it.
    /// (Where columns are selected, a word is one.)
    #[test]
    fn broken_values_do_not_show(
        template in prop::sample::select(TEMPLATES.to_vec()),
        literals in prop::collection::vec("[a-z'\" $0-9{}\\[\\]:-]{0,8}zq[a-z'\" $0-9]{0,8}", 1..4),
        quoted: bool,
    ) {
        prop_assume!(!template.starts_with("SELECT a, f("));
        let literals: Vec<_> = literals
            .into_iter()
            .map(|literal| if quoted { format!("'{literal}'") } else { literal })
            .collect();
        let text = fill(template, &literals);
        let found = fingerprint(&text);
        prop_assert!(!found.contains("zq"), "{} of {}", found, text);
    }

    #[test]
    fn survives_anything(text: Vec<u8>, missing in 0..2_usize) {
        Analysis::of(&text, text.len() + missing);
    }

    #[test]
    fn survives_what_looks_like_cql(words in prop::collection::vec(prop::sample::select(vec![
        "select", "from", "insert into", "update", "delete", "begin", "batch", "apply", "values",
        "set", "where", "and", "in", "token", "using", "ttl", "limit", "per partition", "if", "not",
        "exists", "create", "table", "with", "password", "t", "a", ".", ",", "(", ")", "[", "]", "{",
        "}", "=", "<", "!", "+", "-", "*", "?", ":", ";", "'x'", "\"q\"", "1", "0x", "'", "\"", "$$",
        "/*", "*/", "--", "\n", " ", "null", "cast", "as", "json", "\u{e9}",
    ]), 0..40), blank: bool) {
        let text = words.join(if blank { " " } else { "" });
        agrees_with_the_parser(&text);
    }

    #[test]
    fn names_are_those_of_the_parser(
        template in prop::sample::select(TEMPLATES.to_vec()),
        literals in prop::collection::vec(literal(), 1..4),
    ) {
        agrees_with_the_parser(&fill(template, &literals));
    }
}

/// What this thread has had of a processor, whoever else there is.
fn on_the_processor() -> Duration {
    let time = nix::time::clock_gettime(nix::time::ClockId::CLOCK_THREAD_CPUTIME_ID);
    time.unwrap().into()
}

/// Time is in proportion to the text: eight times the text takes eight times as long, not 64.
#[test]
fn time_is_linear() {
    const SHORT_BYTES: usize = 31 << 10;
    let repeated = [
        ("SELECT a FROM t WHERE b = ", "(", ""),
        ("SELECT a FROM t WHERE b IN (1", ",(1)", ")"),
        ("SELECT a FROM t WHERE b = 1", "+1", ""),
        ("SELECT a FROM t WHERE b = '", "''", "'"),
        ("SELECT a FROM t WHERE b = ", "-- x\n", "1"),
        ("SELECT a FROM t WHERE b = ", "/**/", "1"),
        ("SELECT a FROM t WHERE b = ", "1h", ""),
        ("SELECT a FROM t WHERE b = ", "a.", "a()"),
        ("SELECT ", "a,", "a FROM t"),
        ("SELECT ", "\"a\",", "a FROM t"),
        ("SELECT ", "json ", "a FROM t"),
        ("BEGIN BATCH ", "DELETE FROM t WHERE k = 1;", "APPLY BATCH"),
        ("CREATE TABLE t (", "a int,", "a int)"),
        ("UPDATE t SET ", "a=1,", "a=1 WHERE b=1"),
        ("", "P", ""),
        ("", "(", ""),
        ("", "'", ""),
        ("", "$$ ", ""),
        ("", "a", ""),
    ];
    let time = |text: &str| {
        let best = (0..3).map(|_| {
            let start = on_the_processor();
            std::hint::black_box(analyse(text));
            on_the_processor() - start
        });
        best.min().unwrap_or_default()
    };
    for (begin, unit, end) in repeated {
        let many = |bytes: usize| {
            let units = unit.repeat(bytes / unit.len());
            time(&format!("{begin}{units}{end}"))
        };
        let (short, long) = (many(SHORT_BYTES), many(8 * SHORT_BYTES));
        // Room for a busy machine, and none for a square.
        let bound = short * 24 + Duration::from_millis(100);
        assert!(long < bound, "{begin}{unit}: {short:?}, then {long:?}");
    }
}
