//! Many statements, with mistakes and without: what goes on is the same, and has no value in it.

use std::collections::BTreeSet;

use cql::Analysis;
use cql_edit::protect::Fate;

use super::database::*;
use crate::support::edit::*;

/// The statement passes as it is, with other values, or not at all. Gives how many values were encrypted,
/// and whether it was refused.
fn same_statement(text: &str, table: &str, column: &str) -> Option<(u64, bool)> {
    let vault = TestVault::new();
    let mut flow = protected_columns(KINDS[3], &vault, table, &[column])?;
    flow.uses("shop");
    let sent = match flow.asks(text, &[]) {
        Err((0x2200, _)) => return Some((0, true)),
        Err(other) => panic!("{text}: {other:?}"),
        Ok(sent) => sent,
    };
    let new = sent.text();
    let fingerprint = |text: &str| Analysis::of(text.as_bytes(), text.len()).fingerprint;
    assert_eq!(fingerprint(&new), fingerprint(text), "{text}\n{new}");
    let sealed = ["up1.old.", "0x7570312e6f6c642e"].map(|begins| new.matches(begins).count());
    let sealed = sealed.iter().sum::<usize>() as u64;
    assert_eq!(vault.counted(Fate::Encrypted), sealed, "{text}\n{new}");
    assert_eq!(new == text, sealed == 0, "{text}\n{new}");
    Some((sealed, false))
}

/// Every statement of the fuzzer's corpus, with each of its words as an encrypted column of its table.
#[test]
fn what_is_changed_is_the_same_statement_with_other_values() {
    const MAX_WORDS: usize = 40;
    let (mut changed, mut refused) = (0, 0);
    for bytes in corpus::committed("statement").unwrap().into_values() {
        let Ok(text) = std::str::from_utf8(bytes.get(1..).unwrap_or_default()) else {
            continue;
        };
        let statement = Analysis::of(text.as_bytes(), text.len()).statement;
        let Some(table) = statement.table else {
            continue;
        };
        let table = format!(
            "{}.{table}",
            statement.keyspace.as_deref().unwrap_or("shop")
        );
        let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        let words: BTreeSet<String> = words.map(str::to_ascii_lowercase).collect();
        for word in words.iter().filter(|word| !word.is_empty()).take(MAX_WORDS) {
            let (values, is_refused) = same_statement(text, &table, word).unwrap_or_default();
            changed += values;
            refused += u64::from(is_refused);
        }
    }
    assert!(
        changed > 0 && refused > 100,
        "{changed} changed, {refused} refused"
    );
}

/// Statements in which a byte is another, is missing, or is there twice: a value that is still where it was
/// is never in what goes on.
#[test]
fn a_mistake_lets_no_value_past() {
    const PLAIN: &str = "plain5ecret";
    let texts = [
        "INSERT INTO shop.customers (id, iban) VALUES (1, 'plain5ecret') IF NOT EXISTS USING TTL 5",
        "UPDATE shop.customers SET iban = 'plain5ecret', n = n + {'x'} WHERE id = 1 IF n = 2",
        "BEGIN BATCH UPDATE shop.customers SET iban = $$plain5ecret$$ WHERE id = 1; APPLY BATCH",
        "BEGIN BATCH INSERT INTO t (a) VALUES ('b') INSERT INTO shop.customers (iban) VALUES ('plain5ecret') APPLY BATCH;",
    ];
    let (mut changed, mut refused) = (0, 0);
    for text in texts {
        for at in 0..text.len() {
            for new in [
                "", "''", "$", "/*", "--", ";", " ", ":", "(", ")", "?", "\"", "x",
            ] {
                let text = format!("{}{new}{}", &text[..at], &text[at + 1..]);
                let (values, is_refused) = same_statement(&text, "shop.customers", "iban").unwrap();
                changed += values;
                refused += u64::from(is_refused);
                // Neither the table nor the column is another one, and the value is written.
                let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
                let words: BTreeSet<&str> = words.collect();
                let names = ["shop", "customers", "iban"].map(|name| words.contains(name));
                let names = !names.contains(&false);
                if names && text.contains(PLAIN) && values == 0 && !is_refused {
                    let analysis = Analysis::of(text.as_bytes(), text.len());
                    panic!("it passes: {text}: {analysis:?}");
                }
            }
        }
    }
    assert!(
        changed > 500 && refused > 1_000,
        "{changed} changed, {refused} refused"
    );
}
