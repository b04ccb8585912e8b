//! Rendering neither panics on any run, nor prints what is not a number.

mod common;

use proptest::{collection::vec, option, prelude::*, sample::select};
use report::{
    Run, compare, markdown, pages,
    schema::{Latency, Round, Series, Usage},
};

/// Numbers as files can have them, and a few that only memory can.
fn number() -> impl Strategy<Value = f64> {
    prop_oneof![
        8 => 0.0..1e7_f64,
        1 => -1e3..0.0_f64,
        1 => select(vec![0.0, -0.0, 1e-300, 1e300, f64::MAX, f64::NAN, f64::INFINITY, f64::NEG_INFINITY]),
    ]
}

fn count() -> impl Strategy<Value = u64> {
    prop_oneof![6 => 0..10_000_000_u64, 1 => Just(0), 1 => Just(u64::MAX)]
}

fn usage() -> impl Strategy<Value = Usage> {
    (number(), number(), count(), count(), count()).prop_map(|(user_us, system_us, v, i, rss)| {
        Usage {
            user_us,
            system_us,
            voluntary_switches: v,
            involuntary_switches: i,
            rss_peak_kib: rss,
        }
    })
}

fn latency() -> impl Strategy<Value = Latency> {
    vec(number(), 7).prop_map(|us| {
        let mut us = us.into_iter();
        let mut next = || us.next().unwrap_or_default();
        Latency {
            mean_us: next(),
            p50_us: next(),
            p90_us: next(),
            p95_us: next(),
            p99_us: next(),
            p999_us: next(),
            max_us: next(),
        }
    })
}

fn round() -> impl Strategy<Value = Round> {
    let work = (
        number(),
        [count(), count(), count()],
        option::of(count()),
        option::of(any::<String>()),
    );
    let rest = (
        number(),
        vec((count(), number()), 0..5),
        count(),
        option::of(count()),
    );
    (work, latency(), [usage(), usage(), usage()], rest).prop_map(|(work, latency, usage, rest)| {
        let [generator, proxy, database] = usage;
        let [ops, in_time, errors] = work.1;
        Round {
            seconds: work.0,
            ops,
            in_time,
            scheduled: work.2,
            errors,
            first_error: work.3,
            latency,
            lateness_p99_us: rest.0,
            intervals: rest.1,
            generator,
            proxy,
            kernel: (ops % 2 == 0).then_some(database),
            database,
            bytes: rest.2,
            copied_bytes: rest.3,
        }
    })
}

/// One of a run's series, otherwise.
#[derive(Clone, Debug)]
struct Change {
    experiment: prop::sample::Index,
    series: prop::sample::Index,
    path: Option<String>,
    rounds: Vec<Round>,
    histogram: Option<String>,
    id: Option<String>,
    rate: Option<f64>,
    nodes: usize,
}

fn change() -> impl Strategy<Value = Change> {
    let places = (any::<prop::sample::Index>(), any::<prop::sample::Index>());
    let names = (
        option::of(any::<String>()),
        option::of(any::<String>()),
        option::of(any::<String>()),
    );
    let load = (option::of(number()), select(vec![0, 1, 24, usize::MAX]));
    (places, names, vec(round(), 0..7), load).prop_map(|(places, names, rounds, load)| Change {
        experiment: places.0,
        series: places.1,
        path: names.0,
        rounds,
        histogram: names.1,
        id: names.2,
        rate: load.0,
        nodes: load.1,
    })
}

fn changed(run: &mut Run, changes: Vec<Change>) {
    for change in changes {
        let Some(experiment) = pick(&mut run.experiments, change.experiment) else {
            continue;
        };
        experiment.id = change.id.unwrap_or_else(|| experiment.id.clone());
        experiment.nodes = change.nodes;
        experiment.rate = change.rate.or(experiment.rate);
        let Some(series) = pick(&mut experiment.series, change.series) else {
            continue;
        };
        *series = Series {
            path: change.path.unwrap_or_else(|| series.path.clone()),
            rounds: change.rounds,
            histogram: change.histogram.unwrap_or_else(|| series.histogram.clone()),
            hand_overs: None,
        };
    }
}

fn pick<T>(all: &mut [T], index: prop::sample::Index) -> Option<&mut T> {
    let place = (!all.is_empty()).then(|| index.index(all.len()))?;
    all.get_mut(place)
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
        changes in vec(change(), 0..12),
        refused in any::<bool>(),
        interval_ms in select(vec![0, 1, 100, u64::MAX]),
        first in 0..15_usize,
        kept in 0..5_usize,
    ) {
        let mut original = common::run(5);
        original.experiments.drain(..first);
        original.experiments.truncate(kept);
        let mut run = original.clone();
        changed(&mut run, changes);
        run.settings.interval_ms = interval_ms;
        if let (true, Some(experiment)) = (refused, run.experiments.first_mut()) {
            experiment.refused = Some("because".into());
        }
        assert_numbers(&markdown::full(&run));
        assert_numbers(&markdown::readme(report::overview::Runs {
            host: &run,
            tap: &original,
            peers: &original,
        }));
        assert_numbers(&pages::index(&run, ""));
        for (_, page) in pages::experiments(&run) {
            assert_numbers(&page);
        }
        assert_numbers(&pages::bars(Some(&run)));
        assert_numbers(&compare(&original, &run).to_string());
        assert_numbers(&compare(&run, &original).to_string());
    }
}
