//! The values that are bound to a request's statements, and changes in many places of it at once.

use std::ops::{ControlFlow, Range};

use crate::layout::{Asked, Layout, NAMES, VALUES, Value as At};
use crate::request::Request;
use cql::wire::Cursor;
use cql::{MAX_BODY_BYTES, Opcode};

/// The value that stands for a marker (`native_protocol_v5.spec` §3, `[value]`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value<'a> {
    /// The value's bytes.
    Is(&'a [u8]),
    /// Null.
    Null,
    /// Nothing, as if the statement had no such part (since v4).
    Unset,
}

/// A value of a request, and where it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bound<'a> {
    /// The marker's name, where the client names what it binds.
    pub name: Option<&'a [u8]>,
    /// The value.
    pub value: Value<'a>,
    /// With its length.
    at: Range<usize>,
}

/// A replacement in a request. It holds for the request as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    at: Range<usize>,
    bytes: Vec<u8>,
}

impl Bound<'_> {
    /// Another value in its place. `None`: it is too long.
    pub fn becomes(&self, value: Value<'_>) -> Option<Change> {
        let (length, bytes) = match value {
            Value::Is(bytes) => (i32::try_from(bytes.len()).ok()?, bytes),
            Value::Null => (-1, &[][..]),
            Value::Unset => (-2, &[][..]),
        };
        Some(Change {
            at: self.at.clone(),
            bytes: [&length.to_be_bytes()[..], bytes].concat(),
        })
    }
}

impl Request<'_> {
    /// The values that are bound to the statement with this number, in the order in which they are
    /// bound.
    pub fn bound(&self, number: usize) -> Vec<Bound<'_>> {
        self.read_bound(number).unwrap_or_default()
    }

    fn read_bound(&self, number: usize) -> Option<Vec<Bound<'_>>> {
        let (start, named) = match self.opcode() {
            Opcode::Query | Opcode::Execute if number == 0 => {
                let parameters = self.layout.parameters?;
                let flags = self.flags(&parameters);
                if flags & VALUES == 0 {
                    return None;
                }
                let start = parameters.flags + parameters.flag_bytes;
                (start, flags & NAMES != 0)
            }
            Opcode::Batch => {
                let (Asked::Text(range) | Asked::Id(range)) = self.layout.asked().nth(number)?;
                (range.end, false)
            }
            _ => return None,
        };
        let mut rest = Cursor::new(self.body.get(start..)?);
        let at = |rest: &Cursor<'_>| self.body.len() - rest.rest().len();
        let count = rest.short()?;
        // Each takes four bytes at least.
        let mut bound = Vec::with_capacity(usize::from(count).min(rest.rest().len() / 4));
        for _ in 0..count {
            let name = match named {
                true => Some(rest.short_bytes()?),
                false => None,
            };
            let from = at(&rest);
            let value = match rest.int()? {
                -1 => Value::Null,
                ..0 => Value::Unset,
                length => Value::Is(rest.take(usize::try_from(length).ok()?)?),
            };
            let at = from..at(&rest);
            bound.push(Bound { name, value, at });
        }
        Some(bound)
    }

    /// Shows the values that are bound, of each statement in its order, until there is an error: in one pass,
    /// however many statements there are. False: they cannot be told.
    ///
    /// # Errors
    /// That of `each`.
    pub fn each_bound<E>(
        &self,
        mut each: impl FnMut(&[Bound<'_>]) -> Result<(), E>,
    ) -> Result<bool, E> {
        let mut bound = Vec::new();
        let mut failed = None;
        let shown = Layout::each_values(&self.header, &self.body, |values| {
            bound.clear();
            bound.extend(values.iter().map(|value| self.at_place(value)));
            match each(&bound) {
                Ok(()) => ControlFlow::Continue(()),
                Err(error) => {
                    failed = Some(error);
                    ControlFlow::Break(())
                }
            }
        });
        failed.map_or(Ok(shown.is_some()), Err)
    }

    fn at_place(&self, value: &At) -> Bound<'_> {
        let behind_length = value.at.start + 4..value.at.end;
        Bound {
            name: value.name.clone().and_then(|range| self.body.get(range)),
            value: match (value.length, self.body.get(behind_length)) {
                (0.., Some(bytes)) => Value::Is(bytes),
                (-1, _) => Value::Null,
                _ => Value::Unset,
            },
            at: value.at.clone(),
        }
    }

    /// Another text for the statement with this number. `None`: it has none, or this one is too long.
    pub fn text_becomes(&self, number: usize, text: &[u8]) -> Option<Change> {
        let Asked::Text(range) = self.layout.asked().nth(number)? else {
            return None;
        };
        let length = i32::try_from(text.len()).ok()?;
        Some(Change {
            at: range.start.checked_sub(4)?..range.end,
            bytes: [&length.to_be_bytes()[..], text].concat(),
        })
    }

    /// Another keyspace in place of the one that is given with it (v5). `None`: there is none, or this one is
    /// too long.
    pub fn keyspace_becomes(&self, keyspace: &str) -> Option<Change> {
        let of_parameters = self.layout.parameters.and_then(|p| p.keyspace);
        let (at, old) = of_parameters.or(self.layout.keyspace)?;
        let length = u16::try_from(keyspace.len()).ok()?;
        Some(Change {
            at: at.checked_sub(2)?..at + old,
            bytes: [&length.to_be_bytes()[..], keyspace.as_bytes()].concat(),
        })
    }

    /// Makes the changes if all of them can be made. False: two of them overlap, or the body would be
    /// longer than a body may be; then nothing has changed.
    pub fn try_change(&mut self, mut changes: Vec<Change>) -> bool {
        changes.sort_by_key(|change| change.at.start);
        let apart = changes
            .windows(2)
            .all(|two| matches!(two, [a, b] if a.at.end <= b.at.start));
        let grown: usize = changes.iter().map(|change| change.bytes.len()).sum();
        let fits = self.body.len().saturating_add(grown) <= MAX_BODY_BYTES as usize;
        if apart && fits {
            self.change(changes);
        }
        apart && fits
    }

    /// Makes changes of different places, in one pass however many there are.
    pub fn change(&mut self, mut changes: Vec<Change>) {
        if changes.is_empty() {
            return;
        }
        changes.sort_by_key(|change| change.at.start);
        let mut body = Vec::with_capacity(self.body.len());
        let mut at = 0;
        for Change { at: place, bytes } in changes {
            // Of two for one place the first counts.
            if place.start < at {
                continue;
            }
            body.extend_from_slice(self.body.get(at..place.start).unwrap_or_default());
            body.extend(bytes);
            at = place.end;
        }
        body.extend_from_slice(self.body.get(at..).unwrap_or_default());
        self.set_body(body);
    }
}
