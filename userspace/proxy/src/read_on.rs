//! How a flow is read on by another agent: its state when nothing of it is under way.

#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzed;

use std::os::fd::OwnedFd;

use cql::{
    Compression, Extensions, FramePosition, Framing, NoPosition, POSITION_HEADER_BYTES, Unread,
};
use cql_edit::SessionAtRest;
use flow::Stays;
use serde::{Deserialize, Serialize};
use steps::WhoseFacts;
use tokio::sync::oneshot;

use super::keeper::FlowSnapshot;

/// The format of a flow that is handed over. An agent that reads another one is given none.
pub const FLOW_FORMAT: u32 = 1;

/// The most bytes of a flow as it is written down: facts and names are at most 256 bytes each. Inside a message it may take
/// twice as many.
const MAX_HANDED_BYTES: usize = 12 << 10;

/// The longest name of a keyspace: one that is longer is none (`SchemaConstants.NAME_LENGTH` of Cassandra has 222).
const MAX_KEYSPACE_BYTES: usize = 256;

/// The reason why a flow is not handed over.
#[derive(Debug)]
pub(super) enum NotHanded {
    /// Not now, and maybe later.
    NotYet,
    /// Only this process can go on with it.
    Stays(Stays),
}

/// A flow's state when nothing of it is under way.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct HandedFlow {
    pub(super) flow: FlowSnapshot,
    pub(super) reading: ReadOn,
}

/// How a flow is read on.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct ReadOn {
    /// Whether it is decoded.
    decoded: bool,
    /// Whether its client has begun with TLS, which passes through.
    #[serde(default)]
    pub(super) tls: bool,
    /// The positions in requests and responses. None: nobody knows them.
    positions: Option<[Position; 2]>,
    compression: Option<u8>,
    /// Whether there are ids of metadata, and whether there are extensions that are not known.
    extensions: Option<(bool, bool)>,
    pub(super) keyspace: Option<String>,
    /// Facts of the client, of a flow that reporters follow.
    pub(super) whose: Option<WhoseFacts>,
    /// The session of a flow that is edited.
    pub(super) session: Option<SessionAtRest>,
}

/// See [`FramePosition`].
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Position {
    segments: bool,
    first: u8,
    left: u32,
    frame_left: u32,
    have: u8,
    header: [u8; POSITION_HEADER_BYTES],
}

const COMPRESSIONS: [Compression; 3] = [Compression::None, Compression::Lz4, Compression::Snappy];

impl ReadOn {
    /// Describes a flow that is relayed.
    pub(super) fn unread(unread: Result<Unread, NoPosition>) -> Self {
        let told = unread.ok().map(|unread| Self::told(&unread));
        told.unwrap_or(Self {
            decoded: false,
            tls: false,
            positions: None,
            compression: None,
            extensions: None,
            keyspace: None,
            whose: None,
            session: None,
        })
    }

    /// Describes a flow that is decoded.
    pub(super) fn decoded(
        unread: &Unread,
        keyspace: Option<&str>,
        whose: Option<WhoseFacts>,
        session: Option<SessionAtRest>,
    ) -> Self {
        let keyspace = keyspace.filter(|name| name.len() <= MAX_KEYSPACE_BYTES);
        Self {
            decoded: true,
            keyspace: keyspace.map(str::to_owned),
            whose,
            session,
            ..Self::told(unread)
        }
    }

    fn told(unread: &Unread) -> Self {
        let number = |one| COMPRESSIONS.iter().position(|known| *known == one);
        let extensions = unread.extensions();
        Self {
            decoded: false,
            tls: false,
            positions: Some([unread.requests, unread.responses].map(Position::of)),
            compression: unread
                .compression()
                .and_then(number)
                .map(|number| number as u8),
            extensions: extensions.map(|known| (known.metadata_id, known.unknown)),
            keyspace: None,
            whose: None,
            session: None,
        }
    }

