//! How an end reads, and what a socket must not do meanwhile.

use std::{io::IoSliceMut, mem::MaybeUninit, net::TcpStream, sync::Arc};

use nix::sys::socket::{setsockopt, sockopt};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    net::{RecvAncillaryBuffer, RecvFlags, recv, recvmsg},
    pipe::{SpliceFlags, pipe, splice},
};

use super::{
    behaviour::Reading,
    check::Checker,
    dice::Dice,
    notes::Notes,
    options,
    report::Side,
    script::{End, Lag, Script},
    watch::Watch,
};

/// Reads of a slow reader.
const SLOW_READ: usize = 4096;
/// Bytes below which a reader with SO_RCVLOWAT does not want to be woken, at most.
const LOW_AT: usize = 16 * 1024;
/// Bytes of a pipe.
const PIPE_BYTES: usize = 64 * 1024;
/// Pieces of a readv.
const PIECES: u64 = 8;

/// Outcome of a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Got {
    /// Bytes came. `full`: as many as there was room for.
    Bytes { count: usize, full: bool },
    /// The read would block.
    Nothing,
    /// The peer has ended its direction.
    End,
    /// The connection is broken.
    Broken(Errno),
    /// Too much is wrong for anything more to be learnt.
    Hopeless,
}

/// The receiving half of an end.
#[derive(Debug)]
pub(super) struct Receiver {
    style: Reading,
    read_max: u64,
    /// A killed process could not tell later.
    tells_at_once: bool,
    dice: Dice,
    buffer: Vec<u8>,
    peeked: Vec<u8>,
    /// MSG_WAITALL gave less than asked: only the end may follow.
    short: bool,
    /// Less than SO_RCVLOWAT was given.
    below_low: bool,
    /// SO_TIMESTAMPNS is set.
    is_stamped: bool,
    pub(super) checker: Checker,
    pub(super) received: u64,
    watch: Arc<Watch>,
    notes: Notes,
}

impl Receiver {
    pub(super) fn new(script: &Script, side: Side, watch: &Arc<Watch>, notes: &Notes) -> Self {
        let mut end: End = script.end(side).clone();
        let read_max = match end.lag {
            Lag::Slow { .. } => end.read_max.min(SLOW_READ as u64),
            _ => end.read_max,
        };
        let room = usize::try_from(read_max).unwrap_or(SLOW_READ);
        Self {
            style: end.reading,
            read_max,
            tells_at_once: script.shape.kills(),
            dice: Dice::new(&[end.dice.next(), 1]),
            buffer: vec![0; room],
            peeked: vec![
                0;
                if end.reading == Reading::Peek {
                    room
                } else {
                    0
                }
            ],
            short: false,
            below_low: false,
            is_stamped: false,
            checker: script.checker(side.receives()),
            received: 0,
            watch: Arc::clone(watch),
            notes: notes.clone(),
        }
    }

    /// Reads once from a socket. `promised`: so many bytes come whether or not this end sends any more.
    pub(super) fn read(&mut self, socket: &TcpStream, blocks: bool, promised: u64) -> Got {
        let want = usize::try_from(self.dice.log(self.read_max)).unwrap_or(SLOW_READ);
        let result = match self.style {
            Reading::Peek => self.peek(socket, want),
            Reading::Fionread => self.fionread(socket, blocks, want),
            Reading::WaitAll if blocks => self.wait_all(socket, want, promised),
            Reading::LowAt if blocks => self.low_at(socket, want, promised),
            Reading::Readv => self.readv(socket, want),
            Reading::Splice => self.splice(socket, blocks, want),
            Reading::Timestamps => self.timestamps(socket, want),
            Reading::Recv | Reading::WaitAll | Reading::LowAt | Reading::AsksFirst => {
                self.recv(socket, want, RecvFlags::empty())
            }
        };
        match result {
            Ok(0) => Got::End,
            // What it is told is what it believes: there is no more.
            Ok(count) if self.style == Reading::AsksFirst && has_none(socket) => {
                self.take(count, usize::MAX)
            }
            // A pipe that is full says nothing of the socket.
            Ok(count) if self.style == Reading::Splice => self.take(count, count),
            Ok(count) => self.take(count, want),
            Err(Errno::INTR) => Got::Nothing,
            Err(Errno::AGAIN) if blocks => {
                self.violate("blocking", "a blocking read said EAGAIN");
                Got::Nothing
            }
            Err(Errno::AGAIN) => Got::Nothing,
            Err(error) => Got::Broken(error),
        }
    }

    /// A wait said that there is something to read, and a read then found nothing.
    pub(super) fn misled(&self) {
        self.violate("readable", "epoll or poll said readable, a read EAGAIN");
    }

    fn take(&mut self, count: usize, want: usize) -> Got {
        self.watch.received(count as u64);
        self.received += count as u64;
        let bytes = self.buffer.get(..count).unwrap_or_default();
        let sane = self.checker.feed(bytes);
        if !sane || self.tells_at_once && !self.checker.clean() {
            return Got::Hopeless;
        }
        Got::Bytes {
            count,
            full: count >= want,
        }
    }

