//! [`Handshake`]: reads the beginning of a flow, and says how far it may pass.
//!
//! It keeps no bytes: whoever does offers it, for each direction, what has not passed yet, and
//! passes on as much as [`Step`] says. So what it learns cannot depend on where bytes were cut:
//! a frame (v5: a segment) that may tell something is looked at when enough of it is there, and
//! until then none of it passes.
//!
//! While the answer to a STARTUP, an AUTH_RESPONSE or a USE is out, nothing of the client passes:
//! what the server makes of it is known before anything else reaches it, and a server that changes
//! its framing with its answer (v5) cannot be made to read other frames than were read here.
//!
//! Once it has told enough, [`watch`](Handshake::watch) has it look for log-ins alone: a client may log in again at
//! any time, and is another user then.
//!
//! `client` is what requests mean, `database` what responses do.

mod client;
mod database;

use crate::extensions::{Extensions, Offered};
use crate::fact::Fact;
use crate::flow::event::{Anomaly, Completed, Sink};
use crate::flow::lane::foreign_version;
use crate::flow::prepared::PreparedAt;
use crate::flow::state::{Flow, Stop};
use crate::session::{Claims, Session, Unknowable};
use crate::verdict::Undecodable;
use crate::wire::compress::{beginning, enough_for};
use crate::wire::compression::Compression;
use crate::wire::header::TLS_HANDSHAKE;
use crate::wire::header::{
    Flags, HEADER_BYTES, Header, Opcode, ProtocolVersion, RESPONSE_BIT, StreamId,
};
use crate::wire::segment;
use std::borrow::Cow;

/// The decision on the bytes that have not passed yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing passes before there are more of them.
    More,
    /// So many of them pass; at least one.
    Pass(usize),
    /// Nothing passes before a response did. Only requests wait.
    Wait,
    /// The frame that begins here told something. If the flow is to go on being read, so many bytes
    /// pass.
    Told(usize),
}

/// The way in which a client that is not let through is told so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// An answer now: bytes right behind what has passed to the client.
    Now(Vec<u8>),
    /// Once the response that is passing has passed.
    Later,
    /// Nothing: no words would be understood.
    Silence,
}

/// See the module.
#[derive(Debug)]
pub struct Handshake {
    session: Session,
    unknowable: Vec<Unknowable>,
    /// Why nothing more can become known.
    over: Option<Unknowable>,
    stage: Stage,
    awaited: Option<Awaited>,
    claims: Claims,
    /// The extensions that the server has offered. `None`: that was not seen.
    offered: Option<Offered>,
    /// The extensions that STARTUP has asked for.
    extensions: Extensions,
    login: Login,
    /// The version of the client's latest frame; of the accepted STARTUP, once one is.
    version: u8,
    /// Frames travel in segments from the next one on.
    segments: bool,
    /// The client takes a beta version, which v5 was before Cassandra 4: without segments. Until the first of these has come.
    may_be_beta: bool,
    requests: Lane,
    responses: Lane,
    told: Option<Told>,
    /// Only log-ins count any more.
    watches: bool,
    /// State by which statements are read: keyspace, prepared ids.
    flow: Flow,
}

/// The user who was let in, as far as the token tells.
type Login = Option<Result<Box<str>, Unknowable>>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Fresh,
    Authenticating,
    Established,
}

/// A request whose answer is out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Awaited {
    Startup,
    AuthResponse,
    Use(StreamId),
}

#[derive(Debug, Default)]
struct Lane {
    /// The direction's first frame has begun to pass.
    begun: bool,
    segmented: bool,
    /// Bytes of the frame that is passing which are still to come.
    left: usize,
}

/// The place of the latest frame that told something.
#[derive(Debug)]
struct Told {
    way: Way,
    stream: Option<StreamId>,
    segmented: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Requests,
    Responses,
}

/// The meaning of a frame to the handshake.
enum Meaning {
    Nothing,
    Tells,
    /// The frame tells that no more can become known.
    Ends(Unknowable),
}

impl Handshake {
    /// `prepared`: as for the flow's [`FlowDecoder`](crate::FlowDecoder).
    pub fn new(prepared: PreparedAt) -> Self {
        Self {
            session: Session::default(),
            unknowable: Vec::new(),
            over: None,
            stage: Stage::Fresh,
            awaited: None,
            claims: Claims::default(),
            offered: None,
            extensions: Extensions::default(),
            login: None,
            version: 0,
            segments: false,
            may_be_beta: false,
            requests: Lane::default(),
            responses: Lane::default(),
            told: None,
            watches: false,
            flow: Flow::new(prepared),
        }
    }

