//! How an end writes.

use std::{io::IoSlice, net::TcpStream, os::fd::OwnedFd, sync::Arc};

use rustix::{
    fs::{MemfdFlags, memfd_create, sendfile},
    io::{Errno, pwrite},
    net::{SendFlags, send},
};

use super::{
    behaviour::Writing,
    dice::Dice,
    frames::Content,
    notes::Notes,
    options,
    report::Side,
    script::{End, Script},
    watch::Watch,
};

/// Bytes that are made at once, unless a chunk is larger: they stay in the cache.
const MADE: u64 = 128 << 10;
/// Bytes that may be under way besides the stream.
const HELLO_BYTES: u64 = 64 << 10;
/// Pieces of a writev.
const PIECES: u64 = 8;

/// Outcome of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Put {
    /// Number of bytes that were taken.
    Bytes(usize),
    /// The write would block.
    Nothing,
    /// The connection is broken.
    Broken(Errno),
}

/// The sending half of an end.
#[derive(Debug)]
pub(super) struct Sender {
    style: Writing,
    write_max: u64,
    dice: Dice,
    content: Content,
    pub(super) total: u64,
    pub(super) sent: u64,
    /// Bytes of the stream up to position `made`; the file holds the same.
    buffer: Vec<u8>,
    file: Option<OwnedFd>,
    made: u64,
    /// A blocking write took less than it was given: only an error may follow.
    short: bool,
    watch: Arc<Watch>,
    notes: Notes,
}

impl Sender {
    pub(super) fn new(script: &Script, side: Side, watch: &Arc<Watch>, notes: &Notes) -> Self {
        let mut end: End = script.end(side).clone();
        Self {
            style: end.writing,
            write_max: end.write_max,
            dice: Dice::new(&[end.dice.next(), 2]),
            content: script.content(side.sends()),
            total: script.total(side.sends()),
            sent: 0,
            buffer: Vec::new(),
            file: None,
            made: 0,
            short: false,
            watch: Arc::clone(watch),
            notes: notes.clone(),
        }
    }

    /// Writes once, up to position `limit`, which is not reached yet.
    pub(super) fn write(&mut self, socket: &TcpStream, blocks: bool, limit: u64) -> Put {
        let want = self.dice.log(self.write_max).min(limit - self.sent);
        if let Err(error) = self.make(want) {
            return Put::Broken(error);
        }
        let want = want.min(self.made - self.sent);
        let last = self.sent + want == limit;
        match self.put(socket, want, last) {
            Ok(count) => {
                if std::mem::take(&mut self.short) {
                    let text = "a blocking write took a part, and the next one went on";
                    self.notes
                        .violate("write", || format!("{text} ({})", self.watch.name()));
                }
                self.short = blocks && self.style != Writing::Sendfile && (count as u64) < want;
                self.sent += count as u64;
                self.watch.sent(count as u64);
                Put::Bytes(count)
            }
            Err(Errno::INTR) => Put::Nothing,
            Err(Errno::AGAIN) if blocks => {
                let text = "a blocking write said EAGAIN";
                self.notes
                    .violate("blocking", || format!("{text} ({})", self.watch.name()));
                Put::Nothing
            }
            Err(Errno::AGAIN) => Put::Nothing,
            Err(error) => Put::Broken(error),
        }
    }

    fn put(&mut self, socket: &TcpStream, want: u64, last: bool) -> Result<usize, Errno> {
        let want = usize::try_from(want).unwrap_or(usize::MAX);
        let at = self.buffer.len() - usize::try_from(self.made - self.sent).unwrap_or(0);
        if let Some(file) = &self.file {
            let mut offset = at as u64;
            return sendfile(socket, file, Some(&mut offset), want);
        }
        let bytes = self.buffer.get(at..at + want).unwrap_or_default();
        match self.style {
            Writing::More if !last => send(socket, bytes, SendFlags::NOSIGNAL | SendFlags::MORE),
            Writing::Writev => {
                let piece = want.div_ceil(self.dice.between(1, PIECES) as usize).max(1);
                let pieces: Vec<_> = bytes.chunks(piece).map(IoSlice::new).collect();
                rustix::io::writev(socket, &pieces)
            }
            Writing::Asks => {
                let sent = send(socket, bytes, SendFlags::NOSIGNAL);
                self.ask(socket);
                sent
            }
            _ => send(socket, bytes, SendFlags::NOSIGNAL),
        }
    }

    /// Asks TCP_INFO and SIOCOUTQ, as those do who watch their peers.
    fn ask(&self, socket: &TcpStream) {
        let unsent = options::unsent_bytes(socket);
        let asked = options::ask_tcp_info(socket);
        let wrong = match (unsent, asked) {
            (Err(error), _) => format!("SIOCOUTQ cannot be had: {error}"),
            (_, Err(error)) => format!("TCP_INFO cannot be had: {error}"),
            // Of the handshake before the stream, a few kilobytes.
            (Ok(unsent), _) if unsent > self.made + HELLO_BYTES => {
                format!("SIOCOUTQ says {unsent}")
            }
            _ => return,
        };
        let text = format!("{wrong} at {} ({})", self.sent, self.watch.name());
        self.notes.violate("asks-tcp", || text);
    }

    /// Sees to it that there are `want` bytes to send, or a good part of them.
    fn make(&mut self, want: u64) -> Result<(), Errno> {
        if self.made > self.sent {
            return Ok(());
        }
        let count = want.max(MADE).min(self.total - self.sent);
        self.buffer.resize(usize::try_from(count).unwrap_or(0), 0);
        self.content.fill(self.sent, &mut self.buffer);
        self.made = self.sent + count;
        if self.style == Writing::Sendfile {
            // A new one each time: pages of the old one may still be on their way.
            let file = memfd_create("integrity", MemfdFlags::CLOEXEC)?;
            let mut written = 0;
            while let Some(rest) = self.buffer.get(written..).filter(|rest| !rest.is_empty()) {
                written += pwrite(&file, rest, written as u64)?;
            }
            self.file = Some(file);
        }
        Ok(())
    }
}
