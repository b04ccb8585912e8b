//! The choice of the next key.
//!
//! Every line (connections of one thread that do the same, towards one target) has a [`Source`] of
//! its own: the keys that it adds are no other line's.

pub mod random;
pub mod zipfian;

use crate::workload::{Distribution, Keys};
use random::Random;
use zipfian::{Zipfian, fnv};

/// The keys that a line of one generator adds before it meets the next generator's: more than it
/// can in a round.
const ADDED_BY_ONE: u64 = 1 << 20;
/// The keys that generators, in turn, leave out at their beginning; a prime.
const STRIDE: u64 = 7_919;

/// A line's place among the lines of a run.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// The line's number.
    pub line: usize,
    /// The number of lines.
    pub lines: usize,
}

/// The keys of one line.
#[derive(Clone, Debug)]
pub struct Source {
    count: u64,
    choice: Choice,
    place: Place,
    /// The position at which [`Choice::Sequential`] and [`Choice::Each`] go on.
    cursor: u64,
    /// The keys beyond `count` that this line has added: each `lines` apart.
    added: u64,
    /// The beginning of this generator's own keys among those beyond `count`.
    base: u64,
    /// The number of newest keys that may be still under way: `Latest` leaves them alone.
    unsettled: u64,
}

#[derive(Clone, Debug)]
enum Choice {
    Uniform,
    Zipfian(Zipfian),
    Latest(Zipfian),
    Sequential,
    /// Takes every key once, in all lines together.
    Each,
}

impl Source {
    /// Chooses as the job says; `in_flight` requests of this line may be under way at a time.
    /// Generators of another `number` add other keys, and go round from another one on.
    pub fn new(keys: &Keys, place: Place, in_flight: usize, number: u64) -> Self {
        let choice = match keys.distribution {
            Distribution::Uniform => Choice::Uniform,
            Distribution::Zipfian => Choice::Zipfian(Zipfian::to_scramble()),
            Distribution::Latest => Choice::Latest(Zipfian::new(keys.count)),
            Distribution::Sequential => Choice::Sequential,
        };
        let spread = (keys.count / place.lines.max(1) as u64).saturating_mul(place.line as u64);
        Self {
            count: keys.count,
            choice,
            place,
            cursor: spread.wrapping_add(number.wrapping_mul(STRIDE)),
            added: 0,
            base: number.wrapping_mul(ADDED_BY_ONE),
            unsettled: in_flight as u64,
        }
    }

    /// Every key once; the lines share them.
    pub fn each(count: u64, place: Place) -> Self {
        Self {
            count,
            choice: Choice::Each,
            place,
            cursor: place.line as u64,
            added: 0,
            base: 0,
            unsettled: 0,
        }
    }

    /// A key that is there. None: there is no further one.
    pub fn existing(&mut self, random: &mut Random) -> Option<u64> {
        let key = self.cursor;
        match self.choice {
            Choice::Each => {
                self.cursor += self.place.lines as u64;
                (key < self.count).then_some(key)
            }
            Choice::Sequential => {
                self.cursor = self.cursor.wrapping_add(1);
                Some(key % self.count.max(1))
            }
            Choice::Uniform | Choice::Zipfian(_) | Choice::Latest(_) => Some(self.draw(random)),
        }
    }

    /// A key that nobody had.
    pub fn another(&mut self) -> u64 {
        self.added += 1;
        self.added_key(self.added - 1)
    }

    fn draw(&self, random: &mut Random) -> u64 {
        match &self.choice {
            Choice::Zipfian(zipfian) => fnv(zipfian.rank(random)) % self.count.max(1),
            Choice::Latest(zipfian) => {
                let back = zipfian.rank(random);
                let settled = self.added.saturating_sub(self.unsettled);
                match settled.checked_sub(back + 1) {
                    Some(nth) => self.added_key(nth),
                    None => self.count.saturating_sub(1 + back - settled),
                }
            }
            Choice::Uniform | Choice::Sequential | Choice::Each => random.below(self.count),
        }
    }

