//! The splice: hands a flow to the kernel, and takes it back when the kernel cannot go on alone,
//! because a side has ended, or does not take what the other sends.
//!
//! A flow is handed over when nothing of it is under way in the agent and nobody needs to see what
//! comes. No byte waits for that: bytes that come meanwhile are relayed, and the kernel redirects
//! only once those have been written on (`ebpf/src/splice.h`).

use std::{
    future::{self, Future, poll_fn},
    io::ErrorKind,
    mem::MaybeUninit,
    ops::Deref,
    os::fd::AsFd,
    pin::Pin,
    sync::{Arc, Weak},
    task::{Context, Poll, ready},
    time::Duration,
};

use dataplane::{
    AgentMoved, Application, Engine, KernelMoved, Leg, LegSide, Resumed, Splice, SpliceRefusal,
    Splicer,
};
use flow::{CloseReason, Flow, Path};
use socket2::SockRef;
use telemetry::{Metrics, Rarely, SPLICE_OFF};
use tokio::{
    net::TcpStream,
    time::{self, Instant, Sleep},
};

use super::{
    close::{FlowEnd, failed},
    context::ProxyContext,
    drain::Drain,
    relay::Relay,
    short_legs::{ShortLegs, SpokenSide},
    wait::{End, ride},
};
use crate::keeper::{FlowSnapshot, Kept, NotKept};

/// A flow that comes back within this time is one whose sender is ahead of its receiver. It is
/// relayed for a while, each time for longer, so that it does not go back and forth with every
/// message.
const SHORT_RIDE: Duration = Duration::from_millis(20);
const FIRST_REST: Duration = Duration::from_millis(1);
const LONGEST_REST: Duration = Duration::from_millis(64);
/// The rest of a flow whose sockets have left the sockmaps, which gains nothing by a ride while bytes come.
const REST_OUTSIDE: Duration = Duration::from_secs(1);

/// Bytes that come while a flow is handed over are relayed; a flow that still has not paused after
/// this many rounds stays with the agent.
const HANDOVER_ROUNDS: usize = 4;

/// The explanation for a flow whose sockets have left the sockmaps.
const READER_STALLED: &str = "an application did not read on while bytes waited in TCP, of which FIONREAD does \
                              not tell it in a sockmap: its flow has left for good";

/// Lines about flows that the kernel refuses to carry: whoever connects decides how many flows there are.
static NOT_SPLICED: Rarely = Rarely::new();

/// The source of the splice for a flow.
pub(super) enum SpliceSource {
    /// The splice that all flows share, once it has been tried out.
    Shared(Arc<ProxyContext>),
    /// A splice that is being tried out.
    Trial(Splicer),
    /// No splice: the flow stays with the agent for good.
    Closed,
}

impl SpliceSource {
    /// Returns the splice. None where there is none, or not yet.
    fn splices(&mut self, flow: &Flow) -> Option<Splicer> {
        let shared = match self {
            Self::Shared(shared) => shared,
            Self::Trial(splices) => return Some(splices.clone()),
            Self::Closed => return None,
        };
        if !flow.near().is_opted_in(flow.opted_in()) {
            let refusal = SpliceRefusal::NotOptedIn(flow.near());
            flow.set_relayed(refusal.to_string());
            count_refusal(&shared.metrics, &refusal);
            *self = Self::Closed;
            return None;
        }
        match shared.splices.get() {
            Some(Ok(splices)) => return Some(splices.clone()),
            Some(Err(reason)) => {
                flow.set_relayed(format!("splice is off: {reason}"));
                let refusals = &shared.metrics.splice.refusals;
                refusals.with_label_values(&[SPLICE_OFF]).inc();
                *self = Self::Closed;
            }
            None => flow.set_relayed("the splice is still being tried out"),
        }
        None
    }
}

fn count_refusal(metrics: &Metrics, refusal: &SpliceRefusal) {
    let refusals = &metrics.splice.refusals;
    refusals.with_label_values(&[refusal.as_str()]).inc();
}

