//! Script of a connection, derived from the seed and the connection's number, so that both ends
//! know it.

use std::time::Duration;

use super::{
    behaviour::{Reading, Shape, Waiting, Writing},
    contents::Arrival,
    dice::Dice,
    front::Front,
    hello::Hello,
    report::Side,
    stream::Direction,
};

/// Bytes of a request and of a response, in turns: what the benchmark sends.
pub(super) const REQUEST: u64 = 128;
pub(super) const RESPONSE: u64 = 256;
/// A direction takes no more calls than about this, however small its chunks are.
const CALLS: u64 = 8000;
/// Turns of a connection: each is a round trip.
const TURNS: u64 = 1000;
/// Requests on their way at once.
const PIPELINED: u64 = 64;
/// Bytes that an end may send before its peer has ended: they always fit into buffers.
const BEFORE_END: u64 = 64 << 10;
/// A reader that lags is given at least this much: more than buffers hold.
const LAGGED: u64 = 16 << 20;
/// Small buffers, in bytes: a receive buffer holds at least a few packets, or each byte would wait
/// for a timer of TCP's.
const SEND_BUFFERS: (u64, u64) = (4 << 10, 64 << 10);
const RECEIVE_BUFFERS: (u64, u64) = (32 << 10, 256 << 10);
/// Bytes that a direction sends at most through small buffers, which are slow.
const THROUGH_SMALL: u64 = 2 << 20;
/// Pauses of a slow reader, and of a writer that hesitates.
const SLOW_PAUSES: u32 = 64;
const HESITATIONS: u32 = 20;
const SLOW_PAUSE: Duration = Duration::from_millis(3);
const HESITATION: Duration = Duration::from_millis(1);
/// A sleep takes longer than it says: by the timer's slack, and until there is a CPU.
const OVERSLEPT: Duration = Duration::from_millis(2);
/// A process is killed within this time.
const KILLED_WITHIN_MS: u64 = 40;

/// One connection's part.
#[derive(Debug, Clone)]
pub(super) struct Script {
    pub(super) hello: Hello,
    pub(super) shape: Shape,
    /// Bytes that are sent.
    pub(super) up: u64,
    pub(super) down: u64,
    pub(super) arrives_up: Arrival,
    pub(super) arrives_down: Arrival,
    pub(super) client: End,
    pub(super) server: End,
    /// A process to be killed is killed after this.
    pub(super) killed_after: Duration,
}

/// One end's part.
#[derive(Debug, Clone)]
pub(super) struct End {
    pub(super) waiting: Waiting,
    pub(super) reading: Reading,
    pub(super) writing: Writing,
    pub(super) read_max: u64,
    pub(super) write_max: u64,
    pub(super) nodelay: bool,
    /// SO_SNDBUF and SO_RCVBUF, if they are set.
    pub(super) send_buffer: Option<usize>,
    pub(super) receive_buffer: Option<usize>,
    pub(super) pace: Pace,
    pub(super) shut: Shut,
    /// Waits again after each read, or, if it waits for edges, after a short one.
    pub(super) trusts_waits: bool,
    pub(super) hesitations: u32,
    pub(super) lag: Lag,
    pub(super) abort: Option<Abort>,
    pub(super) dice: Dice,
}

/// How much may be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pace {
    /// Everything.
    Free,
    /// `out` bytes for each `per` that came, `ahead` times before any.
    Turns { per: u64, out: u64, ahead: u64 },
    /// The first bytes at once, and the rest once the peer has ended.
    AfterEnd { before: u64 },
}

impl Pace {
    /// How many of `total` bytes may be sent in all, after `received` bytes and perhaps the end.
    pub(super) fn allowance(self, total: u64, received: u64, ended: bool) -> u64 {
        match self {
            Self::Free => total,
            Self::Turns { per, out, ahead } => total.min((received / per + ahead) * out),
            Self::AfterEnd { .. } if ended => total,
            Self::AfterEnd { before } => total.min(before),
        }
    }
}

