//! Statements, and what they do with columns.

use super::*;

fn of(text: &str) -> Touched {
    touched(text.as_bytes()).unwrap_or_else(|| panic!("not understood: {text}"))
}

fn part(text: &str) -> Part {
    let mut parts = of(text).parts;
    assert_eq!(parts.len(), 1, "{text}");
    parts.remove(0)
}

fn written(text: &str) -> Vec<(String, Given)> {
    match part(text).does {
        Does::Writes(written) => written
            .into_iter()
            .map(|one| (one.column.into(), one.by))
            .collect(),
        other => panic!("{text}: {other:?}"),
    }
}

fn selected(text: &str) -> Vec<Item> {
    match part(text).does {
        Does::Selects {
            json: false,
            what: Selected::These(items),
        } => items,
        other => panic!("{text}: {other:?}"),
    }
}

#[test]
fn what_is_written_and_by_what() {
    let text = "INSERT INTO ks.T (a, \"B\", c, d, e, f, g) VALUES (?, 'x''y', 0xAB, NULL, uuid(), {1, 2}, 7)";
    let at = |what: &str| {
        let start = text.find(what).unwrap();
        start..start + what.len()
    };
    let name = |name: &str, given| (name.to_owned(), given);
    assert_eq!(
        written(text),
        [
            name("a", Given::Marker(0)),
            name("B", Given::Text(at("'x''y'"))),
            name("c", Given::Blob(at("0xAB"))),
            name("d", Given::Null),
            name("e", Given::Other),
            name("f", Given::Other),
            name("g", Given::Other),
        ]
    );
    let part = part(text);
    assert_eq!((part.keyspace.as_deref(), &*part.table), (Some("ks"), "t"));
    assert!(!part.conditional);
}

#[test]
fn an_update_writes_what_it_sets() {
    let text = "UPDATE t USING TTL ? AND TIMESTAMP 5 SET a = ?, b = b + ?, c[1] = ?, d += ?, e.f = ?, \
                g = (text)'x', h = $$it's$$ WHERE k = ? IF a = ?";
    let found: Vec<_> = written(text);
    let names: Vec<&str> = found.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["a", "b", "c", "d", "e", "g", "h"]);
    assert_eq!(found[0].1, Given::Marker(1));
    for (name, given) in &found[1..6] {
        assert_eq!(*given, Given::Other, "{name}");
    }
    assert!(matches!(found[6].1, Given::Text(_)));
    let part = part(text);
    assert!(part.conditional);
    assert_eq!(of(text).markers.len(), 8);
    let mentions: Vec<&str> = part.mentions.iter().map(|name| &**name).collect();
    assert_eq!(mentions, ["where", "k", "if", "a"]);
}

#[test]
fn what_is_selected_and_what_hides() {
    let column = |name: &str| Item::Column(name.into());
    let other = |names: &[&str]| Item::Other(names.iter().map(|n| (*n).into()).collect());
    assert_eq!(
        selected(
            "SELECT a, A AS x, \"A\" as \"as\", f(a), count(*), writetime(a) AS w, ttl(a), max(a), \
             CAST(a AS blob), a[1], json FROM t"
        ),
        [
            column("a"),
            column("a"),
            column("A"),
            other(&["f", "a"]),
            other(&["count"]),
            other(&[]),
            other(&[]),
            other(&["max", "a"]),
            other(&["cast", "a", "as", "blob"]),
            other(&["a"]),
            column("json"),
        ]
    );
    assert!(matches!(
        part("SELECT * FROM t").does,
        Does::Selects {
            json: false,
            what: Selected::All
        }
    ));
    assert!(matches!(
        part("SELECT JSON * FROM t").does,
        Does::Selects {
            json: true,
            what: Selected::All
        }
    ));
    assert_eq!(selected("SELECT DISTINCT a FROM t"), [column("a")]);
    let mentions = part("SELECT a FROM t WHERE b = :a AND c IN ? ORDER BY \"D\"").mentions;
    let mentions: Vec<&str> = mentions.iter().map(|name| &**name).collect();
    assert_eq!(
        mentions,
        ["where", "b", "and", "c", "in", "order", "by", "D"]
    );
}

#[test]
fn markers_are_counted_wherever_they_are() {
    let text = "BEGIN BATCH USING TIMESTAMP ? INSERT INTO a (x, y) VALUES ({?, 'k': ?}, :Name); \
                UPDATE b SET m[?] = ? WHERE k = ? DELETE z FROM c WHERE k = :\"Q\" APPLY BATCH;";
    let touched = of(text);
    let names: Vec<_> = touched.markers.iter().map(Option::as_deref).collect();
    let expected = [None, None, None, Some("name"), None, None, None, Some("Q")];
    assert_eq!(names, expected);
    let tables: Vec<&str> = touched.parts.iter().map(|part| &*part.table).collect();
    assert_eq!(tables, ["a", "b", "c"]);
    let Does::Writes(written) = &touched.parts[0].does else {
        panic!("it writes")
    };
    assert_eq!(written[1].by, Given::Marker(3));
    // What follows a colon in a map is not always a marker.
    let text = "INSERT INTO a (m, x) VALUES ({a: null, b: f(1), c: ks.f(2), d: true, e: :x}, ?)";
    assert_eq!(of(text).markers, [Some("x".into()), None]);
}

#[test]
fn what_goes_another_way_is_nothing() {
    for text in [
        "",
        "CREATE TABLE t (a int PRIMARY KEY)",
        "INSERT INTO t (a, b) VALUES (1)",
        "INSERT INTO t (a) VALUES (1",
        "UPDATE t SET a = 1",
        "SELECT a",
        "INSERT INTO t (a) VALUES ('open)",
        "BEGIN BATCH INSERT INTO t (a) VALUES (1)",
    ] {
        assert_eq!(touched(text.as_bytes()), None, "{text}");
    }
    assert_eq!(
        part("INSERT INTO t JSON '{}' IF NOT EXISTS").does,
        Does::WritesJson
    );
    assert!(part("DELETE a FROM t WHERE k = 1 IF EXISTS").conditional);
}
