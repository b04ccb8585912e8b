//! Flows through an editor, in every version and compression.

use std::sync::Arc;

use cassandra_protocol::compression::Compression;
use cassandra_protocol::crc::{crc24, crc32};
use cassandra_protocol::frame::Envelope;
use cassandra_protocol::frame::frame_encoder::{FrameEncoder, Lz4FrameEncoder};
use cassandra_protocol::frame::message_request::RequestBody;
use cql::edit::{
    Caller, Editor, Error, Log, LookedUp, Outcome, Refused, Request, Transform, Unseen,
};
use cql::transforms::Settings;
use cql::{Opcode, StreamId};

use super::*;

/// Refuses what names a table of this name, and looks at everything else.
#[derive(Debug)]
pub struct Refuses(pub &'static [u8], pub bool);

impl Transform for Refuses {
    fn name(&self) -> &'static str {
        "refuses"
    }

    fn wants(&self, opcode: Opcode) -> bool {
        matches!(opcode, Opcode::Query | Opcode::Batch)
    }

    fn is_strict(&self) -> bool {
        self.1
    }

    fn request(&self, request: &mut Request<'_>, _: &Caller, _: u64) -> Outcome {
        let named = |statement| match statement {
            cql::edit::Statement::Text(text) => text.windows(self.0.len()).any(|w| w == self.0),
            cql::edit::Statement::Prepared(_) => false,
        };
        match request.statements().any(named) {
            true => Outcome::Refuse(Refused {
                reason: "named",
                error: Error::Invalid("no".into()),
            }),
            false => Outcome::Pass,
        }
    }
}

#[derive(Debug, Default, PartialEq, Eq)]
pub struct Noted {
    pub changed: usize,
    pub refused: usize,
    pub answered: usize,
    pub unseen: Vec<(Unseen, bool)>,
    pub unshown: Vec<Unseen>,
    pub looked_up: Vec<LookedUp>,
}

impl Log for Noted {
    fn changed(&mut self, _: &'static str) {
        self.changed += 1;
    }
    fn refused(&mut self, _: StreamId, _: &'static str, _: &'static str) {
        self.refused += 1;
    }
    fn answered(&mut self, _: &'static str) {
        self.answered += 1;
    }
    fn would_refuse(&mut self, _: &'static str, _: &'static str) {}
    fn slowed(&mut self, _: &'static str, _: u64) {}
    fn unseen(&mut self, _: StreamId, why: Unseen, refused: bool) {
        self.unseen.push((why, refused));
    }
    fn unshown(&mut self, why: Unseen) {
        self.unshown.push(why);
    }
    fn looked_up(&mut self, what: LookedUp) {
        self.looked_up.push(what);
    }
}

/// How a flow may travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind {
    pub version: u8,
    pub compression: Compression,
}

pub const KINDS: [Kind; 8] = [
    kind(3, Compression::None),
    kind(3, Compression::Lz4),
    kind(3, Compression::Snappy),
    kind(4, Compression::None),
    kind(4, Compression::Lz4),
    kind(4, Compression::Snappy),
    kind(5, Compression::None),
    kind(5, Compression::Lz4),
];

pub const fn kind(version: u8, compression: Compression) -> Kind {
    Kind {
        version,
        compression,
    }
}

impl Kind {
    /// As a peer sends it.
    pub fn sent(self, direction: u8, stream: i16, opcode: u8, body: &[u8]) -> Vec<u8> {
        let version = self.version | direction;
        if self.version == 5 {
            let bare = frame(version, 0, stream, opcode, body);
            return self.around(&bare);
        }
        match self.compression {
            Compression::None => frame(version, 0, stream, opcode, body),
            algorithm => {
                let small = algorithm.encode(body).unwrap();
                frame(version, 1, stream, opcode, &small)
            }
        }
    }

    /// STARTUP and READY, and whether they are requests.
    pub fn handshake(self) -> [(bool, Vec<u8>); 2] {
        let option = match self.compression {
            Compression::None => None,
            Compression::Lz4 => Some(("COMPRESSION", "lz4")),
            Compression::Snappy => Some(("COMPRESSION", "snappy")),
        };
        let ready = frame(self.version | 0x80, 0, 0, READY, &[]);
        [
            (true, startup(self.version, option.as_slice())),
            (false, ready),
        ]
    }

    /// Frames as a peer sends them: each compressed, or in segments, small ones together and large
    /// ones in parts.
    pub fn wrap(self, frames: &[Vec<u8>]) -> Vec<u8> {
        const LARGE: usize = (1 << 17) - 1024;
        if self.version < 5 {
            return frames.iter().flat_map(|one| self.compressed(one)).collect();
        }
        let mut bytes = Vec::new();
        let mut together = Vec::new();
        for frame in frames {
            if together.len() + frame.len() >= LARGE && !together.is_empty() {
                bytes.extend(self.around(&std::mem::take(&mut together)));
            }
            if frame.len() >= LARGE {
                for part in frame.chunks(LARGE) {
                    bytes.extend(self.part(part));
                }
            } else {
                together.extend(frame);
            }
        }
        if !together.is_empty() {
            bytes.extend(self.around(&together));
        }
        bytes
    }

    /// One frame, its body compressed. Drivers do not compress what is empty.
    fn compressed(self, bare: &[u8]) -> Vec<u8> {
        let (header, body) = bare.split_at(9);
        if self.compression == Compression::None || body.is_empty() {
            return bare.to_vec();
        }
        let stream = i16::from_be_bytes([header[2], header[3]]);
        let small = self.compression.encode(body).unwrap();
        frame(header[0], header[1] | 1, stream, header[4], &small)
    }

