//! A client of any version, which takes responses in whatever segments they come.

use std::{
    io::{self, Read, Write},
    net::{SocketAddr, TcpStream},
};

use cql::Compression;
use cql_edit::{Incoming, in_segments_of};

use crate::common::{
    PATIENCE,
    frames::{READY, frame, startup},
    world::{AUTH_RESPONSE, AUTH_SUCCESS, World},
};

const AUTHENTICATE: u8 = 0x03;

pub struct Peer<S = TcpStream> {
    pub stream: S,
    pub version: u8,
    incoming: Incoming,
}

pub fn connect(to: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(to).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

impl Peer {
    /// A client of the world's database.
    pub fn of(world: &World<'_>, version: u8) -> Self {
        let stream = world.sandbox.client(|| connect(world.database.addr()));
        Self::begin(stream.unwrap(), version, None)
    }

    pub fn of_user(world: &World<'_>, version: u8, token: &[u8]) -> Self {
        let stream = world.sandbox.client(|| connect(world.database.addr()));
        Self::begin(stream.unwrap(), version, Some(token))
    }

    pub fn begin_with(stream: TcpStream, version: u8, token: &[u8]) -> io::Result<Self> {
        Self::try_begin(stream, version, Some(token))
    }
}

impl<S: Read + Write> Peer<S> {
    pub fn begin(stream: S, version: u8, token: Option<&[u8]>) -> Self {
        Self::try_begin(stream, version, token).unwrap()
    }

    /// With these options, and without segments.
    pub fn begin_as(stream: S, version: u8, options: &[(&str, &str)]) -> Self {
        let mut peer = Self {
            stream,
            version,
            incoming: Incoming::new(version),
        };
        peer.stream.write_all(&startup(version, options)).unwrap();
        assert_eq!(peer.opcode().unwrap(), READY);
        peer
    }

    fn try_begin(stream: S, version: u8, token: Option<&[u8]>) -> io::Result<Self> {
        let (mut peer, mut opcode) = Self::starts(stream, version)?;
        if let (AUTHENTICATE, Some(token)) = (opcode, token) {
            opcode = peer.logs_in(token)?;
        }
        match opcode {
            READY => Ok(peer),
            other => Err(io::Error::other(format!("{other:#04x}"))),
        }
    }

    /// A client that has said STARTUP, and the opcode of the answer.
    pub fn starts(stream: S, version: u8) -> io::Result<(Self, u8)> {
        let mut peer = Self {
            stream,
            version,
            incoming: Incoming::new(version),
        };
        let options = [("CQL_VERSION", "3.0.0")];
        peer.stream.write_all(&startup(version, &options))?;
        let opcode = peer.opcode()?;
        peer.incoming.accept(Compression::None);
        Ok((peer, opcode))
    }

    /// READY: it is let in.
    pub fn logs_in(&mut self, token: &[u8]) -> io::Result<u8> {
        self.send(&[frame(self.version, 0, AUTH_RESPONSE, token)]);
        Ok(match self.opcode()? {
            AUTH_SUCCESS => READY,
            other => other,
        })
    }

    fn opcode(&mut self) -> io::Result<u8> {
        self.try_next().map(|frame| frame[4])
    }

    /// All in one piece, as many to a segment as go in.
    pub fn send(&mut self, frames: &[Vec<u8>]) {
        let mut all = frames.concat();
        if self.version == 5 {
            all = in_segments_of(Compression::None, &all);
        }
        self.stream.write_all(&all).unwrap();
        self.stream.flush().unwrap();
    }

    /// Stream and all of the next response.
    pub fn next(&mut self) -> (i16, Vec<u8>) {
        let frame = self.try_next().unwrap();
        (i16::from_be_bytes([frame[2], frame[3]]), frame)
    }

    pub fn try_next(&mut self) -> io::Result<Vec<u8>> {
        let mut piece = [0; 16 << 10];
        loop {
            let next = self.incoming.next(usize::MAX).unwrap();
            if let Some(came) = next {
                return Ok(came.frame.unwrap().to_vec());
            }
            let n = match self.stream.read(&mut piece) {
                // A socket with a time limit is not read on by itself.
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                read => read?,
            };
            if n == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            self.incoming.comes(&piece[..n]).unwrap();
        }
    }

    /// Opcode and body of the answer.
    pub fn ask(&mut self, frame: &[u8]) -> (u8, Vec<u8>) {
        self.send(&[frame.to_vec()]);
        let (_, frame) = self.next();
        (frame[4], frame[9..].to_vec())
    }

    /// Waits until the connection is reset, or ends.
    pub fn sees_loss(&mut self) {
        match self.try_next() {
            Ok(frame) => panic!("it is told {frame:?}"),
            Err(error) => {
                let lost = [io::ErrorKind::ConnectionReset, io::ErrorKind::UnexpectedEof];
                assert!(lost.contains(&error.kind()), "{error}");
            }
        }
    }
}
