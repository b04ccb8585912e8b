//! [`NoAnswer`]: why a conversation is over.

use std::io;

use cassandra_protocol::frame::Version;
use thiserror::Error;

/// Why a conversation is over, or a question has no answer.
#[derive(Debug, Error)]
pub enum NoAnswer {
    /// The connection failed or was closed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The deadline has passed.
    #[error("no answer in time")]
    Late,
    /// The bytes are no response of the version that the conversation began in.
    #[error("it does not speak version {} of CQL's protocol", u8::from(*.0))]
    NotCql(Version),
    /// The bytes are no segment of protocol version 5, or one whose checksum is wrong.
    #[error("what it says is no segment")]
    NotASegment,
    /// An answer is longer than the caller takes.
    #[error("it says too much")]
    TooLong,
    /// The answer is on another stream than the question, or there was no question.
    #[error("it says something else than it was asked")]
    NotAsked,
    /// An answer's body is malformed, or cannot be decompressed.
    #[error("it answers by what cannot be read")]
    Unreadable,
    /// The database wants to know who asks, and nobody has said.
    #[error("it wants a log-in")]
    LoginWanted,
    /// The database has answered with an ERROR.
    #[error("{message}")]
    Refused {
        /// The error's code (`native_protocol_v5.spec` §9).
        code: i32,
        /// The error's text, at most 256 bytes of it, control characters escaped.
        message: String,
    },
    /// The answer has an opcode that does not answer this question.
    #[error("unexpected opcode {0:#04x}")]
    Unexpected(u8),
    /// `cassandra-protocol` has panicked on this answer; [`panics`](crate::panics) counts these.
    #[error("its answer has made the decoder panic")]
    Panicked,
}
