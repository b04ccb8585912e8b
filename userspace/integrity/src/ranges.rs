//! Positions of a stream that have come.

/// Ranges that neither overlap nor touch, in order.
#[derive(Debug, Clone, Default)]
pub(super) struct Ranges(Vec<(u64, u64)>);

impl Ranges {
    pub(super) fn up_to(end: u64) -> Self {
        Self(Vec::from_iter((end > 0).then_some((0, end))))
    }

    /// The highest position, and one.
    pub(super) fn end(&self) -> u64 {
        self.0.last().map_or(0, |&(_, end)| end)
    }

    /// How many positions there are.
    pub(super) fn covered(&self) -> u64 {
        self.0.iter().map(|(start, end)| end - start).sum()
    }

    /// Adds those from `start` to before `end`; how many of them are new.
    pub(super) fn insert(&mut self, mut start: u64, mut end: u64) -> u64 {
        if start >= end {
            return 0;
        }
        let before = self.covered();
        let from = self.0.partition_point(|&(_, other)| other < start);
        let to = self.0.partition_point(|&(other, _)| other <= end);
        if let Some(&(first, _)) = self.0.get(from)
            && from < to
        {
            start = start.min(first);
        }
        if let Some(&(_, last)) = to.checked_sub(1).and_then(|at| self.0.get(at))
            && from < to
        {
            end = end.max(last);
        }
        self.0.splice(from..to, [(start, end)]);
        self.covered() - before
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn as_a_set_of_positions(begun in 0u64..20, parts in prop::collection::vec((0u64..60, 0u64..20), 0..20)) {
            let mut ranges = Ranges::up_to(begun);
            let mut set: BTreeSet<u64> = (0..begun).collect();
            for (start, len) in parts {
                let new = (start..start + len).filter(|&p| set.insert(p)).count();
                prop_assert_eq!(ranges.insert(start, start + len), new as u64);
            }
            prop_assert_eq!(ranges.covered(), set.len() as u64);
            prop_assert_eq!(ranges.end(), set.last().map_or(0, |last| last + 1));
        }
    }
}