    pub fn part(self, part: &[u8]) -> Vec<u8> {
        match self.compression {
            Compression::Lz4 => {
                let mut encoder = Lz4FrameEncoder::default();
                let (passed, segment) = encoder.finalize_non_self_contained(part);
                assert_eq!(passed, part.len());
                segment.to_vec()
            }
            _ => segment(false, part),
        }
    }

    pub fn around(self, frames: &[u8]) -> Vec<u8> {
        match self.compression {
            Compression::Lz4 => {
                let mut encoder = Lz4FrameEncoder::default();
                encoder.add_envelope(frames.to_vec());
                encoder.finalize_self_contained().to_vec()
            }
            _ => segment(true, frames),
        }
    }

    /// The frames in these bytes, without compression. The checksums of segments have to be right.
    pub fn read(self, mut bytes: &[u8]) -> Vec<Vec<u8>> {
        let mut plain = Vec::new();
        if self.version < 5 {
            plain = bytes.to_vec();
        }
        while self.version == 5 && !bytes.is_empty() {
            let head = if self.compression == Compression::Lz4 {
                8
            } else {
                6
            };
            let mut word = [0; 8];
            word[..head - 3].copy_from_slice(&bytes[..head - 3]);
            let word = u64::from_le_bytes(word);
            let length = (word & 0x1_FFFF) as usize;
            let carried = &bytes[head..head + length];
            let (said, behind) = (&bytes[head - 3..head], &bytes[head + length..]);
            let header = crc24(&bytes[..head - 3]) as u32;
            assert_eq!(said, &header.to_le_bytes()[..3], "of the header");
            assert_eq!(behind[..4], crc32(carried).to_le_bytes());
            let full = (word >> 17 & 0x1_FFFF) as usize;
            if head == 8 && full > 0 {
                plain.extend(lz4_flex::block::decompress(carried, full).unwrap());
            } else {
                plain.extend(carried);
            }
            bytes = &bytes[head + length + 4..];
        }
        let mut frames = Vec::new();
        let mut rest = &plain[..];
        while !rest.is_empty() {
            let length = u32::from_be_bytes(rest[5..9].try_into().unwrap()) as usize;
            let (one, behind) = rest.split_at(9 + length);
            let mut one = one.to_vec();
            if self.version < 5 && one[1] & 1 != 0 {
                let body = self.compression.decode(one.split_off(9)).unwrap();
                one = frame(
                    one[0],
                    one[1] & !1,
                    i16::from_be_bytes([one[2], one[3]]),
                    one[4],
                    &body,
                );
            }
            frames.push(one);
            rest = behind;
        }
        frames
    }
}

pub struct Edits {
    pub kind: Kind,
    pub editor: Editor,
    pub noted: Noted,
}

impl Edits {
    pub fn new(kind: Kind, pipeline: Vec<Arc<dyn Transform>>) -> Self {
        let caller = Caller {
            rule: "r".into(),
            client: "192.0.2.1".into(),
            ..Caller::default()
        };
        let mut flow = Self {
            kind,
            editor: Editor::new(pipeline.into(), caller),
            noted: Noted::default(),
        };
        let [(_, startup), (_, ready)] = kind.handshake();
        assert_eq!(flow.requests(&startup), startup);
        assert_eq!(flow.responses(&ready), ready);
        flow
    }

    pub fn of(kind: Kind, settings: &str) -> Self {
        Self::new(kind, vec![step(settings)])
    }

    pub fn requests(&mut self, bytes: &[u8]) -> Vec<u8> {
        let edited = self.editor.requests(0, bytes, &mut self.noted);
        assert_eq!(edited.unreadable, None);
        edited.instead.unwrap_or_else(|| bytes.to_vec())
    }

    pub fn responses(&mut self, bytes: &[u8]) -> Vec<u8> {
        let edited = self.editor.responses(bytes, &mut self.noted);
        assert_eq!(edited.unreadable, None);
        edited.instead.unwrap_or_else(|| bytes.to_vec())
    }

    /// The body that the database gets for a request with this one.
    pub fn changed(&mut self, opcode: u8, body: &[u8]) -> RequestBody {
        let sent = self.kind.sent(0, 7, opcode, body);
        let passed = self.requests(&sent);
        let frames = self.kind.read(&passed);
        let [frame] = &frames[..] else {
            panic!("{} frames", frames.len())
        };
        let envelope = Envelope::from_buffer(frame, Compression::None)
            .unwrap()
            .envelope;
        assert_eq!(envelope.stream_id, 7);
        envelope.request_body().unwrap()
    }
}

pub fn step(settings: &str) -> Arc<dyn Transform> {
    let settings: Settings = toml::from_str(settings).unwrap();
    settings.build().unwrap()
}

pub fn table(n: usize) -> String {
    format!("SELECT v FROM ks.t{n} WHERE k = 'something to be compressed, compressed'")
}

pub fn ask(version: u8, text: &str) -> Vec<u8> {
    query(version, text, None)
}

/// A RESULT comes, and passes as it is.
pub fn answered(flow: &mut Edits, stream: i16, body: &[u8]) {
    let answer = flow.kind.sent(0x80, stream, RESULT, body);
    assert_eq!(flow.responses(&answer), answer);
}
