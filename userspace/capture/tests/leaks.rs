//! A canary at every place where the grammar has a value, in every form that somebody may write: neither a masked text nor a
//! fingerprint has it.

use capture::masked;

/// A word that no statement has.
const CANARY: &str = "zq4canary";

/// Statements; `@` stands where a value does. Columns, tables, roles and types are names, in whatever quotes.
const SHAPES: [&str; 50] = [
    "SELECT a FROM t WHERE b = @",
    "SELECT a FROM t WHERE b = @ AND c > @ AND d != @ ALLOW FILTERING",
    "SELECT a FROM t WHERE b IN (@, @)",
    "SELECT a FROM t WHERE b IN @",
    "SELECT a FROM t WHERE b NOT IN (@)",
    "SELECT a FROM t WHERE (b, c) = (@, @) AND (d, e) IN ((@, @), (@, @))",
    "SELECT a FROM t WHERE token(b) > token(@) AND token(b) <= @",
    "SELECT a FROM t WHERE b CONTAINS @ AND c CONTAINS KEY @ AND d LIKE @",
    "SELECT a FROM t WHERE b BETWEEN @ AND @ AND m[@] = @",
    "SELECT a FROM t WHERE expr(i, @) AND (b = @)",
    "SELECT a FROM t WHERE b = f(@, g(@)) AND c = (int) @ AND d = 1 + @",
    "SELECT a FROM t WHERE b = [@, @] AND c = {@, @} AND d = {@: @, @: @} AND e = (@, [@])",
    "SELECT a FROM t WHERE b = {street: @, \"Zip\": @}",
    "SELECT m[@], l[@..@] FROM t",
    "SELECT a FROM t ORDER BY v ANN OF @",
    "SELECT a FROM t PER PARTITION LIMIT @",
    "SELECT a FROM t LIMIT @",
    "SELECT a FROM t USING TIMEOUT @",
    "INSERT INTO t (a, b) VALUES (@, @)",
    "INSERT INTO t (a, b) VALUES (@, f(@)) IF NOT EXISTS USING TTL @ AND TIMESTAMP @",
    "INSERT INTO t (a, b) VALUES ([@], {@: {@: @}})",
    "INSERT INTO t JSON @",
    "INSERT INTO t JSON @ DEFAULT UNSET",
    "UPDATE t USING TTL @ SET a = @, b = b + @, c[@] = @, d.e = @, f += @ WHERE k = @",
    "UPDATE t SET a = @ WHERE k = @ IF b = @ AND c IN (@, @) AND m[@] = @",
    "UPDATE t SET a = [@] + a, b = b - {@} WHERE k IN (@)",
    "DELETE m[@], b FROM t USING TIMESTAMP @ WHERE k = @ IF v = @",
    "BEGIN BATCH USING TIMESTAMP @ INSERT INTO t (a) VALUES (@); UPDATE t SET a = @ WHERE k = @; \
     DELETE FROM t WHERE k = @; APPLY BATCH",
    "TRUNCATE t USING TIMEOUT @",
    "CREATE KEYSPACE ks WITH replication = {'class': @, @: @} AND durable_writes = @",
    "CREATE TABLE t (a int PRIMARY KEY) WITH comment = @",
    "CREATE TABLE t (a int, v vector<float, 3>, PRIMARY KEY (a)) WITH comment = @ AND x = @ AND caching = {@: @} \
     AND CLUSTERING ORDER BY (a DESC)",
    "ALTER TABLE t WITH comment = @",
    "ALTER TABLE t DROP c USING TIMESTAMP @",
    "ALTER TABLE t ALTER c MASKED WITH mask_inner(@, @)",
    "CREATE TABLE t (a int, b text MASKED WITH f(@) PRIMARY KEY)",
    "CREATE CUSTOM INDEX i ON t (a) USING @ WITH OPTIONS = {@: @}",
    "CREATE TRIGGER g ON t USING @",
    "CREATE MATERIALIZED VIEW v AS SELECT a FROM t WHERE a IS NOT NULL AND b = @ PRIMARY KEY (a) WITH comment = @",
    "CREATE FUNCTION f (a int) CALLED ON NULL INPUT RETURNS int LANGUAGE java AS @",
    "CREATE AGGREGATE a (int) SFUNC f STYPE int INITCOND @",
    "CREATE ROLE r WITH PASSWORD = @ AND LOGIN = @ AND OPTIONS = {@: @}",
    "CREATE ROLE r WITH ACCESS TO DATACENTERS {@, @} AND ACCESS FROM CIDRS {@} AND PASSWORD = @",
    "CREATE ROLE r WITH ACCESS TO DATACENTERS @",
    "ALTER ROLE r WITH HASHED PASSWORD = @",
    "ALTER USER u WITH PASSWORD @",
    "CREATE USER u WITH PASSWORD @ NOSUPERUSER",
    "DROP IDENTITY IF EXISTS @",
    "GRANT SELECT ON MBEAN @ TO r",
    "REVOKE SELECT ON MBEANS @ FROM r",
];

