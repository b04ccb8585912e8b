//! The client's side of a handshake.

use super::{Awaited, Handshake, Meaning, Stage, Uncounted};
use crate::extensions::Extensions;
use crate::fact::Fact;
use crate::flow::request::{self, read_statement};
use crate::session::{Claims, Unknowable, is_system_keyspace, plain_user};
use crate::text::statement::StatementKind;
use crate::wire::cursor::Cursor;
use crate::wire::header::{Flags, Header, Opcode};

/// How much of an AUTH_RESPONSE is looked at: a user and a password of
/// [`MAX_FACT_BYTES`](crate::MAX_FACT_BYTES) each, several times over.
const TOKEN_PREFIX_BYTES: usize = 4 << 10;

impl Handshake {
    /// How much of a body may tell something, as it was before compression.
    pub(super) fn wanted_of_request(&self, header: &Header) -> usize {
        match header.opcode {
            Some(Opcode::AuthResponse) => TOKEN_PREFIX_BYTES,
            _ if self.watches => 0,
            _ => request::wanted_bytes(header),
        }
    }

    pub(super) fn client_says(&mut self, header: &Header, prefix: &[u8]) -> Meaning {
        match (header.opcode, self.stage) {
            (Some(Opcode::AuthResponse), Stage::Authenticating | Stage::Established) => {
                self.log_in(header, prefix)
            }
            _ if self.watches => Meaning::Nothing,
            (Some(Opcode::Startup), Stage::Fresh) => {
                let body = behind_payload(header, prefix).unwrap_or_default();
                self.claims = Claims::read(body);
                self.extensions = Extensions::asked_for(body, self.offered.as_ref());
                self.awaited = Some(Awaited::Startup);
                Meaning::Nothing
            }
            (
                Some(Opcode::Query | Opcode::Prepare | Opcode::Execute | Opcode::Batch),
                Stage::Established,
            ) => self.statement(header, prefix),
            // Before they are accepted, no database takes any of these.
            (
                Some(
                    Opcode::Query
                    | Opcode::Prepare
                    | Opcode::Execute
                    | Opcode::Batch
                    | Opcode::Register
                    | Opcode::AuthResponse,
                ),
                Stage::Fresh | Stage::Authenticating,
            )
            | (Some(Opcode::Options | Opcode::Startup), Stage::Authenticating) => {
                Meaning::Ends(Unknowable::Early)
            }
            _ => Meaning::Nothing,
        }
    }

    /// An AUTH_RESPONSE. Its user counts when the database has let it in.
    fn log_in(&mut self, header: &Header, prefix: &[u8]) -> Meaning {
        let login = match behind_payload(header, prefix) {
            _ if self.extensions.unknown => Err(Unknowable::Extension),
            _ if header.is_compressed() => Err(Unknowable::CompressedBody),
            _ if header.length as usize > TOKEN_PREFIX_BYTES => Err(Unknowable::TooLong),
            Some(token) => plain_user(token),
            None => Err(Unknowable::Unreadable),
        };
        if self.watches {
            self.session.user = self.fact(Some(login));
            return Meaning::Tells;
        }
        self.login = Some(login);
        self.awaited = Some(Awaited::AuthResponse);
        Meaning::Nothing
    }

    /// Reads a statement. Questions that the database answers by itself, about itself, decide nothing;
    /// anything else is what the session is for.
    fn statement(&mut self, header: &Header, prefix: &[u8]) -> Meaning {
        if self.extensions.unknown {
            return self.keyspace_is(Err(Unknowable::Extension));
        }
        if header.is_compressed() {
            return self.keyspace_is(Err(Unknowable::CompressedBody));
        }
        let Some(found) = read_statement(&mut self.flow, header, prefix, &mut Uncounted) else {
            return self.keyspace_is(Err(Unknowable::Unreadable));
        };
        let Some(statement) = found.statement else {
            return self.keyspace_is(Err(match header.opcode {
                Some(Opcode::Execute | Opcode::Batch) => Unknowable::UnknownPreparedId,
                _ => Unknowable::Unreadable,
            }));
        };
        if found.may_name_keyspace {
            return self.keyspace_is(Err(Unknowable::Unreadable));
        }
        match found.prepares.unwrap_or(statement.kind) {
            StatementKind::Use if header.opcode == Some(Opcode::Prepare) => Meaning::Nothing,
            StatementKind::Use => {
                self.awaited = Some(Awaited::Use(header.stream));
                Meaning::Nothing
            }
            StatementKind::Describe => Meaning::Nothing,
            StatementKind::Unknown => self.keyspace_is(Err(Unknowable::Unreadable)),
            _ => match statement.keyspace.as_deref() {
                Some(keyspace) if is_system_keyspace(keyspace) => Meaning::Nothing,
                keyspace => self.keyspace_is(Ok(keyspace)),
            },
        }
    }

    /// The first one counts.
    pub(super) fn keyspace_is(&mut self, keyspace: Result<Option<&str>, Unknowable>) -> Meaning {
        if self.session.keyspace != Fact::Open {
            return Meaning::Nothing;
        }
        self.session.keyspace = match keyspace {
            Ok(Some(keyspace)) => Fact::Is(keyspace.into()),
            Ok(None) => Fact::Absent,
            Err(why) => {
                self.note(why);
                Fact::Unknowable
            }
        };
        Meaning::Tells
    }
}

/// The body behind a custom payload.
fn behind_payload<'b>(header: &Header, body: &'b [u8]) -> Option<&'b [u8]> {
    let mut body = Cursor::new(body);
    if header.flags.any(Flags::CUSTOM_PAYLOAD) {
        body.skip_bytes_map()?;
    }
    Some(body.rest())
}
