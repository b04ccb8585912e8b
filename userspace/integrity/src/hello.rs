//! A connection's first message: from it the server derives the script that the client follows.

use std::time::Duration;

use super::behaviour::Choices;

/// Bytes of the message.
pub(super) const HELLO: usize = FIELDS * 8;
const FIELDS: usize = 11;
/// "underpas", and distinct from the first byte of a CQL request.
pub(super) const MAGIC: [u8; 8] = *b"underpas";

/// Purpose of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Streams in both directions.
    Streams,
    /// The server tells what it has found in this run.
    Findings,
}

/// First message of a connection: all that both ends have to know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Hello {
    pub(super) purpose: Purpose,
    /// Number of the run that the connection belongs to: random, where the seed is chosen.
    pub(super) run: u64,
    pub(super) seed: u64,
    pub(super) connection: u64,
    pub(super) chunk_max: u64,
    pub(super) connection_max: u64,
    pub(super) stop_max: Duration,
    pub(super) hang_limit: Duration,
    pub(super) choices: Choices,
    /// Large chunks, default buffers, no pauses but those of a shape.
    pub(super) steady: bool,
    /// An end at any byte is as good as any.
    pub(super) may_be_cut: bool,
    pub(super) cql: bool,
    /// Somebody edits the frames on their way.
    pub(super) is_edited: bool,
}

impl Hello {
    pub(super) fn encode(&self) -> Vec<u8> {
        let flags = u64::from(self.cql)
            | u64::from(self.purpose == Purpose::Findings) << 1
            | u64::from(self.steady) << 2
            | u64::from(self.may_be_cut) << 3
            | u64::from(self.is_edited) << 4;
        let numbers = [
            flags,
            self.run,
            self.seed,
            self.connection,
            self.chunk_max,
            self.connection_max,
            self.stop_max.as_millis() as u64,
            self.hang_limit.as_millis() as u64,
            self.choices.bits(),
        ];
        let mut bytes = MAGIC.to_vec();
        bytes.extend(numbers.iter().flat_map(|n| n.to_le_bytes()));
        bytes.extend(u64::from(crc32fast::hash(&bytes)).to_le_bytes());
        bytes
    }

    /// `None` if it is none, or a damaged one.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let (body, sum) = bytes.split_at_checked(HELLO - 8)?;
        if !body.starts_with(&MAGIC) || sum != u64::from(crc32fast::hash(body)).to_le_bytes() {
            return None;
        }
        let (words, _) = body.as_chunks::<8>();
        let numbers: Vec<u64> = words.iter().map(|w| u64::from_le_bytes(*w)).collect();
        let &[
            _,
            flags,
            run,
            seed,
            connection,
            chunk_max,
            connection_max,
            stop_max,
            hang_limit,
            choices,
        ] = numbers.as_slice()
        else {
            return None;
        };
        let purpose = match flags & 2 {
            0 => Purpose::Streams,
            _ => Purpose::Findings,
        };
        Some(Self {
            purpose,
            run,
            seed,
            connection,
            chunk_max,
            connection_max,
            stop_max: Duration::from_millis(stop_max),
            hang_limit: Duration::from_millis(hang_limit),
            choices: Choices::from_bits(choices),
            steady: flags & 4 != 0,
            may_be_cut: flags & 8 != 0,
            cql: flags & 1 != 0,
            is_edited: flags & 16 != 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn survives_the_wire_but_no_flipped_bit() {
        let hello = Hello {
            purpose: Purpose::Findings,
            run: 1,
            seed: 2,
            connection: 3,
            chunk_max: 4,
            connection_max: 5,
            stop_max: Duration::from_millis(6),
            hang_limit: Duration::from_millis(7),
            choices: Choices::default(),
            steady: true,
            may_be_cut: true,
            cql: true,
            is_edited: true,
        };
        let mut bytes = hello.encode();
        assert_eq!(bytes.len(), HELLO);
        assert_eq!(Hello::decode(&bytes), Some(hello));
        for bit in 0..HELLO * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Hello::decode(&bytes), None, "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }
}
