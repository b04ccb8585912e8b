//! The relay: moves a flow's bytes in both directions, in one task.
//!
//! A chunk is read into the worker's buffer, decoded there and written on at once. Only the bytes
//! that the other side does not take stay with the flow, and until they have gone nothing more is
//! read from the side that they came from: a peer that does not read stops its counterpart through
//! TCP's own window.

mod carry;

use std::{
    io,
    sync::Arc,
    task::{Context, Poll, ready},
};

use cql::NoPosition;
use dataplane::{AgentMoved, FlowPosition, LegSide, Near, Splice};
use flow::{CloseReason, Flow, Handing, Stays};
use policy::RuleName;
use telemetry::Metrics;
use tokio::net::TcpStream;

pub(super) use self::carry::{carry, to_the_end};
use super::{
    busy_poll, close,
    context::ProxyContext,
    decode::Decoder,
    direction_pump::{CHUNK, DirectionPump, State, Stop, take_another_turn},
    drain::Drain,
    legs::{Legs, Refused},
    outbox,
    passing::Direction,
    read_on::{NotHanded, ReadOn},
    reader::{Begins, Both, Reader},
    short_legs::SpokenSide,
    splice::KernelCarry,
};

/// The most rounds of a flow in one turn of its task. No more than so many bytes are read in a turn
/// (`direction_pump.rs`), and each read costs the task its budget, so that it waits long before; what else has directions polled again is used
/// up with each round.
const MAX_ROUNDS: usize = 256;

/// The outcome of a round: both directions were polled.
enum Round {
    /// Another round is to follow at once.
    Again,
    /// A direction waits.
    Pending,
    /// The flow has ended, for this reason.
    Ended(CloseReason),
}

/// The reason why the relay stops moving bytes.
pub(super) enum Pause {
    /// The flow has ended, for this close reason.
    Ended(CloseReason),
    /// Nothing is under way, and nobody needs to see the bytes that come: the kernel may carry the
    /// flow.
    Idle,
    /// A mark has a command for the flow.
    Letter,
    /// Nothing is under way, and another agent is to go on with the flow like this.
    HandOver(Box<ReadOn>),
}

pub(super) struct Relay {
    reader: Reader,
    up: DirectionPump,
    down: DirectionPump,
    /// Whether `down` is polled first. The two take turns, so that many small reads in one direction leave
    /// the other its share of the task's budget.
    down_first: bool,
    /// Set while redirected bytes are on their way to the near application: nothing may be written
    /// to it until the kernel says that they are in its stream.
    drain: Option<Drain>,
    near: Near,
    legs: Legs,
}

impl Relay {
    pub(super) fn new(begins: Option<Begins>, flow: &Arc<Flow>, metrics: &Metrics) -> Self {
        Self {
            reader: Reader::new(begins),
            up: DirectionPump::new(
                Direction::ToDatabase,
                flow,
                &metrics.flows.bytes_to_database,
            ),
            down: DirectionPump::new(Direction::ToClient, flow, &metrics.flows.bytes_to_client),
            down_first: false,
            drain: None,
            near: flow.near(),
            legs: Legs::default(),
        }
    }