/// When an end ends its direction, once everything is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shut {
    /// At once.
    AtOnce,
    /// Once everything has come.
    AfterAll,
    /// Ends by closing the socket, if no other thread is in a call on it.
    Close,
    /// Once the peer has ended its direction.
    AfterEnd,
}

/// How a reader falls behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lag {
    None,
    /// Reads 4 KB at a time and pauses after each, so many times.
    Slow {
        pauses: u32,
        pause: Duration,
    },
    /// Stops for a while, once so many bytes have come.
    Stop {
        at: u64,
        pause: Duration,
    },
}

/// How an end breaks off, once so many bytes have passed in both directions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Abort {
    Reset {
        after: u64,
    },
    /// By closing while there is something to read.
    Unread {
        after: u64,
    },
}

impl Script {
    pub(super) fn new(hello: &Hello) -> Self {
        let shape = shape(hello);
        let mut dice = Dice::new(&[hello.seed, hello.connection, 1]);
        let mut script = Self {
            shape,
            up: 0,
            down: 0,
            arrives_up: Arrival::default(),
            arrives_down: Arrival::default(),
            client: End::new(hello, Side::Client, shape),
            server: End::new(hello, Side::Server, shape),
            killed_after: Duration::from_millis(dice.below(KILLED_WITHIN_MS)),
            hello: hello.clone(),
        };
        script.set_totals(&mut dice);
        script.arrives_up = script.arrival(Direction::Up);
        script.arrives_down = script.arrival(Direction::Down);
        script.set_course(&mut dice);
        script
    }

    fn set_totals(&mut self, dice: &mut Dice) {
        use Shape::*;
        let all = dice.log(self.hello.connection_max);
        let part = dice.below(all + 1);
        let lagged = all.max(LAGGED.min(self.hello.connection_max));
        let requests = dice.log(TURNS.min(self.hello.connection_max / REQUEST + 1));
        (self.up, self.down) = match self.shape {
            BulkUp => (all, 0),
            BulkDown => (0, all),
            Duplex | HalfCloseClient | HalfCloseServer => (part, all - part),
            PingPong | Pipelined => (requests * REQUEST, requests * RESPONSE),
            // Whichever end lags has something to read.
            SlowReader | StoppedReader => match dice.below(3) {
                0 => (lagged, 0),
                1 => (0, lagged),
                _ => (lagged / 2, lagged / 2),
            },
            ClientReset | ServerReset | CloseUnread | ClientKilled | ServerKilled => {
                (lagged / 2, lagged / 2)
            }
        };
        let calls = |writer: &End, reader: &End| {
            let chunk = writer.write_max.min(reader.read_max);
            // The mean of a logarithmic choice.
            CALLS * (chunk / u64::from(chunk.ilog2() + 1)).max(1)
        };
        let limit = |writer: &End, reader: &End| {
            let small = writer.send_buffer.is_some() || reader.receive_buffer.is_some();
            let bytes = if small { THROUGH_SMALL } else { u64::MAX };
            bytes.min(calls(writer, reader))
        };
        let up = self.up.min(limit(&self.client, &self.server));
        let down = self.down.min(limit(&self.server, &self.client));
        if self.in_turns() {
            let turns = (up / REQUEST).min(down / RESPONSE);
            (self.up, self.down) = (turns * REQUEST, turns * RESPONSE);
            return;
        }
        (self.up, self.down) = (up, down);
        if self.hello.cql {
            let least = [Direction::Up, Direction::Down].map(|direction| {
                let message = self.message(direction);
                Front::new(message, direction == Direction::Up).bytes()
            });
            for (total, least) in [&mut self.up, &mut self.down].into_iter().zip(least) {
                *total = if *total == 0 { 0 } else { least.max(*total) };
            }
        }
    }

