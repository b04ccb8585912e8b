//! [`Request`]: a request that was kept back whole, for transforms to read and to change.

use std::any::Any;
use std::borrow::Cow;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use super::layout::{Asked, Layout, PAGE_SIZE, Parameters, SERIAL, SKIP_METADATA};
use crate::details::Consistency;
use crate::frame::{Flags, Header, MAX_BODY_BYTES, Opcode, StreamId};
use crate::wire::Cursor;

/// What a request asks to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Statement<'a> {
    /// This. It may be no CQL, and not UTF-8.
    Text(&'a [u8]),
    /// What an earlier PREPARE gave this number.
    Prepared(&'a [u8]),
}

/// What a step keeps of a request until its response is there.
pub type Note = Arc<dyn Any + Send + Sync>;

/// A value that is bound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bound<'a> {
    /// Which one it is, where values go by names.
    pub name: Option<&'a [u8]>,
    /// `None`: null, or not set.
    pub value: Option<&'a [u8]>,
    at: Range<usize>,
}

impl Bound<'_> {
    /// Another value in its place. Of one that is null or not set: none.
    pub fn becomes(&self, bytes: Vec<u8>) -> Option<Change> {
        self.value?;
        Some(Change {
            at: self.at.clone(),
            bytes,
        })
    }
}

/// Something of a request, with its length before it, that becomes something else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    at: Range<usize>,
    bytes: Vec<u8>,
}

/// See the module. Its body is as it was sent, but for compression.
#[derive(Debug)]
pub struct Request<'a> {
    header: Header,
    body: Cow<'a, [u8]>,
    layout: Layout,
    changed: bool,
    /// What the step at hand wants to be told with the response.
    awaited: Option<(u64, Option<Note>)>,
}

/// The most that a `[string]`, and a map, can count.
const MAX_SHORT: usize = u16::MAX as usize;

impl<'a> Request<'a> {
    /// `None`: the body is not what the header says.
    pub(super) fn read(header: Header, body: Cow<'a, [u8]>) -> Option<Self> {
        let layout = Layout::of(&header, &body)?;
        Some(Self {
            header,
            body,
            layout,
            changed: false,
            awaited: None,
        })
    }

    /// What it is.
    pub fn opcode(&self) -> Opcode {
        self.header.opcode.unwrap_or(Opcode::Options)
    }

    /// 3, 4 or 5.
    pub fn version(&self) -> u8 {
        self.header.version
    }

    /// Which number its response has.
    pub fn stream(&self) -> StreamId {
        self.header.stream
    }

    /// Bytes of its body, without compression.
    pub fn body_bytes(&self) -> usize {
        self.body.len()
    }