    /// Ready when the flow has ended, a command has come, or the kernel may carry the flow.
    ///
    /// A round polls both directions. Another follows when one of them may go on that could not
    /// before: bytes that were held back may pass, a handshake has moved on, or the flow is lost.
    pub(super) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        client: &TcpStream,
        database: &TcpStream,
        ride: &mut KernelCarry,
    ) -> Poll<Pause> {
        busy_poll::turn();
        outbox::flush_late();
        if self.up.flow.commands.is_full() {
            return Poll::Ready(Pause::Letter);
        }
        self.reader.apply_completions();
        if let Poll::Ready(Err(reason)) = self.poll_drain(cx, ride) {
            return Poll::Ready(Pause::Ended(reason));
        }
        self.up.begin_turn();
        self.down.begin_turn();
        for _ in 0..MAX_ROUNDS {
            self.begin_round(cx, client);
            let was_lost = self.lost().is_some();
            let mut ended = true;
            for direction in if self.down_first {
                DOWN_FIRST
            } else {
                UP_FIRST
            } {
                match self.poll_direction(cx, direction, client, database) {
                    Poll::Ready(Err(reason)) => return self.ended(reason),
                    Poll::Ready(Ok(())) => {}
                    Poll::Pending => ended = false,
                }
            }
            match self.end_round(was_lost, ended) {
                Round::Again => {}
                Round::Pending => return self.poll_pause(cx, client, database, ride),
                Round::Ended(reason) => return self.ended(reason),
            }
        }
        take_another_turn(cx);
        Poll::Pending
    }

    /// Ready when the bytes that the kernel has redirected have arrived.
    fn poll_drain(
        &mut self,
        cx: &mut Context<'_>,
        ride: &mut KernelCarry,
    ) -> Poll<Result<(), CloseReason>> {
        let Some(drain) = &mut self.drain else {
            return Poll::Ready(Ok(()));
        };
        ready!(drain.poll(cx, ride.splice()))?;
        self.drain = None;
        Poll::Ready(Ok(()))
    }

    /// Prepares a round.
    fn begin_round(&mut self, cx: &mut Context<'_>, client: &TcpStream) {
        self.down_first = !self.down_first;
        if self.lost().is_some() {
            return;
        }
        if let Some(words) = self.reader.lost() {
            return self.deny(&words, CloseReason::SharedLost);
        }
        if self.legs.wait()
            && let Poll::Ready(Some(Refused(words))) = self.legs.poll_begin(cx, client)
        {
            self.deny(&words, CloseReason::TlsRequired);
        }
    }

    /// Decides what follows a round. `was_lost`: whether the flow was lost before it. `ended`:
    /// whether both directions have ended.
    fn end_round(&mut self, was_lost: bool, ended: bool) -> Round {
        if let Some((last_words, reason)) = self.reader.last_words() {
            self.deny(&last_words, reason);
        }
        if self.legs.poll_events() || self.reader.take_repoll() {
            return Round::Again;
        }
        match self.lost() {
            // The other direction may wait for bytes that are not read any more.
            Some(_) if !was_lost => Round::Again,
            _ if !ended => Round::Pending,
            Some(reason) => Round::Ended(reason),
            None => Round::Ended(CloseReason::BothEnded),
        }
    }

    /// Ends the flow for this reason.
    fn ended(&mut self, reason: CloseReason) -> Poll<Pause> {
        self.legs.poll_events();
        Poll::Ready(Pause::Ended(reason))
    }

    /// Ready when there is a reason to stop although neither direction can go on now.
    fn poll_pause(
        &mut self,
        cx: &mut Context<'_>,
        client: &TcpStream,
        database: &TcpStream,
        ride: &mut KernelCarry,
    ) -> Poll<Pause> {
        // After the directions, which may have begun a handshake with a deadline.
        if let Poll::Ready(reason) = self.legs.poll_hopeless(cx) {
            return Poll::Ready(Pause::Ended(reason));
        }
        if let Poll::Ready(reading) = self.poll_hand_over(cx, ride) {
            return Poll::Ready(Pause::HandOver(reading));
        }
        if self.is_idle() && ride.poll_wanted(cx).is_ready() {
            return Poll::Ready(Pause::Idle);
        }
        self.shorten_legs(client, database, ride);
        Poll::Pending
    }

    /// Ready when the flow is to be handed to another agent, and nothing of it is under way in this one.
    fn poll_hand_over(
        &mut self,
        cx: &mut Context<'_>,
        ride: &mut KernelCarry,
    ) -> Poll<Box<ReadOn>> {
        let flow = &self.up.flow;
        if flow.handing() == Handing::No || self.drain.is_some() || !self.is_quiet() {
            return Poll::Pending;
        }
        let reading = match self.stays_by(ride) {
            Some(why) => Err(NotHanded::Stays(why)),
            None => self.reader.read_on(),
        };
        match reading {
            Ok(mut reading) => {
                ready!(ride.poll_legs_long(cx));
                reading.tls = self.is_tls();
                Poll::Ready(Box::new(reading))
            }
            Err(NotHanded::NotYet) => Poll::Pending,
            Err(NotHanded::Stays(why)) => {
                flow.stay(why);
                Poll::Pending
            }
        }
    }

    /// Returns why the flow's sockets are this agent's until it ends, if they are.
    fn stays_by(&self, ride: &KernelCarry) -> Option<Stays> {
        let is_tls = !self.legs.are_plain();
        let is_spliced = ride.splice().is_some();
        let is_incoming = self.near != Near::Client;
        [
            (is_tls, Stays::Tls),
            (is_spliced, Stays::Spliced),
            (is_incoming, Stays::Incoming),
        ]
        .into_iter()
        .find_map(|(is_so, why)| is_so.then_some(why))
    }

    /// Shortens the legs of a flow that is read, once their sides have spoken.
    fn shorten_legs(&mut self, client: &TcpStream, database: &TcpStream, ride: &mut KernelCarry) {
        let is_plain = self.legs.are_plain();
        let is_tls = self.is_tls() || !is_plain;
        let (up, down) = (self.up.read_bytes > 0, self.down.read_bytes > 0);
        for (side, has_spoken, written, socket) in [
            (LegSide::Client, up, &mut self.down, client),
            (LegSide::Database, down, &mut self.up, database),
        ] {
            if has_spoken && ride.may_shorten(side) && self.reader.is_settled() {
                written.leg = ride.shorten(&SpokenSide {
                    side,
                    socket,
                    is_tls,
                });
            }
        }
    }

    /// Whether the kernel may carry the flow: everything that has come was read and is written on, both
    /// sides may still speak, the decoder has nothing more to learn, and no side is encrypted or
    /// decrypted here.
    fn is_idle(&self) -> bool {
        self.legs.are_plain()
            && self.reader.is_off()
            && self.drain.is_none()
            && self.is_quiet()
            && !self.up.is_cut_short()
            && !self.down.is_cut_short()
    }

    /// Returns which of the two applications is on this host.
    pub(super) fn near(&self) -> Near {
        self.near
    }

    /// Returns the flow.
    pub(super) fn flow(&self) -> &Arc<Flow> {
        &self.up.flow
    }

    /// The direction from the near application to the far one.
    fn to_far(&self) -> &DirectionPump {
        self.near.sides(&self.up, &self.down).0
    }

    /// The direction from the far application to the near one.
    fn to_near(&self) -> &DirectionPump {
        self.near.sides(&self.up, &self.down).1
    }

    /// Both directions, that to the far application first.
    fn both(&mut self) -> (&mut DirectionPump, &mut DirectionPump) {
        self.near.sides(&mut self.up, &mut self.down)
    }

    /// Moves the bytes that the near application has sent, and no others.
    pub(super) fn poll_to_far(
        &mut self,
        cx: &mut Context<'_>,
        near: &TcpStream,
        far: &TcpStream,
    ) -> Poll<Result<(), CloseReason>> {
        let (client, database) = self.near.sides(near, far);
        self.both().0.begin_turn();
        self.poll_direction(cx, self.to_far().direction, client, database)
    }

    /// Moves the bytes that the far application has sent, and no others.
    pub(super) fn poll_to_near(
        &mut self,
        cx: &mut Context<'_>,
        near: &TcpStream,
        far: &TcpStream,
    ) -> Poll<Result<(), CloseReason>> {
        let (client, database) = self.near.sides(near, far);
        self.both().1.begin_turn();
        self.poll_direction(cx, self.to_near().direction, client, database)
    }

    /// Whether nothing is held back, and both applications may still speak.
    pub(super) fn is_quiet(&self) -> bool {
        self.up.is_quiet() && self.down.is_quiet()
    }

    /// Names the close reason of a flow whose far application cannot be read.
    pub(super) fn far_failed(&self, error: io::Error) -> CloseReason {
        Stop::From(error).reason(self.to_near().direction)
    }

    /// Notes that the kernel may carry the flow from now on.
    pub(super) fn set_enrolled(&mut self, splice: Arc<Splice>) {
        self.reader.set_enrolled(splice.clone());
        self.both().1.set_enrolled(splice);
    }

    /// Returns the flow's frame positions for the kernel, which is told to carry it.
    pub(super) fn hand_over(&mut self) -> FlowPosition {
        self.reader.hand_over()
    }

    pub(super) fn decoder(&mut self) -> Option<&mut Decoder> {
        self.reader.decoder()
    }

    /// Starts to decode the flow from its next frames on.
    pub(super) fn enrich(&mut self, by: &RuleName) -> Result<(), NoPosition> {
        let read = Both {
            to_database: self.up.read(),
            to_client: self.down.read(),
        };
        self.reader.enrich(&self.up.flow, by, read)
    }

    /// Takes over an enrolled flow from another process: the bytes that it has read and written,
    /// and the frame positions.
    pub(super) fn begins_at(
        &mut self,
        position: AgentMoved,
        positions: &FlowPosition,
        shared: Option<Arc<ProxyContext>>,
    ) {
        self.reader.begins_at(positions, shared);
        // One with TLS is not enrolled.
        self.up.begins_with_tls = Some(false);
        let (to_far, to_near) = self.both();
        to_far.read_bytes = position.from_near;
        to_near.read_bytes = position.from_far;
        to_near.written_bytes = position.to_near;
    }

    /// Tells the reader that the flow has ended.
    pub(super) fn finish(&mut self) {
        self.reader.finish();
    }

    /// Whether the client's first byte was that of TLS.
    pub(super) fn is_tls(&self) -> bool {
        self.up.begins_with_tls == Some(true)
    }

    /// Counts the bytes that the agent itself has read and written since the flow began.
    pub(super) fn position(&self) -> AgentMoved {
        AgentMoved {
            from_near: self.to_far().read_bytes,
            from_far: self.to_near().read_bytes,
            to_near: self.to_near().written_bytes,
        }
    }

    /// Adds bytes that the kernel has carried, to the database and to the client.
    pub(super) fn carried(&self, [up, down]: [u64; 2]) {
        self.up.add(up);
        self.down.add(down);
    }

    /// Writes nothing to the near application until the kernel is done.
    pub(super) fn drain_first(&mut self, drain: Drain) {
        self.drain = Some(drain);
    }

    /// Polls one direction, with the sides that it reads from and writes to.
    fn poll_direction(
        &mut self,
        cx: &mut Context<'_>,
        direction: Direction,
        client: &TcpStream,
        database: &TcpStream,
    ) -> Poll<Result<(), CloseReason>> {
        if direction == self.to_near().direction && self.drain.is_some() {
            return Poll::Pending;
        }
        let lost = self.lost().is_some();
        if direction == Direction::ToDatabase && self.legs.wait() && !lost {
            return Poll::Pending;
        }
        let (mut client_leg, mut database_leg) = self.legs.both(client, database);
        let (pump, from, to) = match direction {
            Direction::ToDatabase => (&mut self.up, &mut client_leg, &mut database_leg),
            Direction::ToClient => (&mut self.down, &mut database_leg, &mut client_leg),
        };
        let moved = if lost {
            pump.poll_flush_now(cx, to)
        } else {
            CHUNK.with_borrow_mut(|buffer| pump.poll(cx, buffer, from, to, &mut self.reader))
        };
        let Err(stop) = ready!(moved) else {
            return Poll::Ready(Ok(()));
        };
        if matches!(stop, Stop::From(_)) {
            // The bytes that came before the source's error go before the reset, as far as the target takes them.
            let _ = pump.poll_flush_now(cx, to);
        }
        let reason = stop.reason(direction);
        if direction == Direction::ToClient
            && reason == CloseReason::DatabaseReset
            && self.up.state == State::Ended
        {
            // Cassandra answers a client's FIN with RST: the client gets it, and nothing went
            // wrong.
            close::reset(client);
            return Poll::Ready(Err(CloseReason::BothEnded));
        }
        Poll::Ready(Err(reason))
    }

    /// Tells the client these last bytes, behind what it has been sent; then the flow ends for this
    /// reason.
    fn deny(&mut self, last_words: &[u8], reason: CloseReason) {
        if self.down.state == State::Open {
            self.down.held_back.extend_from_slice(last_words);
        }
        self.down.state = State::Losing(reason);
    }

    /// The close reason of a flow of which nothing more is read in either direction, because
    /// framing is lost in one, or the flow is denied. It ends when the good bytes have been
    /// written.
    fn lost(&self) -> Option<CloseReason> {
        [&self.up, &self.down]
            .into_iter()
            .find_map(|d| match d.state {
                State::Losing(reason) => Some(reason),
                _ => None,
            })
    }
}

const UP_FIRST: [Direction; 2] = [Direction::ToDatabase, Direction::ToClient];
const DOWN_FIRST: [Direction; 2] = [Direction::ToClient, Direction::ToDatabase];
