//! An input as a conversation: who speaks, and what.

/// A byte for the version, one for how it is cut and compressed, and then runs of one peer.
pub struct Script<'d> {
    /// 3, 4 or 5.
    pub version: u8,
    /// STARTUP and READY have passed.
    pub started: bool,
    /// The compression that STARTUP asks for.
    pub compression: Compression,
    /// How many bytes at once are fed the second time.
    pub piece: usize,
    /// The input that was not used yet.
    pub rest: &'d [u8],
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Compression {
    None,
    Lz4,
    Snappy,
}

/// The next run of one peer.
pub struct Run<'d> {
    pub is_request: bool,
    /// Other decisions of the input: the lower bits of two bytes.
    pub choice: u8,
    pub more: u8,
    pub bytes: &'d [u8],
}

impl<'d> Script<'d> {
    pub fn new(data: &'d [u8]) -> Option<Self> {
        let [first, second, rest @ ..] = data else {
            return None;
        };
        Some(Self {
            version: 3 + first % 3,
            started: first & 0x80 == 0,
            compression: match second >> 6 {
                1 => Compression::Lz4,
                2 => Compression::Snappy,
                _ => Compression::None,
            },
            piece: 1 + usize::from(second % 64),
            rest,
        })
    }
}

impl<'d> Iterator for Script<'d> {
    type Item = Run<'d>;

    fn next(&mut self) -> Option<Run<'d>> {
        let [choice, more, len, rest @ ..] = self.rest else {
            return None;
        };
        let (bytes, rest) = rest.split_at(rest.len().min(usize::from(*len)));
        self.rest = rest;
        Some(Run {
            is_request: choice & 0x80 == 0,
            choice: choice & 0x7F,
            more: *more,
            bytes,
        })
    }
}

pub const READY: u8 = 2;

pub fn frame(version: u8, flags: u8, stream: i16, opcode: u8, body: &[u8]) -> Vec<u8> {
    let mut frame = vec![version, flags];
    frame.extend(stream.to_be_bytes());
    frame.push(opcode);
    frame.extend((body.len() as u32).to_be_bytes());
    frame.extend(body);
    frame
}

pub fn startup(version: u8, compression: Compression) -> Vec<u8> {
    let options: &[u8] = match compression {
        Compression::None => b"\0\x01\0\x0bCQL_VERSION\0\x053.0.0",
        Compression::Lz4 => b"\0\x01\0\x0bCOMPRESSION\0\x03lz4",
        Compression::Snappy => b"\0\x01\0\x0bCOMPRESSION\0\x06snappy",
    };
    frame(version, 0, 0, 1, options)
}

impl Compression {
    /// A body that becomes `plain`, for what is looked at behind it: literals, and no copies.
    pub fn stored(self, plain: &[u8]) -> Vec<u8> {
        let length = plain.len() as u8;
        assert_eq!(usize::from(length), plain.len());
        match self {
            Self::None => plain.to_vec(),
            Self::Lz4 => {
                let token = match length {
                    0..15 => vec![length << 4],
                    _ => vec![0xF0, length - 15],
                };
                [&[0, 0, 0, length], &token[..], plain].concat()
            }
            Self::Snappy => {
                let declared = match length {
                    0..128 => vec![length],
                    _ => vec![length, 1],
                };
                let tag = match length {
                    0 => vec![],
                    _ => vec![60 << 2, length - 1],
                };
                [&declared[..], &tag, plain].concat()
            }
        }
    }
}

/// A segment of LZ4 with the checksums that belong to it, whatever it carries.
pub fn lz4_segment(self_contained: bool, plain: u32, carried: &[u8]) -> Vec<u8> {
    let word = carried.len() as u64 | u64::from(plain) << 17 | u64::from(self_contained) << 34;
    checked(&word.to_le_bytes()[..5], carried)
}

/// A segment of v5 with the checksums that belong to it.
pub fn segment(self_contained: bool, payload: &[u8]) -> Vec<u8> {
    let word = payload.len() as u32 | u32::from(self_contained) << 17;
    checked(&word.to_le_bytes()[..3], payload)
}

fn checked(header: &[u8], payload: &[u8]) -> Vec<u8> {
    let mut segment = header.to_vec();
    let header = crc24(&segment);
    segment.extend(&header.to_le_bytes()[..3]);
    segment.extend(payload);
    let mut crc = crc32fast::Hasher::new();
    crc.update(&[0xFA, 0x2D, 0x55, 0xCA]);
    crc.update(payload);
    segment.extend(crc.finalize().to_le_bytes());
    segment
}

fn crc24(bytes: &[u8]) -> u32 {
    let mut crc = 0x87_5060_u32;
    for byte in bytes {
        crc ^= u32::from(*byte) << 16;
        for _ in 0..8 {
            crc <<= 1;
            if crc & 0x100_0000 != 0 {
                crc ^= 0x197_4F0B;
            }
        }
    }
    crc
}
