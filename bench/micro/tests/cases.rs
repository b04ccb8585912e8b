//! Every case decodes its input to what it should, time after time.

use std::collections::BTreeSet;

use micro::cases::{ENTRIES, Tally, find};

#[test]
fn every_case_sees_what_it_is_fed() {
    for entry in ENTRIES {
        let mut case = (entry.build)();
        for round in 0..100 {
            assert_eq!(case.work(), case.expected, "{}, round {round}", entry.name);
        }
        assert!(case.expected.elements > 0, "{}", entry.name);
        assert!(case.fed_bytes > 0, "{}", entry.name);
    }
}

#[test]
fn sound_cases_have_nothing_odd() {
    for entry in ENTRIES {
        let Tally { odd, .. } = (entry.build)().expected;
        assert_eq!(odd, 0, "{}", entry.name);
    }
}

#[test]
fn names_are_distinct_and_found() {
    let names: BTreeSet<&str> = ENTRIES.iter().map(|entry| entry.name).collect();
    assert_eq!(names.len(), ENTRIES.len());
    for name in names {
        assert!(name.contains('/') && find(name).is_some(), "{name}");
    }
    assert!(find("none/such").is_none());
}
