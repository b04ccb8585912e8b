//! The agent's own conversations with databases: it opens a connection, asks, and reads the answer.
//!
//! Health checks, the connections that `mirror` and `fold` open, and whoever wants rows of a database's own
//! tables use it. No byte of a client's flow passes through here.
//!
//! Requests and the bodies of answers are those of the crate `cassandra-protocol`. That crate panics on
//! hostile input, allocates what a length declares, and recurses as deep as a type is nested. So it is fenced:
//!
//! 1. `cql`'s `Incoming` cuts the bytes into whole frames, checks lengths and checksums, and takes none that is too long.
//! 2. `scan` walks the body of an answer: every length, count and depth in it is checked before the crate sees it.
//! 3. `guard` catches what panics nevertheless. That costs the conversation; [`panics`] counts it.
//!
//! From the inside out:
//!
//! - `request`: what is asked, and its bytes.
//! - `answer`, `scan`, `guard`: what is answered.
//! - `conversation`: requests and answers on one connection, as a function of bytes and time.
//! - `opening`: STARTUP, the log-in and USE, likewise.
//! - `probe`: whether a server speaks CQL at all.
//! - `client`: the sockets and the clock.
//!
//! **Invariants.** No byte that a database sends makes a caller panic, wait beyond its deadline, or hold more
//! memory than a fixed multiple of the largest answer that it takes. What is not `client` does no I/O and reads no clock.
//! **Boundary**: no flow depends on this crate; a bug in it can cost a conversation of the agent's own.

#![forbid(unsafe_code)]

mod answer;
mod client;
mod conversation;
#[cfg(any(test, fuzzing))]
pub mod fuzzed;
mod guard;
mod no_answer;
mod opening;
mod probe;
mod request;
mod scan;

pub use answer::{Answer, Outcome, Prepared, Rows};
pub use cassandra_protocol::{
    consistency::Consistency,
    frame::{
        Version,
        message_batch::{BatchQuery, BatchQuerySubj, BatchType, BodyReqBatch},
        message_result::ColType,
    },
    query::{QueryParams, QueryValues},
    types::{AsRustType, ByName, CBytesShort, list::List, rows::Row, value::Value},
};
pub use client::Client;
pub use conversation::{Conversation, MAX_ANSWER_BYTES};
pub use guard::panics;
pub use no_answer::NoAnswer;
pub use opening::{Hello, MAX_OPENING_BYTES, Opening};
pub use probe::{NotCql, probe};
pub use request::{Request, auth_response, startup};
