//! Changes CQL requests and responses as they pass: a pipeline of [`Transform`]s between a client and its
//! database. No I/O, no clock.
//!
//! An [`Editor`] is given every chunk of a flow before it is forwarded, and says what goes on in its place. It
//! holds back only frames that a transform wants to see, until they are whole. All others go on as they come,
//! however large.
//!
//! The files, in the order in which bytes meet them:
//!
//! 1. `editor`: both directions of a flow. `state`: what they share; `terms`, `login`, `opening`, `uses`: what
//!    was agreed on, who has logged in, how the flow began, which keyspace it is in.
//!    `editor/copies`: a flow of which only copies are read. `editor/rest`: one that another editor goes on with.
//! 2. `lane`, `segments`, `cutter`: one direction, cut into segments and frames; `output`: what goes on of a
//!    piece of bytes; `room`: how much may be held back.
//! 3. `request_editor`, `response_editor`: frames on their way through the pipeline; `awaited`: who wants to see
//!    which response; `streams`, `unpaired`: whether it can be told whose a response is.
//! 4. `transform`, `caller`, `outcome`, `log`, `note`: what a step is, what it is told and what it says.
//! 5. `request`, `layout`, `bound`, `copied`: what a step can read and change of a request. `response`, `rows`,
//!    `page`, `named`, `bindings`: the same of a response.
//! 6. `pacing`: requests that are slowed down. `suspended`, `resuming`: frames that wait for a decision from outside, and how they go on. `merging`, `merge`: EXECUTEs that go on as one
//!    BATCH, and its answer. `lookups`, `look_up`: texts of prepared statements, asked of the database.
//!    `incoming`: a connection that begins as a flow did, and is none.
//! 7. [`transforms`]: one file each. [`protect`]: encrypted columns, whose keys somebody else has. `sites`: where
//!    in a statement's text things stand.
//!
//! **Invariants.** A chunk or segment of which nothing has changed goes on byte for byte, is not copied, and
//! allocates nothing. A changed one is compressed, and put into segments, as the flow has negotiated. A request
//! that is refused does not reach the database; its client gets an ERROR on the same stream, between two
//! responses ([`Editor::answers`]). Memory is bounded whatever the peers send.
//!
//! **Boundary.** The wire format and the grammar are [`cql`]'s (`cql::wire`, `cql::text`). Threads, sockets and
//! clocks are the caller's: decisions from outside come back through a [`CompletionSink`].

#![forbid(unsafe_code)]

mod awaited;
mod bindings;
mod bound;
mod caller;
mod copied;
mod cutter;
mod edited;
mod editor;
mod incoming;
mod lane;
mod layout;
mod log;
mod login;
mod look_up;
mod lookups;
mod merge;
mod merging;
mod named;
mod note;
mod opening;
mod outcome;
mod output;
mod pacing;
mod page;
pub mod protect;
mod request;
mod request_editor;
mod response;
mod response_editor;
mod resuming;
mod room;
mod rows;
mod segments;
mod sites;
mod state;
mod streams;
mod suspended;
mod terms;
mod transform;
pub mod transforms;
mod unpaired;
mod uses;

pub use bindings::{Bindings, Spec};
pub use bound::{Bound, Change, Value};
pub use caller::Caller;
pub use copied::{Copied, NotCopied};
pub use cql::prepared_in;
pub use cql::wire::compress::{MAX_SEEN_BYTES, shrink};
pub use edited::{Edited, Unreadable};
pub use editor::{
    Editor,
    rest::{NotAtRest, SessionAtRest},
};
pub use incoming::{Came, Incoming, NotOne, error_of, in_segments_of, sets_keyspace};
pub use log::{Log, LookedUp, Unseen, Waited};
pub use lookups::{MAX_LOOKUPS, question_text};
pub use merging::NotMerged;
pub use named::Names;
pub use note::Note;
pub use opening::Opening;
pub use outcome::{Error, Outcome, Refused};
pub use page::Page;
pub use request::{Request, Statement};
pub use response::Response;
pub use room::Room;
pub use rows::{Cell, Column};
pub use suspended::{
    Carrier, Completion, CompletionSink, MAX_SUSPENDED, MAX_SUSPENDED_BYTES, Relayed, Resolution,
    Ticket,
};
pub use transform::{Copies, Pipeline, Spent, Transform, Unpaired};
