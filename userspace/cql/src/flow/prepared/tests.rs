use std::collections::HashSet;

use md5::{Digest, Md5};

use super::*;
use crate::text::statement::StatementKind;

fn statement(table: &str) -> Statement {
    Statement {
        kind: StatementKind::Select,
        keyspace: None,
        table: Some(table.into()),
    }
}

fn at(address: &str) -> Database {
    Database::new(address.parse().unwrap(), 0)
}

fn learnt(holds: Holds, statement: &Statement) -> Learnt<'_> {
    Learnt {
        holds,
        statement,
        fingerprint: None,
        text: None,
    }
}

fn says(statement: &Statement) -> Learnt<'_> {
    learnt(Holds::There, statement)
}

fn with_text<'l>(statement: &'l Statement, text: &Arc<str>) -> Learnt<'l> {
    Learnt {
        text: Some((text.clone(), None)),
        ..says(statement)
    }
}

#[test]
fn ids_that_differ_little_have_hashes_of_their_own() {
    let filled = (0..=255).map(|n| vec![n; 16]);
    let counted = (0..256_u128).map(|n| n.to_be_bytes().to_vec());
    let shifted = (1..128).map(|n| (1_u128 << n << 8).to_le_bytes().to_vec());
    let short = (0..256_u16).map(|n| n.to_be_bytes().to_vec());
    let ids: HashSet<Vec<u8>> = filled.chain(counted).chain(shifted).chain(short).collect();
    let hashes: HashSet<u64> = ids.iter().map(|id| hash(id)).collect();
    assert_eq!(hashes.len(), ids.len());
}

#[test]
fn what_one_flow_prepares_another_executes() {
    let shared = PreparedAt::default();
    let mut preparing = PreparedCache::new(shared.clone());
    let mut executing = PreparedCache::new(shared);
    let mut statements = Statements::default();
    assert!(executing.get(b"id", &mut statements).is_none());
    assert!(!preparing.insert(b"id", says(&statement("t"))));
    let mut get = || {
        let found = executing.get(b"id", &mut statements);
        found.unwrap().statement().clone()
    };
    let first = get();
    assert_eq!(*first, statement("t"));
    assert!(Arc::ptr_eq(&first, &get()));
}

#[test]
fn what_another_database_says_of_an_id_changes_nothing() {
    let store = Arc::<PreparedStatements>::default();
    let [real, node, other] =
        ["192.0.2.1:9042", "192.0.2.2:9042", "127.0.0.2:9042"].map(|a| store.at(at(a)));
    let mut statements = Statements::default();
    let mut table = |at: &PreparedAt| {
        let mut cache = PreparedCache::new(at.clone());
        let found = cache.get(b"id", &mut statements);
        found.and_then(|found| found.statement().table.clone())
    };
    let text: Arc<str> = "SELECT v FROM x.y".into();
    other.insert(b"id", with_text(&statement("y"), &text));
    assert_eq!(table(&real), None);
    assert!(!real.knows(b"id") && real.text(b"id").is_none());
    real.insert(b"id", learnt(Holds::Everywhere, &statement("t")));
    other.insert(b"id", with_text(&statement("y"), &text));
    for (at, expected) in [(&real, "t"), (&node, "t"), (&other, "y")] {
        assert_eq!(table(at).as_deref(), Some(expected));
    }
    assert!(node.text(b"id").is_none());
    // What one database said, and then another one with a proof, holds for all.
    real.insert(b"said", says(&statement("t")));
    node.insert(b"said", learnt(Holds::Everywhere, &statement("t")));
    assert!(other.knows(b"said"));
}

#[test]
fn a_text_that_was_looked_up_has_to_make_its_id() {
    let store = Arc::<PreparedStatements>::default();
    let [real, other] = ["192.0.2.1:9042", "127.0.0.2:9042"].map(|a| store.at(at(a)));
    let text = b"INSERT INTO t (k) VALUES (?)";
    let id = Md5::digest([&b"shop"[..], text].concat());
    other.learn(&id, Some("x"), b"SELECT v FROM x.y");
    assert!(!real.knows(&id));
    other.learn(&id, Some("shop"), text);
    assert_eq!(
        real.text(&id).as_deref(),
        Some("INSERT INTO t (k) VALUES (?)")
    );
}

