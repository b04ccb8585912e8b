//! [`Analysis`]: what a statement asks for, as far as its text tells.
//!
//! Its kind, keyspace and table are those that [`parse`] finds. Beyond that the text is followed by
//! the grammar of Cassandra 5 (`Parser.g`), from the first word to the last. Where it goes another
//! way, by a mistake or by another database's extension, nothing is guessed: the shape and the
//! fingerprint are unknown.
//!
//! `token` is what a text consists of, `walk` the statements, `relation` and `term` what stands in
//! them, `definition` the statements that change no data; `fingerprint` is written on the way. `sites` is for
//! who changes a text, `row_write` for who merges writes. Where a text has columns, and what stands for their
//! values, `columns` says.

mod definition;
mod fingerprint;
mod relation;
mod row_write;
mod shape;
mod term;
#[cfg(test)]
mod tests;
mod token;
mod walk;

use crate::text::parse::parse;
use crate::text::statement::Statement;

pub use fingerprint::{Fingerprint, MAX_FINGERPRINT_BYTES};
pub use row_write::RowWrite;
pub use shape::{
    Batch, BatchKind, By, MAX_BATCH_PARTS, MAX_RESTRICTIONS, Number, Object, Restriction, Shape,
};
pub use token::{Token, Tokens};
pub use walk::{MAX_DEPTH, is_reserved, is_understood, kept};

/// The longest text that is followed. At 12 to 200 MB in a second this much holds up the other
/// flows of a worker for 20 ms at worst. What an application sends as text is rarely a hundredth of
/// it, and Cassandra refuses batches beyond 50 KiB unless it is told otherwise.
pub const MAX_ANALYSED_BYTES: usize = 256 << 10;

/// The content of a statement, by its text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Analysis {
    /// The statement's kind, and the names that the text itself has.
    pub statement: Statement,
    /// The object of a CREATE, ALTER or DROP; `None`: the statement is none of them, or the object is
    /// not known.
    pub object: Option<Object>,
    /// The text without its values.
    pub fingerprint: Fingerprint,
    /// The statement's restrictions and limits; `None`: unknown.
    pub shape: Option<Shape>,
}

impl Analysis {
    /// `text`: the beginning of a statement that is `declared` bytes long. Takes time in proportion
    /// to the text up to [`MAX_ANALYSED_BYTES`], and no more beyond.
    pub fn of(text: &[u8], declared: usize) -> Self {
        let statement = parse(text, declared).statement.to_owned();
        let whole = text.len() == declared && declared <= MAX_ANALYSED_BYTES;
        let walked = match whole {
            true => walk::walk(text),
            false => None,
        };
        let (shape, fingerprint) = match walked {
            Some((shape, fingerprint)) => (Some(shape), fingerprint),
            None => (None, Fingerprint::unknown()),
        };
        Self {
            object: definition::object(text.get(..MAX_ANALYSED_BYTES).unwrap_or(text)),
            statement,
            fingerprint,
            shape,
        }
    }
}
