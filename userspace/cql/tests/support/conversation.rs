//! Random conversations, as frames.

use super::*;
use proptest::prelude::*;

/// A run of one peer's frames, none of them compressed.
#[derive(Clone, Debug)]
pub struct Run {
    pub is_request: bool,
    pub frames: Vec<Vec<u8>>,
}

/// An exchange: a request's opcode and body, and its response's flags, opcode and body.
type Exchange = (u8, Vec<u8>, u8, u8, Vec<u8>);

fn exchanges(version: u8) -> impl Strategy<Value = Vec<Exchange>> {
    let texts = prop::sample::select(vec![
        "SELECT a FROM t",
        "INSERT INTO ks.t (a) VALUES (1)",
        "BEGIN BATCH UPDATE u SET a = 1 APPLY BATCH",
        "nonsense",
        "",
    ]);
    let ids = prop::sample::select(vec![&b"one"[..], b"two", b"three"]);
    let padding = prop_oneof![4 => 0..50_usize, 1 => 500..600_usize, 1 => 0..300_000_usize];
    let keyspaces = prop::option::of(prop::sample::select(vec!["own", "Other"]));
    let exchange = (0..9, texts, ids, padding, keyspaces).prop_map(
        move |(choice, text, id, padding, keyspace)| {
            let padding = vec![b' '; padding];
            let padded = format!("{text}{}", String::from_utf8_lossy(&padding));
            let rows = [&[0, 0, 0, 2][..], &padding].concat();
            let plain = |opcode, body| (opcode, body, 0, RESULT, rows.clone());
            match choice {
                0 => plain(QUERY, query(version, &padded, keyspace)),
                1 => plain(EXECUTE, [execute(id), padding].concat()),
                2 => {
                    let children = [Child::Id(id), Child::Text(&padded), Child::Text(text)];
                    plain(BATCH, batch(version, &children, keyspace))
                }
                3 => {
                    let answer = [prepared(id), padding].concat();
                    (PREPARE, prepare(version, text, keyspace), 0, RESULT, answer)
                }
                4 => (
                    QUERY,
                    query(version, "USE x", None),
                    0,
                    RESULT,
                    set_keyspace(text),
                ),
                5 => (QUERY, query(version, text, None), 0, ERROR, rows),
                6 => {
                    let body = [&[1; 16][..], &[0, 1], &string("careful"), &rows].concat();
                    (QUERY, query(version, text, None), 0x0A, RESULT, body)
                }
                7 => plain(QUERY, text.as_bytes().to_vec()),
                _ => plain(0x77, padding),
            }
        },
    );
    prop::collection::vec(exchange, 1..12)
}

/// Rounds of requests, each answered in another order than asked.
pub fn conversation(version: u8) -> impl Strategy<Value = Vec<Run>> {
    let round = exchanges(version).prop_flat_map(|exchanges| {
        let order: Vec<usize> = (0..exchanges.len()).collect();
        (Just(exchanges), Just(order).prop_shuffle())
    });
    prop::collection::vec(round, 1..4).prop_map(move |rounds| {
        let mut runs = Vec::new();
        for (exchanges, order) in rounds {
            let request =
                |(stream, e): (usize, &Exchange)| frame(version, 0, stream as i16, e.0, &e.1);
            let response = |at: &usize| {
                let (_, _, flags, opcode, body) = &exchanges[*at];
                frame(version | 0x80, *flags, *at as i16, *opcode, body)
            };
            runs.push(Run {
                is_request: true,
                frames: exchanges.iter().enumerate().map(request).collect(),
            });
            runs.push(Run {
                is_request: false,
                frames: order.iter().map(response).collect(),
            });
        }
        runs
    })
}