    fn set_course(&mut self, dice: &mut Dice) {
        use Shape::*;
        let closing = match dice.below(2) {
            0 => Shut::AfterAll,
            _ => Shut::Close,
        };
        (self.client.shut, self.server.shut) = match dice.below(3) {
            0 => (Shut::AfterEnd, closing),
            _ => (closing, Shut::AfterEnd),
        };
        let after = dice.below((self.up + self.down) * 9 / 10 + 1);
        let lagger = match (self.up, self.down) {
            (_, 0) => Side::Server,
            (0, _) => Side::Client,
            _ if dice.one_in(2) => Side::Server,
            _ => Side::Client,
        };
        let comes = self.total(lagger.receives());
        let stop_ms = dice.log(self.hello.stop_max.as_millis() as u64);
        let stop_at = dice.below(comes / 2 + 1);
        let before = dice.below(BEFORE_END + 1);
        match self.shape {
            PingPong | Pipelined => {
                let ahead = match self.shape {
                    PingPong => 1,
                    _ => dice.between(2, PIPELINED),
                };
                // Or each turn would wait for a delayed acknowledgement, as it does with anybody
                // who writes twice before reading.
                (self.client.nodelay, self.server.nodelay) = (true, true);
                let turns = (self.up / REQUEST).max(1);
                self.client.pace = Pace::Turns {
                    per: (self.arrives_down.bytes / turns).max(1),
                    out: REQUEST,
                    ahead,
                };
                self.server.pace = Pace::Turns {
                    per: (self.arrives_up.bytes / turns).max(1),
                    out: RESPONSE,
                    ahead: 0,
                };
            }
            HalfCloseClient => {
                (self.client.shut, self.server.shut) = (Shut::AtOnce, Shut::AfterEnd);
                self.server.pace = Pace::AfterEnd { before };
            }
            HalfCloseServer => {
                (self.client.shut, self.server.shut) = (Shut::AfterEnd, Shut::AtOnce);
                self.client.pace = Pace::AfterEnd { before };
            }
            SlowReader => {
                self.end_mut(lagger).lag = Lag::Slow {
                    pauses: SLOW_PAUSES,
                    pause: SLOW_PAUSE,
                }
            }
            StoppedReader => {
                self.end_mut(lagger).lag = Lag::Stop {
                    at: stop_at,
                    pause: Duration::from_millis(stop_ms),
                }
            }
            ClientReset => self.client.abort = Some(Abort::Reset { after }),
            ServerReset => self.server.abort = Some(Abort::Reset { after }),
            CloseUnread => self.client.abort = Some(Abort::Unread { after }),
            BulkUp | BulkDown | Duplex | ClientKilled | ServerKilled => {}
        }
    }

    pub(super) fn in_turns(&self) -> bool {
        matches!(self.shape, Shape::PingPong | Shape::Pipelined)
    }

    pub(super) fn end(&self, side: Side) -> &End {
        match side {
            Side::Client => &self.client,
            Side::Server => &self.server,
        }
    }

    fn end_mut(&mut self, side: Side) -> &mut End {
        match side {
            Side::Client => &mut self.client,
            Side::Server => &mut self.server,
        }
    }

    /// For how long both ends together may be idle because they were told to.
    pub(super) fn excuse(&self) -> Duration {
        let pauses = [&self.client, &self.server].map(|end| {
            let lag = match end.lag {
                Lag::None => Duration::ZERO,
                Lag::Slow { pauses, pause } => (pause + OVERSLEPT) * pauses,
                Lag::Stop { pause, .. } => pause + OVERSLEPT,
            };
            lag + (HESITATION + OVERSLEPT) * end.hesitations
        });
        pauses.iter().sum()
    }

    /// Every behaviour in it, for the report.
    pub(super) fn behaviours(&self) -> Vec<&'static str> {
        let ends = [&self.client, &self.server];
        let styles = ends.map(|end| [end.waiting.name(), end.reading.name(), end.writing.name()]);
        std::iter::once(self.shape.name())
            .chain(styles.into_iter().flatten())
            .collect()
    }
}