    fn added_key(&self, nth: u64) -> u64 {
        let nth = self.base.wrapping_add(nth);
        nth.wrapping_mul(self.place.lines as u64)
            .wrapping_add(self.count + self.place.line as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COUNT: u64 = 1_000;
    const ALONE: Place = Place { line: 0, lines: 1 };

    fn source(distribution: Distribution, place: Place) -> Source {
        let keys = Keys {
            count: COUNT,
            distribution,
        };
        Source::new(&keys, place, 4, 0)
    }

    /// Counts how often each key came in 100,000 draws, the most frequent first.
    fn draws(source: &mut Source) -> Vec<(u64, u64)> {
        let mut random = Random::new(3, 0);
        let mut seen = std::collections::BTreeMap::new();
        for _ in 0..100_000 {
            *seen
                .entry(source.existing(&mut random).unwrap())
                .or_default() += 1;
        }
        let mut seen: Vec<_> = seen.into_iter().map(|(key, times)| (times, key)).collect();
        seen.sort_unstable_by(|a, b| b.cmp(a));
        seen
    }

    #[test]
    fn uniform_keys_are_alike() {
        let seen = draws(&mut source(Distribution::Uniform, ALONE));
        assert_eq!(seen.len() as u64, COUNT);
        // 100 each, by the binomial distribution ± 5 deviations of 10.
        let (most, least) = (seen[0].0, seen[seen.len() - 1].0);
        assert!((50..=150).contains(&least) && (50..=150).contains(&most));
    }

    #[test]
    fn zipfian_keys_are_few_and_scattered() {
        let seen = draws(&mut source(Distribution::Zipfian, ALONE));
        // The first rank of 10^10 has 1 / 26.47 of all; others fall on the same key.
        let share = seen[0].0 as f64 / 100_000.0;
        assert!((0.036..0.045).contains(&share), "{share}");
        assert_eq!(seen[0].1, fnv(0) % COUNT);
        let top: u64 = seen.iter().take(100).map(|(times, _)| times).sum();
        let half = seen.iter().take(100).filter(|(_, key)| *key < COUNT / 2);
        assert!((25_000..50_000).contains(&top), "{top}");
        assert!((30..70).contains(&half.count()));
    }

    #[test]
    fn latest_follows_what_was_added() {
        let mut source = source(Distribution::Latest, ALONE);
        let seen = draws(&mut source);
        assert_eq!((seen[0].1, seen[1].1), (COUNT - 1, COUNT - 2));
        let share = seen[0].0 as f64 / 100_000.0;
        assert!((0.11..0.15).contains(&share), "{share}");
        for n in 0..50 {
            assert_eq!(source.another(), COUNT + n);
        }
        // The last four may be under way.
        let seen = draws(&mut source);
        assert_eq!((seen[0].1, seen[1].1), (COUNT + 45, COUNT + 44));
        assert!(seen.iter().all(|(_, key)| *key <= COUNT + 45));
        assert!(seen.iter().any(|(_, key)| *key < COUNT));
    }

    #[test]
    fn sequential_keys_go_round_in_order() {
        let mut random = Random::new(1, 0);
        let mut source = source(Distribution::Sequential, ALONE);
        for n in 0..2 * COUNT + 5 {
            assert_eq!(source.existing(&mut random), Some(n % COUNT));
        }
    }

    #[test]
    fn lines_share_what_is_to_be_done_once_and_never_what_they_add() {
        let mut random = Random::new(1, 0);
        let (mut each, mut added) = (Vec::new(), Vec::new());
        for line in 0..3 {
            let place = Place { line, lines: 3 };
            let mut once = Source::each(COUNT, place);
            each.extend(std::iter::from_fn(|| once.existing(&mut random)));
            let mut source = source(Distribution::Uniform, place);
            added.extend((0..100).map(|_| source.another()));
        }
        each.sort_unstable();
        assert_eq!(each, (0..COUNT).collect::<Vec<_>>());
        added.sort_unstable();
        assert!(added[0] >= COUNT);
        added.dedup();
        assert_eq!(added.len(), 300);
    }

    #[test]
    fn generators_add_other_keys() {
        let keys = Keys {
            count: COUNT,
            distribution: Distribution::Latest,
        };
        let mut added: Vec<u64> = (0..5)
            .flat_map(|number| {
                let mut source = Source::new(&keys, ALONE, 4, number);
                let added: Vec<u64> = (0..50).map(|_| source.another()).collect();
                // The keys that it reads are its own, or were there before.
                let seen = draws(&mut source);
                assert!(
                    seen.iter()
                        .all(|(_, key)| *key < COUNT || added.contains(key))
                );
                added
            })
            .collect();
        added.sort_unstable();
        added.dedup();
        assert_eq!(added.len(), 250);
    }
}