    /// What it asks to be done: one statement, of a BATCH any number.
    pub fn statements(&self) -> impl Iterator<Item = Statement<'_>> {
        let bytes = |range: &Range<usize>| self.body.get(range.clone()).unwrap_or_default();
        self.layout.asked().map(move |asked| match asked {
            Asked::Text(range) => Statement::Text(bytes(range)),
            Asked::Id(range) => Statement::Prepared(bytes(range)),
        })
    }

    /// The keyspace that is given with it (v5).
    pub fn keyspace(&self) -> Option<&str> {
        let of_parameters = self.layout.parameters.and_then(|p| p.keyspace);
        let (at, length) = of_parameters.or(self.layout.keyspace)?;
        std::str::from_utf8(self.body.get(at..at + length)?).ok()
    }

    /// How many values are bound.
    pub fn values(&self) -> u32 {
        self.layout.parameters.map_or(0, |p| p.values)
    }

    /// Of a QUERY, EXECUTE or BATCH.
    pub fn consistency(&self) -> Option<Consistency> {
        self.short(self.layout.parameters?.consistency)
    }

    /// Of a lightweight transaction, where it is given.
    pub fn serial_consistency(&self) -> Option<Consistency> {
        self.short(self.layout.parameters?.serial?)
    }

    /// How many rows a page may have, where it is given.
    pub fn page_size(&self) -> Option<i32> {
        let at = self.layout.parameters?.page_size?;
        let bytes = self.body.get(at..)?.first_chunk()?;
        Some(i32::from_be_bytes(*bytes))
    }

    /// Where there is one.
    pub fn set_consistency(&mut self, consistency: Consistency) {
        if let Some(parameters) = self.layout.parameters {
            let at = parameters.consistency;
            self.replace(at, 2, &consistency.0.to_be_bytes());
        }
    }

    /// Where there are parameters.
    pub fn set_serial_consistency(&mut self, consistency: Consistency) {
        let bytes = consistency.0.to_be_bytes();
        match self.layout.parameters {
            Some(Parameters {
                serial: Some(at), ..
            }) => self.replace(at, 2, &bytes),
            Some(parameters) => {
                self.set_flag(&parameters, SERIAL);
                self.replace(parameters.serial_at, 0, &bytes);
            }
            None => {}
        }
    }

    /// Of a QUERY or EXECUTE.
    pub fn set_page_size(&mut self, rows: i32) {
        let bytes = rows.to_be_bytes();
        match self.layout.parameters {
            _ if self.opcode() == Opcode::Batch => {}
            Some(Parameters {
                page_size: Some(at),
                ..
            }) => self.replace(at, 4, &bytes),
            Some(parameters) => {
                self.set_flag(&parameters, PAGE_SIZE);
                self.replace(parameters.page_size_at, 0, &bytes);
            }
            None => {}
        }
    }

    /// Puts an entry into the custom payload, which there is since v4. False: it could not be done.
    pub fn add_payload(&mut self, key: &str, value: &[u8]) -> bool {
        let (key, value) = match (u16::try_from(key.len()), i32::try_from(value.len())) {
            (Ok(length), Ok(bytes)) if self.header.version >= 4 => (
                [&length.to_be_bytes()[..], key.as_bytes()].concat(),
                [&bytes.to_be_bytes()[..], value].concat(),
            ),
            _ => return false,
        };
        let entry = [key, value].concat();
        if !self.header.flags.any(Flags::CUSTOM_PAYLOAD) {
            self.header.flags.0 |= Flags::CUSTOM_PAYLOAD.0;
            let map = [&1u16.to_be_bytes()[..], &entry].concat();
            self.replace(0, 0, &map);
            return true;
        }
        let count = Cursor::new(&self.body).short().unwrap_or(u16::MAX);
        if usize::from(count) >= MAX_SHORT {
            return false;
        }
        let end = self.layout.proper;
        self.replace(0, 2, &(count + 1).to_be_bytes());
        self.replace(end, 0, &entry);
        true
    }

    /// Another text for the statement with this number. False: it has none.
    pub fn set_text(&mut self, number: usize, text: &[u8]) -> bool {
        let Some(Asked::Text(range)) = self.layout.asked().nth(number) else {
            return false;
        };
        let (Ok(length), Some(at)) = (i32::try_from(text.len()), range.start.checked_sub(4)) else {
            return false;
        };
        let old = 4 + range.len();
        self.replace(at, old, &[&length.to_be_bytes()[..], text].concat());
        true
    }

    /// Shows the values that are bound, of each statement in its order, until there is an error. False: they
    /// cannot be told.
    ///
    /// # Errors
    /// That of `each`.
    pub fn each_bound<E>(
        &self,
        mut each: impl FnMut(&[Bound<'_>]) -> Result<(), E>,
    ) -> Result<bool, E> {
        let of = |range: &Range<usize>| self.body.get(range.clone());
        let mut bound = Vec::new();
        let mut failed = None;
        let shown = Layout::each_values(&self.header, &self.body, |values| {
            bound.clear();
            bound.extend(values.iter().map(|value| Bound {
                name: value.name.as_ref().and_then(of),
                value: value.bytes.as_ref().and_then(of),
                at: value.bytes.clone().unwrap_or_default(),
            }));
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

    /// Another text for the statement with this number. None: it has none.
    pub fn text_becomes(&self, number: usize, text: Vec<u8>) -> Option<Change> {
        match self.layout.asked().nth(number)? {
            Asked::Text(range) => Some(Change {
                at: range.clone(),
                bytes: text,
            }),
            Asked::Id(_) => None,
        }
    }

    /// Makes changes, which are of this request as it is, all at once. False: two of them are of the same, or
    /// the body would be larger than a body may be; then nothing has changed.
    pub fn put(&mut self, changes: Vec<Change>) -> bool {
        let Some(body) = self.with(changes) else {
            return false;
        };
        let Some(layout) = Layout::of(&self.header, &body) else {
            return false;
        };
        self.body = Cow::Owned(body);
        self.layout = layout;
        self.changed = true;
        true
    }

    fn with(&self, mut changes: Vec<Change>) -> Option<Vec<u8>> {
        changes.sort_by_key(|change| change.at.start);
        let grown: usize = changes.iter().map(|change| change.bytes.len()).sum();
        if self.body.len().saturating_add(grown) > MAX_BODY_BYTES as usize {
            return None;
        }
        let mut body = Vec::with_capacity(self.body.len() + grown);
        let mut at = 0;
        for Change { at: range, bytes } in changes {
            // Each has its length before it: four bytes.
            let length = range.start.checked_sub(4)?;
            body.extend_from_slice(self.body.get(at..length)?);
            body.extend(i32::try_from(bytes.len()).ok()?.to_be_bytes());
            body.extend(bytes);
            at = range.end;
        }
        body.extend_from_slice(self.body.get(at..)?);
        Some(body)
    }

    /// Has the response shown to the transform, too, with this number.
    pub fn await_response(&mut self, number: u64) {
        self.awaited = Some((number, None));
    }

    /// The same, and with what is to be known then ([`Response::note`](super::Response::note)).
    pub fn await_response_with(&mut self, number: u64, note: Note) {
        self.awaited = Some((number, Some(note)));
    }

    pub(super) fn take_awaited(&mut self) -> Option<(u64, Option<Note>)> {
        self.awaited.take()
    }

    /// Has rows come with the names and types of their columns, even if the client knows them. False:
    /// they do anyway.
    pub fn want_metadata(&mut self) -> bool {
        match self.layout.parameters {
            Some(parameters) if self.opcode() != Opcode::Batch => {
                self.change_flags(&parameters, |flags| flags & !SKIP_METADATA)
            }
            _ => false,
        }
    }

    /// Asks the database to trace it.
    pub fn trace(&mut self) {
        if !self.header.flags.any(Flags::TRACING) {
            self.header.flags.0 |= Flags::TRACING.0;
            self.changed = true;
        }
    }

    /// Header and body, if anything has changed.
    pub(super) fn changed(&self) -> Option<(&Header, &[u8])> {
        self.changed.then_some((&self.header, &*self.body))
    }

    fn short(&self, at: usize) -> Option<Consistency> {
        let bytes = self.body.get(at..)?.first_chunk()?;
        Some(Consistency(u16::from_be_bytes(*bytes)))
    }

    /// The flags stand before everything that they announce, so they have not moved.
    fn set_flag(&mut self, parameters: &Parameters, flag: u32) {
        self.change_flags(parameters, |flags| flags | flag);
    }

    fn change_flags(&mut self, parameters: &Parameters, change: impl Fn(u32) -> u32) -> bool {
        let (at, bytes) = (parameters.flags, parameters.flag_bytes);
        let old = self.body.get(at..at + bytes).unwrap_or_default();
        let old = old.iter().fold(0, |n, byte| n << 8 | u32::from(*byte));
        if change(old) == old {
            return false;
        }
        let new = change(old).to_be_bytes();
        let new = new.get(4 - bytes..).unwrap_or_default().to_owned();
        self.replace(at, bytes, &new);
        true
    }

    /// Other bytes in place of `old` of them. Whatever announces them has been changed before.
    fn replace(&mut self, at: usize, old: usize, new: &[u8]) {
        self.changed = true;
        let body = self.body.to_mut();
        let end = (at + old).min(body.len());
        body.splice(at.min(end)..end, new.iter().copied());
        if new.len() != old
            && let Some(layout) = Layout::of(&self.header, body)
        {
            self.layout = layout;
        }
    }
}
