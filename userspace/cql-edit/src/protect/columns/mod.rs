//! The columns in a text: those that it writes, and by which values; those that it selects; and where else
//! it names any.
//!
//! For texts whose shape is known, so that they follow the grammar ([`Analysis`](super::Analysis)). What
//! goes another way here is `None`, as there.

mod bits;
mod change;
mod select;
#[cfg(test)]
mod tests;

use std::ops::Range;

use bits::{Bit, bits, mentions};
use change::{batch, change};
use select::select;

/// The columns that a SELECT, INSERT, UPDATE, DELETE, or a text `BEGIN .. BATCH ..` touches.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Touched {
    /// The statements: a single one, or those of a batch's text.
    pub(crate) parts: Vec<Part>,
    /// Every marker of the text in its order: `:name` has a name, `?` none.
    pub(crate) markers: Vec<Option<Box<str>>>,
}

/// One statement of a text.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Part {
    /// The keyspace, where the text names one.
    pub(crate) keyspace: Option<Box<str>>,
    pub(crate) table: Box<str>,
    pub(crate) does: Does,
    /// Every name behind what is written, or selected: columns that are compared, ordered or grouped by are
    /// among them.
    pub(crate) mentions: Vec<Box<str>>,
    /// IF: it is answered by rows.
    pub(crate) conditional: bool,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Does {
    Selects {
        json: bool,
        what: Selected,
    },
    Writes(Vec<Written>),
    /// INSERT .. JSON
    WritesJson,
    Deletes,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Selected {
    /// `*`
    All,
    These(Vec<Item>),
}

/// A column of a result.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Item {
    /// A column as it is, whatever it is called in the result.
    Column(Box<str>),
    /// Something else, that has these names in it; none that shows nothing of a column's value.
    Other(Vec<Box<str>>),
}

/// A column that is written.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Written {
    pub(crate) column: Box<str>,
    pub(crate) by: Given,
}

/// The expression that stands for a value. Ranges are of bytes of the text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Given {
    Null,
    /// The marker with this number.
    Marker(usize),
    /// `'..'` or `$$..$$`, with its quotes.
    Text(Range<usize>),
    /// `0x..`
    Blob(Range<usize>),
    /// A function, a collection, a change to what is there, and so on.
    Other,
}

/// Finds the columns that a text touches. None: it is not understood, or is a statement of another kind.
pub(crate) fn touched(text: &[u8]) -> Option<Touched> {
    let (bits, markers) = bits(text)?;
    let mut bits = &bits[..];
    while let Some((Bit::Sign(b';'), before)) = bits.split_last() {
        bits = before;
    }
    let first = bits.first()?;
    let parts = if first.is("select") {
        vec![select(bits)?]
    } else if first.is("begin") {
        batch(text, bits)?
    } else {
        let (part, rest) = change(text, bits)?;
        if !rest.is_empty() {
            return None;
        }
        vec![part]
    };
    Some(Touched { parts, markers })
}

/// Every name in a text, and whether it has a `*`; `None`: it is not understood.
pub(crate) fn names(text: &[u8]) -> Option<(Vec<Box<str>>, bool)> {
    let (bits, _) = bits(text)?;
    let all = bits.iter().any(|bit| matches!(bit, Bit::Sign(b'*')));
    Some((mentions(&bits), all))
}