    /// From now on only requests are to be looked at, and only a log-in among them [tells](Step::Told): the session's user
    /// is the one whom it claims, whether or not the database takes it. Nothing waits.
    pub fn watch(&mut self) {
        self.watches = true;
        self.awaited = None;
    }

    /// Looks at what the client sent and what has not passed yet.
    pub fn requests(&mut self, held: &[u8]) -> Step {
        if self.requests.left == 0 && self.awaited.is_some() && self.over.is_none() {
            return match held {
                [] => Step::More,
                _ => Step::Wait,
            };
        }
        self.step(Way::Requests, held)
    }

    /// Looks at what the database sent and what has not passed yet.
    pub fn responses(&mut self, held: &[u8]) -> Step {
        self.step(Way::Responses, held)
    }

    /// The facts that are known.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// Why nothing more can become known, so that everything passes.
    pub fn over(&self) -> Option<Unknowable> {
        self.over
    }

    /// Whether reading ended because the client spoke before the database had let it in: a request for
    /// data, or more than one frame where the protocol has it wait. No driver does that, and the
    /// database answers such a request with an error.
    pub fn ended_before_login(&self) -> bool {
        self.stage != Stage::Established
            && matches!(
                self.over,
                Some(Unknowable::Early | Unknowable::Pipelined | Unknowable::Split)
            )
            && self
                .told
                .as_ref()
                .is_some_and(|told| told.way == Way::Requests)
    }

    /// Why one thing or another could not become known, each reason once.
    pub fn unknowable(&self) -> &[Unknowable] {
        &self.unknowable
    }

    /// An ERROR in place of what told last, or of its answer: `Unauthorized`
    /// (`native_protocol_v5.spec` §9). `message` is short.
    pub fn refusal(&self, message: &str) -> Refusal {
        let Some(told) = &self.told else {
            return Refusal::Silence;
        };
        let Some(stream) = told.stream else {
            return Refusal::Silence;
        };
        if told.way == Way::Requests && self.responses.left > 0 {
            return match self.over {
                None => Refusal::Later,
                // Where the response ends is not looked at any more.
                Some(_) => Refusal::Silence,
            };
        }
        let error = unauthorized(self.version, stream, message);
        Refusal::Now(match told.segmented {
            true => {
                let mut bytes = Vec::new();
                let compression = match self.is_lz4() {
                    true => Compression::Lz4,
                    false => Compression::None,
                };
                segment::encode(compression, &error, true, &mut bytes);
                bytes
            }
            false => error,
        })
    }

    fn step(&mut self, way: Way, held: &[u8]) -> Step {
        let Some(first) = held.first() else {
            return Step::More;
        };
        if self.over.is_some() {
            return Step::Pass(held.len());
        }
        let segments = self.segments;
        let lane = self.lane(way);
        if segments && lane.left == 0 {
            lane.segmented = true;
        }
        if lane.segmented {
            return self.segment(way, held);
        }
        if lane.left > 0 {
            let passing = lane.left.min(held.len());
            lane.left -= passing;
            return Step::Pass(passing);
        }
        self.bare(way, *first, held)
    }

    fn lane(&mut self, way: Way) -> &mut Lane {
        match way {
            Way::Requests => &mut self.requests,
            Way::Responses => &mut self.responses,
        }
    }

    /// A frame as it is.
    fn bare(&mut self, way: Way, first: u8, held: &[u8]) -> Step {
        // Before its header is there: a peer that speaks something else may say less.
        if let Err(why) = self.check_first_byte(way, first) {
            return self.end(way, None, why, held.len());
        }
        let Some((raw, body)) = held.split_first_chunk::<HEADER_BYTES>() else {
            return Step::More;
        };
        let header = match self.check_header(way, *raw) {
            Ok(header) => header,
            Err(why) => return self.end(way, None, why, held.len()),
        };
        let Some((plain, prefix)) = self.seen(way, &header, body) else {
            return Step::More;
        };
        let meaning = self.frame(way, &plain, &prefix);
        let bytes = header.frame_bytes() as usize;
        let passing = bytes.min(held.len());
        let lane = self.lane(way);
        lane.begun = true;
        lane.left = bytes - passing;
        match meaning {
            Meaning::Nothing => Step::Pass(passing),
            Meaning::Tells => self.tell(way, Some(header.stream), passing),
            Meaning::Ends(why) => self.end(way, Some(header.stream), why, passing),
        }
    }

