//! The time in which an agent keeps its flows, after another one has taken over, and hands them over where that can be: they are
//! called ([`Calls`]), and come one by one.

use std::{
    collections::{BTreeMap, VecDeque},
    io,
    os::fd::OwnedFd,
    time::Duration,
};

use flow::{Handing, Path};
use proxy::{FLOW_FORMAT, Handed, Inherited, NotTaken, ProxyContext, keeper::Keeper};
use tokio::{
    sync::{mpsc, oneshot},
    time::{self, Instant},
};

use super::{
    calls::{CALLED, Calls},
    protocol::{Link, Message},
    reached,
    successor::Taken,
};

/// The interval at which the other agent is told of the flows that are left.
const TELL_EVERY: Duration = Duration::from_millis(200);

/// The time that the other agent has for a flow that it is given, and at the end for what is not of one flow.
const ANSWER_LIMIT: Duration = Duration::from_secs(2);

/// The time that an agent drains at least: a connection whose SYN was on its way is there by then, also if it was sent again.
const SHORTEST: Duration = Duration::from_secs(3);

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
    let mut given = None;
    let ended = hand_all(shared, to, until, (hands, &mut handed), &mut given).await;
    if let Ended::Alone = ended {
        if let Some(given) = given {
            given.ends_alone(&to.link).await;
        }
        handed.close();
        while let Some(one) = handed.recv().await {
            let _ = one.answer.send(Err(NotTaken::Gone));
        }
    }
    ended
}

/// Hands flows over until none is left, or one of the two agents ends. `given`: the flow that was handed over last, until it is
/// answered. A flow never waits here for the other agent, which may hang.
async fn hand_all(
    shared: &ProxyContext,
    to: &Taken,
    until: Instant,
    (hands, handed): (mpsc::Sender<Handed>, &mut mpsc::Receiver<Handed>),
    given: &mut Option<Given>,
) -> Ended {
    let (link, begun) = (&to.link, Instant::now());
    let mut hands = (to.takes == FLOW_FORMAT).then_some(hands);
    let (mut untold, mut has_bequeathed) = (VecDeque::new(), hands.is_none());
    let mut calls = Calls::default();
    let mut next = Instant::now();
    // That it drains is the first that the other agent hears.
    let (mut has_begun, mut has_complained) = (false, false);
    loop {
        if has_bequeathed
            && untold.is_empty()
            && let Some(hands) = hands.take()
        {
            // Nobody else sets it.
            drop(shared.handing.set(hands));
            next = Instant::now();
        }
        if next <= Instant::now() {
            let left = Left::of(shared);
            if left.flows == 0 && begun.elapsed() >= SHORTEST {
                untold.extend(messages(proxy::give_back(shared)));
                // Whoever does not hear it has died, or hangs.
                let _ = time::timeout(ANSWER_LIMIT, tell(link, &untold)).await;
                return Ended::So(DrainEnd::Drained);
            }
            if Instant::now() >= until {
                return Ended::So(over(&left));
            }
            next = (Instant::now() + TELL_EVERY).min(until);
            let Left { flows, stay } = left;
            let told = (Message::Drains { flows, stay }, Vec::new());
            // One that has no room for it now hears the next one.
            let told = time::timeout(Duration::ZERO, link.send(&told)).await;
            if let Ok(Err(_)) = told {
                return Ended::Alone;
            }
            has_begun |= told.is_ok();
            if has_begun && !has_bequeathed {
                // Not before: tokens that are given to an agent which has died are nobody's.
                has_bequeathed = true;
                untold = messages(proxy::bequeath(shared).into_iter().flatten());
                continue;
            }
            if hands.is_some() && begun.elapsed() >= ANSWER_LIMIT && !has_complained {
                has_complained = true;
                tracing::warn!(
                    "the agent that has taken over does not listen: flows stay here until it does"
                );
            }
            if given.as_ref().is_some_and(Given::hangs) {
                calls.let_go(shared.flows.all());
                while let Ok(one) = handed.try_recv() {
                    let why = "the other agent does not answer".into();
                    let _ = one.answer.send(Err(NotTaken::NotNow(why)));
                }
            } else if shared.handing.get().is_some() {
                calls.call(shared.flows.all());
            }
        }
        tokio::select! {
            () = time::sleep_until(next) => {}
            Some(flow) = handed.recv(), if given.is_none() => {
                reached("hands");
                *given = Some(Given::new(flow));
            }
            sent = tell_next(link, &untold), if has_begun => {
                if sent.is_err() {
                    return Ended::Alone;
                }
                untold.pop_front();
            }
            sent = Given::send(given.as_ref(), link) => {
                if sent.is_err() {
                    return Ended::Alone;
                }
                if let Some(given) = given {
                    given.note_sent();
                }
                reached("handed_one");
            }
            heard = link.receive() => match heard {
                Ok(Some((Message::End, _))) => return Ended::So(DrainEnd::Told),
                Ok(Some((message, _))) => {
                    if let Some(answer) = taken(message)
                        && let Some(given) = given.take()
                    {
                        given.answer(answer);
                        calls.call_next();
                    }
                }
                Ok(None) | Err(_) => return Ended::Alone,
            },
        }
    }
}

