//! A thread: its connections, the slots for requests on them, and the loop.

use std::{
    collections::VecDeque,
    io::{ErrorKind, Write},
    net::TcpStream,
};

use anyhow::{Context, bail, ensure};

use super::{
    ANSWER_LIMIT,
    input::Input,
    protocol::{At, Draw, Protocol},
    waiter::{Ready, Waiter},
};
use crate::{
    keys::{Source, random::Random},
    plan::Mix,
    schedule::Schedule,
    tally::Tally,
    threads::Run,
    values::Values,
    workload::Job,
};

/// The interval at which a thread with nothing to do looks whether others have failed or its time
/// is up.
const LOOK_NS: u64 = 100_000_000;

/// The parts of a line at its start.
pub struct LineSetup {
    /// The line's keys.
    pub source: Source,
    /// The line's operations.
    pub mix: Mix,
    /// The line's share of the rate; None: a closed loop.
    pub rate: Option<f64>,
    /// The line's place among all lines, 0 to 1.
    pub phase: f64,
}

/// The state of a thread.
pub struct Lane<P> {
    connections: Vec<Connection<P>>,
    lines: Vec<Line>,
    waiter: Waiter,
    /// Connections with something to send.
    unsent: Vec<usize>,
    in_flight: usize,
    values: Values,
    random: Random,
    depth: usize,
    /// For each operation, its number of steps, and whether its keys are new.
    operations: Vec<(usize, bool)>,
    blocks: bool,
}

struct Line {
    source: Source,
    mix: Mix,
    schedule: Option<Schedule>,
    /// The slots without a request (connection, slot), the one that waits longest in front, so that
    /// connections take turns.
    free: VecDeque<(usize, u16)>,
    /// Set when there is no key left.
    is_exhausted: bool,
}

struct Connection<P> {
    stream: TcpStream,
    protocol: P,
    line: usize,
    input: Input,
    out: Vec<u8>,
    /// The number of bytes of `out` that are sent.
    sent: usize,
    /// Set while the socket is full: the waiter says when it is not.
    wants_room: bool,
    slots: Vec<Slot>,
    /// The intended times of requests in `out` that could have been sent on time.
    intended: Vec<u64>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    is_busy: bool,
    operation: usize,
    step: usize,
    key: u64,
    intended_ns: u64,
    freed_ns: u64,
}

impl<P: Protocol> Lane<P> {
    pub fn new(job: &Job, values: Values, seed: u64, thread: usize) -> anyhow::Result<Self> {
        let operations = job.operations.iter();
        Ok(Self {
            connections: Vec::new(),
            lines: Vec::new(),
            waiter: Waiter::many()?,
            unsent: Vec::new(),
            in_flight: 0,
            values,
            random: Random::new(seed, thread as u64),
            depth: job.depth,
            operations: operations.map(|o| (o.steps.len(), o.new_key)).collect(),
            blocks: job.blocks(),
        })
    }

    pub fn add_line(&mut self, setup: LineSetup) {
        self.lines.push(Line {
            source: setup.source,
            mix: setup.mix,
            schedule: setup.rate.map(|rate| Schedule::new(rate, setup.phase)),
            free: VecDeque::new(),
            is_exhausted: false,
        });
    }

    /// Adds a connection to the last line that was added.
    pub fn add_connection(&mut self, stream: TcpStream, protocol: P) -> anyhow::Result<()> {
        self.connections.push(Connection {
            stream,
            protocol,
            line: self.lines.len().checked_sub(1).context("no line yet")?,
            input: Input::new(),
            out: Vec::new(),
            sent: 0,
            wants_room: false,
            slots: vec![Slot::default(); self.depth],
            intended: Vec::with_capacity(self.depth),
        });
        Ok(())
    }

    /// All connections are there.
    pub fn finish(&mut self) -> anyhow::Result<()> {
        if self.blocks {
            self.waiter = Waiter::Alone;
        } else {
            for (number, connection) in self.connections.iter().enumerate() {
                self.waiter.add(&connection.stream, number)?;
            }
        }
        for slot in 0..u16::try_from(self.depth)? {
            for (number, connection) in self.connections.iter().enumerate() {
                if let Some(line) = self.lines.get_mut(connection.line) {
                    line.free.push_back((number, slot));
                }
            }
        }
        Ok(())
    }

