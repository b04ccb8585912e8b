//! How a flow's connection to its database has begun, for a step that begins another one in the same way.

use std::fmt;
use std::sync::Arc;

use zeroize::Zeroizing;

use cql::Compression;
use cql::plain_user;
use cql::wire::{Flags, Header};
use cql::{Opcode, StreamId};

/// See the module. **Invariant**: the database has accepted it, as it stands here.
#[derive(Clone, PartialEq, Eq)]
pub struct Opening {
    /// 3, 4 or 5.
    pub version: u8,
    /// The compression that STARTUP has asked for.
    pub compression: Compression,
    /// STARTUP's body.
    pub startup: Box<[u8]>,
    /// The body of the one AUTH_RESPONSE, where the database wanted one: SASL PLAIN, so there is a password in it.
    pub token: Option<Zeroizing<Vec<u8>>>,
}

impl fmt::Debug for Opening {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut opening = f.debug_struct("Opening");
        opening.field("version", &self.version);
        opening.field("compression", &self.compression);
        opening.field("logs_in", &self.token.is_some());
        opening.finish_non_exhaustive()
    }
}

/// The state of a flow's handshake, as far as it could be repeated.
#[derive(Debug, Default)]
pub(crate) enum Handshake {
    /// The handshake has not begun, or nobody wants to know it.
    #[default]
    Unknown,
    /// A STARTUP is out, with this body.
    Begun(Box<[u8]>),
    /// The database wants to know who it is.
    Asked(Box<[u8]>),
    /// A token is out on this stream.
    Told(Opening, StreamId),
    Done(Arc<Opening>),
    /// The handshake could not be repeated: it took more than a STARTUP and one token, or those came
    /// with more than their bodies.
    Otherwise,
}

impl Handshake {
    /// The opening of a handshake that is done, and can be repeated.
    pub(crate) fn opening(&mut self) -> Option<&mut Arc<Opening>> {
        match self {
            Self::Done(opening) => Some(opening),
            _ => None,
        }
    }

    /// A STARTUP goes out.
    pub(crate) fn starts(&mut self, header: &Header, body: &[u8]) {
        *self = match header.flags.0 {
            0 => Self::Begun(body.into()),
            _ => Self::Otherwise,
        };
    }

    /// An AUTH_RESPONSE goes out. `body`: without compression; `None` of one that is too long to be seen, or cannot be
    /// expanded.
    pub(crate) fn tells(&mut self, header: &Header, body: Option<&[u8]>, compression: Compression) {
        let is_bare = header.flags.0 & !Flags::COMPRESSION.0 == 0;
        let can_be_repeated = is_bare && body.is_some_and(|b| plain_user(b).is_ok());
        *self = match (std::mem::take(self), body) {
            (Self::Asked(startup), Some(body)) if can_be_repeated => {
                let opening = Opening {
                    version: header.version,
                    compression,
                    startup,
                    token: Some(Zeroizing::new(body.to_vec())),
                };
                Self::Told(opening, header.stream)
            }
            (Self::Unknown, _) => Self::Unknown,
            _ => Self::Otherwise,
        };
    }

    /// The answer to a STARTUP passes, which is accepted.
    pub(crate) fn accept(&mut self, header: &Header, compression: Compression) {
        *self = match (std::mem::take(self), header.opcode) {
            (Self::Begun(startup), Some(Opcode::Ready)) => Self::Done(Arc::new(Opening {
                version: header.version,
                compression,
                startup,
                token: None,
            })),
            (Self::Begun(startup), _) => Self::Asked(startup),
            (Self::Unknown, _) => Self::Unknown,
            _ => Self::Otherwise,
        };
    }

    /// Another response passes.
    pub(crate) fn see(&mut self, header: &Header) {
        let Self::Told(_, stream) = self else {
            return;
        };
        if *stream != header.stream {
            return;
        }
        *self = match (std::mem::take(self), header.opcode) {
            (Self::Told(opening, _), Some(Opcode::AuthSuccess)) => Self::Done(Arc::new(opening)),
            // The client may try another.
            (Self::Told(opening, _), Some(Opcode::Error)) => Self::Asked(opening.startup),
            _ => Self::Otherwise,
        };
    }
}
