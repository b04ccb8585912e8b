//! Errors that a client gets when its request is refused: by which rule, and why, whatever step it was.

use crate::support::edit::*;
use crate::support::values::*;
use crate::support::*;

/// Steps in front of which this text is refused, and what is said of it.
const REFUSED: [(&str, &str, &str); 8] = [
    (
        "transform = \"guard\"\nrefuse = [\"truncate\"]",
        "TRUNCATE shop.t",
        "TRUNCATE is not allowed",
    ),
    (
        "transform = \"guard\"\nnot_tables = [\"shop.cards\"]",
        "SELECT * FROM shop.cards WHERE k = 's3cret'",
        "table shop.cards is closed",
    ),
    (
        "transform = \"throttle\"\nrate = 0.5\nburst = 1\nmode = \"overloaded\"",
        "SELECT * FROM shop.t WHERE k = 's3cret'",
        "too many requests: more than 0.5 a second under this rule",
    ),
    (
        "transform = \"throttle\"\nrate = 0.5\nburst = 1\nper = \"user\"\nmode = \"overloaded\"",
        "SELECT * FROM shop.t WHERE k = 's3cret'",
        "too many requests: more than 0.5 a second of this user",
    ),
    (
        "transform = \"paging\"\nat_most = 10\nwithout_size = \"refuse\"",
        "SELECT * FROM shop.t WHERE k = 's3cret'",
        "name one, or a LIMIT of 10 rows or less",
    ),
    (
        "transform = \"rewrite\"\nmax_ttl = \"100s\"",
        "gibberish 's3cret' using ttl 500",
        "does not understand",
    ),
    (
        "transform = \"rewrite\"\nkeyspaces = { shop = \"shop_v2\" }",
        "gibberish shop.t 's3cret'",
        "does not understand",
    ),
    (
        "transform = \"rewrite\"\ntables = { \"shop.t\" = \"shop.t2\" }",
        "SELECT * FROM t WHERE k = 's3cret'",
        "name the keyspace",
    ),
];

#[test]
fn every_refusal_names_the_rule_and_the_reason_and_no_value() {
    for kind in KINDS {
        for (settings, text, reason) in REFUSED {
            let mut flow = Edits::of(kind, settings);
            if settings.contains("throttle") {
                // The one token.
                flow.requests(&kind.sent(0, 7, QUERY, &ask(kind.version, "SELECT a FROM b")));
            }
            let (_, message) = refusal(&mut flow, QUERY, &ask(kind.version, text));
            let told = message.strip_prefix("underpass: refused by rule r: ");
            let told = told.unwrap_or_else(|| panic!("{kind:?} {settings}: {message}"));
            assert!(told.contains(reason), "{kind:?} {settings}: {message}");
            assert!(!message.contains("s3cret"), "{message}");
        }
    }
}

#[test]
fn a_request_that_a_step_cannot_read_is_refused_by_its_rule() {
    for kind in KINDS {
        let mut flow = Edits::of(kind, REFUSED[0].0);
        let (_, message) = refusal(&mut flow, QUERY, b"\0\0\0\x7f?");
        assert!(
            message.starts_with("underpass: refused by rule r: the proxy's policy cannot read"),
            "{kind:?}: {message}"
        );
    }
}

#[test]
fn who_has_logged_in_is_told_that_it_is_closed_to_him() {
    let judged = |user: Option<&str>| {
        let caller = cql_edit::Caller {
            rule: "no-sensitive".into(),
            user: user.map(str::to_owned),
            ..cql_edit::Caller::default()
        };
        let kind = KINDS[0];
        let mut flow = Edits::new(kind, vec![]);
        flow.editor = cql_edit::Editor::new(vec![step(REFUSED[1].0)].into(), caller);
        let [(_, startup), (_, ready)] = kind.handshake();
        flow.requests(&startup);
        flow.responses(&ready);
        refusal(&mut flow, QUERY, &ask(kind.version, REFUSED[1].1)).1
    };
    // READY: nobody has to log in.
    let told = judged(Some("x"));
    assert!(
        told.contains("rule no-sensitive: table shop.cards is closed"),
        "{told}"
    );
}
