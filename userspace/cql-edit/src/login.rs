//! Who has logged in: what a client claims counts when the database says that it is so.

use crate::talk::Talk;
use cql::plain_user;
use cql::wire::Header;
use cql::{Opcode, StreamId};

/// A SASL token of PLAIN is two names and a password.
pub(crate) const MAX_TOKEN_BYTES: u32 = 64 << 10;

/// Where a log-in stands.
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
}

impl Talk {
    /// A response passes.
    pub(crate) fn logs_in(&mut self, header: &Header) {
        self.caller.logged_in |= header.opcode == Some(Opcode::AuthSuccess);
        let Login::Out(stream, user) = &mut self.login else {
            return;
        };
        if *stream == header.stream {
            if header.opcode == Some(Opcode::AuthSuccess) {
                self.caller.user = user.take().map(String::from);
            }
            self.login = Login::Idle;
        }
    }
}
