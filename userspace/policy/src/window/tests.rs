use jiff::{Unit, civil::Weekday};
use proptest::prelude::*;

use super::*;

fn settings(text: &str) -> Result<Window, String> {
    let mut keys = [None, None, None, None];
    for pair in text.split_whitespace() {
        let (key, value) = pair.split_once('=').unwrap();
        let place = ["days", "from", "to", "tz"].iter().position(|k| *k == key);
        keys[place.unwrap()] = Some(value.to_owned());
    }
    let [days, from, to, tz] = keys;
    let tz = tz.unwrap_or_else(|| "UTC".to_owned());
    WindowSettings { days, from, to, tz }.build()
}

fn window(text: &str) -> Window {
    settings(text).unwrap()
}

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

#[test]
fn days_and_hours_are_those_of_the_zone() {
    // 2026-11-27 is a Friday.
    for (keys, moment, is_open) in [
        ("days=mon-fri", "2026-11-27T23:59:59Z", true),
        ("days=mon-fri", "2026-11-28T00:00:00Z", false),
        ("days=sat,sun", "2026-11-28T00:00:00Z", true),
        ("days=sat-mon", "2026-11-30T12:00:00Z", true),
        ("days=sat-mon", "2026-12-01T00:00:00Z", false),
        ("days=fri-fri", "2026-11-27T12:00:00Z", true),
        ("from=06:00 to=22:00", "2026-11-27T05:59:59Z", false),
        ("from=06:00 to=22:00", "2026-11-27T06:00:00Z", true),
        ("from=06:00 to=22:00", "2026-11-27T22:00:00Z", false),
        ("from=06:00 to=24:00", "2026-11-27T23:59:59Z", true),
        ("from=06:00 to=00:00", "2026-11-27T23:59:59Z", true),
        ("from=06:00 to=00:00", "2026-11-27T00:00:00Z", false),
        // Over midnight: Friday's night ends on Saturday.
        (
            "days=fri from=22:00 to=06:00",
            "2026-11-27T05:00:00Z",
            false,
        ),
        ("days=fri from=22:00 to=06:00", "2026-11-27T22:00:00Z", true),
        ("days=fri from=22:00 to=06:00", "2026-11-28T05:59:59Z", true),
        (
            "days=fri from=22:00 to=06:00",
            "2026-11-28T06:00:00Z",
            false,
        ),
        (
            "days=fri from=22:00 to=06:00",
            "2026-11-28T22:00:00Z",
            false,
        ),
        // It is Saturday in Tokyo.
        ("days=sat tz=Asia/Tokyo", "2026-11-27T15:00:00Z", true),
        ("days=sat tz=Asia/Tokyo", "2026-11-27T14:59:59Z", false),
    ] {
        assert_eq!(window(keys).is_open(at(moment)), is_open, "{keys} {moment}");
    }
}

#[test]
fn hours_that_clocks_leave_out_or_show_twice_are_as_the_clock_shows_them() {
    let berlin = |hours: &str| window(&format!("{hours} tz=Europe/Berlin"));
    // On 2026-03-29 the clocks go from 02:00 to 03:00: 01:00Z.
    let (before, after) = (at("2026-03-29T00:59:59Z"), at("2026-03-29T01:00:00Z"));
    let left_out = berlin("from=02:15 to=02:45");
    assert!(!left_out.is_open(before) && !left_out.is_open(after));
    assert_eq!(
        left_out.next_change(before),
        Some(at("2026-03-30T00:15:00Z"))
    );
    let begins_in_it = berlin("from=02:30 to=04:00");
    assert!(!begins_in_it.is_open(before) && begins_in_it.is_open(after));
    assert_eq!(begins_in_it.next_change(before), Some(after));
    let ends_in_it = berlin("from=01:00 to=02:30");
    assert!(ends_in_it.is_open(before) && !ends_in_it.is_open(after));
    assert_eq!(ends_in_it.next_change(before), Some(after));
    // Of a weekly window, a week is left out.
    let sundays = berlin("days=sun from=02:15 to=02:45");
    let next = Some(at("2026-04-05T00:15:00Z"));
    assert_eq!(sundays.next_change(at("2026-03-22T12:00:00Z")), next);
    // On 2026-10-25 they go from 03:00 to 02:00: 01:00Z.
    let twice = berlin("from=02:15 to=02:45");
    let mut now = at("2026-10-25T00:00:00Z");
    let mut changes = Vec::new();
    for _ in 0..4 {
        now = twice.next_change(now).unwrap();
        changes.push(now);
    }
    let expected = ["00:15", "00:45", "01:15", "01:45"];
    assert_eq!(
        changes,
        expected.map(|time| at(&format!("2026-10-25T{time}:00Z")))
    );
}

#[test]
fn a_window_that_never_changes_says_so() {
    let now = at("2026-11-27T12:00:00Z");
    for whole in ["days=mon-sun", "from=00:00 to=24:00"] {
        let state = window(whole).state(now);
        assert_eq!((state.is_open, state.until), (true, None), "{whole}");
        assert_eq!(state.to_string(), "open always");
    }
}

