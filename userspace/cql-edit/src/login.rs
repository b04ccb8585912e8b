//! [`Login`]: which user has logged in. A client's claim counts when the database has accepted it.

use crate::caller::Caller;
use cql::plain_user;
use cql::wire::Header;
use cql::{Opcode, StreamId};

/// A SASL token of PLAIN is two names and a password.
pub(crate) const MAX_TOKEN_BYTES: u32 = 64 << 10;

/// The state of a log-in. A client may log in again at any time: the database takes it for another user from then on,
/// or goes on with the former one if it refuses.
#[derive(Debug, Default)]
pub(crate) enum Login {
    #[default]
    Idle,
    /// A token is out. Who asks in the meantime cannot be told.
    Out {
        stream: StreamId,
        /// The claim, if it could be read.
        claim: Option<Box<str>>,
        /// The user until now.
        before: Option<String>,
    },
    /// Several were out at once, as no driver does it: which one the database took cannot be told.
    Ambiguous,
}

impl Login {
    /// An AUTH_RESPONSE goes out. `body`: without compression, and nothing of one that cannot be read.
    pub(crate) fn goes_out(&mut self, stream: StreamId, body: &[u8], caller: &mut Caller) {
        let before = caller.user.take();
        *self = match self {
            Self::Idle => Self::Out {
                stream,
                claim: plain_user(body).ok(),
                before,
            },
            Self::Out { .. } | Self::Ambiguous => Self::Ambiguous,
        };
    }

    /// A response passes; `caller` is told who has logged in. `is_paired`: it can be told whose response it is.
    pub(crate) fn see(&mut self, header: &Header, is_paired: bool, caller: &mut Caller) {
        let succeeds = header.opcode == Some(Opcode::AuthSuccess);
        caller.logged_in |= succeeds;
        match self {
            Self::Out {
                stream,
                claim,
                before,
            } if *stream == header.stream => {
                // Only a token is answered by success; anything else may be another request's.
                if header.opcode == Some(Opcode::Event) || !is_paired && !succeeds {
                    return;
                }
                caller.user = match header.opcode {
                    Some(Opcode::AuthSuccess) => claim.take().map(String::from),
                    Some(Opcode::Error) => before.take(),
                    // The database wants to know more.
                    _ => None,
                };
                *self = Self::Idle;
            }
            // By a token that was not seen.
            _ if succeeds => caller.user = None,
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(stream: i16, opcode: u8) -> Header {
        let [high, low] = stream.to_be_bytes();
        Header::read([0x84, 0, high, low, opcode, 0, 0, 0, 0]).unwrap()
    }

    const SUCCESS: u8 = 0x10;
    const ERROR: u8 = 0;

    #[test]
    fn the_user_is_whom_the_database_took_last() {
        let token = |user: &str| [b"\0\0\0\x05\0".as_slice(), user.as_bytes(), b"\0p"].concat();
        let (mut login, mut caller) = (Login::default(), Caller::default());
        for (user, opcode, expected) in [
            ("ann", SUCCESS, "ann"),
            ("bob", SUCCESS, "bob"),
            ("eve", ERROR, "bob"),
        ] {
            login.goes_out(StreamId(1), &token(user), &mut caller);
            assert_eq!(caller.user, None, "nobody knows");
            login.see(&answer(1, opcode), true, &mut caller);
            assert_eq!(caller.user.as_deref(), Some(expected));
        }
        // An error that may be another request's tells nothing; success does.
        login.goes_out(StreamId(1), &token("dan"), &mut caller);
        login.see(&answer(1, ERROR), false, &mut caller);
        assert_eq!(caller.user, None);
        login.see(&answer(1, SUCCESS), false, &mut caller);
        assert_eq!(caller.user.as_deref(), Some("dan"));
        // Of two at once nobody can tell.
        login.goes_out(StreamId(1), &token("bob"), &mut caller);
        login.goes_out(StreamId(2), &token("eve"), &mut caller);
        login.see(&answer(1, SUCCESS), true, &mut caller);
        assert_eq!((caller.user, caller.logged_in), (None, true));
    }
}