/// The counters that count a flow's rides.
pub(super) enum Counters {
    /// The counters of the agent.
    Shared(Arc<ProxyContext>),
    /// The counters of a canary, or of a keeper.
    Own(Box<Metrics>),
}

impl Deref for Counters {
    type Target = Metrics;

    fn deref(&self) -> &Metrics {
        match self {
            Self::Shared(shared) => &shared.metrics,
            Self::Own(metrics) => metrics,
        }
    }
}

/// A flow's rides with the kernel.
pub(super) struct KernelCarry {
    source: SpliceSource,
    /// The near application. None in a keeper.
    application: Option<Application>,
    flow: Arc<Flow>,
    counters: Counters,
    enrolled: Option<Enrolled>,
    /// The keeper's hold on the flow, which then outlives this process.
    kept: Option<Kept>,
    /// The number of the keeper that was asked to hold the flow.
    asked: Option<u32>,
    /// Set when the keeper may take the flow later.
    keep_later: bool,
    rest: Duration,
    resting: Option<Pin<Box<Sleep>>>,
    short_legs: ShortLegs,
}

struct Enrolled {
    splice: Arc<Splice>,
    /// The agent's own position when it was enrolled.
    base: AgentMoved,
    /// The kernel's work that is counted already.
    counted: KernelMoved,
}

impl Enrolled {
    fn position(&self, relay: &Relay) -> AgentMoved {
        let now = relay.position();
        AgentMoved {
            from_near: now.from_near,
            from_far: now.from_far - self.base.from_far,
            to_near: now.to_near - self.base.to_near,
        }
    }
}

impl KernelCarry {
    pub(super) fn new(
        source: SpliceSource,
        application: Option<Application>,
        flow: &Arc<Flow>,
        counters: Counters,
    ) -> Self {
        Self {
            source,
            application,
            flow: flow.clone(),
            counters,
            enrolled: None,
            kept: None,
            asked: None,
            keep_later: false,
            rest: Duration::ZERO,
            resting: None,
            short_legs: ShortLegs::default(),
        }
    }

    /// Whether the leg of this side may be shortened yet.
    pub(super) fn may_shorten(&self, side: LegSide) -> bool {
        self.enrolled.is_none() && self.short_legs.is_untried(side)
    }

    /// Shortens a leg of a flow that the agent reads. Returns it while it is short.
    pub(super) fn shorten(&mut self, spoken: &SpokenSide<'_>) -> Weak<Leg> {
        let Counters::Shared(shared) = &self.counters else {
            return Weak::new();
        };
        let application = self.application.as_ref();
        self.short_legs
            .shorten(spoken, &self.flow, application, shared)
    }

    /// Returns the state that all flows share. None in a canary, or a keeper.
    pub(super) fn context(&self) -> Option<&Arc<ProxyContext>> {
        match &self.counters {
            Counters::Shared(shared) => Some(shared),
            Counters::Own(_) => None,
        }
    }

    /// Returns the near application. None in a keeper.
    pub(super) fn application(&self) -> Option<&Application> {
        self.application.as_ref()
    }

    /// Ready when no leg is short.
    pub(super) fn poll_legs_long(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.short_legs.poll_long(cx)
    }

    /// Goes on with a flow that another process has left while the kernel carried it.
    pub(super) fn resume(
        &mut self,
        relay: &mut Relay,
        resumed: Resumed,
        kept: Option<Kept>,
        shared: Option<Arc<ProxyContext>>,
        far: &TcpStream,
    ) -> Result<(), CloseReason> {
        let splice = Arc::new(resumed.splice);
        relay.set_enrolled(splice.clone());
        relay.begins_at(resumed.position, &resumed.frame_positions, shared);
        self.asked = kept.as_ref().and_then(Kept::by);
        self.kept = kept;
        let enrolled = self.enrolled.insert(Enrolled {
            splice,
            base: AgentMoved::default(),
            counted: resumed.moved,
        });
        take_back(enrolled, relay, far)
    }

