//! The time in which an agent keeps its flows, after another one has taken over, and hands them over where that can be.
//!
//! Flows are called, some at a time: one of which nothing is under way comes at once. One that does not is held for a while, which
//! means that no further request of it is read, until what it has asked is answered; and later again.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    io,
    sync::Arc,
    time::Duration,
};

use flow::{Flow, Handing, Path};
use proxy::{FLOW_FORMAT, Handed, Inherited, NotTaken, ProxyContext};
use tokio::{
    sync::{mpsc, oneshot},
    time::{self, Instant},
};

use super::{
    dies_at,
    protocol::{Link, Message},
    successor::Taken,
};

/// The interval at which the other agent is told of the flows that are left.
const TELL_EVERY: Duration = Duration::from_millis(200);

/// The time that an agent drains at least: a connection whose SYN was on its way is there by then, also if it was sent again.
const SHORTEST: Duration = Duration::from_secs(3);

/// The longest time for which a flow is held, so that what it has asked is answered. Drivers give requests more.
const HELD_FOR: Duration = Duration::from_secs(2);

/// The time from one hold of a flow to its next one.
const HELD_AGAIN: Duration = Duration::from_secs(10);

/// Flows that are called at a time, each with two descriptors more while it waits.
const CALLED: usize = 64;

/// The end of a drain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DrainEnd {
    /// No flow is left.
    Drained,
    /// The longest time is over.
    Over,
    /// Somebody stops this agent, or the one that has taken over.
    Told,
}

/// Drains for at most `longest`. Flows that the kernel carries do not need the agent.
pub async fn drain(shared: &ProxyContext, to: &Taken, longest: Duration) -> DrainEnd {
    let until = Instant::now() + longest;
    match drain_with(shared, to, until).await {
        Ended::Alone => {
            tracing::warn!("the agent that has taken over is gone");
            for flow in shared.flows.all() {
                flow.hand_over(Handing::No);
            }
            until_none(shared, until).await
        }
        Ended::So(end) => end,
    }
}

/// The end of a drain with the other agent.
enum Ended {
    So(DrainEnd),
    /// Only this agent is left.
    Alone,
}

async fn drain_with(shared: &ProxyContext, to: &Taken, until: Instant) -> Ended {
    let (hands, mut handed) = mpsc::channel(CALLED);
    let ended = hand_all(shared, to, until, (hands, &mut handed)).await;
    if let Ended::Alone = ended {
        handed.close();
        while let Some(one) = handed.recv().await {
            let _ = one.answer.send(Err(NotTaken::Gone));
        }
    }
    ended
}

/// Hands flows over until none is left, or one of the two agents ends.
async fn hand_all(
    shared: &ProxyContext,
    to: &Taken,
    until: Instant,
    (hands, handed): (mpsc::Sender<Handed>, &mut mpsc::Receiver<Handed>),
) -> Ended {
    let (link, begun) = (&to.link, Instant::now());
    let mut hands = (to.takes == FLOW_FORMAT).then_some(hands);
    let mut calls = Calls::default();
    let mut next = Instant::now();
    loop {
        if next <= Instant::now() {
            let left = Left::of(shared);
            if left.flows == 0 && begun.elapsed() >= SHORTEST {
                if shared.handing.get().is_some() {
                    // Whoever does not hear it has died.
                    let _ = tell(link, proxy::give_back(shared)).await;
                }
                return Ended::So(DrainEnd::Drained);
            }
            if Instant::now() >= until {
                return Ended::So(over(&left));
            }
            next = (Instant::now() + TELL_EVERY).min(until);
            let Left { flows, stay } = left;
            let told = (Message::Drains { flows, stay }, Vec::new());
            if link.send(&told).await.is_err() {
                return Ended::Alone;
            }
            if let Some(hands) = hands.take() {
                if tell(link, proxy::bequeath(shared)).await.is_err() {
                    return Ended::Alone;
                }
                // Nobody else sets it.
                let _ = shared.handing.set(hands);
            }
            if shared.handing.get().is_some() {
                calls.call(shared);
            }
        }
        tokio::select! {
            () = time::sleep_until(next) => {}
            Some(flow) = handed.recv() => {
                if let Some(end) = hand(link, flow).await {
                    return end;
                }
                calls.call_next();
            }
            heard = link.receive() => match heard {
                Ok(Some((Message::End, _))) => return Ended::So(DrainEnd::Told),
                Ok(Some(_)) => {}
                Ok(None) | Err(_) => return Ended::Alone,
            },
        }
    }
}

/// Has the other agent go on with what is not of one flow.
async fn tell(link: &Link, parts: Vec<Vec<Inherited>>) -> io::Result<()> {
    for part in parts {
        link.send(&(Message::Inherit(part), Vec::new())).await?;
    }
    Ok(())
}

