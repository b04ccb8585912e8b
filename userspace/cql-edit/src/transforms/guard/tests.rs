use super::*;

fn judge(settings: &str) -> Judge {
    let settings: GuardSettings = toml::from_str(settings).unwrap();
    Judge::new(settings).unwrap()
}

fn reason(judge: &Judge, text: &str, keyspace: Option<&str>) -> Option<Reason> {
    let analysis = Analysis::of(text.as_bytes(), text.len());
    let objection = judge.objection(text.as_bytes(), &analysis, keyspace);
    objection.map(|objection| objection.reason)
}

/// Settings; statements, and why they are refused.
type Case = (&'static str, &'static [(&'static str, Option<Reason>)]);

const CASES: [Case; 13] = [
    (
        "refuse = [\"ddl\"]",
        &[
            ("CREATE TABLE shop.t (k int PRIMARY KEY)", Some(Reason::Ddl)),
            ("/* x */ drop keyspace shop", Some(Reason::Ddl)),
            ("ALTER TABLE shop.t ADD c int", Some(Reason::Ddl)),
            ("CREATE ROLE r", None),
            ("TRUNCATE shop.t", None),
            ("SELECT * FROM shop.t", None),
        ],
    ),
    (
        "refuse = [\"roles\"]",
        &[
            ("CREATE ROLE r", Some(Reason::Roles)),
            ("GRANT SELECT ON shop.t TO r", Some(Reason::Roles)),
            ("DROP TABLE shop.t", None),
        ],
    ),
    (
        "refuse = [\"truncate\", \"writes\"]",
        &[
            ("TRUNCATE TABLE shop.t", Some(Reason::Truncate)),
            ("INSERT INTO shop.t (k) VALUES (1)", Some(Reason::Write)),
            (
                "BEGIN BATCH DELETE FROM shop.t WHERE k = 1; APPLY BATCH",
                Some(Reason::Write),
            ),
            ("SELECT * FROM shop.t", None),
        ],
    ),
    (
        "refuse = [\"allow_filtering\"]",
        &[
            (
                "SELECT * FROM shop.t WHERE v = 1 ALLOW FILTERING",
                Some(Reason::AllowFiltering),
            ),
            ("SELECT * FROM shop.t WHERE v = 'ALLOW FILTERING'", None),
            ("SELECT * FROM shop.t SOMETHING NEW", Some(Reason::Unknown)),
            ("INSERT INTO shop.t SOMETHING NEW", None),
        ],
    ),
    (
        "refuse = [\"no_limit\", \"no_where\"]",
        &[
            ("SELECT * FROM shop.t WHERE k = 1", Some(Reason::NoLimit)),
            ("SELECT * FROM shop.t LIMIT 10", Some(Reason::NoWhere)),
            (
                "SELECT * FROM shop.t WHERE k = 1 PER PARTITION LIMIT 1",
                Some(Reason::NoLimit),
            ),
            ("SELECT * FROM shop.t WHERE k = 1 LIMIT ?", None),
            ("SELECT * FROM system.peers", None),
        ],
    ),
    (
        "refuse = [\"conditional\"]",
        &[
            (
                "UPDATE shop.t SET v = 1 WHERE k = 1 IF v = 0",
                Some(Reason::Conditional),
            ),
            ("UPDATE shop.t SET v = 1 WHERE k = 1", None),
        ],
    ),
    (
        "max_in = 2\nmax_limit = 100",
        &[
            (
                "SELECT * FROM shop.t WHERE k IN (1, 2, 3)",
                Some(Reason::In),
            ),
            ("SELECT * FROM shop.t WHERE k IN (1, 2)", None),
            ("SELECT * FROM shop.t WHERE k IN ?", None),
            ("SELECT * FROM shop.t LIMIT 101", Some(Reason::Limit)),
            ("SELECT * FROM shop.t LIMIT 100", None),
        ],
    ),
    (
        "max_batch = 1\nmax_bytes = 120",
        &[
            (
                "BEGIN BATCH INSERT INTO shop.t (k) VALUES (1); INSERT INTO shop.t (k) VALUES (2); \
                 APPLY BATCH",
                Some(Reason::Batch),
            ),
            (
                "BEGIN BATCH INSERT INTO shop.t (k) VALUES (1); APPLY BATCH",
                None,
            ),
            (
                "SELECT * FROM shop.t WHERE k = '0123456789012345678901234567890123456789\
                 0123456789012345678901234567890123456789012345678901234567890'",
                Some(Reason::Bytes),
            ),
        ],
    ),
    (
        "tables = [\"shop.orders\", \"logs*\"]",
        &[
            ("SELECT * FROM shop.orders", None),
            ("SELECT * FROM orders", None),
            ("SELECT * FROM \"Orders\"", Some(Reason::Table)),
            ("SELECT * FROM shop.secrets", Some(Reason::Table)),
            ("SELECT * FROM logs_2026.t", None),
            ("SELECT * FROM system.local", None),
            (
                "INSERT INTO system_auth.roles (role) VALUES ('x')",
                Some(Reason::Table),
            ),
            ("USE shop", None),
            ("USE secret", Some(Reason::Table)),
            (
                "BEGIN BATCH INSERT INTO orders (k) VALUES (1); DELETE FROM secrets WHERE k = 1; \
                 APPLY BATCH",
                Some(Reason::Table),
            ),
            ("SELECT * FROM shop.orders.x", Some(Reason::Table)),
            ("DROP TABLE shop.orders", None),
            ("ALTER TABLE shop.secrets DROP a", Some(Reason::Table)),
            ("CREATE TABLE logs_2026.t (k int PRIMARY KEY)", None),
            ("DROP KEYSPACE logs_2026", None),
            ("DROP KEYSPACE shop", Some(Reason::Table)),
            ("DROP KEYSPACE IF EXISTS", Some(Reason::Table)),
            ("CREATE INDEX ON shop.orders (v)", Some(Reason::Table)),
            (
                "CREATE MATERIALIZED VIEW logs_2026.v AS SELECT * FROM shop.secrets WHERE k IS NOT \
                 NULL PRIMARY KEY (k)",
                Some(Reason::Table),
            ),
            ("CREATE ROLE r", None),
        ],
    ),
    (
        "tables = [\"shop.*\"]",
        &[
            ("USE shop", None),
            ("SELECT * FROM shop.anything", None),
            ("DROP KEYSPACE shop", Some(Reason::Table)),
        ],
    ),
    (
        "not_tables = [\"shop.secrets\"]",
        &[
            ("SELECT * FROM secrets", Some(Reason::Table)),
            ("SELECT * FROM shop.orders", None),
            ("SELECT * FROM other.secrets", None),
            ("USE shop", None),
            ("DROP KEYSPACE shop", Some(Reason::Table)),
            ("DROP KEYSPACE other", None),
            ("DROP TYPE shop.t", Some(Reason::Table)),
        ],
    ),
    (
        "[partition_keys]\n\"shop.t\" = [\"a\", \"b\"]",
        &[
            ("SELECT * FROM shop.t WHERE a = 1 AND b IN (1, 2)", None),
            ("SELECT * FROM t WHERE a = 1", Some(Reason::PartitionKey)),
            (
                "DELETE FROM shop.t WHERE a = 1 AND b > 3",
                Some(Reason::PartitionKey),
            ),
            ("SELECT * FROM shop.other", None),
        ],
    ),
    (
        "refuse = [\"unknown\"]",
        &[
            ("SELECTED * FROM shop.t", Some(Reason::Unknown)),
            ("SELECT * FROM shop.t", None),
        ],
    ),
];

#[test]
fn each_setting_refuses_what_it_names() {
    for (settings, statements) in CASES {
        let judge = judge(settings);
        for (text, expected) in statements {
            assert_eq!(
                reason(&judge, text, Some("shop")),
                *expected,
                "{settings}: {text}"
            );
        }
    }
}

#[test]
fn every_reason_is_tried() {
    let tried: Vec<Reason> = CASES
        .iter()
        .flat_map(|(_, statements)| statements.iter().filter_map(|(_, reason)| *reason))
        .collect();
    for reason in Reason::ALL {
        assert!(tried.contains(reason), "{reason}");
    }
}

#[test]
fn a_table_whose_keyspace_is_not_known_is_not_let_pass() {
    let judge = judge("tables = [\"shop.orders\"]");
    assert_eq!(
        reason(&judge, "SELECT * FROM orders", None),
        Some(Reason::Table)
    );
    assert_eq!(reason(&judge, "SELECT * FROM shop.orders", None), None);
}

#[test]
fn what_cannot_be_is_told() {
    for (settings, expected) in [
        ("", "expected something to refuse"),
        ("tables = [\"a.b.c\"]", "tables: expected `keyspace`"),
        ("not_tables = [\"a*b\"]", "not_tables: expected `keyspace`"),
        ("[partition_keys]\nt = [\"a\"]", "partition_keys: expected"),
        (
            "refuse = [\"ddl\"]\nusers = [\"a*b\"]",
            "users: expected a name",
        ),
        (
            "refuse = [\"ddl\"]\nnot_drivers = [\"\"]",
            "not_drivers: expected a name",
        ),
        (
            "refuse = [\"ddl\"]\nwhen = { days = \"mon\", tz = \"Nowhere\" }",
            "when.tz: expected a time zone",
        ),
    ] {
        let settings: GuardSettings = toml::from_str(settings).unwrap();
        let error = settings.build().unwrap_err();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn an_objection_is_told_in_words_with_names_and_without_values() {
    let long = "x".repeat(70);
    let quoted = format!("SELECT * FROM shop.\"{long}\"");
    let lines = "SELECT * FROM shop.\"a\nb\u{1b}[2J\"";
    for (settings, text, told) in [
        (
            "refuse = [\"truncate\"]",
            "TRUNCATE shop.t",
            "TRUNCATE is not allowed",
        ),
        (
            "refuse = [\"ddl\"]",
            "DROP TABLE shop.t",
            "DROP is not allowed",
        ),
        (
            "refuse = [\"roles\"]",
            "CREATE ROLE r WITH PASSWORD = 's3cret'",
            "CREATE is not allowed",
        ),
        (
            "refuse = [\"writes\"]",
            "INSERT INTO shop.t (k) VALUES ('s3cret')",
            "INSERT is not allowed",
        ),
        (
            "refuse = [\"no_limit\"]",
            "SELECT * FROM t WHERE k = 's3cret'",
            "a SELECT needs a LIMIT",
        ),
        (
            "refuse = [\"no_where\"]",
            "SELECT * FROM t",
            "a SELECT needs a WHERE",
        ),
        (
            "refuse = [\"allow_filtering\"]",
            "SELECT * FROM t WHERE v = 's3cret' ALLOW FILTERING",
            "ALLOW FILTERING is not allowed",
        ),
        (
            "refuse = [\"conditional\"]",
            "UPDATE t SET v = 's3cret' WHERE k = 1 IF EXISTS",
            "IF is not allowed",
        ),
        (
            "refuse = [\"unknown\"]",
            "FROBNICATE 's3cret'",
            "the statement is not understood",
        ),
        (
            "max_limit = 10",
            "SELECT * FROM t LIMIT 4711",
            "its LIMIT is above 10",
        ),
        (
            "max_in = 1",
            "SELECT * FROM t WHERE k IN ('s3cret', 2)",
            "a list behind IN has more than 1 elements",
        ),
        (
            "max_bytes = 5",
            "SELECT 's3cret'",
            "the text has 15 bytes, and 5 are allowed",
        ),
        (
            "not_tables = [\"shop.cards\"]",
            "SELECT pan FROM shop.cards WHERE pan = 's3cret'",
            "table shop.cards is closed to user x",
        ),
        (
            "not_tables = [\"shop.c*\"]",
            "INSERT INTO shop.cards (pan) VALUES ('s3cret')",
            "table shop.cards is closed to user x",
        ),
        (
            "tables = [\"logs\"]",
            "USE shop",
            "keyspace shop is closed to user x",
        ),
        (
            "tables = [\"logs\"]",
            "SELECT * FROM t",
            "a table whose name cannot be told is closed to user x",
        ),
        (
            "[partition_keys]\n\"shop.t\" = [\"a\", \"b\"]",
            "SELECT * FROM shop.t WHERE a = 's3cret'",
            "table shop.t needs a, b restricted by = or IN",
        ),
        (
            "max_batch = 1",
            "BEGIN BATCH DELETE FROM t WHERE k = 1; DELETE FROM t WHERE k = 2; APPLY BATCH",
            "a batch has 2 statements, and 1 are allowed",
        ),
        (
            "tables = [\"logs\"]",
            lines,
            "table shop.a?b?[2J is closed to user x",
        ),
        (
            "tables = [\"logs\"]",
            &quoted,
            &format!("table shop.{}… is closed to user x", &long[..64]),
        ),
    ] {
        let analysis = Analysis::of(text.as_bytes(), text.len());
        let objection = judge(settings)
            .objection(text.as_bytes(), &analysis, None)
            .unwrap();
        let said = objection.told_to(Some("x"));
        assert_eq!(said, told, "{text:.80}");
        // It may be another flow's, which has not logged in.
        let closed = objection.told_to(None);
        assert!(
            !closed.contains("user") && said.starts_with(closed.as_str()),
            "{closed}"
        );
        for value in ["s3cret", "4711"] {
            assert!(!said.contains(value), "{said}");
        }
    }
}