/// Each shape comes as often as it weighs among so many connections in a row.
fn shape(hello: &Hello) -> Shape {
    let mut cycle: Vec<Shape> = hello
        .choices
        .shapes
        .iter()
        .flat_map(|&shape| std::iter::repeat_n(shape, shape.weight()))
        .collect();
    let turn = hello.connection / (cycle.len() as u64).max(1);
    let within = hello.connection % (cycle.len() as u64).max(1);
    Dice::new(&[hello.seed, turn, 3]).shuffle(&mut cycle);
    let shape = usize::try_from(within).ok().and_then(|at| cycle.get(at));
    shape.copied().unwrap_or(Shape::Duplex)
}

fn small(dice: &mut Dice, (low, high): (u64, u64)) -> Option<usize> {
    dice.one_in(4).then(|| dice.between(low, high) as usize)
}

impl End {
    fn new(hello: &Hello, side: Side, shape: Shape) -> Self {
        let mut dice = Dice::new(&[hello.seed, hello.connection, 4 + side as u64]);
        let choices = &hello.choices;
        let reading = dice.pick(&choices.readings).unwrap_or(Reading::Recv);
        let writing = dice.pick(&choices.writings).unwrap_or(Writing::Send);
        let mut waiting = dice.pick(&choices.waitings).unwrap_or(Waiting::Blocking);
        let breaks_off = matches!(
            (shape, side),
            (Shape::ClientReset | Shape::CloseUnread, Side::Client)
                | (Shape::ServerReset, Side::Server)
        );
        if matches!(reading, Reading::WaitAll | Reading::LowAt)
            && choices.waitings.contains(&Waiting::Blocking)
        {
            waiting = Waiting::Blocking;
        }
        // A close resets only when no other thread is in a call on the socket.
        if breaks_off && waiting == Waiting::Blocking {
            waiting = Waiting::Poll;
        }
        let steady = hello.steady;
        let chunk = |dice: &mut Dice| match dice.below(2) {
            _ if steady => hello.chunk_max,
            0 => hello.chunk_max,
            _ => dice.log(hello.chunk_max),
        };
        Self {
            waiting,
            reading,
            writing,
            read_max: chunk(&mut dice),
            write_max: chunk(&mut dice),
            nodelay: dice.one_in(2),
            // Who waits for room before it sends is never refused any, and MSG_MORE is undone only
            // then: what does not fill a packet stays behind for 200 ms, each time the buffer is
            // full. The peer's MSG_WAITALL shows nothing of it before it has everything.
            send_buffer: small(&mut dice, SEND_BUFFERS)
                .filter(|_| !steady && writing != Writing::More),
            receive_buffer: small(&mut dice, RECEIVE_BUFFERS).filter(|_| !steady),
            pace: Pace::Free,
            shut: Shut::AfterEnd,
            trusts_waits: dice.one_in(2),
            hesitations: if dice.one_in(3) && !steady {
                HESITATIONS
            } else {
                0
            },
            lag: Lag::None,
            abort: None,
            dice,
        }
    }

    /// A pause of a writer, which it may or may not make.
    pub(super) fn hesitate(&mut self) -> Option<Duration> {
        if self.hesitations == 0 || !self.dice.one_in(8) {
            return None;
        }
        self.hesitations -= 1;
        let us = self.dice.below(HESITATION.as_micros() as u64);
        Some(Duration::from_micros(us))
    }

    /// A reader's pause after `received` bytes in all.
    pub(super) fn lag(&mut self, received: u64) -> Option<Duration> {
        match &mut self.lag {
            Lag::None | Lag::Slow { pauses: 0, .. } => None,
            Lag::Slow { pauses, pause } => {
                *pauses -= 1;
                Some(*pause)
            }
            Lag::Stop { at, pause } if received >= *at => {
                let pause = *pause;
                self.lag = Lag::None;
                Some(pause)
            }
            Lag::Stop { .. } => None,
        }
    }
}
