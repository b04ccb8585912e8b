//! A client of the null server: the state of its requests, and the answers that it has not taken
//! yet.

use std::{
    io::{ErrorKind, Read, Write},
    net::TcpStream,
};

use crate::raw::cql::wire::{
    HEADER_BYTES, PREPARE, PREPARED, READY, RESULT, STARTUP, VERSION, VOID,
};

/// A request of more is none: nothing that a workload may hold is as long.
const MAX_REQUEST_BYTES: usize = 256 << 20;
/// A line of a command: `*` or `$` and a number.
const MAX_LINE_BYTES: usize = 32;
/// Any id will do.
const ID: [u8; 16] = *b"underpass-prepar";

/// The state of a connection after a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// More requests may come.
    Open,
    /// Answers wait for room.
    Full,
    /// The connection ended, or sent something that is no request.
    Closed,
}

/// A client.
pub struct Connection {
    stream: TcpStream,
    parser: Parser,
    out: Vec<u8>,
    sent: usize,
}

impl Connection {
    /// New.
    pub fn new(stream: TcpStream) -> Self {
        Self {
            stream,
            parser: Parser::default(),
            out: Vec::new(),
            sent: 0,
        }
    }

    /// Returns the client's socket.
    pub fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// Whether answers wait.
    pub fn is_full(&self) -> bool {
        self.sent < self.out.len()
    }

    /// Does one read and one write; or, if answers wait, a write.
    pub fn serve(&mut self, input: &mut [u8]) -> State {
        if !self.is_full() {
            let read = match self.stream.read(input) {
                Ok(0) => return State::Closed,
                Ok(read) => read,
                Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
                    return State::Open;
                }
                Err(_) => return State::Closed,
            };
            let bytes = input.get(..read).unwrap_or_default();
            if self.parser.answer(bytes, &mut self.out).is_none() {
                return State::Closed;
            }
        }
        self.flush()
    }

    fn flush(&mut self) -> State {
        while let Some(rest) = self.out.get(self.sent..).filter(|rest| !rest.is_empty()) {
            match self.stream.write(rest) {
                Ok(written) => self.sent += written,
                Err(e) if e.kind() == ErrorKind::WouldBlock => return State::Full,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(_) => return State::Closed,
            }
        }
        self.out.clear();
        self.sent = 0;
        State::Open
    }
}

/// The position of a connection in its stream of requests. Bodies are skipped, not kept.
#[derive(Debug, Default)]
struct Parser {
    /// The beginning of a header or of a line whose end has not come.
    head: Vec<u8>,
    /// The bytes that are still to come before `then`.
    skip: usize,
    then: Then,
}

#[derive(Clone, Copy, Debug, Default)]
enum Then {
    /// A request begins.
    #[default]
    Request,
    /// A frame of this opcode and stream ends.
    Frame(u8, [u8; 2]),
    /// The rest of a command follows: this number of words.
    Words(usize),
}

impl Parser {
    /// Appends the answers to the requests that end in these bytes. None: the bytes are no
    /// requests.
    fn answer(&mut self, mut bytes: &[u8], out: &mut Vec<u8>) -> Option<()> {
        loop {
            let skipped = self.skip.min(bytes.len());
            self.skip -= skipped;
            bytes = bytes.get(skipped..)?;
            if self.skip > 0 {
                return Some(());
            }
            match self.then {
                Then::Frame(opcode, stream) => {
                    put_frame(opcode, stream, out);
                    self.then = Then::Request;
                }
                Then::Words(0) => {
                    out.extend_from_slice(b"+OK\r\n");
                    self.then = Then::Request;
                }
                Then::Request | Then::Words(_) => {
                    if bytes.is_empty() {
                        return Some(());
                    }
                    bytes = self.take_head(bytes)?;
                }
            }
        }
    }

