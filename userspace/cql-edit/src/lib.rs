//! Changes what passes: a pipeline of [`Transform`]s between a client and its database.
//!
//! An [`Editor`] is given every chunk of a flow before it is forwarded, and says what goes on in its
//! place. It keeps back only frames that a transform wants to see, until they are whole; all others go
//! on as they come, however large, and a chunk (v5: a segment) of which nothing has changed goes on byte
//! for byte. What has changed is compressed, and put into segments, as the flow has negotiated.
//!
//! A request that is refused does not reach the database; its client gets an ERROR on the same stream,
//! between two responses ([`Editor::answers`]).
//!
//! - `output`: what goes on of a piece of bytes; `room`: how much may be held back.
//! - `lane`, `cutter`, `segments`: one direction; where its frames and segments begin and end.
//! - `request_editor`, `response_editor`: what becomes of requests and of responses; `state`: what they share; `login`:
//!   who has logged in.
//! - `layout`, `request`, `bound`: what is where in a request, and how it is changed; `response`, `rows`,
//!   `named`, `bindings`.
//! - `copied`: what a request asks, for another database; `page`: rows, to be held against others.
//! - `merging`: EXECUTEs that become one BATCH, and its answer that becomes theirs.
//! - `lookups`: what was prepared where nobody looked, asked of the database.
//! - `suspended`: what waits for an answer from outside.
//! - `opening`: how a flow has begun; `incoming`: a connection that begins in the same way, and is no flow.
//! - `transform`: what a transform is.

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
mod page;
pub mod protect;
mod request;
mod request_editor;
mod response;
mod response_editor;
mod room;
mod rows;
mod segments;
mod sites;
mod state;
mod suspended;
mod terms;
mod transform;
pub mod transforms;
mod uses;

pub use bindings::{Bindings, Spec};
pub use bound::{Bound, Change, Value};
pub use caller::Caller;
pub use copied::{Copied, NotCopied};
pub use cql::wire::compress::{MAX_SEEN_BYTES, shrink};
pub use edited::{Edited, Unreadable};
pub use editor::Editor;
pub use incoming::{Came, Incoming, NotOne, error_of, in_segments_of, sets_keyspace};
pub use log::{Log, LookedUp, Unseen, Waited};
pub use lookups::MAX_LOOKUPS;
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
pub use transform::{Pipeline, Transform};
