//! Tests of `caps` on texts.

use super::super::text::edited;
use super::*;

const NOW_US: i64 = 1_700_000_000_000_000;

fn caps(max_ttl: &str, default_ttl: &str, timestamps: &str) -> Caps {
    let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    let timestamps = match timestamps {
        "" => None,
        "server" => Some(Timestamps::Word("server".into())),
        ahead => Some(Timestamps::Ahead(Ahead {
            max_ahead: ahead.into(),
        })),
    };
    Caps::new(
        some(max_ttl).as_deref(),
        some(default_ttl).as_deref(),
        timestamps.as_ref(),
    )
    .unwrap()
}

fn made(caps: Caps, text: &str) -> Result<String, &'static str> {
    let mut edits = Edits::new();
    let text_of = Text::new(text.as_bytes(), true);
    caps.text(&text_of, Some(NOW_US), false, &mut edits)
        .map_err(|refused| refused.reason)?;
    Ok(String::from_utf8(edited(text.as_bytes(), edits)).unwrap())
}

#[test]
fn ttls_in_texts() {
    let most = caps("100s", "", "");
    let both = caps("100s", "1m", "");
    let default = caps("", "1m", "");
    for (caps, text, expected) in [
        (
            most,
            "INSERT INTO t (a) VALUES (1) USING TTL 101;",
            "INSERT INTO t (a) VALUES (1) USING TTL 100;",
        ),
        (
            most,
            "INSERT INTO t (a) VALUES (1) USING TTL 0 AND TIMESTAMP 5",
            "INSERT INTO t (a) VALUES (1) USING TTL 100 AND TIMESTAMP 5",
        ),
        (
            both,
            "INSERT INTO t (a) VALUES (1) IF NOT EXISTS -- ttl\n ;",
            "INSERT INTO t (a) VALUES (1) IF NOT EXISTS USING TTL 60 -- ttl\n ;",
        ),
        (both, "begin batch apply batch", "begin batch apply batch"),
        (
            default,
            "UPDATE ks.t SET a = 1 WHERE b = 2",
            "UPDATE ks.t USING TTL 60 SET a = 1 WHERE b = 2",
        ),
        (
            default,
            "UPDATE t USING TIMESTAMP 5 SET a = 1 WHERE b = 2",
            "UPDATE t USING TIMESTAMP 5 AND TTL 60 SET a = 1 WHERE b = 2",
        ),
        (
            both,
            "INSERT INTO t (a) VALUES (1) USING TIMEOUT 1s AND TTL 500",
            "INSERT INTO t (a) VALUES (1) USING TIMEOUT 1s AND TTL 100",
        ),
        (
            default,
            "UPDATE t USING TIMEOUT ? SET a = 1 WHERE b = 2",
            "UPDATE t USING TIMEOUT ? AND TTL 60 SET a = 1 WHERE b = 2",
        ),
        (
            both,
            "BEGIN BATCH INSERT INTO t (a) VALUES (1) UPDATE t USING TTL 500 SET a = 1 WHERE b = 2; \
             DELETE FROM t WHERE b = 3 APPLY BATCH",
            "BEGIN BATCH INSERT INTO t (a) VALUES (1) USING TTL 60 UPDATE t USING TTL 100 SET a = 1 \
             WHERE b = 2; DELETE FROM t WHERE b = 3 APPLY BATCH",
        ),
    ] {
        assert_eq!(made(caps, text).as_deref(), Ok(expected));
    }
    for (caps, text) in [
        (most, "INSERT INTO t (a) VALUES (1) USING TTL 100"),
        (most, "INSERT INTO t (a) VALUES (1) USING TTL -5"),
        (most, "INSERT INTO t (a) VALUES (1)"),
        (most, "INSERT INTO t (ttl) VALUES ('using ttl 500')"),
        (most, "SELECT ttl(a) FROM t"),
        (most, "SELECT ttl(a) this is no CQL"),
        (most, "USE ttl"),
        (
            both,
            "BEGIN COUNTER BATCH UPDATE t SET a = a + 1 WHERE b = 2 APPLY BATCH",
        ),
        (both, "DELETE FROM t USING TIMESTAMP 5 WHERE ttl = 1"),
        (
            both,
            "CREATE TABLE t (a int PRIMARY KEY) WITH default_time_to_live = 500",
        ),
    ] {
        assert_eq!(made(caps, text).as_deref(), Ok(text));
    }
    for text in [
        "INSERT INTO t (a) VALUES (1) USING TTL 99999999999999999999",
        "INSERT INTO t (a) VALUES (1) USING TTL 1 AND TTL 500",
        "BEGIN TRANSACTION INSERT INTO t (a) VALUES (1) USING TTL 500; COMMIT TRANSACTION",
        "INSERT INTO t (a) VALUES ('\u{e9}) USING TTL 500",
    ] {
        assert_eq!(made(most, text), Err("unknown"), "{text}");
    }
}

