//! [`Flow`]: what both directions of a flow know, and why decoding stops.

use crate::extensions::{Extensions, Offered};
use crate::fact::Fact;
use crate::flow::details::Detailing;
use crate::flow::event::ErrorCode;
use crate::flow::pending::{InFlight, Pending};
use crate::flow::prepared::{PreparedAt, PreparedCache, Preparing};
use crate::text::statement::Statements;
use crate::verdict::{CloseReason, Undecodable, Verdict};
use crate::wire::compress::Recognised;
use crate::wire::compression::Compression;
use crate::wire::header::StreamId;

/// The state of a flow that both directions share.
#[derive(Debug)]
pub(crate) struct Flow {
    /// The version of the client's latest frame.
    pub(crate) version: Option<u8>,
    /// READY or AUTHENTICATE answered a STARTUP: the version is settled.
    pub(crate) accepted: bool,
    /// Both directions travel in segments, from their next frame on.
    pub(crate) segmented: bool,
    /// The client takes a beta version, which v5 was before Cassandra 4: without segments. Until the first of these has come.
    pub(crate) may_be_beta: bool,
    /// The compression that STARTUP asks for; [`Fact::Absent`] if it is not known or could not be read,
    /// and [`Fact::Open`] if the STARTUP was not seen.
    pub(crate) compression: Fact<Compression>,
    /// The expanded body of the frame at hand.
    pub(crate) plain: Vec<u8>,
    /// The extensions that STARTUP has asked for.
    pub(crate) extensions: Extensions,
    /// The extensions that the server has offered; `None`: that was not seen.
    pub(crate) offered: Option<Offered>,
    pub(crate) keyspace: Option<Box<str>>,
    pub(crate) pending: Pending,
    /// The request that is passing, if its response cannot be told from others.
    pub(crate) unpaired: Option<(StreamId, InFlight)>,
    /// STARTUPs without an answer. The database takes the first of them, so only that one is read.
    pub(crate) startups: u8,
    /// The request whose response is passing.
    pub(crate) answering: Option<Answering>,
    pub(crate) statements: Statements,
    pub(crate) prepared: PreparedCache,
    pub(crate) preparing: Preparing,
    /// Not decoded from its beginning on: of some responses the request was not seen.
    pub(crate) joined: bool,
    /// The compression of bodies, where nobody has heard it.
    pub(crate) recognised: Recognised,
    /// Nobody has seen which extensions the flow began with.
    pub(crate) has_unseen_startup: bool,
    /// For a sink that asks.
    pub(crate) detailing: Option<Box<Detailing>>,
}

/// A response that is passing, and its request.
#[derive(Debug)]
pub(crate) struct Answering {
    pub(crate) request: InFlight,
    pub(crate) error: Option<ErrorCode>,
}

impl Flow {
    pub(crate) fn new(prepared: PreparedAt) -> Self {
        Self {
            version: None,
            accepted: false,
            segmented: false,
            may_be_beta: false,
            compression: Fact::Is(Compression::None),
            plain: Vec::new(),
            extensions: Extensions::default(),
            offered: None,
            keyspace: None,
            pending: Pending::default(),
            unpaired: None,
            startups: 0,
            answering: None,
            statements: Statements::default(),
            prepared: PreparedCache::new(prepared),
            preparing: Preparing::default(),
            joined: false,
            recognised: Recognised::default(),
            has_unseen_startup: false,
            detailing: None,
        }
    }

    /// The request on `stream` whose body is passing.
    #[inline]
    pub(crate) fn passing(&mut self, stream: StreamId) -> Option<&mut InFlight> {
        match &mut self.unpaired {
            None => self.pending.get_mut(stream),
            unpaired => unpaired.as_mut().map(|(_, request)| request),
        }
    }

    /// Made when it is first asked for.
    pub(crate) fn detailing(&mut self) -> &mut Detailing {
        self.detailing.get_or_insert_default()
    }
}

/// Decoding cannot go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    Undecodable(Undecodable),
    Close(CloseReason),
}

impl Stop {
    pub(crate) fn verdict(self, keep: usize) -> Verdict {
        match self {
            Self::Undecodable(reason) => Verdict::Undecodable(reason),
            Self::Close(reason) => Verdict::Close { keep, reason },
        }
    }
}
