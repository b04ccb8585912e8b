//! One end of one connection, from its socket to its verdict.

use std::{
    net::{Shutdown, TcpStream},
    sync::Arc,
    time::Duration,
};

use rustix::io::Errno;
use socket2::SockRef;

use super::{
    behaviour::Waiting,
    check::Wrong,
    events,
    notes::Notes,
    reading::Receiver,
    report::{Corruption, Kind, Report, Side},
    script::{Pace, Script, Shut},
    stream::Direction,
    threads,
    watch::{Watch, stall},
    writing::Sender,
};

/// How it ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Over {
    /// Everything was sent, and the peer has ended.
    Complete,
    /// The end broke off, as it should.
    Aborted,
    /// An error of the socket.
    Broken(Errno),
    /// There was no sense in going on.
    Hopeless,
}

/// One end of a connection.
#[derive(Debug)]
pub(super) struct End {
    pub(super) script: Arc<Script>,
    pub(super) side: Side,
    pub(super) socket: Arc<TcpStream>,
    pub(super) watch: Arc<Watch>,
    pub(super) receiver: Receiver,
    pub(super) sender: Sender,
    pub(super) turn: Turn,
}

/// How far both directions are, and what follows from it.
#[derive(Debug)]
pub(super) struct Turn {
    pub(super) sent: u64,
    pub(super) received: u64,
    /// The peer has ended its direction.
    pub(super) ended: bool,
    /// Whether the end has ended its own direction.
    pub(super) shut: bool,
    /// Nothing more will be read.
    pub(super) stopped: bool,
}

impl Turn {
    /// Up to where may be sent.
    pub(super) fn allowance(&self, script: &Script, side: Side) -> u64 {
        let total = script.total(side.sends());
        let pace = script.end(side).pace;
        pace.allowance(total, self.received, self.ended)
    }

    /// How many bytes come whether or not this end sends any more.
    pub(super) fn promised(&self, script: &Script, side: Side) -> u64 {
        // Whoever edits them may hold back all but whole frames.
        if script.hello.is_edited {
            return 0;
        }
        let total = script.total(side.receives());
        let pace = script.end(side.other()).pace;
        let all = pace.allowance(total, self.sent, self.shut);
        let all = match pace {
            // The peer may be waiting for a whole message in one call, too; of more than one, both
            // could wait for what the other has not seen yet.
            Pace::Turns { out, .. } => all.min((self.received / out + 1) * out),
            _ => all,
        };
        all.saturating_sub(self.received)
    }

    /// Whether the direction has come to its end, and may be ended.
    pub(super) fn may_shut(&self, script: &Script, side: Side) -> bool {
        let all = self.received >= script.arrives(side.receives()).bytes;
        self.sent == script.total(side.sends())
            && match script.end(side).shut {
                Shut::AtOnce => true,
                Shut::AfterAll | Shut::Close => all,
                Shut::AfterEnd => self.ended,
            }
    }

    /// There is nothing left to do but to close.
    pub(super) fn may_close(&self, script: &Script, side: Side) -> bool {
        script.end(side).shut == Shut::Close && !self.shut && self.may_shut(script, side)
    }
}

/// Sets what has to be set before a connection is made: the receive buffer decides what windows
/// are offered.
pub(super) fn prepare(socket: SockRef<'_>, script: &Script, side: Side) -> std::io::Result<()> {
    let end = script.end(side);
    if let Some(bytes) = end.send_buffer {
        socket.set_send_buffer_size(bytes)?;
    }
    if let Some(bytes) = end.receive_buffer {
        socket.set_recv_buffer_size(bytes)?;
    }
    socket.set_tcp_nodelay(end.nodelay)
}

/// Plays this side's part on a connection whose first message has passed.
pub(super) fn play(
    script: &Arc<Script>,
    side: Side,
    socket: TcpStream,
    watch: &Arc<Watch>,
    notes: &Notes,
) {
    let mut end = End {
        receiver: Receiver::new(script, side, watch, notes),
        sender: Sender::new(script, side, watch, notes),
        script: Arc::clone(script),
        side,
        socket: Arc::new(socket),
        watch: Arc::clone(watch),
        turn: Turn {
            sent: 0,
            received: 0,
            ended: false,
            shut: false,
            stopped: false,
        },
    };
    watch.holds(&end.socket);
    watch.touch();
    let blocks = script.end(side).waiting == Waiting::Blocking;
    let over = match end.socket.set_nonblocking(!blocks) {
        Err(_) => Over::Broken(Errno::INVAL),
        Ok(()) if blocks => threads::run(&mut end),
        Ok(()) => events::run(&mut end),
    };
    conclude(end, over, notes);
}

fn conclude(end: End, over: Over, notes: &Notes) {
    let End {
        script,
        side,
        watch,
        receiver,
        socket,
        ..
    } = end;
    if over == Over::Aborted {
        drop(socket);
    } else {
        // What a broken or hopeless end leaves must not keep its peer waiting.
        if over != Over::Complete {
            let _ = socket.shutdown(Shutdown::Both);
        }
        drop(socket);
    }
    let mut part = stall(&watch);
    let right = if receiver.checker.clean() {
        receiver.received
    } else {
        0
    };
    match side.receives() {
        Direction::Up => part.bytes_up = right,
        Direction::Down => part.bytes_down = right,
    }
    let arrives = script.arrives(side.receives());
    if right == arrives.bytes {
        part.edited_frames = arrives.edited_frames;
    }
    if let Some(corruption) = verdict(&script, side, &watch, receiver, over) {
        part.corrupt(corruption);
    }
    notes.add(part);
}

fn verdict(
    script: &Script,
    side: Side,
    watch: &Watch,
    receiver: Receiver,
    over: Over,
) -> Option<Corruption> {
    let free = script.shape.aborts() || script.hello.may_be_cut || watch.hung();
    let whole = !free && over == Over::Complete;
    let clean = receiver.checker.clean();
    let received = receiver.received;
    let found = receiver.checker.finish(whole);
    let broken = match over {
        Over::Broken(error) if !free => Some(error),
        _ => None,
    };
    if found.is_none() && broken.is_none() {
        return None;
    }
    let mut wrong = found.unwrap_or_default();
    let mut kinds = wrong.kinds();
    if let Some(error) = broken {
        kinds.insert(match error {
            Errno::CONNRESET | Errno::PIPE => Kind::Reset,
            _ => Kind::Error,
        });
        wrong.breaks.push(format!(
            "{error} after {received} of {} bytes",
            script.arrives(side.receives()).bytes
        ));
    }
    Some(Corruption {
        kinds,
        connection: script.hello.connection,
        shape: script.shape.name().into(),
        side,
        cut_short: clean,
        wrong,
    })
}

/// A connection that failed before its first byte of stream.
pub(super) fn failed(script: &Script, side: Side, what: &str) -> Report {
    let mut report = Report::default();
    report.corrupt(Corruption {
        kinds: [Kind::Handshake].into(),
        connection: script.hello.connection,
        shape: script.shape.name().into(),
        side,
        cut_short: false,
        wrong: Wrong {
            breaks: vec![what.into()],
            ..Wrong::default()
        },
    });
    report
}

/// A call that blocks but must not, or was interrupted, is tried again after this.
pub(super) const AGAIN_AFTER: Duration = Duration::from_millis(1);