#[test]
fn timestamps_in_texts() {
    let ahead = caps("", "", "1s");
    let server = caps("100s", "", "server");
    let later = NOW_US + 1_000_001;
    let text = |us: i64| format!("UPDATE t USING TIMESTAMP {us} SET a = 1 WHERE b = 2");
    let latest = NOW_US + 1_000_000;
    assert_eq!(made(ahead, &text(later)), Ok(text(latest)));
    assert_eq!(made(ahead, &text(latest)), Ok(text(latest)));
    assert_eq!(made(ahead, &text(-5)), Ok(text(-5)));
    let mut edits = Edits::new();
    let late = text(later);
    let late = Text::new(late.as_bytes(), true);
    let prepared = ahead.text(&late, Some(NOW_US), true, &mut edits);
    assert_eq!(prepared.unwrap_err().reason, "prepared_timestamp");
    let unknown = ahead.text(&late, None, false, &mut edits);
    assert_eq!(unknown.unwrap_err().reason, "no_clock");
    // What remains would have to be written anew.
    let timed = "UPDATE t USING TIMEOUT 1s AND TIMESTAMP 5 SET a = 1 WHERE b = 2";
    assert_eq!(made(server, timed), Err("unknown"));
    for (text, expected) in [
        (
            "UPDATE t USING TIMESTAMP 5 SET a = 1 WHERE b = 2",
            "UPDATE t  SET a = 1 WHERE b = 2",
        ),
        (
            "DELETE FROM t USING TIMESTAMP 5 WHERE b = 2",
            "DELETE FROM t  WHERE b = 2",
        ),
        (
            "INSERT INTO t (a) VALUES (1) USING TTL 500 AND TIMESTAMP 5",
            "INSERT INTO t (a) VALUES (1) USING TTL 100",
        ),
        (
            "INSERT INTO t (a) VALUES (1) USING TIMESTAMP 5 AND TTL :\"T\"",
            "INSERT INTO t (a) VALUES (1) USING TTL :\"T\"",
        ),
        (
            "BEGIN BATCH USING TIMESTAMP 5 DELETE FROM t WHERE b = 2 APPLY BATCH",
            "BEGIN BATCH  DELETE FROM t WHERE b = 2 APPLY BATCH",
        ),
    ] {
        assert_eq!(made(server, text).as_deref(), Ok(expected));
    }
    let all = caps("100s", "1m", "server");
    assert_eq!(
        made(all, "INSERT INTO t (a) VALUES (1) USING TIMESTAMP 5").as_deref(),
        Ok("INSERT INTO t (a) VALUES (1)  USING TTL 60")
    );
}

#[test]
fn mistakes_are_named() {
    let new = |max: &str, default: &str, ahead: &str| {
        let ahead = Timestamps::Ahead(Ahead {
            max_ahead: ahead.into(),
        });
        Caps::new(Some(max), Some(default), Some(&ahead)).unwrap_err()
    };
    for (error, expected) in [
        (new("0s", "1s", "1s"), "max_ttl: expected seconds"),
        (new("7301d", "1s", "1s"), "max_ttl: expected seconds"),
        (new("90", "1s", "1s"), "max_ttl: expected seconds"),
        (new("90d", "500ms", "1s"), "default_ttl: expected seconds"),
        (
            new("1m", "61s", "1s"),
            "default_ttl: expected at most `max_ttl`, 60 s; found 61 s",
        ),
        (new("1m", "1s", "-1s"), "timestamps.max_ahead: expected"),
    ] {
        assert!(error.starts_with(expected), "{error}");
    }
    let word = Timestamps::Word("client".into());
    let error = Caps::new(None, None, Some(&word)).unwrap_err();
    assert!(
        error.starts_with("timestamps: expected `\"server\"`"),
        "{error}"
    );
}
