//! Calls to flows, which come when they are to be handed over.
//!
//! Flows are called some at a time: one of which nothing is under way comes at once. One that does not is held for a while, which
//! means that no further request of it is read, until what it has asked is answered; and later again. One that came, and was not
//! taken, is called again, less and less often.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use flow::{Flow, Handing, Path};
use tokio::time::Instant;

/// The longest time for which a flow is held, so that what it has asked is answered: a quarter of what some drivers give a
/// request.
const HELD_FOR: Duration = Duration::from_millis(500);

/// The time from one hold of a flow to its next one.
const HELD_AGAIN: Duration = Duration::from_secs(10);

/// The time until a flow is held that does not come by itself.
const COMES_WITHIN: Duration = Duration::from_millis(200);

/// Flows that are called at a time, each with two descriptors more while it waits.
pub(super) const CALLED: usize = 64;

/// The times until a flow is called again that came, and was not taken: the first, which doubles each time, and the longest.
const CALLED_AGAIN: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(32)];

/// The flows that were called, and those that are next.
#[derive(Default)]
pub(super) struct Calls {
    next: Vec<Arc<Flow>>,
    /// Flows that were called, by number.
    called: HashMap<u64, Called>,
}

struct Called {
    is_held: bool,
    /// The time when it is held next, or not any more.
    until: Instant,
    /// Set while it is not called, because it came, and was not taken: the time when it is called again.
    again: Option<Instant>,
    /// The time from which on that is, the next time.
    pause: Duration,
}

impl Calls {
    /// Calls flows, holds those that have not come, the longest waiting first, and lets go those that were held for long enough.
    pub(super) fn call(&mut self, flows: Vec<Arc<Flow>>) {
        let now = Instant::now();
        self.next.clear();
        let mut due = Vec::new();
        for flow in self.still_there(flows) {
            let Some(called) = self.called.get_mut(&flow.id.number()) else {
                self.next.push(flow);
                continue;
            };
            match flow.handing() {
                Handing::No => called.came_in_vain(&flow, now),
                _ if called.until > now => {}
                _ if called.is_held => called.let_go(&flow, now),
                _ => due.push((called.until, flow)),
            }
        }
        due.sort_by_key(|(since, _)| *since);
        let held = self.called.values().filter(|one| one.is_held).count();
        for (_, flow) in due.into_iter().take(CALLED.saturating_sub(held)) {
            if let Some(called) = self.called.get_mut(&flow.id.number()) {
                (called.is_held, called.until) = (true, now + HELD_FOR);
                flow.hand_over(Handing::Held);
            }
        }
        for _ in 0..CALLED {
            self.call_next();
        }
    }

    /// Calls the next flow.
    pub(super) fn call_next(&mut self) {
        if let Some(flow) = self.next.pop() {
            let called = Called {
                is_held: false,
                until: Instant::now() + COMES_WITHIN,
                again: None,
                pause: CALLED_AGAIN[0],
            };
            self.called.insert(flow.id.number(), called);
            flow.hand_over(Handing::AtRest);
        }
    }

    /// Lets all flows go on, which are called later.
    pub(super) fn let_go(&mut self, flows: Vec<Arc<Flow>>) {
        let now = Instant::now();
        self.next.clear();
        for flow in self.still_there(flows) {
            if let Some(called) = self.called.get_mut(&flow.id.number()) {
                called.came_in_vain(&flow, now);
                flow.hand_over(Handing::No);
            }
        }
    }

    /// The flows among these that may come. The others are forgotten.
    fn still_there(&mut self, mut flows: Vec<Arc<Flow>>) -> Vec<Arc<Flow>> {
        flows.retain(|flow| flow.path() != Path::Splice && flow.stays().is_none());
        let left: HashSet<u64> = flows.iter().map(|flow| flow.id.number()).collect();
        self.called.retain(|number, _| left.contains(number));
        flows
    }
}

impl Called {
    fn let_go(&mut self, flow: &Flow, now: Instant) {
        (self.is_held, self.until) = (false, now + HELD_AGAIN);
        flow.hand_over(Handing::AtRest);
    }

    /// Calls a flow again that is not called any more, when it is time.
    fn came_in_vain(&mut self, flow: &Flow, now: Instant) {
        self.is_held = false;
        match self.again {
            None => {
                self.again = Some(now + self.pause);
                self.pause = (self.pause * 2).min(CALLED_AGAIN[1]);
            }
            Some(again) if again <= now => {
                (self.again, self.until) = (None, now + COMES_WITHIN);
                flow.hand_over(Handing::AtRest);
            }
            Some(_) => {}
        }
    }
}