    /// Returns the flow's splice. None before the flow was enrolled.
    pub(super) fn splice(&self) -> Option<&Splice> {
        self.enrolled
            .as_ref()
            .map(|enrolled| enrolled.splice.as_ref())
    }

    /// Ready when the kernel is to carry the flow.
    pub(super) fn poll_wanted(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.enrolled.is_none() && self.source.splices(&self.flow).is_none() {
            return Poll::Pending;
        }
        if let Some(sleep) = &mut self.resting {
            ready!(sleep.as_mut().poll(cx));
        }
        self.short_legs.poll_long(cx)
    }

    /// Lets the kernel carry the flow until the agent is needed again. An error ends the flow in this
    /// process.
    pub(super) async fn along(
        &mut self,
        relay: &mut Relay,
        near: &TcpStream,
        far: TcpStream,
    ) -> Result<TcpStream, FlowEnd> {
        self.resting = None;
        let paused = Instant::now();
        if self.enrolled.is_none() {
            self.enrol(relay, near, &far);
        } else if self.is_to_keep() {
            self.keep(relay, near, &far);
        }
        let Some(enrolled) = &self.enrolled else {
            return Ok(far);
        };
        let started = Instant::now();
        let mut ended = End::Needed;
        self.counters.splice.handovers.inc();
        let far = match hand_over(enrolled, relay, near, &far).await {
            Ok(true) => {
                let pause = paused.elapsed().as_secs_f64();
                self.counters.splice.handover_seconds.observe(pause);
                // One whose sockets have left rides too: so it outlives the agent, and can be adopted.
                if !enrolled.splice.is_out() {
                    self.flow.set_spliced(enrolled.splice.why_not_by_sender());
                }
                let (splice, flow) = (enrolled.splice.clone(), self.flow.clone());
                let read = enrolled.position(relay).from_far;
                let has_come = || splice.has_come(read);
                let count = || {
                    self.count(relay);
                    self.is_to_keep()
                };
                let rode = ride(&splice, &flow, near, far, has_come, count).await;
                let (far, end) = rode.map_err(|reason| FlowEnd::Closed { reason, far: None })?;
                ended = end;
                far
            }
            Ok(false) => {
                self.flow
                    .set_relayed("it did not pause for the kernel to take it over");
                far
            }
            Err(reason) => return Err(FlowEnd::closed(reason, far)),
        };
        let Some(enrolled) = &self.enrolled else {
            return Ok(far);
        };
        if ended == End::Given {
            enrolled.splice.leave();
            return Err(FlowEnd::GivenAway { far });
        }
        if let Err(reason) = take_back(enrolled, relay, &far) {
            return Err(FlowEnd::closed(reason, far));
        }
        self.flow.travels(Path::Relay);
        let slow = self.count(relay);
        if let End::Marked(reason) = ended {
            return Err(FlowEnd::closed(reason, far));
        }
        if self.is_out() {
            self.rest_for(REST_OUTSIDE);
            self.flow.set_relayed(READER_STALLED);
            return Ok(far);
        }
        match started.elapsed() {
            _ if ended == End::Recalled => {}
            short if short < SHORT_RIDE + self.rest => self.rest_longer(),
            _ => self.rest = Duration::ZERO,
        }
        self.flow.set_relayed(match self.resting {
            Some(_) => slow.as_str(),
            None => "it was taken back: a side has ended, or bytes are under way",
        });
        Ok(far)
    }

    /// Keeps the flow with the agent for a while, each time for longer.
    fn rest_longer(&mut self) {
        self.rest_for((self.rest * 2).clamp(FIRST_REST, LONGEST_REST));
    }

    fn rest_for(&mut self, rest: Duration) {
        self.rest = rest;
        self.resting = Some(Box::pin(time::sleep(rest)));
    }

