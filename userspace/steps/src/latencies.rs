//! Latencies, counted in buckets to which many threads add at the same time.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The buckets in a factor of two: a quantile is at most 3 % off.
const PER_OCTAVE: u64 = 16;

/// The factors of two above [`PER_OCTAVE`] µs: up to 67 s. Longer latencies count as that.
const OCTAVES: u64 = 22;

const BUCKETS: usize = (PER_OCTAVE * (OCTAVES + 1)) as usize;

/// A histogram of latencies. 3 KiB.
#[derive(Debug)]
pub(super) struct Latencies {
    counts: [AtomicU64; BUCKETS],
}

impl Default for Latencies {
    fn default() -> Self {
        Self {
            counts: [const { AtomicU64::new(0) }; BUCKETS],
        }
    }
}

impl Latencies {
    /// Counts a latency.
    pub(super) fn record(&self, micros: u64) {
        if let Some(count) = self.counts.get(bucket(micros)) {
            count.fetch_add(1, Relaxed);
        }
    }

    /// Returns the number of latencies.
    pub(super) fn count(&self) -> u64 {
        self.counts.iter().map(|count| count.load(Relaxed)).sum()
    }

    /// Returns the latency in µs that about this part of all does not exceed. 0 if there are none.
    pub(super) fn quantile(&self, part: f64) -> u64 {
        let (lowest, highest) = bounds(self.bucket_of(part));
        lowest + (highest - lowest) / 2
    }

    /// Returns two latencies in µs, near each other: fewer than this part of all do not exceed the
    /// first, and at least this part do not exceed the second.
    pub(super) fn around(&self, part: f64) -> (u64, u64) {
        let (lowest, highest) = bounds(self.bucket_of(part));
        (lowest.saturating_sub(1), highest)
    }

    /// Returns the latencies in µs of which there are any, and how many there are of each.
    pub(super) fn each(&self) -> Vec<(u64, u64)> {
        let counts = self.counts.iter().map(|count| count.load(Relaxed));
        let counted = (0..).zip(counts).filter(|(_, count)| *count > 0);
        counted
            .map(|(bucket, count)| {
                let (lowest, highest) = bounds(bucket);
                (lowest + (highest - lowest) / 2, count)
            })
            .collect()
    }

    fn bucket_of(&self, part: f64) -> u64 {
        let count = self.count();
        let rank = ((count as f64 * part).ceil() as u64).clamp(1, count.max(1));
        let mut seen = 0;
        for (bucket, counted) in self.counts.iter().enumerate() {
            seen += counted.load(Relaxed);
            if seen >= rank {
                return bucket as u64;
            }
        }
        0
    }

    /// Halves the counts, so that later latencies count for more.
    pub(super) fn fade(&self) {
        self.counts.iter().for_each(halve);
    }
}

/// Halves a count. Additions at the same time are kept.
pub(super) fn halve(count: &AtomicU64) {
    // The closure always returns a value, so this cannot fail.
    let _ = count.fetch_update(Relaxed, Relaxed, |count| Some(count / 2));
}

/// Returns a latency's bucket. The first [`PER_OCTAVE`] buckets are 1 µs wide; the others have the
/// width of their power of two.
fn bucket(micros: u64) -> usize {
    let octave = micros
        .checked_ilog2()
        .unwrap_or(0)
        .saturating_sub(PER_OCTAVE.ilog2());
    let within = (micros >> octave).saturating_add(u64::from(octave) * PER_OCTAVE);
    (within as usize).min(BUCKETS - 1)
}

/// Returns the least and the greatest latency of a bucket.
fn bounds(bucket: u64) -> (u64, u64) {
    let octave = (bucket / PER_OCTAVE).saturating_sub(1);
    let lowest = (bucket - octave * PER_OCTAVE) << octave;
    (lowest, lowest + ((1_u64 << octave) - 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_holds_what_is_near_its_middle() {
        let mut before = 0;
        for micros in (0..100_000).chain((100_000..60_000_000).step_by(997)) {
            let bucket = bucket(micros);
            assert!(bucket == before || bucket == before + 1, "{micros}");
            before = bucket;
            let (lowest, highest) = bounds(bucket as u64);
            assert!((lowest..=highest).contains(&micros), "{micros}");
            assert!((highest - lowest) * 16 <= lowest, "{lowest} to {highest}");
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn many_threads_may_fade_at_once() {
        let latencies = Latencies::default();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..1_000 {
                        latencies.record(7);
                        latencies.fade();
                    }
                });
            }
        });
        assert!(latencies.count() <= 4);
    }

    #[test]
    fn quantiles() {
        let latencies = Latencies::default();
        assert_eq!(latencies.quantile(0.99), 0);
        for micros in 1..=10_000 {
            latencies.record(micros);
        }
        assert_eq!(latencies.count(), 10_000);
        let each = latencies.each();
        assert_eq!(each.iter().map(|(_, n)| n).sum::<u64>(), 10_000);
        assert!(each.iter().map(|(us, _)| us).is_sorted(), "{each:?}");
        let (below, highest) = latencies.around(0.99);
        assert!(below < 9_900 && (9_900..10_500).contains(&highest));
        for (part, expected) in [(0.0, 1), (0.5, 5_000), (0.99, 9_900), (1.0, 10_000)] {
            let found = latencies.quantile(part);
            assert!(found.abs_diff(expected) * 32 <= expected, "{part}: {found}");
        }
        latencies.fade();
        assert!(latencies.count() <= 5_000 && latencies.count() > 4_000);
        assert!(latencies.quantile(0.5).abs_diff(5_000) < 300);
    }
}
