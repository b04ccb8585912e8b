//! [`Pacing`]: requests that a step has slowed down, each until its time has come.

use std::collections::VecDeque;

use crate::request::Request;

/// A request that would wait for less goes on at once, and nothing more is read meanwhile. Clocks of those who carry
/// flows tick each ms: with a request to a tick, higher rates would not be reached.
const SLACK_NS: u64 = 4_000_000;

/// The requests of a flow that were slowed down. Their frames are suspended, within the bounds of all that are.
///
/// **Invariant**: they go on in the order in which they came, and before what came behind them.
#[derive(Debug, Default)]
pub(crate) struct Pacing {
    /// The time at which each goes on, in ns, and its number among the suspended.
    due: VecDeque<(u64, u64)>,
    /// For so many ns nothing more is to be read from the client.
    pause_ns: u64,
    /// The step that has slowed the last one down.
    step: &'static str,
    /// Nothing waits any more: the flow ends, or is left.
    hurries: bool,
}

impl Pacing {
    /// Has a request wait that a step has slowed down by so many ns; or lets it pass, if nothing more of the flow can
    /// wait, so that only the next ones do.
    #[cold]
    #[inline(never)]
    pub(crate) fn slow(
        &mut self,
        request: &mut Request<'_>,
        now_ns: u64,
        ns: u64,
        step: &'static str,
    ) {
        if self.hurries {
            return;
        }
        self.step = step;
        let number = match ns < SLACK_NS {
            true => None,
            false => request.wait(),
        };
        match number {
            Some(number) => {
                let last = self.due.back().map_or(0, |(due, _)| *due);
                let due = now_ns.saturating_add(ns).max(last);
                self.due.push_back((due, number));
            }
            None => self.pause_ns = ns.max(self.pause_ns),
        }
    }

    /// The step for which nothing may pass, now.
    #[inline]
    pub(crate) fn holds(&self) -> Option<&'static str> {
        (!self.due.is_empty()).then_some(self.step)
    }

    /// Takes the number of a request whose time has come.
    pub(crate) fn take_due(&mut self, now_ns: u64) -> Option<u64> {
        let (due, number) = self.due.front()?;
        let number = (*due <= now_ns).then_some(*number)?;
        self.due.pop_front();
        Some(number)
    }

    /// For how many ns, from now on, nothing goes on and nothing more is to be read.
    pub(crate) fn take_pause(&mut self, now_ns: u64) -> u64 {
        let pause = std::mem::take(&mut self.pause_ns);
        match self.due.front() {
            Some((due, _)) => due.saturating_sub(now_ns),
            None => pause,
        }
    }

    /// Forgets those that wait, whose numbers these are. The pause after them is theirs.
    pub(crate) fn lend(&mut self, now_ns: u64) -> Vec<u64> {
        let last = self.due.back().map_or(0, |(due, _)| *due);
        self.pause_ns = self.pause_ns.max(last.saturating_sub(now_ns));
        self.due.drain(..).map(|(_, number)| number).collect()
    }

    /// Has nothing wait as long as this is so. Those that do are forgotten.
    pub(crate) fn hurry(&mut self, hurries: bool) {
        self.hurries = hurries;
        self.due.clear();
    }
}
