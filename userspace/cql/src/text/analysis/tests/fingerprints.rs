//! Fingerprints of texts, and texts that have none.

use super::*;

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

/// Texts that Cassandra refuses, or that are not its CQL: nothing of them is shown.
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
