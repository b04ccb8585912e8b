//! [`Login`]: which user has logged in. A client's claim counts when the database has accepted it.

use crate::caller::Caller;
use cql::plain_user;
use cql::wire::Header;
use cql::{Opcode, StreamId};

/// A SASL token of PLAIN is two names and a password.
pub(crate) const MAX_TOKEN_BYTES: u32 = 64 << 10;

/// The state of a log-in.
#[derive(Debug, Default)]
pub(crate) enum Login {
    #[default]
    Idle,
    /// A token is out, with this claim if it could be read.
    Out(StreamId, Option<Box<str>>),
    /// Several were out at once, as no driver does it: which one the database took cannot be told.
    Ambiguous,
}

impl Login {
    /// An AUTH_RESPONSE's body, without compression.
    pub(crate) fn goes_out(&mut self, stream: StreamId, body: &[u8]) {
        *self = match self {
            Self::Idle => Self::Out(stream, plain_user(body).ok()),
            Self::Out(..) | Self::Ambiguous => Self::Ambiguous,
        };
    }

    /// A response passes; `caller` is told who has logged in.
    pub(crate) fn see(&mut self, header: &Header, caller: &mut Caller) {
        caller.logged_in |= header.opcode == Some(Opcode::AuthSuccess);
        let Self::Out(stream, user) = self else {
            return;
        };
        if *stream == header.stream {
            if header.opcode == Some(Opcode::AuthSuccess) {
                caller.user = user.take().map(String::from);
            }
            *self = Self::Idle;
        }
    }
}