#[test]
fn a_window_and_its_state_are_told_in_words() {
    let berlin = window("days=mon-fri from=06:00 to=22:00 tz=Europe/Berlin");
    assert_eq!(berlin.to_string(), "mon-fri 06:00-22:00 Europe/Berlin");
    let state = |moment: &str| berlin.state(at(moment)).to_string();
    assert_eq!(
        state("2026-11-27T12:00:00Z"),
        "open until 2026-11-27 22:00 +01:00"
    );
    assert_eq!(
        state("2026-11-27T21:00:00Z"),
        "closed until 2026-11-30 06:00 +01:00"
    );
    for (days, told) in [
        ("sat,sun", "sat,sun"),
        ("sat-mon", "mon,sat,sun"),
        ("mon,wed-fri", "mon,wed-fri"),
    ] {
        assert_eq!(
            window(&format!("days={days}")).to_string(),
            format!("{told} UTC")
        );
    }
    let west = window("from=00:00 to=24:00 days=sun tz=America/St_Johns");
    let state = west.state(at("2026-11-27T12:00:00Z")).to_string();
    assert_eq!(state, "closed until 2026-11-29 00:00 -03:30");
    assert_eq!(
        window("from=01:02:03 to=24:00").to_string(),
        "every day 01:02:03-24:00 UTC"
    );
}

#[test]
fn what_cannot_be_is_told() {
    for (keys, said) in [
        (
            "days=mon-fryday",
            "when.days: expected days (mon, tue, wed, thu, fri, sat, sun), as in `mon-fri` or `sat,sun`; found \"fryday\"",
        ),
        ("days=thr", "found \"thr\": did you mean `thu`?"),
        ("days=", "found \"\""),
        ("from=06:00", "when: expected `to` beside `from`"),
        ("to=06:00", "when: expected `from` beside `to`"),
        ("tz=UTC", "when: expected `days`, or `from` and `to`"),
        (
            "from=6:00 to=07:00",
            "when.from: expected a time from 00:00 to 23:59; found \"6:00\"",
        ),
        (
            "from=24:00 to=07:00",
            "when.from: expected a time from 00:00 to 23:59",
        ),
        (
            "from=06:00 to=24:01",
            "when.to: expected a time from 00:00 to 24:00",
        ),
        ("from=06:60 to=07:00", "when.from: expected a time"),
        (
            "from=06:00 to=06:00",
            "when.to: expected another time than `from`; found \"06:00\"",
        ),
        (
            "days=mon tz=Europe/Belrin",
            "when.tz: expected a time zone such as `Europe/Berlin` or `UTC`; found \"Europe/Belrin\": did you mean `Europe/Berlin`?",
        ),
        (
            "days=mon tz=../../../etc/passwd",
            "when.tz: expected a time zone",
        ),
    ] {
        let error = settings(keys).unwrap_err();
        assert!(error.contains(said), "{keys}: {error}");
    }
}

/// The plain reading: what the clock on the wall shows, taken apart by hand.
fn shows(days: [bool; 7], from: i32, to: i32, shown: DateTime) -> bool {
    let minutes = i32::from(shown.hour()) * 60 + i32::from(shown.minute());
    let day = shown.weekday().since(Weekday::Monday) as usize;
    let before = (day + 6) % 7;
    match from < to {
        true => days[day] && (from..to).contains(&minutes),
        false => days[day] && minutes >= from || days[before] && minutes < to,
    }
}

proptest! {
    /// Held against every minute of more than two weeks, around changes of the clocks and elsewhere.
    #[test]
    fn an_edge_is_the_first_minute_at_which_the_clock_says_otherwise(
        days in any::<[bool; 7]>(),
        from in 0..1440_i32,
        to in 0..1440_i32,
        zone in prop::sample::select(vec![
            "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu",
            "Pacific/Apia", "Africa/Casablanca", "UTC",
        ]),
        // Around 2026's changes of the clocks, and any time in ten years.
        start in prop_oneof![
            1_774_000_000..1_775_000_000_i64,
            1_792_000_000..1_793_500_000_i64,
            1_300_000_000..1_330_000_000_i64,
            1_600_000_000..1_900_000_000_i64,
        ],
    ) {
        prop_assume!(from != to && days.contains(&true));
        let names = Days::NAMES.iter().zip(days).filter(|(_, is_in)| *is_in).map(|(name, _)| *name);
        let time = |minutes: i32| format!("{:02}:{:02}", minutes / 60, minutes % 60);
        let names: Vec<&str> = names.collect();
        let keys = format!("days={} from={} to={} tz={zone}", names.join(","), time(from), time(to));
        let window = window(&keys);
        let now = Timestamp::from_second(start / 60 * 60).unwrap();
        let is_open = window.is_open(now);
        let minutes = (0..LOOK_AHEAD_DAYS * 1440).map(|n| now + SignedDuration::from_mins(n));
        let mut first = None;
        for minute in minutes {
            let shown = window.zone.to_datetime(minute);
            let expected = shows(days, from, to, shown);
            prop_assert_eq!(window.is_open(minute), expected, "{} at {}", keys, minute);
            if expected != is_open {
                first = Some(minute);
                break;
            }
        }
        let change = window.next_change(now);
        prop_assert_eq!(change, first, "{} from {}", keys, now);
        if let Some(change) = change {
            prop_assert_eq!(change.round(Unit::Minute).unwrap(), change);
        }
    }
}
