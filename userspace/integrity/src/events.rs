//! An end that never blocks: both directions in one thread.

use std::{
    thread,
    time::{Duration, Instant},
};

use super::{
    end::{End, Over},
    reading::Got,
    script::{self, Abort},
    waiting::{Ready, Waiter},
    watch::Doing,
    writing::Put,
};
use rustix::io::Errno;
use socket2::SockRef;
use std::net::Shutdown;

/// A wait ends after this to see whether it hangs.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// An end that is to leave something unread waits so long for it to come.
const UNREAD_WITHIN: Duration = Duration::from_millis(50);

/// Sends and receives until it is over.
pub(super) fn run(end: &mut End) -> Over {
    let mut ways = match Ways::new(end) {
        Ok(ways) => ways,
        Err(error) => return Over::Broken(error),
    };
    loop {
        if end.watch.hung() {
            return Over::Aborted;
        }
        if let Some(over) = ways.step(end) {
            return over;
        }
    }
}

/// State of both directions.
struct Ways {
    waiter: Waiter,
    part: script::End,
    /// Neither has said EAGAIN since it was last said to be ready.
    ready: Ready,
    /// The wait said that there is something to read, and nothing was read since.
    told: bool,
    read_after: Instant,
    write_after: Instant,
}

impl Ways {
    fn new(end: &End) -> Result<Self, Errno> {
        let part = end.script.end(end.side).clone();
        let now = Instant::now();
        Ok(Self {
            waiter: Waiter::new(part.waiting, &end.socket)?,
            part,
            ready: Ready {
                read: true,
                write: true,
                over: false,
            },
            told: false,
            read_after: now,
            write_after: now,
        })
    }

    /// Reads once and writes once, where that is possible, or waits until it is.
    fn step(&mut self, end: &mut End) -> Option<Over> {
        if let Some(over) = self.abort(end) {
            return Some(over);
        }
        let allowance = end.turn.allowance(&end.script, end.side);
        let want = Ready {
            read: !end.turn.ended,
            write: end.turn.sent < allowance,
            over: false,
        };
        let now = Instant::now();
        let may_read = want.read && now >= self.read_after;
        let may_write = want.write && now >= self.write_after;
        let (reads, writes) = (may_read && self.ready.read, may_write && self.ready.write);
        if reads && let Some(over) = self.read(end) {
            return Some(over);
        }
        if writes && let Some(over) = self.write(end, allowance) {
            return Some(over);
        }
        if let Some(over) = shut(end) {
            return Some(over);
        }
        // What was done may allow what was not.
        if reads || writes {
            return None;
        }
        self.wait(end, may_read, may_write, want)
    }

    fn read(&mut self, end: &mut End) -> Option<Over> {
        let promised = end.turn.promised(&end.script, end.side);
        let told = std::mem::take(&mut self.told);
        match end.receiver.read(&end.socket, false, promised) {
            Got::Bytes { full, .. } => {
                end.turn.received = end.receiver.received;
                // A level is told again by the next wait; an edge is not, but a short read means
                // that there will be one.
                let drained = !self.waiter.is_edge() || !full && !self.ready.over;
                if self.part.trusts_waits && drained {
                    self.ready.read = false;
                }
                if let Some(pause) = self.part.lag(end.turn.received) {
                    self.read_after = Instant::now() + pause;
                }
            }
            Got::Nothing => {
                self.ready.read = false;
                if told {
                    end.receiver.misled();
                }
            }
            Got::End => {
                end.turn.ended = true;
                end.watch.touch();
                end.watch.reader(Doing::Done);
            }
            Got::Broken(error) => return Some(Over::Broken(error)),
            Got::Hopeless => return Some(Over::Hopeless),
        }
        None
    }

    fn write(&mut self, end: &mut End, allowance: u64) -> Option<Over> {
        match end.sender.write(&end.socket, false, allowance) {
            Put::Bytes(_) => {
                end.turn.sent = end.sender.sent;
                if let Some(pause) = self.part.hesitate() {
                    self.write_after = Instant::now() + pause;
                }
            }
            Put::Nothing => self.ready.write = false,
            Put::Broken(error) => return Some(Over::Broken(error)),
        }
        None
    }

    fn wait(&mut self, end: &End, may_read: bool, may_write: bool, want: Ready) -> Option<Over> {
        let now = Instant::now();
        let pauses = [
            (want.read && !may_read).then_some(self.read_after),
            (want.write && !may_write).then_some(self.write_after),
        ];
        let next = pauses.into_iter().flatten().min();
        let limit = next.map_or(LOOK_EVERY, |at| at.saturating_duration_since(now));
        let interest = Ready {
            read: may_read,
            write: may_write,
            over: false,
        };
        if !may_read && !may_write {
            end.watch.reader(Doing::Pausing);
            // Without interest a level-triggered wait would still tell of a broken connection.
            thread::sleep(limit);
            return None;
        }
        end.watch.reader(Doing::Polling);
        match self.waiter.wait(&end.socket, interest, limit) {
            Ok(ready) if self.waiter.is_edge() => {
                self.ready.read |= ready.read;
                self.ready.write |= ready.write;
                self.ready.over |= ready.over;
            }
            Ok(ready) => {
                self.told = ready.read && may_read && !ready.over;
                self.ready = ready;
            }
            Err(Errno::INTR) => {}
            Err(error) => return Some(Over::Broken(error)),
        }
        end.watch.reader(Doing::Working);
        None
    }

    /// Breaks off, if it is time.
    fn abort(&mut self, end: &End) -> Option<Over> {
        let passed = end.turn.sent + end.turn.received;
        match self.part.abort {
            Some(Abort::Reset { after }) if passed >= after => {
                // The close that follows resets.
                let _ = SockRef::from(&*end.socket).set_linger(Some(Duration::ZERO));
                Some(Over::Aborted)
            }
            Some(Abort::Unread { after }) if passed >= after => {
                let interest = Ready {
                    read: true,
                    ..Ready::default()
                };
                let _ = Waiter::Poll.wait(&end.socket, interest, UNREAD_WITHIN);
                Some(Over::Aborted)
            }
            _ => None,
        }
    }
}

/// Ends this direction when it is time, and tells when all is over.
fn shut(end: &mut End) -> Option<Over> {
    if end.turn.may_close(&end.script, end.side) {
        return Some(Over::Complete);
    }
    if !end.turn.shut && end.turn.may_shut(&end.script, end.side) {
        end.turn.shut = true;
        end.watch.writer(Doing::Done);
        end.watch.touch();
        // The peer may have closed for good.
        let _ = end.socket.shutdown(Shutdown::Write);
    }
    let through = end.turn.ended && end.turn.shut;
    // Whoever has come to the end of what comes, and may send no more, is through as well.
    let allowance = end.turn.allowance(&end.script, end.side);
    let stuck = end.turn.ended && !end.turn.shut && end.turn.sent >= allowance;
    (through || stuck).then_some(Over::Complete)
}