/// Returns what a message says of the flow that was handed over.
fn taken(message: Message) -> Option<Result<(), NotTaken>> {
    match message {
        Message::Took => Some(Ok(())),
        Message::Declined { why, for_now: true } => Some(Err(NotTaken::NotNow(why))),
        Message::Declined { why, .. } => Some(Err(NotTaken::Declined(why))),
        _ => None,
    }
}

/// A flow that the other agent is given. Until it is answered the flow's own task does nothing. It is not given up before: the
/// other agent may read the flow already.
struct Given {
    /// None once it is sent.
    told: Option<(Message, Vec<OwnedFd>)>,
    answer: oneshot::Sender<Result<oneshot::Sender<()>, NotTaken>>,
    since: Instant,
}

impl Given {
    fn new(handed: Handed) -> Self {
        let Handed {
            flow,
            accepted,
            dialled,
            answer,
        } = handed;
        Self {
            told: Some((Message::Flow(flow), vec![accepted, dialled])),
            answer,
            since: Instant::now(),
        }
    }

    /// Sends it, if there is one that is not sent. If the future is dropped before that, nothing has been sent.
    async fn send(given: Option<&Self>, link: &Link) -> io::Result<()> {
        match given.and_then(|given| given.told.as_ref()) {
            Some(told) => link.send(told).await,
            None => std::future::pending().await,
        }
    }

    fn note_sent(&mut self) {
        self.told = None;
    }

    /// Whether the other agent has not answered for long.
    fn hangs(&self) -> bool {
        self.since.elapsed() >= ANSWER_LIMIT
    }

    fn answer(self, answer: Result<(), NotTaken>) {
        // This agent begins nothing with it.
        let answer = answer.map(|()| oneshot::channel().0);
        let _ = self.answer.send(answer);
    }

    /// Answers it where the connection to the other agent has ended, or ends now: that agent has the flow only if it has said so, for it does
    /// not begin with one of which it could not say so.
    async fn ends_alone(self, link: &Link) {
        link.end();
        let mut said = None;
        loop {
            match link.receive().await {
                Ok(Some((message, _))) => said = said.or(taken(message)),
                Err(error) if error.kind() == io::ErrorKind::InvalidData => {}
                Ok(None) | Err(_) => break,
            }
        }
        self.answer(said.unwrap_or(Err(NotTaken::Gone)));
    }
}

/// Messages that have the other agent go on with what is not of one flow.
fn messages(parts: impl IntoIterator<Item = Vec<Inherited>>) -> VecDeque<(Message, Vec<OwnedFd>)> {
    let told = |part| (Message::Inherit(part), Vec::new());
    parts.into_iter().map(told).collect()
}

/// Sends the first of these messages, if there is one. If the future is dropped before that, nothing has been sent.
async fn tell_next(link: &Link, messages: &VecDeque<(Message, Vec<OwnedFd>)>) -> io::Result<()> {
    match messages.front() {
        Some(message) => link.send(message).await,
        None => std::future::pending().await,
    }
}

async fn tell(link: &Link, messages: &VecDeque<(Message, Vec<OwnedFd>)>) -> io::Result<()> {
    for message in messages {
        link.send(message).await?;
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

/// Flows that end with this process.
struct Left {
    flows: usize,
    /// Flows among them that cannot be handed over, by reason.
    stay: BTreeMap<String, usize>,
}

impl Left {
    fn of(shared: &ProxyContext) -> Self {
        let mut kept = shared.keeper.get().map_or(0, Keeper::kept_flows);
        let mut left = Self {
            flows: 0,
            stay: BTreeMap::new(),
        };
        for flow in shared.flows.all() {
            // Those that are kept and not spliced at the moment count by themselves.
            if flow.path() == Path::Splice && kept > 0 {
                kept -= 1;
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
