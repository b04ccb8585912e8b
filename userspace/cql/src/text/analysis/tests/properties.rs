//! Properties of every text.

use super::*;
use proptest::prelude::*;

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

    /// Values do not matter: the fingerprint is one, and shows none of them.
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
