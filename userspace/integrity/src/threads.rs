//! An end whose calls block: a thread for each direction, or one that takes turns.

use std::{
    net::{Shutdown, TcpStream},
    sync::{Condvar, Mutex, PoisonError},
    thread,
    time::Duration,
};

use super::{
    behaviour::Shape,
    end::{AGAIN_AFTER, End, Over, Turn},
    reading::{Got, Receiver},
    report::Side,
    script::Script,
    watch::{Doing, Watch, lock},
    writing::{Put, Sender},
};

/// A wait for the other thread ends after this to see whether it hangs.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Role of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum By {
    /// The one that closes the socket.
    Reader,
    Writer,
}

/// State that both threads share.
struct Shared<'a> {
    script: &'a Script,
    side: Side,
    socket: &'a TcpStream,
    watch: &'a Watch,
    turn: Mutex<&'a mut Turn>,
    changed: Condvar,
}

/// Sends and receives until it is over.
pub(super) fn run(end: &mut End) -> Over {
    let End {
        script,
        side,
        socket,
        watch,
        receiver,
        sender,
        turn,
    } = end;
    let shared = Shared {
        script,
        side: *side,
        socket,
        watch,
        turn: Mutex::new(turn),
        changed: Condvar::new(),
    };
    if script.shape == Shape::PingPong {
        // Strictly one after the other: neither call can wait for the other.
        return shared.receive(receiver, Some(sender));
    }
    thread::scope(|scope| {
        let writer = scope.spawn(|| shared.send(sender));
        let read = shared.receive(receiver, None);
        lock(&shared.turn).stopped = true;
        shared.changed.notify_all();
        if !matches!(read, Over::Complete) {
            // Or the writer might wait for ever for a peer that nobody reads from.
            let _ = socket.shutdown(Shutdown::Both);
        }
        match (read, writer.join()) {
            (Over::Complete, Ok(Some(error))) => error,
            (read, _) => read,
        }
    })
}

impl Shared<'_> {
    /// Reads, and between reads sends what `sender` may.
    fn receive(&self, receiver: &mut Receiver, mut sender: Option<&mut Sender>) -> Over {
        let mut part = self.script.end(self.side).clone();
        loop {
            if let Some(sender) = &mut sender
                && let Some(over) = self.catch_up(sender)
            {
                return over;
            }
            if self.watch.hung() {
                return Over::Aborted;
            }
            if self.may_close() {
                return Over::Complete;
            }
            let promised = lock(&self.turn).promised(self.script, self.side);
            match receiver.read(self.socket, true, promised) {
                Got::Bytes { .. } => {
                    self.change(By::Reader, |turn| turn.received = receiver.received);
                    if let Some(pause) = part.lag(receiver.received) {
                        self.watch.reader(Doing::Pausing);
                        thread::sleep(pause);
                        self.watch.reader(Doing::Working);
                    }
                }
                Got::Nothing => thread::sleep(AGAIN_AFTER),
                Got::End => {
                    self.watch.touch();
                    self.watch.reader(Doing::Done);
                    self.change(By::Reader, |turn| turn.ended = true);
                    return match &mut sender {
                        Some(sender) => self.catch_up(sender).unwrap_or(Over::Complete),
                        None => Over::Complete,
                    };
                }
                Got::Broken(error) => return Over::Broken(error),
                Got::Hopeless => return Over::Hopeless,
            }
        }
    }

    /// Sends all that may be sent before more has come.
    fn catch_up(&self, sender: &mut Sender) -> Option<Over> {
        loop {
            let allowance = lock(&self.turn).allowance(self.script, self.side);
            if sender.sent >= allowance {
                self.change(By::Reader, |_| ());
                return None;
            }
            match sender.write(self.socket, true, allowance) {
                Put::Bytes(_) => self.change(By::Reader, |turn| turn.sent = sender.sent),
                Put::Nothing => thread::sleep(AGAIN_AFTER),
                Put::Broken(error) => return Some(Over::Broken(error)),
            }
        }
    }

    /// The writer's thread: sends everything. How that failed, if it did.
    fn send(&self, sender: &mut Sender) -> Option<Over> {
        let mut part = self.script.end(self.side).clone();
        loop {
            let Some(allowance) = self.wait_for_turn(sender.sent) else {
                self.change(By::Writer, |_| ());
                return None;
            };
            match sender.write(self.socket, true, allowance) {
                Put::Bytes(_) => self.change(By::Writer, |turn| turn.sent = sender.sent),
                Put::Nothing => thread::sleep(AGAIN_AFTER),
                Put::Broken(error) => return Some(Over::Broken(error)),
            }
            if let Some(pause) = part.hesitate() {
                self.watch.writer(Doing::Pausing);
                thread::sleep(pause);
                self.watch.writer(Doing::Working);
            }
        }
    }

    /// Up to where may be sent, once that is further than `sent`; `None`: nothing more is to be.
    fn wait_for_turn(&self, sent: u64) -> Option<u64> {
        let mut turn = lock(&self.turn);
        loop {
            let allowance = turn.allowance(self.script, self.side);
            let all = sent == self.script.total(self.side.sends());
            if all || self.watch.hung() || turn.stopped && sent >= allowance {
                self.watch.writer(Doing::Done);
                return None;
            }
            if sent < allowance {
                self.watch.writer(Doing::Working);
                return Some(allowance);
            }
            self.watch.writer(Doing::WaitingForTurn);
            turn = self
                .changed
                .wait_timeout(turn, LOOK_EVERY)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }

    /// Changes where both directions are, and ends this one if that is due and `by` does not
    /// close the socket instead.
    fn change(&self, by: By, change: impl FnOnce(&mut Turn)) {
        let mut turn = lock(&self.turn);
        change(&mut turn);
        let closes = by == By::Reader && turn.may_close(self.script, self.side);
        if !turn.shut && !closes && turn.may_shut(self.script, self.side) {
            turn.shut = true;
            self.watch.touch();
            // The peer may have closed for good.
            let _ = self.socket.shutdown(Shutdown::Write);
        }
        drop(turn);
        self.changed.notify_all();
    }

    fn may_close(&self) -> bool {
        lock(&self.turn).may_close(self.script, self.side)
    }
}
