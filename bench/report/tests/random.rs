//! Rendering neither panics on any run that a file can hold, nor prints what is not a number.

mod common;

use proptest::{collection::vec, prelude::*, sample::select};
use report::{Run, compare, overview, pages};
use serde_json::{Value, json};

/// Values that a file can hold where another one was.
fn strange() -> impl Strategy<Value = Value> {
    let numbers = vec![
        json!(0),
        json!(1),
        json!(24),
        json!(u64::MAX),
        json!(-0.0),
        json!(-1e3),
        json!(1e-300),
        json!(1e300),
    ];
    prop_oneof![
        6 => select(numbers),
        2 => any::<String>().prop_map(Value::from),
        1 => Just(Value::Null),
        1 => Just(json!([])),
    ]
}

/// Replaces the leaf, or the array, that is so far on (of all of them) in a value.
fn replace(value: &mut Value, left: &mut usize, with: &Value) {
    let is_place = !value.is_object();
    if is_place && *left == 0 {
        *value = with.clone();
    }
    *left = match is_place {
        true => left.wrapping_sub(1),
        false => *left,
    };
    match value {
        Value::Array(all) => all.iter_mut().for_each(|one| replace(one, left, with)),
        Value::Object(all) => all.values_mut().for_each(|one| replace(one, left, with)),
        _ => {}
    }
}

fn places(value: &Value) -> usize {
    match value {
        Value::Array(all) => 1 + all.iter().map(places).sum::<usize>(),
        Value::Object(all) => all.values().map(places).sum(),
        _ => 1,
    }
}

/// A word that a number should have been. Names are random, but not of these letters alone.
fn assert_numbers(page: &str) {
    let word = |word: &str| matches!(word, "NaN" | "inf" | "-inf" | "−inf" | "+NaN" | "infinity");
    let mut words = page.split(|c: char| c.is_whitespace() || "|()<>\"=,;…%".contains(c));
    assert_eq!(words.find(|found| word(found)), None, "in a page");
}

/// A whole page each: more would take minutes.
const CASES: u32 = 32;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(CASES))]

    #[test]
    fn nothing_panics_and_numbers_are_numbers(
        changes in vec((any::<prop::sample::Index>(), strange()), 0..60),
        first in 0..15_usize,
        kept in 0..5_usize,
    ) {
        let mut original = common::run(5);
        original.experiments.drain(..first);
        original.experiments.truncate(kept);
        let mut run = original.clone();
        for (place, with) in changes {
            let mut value = serde_json::to_value(&run).unwrap();
            let mut place = place.index(places(&value));
            replace(&mut value, &mut place, &with);
            // What no file can hold is not rendered.
            run = serde_json::from_value::<Run>(value).unwrap_or(run);
        }
        assert_numbers(&pages::full(&run, pages::ALL));
        assert_numbers(&overview::readme(Some(&run)));
        assert_numbers(&pages::index(&run, ""));
        assert_numbers(&pages::bars(Some(&run)));
        assert_numbers(&report::headline::page(Some(&run)));
        assert_numbers(&compare(&original, &run).to_string());
        assert_numbers(&compare(&run, &original).to_string());
    }
}
