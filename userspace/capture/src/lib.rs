//! Requests of flows in a file (`underpass capture`), for another time and another database (`underpass replay`).
//!
//! - `request`: a request read to its end: statements, values, parameters.
//! - `mask`: a statement's text with other literals of the same types and lengths.
//! - `record`: the lines of the file. `value`: a bound value in it.
//! - `file`: lines as they are written, and read by whoever trusts none of them.
//!
//! A file has a line of JSON for each thing: a [`Header`], [`Record`]s in the order of their responses, [`Missed`]s, and an
//! [`End`] without which it was cut off.
//!
//! **Invariant**: of a capture without values no byte of a literal or of a bound value is in the file, nor of a word that
//! stands where the grammar has a value. What stands in its place has the type and the length, and the masked text is a
//! statement as well.
//!
//! **Invariant**: no file makes the reader panic, or hold more than one line.

#![forbid(unsafe_code)]

mod file;
mod mask;
mod record;
mod request;
mod value;

pub use file::{Flaw, Line, MAX_LINE_BYTES, Reader, line};
pub use mask::{has_literals, masked};
pub use record::{
    Batch, End, Ended, Header, Missed, Op, Outcome, Record, Statement, Unread, VERSION,
};
pub use request::{Asked, Request};
pub use value::Value;