    /// A segment, and the frames within it.
    fn segment(&mut self, way: Way, held: &[u8]) -> Step {
        let (mut at, mut expanded) = (0, Vec::new());
        let read = match self.is_lz4() {
            true => segment::in_place_lz4(held, &mut at, &mut expanded),
            false => segment::in_place(held, &mut at),
        };
        let segment = match read {
            Ok(Some(segment)) => segment,
            Ok(None) => return Step::More,
            Err(_) if self.may_be_beta => {
                return self.end(way, None, Unknowable::Version, held.len());
            }
            Err(_) => return self.end(way, None, Unknowable::Framing, held.len()),
        };
        self.may_be_beta = false;
        let lane = self.lane(way);
        let continued = lane.left.min(segment.payload.len());
        lane.left -= continued;
        let mut rest = segment.payload.get(continued..).unwrap_or_default();
        if continued > 0 && !rest.is_empty() {
            return self.end(way, None, Unknowable::Framing, at);
        }
        let mut told = None;
        while let Some(first) = rest.first() {
            if way == Way::Requests && self.awaited.is_some() {
                return self.end(way, told, Unknowable::Pipelined, at);
            }
            if let Err(why) = self.check_first_byte(way, *first) {
                return self.end(way, told, why, at);
            }
            let Some((raw, body)) = rest.split_first_chunk::<HEADER_BYTES>() else {
                return self.end(way, told, Unknowable::Split, at);
            };
            let header = match self.check_header(way, *raw) {
                Ok(header) => header,
                Err(why) => return self.end(way, told, why, at),
            };
            match self.framed(way, &header, body, told) {
                Meaning::Nothing => {}
                Meaning::Tells => told = Some(header.stream),
                Meaning::Ends(why) => return self.end(way, told.or(Some(header.stream)), why, at),
            }
            let bytes = header.frame_bytes() as usize;
            let here = bytes.min(rest.len());
            self.lane(way).left = bytes - here;
            rest = rest.get(here..).unwrap_or_default();
        }
        match told {
            None => Step::Pass(at),
            Some(_) => self.tell(way, told, at),
        }
    }

    /// A frame in a segment. Behind a request that has `told` something, only another log-in matters: nobody can tell as
    /// whom what stands between the two is done, unless they are one user's.
    fn framed(
        &mut self,
        way: Way,
        header: &Header,
        body: &[u8],
        told: Option<StreamId>,
    ) -> Meaning {
        if way == Way::Requests && told.is_some() {
            if header.opcode != Some(Opcode::AuthResponse) {
                return Meaning::Nothing;
            }
            let before = self.session.user.clone();
            let seen = self.seen(way, header, body).filter(|_| self.watches);
            let is_told = seen.is_some_and(|(plain, prefix)| {
                matches!(self.frame(way, &plain, &prefix), Meaning::Tells)
            });
            return match is_told && self.session.user == before {
                true => Meaning::Tells,
                false => Meaning::Ends(Unknowable::Pipelined),
            };
        }
        match self.seen(way, header, body) {
            Some((plain, prefix)) => self.frame(way, &plain, &prefix),
            None => Meaning::Ends(Unknowable::Split),
        }
    }

    fn tell(&mut self, way: Way, stream: Option<StreamId>, passing: usize) -> Step {
        // An answer to STARTUP comes as the STARTUP did; segments begin behind it.
        let segmented = match way {
            Way::Requests => self.segments,
            Way::Responses => self.responses.segmented,
        };
        self.told = Some(Told {
            way,
            stream,
            segmented,
        });
        Step::Told(passing)
    }

    /// Nothing more can become known.
    fn end(&mut self, way: Way, stream: Option<StreamId>, why: Unknowable, passing: usize) -> Step {
        self.over = Some(why);
        self.session.tls = Fact::Is(why == Unknowable::Tls);
        self.tell(way, stream, passing)
    }

    fn note(&mut self, why: Unknowable) {
        if !self.unknowable.contains(&why) {
            self.unknowable.push(why);
        }
    }

    /// A value that was sent, or not.
    fn fact(&mut self, claim: Option<Result<Box<str>, Unknowable>>) -> Fact<Box<str>> {
        match claim {
            Some(Ok(value)) => Fact::Is(value),
            Some(Err(why)) => {
                self.note(why);
                Fact::Unknowable
            }
            None => Fact::Absent,
        }
    }

    fn frame(&mut self, way: Way, header: &Header, prefix: &[u8]) -> Meaning {
        match way {
            Way::Requests => self.client_says(header, prefix),
            Way::Responses => self.database_says(header, prefix),
        }
    }

    /// Segments are LZ4's; there are none before a STARTUP was accepted.
    fn is_lz4(&self) -> bool {
        self.claims.compression == Fact::Is(Compression::Lz4)
    }

