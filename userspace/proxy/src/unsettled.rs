//! Flows that are not settled: their log-in is not over, or their database has not said a word. The first have
//! limited time, and all of them are the first to go when the agent is full.
//!
//! Nothing of a request that a session rule could deny has passed on such a flow. A flow that has logged in stays,
//! even if a rule that asks for its keyspace does not decide it for days: a driver's control connection.

use std::{
    sync::{Arc, Weak, atomic::Ordering::Relaxed},
    time::{Duration, Instant},
};

use flow::{CloseReason, Flow, Path, commands::FlowCommand};
use parking_lot::Mutex;
use tokio::{sync::Notify, time};

/// The fraction of the time for a handshake, 1 / `GRACE_DIVISOR`, that a flow has before it can be made to leave:
/// by default five seconds, after which drivers give up.
const GRACE_DIVISOR: u32 = 6;

/// The interval at which unsettled flows are looked at while there are some.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Entries from which on those of settled flows are cleared away when a flow comes.
const CLEARED_FROM: usize = 64;

/// Unsettled flows, the oldest first.
pub struct Unsettled {
    timeout: Duration,
    waiting: Mutex<Waiting>,
    news: Notify,
}

#[derive(Default)]
struct Waiting {
    flows: Vec<(Instant, Weak<Flow>)>,
    /// How many entries there may be before those of settled flows are cleared away.
    clear_at: usize,
}

impl Unsettled {
    /// Gives flows this time until they have logged in.
    pub fn new(timeout: Duration) -> Self {
        Self {
            timeout,
            waiting: Mutex::default(),
            news: Notify::new(),
        }
    }

    /// Enters a flow that begins to be carried now.
    pub(super) fn enter(&self, flow: &Arc<Flow>) {
        let mut waiting = self.waiting.lock();
        waiting.flows.push((Instant::now(), Arc::downgrade(flow)));
        if waiting.flows.len() >= waiting.clear_at.max(CLEARED_FROM) {
            waiting.flows.retain(|(_, flow)| unsettled(flow).is_some());
            waiting.clear_at = 2 * waiting.flows.len();
        }
        if waiting.flows.len() == 1 {
            self.news.notify_one();
        }
    }

    /// Closes flows whose time is over, and `excess` of the others that have had their grace. Returns whether
    /// some are left.
    fn sweep(&self, now: Instant, mut excess: usize) -> bool {
        let grace = self.timeout / GRACE_DIVISOR;
        let mut waiting = self.waiting.lock();
        waiting.flows.retain(|(since, flow)| {
            let age = now.saturating_duration_since(*since);
            let Some(flow) = unsettled(flow) else {
                return false;
            };
            let reason = match age {
                _ if age >= self.timeout && flow.is_logging_in() => CloseReason::HandshakeTimeout,
                _ if age >= grace && excess > 0 => CloseReason::MadeRoom,
                _ => return true,
            };
            excess = excess.saturating_sub(1);
            drop(flow.commands.post(FlowCommand::close(reason)));
            false
        });
        !waiting.flows.is_empty()
    }

    /// Closes unsettled flows in time. Runs for ever. `excess`: how many are to leave at once.
    pub(super) async fn watch(&self, excess: impl Fn() -> usize) {
        let mut some_left = false;
        loop {
            let news = self.news.notified();
            match some_left {
                true => drop(time::timeout(LOOK_EVERY, news).await),
                false => news.await,
            }
            some_left = self.sweep(Instant::now(), excess());
        }
    }
}

/// The flow, if it has not ended, and is unsettled. What the kernel has carried is counted later, so a flow that it
/// carries is settled.
fn unsettled(flow: &Weak<Flow>) -> Option<Arc<Flow>> {
    let is_silent = |flow: &Flow| flow.to_client.load(Relaxed) == 0 && flow.path() != Path::Splice;
    let flow = flow.upgrade()?;
    let goes_on = !flow.commands.is_closed();
    (goes_on && (flow.is_logging_in() || is_silent(&flow))).then_some(flow)
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use dataplane::{ClientAddr, OrigDst, Process};
    use policy::{Action, Fact, RuleName, Session};

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(30);
    const GRACE: Duration = Duration::from_secs(5);

    fn flow(number: u64) -> Arc<Flow> {
        let at: SocketAddr = "127.0.0.1:9042".parse().unwrap();
        let (client, to) = (ClientAddr::new(at), OrigDst::new(at));
        let flow = Flow::begin(number, client, Process::elsewhere(), to, RuleName::new("r"));
        Arc::new(flow)
    }

    /// The database has said something, and the session decides.
    fn begins(flow: &Flow) {
        flow.await_session();
        flow.to_client.store(1, Relaxed);
    }

    fn logs_in(flow: &Flow) {
        let user = Fact::Absent;
        flow.knows(&Session {
            user,
            ..Session::default()
        });
    }

    /// The reasons for which flows are to close, by their order.
    fn closing(flows: &[Arc<Flow>]) -> Vec<Option<CloseReason>> {
        let posted = flows.iter().map(|flow| flow.commands.take());
        posted
            .map(|posted| posted.and_then(|posted| posted.command.closing))
            .collect()
    }

    #[test]
    fn a_log_in_that_is_not_over_in_time_is_closed_once() {
        let unsettled = Unsettled::new(TIMEOUT);
        let flows: Vec<_> = (0..4).map(flow).collect();
        let [decided, control, stuck, silent] = &flows[..] else {
            unreachable!()
        };
        flows.iter().for_each(|flow| unsettled.enter(flow));
        [decided, control, stuck]
            .into_iter()
            .for_each(|f| begins(f));
        decided.set_action(&RuleName::new("r"), Action::Enrich);
        logs_in(control);
        silent.set_action(&RuleName::new("r"), Action::Enrich);
        let now = Instant::now();
        assert!(unsettled.sweep(now, 0));
        assert_eq!(closing(&flows), [None; 4]);
        unsettled.sweep(now + TIMEOUT, 0);
        let late = Some(CloseReason::HandshakeTimeout);
        assert_eq!(closing(&flows), [None, None, late, None]);
        silent.to_client.store(1, Relaxed);
        assert!(!unsettled.sweep(now + TIMEOUT, 9));
        assert_eq!(closing(&flows), [None; 4]);
    }

    #[test]
    fn a_full_agent_sends_away_the_oldest_that_have_had_their_grace_and_no_more_than_it_must() {
        let unsettled = Unsettled::new(TIMEOUT);
        let flows: Vec<_> = (0..6).map(flow).collect();
        flows.iter().for_each(|flow| unsettled.enter(flow));
        begins(&flows[0]);
        begins(&flows[1]);
        logs_in(&flows[1]);
        // Its sockets are being closed.
        flows[2].commands.close();
        let now = Instant::now();
        assert!(unsettled.sweep(now, 2));
        assert_eq!(closing(&flows), [None; 6]);
        assert!(unsettled.sweep(now + GRACE, 2));
        let made = Some(CloseReason::MadeRoom);
        assert_eq!(closing(&flows), [made, None, None, made, None, None]);
    }

    #[test]
    fn flows_that_are_settled_or_gone_take_no_room() {
        let unsettled = Unsettled::new(TIMEOUT);
        let first = flow(0);
        unsettled.enter(&first);
        for n in 1..10_000 {
            unsettled.enter(&flow(n));
        }
        assert!(unsettled.waiting.lock().flows.len() <= CLEARED_FROM);
    }
}
