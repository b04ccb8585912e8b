//! Statements as clients may write them: each is known for what it is, passes steps that have nothing to do with it byte
//! for byte, and is in another keyspace the same statement.

use crate::protecting::database::{TestVault, protected_columns};
use crate::support::edit::*;
use crate::support::*;
use cassandra_protocol::compression::Compression;
use cql::text::parse;
use grammar::{Statement, statement};

const STATEMENTS: u64 = 2_000;

#[test]
fn every_statement_is_known_for_what_it_is() {
    for n in 0..STATEMENTS {
        let made = statement(1, n, "gena");
        let text = made.text.as_bytes();
        let parsed = parse(text, text.len());
        let kind = parsed.statement.kind.as_str();
        assert_eq!(kind, made.kind, "{n}: {:?}", made.text);
        assert!(!parsed.cut, "{n}: {:?}", made.text);
        if let Some((keyspace, table)) = &made.about {
            let found = cql::Statement::of(text);
            let found = (found.keyspace.as_deref(), found.table.as_deref());
            let expected = (keyspace.as_deref(), Some(&table[..]));
            assert_eq!(found, expected, "{n}: {:?}", made.text);
        }
    }
}

/// Steps that have nothing to do with any of them.
const STEPS: [&str; 11] = [
    "transform = \"throttle\"\nrate = 1000000",
    "transform = \"guard\"\nrefuse = [\"unknown\", \"ddl\", \"roles\", \"truncate\"]\nmax_in = 100000\nmax_batch = 1000",
    "transform = \"guard\"\ntables = [\"nowhere.*\", \"system*\", \"gena.*\"]",
    "transform = \"guard\"\nnot_tables = [\"nowhere.*\"]",
    "transform = \"consistency\"\nat_least = \"ONE\"",
    "transform = \"paging\"\nat_most = 5000",
    "transform = \"rewrite\"\nkeyspaces = { nowhere = \"elsewhere\" }",
    "transform = \"rewrite\"\ntables = { \"gena.nothing\" = \"gena.anything\" }",
    "transform = \"rewrite\"\nmax_ttl = \"7300d\"\ntimestamps = { max_ahead = \"1s\" }",
    "transform = \"lookup\"",
    "transform = \"tracing\"\none_in = 4294967295",
];

/// A flow that has this step, in keyspace `gena`.
fn flow(version: u8, settings: &str) -> Edits {
    let mut flow = Edits::of(kind(version, Compression::None), settings);
    flow.editor.set_time(1_800_000_000_000_000);
    uses(&mut flow);
    flow
}

fn uses(flow: &mut Edits) {
    let kind = flow.kind;
    flow.requests(&kind.sent(0, 1, QUERY, &ask(kind.version, "USE gena")));
    let body = [&3_i32.to_be_bytes()[..], &string("gena")].concat();
    flow.responses(&kind.sent(0x80, 1, RESULT, &body));
}

/// The requests that this one becomes, and its answer if it has one.
fn becomes(flow: &mut Edits, opcode: u8, text: &str) -> (Vec<u8>, Vec<u8>, Option<Vec<u8>>) {
    let kind = flow.kind;
    let body = match opcode {
        QUERY => ask(kind.version, text),
        _ => prepare(kind.version, text, None),
    };
    let sent = kind.sent(0, 1, opcode, &body);
    let passed = flow.requests(&sent);
    let answer = flow.editor.answers();
    flow.frees(1);
    (sent, passed, answer)
}

fn passes(flow: &mut Edits, step: &str, made: &Statement) {
    for opcode in [QUERY, PREPARE] {
        let (sent, passed, answer) = becomes(flow, opcode, &made.text);
        assert_eq!(answer, None, "{step} answers {:?}", made.text);
        assert!(passed == sent, "{step} changes {:?}", made.text);
    }
}

#[test]
fn every_statement_passes_steps_that_have_nothing_to_do_with_it() {
    for version in [4, 5] {
        for settings in STEPS {
            let mut flow = flow(version, settings);
            for n in 0..STATEMENTS / 6 {
                passes(&mut flow, settings, &statement(2, n, "gena"));
            }
        }
        let vault = TestVault::new();
        let kind = kind(version, Compression::None);
        let columns = protected_columns(kind, &vault, "gena.nothing", &["v", "d"]);
        let mut flow = columns.unwrap().flow;
        uses(&mut flow);
        for n in 0..STATEMENTS / 6 {
            passes(&mut flow, "protect", &statement(2, n, "gena"));
        }
    }
}

/// A statement with the keyspace's name apart from all else, however it was written.
fn plainly(text: &str) -> String {
    let text = text.to_lowercase().replace("\"genb\"", "genb");
    let apart = text.replace("genb", " genb ");
    apart.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Kind, keyspace and table, as the database reads them.
fn reads(text: &str) -> (String, Option<String>, Option<String>) {
    let found = cql::Statement::of(text.as_bytes());
    let kind = found.kind.as_str().to_owned();
    let [keyspace, table] = [found.keyspace, found.table].map(|name| name.map(|n| n.to_string()));
    (kind, keyspace, table)
}

#[test]
fn a_statement_whose_keyspace_the_database_calls_otherwise_is_the_one_of_that_keyspace() {
    let mut flow = flow(
        4,
        "transform = \"rewrite\"\nkeyspaces = { gena = \"genb\" }",
    );
    for n in 0..STATEMENTS {
        let [asked, expected] = ["gena", "genb"].map(|keyspace| statement(3, n, keyspace));
        let (_, passed, answer) = becomes(&mut flow, PREPARE, &asked.text);
        assert_eq!(answer, None, "{:?}", asked.text);
        let text = String::from_utf8(passed[13..].to_vec()).unwrap();
        assert_eq!(reads(&text), reads(&expected.text), "{:?}", asked.text);
        assert_eq!(plainly(&text), plainly(&expected.text), "{:?}", asked.text);
    }
}