    fn recv(&mut self, socket: &TcpStream, want: usize, flags: RecvFlags) -> Result<usize, Errno> {
        let room = self.buffer.get_mut(..want).unwrap_or_default();
        recv(socket, room, flags).map(|(_, count)| count)
    }

    fn readv(&mut self, socket: &TcpStream, want: usize) -> Result<usize, Errno> {
        let piece = want.div_ceil(self.dice.between(1, PIECES) as usize).max(1);
        let room = self.buffer.get_mut(..want).unwrap_or_default();
        let mut pieces: Vec<_> = room.chunks_mut(piece).map(IoSliceMut::new).collect();
        rustix::io::readv(socket, &mut pieces)
    }

    fn peek(&mut self, socket: &TcpStream, want: usize) -> Result<usize, Errno> {
        let room = self.peeked.get_mut(..want).unwrap_or_default();
        let (_, seen) = recv(socket, room, RecvFlags::PEEK)?;
        if seen == 0 {
            return self.recv(socket, want, RecvFlags::empty());
        }
        let count = match self.recv(socket, seen, RecvFlags::DONTWAIT) {
            Err(Errno::AGAIN) => 0,
            other => other?,
        };
        if count < seen {
            self.violate("peek", &format!("{seen} bytes peeked, then {count} read"));
        }
        if self.peeked.get(..count) != self.buffer.get(..count) {
            self.violate("peek", "what was read is not what was peeked");
        }
        // Nothing where something was seen is no end.
        if count == 0 {
            Err(Errno::INTR)
        } else {
            Ok(count)
        }
    }

    fn fionread(&mut self, socket: &TcpStream, blocks: bool, want: usize) -> Result<usize, Errno> {
        let none = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let mut polled = [PollFd::new(socket, PollFlags::IN)];
        poll(&mut polled, (!blocks).then_some(&none))?;
        let readable = polled.iter().any(|fd| !fd.revents().is_empty());
        if !readable {
            return Err(Errno::AGAIN);
        }
        // Bytes that come after poll, but before this, are there as well.
        let said = rustix::io::ioctl_fionread(socket)?;
        let asked = match usize::try_from(said).unwrap_or(want) {
            0 => want,
            said => said.min(self.buffer.len()),
        };
        let result = self.recv(socket, asked, RecvFlags::DONTWAIT);
        match result {
            Ok(count) if said == 0 && count > 0 => self.violate(
                "fionread",
                &format!("poll said readable, FIONREAD 0, and {count} bytes were there"),
            ),
            Ok(count) if count > 0 && count < asked => self.violate(
                "fionread",
                &format!("FIONREAD said {said}, and of {asked} bytes {count} were there"),
            ),
            Ok(0) if said > 0 => {
                self.violate("fionread", &format!("FIONREAD said {said} at the end"));
            }
            Err(Errno::AGAIN) => {
                self.violate(
                    "readable",
                    &format!("poll said readable, FIONREAD {said}, a read EAGAIN"),
                );
                return Err(Errno::INTR);
            }
            _ => {}
        }
        result
    }

    fn wait_all(&mut self, socket: &TcpStream, want: usize, promised: u64) -> Result<usize, Errno> {
        let promised = usize::try_from(promised).unwrap_or(usize::MAX);
        if promised == 0 {
            let count = self.recv(socket, want, RecvFlags::empty())?;
            return self.after_short(count);
        }
        let want = want.min(promised);
        let count = self.recv(socket, want, RecvFlags::WAITALL)?;
        let count = self.after_short(count)?;
        self.short = count < want;
        Ok(count)
    }

    fn low_at(&mut self, socket: &TcpStream, want: usize, promised: u64) -> Result<usize, Errno> {
        // Not near the end of what is certain to come: what is there may not be all that the peer can send
        // before it is read.
        let low = match promised > 2 * LOW_AT as u64 {
            true => want.min(LOW_AT),
            false => 0,
        };
        if low > 0 {
            options::set_low_at(socket, low)?;
        }
        let count = self.recv(socket, want.max(low), RecvFlags::empty());
        options::set_low_at(socket, 1)?;
        let count = self.after_low(count?);
        self.below_low = count < low;
        Ok(count)
    }

    /// Fewer bytes than SO_RCVLOWAT: only the end may follow.
    fn after_low(&mut self, count: usize) -> usize {
        if std::mem::take(&mut self.below_low) && count > 0 {
            let example = "a read gave less than SO_RCVLOWAT, and not at the end";
            self.violate("rcvlowat", example);
        }
        count
    }

    fn splice(&mut self, socket: &TcpStream, blocks: bool, want: usize) -> Result<usize, Errno> {
        let want = want.min(PIPE_BYTES);
        let (from, to) = pipe()?;
        let flags = match blocks {
            true => SpliceFlags::empty(),
            false => SpliceFlags::NONBLOCK,
        };
        let count = splice(socket, None, &to, None, want, flags)?;
        let mut read = 0;
        while read < count {
            let room = self.buffer.get_mut(read..count).unwrap_or_default();
            read += rustix::io::read(&from, room)?;
        }
        Ok(count)
    }

