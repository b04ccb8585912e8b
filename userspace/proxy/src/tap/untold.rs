//! [`Untold`]: which rules flows meet, until the kernel has been told.

use std::{collections::VecDeque, io};

use dataplane::{Settled, SockCookie};
use policy::RuleName;

use super::listed::MAX_FLOWS;

/// Flows that wait, at most: as many as are read at once.
const MAX_UNTOLD: usize = MAX_FLOWS;

/// So many are tried at once, each of which takes microseconds. The reader comes again within milliseconds.
const TRIES_AT_ONCE: usize = 8;

/// The rule that a flow meets, and what that does with it.
pub(super) type Outcome = (SockCookie, RuleName, Settled);

/// The outcomes that the kernel does not know yet, because it had no memory for them. It goes on copying until then.
#[derive(Debug, Default)]
pub(super) struct Untold(VecDeque<Outcome>);

impl Untold {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Has an outcome told by [`Self::tell`], before all others. The oldest one gives way if there is no room.
    pub(super) fn add(&mut self, outcome: Outcome) {
        self.0.truncate(MAX_UNTOLD - 1);
        self.0.push_front(outcome);
    }

    /// Tells a few of them. Returns those that were told, and the last failure; what failed waits behind the others.
    pub(super) fn tell(
        &mut self,
        mut tell: impl FnMut(&Outcome) -> io::Result<()>,
    ) -> (Vec<Outcome>, io::Result<()>) {
        let mut told = Vec::new();
        let mut failed = Ok(());
        for _ in 0..self.0.len().min(TRIES_AT_ONCE) {
            let Some(outcome) = self.0.pop_front() else {
                break;
            };
            match tell(&outcome) {
                Ok(()) => told.push(outcome),
                Err(error) => {
                    failed = Err(error);
                    self.0.push_back(outcome);
                }
            }
        }
        (told, failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(cookie: u64) -> Outcome {
        (
            SockCookie::new(cookie),
            RuleName::new("r"),
            Settled::LeftAlone,
        )
    }

    #[test]
    fn what_the_kernel_has_no_memory_for_is_told_again_until_it_has() {
        let mut untold = Untold::default();
        let most = TRIES_AT_ONCE as u64;
        (0..most + 2).for_each(|cookie| untold.add(outcome(cookie)));
        let (told, failed) = untold.tell(|_| Err(io::ErrorKind::OutOfMemory.into()));
        assert!(told.is_empty() && failed.is_err());
        // One of them never can be told, and keeps none of the others from it.
        let never = SockCookie::new(most);
        let mut all = Vec::new();
        for _ in 0..3 {
            let (told, _) = untold.tell(|(cookie, ..)| match *cookie == never {
                true => Err(io::ErrorKind::Other.into()),
                false => Ok(()),
            });
            assert!(told.len() <= TRIES_AT_ONCE);
            all.extend(told.into_iter().map(|(cookie, ..)| cookie));
        }
        assert_eq!(all.len() as u64, most + 1);
        assert!(!all.contains(&never) && !untold.is_empty());
        let (told, failed) = untold.tell(|_| Ok(()));
        assert!(told.len() == 1 && failed.is_ok() && untold.is_empty());
    }

    #[test]
    fn who_waits_is_bounded() {
        let mut untold = Untold::default();
        (0..MAX_UNTOLD as u64 + 9).for_each(|cookie| untold.add(outcome(cookie)));
        assert_eq!(untold.0.len(), MAX_UNTOLD);
        let newest = untold.0.front().map(|(cookie, ..)| cookie.number());
        assert_eq!(newest, Some(MAX_UNTOLD as u64 + 8));
    }
}