#[test]
fn preparing_again_replaces() {
    let mut cache = PreparedCache::new(PreparedAt::default());
    let mut statements = Statements::default();
    for table in ["t", "t", "u"] {
        assert!(!cache.insert(b"id", says(&statement(table))));
        assert_eq!(
            **cache.get(b"id", &mut statements).unwrap().statement(),
            statement(table)
        );
    }
    assert_eq!(cache.shared.store.len(), 1);
}

#[test]
fn texts_are_kept_as_long_as_there_is_room() {
    let store = Arc::new(PreparedStatements::with_capacity(1_000));
    let shared = store.at(at("192.0.2.1:9042"));
    let text: Arc<str> = "x".repeat(MAX_TEXT_BYTES).into();
    let fit = MAX_PREPARED_TEXTS_BYTES / (MAX_TEXT_BYTES + TEXT_ENTRY_BYTES + 8);
    let id = |n: usize| n.to_be_bytes();
    let of = statement("t");
    (0..fit + 1).for_each(|n| {
        shared.insert(&id(n), with_text(&of, &text));
    });
    assert!(shared.text(&id(fit)).is_some() && shared.text(&id(0)).is_none());
    assert!(shared.knows(&id(0)));
    // What comes without a text does not take it away.
    shared.insert(&id(1), says(&statement("t")));
    assert_eq!(shared.text(&id(1)), Some(text.clone()));
    // Who has many pushes out none of another's.
    let other = store.at(at("127.0.0.2:9042"));
    other.insert(b"other", with_text(&of, &"y".into()));
    (0..fit + 1).for_each(|n| {
        shared.insert(&id(n), with_text(&of, &text));
    });
    assert_eq!(other.text(b"other").as_deref(), Some("y"));
}

#[test]
fn a_flow_that_has_it_at_hand_keeps_it_in_use() {
    let shared = Arc::new(PreparedStatements::with_capacity(2)).at(Database::default());
    let mut cache = PreparedCache::new(shared.clone());
    let mut statements = Statements::default();
    cache.insert(b"hot", says(&statement("t")));
    for i in 0..100_u32 {
        cache.get(b"hot", &mut statements);
        cache.insert(&i.to_be_bytes(), says(&statement("u")));
    }
    assert!(shared.knows(b"hot") && shared.store.len() == 2);
}

#[test]
fn a_flows_memory_is_bounded() {
    let mut cache = PreparedCache::new(PreparedAt::default());
    let mut statements = Statements::default();
    for i in 0..3 * MAX_RECENT {
        cache.insert(&i.to_be_bytes(), says(&statement("t")));
        cache.get(&i.to_be_bytes(), &mut statements);
        assert!(cache.recent.len() <= MAX_RECENT);
    }
    assert_eq!(cache.shared.store.len(), 3 * MAX_RECENT);
}

#[test]
fn what_waits_to_be_prepared_is_bounded_and_proven() {
    let mut preparing = Preparing::default();
    let streams = 0..MAX_PROVING as i16 + 1;
    let text = |n: i16| format!("SELECT v FROM t{n}");
    for _ in 0..2 {
        for n in streams.clone() {
            preparing.asks(StreamId(n), text(n).as_bytes(), Some("shop"));
        }
        assert_eq!(preparing.waiting.len(), MAX_PROVING);
        let texts = preparing
            .waiting
            .values()
            .filter(|waits| waits.text.is_some());
        assert_eq!(
            (texts.count(), preparing.texts),
            (MAX_PREPARING, MAX_PREPARING)
        );
    }
    let mut proven = 0;
    for n in streams {
        let id = Md5::digest(format!("shop{}", text(n)));
        let Some(waits) = preparing.take(StreamId(n)) else {
            continue;
        };
        assert!(waits.proof.holds(&id));
        preparing.note(&waits);
        proven += 1;
    }
    assert_eq!((proven, preparing.texts), (MAX_PROVING, 0));
    // The text is there, and in another keyspace it is another statement.
    let last = text(MAX_PREPARING as i16 - 1);
    for (keyspace, has_text) in [("shop", false), ("logs", true)] {
        preparing.asks(StreamId(0), last.as_bytes(), Some(keyspace));
        let waits = preparing.take(StreamId(0)).unwrap();
        assert_eq!(waits.text.is_some(), has_text);
        assert!(waits.proof.holds(&Md5::digest(format!("{keyspace}{last}"))));
    }
}