    fn is_out(&self) -> bool {
        self.splice().is_some_and(Splice::is_out)
    }

    /// Enters the flow's sockets into the kernel's maps. If that is refused, the flow stays with
    /// the agent for good.
    fn enrol(&mut self, relay: &mut Relay, near: &TcpStream, far: &TcpStream) {
        let (Some(splices), Some(application)) =
            (self.source.splices(&self.flow), &self.application)
        else {
            return;
        };
        let base = relay.position();
        // Kernel TLS and a sockmap do not work on the same socket, and kernel TLS may begin at any
        // time.
        let enrolled = match relay.is_tls() {
            true => Err(SpliceRefusal::Tls),
            false => {
                let ends = (SockRef::from(near), SockRef::from(far));
                let opted_in = self.flow.opted_in();
                splices.enrol(ends.0, ends.1, application, opted_in, base.from_near)
            }
        };
        match enrolled {
            Ok(splice) => {
                let splice = Arc::new(splice);
                relay.set_enrolled(splice.clone());
                self.enrolled = Some(Enrolled {
                    splice,
                    base,
                    counted: KernelMoved::default(),
                });
                self.keep(relay, near, far);
            }
            Err(refusal @ SpliceRefusal::Busy) => {
                self.flow.set_relayed(format!("resting: {refusal}"));
                self.rest_longer();
            }
            Err(refusal) => {
                count_refusal(&self.counters, &refusal);
                NOT_SPLICED.say(|not_said_before| {
                    tracing::info!(flow = ?self.flow.id, %refusal, not_said_before, "not spliced");
                });
                self.flow.set_relayed(format!("refused: {refusal}"));
                self.source = SpliceSource::Closed;
            }
        }
    }

    /// Whether a keeper may take the flow that has not been asked, or not when it could.
    fn is_to_keep(&self) -> bool {
        let another = || {
            let number = self.context()?.keeper.get()?.number()?;
            Some(self.asked != Some(number))
        };
        self.keep_later || another().unwrap_or_default()
    }

    /// Gives the flow to the keeper, too, where that is possible, so that it outlives the agent.
    fn keep(&mut self, relay: &Relay, near: &TcpStream, far: &TcpStream) {
        // Who drops the one takes the other back: the one before goes first.
        self.kept = None;
        let (Some(shared), Some(enrolled), Some(application)) =
            (self.context(), &self.enrolled, &self.application)
        else {
            return;
        };
        let Some(keeper) = shared.keeper.get() else {
            return;
        };
        let Enrolled {
            splice, counted, ..
        } = enrolled;
        let now = enrolled.position(relay);
        let since = relay
            .near()
            .directions(counted.up, counted.down + now.to_near);
        let cookie = application.client_cookie();
        let snapshot = FlowSnapshot::of(&self.flow, cookie, splice, now.from_near, since);
        let (client, database) = relay.near().sides(near, far);
        let asked = keeper.number();
        let kept = keeper.keep(snapshot, client.as_fd(), database.as_fd());
        self.asked = asked;
        self.keep_later = matches!(kept, Err(NotKept::ForNow));
        self.kept = kept.ok();
    }

    /// Counts the bytes that the kernel has carried since the last call. Returns the side that did
    /// not take them.
    pub(super) fn count(&mut self, relay: &Relay) -> Slow {
        let Some(enrolled) = &mut self.enrolled else {
            return Slow::Nobody;
        };
        let Ok(moved) = enrolled.splice.moved() else {
            return Slow::Nobody;
        };
        let before = std::mem::replace(&mut enrolled.counted, moved);
        let near = relay.near();
        let carried = near.directions(moved.up - before.up, moved.down - before.down);
        relay.carried(carried);
        let [up, down] = carried;
        self.counters.splice.to_database.inc_by(up);
        self.counters.splice.to_client.inc_by(down);
        let spills = near.directions(
            moved.up_spills - before.up_spills,
            moved.down_spills - before.down_spills,
        );
        for (slow, count) in ["database", "client"].into_iter().zip(spills) {
            if count > 0 {
                let counter = &self.counters.splice.spills;
                counter.with_label_values(&[slow]).inc_by(count);
            }
        }
        match spills.map(|count| count > 0) {
            [true, _] => Slow::Database,
            [false, true] => Slow::Client,
            [false, false] => Slow::Nobody,
        }
    }
}