    fn timestamps(&mut self, socket: &TcpStream, want: usize) -> Result<usize, Errno> {
        if !std::mem::replace(&mut self.is_stamped, true) {
            let set = setsockopt(socket, sockopt::ReceiveTimestampns, &true);
            set.map_err(|e| Errno::from_raw_os_error(e as i32))?;
        }
        let mut space = [MaybeUninit::uninit(); 256];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let room = self.buffer.get_mut(..want).unwrap_or_default();
        let mut pieces = [IoSliceMut::new(room)];
        Ok(recvmsg(socket, &mut pieces, &mut control, RecvFlags::empty())?.bytes)
    }

    fn after_short(&mut self, count: usize) -> Result<usize, Errno> {
        if std::mem::take(&mut self.short) && count > 0 {
            self.violate(
                "waitall",
                "MSG_WAITALL gave less than asked, and not at the end",
            );
        }
        Ok(count)
    }

    fn violate(&self, name: &str, example: &str) {
        self.notes.violate(name, || {
            format!("{example} ({}, at {})", self.watch.name(), self.received)
        });
    }
}

/// Whether FIONREAD says that a socket has nothing.
fn has_none(socket: &TcpStream) -> bool {
    rustix::io::ioctl_fionread(socket).is_ok_and(|bytes| bytes == 0)
}

#[cfg(test)]
mod tests {
    use super::super::{
        behaviour::Choices,
        hello::{Hello, Purpose},
    };
    use super::*;
    use std::{io::Write, net::TcpListener, time::Duration};

    /// A client that reads in this style; its socket, and the server's, which sends the stream.
    fn receiver(style: &str) -> (Receiver, TcpStream, TcpStream, Vec<u8>, Notes) {
        let hello = |connection| Hello {
            purpose: Purpose::Streams,
            run: 1,
            seed: 1,
            connection,
            chunk_max: 1 << 20,
            connection_max: 1 << 20,
            stop_max: Duration::from_millis(1),
            hang_limit: Duration::from_secs(1),
            choices: Choices::named(&[style, "bulk-down"]).unwrap(),
            steady: true,
            may_be_cut: false,
            cql: false,
            is_edited: false,
        };
        let mut scripts = (0..).map(|connection| Script::new(&hello(connection)));
        let script = scripts.find(|script| script.down >= 100).unwrap();
        let notes = Notes::default();
        let watch = Arc::new(Watch::new(&script, Side::Client, &notes));
        let mut receiver = Receiver::new(&script, Side::Client, &watch, &notes);
        // As large as all that is sent.
        receiver.read_max = 1 << 10;
        receiver.buffer = vec![0; 1 << 10];
        receiver.peeked = vec![0; 1 << 10];
        let mut content = vec![0; 100];
        script
            .content(Side::Client.receives())
            .fill(0, &mut content);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (server, _) = listener.accept().unwrap();
        // What a blocking socket should never do: give less than asked, or nothing.
        client
            .set_read_timeout(Some(Duration::from_millis(20)))
            .unwrap();
        (receiver, client, server, content, notes)
    }

    /// Reads until `count` bytes have come.
    fn read(receiver: &mut Receiver, socket: &TcpStream, count: u64, promised: u64) {
        while receiver.received < count {
            receiver.read(socket, true, promised);
        }
        assert!(receiver.checker.clean());
    }

    #[test]
    fn every_style_reads_without_a_violation() {
        for style in ["recv", "peek", "fionread", "readv"] {
            let (mut receiver, client, mut server, content, notes) = receiver(style);
            server.write_all(&content).unwrap();
            drop(server);
            read(&mut receiver, &client, 100, 0);
            assert_eq!(receiver.read(&client, true, 0), Got::End);
            assert_eq!(notes.report().violations.len(), 0, "{style}");
        }
    }

    #[test]
    fn eagain_from_a_blocking_read_is_a_violation() {
        let (mut receiver, client, _server, _, notes) = receiver("recv");
        assert_eq!(receiver.read(&client, true, 0), Got::Nothing);
        assert_eq!(notes.report().violations["blocking"], 1);
        assert_eq!(receiver.read(&client, false, 0), Got::Nothing);
        assert_eq!(notes.report().violations["blocking"], 1);
    }

    #[test]
    fn a_short_waitall_is_a_violation_when_more_follows() {
        let (mut receiver, client, mut server, content, notes) = receiver("waitall");
        server.write_all(&content[..10]).unwrap();
        // The timeout cuts the call short.
        assert_eq!(receiver.wait_all(&client, 90, 90), Ok(10));
        assert_eq!(notes.report().violations.len(), 0);
        server.write_all(&content[10..]).unwrap();
        assert_eq!(receiver.wait_all(&client, 90, 0), Ok(90));
        assert_eq!(notes.report().violations["waitall"], 1);
    }

    #[test]
    fn a_short_waitall_is_none_at_the_end() {
        let (mut receiver, client, mut server, content, notes) = receiver("waitall");
        server.write_all(&content).unwrap();
        drop(server);
        while receiver.read(&client, true, 1000) != Got::End {}
        assert_eq!(receiver.received, 100);
        assert_eq!(notes.report().violations.len(), 0);
    }
}