    /// Works until the run's end, and until all is answered.
    pub fn work(&mut self, run: &Run) -> anyhow::Result<Tally> {
        let mut tally = Tally::new(run.end_ns)?;
        self.restart(run, &mut tally);
        let mut now_ns = run.now_ns();
        let mut heard_ns = now_ns;
        let mut ready = Ready::new();
        loop {
            if self.in_flight == 0 {
                // Nobody owes us a response.
                heard_ns = now_ns;
            }
            for line in 0..self.lines.len() {
                self.begin_due(line, now_ns, run)?;
            }
            self.flush_all(run, &mut tally)?;
            if self.is_over(now_ns, run) || run.is_stopped() {
                return Ok(tally);
            }
            let timeout_ns = self.timeout_ns(now_ns, run);
            self.waiter.wait(self.in_flight, timeout_ns, &mut ready)?;
            now_ns = run.now_ns();
            if !ready.numbers.is_empty() {
                heard_ns = now_ns;
            }
            for number in ready.numbers.drain(..) {
                now_ns = self.serve(number, run, &mut tally)?;
            }
            let silent_ns = now_ns.saturating_sub(heard_ns);
            ensure!(
                u128::from(silent_ns) < ANSWER_LIMIT.as_nanos(),
                "{} requests without a response for {ANSWER_LIMIT:?}",
                self.in_flight
            );
        }
    }

    fn restart(&mut self, run: &Run, tally: &mut Tally) {
        for line in &mut self.lines {
            if let Some(schedule) = &mut line.schedule {
                schedule.restart();
                *tally.scheduled.get_or_insert(0) += schedule.due_before(run.end_ns);
            }
        }
        for slot in self.connections.iter_mut().flat_map(|c| &mut c.slots) {
            slot.freed_ns = 0;
        }
    }

    /// Whether no line has a key left.
    pub fn is_exhausted(&self) -> bool {
        self.lines.iter().all(|line| line.is_exhausted)
    }

    fn is_over(&self, now_ns: u64, run: &Run) -> bool {
        let no_more = now_ns >= run.end_ns || self.is_exhausted();
        no_more && self.in_flight == 0
    }

    /// Returns the time until the next request that could leave, or the next look at the clock.
    /// `now_ns` is when the last ones left.
    fn timeout_ns(&self, now_ns: u64, run: &Run) -> u64 {
        let is_closed_loop = self.lines.iter().all(|line| line.schedule.is_none());
        if is_closed_loop || now_ns >= run.end_ns {
            return LOOK_NS;
        }
        let open = self.lines.iter().filter(|line| !line.free.is_empty());
        let due = open.filter_map(|line| Some(line.schedule.as_ref()?.next_ns()));
        let next_ns = due.min().unwrap_or(u64::MAX).min(run.end_ns);
        // Sending took its time.
        next_ns.saturating_sub(run.now_ns()).min(LOOK_NS)
    }

    /// Begins all operations of a line that are due and have room.
    fn begin_due(&mut self, number: usize, now_ns: u64, run: &Run) -> anyhow::Result<()> {
        let line = self.lines.get_mut(number).context("no such line")?;
        while let Some((connection, slot)) = line.free.front().copied() {
            let c = self.connections.get_mut(connection);
            let c = c.context("no connection")?;
            let place = c.slots.get_mut(usize::from(slot)).context("no slot")?;
            let intended_ns = match &mut line.schedule {
                None if now_ns >= run.end_ns => break,
                None => now_ns,
                Some(schedule) => {
                    let due_ns = schedule.next_ns();
                    // A request that was due before the end leaves after it, if it had to wait: it
                    // waited longest, and a latency without it would be too good.
                    if due_ns > now_ns || due_ns >= run.end_ns || run.is_drained(now_ns) {
                        break;
                    }
                    schedule.advance();
                    if place.freed_ns <= due_ns {
                        c.intended.push(due_ns);
                    }
                    due_ns
                }
            };
            let operation = line.mix.pick(&mut self.random);
            let (_, new_key) = *self.operations.get(operation).context("no operation")?;
            let key = if new_key {
                line.source.another()
            } else {
                match line.source.existing(&mut self.random) {
                    Some(key) => key,
                    None => {
                        line.is_exhausted = true;
                        break;
                    }
                }
            };
            line.free.pop_front();
            *place = Slot {
                is_busy: true,
                operation,
                step: 0,
                key,
                intended_ns,
                freed_ns: 0,
            };
            let at = At {
                slot,
                operation,
                step: 0,
                key,
                new_key,
            };
            let mut draw = Draw {
                source: &mut line.source,
                random: &mut self.random,
                values: &mut self.values,
            };
            if c.out.is_empty() {
                self.unsent.push(connection);
            }
            c.protocol.put(at, &mut draw, &mut c.out)?;
            self.in_flight += 1;
        }
        Ok(())
    }

