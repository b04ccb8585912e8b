//! How even Maglev's load is, and how little moves, against a ring with virtual nodes.

use std::collections::BTreeMap;

use super::*;

const CONNECTIONS: u64 = 1_000_000;

fn backends(count: u8) -> Vec<(SocketAddr, Weight)> {
    (1..=count)
        .map(|n| (SocketAddr::from(([10, 1, 0, n], 9042)), 1))
        .collect()
}

/// Clients' hashes: what they are does not matter, only that they are spread.
fn hashes() -> impl Iterator<Item = u64> {
    (0..CONNECTIONS).map(mix)
}

/// Each backend's share, as a multiple of the mean.
fn shares(count: usize, choose: impl Fn(u64) -> usize) -> (f64, f64) {
    let mut loads = vec![0_u64; count];
    for hash in hashes() {
        loads[choose(hash)] += 1;
    }
    let mean = CONNECTIONS as f64 / count as f64;
    let share = |load: Option<&u64>| *load.unwrap() as f64 / mean;
    (share(loads.iter().min()), share(loads.iter().max()))
}

/// A consistent-hash ring: where each of a server's virtual nodes is, its hash says.
struct Ring(BTreeMap<u64, usize>);

impl Ring {
    fn new(servers: u64, nodes: u64) -> Self {
        let points = (0..servers).flat_map(|s| (0..nodes).map(move |n| (s, n)));
        Self(
            points
                .map(|(s, n)| (mix(mix(s + 1) ^ n), s as usize))
                .collect(),
        )
    }

    fn choose(&self, hash: u64) -> usize {
        let next = self.0.range(hash..).next().or_else(|| self.0.iter().next());
        *next.unwrap().1
    }
}

#[test]
fn load_over_24_backends_is_within_5_percent_of_the_mean_and_a_rings_is_not() {
    let table = Table::new(&backends(24)).unwrap();
    let (least, most) = shares(24, |hash| table.at(hash));
    assert!(least >= 0.95 && most <= 1.05, "{least} to {most}");
    let ring = Ring::new(24, 100);
    let (ring_least, ring_most) = shares(24, |hash| ring.choose(hash));
    println!("of the mean: Maglev {least:.3} to {most:.3}, ring {ring_least:.3} to {ring_most:.3}");
    assert!(
        ring_least < 0.9 && ring_most > 1.1,
        "{ring_least} to {ring_most}"
    );
}

#[test]
fn one_of_n_that_comes_or_goes_moves_one_nth_and_2_percent_at_most() {
    for count in [2, 3, 8, 24, 100] {
        let all = backends(count);
        let whole = Table::new(&all).unwrap();
        for gone in [0, usize::from(count) / 2, usize::from(count) - 1] {
            let mut fewer = all.clone();
            // Drained: the numbers of the others stay.
            fewer[gone].1 = 0;
            let without = Table::new(&fewer).unwrap();
            let moved = whole
                .0
                .iter()
                .zip(&without.0)
                .filter(|(a, b)| a != b)
                .count();
            let moved = moved as f64 / TURNS as f64;
            let most = 1.0 / f64::from(count) + 0.02;
            println!("{count} backends, one gone: {moved:.4} moved, at most {most:.4}");
            assert!(moved <= most, "{moved} of {count}");
        }
    }
}

#[test]
fn weights_are_shares_and_zero_is_none() {
    let mut some = backends(4);
    for (backend, weight) in some.iter_mut().zip([0, 1, 2, 5]) {
        backend.1 = weight;
    }
    let table = Table::new(&some).unwrap();
    for (number, weight) in [(0, 0), (1, 1), (2, 2), (3, 5)] {
        let turns = table.0.iter().filter(|turn| **turn == number).count() as f64;
        let share = turns / TURNS as f64 * 8.0;
        assert!(
            (share - f64::from(weight)).abs() < 0.02,
            "{number}: {share}"
        );
    }
    for backend in &mut some {
        backend.1 = 0;
    }
    assert_eq!(Table::new(&some), None);
    assert_eq!(Table::new(&[]), None);
}

#[test]
fn the_order_in_the_file_does_not_matter() {
    let all = backends(5);
    let mut turned = all.clone();
    turned.reverse();
    let (one, other) = (Table::new(&all).unwrap(), Table::new(&turned).unwrap());
    for (a, b) in one.0.iter().zip(&other.0) {
        assert_eq!(all[usize::from(*a)].0, turned[usize::from(*b)].0);
    }
}
