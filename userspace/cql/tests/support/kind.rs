//! How a flow may travel: each version, with and without compression.

use cassandra_protocol::compression::Compression;
use cassandra_protocol::crc::{crc24, crc32};
use cassandra_protocol::frame::frame_encoder::{FrameEncoder, Lz4FrameEncoder};

use super::*;

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
    /// A frame as a peer sends it.
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

    /// A frame with its body compressed. Drivers do not compress an empty body.
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
