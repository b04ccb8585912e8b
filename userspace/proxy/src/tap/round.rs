//! [`Round`]: flows that are looked after, a few at each turn, so that copies do not wait for all of them.

use std::time::Duration;

use dataplane::SockCookie;

/// So many flows are looked after at a turn. Each takes a microsecond or two in the kernel.
const FLOWS_AT_ONCE: usize = 256;

/// The next turn comes after this time if nothing else does: as long as a look into the ring takes that finds little.
pub(super) const NEXT_TURN: Duration = Duration::from_millis(4);

/// The flows that are still to be looked after.
#[derive(Debug, Default)]
pub(super) struct Round(Vec<SockCookie>);

impl Round {
    /// Begins a round over these flows.
    pub(super) fn begin(&mut self, flows: Vec<SockCookie>) {
        self.0 = flows;
    }

    /// Whether none is left.
    pub(super) fn is_over(&self) -> bool {
        self.0.is_empty()
    }

    /// Takes the flows of a turn.
    pub(super) fn take_turn(&mut self) -> Vec<SockCookie> {
        let rest = self.0.len().saturating_sub(FLOWS_AT_ONCE);
        self.0.drain(rest..).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_flow_has_its_turn_once_and_no_turn_is_long() {
        for count in [0, 1, FLOWS_AT_ONCE, 3 * FLOWS_AT_ONCE + 1] {
            let flows: Vec<_> = (0..count as u64).map(SockCookie::new).collect();
            let mut round = Round::default();
            round.begin(flows.clone());
            let (mut seen, mut turns) = (Vec::new(), 0);
            while !round.is_over() {
                let turn = round.take_turn();
                assert!((1..=FLOWS_AT_ONCE).contains(&turn.len()));
                seen.extend(turn);
                turns += 1;
            }
            seen.sort_unstable();
            assert_eq!(seen, flows);
            assert_eq!(turns, count.div_ceil(FLOWS_AT_ONCE));
            assert!(round.take_turn().is_empty());
        }
    }
}