/// Values; `@` stands for the canary. The first four are the quotings, the others what surrounds them.
const FORMS: [&str; 40] = [
    "@",
    "\"@\"",
    "'@'",
    "$$@$$",
    // Quotes of the other kinds within, doubled, and none that ends.
    "'\"@\"'",
    "\"'@'\"",
    "'it''s @'",
    "\"it\"\"s @\"",
    "$$it's @$$",
    "'@",
    "\"@",
    "$$@",
    "'it's @'",
    "''@''",
    "\"x\"@\"x\"",
    // Numbers and what is glued to them.
    "12@",
    "0x@",
    "-@",
    "+@",
    "12345678-1234-1234-1234-@",
    "@-1234-1234-1234-123456789abc",
    "1 @",
    "@ 1",
    "'x' @",
    "1 + @",
    "@.x",
    "x.@",
    // Comments.
    "/* @ */ 1",
    "1 -- @\n",
    "1 // @\n",
    "/* @",
    // Collections, tuples, types, functions.
    "[@]",
    "[\"@\", '@']",
    "{@: 1}",
    "{'x':@}",
    "{\"@\": \"@\"}",
    "(@)",
    "(@, \"@\")",
    "f(@)",
    "(text) \"@\"",
];

/// The text with `form` at the value of this number, and the canary in it; all others are 1.
fn text(shape: &str, at: usize, form: &str) -> String {
    let mut text = String::new();
    for (nth, piece) in shape.split('@').enumerate() {
        match nth {
            0 => {}
            _ if nth == at + 1 => text += &form.replace('@', CANARY),
            _ => text += "1",
        }
        text += piece;
    }
    text
}

/// Demands that nothing which may be shown of a text has the canary. Returns whether anything is shown.
fn holds(text: &str) -> bool {
    let masked = masked(text);
    let shown = masked.as_deref().unwrap_or_default().to_ascii_lowercase();
    assert!(!shown.contains(CANARY), "{text}\n{shown}");
    let analysis = cql::Analysis::of(text.as_bytes(), text.len());
    let fingerprint = analysis.fingerprint.text().to_ascii_lowercase();
    assert!(!fingerprint.contains(CANARY), "{text}\n{fingerprint}");
    masked.is_some()
}

#[test]
fn no_value_shows_wherever_it_stands_and_whatever_its_quotes() {
    let (mut texts, mut shown) = (0, 0);
    for shape in SHAPES {
        for at in 0..shape.matches('@').count() {
            for form in FORMS {
                for text in [text(shape, at, form), text(shape, at, form).to_uppercase()] {
                    texts += 1;
                    shown += usize::from(holds(&text));
                }
            }
        }
    }
    // Most forms are mistakes. A mask that shows nothing would be of no use.
    assert!(shown * 5 > texts, "{shown} of {texts}");
}

/// The quotings that are right: such a text is shown, so that it can be replayed.
#[test]
fn right_values_leave_a_text_that_is_shown() {
    for shape in SHAPES {
        // Numbers, and a list.
        if ["LIMIT", "USING", "IN @", "l[@"]
            .iter()
            .any(|one| shape.contains(one))
        {
            continue;
        }
        let quoted = shape.replace('@', &format!("'{CANARY}'"));
        let may_be_none = shape.ends_with("DATACENTERS @");
        assert!(holds(&quoted) || may_be_none, "{quoted}");
    }
}