/// The side that did not take what the other sent.
#[derive(Clone, Copy)]
pub(super) enum Slow {
    Database,
    Client,
    Nobody,
}

impl Slow {
    fn as_str(self) -> &'static str {
        match self {
            Self::Database => "resting: the database did not take what the client sent",
            Self::Client => "resting: the client did not take what the database sent",
            Self::Nobody => "resting: it came back from the kernel at once",
        }
    }
}

/// Lets the kernel redirect, and relays the bytes that came in between. False when the flow does
/// not pause.
async fn hand_over(
    enrolled: &Enrolled,
    relay: &mut Relay,
    near: &TcpStream,
    far: &TcpStream,
) -> Result<bool, CloseReason> {
    for _ in 0..HANDOVER_ROUNDS {
        let position = enrolled.position(relay);
        let frame_positions = relay.hand_over();
        if let Err(error) = enrolled
            .splice
            .engage(SockRef::from(far), position, frame_positions)
        {
            tracing::warn!(%error, "a flow stays with the agent for now");
            return Ok(false);
        }
        let to_far = poll_fn(|cx| Poll::Ready(relay.poll_to_far(cx, near, far))).await;
        if let Poll::Ready(Err(reason)) = to_far {
            return Err(reason);
        }
        if enrolled.splice.engine() == Engine::Sender {
            let to_near = poll_fn(|cx| Poll::Ready(relay.poll_to_near(cx, near, far))).await;
            if let Poll::Ready(Err(reason)) = to_near {
                return Err(reason);
            }
        }
        if !relay.is_quiet() {
            return Ok(false);
        }
        if enrolled.splice.engine() == Engine::Egress && !is_read(enrolled, relay, far, position)? {
            return Ok(false);
        }
        if enrolled.position(relay) == position {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether the agent has read everything that the verdict did not redirect.
fn is_read(
    enrolled: &Enrolled,
    relay: &Relay,
    far: &TcpStream,
    position: AgentMoved,
) -> Result<bool, CloseReason> {
    // Bytes that came before the verdict was attached wait for the next packet, or for a reader.
    match SockRef::from(far).peek(&mut [MaybeUninit::uninit()]) {
        Err(e) if e.kind() == ErrorKind::WouldBlock => {}
        Err(e) => return Err(relay.far_failed(e)),
        Ok(_) => return Ok(false),
    }
    // Bytes that the verdict has passed up meanwhile must be read by the relay.
    let moved = enrolled.splice.moved().map_err(|e| failed(&e))?;
    if moved.corrupted {
        return Err(CloseReason::SpliceFailed);
    }
    Ok(moved.passed == position.from_far)
}

/// Waits until the kernel has lost bytes of an enrolled flow's far application: the end of the flow.
pub(super) async fn corrupted(enrolled: Option<Arc<Splice>>) {
    let Some(splice) = enrolled else {
        return future::pending().await;
    };
    while !splice.moved().is_ok_and(|moved| moved.corrupted) {
        splice.called().await;
    }
}

fn take_back(enrolled: &Enrolled, relay: &mut Relay, far: &TcpStream) -> Result<(), CloseReason> {
    let position = enrolled.position(relay);
    let withdrawn = enrolled.splice.withdraw(SockRef::from(far), position);
    withdrawn.map_err(|e| failed(&e))?;
    relay.drain_first(Drain::new(position.to_near));
    Ok(())
}