/// Waits until no flow is left, which nobody else takes.
async fn until_none(shared: &ProxyContext, until: Instant) -> DrainEnd {
    loop {
        let left = Left::of(shared);
        if left.flows == 0 {
            return DrainEnd::Drained;
        }
        if Instant::now() >= until {
            return over(&left);
        }
        time::sleep(TELL_EVERY).await;
    }
}

fn over(left: &Left) -> DrainEnd {
    tracing::warn!(
        flows = left.flows,
        "drained for as long as `drain` says: flows that are left end"
    );
    DrainEnd::Over
}

/// Hands one flow over. Until it is answered the flow's own task does nothing. It is not given up before: the other agent may
/// read the flow already.
async fn hand(link: &Link, handed: Handed) -> Option<Ended> {
    let Handed {
        flow,
        accepted,
        dialled,
        answer,
    } = handed;
    dies_at("hands");
    let told = (Message::Flow(flow), vec![accepted, dialled]);
    let sent = link.send(&told).await;
    drop(told);
    dies_at("handed_one");
    while sent.is_ok() {
        match link.receive().await {
            Ok(Some((Message::Took, _))) => {
                let (knows, _) = oneshot::channel();
                let _ = answer.send(Ok(knows));
                return None;
            }
            Ok(Some((Message::Declined { why }, _))) => {
                let _ = answer.send(Err(NotTaken::Declined(why)));
                return None;
            }
            Ok(Some((Message::End, _))) => return Some(Ended::So(DrainEnd::Told)),
            Ok(Some(_)) => {}
            Ok(None) | Err(_) => break,
        }
    }
    // It has not begun: it says so before.
    let _ = answer.send(Err(NotTaken::Gone));
    Some(Ended::Alone)
}

/// The flows that were called, and those that are next.
#[derive(Default)]
struct Calls {
    next: Vec<Arc<Flow>>,
    /// Flows that were called, by number: when each is held next, or not any more.
    called: HashMap<u64, Called>,
}

struct Called {
    is_held: bool,
    until: Instant,
}

impl Calls {
    /// Calls flows, holds those that have not come, and lets go those that were held for long enough.
    fn call(&mut self, shared: &ProxyContext) {
        let now = Instant::now();
        let flows = shared.flows.all();
        let goes = |flow: &&Arc<Flow>| flow.path() != Path::Splice && flow.stays().is_none();
        let flows: Vec<&Arc<Flow>> = flows.iter().filter(goes).collect();
        let left: HashSet<u64> = flows.iter().map(|flow| flow.id.number()).collect();
        self.called.retain(|number, _| left.contains(number));
        let mut held = self.called.values().filter(|one| one.is_held).count();
        self.next.clear();
        for flow in flows {
            let Some(called) = self.called.get_mut(&flow.id.number()) else {
                self.next.push(flow.clone());
                continue;
            };
            let (is_held, wait) = match called.is_held {
                true if called.until <= now => (false, HELD_AGAIN),
                false if called.until <= now && held < CALLED => (true, HELD_FOR),
                _ => {
                    // One that was called and had no room.
                    if flow.handing() == Handing::No {
                        flow.hand_over(Handing::AtRest);
                    }
                    continue;
                }
            };
            held = match is_held {
                true => held + 1,
                false => held - 1,
            };
            (called.is_held, called.until) = (is_held, now + wait);
            flow.hand_over(match is_held {
                true => Handing::Held,
                false => Handing::AtRest,
            });
        }
        for _ in 0..CALLED {
            self.call_next();
        }
    }

    /// Calls the next flow.
    fn call_next(&mut self) {
        if let Some(flow) = self.next.pop() {
            let called = Called {
                is_held: false,
                until: Instant::now() + TELL_EVERY,
            };
            self.called.insert(flow.id.number(), called);
            flow.hand_over(Handing::AtRest);
        }
    }
}

/// Flows that end with this process.
struct Left {
    flows: usize,
    /// Flows among them that cannot be handed over, by reason.
    stay: BTreeMap<String, usize>,
}

impl Left {
    fn of(shared: &ProxyContext) -> Self {
        let keeps = shared.keeper.get().is_some();
        let mut left = Self {
            flows: 0,
            stay: BTreeMap::new(),
        };
        for flow in shared.flows.all() {
            if keeps && flow.path() == Path::Splice {
                continue;
            }
            left.flows += 1;
            if let Some(why) = flow.stays() {
                *left.stay.entry(why.as_str().to_owned()).or_default() += 1;
            }
        }
        left
    }
}