    /// The part of a body that may tell something, and the header that it would have without compression.
    /// An unreadable body gives no bytes and its own header. `None`: there is not enough of the body.
    fn seen<'b>(
        &self,
        way: Way,
        header: &Header,
        body: &'b [u8],
    ) -> Option<(Header, Cow<'b, [u8]>)> {
        let wanted = match way {
            Way::Requests => self.wanted_of_request(header),
            Way::Responses => self.wanted_of_response(header),
        };
        let length = header.length as usize;
        if !header.is_compressed() {
            let prefix = body.get(..wanted.min(length))?;
            return Some((*header, Cow::Borrowed(prefix)));
        }
        let carried = body.get(..enough_for(wanted, length).min(length))?;
        let mut plain = Vec::new();
        let is_whole = carried.len() == length;
        let agreed = &self.claims.compression;
        let read = (wanted > 0).then(|| beginning(agreed, carried, is_whole, wanted, &mut plain));
        Some(match read.flatten() {
            None => (*header, Cow::Borrowed(&[])),
            Some(length) => {
                let flags = header.flags.without(Flags::COMPRESSION);
                let header = Header {
                    flags,
                    length,
                    ..*header
                };
                (header, Cow::Owned(plain))
            }
        })
    }

    fn check_first_byte(&mut self, way: Way, first: u8) -> Result<(), Unknowable> {
        let in_first_frame = !self.lane(way).begun;
        if in_first_frame && first == TLS_HANDSHAKE {
            return Err(Unknowable::Tls);
        }
        let direction = match way {
            Way::Requests => 0,
            Way::Responses => RESPONSE_BIT,
        };
        if first & RESPONSE_BIT != direction {
            return Err(match in_first_frame {
                true => Unknowable::NotCql,
                false => Unknowable::Framing,
            });
        }
        let version = first & !RESPONSE_BIT;
        match ProtocolVersion::from_byte(version) {
            Some(_) => Ok(()),
            None => Err(match foreign_version(version, in_first_frame) {
                Stop::Undecodable(Undecodable::Version) => Unknowable::Version,
                Stop::Undecodable(_) => Unknowable::NotCql,
                Stop::Close(_) => Unknowable::Framing,
            }),
        }
    }

    fn check_header(&mut self, way: Way, raw: [u8; HEADER_BYTES]) -> Result<Header, Unknowable> {
        let in_first_frame = !self.lane(way).begun;
        let bad = match in_first_frame {
            true => Unknowable::NotCql,
            false => Unknowable::Framing,
        };
        let header = Header::read(raw).ok_or(bad)?;
        let accepted = self.stage != Stage::Fresh;
        let other_version = self.version != header.version;
        match way {
            Way::Requests => {
                let plausible = header.opcode.is_some() && !header.flags.any(Flags::RESERVED);
                if in_first_frame && !plausible {
                    return Err(Unknowable::NotCql);
                }
                if accepted && other_version {
                    return Err(Unknowable::Framing);
                }
                if !accepted {
                    self.may_be_beta = header.version == 5 && header.flags.any(Flags::BETA);
                }
                self.version = header.version;
            }
            // A server that does not speak the client's version says so in one of its own.
            Way::Responses if other_version => {
                if accepted || header.opcode != Some(Opcode::Error) {
                    return Err(Unknowable::Framing);
                }
            }
            Way::Responses => {}
        }
        Ok(header)
    }
}

/// An answer to the first header that a client has sent: `Unauthorized`. None: the header is not a
/// request's. `message` is short.
pub fn refuse_first(header: [u8; HEADER_BYTES], message: &str) -> Option<Vec<u8>> {
    let [version, ..] = header;
    let is_ours = (3..=5).contains(&version);
    let Header { stream, .. } = Header::read(header).filter(|h| is_ours && h.opcode.is_some())?;
    Some(unauthorized(version, stream, message))
}

/// §4.2.1: a code and a message.
fn unauthorized(version: u8, stream: StreamId, message: &str) -> Vec<u8> {
    const UNAUTHORIZED: i32 = 0x2100;
    const ERROR: u8 = 0x00;
    let message = message.as_bytes();
    let message = message.get(..usize::from(u16::MAX)).unwrap_or(message);
    let mut frame = vec![version | RESPONSE_BIT, 0];
    frame.extend(stream.0.to_be_bytes());
    frame.push(ERROR);
    frame.extend((6 + message.len() as u32).to_be_bytes());
    frame.extend(UNAUTHORIZED.to_be_bytes());
    frame.extend((message.len() as u16).to_be_bytes());
    frame.extend_from_slice(message);
    frame
}

/// A sink that ignores everything: the decoder counts it.
struct Uncounted;

impl Sink for Uncounted {
    fn completed(&mut self, _: &Completed<'_>) {}
    fn anomaly(&mut self, _: Anomaly) {}
}