    /// Whether the flow is decoded.
    pub(super) fn is_decoded(&self) -> bool {
        self.decoded
    }

    /// Whether it is edited.
    pub(super) fn is_edited(&self) -> bool {
        self.session.is_some()
    }

    /// The positions from which it is read on.
    ///
    /// # Errors
    /// Nobody knows them, or they are none.
    pub(super) fn positions(&self) -> Result<Unread, NoPosition> {
        let [requests, responses] = self.positions.ok_or(NoPosition::Framing)?;
        let compression = match self.compression {
            None => None,
            Some(number) => {
                let known = COMPRESSIONS.get(usize::from(number)).copied();
                Some(known.ok_or(NoPosition::Compressed)?)
            }
        };
        let extensions = self.extensions.map(|(metadata_id, unknown)| Extensions {
            metadata_id,
            unknown,
        });
        Unread::told(
            requests.position(),
            responses.position(),
            compression,
            extensions,
        )
    }
}

impl Position {
    fn of(position: FramePosition) -> Self {
        Self {
            segments: position.framing == Framing::Segments,
            first: position.first,
            left: position.left,
            frame_left: position.frame_left,
            have: position.have,
            header: position.header,
        }
    }

    fn position(self) -> FramePosition {
        FramePosition {
            framing: match self.segments {
                true => Framing::Segments,
                false => Framing::Frames,
            },
            first: self.first,
            left: self.left,
            frame_left: self.frame_left,
            have: self.have,
            header: self.header,
        }
    }
}

/// A flow between two agents.
pub struct Handed {
    /// The state of the flow.
    pub flow: SealedFlow,
    /// The agent's end of the client's connection.
    pub accepted: OwnedFd,
    /// The agent's end of the database's connection.
    pub dialled: OwnedFd,
    /// To the one that hands it over: whether it was taken, by a sender that is told when the other one knows. Where nothing
    /// is answered, that one may have it, and this process ends.
    pub answer: oneshot::Sender<Result<oneshot::Sender<()>, NotTaken>>,
}

/// Why an agent has not taken a flow.
#[derive(Debug)]
pub enum NotTaken {
    /// The agent says why. It would not take it later either.
    Declined(String),
    /// The agent may take it later.
    NotNow(String),
    /// The agent is gone.
    Gone,
}

/// A flow as it is written down for another process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SealedFlow {
    format: u32,
    bytes: usize,
    crc32: u32,
    flow: String,
}

impl HandedFlow {
    /// Writes the flow down. None: it is longer than a message.
    #[must_use]
    pub fn sealed(&self) -> Option<SealedFlow> {
        let flow = serde_json::to_string(self).ok()?;
        (flow.len() <= MAX_HANDED_BYTES).then(|| SealedFlow {
            format: FLOW_FORMAT,
            bytes: flow.len(),
            crc32: crc32fast::hash(flow.as_bytes()),
            flow,
        })
    }
}

impl SealedFlow {
    /// Reads the flow.
    ///
    /// # Errors
    /// The text is of another format, has been damaged, or is no flow.
    pub fn open(&self) -> Result<HandedFlow, String> {
        if self.format != FLOW_FORMAT {
            return Err(format!(
                "format {}, where {FLOW_FORMAT} is known",
                self.format
            ));
        }
        let is_whole = self.bytes == self.flow.len() && self.bytes <= MAX_HANDED_BYTES;
        if !is_whole || crc32fast::hash(self.flow.as_bytes()) != self.crc32 {
            return Err("what is said of the flow is damaged".to_owned());
        }
        serde_json::from_str(&self.flow).map_err(|why| why.to_string())
    }
}

#[cfg(test)]
mod tests {
    use dataplane::{ClientAddr, OrigDst, Process};
    use flow::Flow;
    use policy::RuleName;
    use proptest::prelude::*;

    use super::*;

