//! A client and a database that speak every version and compression, and know each request's answer.

use std::{
    collections::HashMap,
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    thread,
    time::Duration,
};

use cassandra_protocol::{
    compression::Compression,
    frame::{
        Envelope,
        frame_decoder::{
            FrameDecoder, LegacyFrameDecoder, Lz4FrameDecoder, UncompressedFrameDecoder,
        },
        frame_encoder::{FrameEncoder, Lz4FrameEncoder, UncompressedFrameEncoder},
    },
};

use crate::common::{
    PATIENCE,
    frames::{self, RESPONSE, RESULT, query, ready, startup},
};

/// Requests of a client that are out at a time.
const WINDOW: usize = 16;

/// Each so many-th request is larger than a segment.
const LARGE_EVERY: usize = 64;

/// Bytes of such a request, and of its answer.
const LARGE_BYTES: usize = 150_000;

/// Stands before what tells requests apart.
const MARK: &[u8] = b"asked:";

/// Digits behind it.
const DIGITS: usize = 12;

/// How a flow travels.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    pub version: u8,
    pub compression: Compression,
}

const fn kind(version: u8, compression: Compression) -> Kind {
    Kind {
        version,
        compression,
    }
}

pub const KINDS: [Kind; 5] = [
    kind(4, Compression::None),
    kind(4, Compression::Lz4),
    kind(4, Compression::Snappy),
    kind(5, Compression::None),
    kind(5, Compression::Lz4),
];

impl Kind {
    fn decoder(self) -> Box<dyn FrameDecoder + Send> {
        match (self.version, self.compression) {
            (5, Compression::None) => Box::new(UncompressedFrameDecoder::default()),
            (5, _) => Box::new(Lz4FrameDecoder::default()),
            _ => Box::new(LegacyFrameDecoder::default()),
        }
    }

    /// A frame as a peer sends it.
    fn sent(self, frame: &[u8]) -> Vec<u8> {
        fn segments(mut encoder: impl FrameEncoder, frame: &[u8]) -> Vec<u8> {
            if frame.len() < 1 << 17 {
                encoder.add_envelope(frame.to_vec());
                return encoder.finalize_self_contained().to_vec();
            }
            let parts = frame.chunks((1 << 17) - 1);
            let mut sent = Vec::new();
            for part in parts {
                encoder.reset();
                sent.extend_from_slice(encoder.finalize_non_self_contained(part).1);
            }
            sent
        }
        match (self.version, self.compression) {
            (5, Compression::None) => segments(UncompressedFrameEncoder::default(), frame),
            (5, _) => segments(Lz4FrameEncoder::default(), frame),
            (_, Compression::None) => frame.to_vec(),
            _ => {
                let (header, body) = frame.split_at(9);
                let small = self.compression.encode(body).unwrap();
                let stream = i16::from_be_bytes([header[2], header[3]]);
                let mut sent = frames::frame(header[0], stream, header[4], &small);
                sent[1] = 1;
                sent
            }
        }
    }
}

/// A connection's way of reading what comes.
struct Reader {
    socket: TcpStream,
    decoder: Box<dyn FrameDecoder + Send>,
    compression: Compression,
    bytes: Vec<u8>,
}

impl Reader {
    /// Frames that have come. None: the other side has ended.
    fn frames(&mut self) -> Option<Vec<Envelope>> {
        let mut chunk = [0; 8 << 10];
        let n = self.socket.read(&mut chunk).unwrap();
        self.bytes.extend_from_slice(&chunk[..n]);
        let frames = self.decoder.consume(&mut self.bytes, self.compression);
        (n > 0).then(|| frames.unwrap())
    }
}

/// Reads the number behind the mark.
fn asked(body: &[u8]) -> usize {
    let at = body.windows(MARK.len()).position(|part| part == MARK);
    let text = || String::from_utf8_lossy(&body[..body.len().min(300)]);
    let at = at.unwrap_or_else(|| panic!("no answer to any request: {}", text()));
    let digits = &body[at + MARK.len()..][..DIGITS];
    std::str::from_utf8(digits).unwrap().parse().unwrap()
}

