//! [`Random`]: numbers that follow from a seed.

/// A generator of numbers (splitmix64).
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The numbers of this seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Any number.
    pub fn any(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below this one, which is not 0.
    pub fn below(&mut self, n: u64) -> u64 {
        self.any() % n.max(1)
    }

    /// True once in so many times.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// One of these words.
    pub fn word(&mut self, words: &[&'static str]) -> &'static str {
        let word: &&'static str = self.of(words);
        word
    }

    /// One of these. The slice is not empty.
    pub fn of<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        let n = self.below(all.len() as u64) as usize;
        #[expect(clippy::indexing_slicing, reason = "`n` is below the length")]
        &all[n]
    }
}