    fn handed(reading: ReadOn) -> HandedFlow {
        let flow = Flow::begin(
            7,
            ClientAddr::new(([127, 0, 0, 1], 4000).into()),
            Process::elsewhere(),
            OrigDst::new(([127, 0, 0, 1], 9042).into()),
            RuleName::new("a \"rule\" \n ü"),
        );
        HandedFlow {
            flow: FlowSnapshot::of_carried(&flow, 1),
            reading,
        }
    }

    fn position() -> impl Strategy<Value = Position> {
        let header = proptest::array::uniform15(any::<u8>());
        let first = prop_oneof![Just(4_u8), Just(0x84), Just(5), Just(0x85), any::<u8>()];
        (
            any::<bool>(),
            first,
            any::<u32>(),
            0..3_u32,
            0..20_u8,
            header,
        )
            .prop_map(
                |(segments, first, left, frame_left, have, header)| Position {
                    segments,
                    first,
                    left,
                    frame_left,
                    have,
                    header,
                },
            )
    }

    fn reading() -> impl Strategy<Value = ReadOn> {
        let positions = proptest::option::of([position(), position()]);
        let extensions = proptest::option::of(any::<(bool, bool)>());
        let compression = proptest::option::of(0..5_u8);
        let rest = (any::<bool>(), compression, extensions);
        (positions, rest, any::<Option<String>>()).prop_map(
            |(positions, (decoded, compression, extensions), keyspace)| ReadOn {
                decoded,
                tls: false,
                positions,
                compression,
                extensions,
                keyspace,
                whose: None,
                session: None,
            },
        )
    }

    /// The flow that is read from these bytes, as it would be written down.
    fn read(bytes: &[u8]) -> Result<String, String> {
        let sealed: SealedFlow = serde_json::from_slice(bytes).map_err(|why| why.to_string())?;
        let flow = sealed.open()?;
        serde_json::to_string(&flow).map_err(|why| why.to_string())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn what_is_damaged_is_no_flow(reading in reading(), at in any::<prop::sample::Index>(), bit in 0..8_u8) {
            let flow = handed(reading);
            let Some(sealed) = flow.sealed() else {
                return Ok(());
            };
            let bytes = serde_json::to_vec(&sealed).unwrap();
            let whole = read(&bytes).unwrap();
            let at = at.index(bytes.len());
            prop_assert!(read(&bytes[..at]).is_err());
            let mut flipped = bytes.clone();
            flipped[at] ^= 1_u8 << bit;
            // A digit of `\u001f` may be of either case.
            if let Ok(same) = read(&flipped) {
                prop_assert_eq!(same, whole);
            }
        }

        /// Positions of a whole text may be any.
        #[test]
        fn any_positions_are_read_from_or_none(
            reading in reading(),
            bytes in proptest::collection::vec(any::<u8>(), 0..300),
        ) {
            fuzzed::reads_on(&reading, &bytes);
        }
    }

    /// A flow with all of its fields, as [`FLOW_FORMAT`] has it. Change it only together with that number: an agent that reads a flow of
    /// another format by this one's fields goes on with it in a wrong way.
    const SEALED: &str = include_str!("read_on/flow.json");

    #[test]
    fn a_flow_is_that_of_its_format() {
        assert_eq!(FLOW_FORMAT, 1);
        let line = SEALED.trim_end();
        assert!(!line.contains("null"), "each field is there");
        let flow = serde_json::from_str::<SealedFlow>(line).unwrap().open();
        let again = flow.unwrap().sealed().unwrap();
        assert_eq!(serde_json::to_string(&again).unwrap(), line);
    }

    #[test]
    fn another_format_is_not_read_and_too_long_a_flow_not_written() {
        let nothing = || ReadOn::unread(Err(NoPosition::Handshake));
        let mut sealed = handed(nothing()).sealed().unwrap();
        sealed.format += 1;
        assert_eq!(sealed.open().unwrap_err(), "format 2, where 1 is known");
        let mut long = nothing();
        long.keyspace = Some("k".repeat(MAX_HANDED_BYTES));
        assert!(handed(long).sealed().is_none());
    }
}
