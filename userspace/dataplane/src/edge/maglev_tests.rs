//! How even Maglev's load is, and how little moves, against a ring with virtual nodes.

use std::{collections::BTreeMap, fmt::Write as _, fs};

use sandbox::measured::file;

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

/// Two ways to choose, by the share of a backend's mean load that the least and the most loaded have.
struct Loads {
    maglev: (f64, f64),
    ring: (f64, f64),
}

impl Loads {
    fn over(count: u8) -> Self {
        let table = Table::new(&backends(count)).unwrap();
        let ring = Ring::new(count.into(), VIRTUAL_NODES);
        Self {
            maglev: shares(count.into(), |hash| table.at(hash)),
            ring: shares(count.into(), |hash| ring.choose(hash)),
        }
    }
}

const VIRTUAL_NODES: u64 = 100;
const COUNTS: [u8; 5] = [2, 3, 8, 24, 100];

#[test]
fn load_over_24_backends_is_within_5_percent_of_the_mean_and_a_rings_is_not() {
    let Loads { maglev, ring } = Loads::over(24);
    assert!(maglev.0 >= 0.95 && maglev.1 <= 1.05, "{maglev:?}");
    assert!(ring.0 < 0.9 && ring.1 > 1.1, "{ring:?}");
}

/// The greatest part of the turns that moves when one backend goes; it is the same when it comes.
fn moved(count: u8) -> f64 {
    let all = backends(count);
    let whole = Table::new(&all).unwrap();
    let last = usize::from(count) - 1;
    let moved = [0, last / 2, last].map(|gone| {
        let mut fewer = all.clone();
        // Drained: the numbers of the others stay.
        fewer[gone].1 = 0;
        let without = Table::new(&fewer).unwrap();
        let pairs = whole.0.iter().zip(&without.0);
        pairs.filter(|(a, b)| a != b).count()
    });
    moved.into_iter().max().unwrap() as f64 / TURNS as f64
}

/// The share of connections that may move at most: the backend's own share, and 2 %.
fn may_move(count: u8) -> f64 {
    1.0 / f64::from(count) + 0.02
}

#[test]
fn one_of_n_that_comes_or_goes_moves_one_nth_and_2_percent_at_most() {
    for count in COUNTS {
        let moved = moved(count);
        assert!(moved <= may_move(count), "{moved} of {count}");
    }
}

fn page() -> String {
    let mut page = format!(
        "<!-- Rendered by `UPDATE_DOCS=1 cargo test -p underpass-dataplane maglev`. -->\n\
         # Which backend gets a connection\n\n\
         Maglev's table, {TURNS} turns, as [`maglev.rs`](../../userspace/dataplane/src/edge/maglev.rs) makes it, \
         against a consistent-hash ring with {VIRTUAL_NODES} virtual nodes for each backend; {CONNECTIONS} \
         connections. It is counted, not timed: every machine gets the same figures.\n\n\
         ## The load of a backend, as a multiple of the mean\n\n\
         | backends | Maglev, least | most | ring, least | most |\n\
         | ---: | ---: | ---: | ---: | ---: |\n"
    );
    for count in COUNTS {
        let Loads { maglev, ring } = Loads::over(count);
        let _ = writeln!(
            page,
            "| {count} | {:.3} | {:.3} | {:.3} | {:.3} |",
            maglev.0, maglev.1, ring.0, ring.1
        );
    }
    page.push_str(
        "\n## New connections that go elsewhere when one backend comes or goes\n\n\
         Connections that are there already stay where they are: the table of connections has them.\n\n\
         | backends | moved | at most allowed |\n| ---: | ---: | ---: |\n",
    );
    for count in COUNTS {
        let (moved, most) = (moved(count) * 100.0, may_move(count) * 100.0);
        let _ = writeln!(page, "| {count} | {moved:.2} % | {most:.2} % |");
    }
    page
}

#[test]
fn the_page_shows_what_is_counted() {
    let page = page();
    let file = file("maglev.md");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(&file, &page).unwrap();
    }
    assert_eq!(fs::read_to_string(file).unwrap(), page);
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