    /// Takes a header or a line, or what there is of it. What is behind it.
    fn take_head<'a>(&mut self, bytes: &'a [u8]) -> Option<&'a [u8]> {
        let first = *self.head.first().or(bytes.first())?;
        let is_frame = first == VERSION && matches!(self.then, Then::Request);
        let end = if is_frame {
            Some(HEADER_BYTES - self.head.len())
        } else {
            bytes.iter().position(|b| *b == b'\n').map(|end| end + 1)
        };
        let Some((now, rest)) = end.and_then(|end| bytes.split_at_checked(end)) else {
            self.head.extend_from_slice(bytes);
            return (self.head.len() <= MAX_LINE_BYTES).then_some(&[]);
        };
        if self.head.is_empty() {
            self.understand(now)?;
        } else {
            let mut head = std::mem::take(&mut self.head);
            head.extend_from_slice(now);
            self.understand(&head)?;
        }
        Some(rest)
    }

    fn understand(&mut self, head: &[u8]) -> Option<()> {
        (self.skip, self.then) = match (self.then, head) {
            (Then::Request, &[VERSION, _, s1, s0, opcode, l3, l2, l1, l0]) => {
                let length = u32::from_be_bytes([l3, l2, l1, l0]) as usize;
                (length, Then::Frame(opcode, [s1, s0]))
            }
            (Then::Request, [b'*', line @ ..]) => (0, Then::Words(number(line)?)),
            // A word and its end of line.
            (Then::Words(left), [b'$', line @ ..]) => (number(line)? + 2, Then::Words(left - 1)),
            _ => return None,
        };
        (self.skip <= MAX_REQUEST_BYTES).then_some(())
    }
}

fn number(line: &[u8]) -> Option<usize> {
    let digits = line.strip_suffix(b"\r\n")?;
    std::str::from_utf8(digits).ok()?.parse().ok()
}

fn put_frame(opcode: u8, [s1, s0]: [u8; 2], out: &mut Vec<u8>) {
    let mut put = |opcode: u8, body: &[&[u8]]| {
        let length: usize = body.iter().map(|part| part.len()).sum();
        out.extend_from_slice(&[VERSION | 0x80, 0, s1, s0, opcode]);
        out.extend_from_slice(&(length as u32).to_be_bytes());
        body.iter().for_each(|part| out.extend_from_slice(part));
    };
    match opcode {
        STARTUP => put(READY, &[]),
        // §4.2.5.4: kind, id, metadata of what is bound and of the result: flags, columns, and
        // for the former key columns; none of any.
        PREPARE => put(
            RESULT,
            &[
                &PREPARED.to_be_bytes(),
                &[0, ID.len() as u8],
                &ID,
                &[0; 12],
                &[0; 8],
            ],
        ),
        _ => put(RESULT, &[&VOID.to_be_bytes()]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(opcode: u8, stream: u8, body: usize) -> Vec<u8> {
        let mut frame = vec![VERSION, 0, 0, stream, opcode];
        frame.extend_from_slice(&(body as u32).to_be_bytes());
        frame.resize(frame.len() + body, b'*');
        frame
    }

    /// The answers, with the requests cut after every so many bytes.
    fn answers(requests: &[u8], piece: usize) -> Option<Vec<u8>> {
        let mut parser = Parser::default();
        let mut out = Vec::new();
        for piece in requests.chunks(piece) {
            parser.answer(piece, &mut out)?;
        }
        Some(out)
    }

    #[test]
    fn frames_are_answered_however_they_are_cut() {
        let mut requests = frame(STARTUP, 0, 22);
        requests.extend(frame(PREPARE, 1, 40));
        requests.extend(frame(0x0A, 2, 300));
        requests.extend(frame(0x05, 3, 0));
        let mut wanted = vec![0x84, 0, 0, 0, READY, 0, 0, 0, 0];
        wanted.extend([0x84, 0, 0, 1, RESULT, 0, 0, 0, 42, 0, 0, 0, 4, 0, 16]);
        wanted.extend(ID);
        wanted.extend([0; 20]);
        wanted.extend([0x84, 0, 0, 2, RESULT, 0, 0, 0, 4, 0, 0, 0, 1]);
        wanted.extend([0x84, 0, 0, 3, RESULT, 0, 0, 0, 4, 0, 0, 0, 1]);
        for piece in 1..=requests.len() {
            assert_eq!(answers(&requests, piece).unwrap(), wanted, "{piece}");
        }
    }

    #[test]
    fn commands_are_answered_however_they_are_cut() {
        let requests = b"*3\r\n$3\r\nSET\r\n$2\r\n\r\n\r\n$0\r\n\r\n*1\r\n$4\r\nPING\r\n";
        for piece in 1..=requests.len() {
            assert_eq!(
                answers(requests, piece).unwrap(),
                b"+OK\r\n+OK\r\n",
                "{piece}"
            );
        }
    }

    #[test]
    fn what_is_no_request_ends_the_connection() {
        for wrong in [
            &b"GET / HTTP/1.1\r\n"[..],
            b"*x\r\n",
            b"*1\r\n+OK\r\n",
            &[b'*'; 99],
        ] {
            assert_eq!(answers(wrong, 7), None, "{wrong:?}");
        }
    }
}
