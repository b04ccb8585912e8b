//! [`Opening`]: STARTUP, the log-in and USE, as a function of what is answered.

use std::time::Instant;

use cassandra_protocol::frame::{Opcode, Version};
use cql::Compression;

use crate::{Answer, Conversation, NoAnswer, Request};

/// The longest answer before a connection is in use, in bytes: each is a word or a sentence.
pub const MAX_OPENING_BYTES: usize = 64 << 10;

/// The words that a conversation begins with.
#[derive(Clone, Copy)]
pub struct Hello<'h> {
    /// The version of all of it.
    pub version: Version,
    /// The compression that `startup` asks for.
    pub compression: Compression,
    /// The body of the STARTUP.
    pub startup: &'h [u8],
    /// The body of the AUTH_RESPONSE, if the database wants one.
    pub auth_response: Option<&'h [u8]>,
    /// The keyspace that the connection is to be in.
    pub keyspace: Option<&'h str>,
}

/// A conversation that begins: tells what is to be asked next.
pub struct Opening<'h> {
    hello: &'h Hello<'h>,
    asked: Asked,
}

/// The request that is out.
enum Asked {
    Startup,
    Login,
    Keyspace,
}

impl<'h> Opening<'h> {
    /// Begins an opening, whose conversation has the STARTUP to send.
    pub fn begin(hello: &'h Hello<'h>, until: Instant) -> (Self, Conversation) {
        let mut conversation =
            Conversation::new(hello.version, hello.compression, MAX_OPENING_BYTES);
        conversation.ask(&Request::Startup(hello.startup), until);
        let opening = Self {
            hello,
            asked: Asked::Startup,
        };
        (opening, conversation)
    }

    /// Takes the answer to what is out, and asks what comes next. Gives whether the connection is open.
    ///
    /// # Errors
    /// The database does not let it in.
    pub fn answered(
        &mut self,
        answer: Answer,
        conversation: &mut Conversation,
        until: Instant,
    ) -> Result<bool, NoAnswer> {
        match self.asked {
            Asked::Startup if answer.opcode() == Opcode::Authenticate => {
                let body = self.hello.auth_response.ok_or(NoAnswer::LoginWanted)?;
                conversation.ask(&Request::AuthResponse(body), until);
                self.asked = Asked::Login;
                return Ok(false);
            }
            Asked::Startup => answer.expect(Opcode::Ready)?,
            Asked::Login => answer.expect(Opcode::AuthSuccess)?,
            Asked::Keyspace => {
                answer.expect(Opcode::Result)?;
                return Ok(true);
            }
        };
        let Some(keyspace) = self.hello.keyspace else {
            return Ok(true);
        };
        let text = format!("USE \"{}\"", keyspace.replace('"', "\"\""));
        conversation.ask(&Request::Query(&text), until);
        self.asked = Asked::Keyspace;
        Ok(false)
    }
}