/// Answers every request by what it asks, those that have come together the last one first. Until the clients have gone.
pub fn serve(listener: &TcpListener, connections: usize) {
    thread::scope(|scope| {
        for _ in 0..connections {
            let socket = listener.accept().unwrap().0;
            scope.spawn(move || answer(socket));
        }
    });
}

fn answer(mut socket: TcpStream) {
    socket.set_nodelay(true).unwrap();
    let mut header = [0; 9];
    socket.read_exact(&mut header).unwrap();
    let mut body = vec![0; u32::from_be_bytes(header[5..].try_into().unwrap()) as usize];
    socket.read_exact(&mut body).unwrap();
    let names = [
        ("lz4", Compression::Lz4),
        ("snappy", Compression::Snappy),
        ("", Compression::None),
    ];
    let says = |name: &str| {
        body.windows(name.len().max(1))
            .any(|part| part == name.as_bytes())
    };
    let compression = names
        .into_iter()
        .find(|(name, _)| name.is_empty() || says(name));
    let kind = kind(header[0], compression.unwrap().1);
    socket.write_all(&ready(kind.version)).unwrap();
    let mut reader = Reader {
        socket: socket.try_clone().unwrap(),
        decoder: kind.decoder(),
        compression: kind.compression,
        bytes: Vec::new(),
    };
    while let Some(requests) = reader.frames() {
        for request in requests.iter().rev() {
            let number = asked(&request.body);
            let mut body = 1_i32.to_be_bytes().to_vec();
            body.extend_from_slice(MARK);
            body.extend(format!("{number:0DIGITS$}").bytes());
            if number.is_multiple_of(LARGE_EVERY) {
                body.resize(LARGE_BYTES, b'.');
            }
            let frame = frames::frame(RESPONSE | kind.version, request.stream_id, RESULT, &body);
            let sent = kind.sent(&frame);
            // In pieces that end anywhere.
            for piece in sent.chunks(1 + number % 5000) {
                socket.write_all(piece).unwrap();
            }
        }
    }
}

/// A client that has logged in.
pub struct Client {
    kind: Kind,
    reader: Reader,
    /// The number of the next request.
    next: usize,
}

impl Client {
    pub fn log_in(kind: Kind, mut socket: TcpStream) -> Self {
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut options = vec![("CQL_VERSION", "3.0.0")];
        options.extend(kind.compression.as_str().map(|name| ("COMPRESSION", name)));
        socket.write_all(&startup(kind.version, &options)).unwrap();
        let mut ready = [0; 9];
        socket.read_exact(&mut ready).unwrap();
        assert_eq!(ready[4], frames::READY);
        Self {
            kind,
            reader: Reader {
                socket,
                decoder: kind.decoder(),
                compression: kind.compression,
                bytes: Vec::new(),
            },
            next: 1,
        }
    }

    pub fn peer(&self) -> SocketAddr {
        self.reader.socket.peer_addr().unwrap()
    }

    /// Keeps asking until it is to stop; each request has its own answer, once.
    pub fn asks(&mut self, stop: &AtomicBool, done: &AtomicUsize) {
        let mut out = HashMap::new();
        loop {
            let stops = stop.load(Relaxed);
            while out.len() < WINDOW && !stops {
                let number = self.next;
                self.next += 1;
                let stream = (0..).find(|stream| !out.contains_key(stream)).unwrap();
                out.insert(stream, number);
                self.ask(stream, number);
            }
            if out.is_empty() {
                return;
            }
            for answer in self.reader.frames().unwrap() {
                let number = out.remove(&answer.stream_id);
                assert_eq!(number, Some(asked(&answer.body)), "{:?}", self.kind);
                done.fetch_add(1, Relaxed);
            }
        }
    }

    fn ask(&mut self, stream: i16, number: usize) {
        let mut text = format!("SELECT v FROM shop.orders WHERE v = 'asked:{number:0DIGITS$}'");
        if number.is_multiple_of(LARGE_EVERY) {
            text.push_str(&" ".repeat(LARGE_BYTES));
        }
        let sent = self.kind.sent(&query(self.kind.version, stream, &text));
        for piece in sent.chunks(1 + number % 3000) {
            self.reader.socket.write_all(piece).unwrap();
        }
        if number.is_multiple_of(100) {
            // Half a request, for a moment.
            thread::sleep(Duration::from_millis(1));
        }
    }
}
