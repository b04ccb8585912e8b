//! Shapes of statements.

use super::*;

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
fn clauses_of_scylladb() {
    let select = shape(
        "SELECT a FROM t WHERE b = 1 LIMIT 5 ALLOW FILTERING BYPASS CACHE USING TIMEOUT 2000ms",
    );
    assert!(select.has_where && select.allow_filtering);
    assert_eq!(select.limit, Some(Number::Is(5)));
    for text in [
        "SELECT a FROM t USING TIMEOUT ?",
        "SELECT a FROM t BYPASS CACHE",
        "INSERT INTO t (a) VALUES (1) IF NOT EXISTS USING TIMEOUT 5s",
        "DELETE FROM t USING TIMEOUT 5s AND TIMESTAMP 1 WHERE a = 1",
        "BEGIN BATCH USING TIMEOUT 5s INSERT INTO t (a) VALUES (1) APPLY BATCH",
        "TRUNCATE t USING TIMEOUT 1m",
    ] {
        shape(text);
    }
    let update = shape("UPDATE t USING TTL 7 AND TIMEOUT :t SET a = 1 WHERE b = 1");
    assert_eq!(update.ttl, Some(Number::Is(7)));
    for text in [
        "SELECT a FROM t USING TTL 5",
        "SELECT a FROM t USING TIMEOUT",
        "SELECT a FROM t USING TIMEOUT 5s BYPASS CACHE",
        "SELECT a FROM t BYPASS CACHE ALLOW FILTERING",
        "SELECT a FROM t USING TIMEOUT 5s; TRUNCATE t",
        "TRUNCATE t USING TIMESTAMP 5",
    ] {
        assert_eq!(analyse(text).shape, None, "{text}");
    }
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