    /// Reads once, counts what is answered, begins what may begin, and sends. The time of the
    /// responses.
    fn serve(&mut self, number: usize, run: &Run, tally: &mut Tally) -> anyhow::Result<u64> {
        let c = self.connections.get_mut(number).context("no connection")?;
        if c.wants_room {
            self.unsent.push(number);
        }
        match c.input.fill(&mut c.stream) {
            Ok(0) => bail!("the connection was closed"),
            Ok(read) => tally.bytes += read as u64,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            // Only a socket that blocks is read without being asked for; it has a time limit.
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                let is_alone = matches!(self.waiter, Waiter::Alone);
                ensure!(!is_alone, "no response for {ANSWER_LIMIT:?}");
            }
            Err(error) => return Err(error).context("no response"),
        }
        let now_ns = run.now_ns();
        let line_number = c.line;
        let line = self.lines.get_mut(line_number).context("no such line")?;
        while let Some(taken) = c.protocol.take(c.input.pending())? {
            c.input.consume(taken.bytes);
            let Some(answered) = taken.answered else {
                continue;
            };
            let slot = c.slots.get_mut(usize::from(answered.slot));
            let slot = slot.filter(|slot| slot.is_busy);
            let slot = slot.with_context(|| match answered.error.as_deref() {
                Some(error) => format!("unasked: {error}"),
                None => "a response to no request: framing is lost".to_owned(),
            })?;
            let (steps, new_key) = *self
                .operations
                .get(slot.operation)
                .context("no operation")?;
            if let Some(error) = answered.error {
                tally.fail(error);
            } else if slot.step + 1 < steps {
                slot.step += 1;
                let at = At {
                    slot: answered.slot,
                    operation: slot.operation,
                    step: slot.step,
                    key: slot.key,
                    new_key,
                };
                let mut draw = Draw {
                    source: &mut line.source,
                    random: &mut self.random,
                    values: &mut self.values,
                };
                if c.out.is_empty() {
                    self.unsent.push(number);
                }
                c.protocol.put(at, &mut draw, &mut c.out)?;
                continue;
            } else {
                tally.done(slot.intended_ns, now_ns);
            }
            slot.is_busy = false;
            slot.freed_ns = now_ns;
            line.free.push_back((number, answered.slot));
            self.in_flight -= 1;
        }
        self.begin_due(line_number, now_ns, run)?;
        self.flush_all(run, tally)?;
        Ok(now_ns)
    }

    fn flush_all(&mut self, run: &Run, tally: &mut Tally) -> anyhow::Result<()> {
        while let Some(number) = self.unsent.pop() {
            let c = self.connections.get_mut(number).context("no connection")?;
            if !c.intended.is_empty() {
                let now_ns = run.now_ns();
                for intended_ns in c.intended.drain(..) {
                    tally.lateness.record(now_ns.saturating_sub(intended_ns));
                }
            }
            let is_sent = c.flush(&mut tally.bytes)?;
            if c.wants_room == is_sent {
                c.wants_room = !is_sent;
                self.waiter
                    .set_wants_room(&c.stream, number, c.wants_room)?;
            }
        }
        Ok(())
    }
}

impl<P> Connection<P> {
    /// Sends what there is. Whether all of it has left.
    fn flush(&mut self, bytes: &mut u64) -> anyhow::Result<bool> {
        while let Some(rest) = self.out.get(self.sent..).filter(|rest| !rest.is_empty()) {
            match self.stream.write(rest) {
                Ok(0) => bail!("the connection takes nothing"),
                Ok(written) => {
                    self.sent += written;
                    *bytes += written as u64;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error).context("a request could not be sent"),
            }
        }
        self.out.clear();
        self.sent = 0;
        Ok(true)
    }
}
