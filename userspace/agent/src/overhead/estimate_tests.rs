//! The estimate, held to groups whose difference is known.

use std::{collections::BTreeMap, sync::LazyLock, time::Duration};

use dataplane::Latencies;
use fastrand::Rng;

use super::*;

/// A number of a standard normal distribution (Box and Muller).
fn normal(rng: &mut Rng) -> f64 {
    let [a, b] = [rng.f64().max(1e-12), rng.f64()];
    (-2.0 * a.ln()).sqrt() * (std::f64::consts::TAU * b).cos()
}

/// The bucket of a latency.
fn bucket(us: f64) -> u16 {
    static BEGINS: LazyLock<Vec<Duration>> =
        LazyLock::new(|| (0..BUCKETS).map(bucket_begins).collect());
    let latency = Duration::from_secs_f64(us / 1e6);
    BEGINS.partition_point(|begin| *begin <= latency) as u16 - 1
}

/// A connection whose requests take about 300 µs: more or less than others', as connections do, and `more` µs each.
fn connection(rng: &mut Rng, requests: usize, more: f64) -> Compared {
    let own = 0.1 * normal(rng);
    let mut buckets = BTreeMap::new();
    for _ in 0..requests {
        let us = 300.0 * (own + 0.4 * normal(rng)).exp() + more;
        *buckets.entry(bucket(us)).or_default() += 1;
    }
    Compared {
        latencies: buckets.into_iter().collect(),
        errors: 0,
    }
}

fn group(rng: &mut Rng, connections: usize, more: f64) -> Vec<Compared> {
    (0..connections)
        .map(|_| {
            let requests = rng.usize(5..25);
            connection(rng, requests, more)
        })
        .collect()
}

const US: f64 = 1e-6;

#[test]
fn nineteen_of_twenty_intervals_hold_the_true_difference() {
    const TRIALS: usize = 200;
    for (more, share) in [(0.0, 0.5), (0.0, 0.9), (40.0, 0.5)] {
        let mut rng = Rng::with_seed(27);
        let (mut hold, mut zero) = (0, 0);
        for _ in 0..TRIALS {
            let (treated, held_out) = (group(&mut rng, 120, more), group(&mut rng, 60, 0.0));
            let found = difference(&Group::new(&treated), &Group::new(&held_out), share).unwrap();
            hold += usize::from(found.low <= more * US && more * US <= found.high);
            zero += usize::from(found.low <= 0.0 && 0.0 <= found.high);
        }
        // 190 are expected; fewer than 178 or all of them would be by chance in less than one of a thousand.
        assert!(
            (178..TRIALS).contains(&hold),
            "{more} µs more at {share}: {hold} of {TRIALS}"
        );
        if more > 0.0 {
            assert!(
                zero < TRIALS / 10,
                "no difference at all in {zero} of {TRIALS}"
            );
        }
    }
}

#[test]
fn requests_of_one_connection_are_no_independent_observations() {
    // Twenty connections of 500 requests each say less than a thousand of ten.
    let mut rng = Rng::with_seed(1);
    let few: Vec<_> = (0..20).map(|_| connection(&mut rng, 500, 0.0)).collect();
    let many: Vec<_> = (0..1000).map(|_| connection(&mut rng, 10, 0.0)).collect();
    let width = |connections: &[Compared]| {
        let found = Group::new(connections).interval(0.5).unwrap();
        found.high - found.low
    };
    assert!(width(&few) > 3.0 * width(&many));
}

#[test]
fn what_is_missing_is_said_in_connections_or_requests() {
    let mut rng = Rng::with_seed(3);
    let enough = group(&mut rng, 30, 0.0);
    let few = group(&mut rng, 3, 0.0);
    let missing = |treated: &[Compared], held_out: &[Compared], share| {
        difference(&Group::new(treated), &Group::new(held_out), share).unwrap_err()
    };
    assert_eq!(
        missing(&enough, &few, 0.5),
        [(HELD_OUT, Missing::Connections(17))]
    );
    assert_eq!(missing(&[], &few, 0.5).len(), 2);
    // 20 requests say nothing of the slowest hundredth, and with what is said to be missing they do.
    let short: Vec<_> = (0..20).map(|_| connection(&mut rng, 1, 0.0)).collect();
    let [(TREATED, Missing::Requests(more))] = missing(&short, &enough, 0.99)[..] else {
        panic!("{:?}", missing(&short, &enough, 0.99));
    };
    assert!((100..5000).contains(&more), "{more}");
    let longer: Vec<_> = (0..more as usize + 20)
        .map(|_| connection(&mut rng, 1, 0.0))
        .collect();
    Group::new(&longer).interval(0.99).unwrap();
}

#[test]
fn a_quantile_lies_within_its_bucket() {
    let mut latencies = Latencies::default();
    latencies.add(Duration::from_micros(100), 100);
    let connection = Compared {
        latencies: latencies.buckets().collect(),
        errors: 0,
    };
    let all = [connection];
    let group = Group::new(&all);
    let [low, middle, high] = [0.01, 0.5, 1.0].map(|share| group.quantile(share).unwrap() / US);
    assert!(
        low < middle && middle < high && high - low < 4.0,
        "{low} {middle} {high}"
    );
    assert!((middle - 100.0).abs() < 2.0, "{middle}");
    assert_eq!(Group::new(&[]).quantile(0.5), None);
}

#[test]
fn errors_are_compared_as_shares_of_requests() {
    let mut rng = Rng::with_seed(5);
    let none = group(&mut rng, 40, 0.0);
    let mut some = group(&mut rng, 40, 0.0);
    for one in &mut some {
        one.errors = one.requests() / 5;
    }
    let share = Group::new(&some).errors() as f64 / Group::new(&some).requests() as f64;
    let found = errors(&Group::new(&some), &Group::new(&none)).unwrap();
    assert!(
        found.value == share && share / 2.0 < found.low && found.high < share * 1.5,
        "{found:?}"
    );
    let found = errors(&Group::new(&none), &Group::new(&none)).unwrap();
    // None of some hundreds does not say that there are none.
    assert!(
        found.value == 0.0 && found.low < -5e-4 && found.high > 5e-4,
        "{found:?}"
    );
}

#[test]
fn students_quantile_is_the_tables() {
    for (freedom, table) in
        BTreeMap::from([(19, 2.0930), (30, 2.0423), (100, 1.9840), (1000, 1.9623)])
    {
        let found = student(f64::from(freedom));
        assert!((found - table).abs() < 2e-4, "{freedom}: {found}");
    }
}
