//! [`Response`]: a response, or an event, that was kept back whole.

use std::borrow::Cow;

use crate::bindings::Bindings;
use crate::note::Note;
use crate::outcome::{Error, Refused};
use crate::page::Page;
use crate::rows::{Cell, Column, Rows};
use crate::suspended::{SlotPermit, SuspendSlots, Ticket};
use cql::Compression;
use cql::Opcode;
use cql::wire::Cursor;
use cql::wire::behind_prelude;
use cql::wire::compress;
use cql::wire::{Flags, Header};

/// See the module. Its body is as it was sent, but for compression.
#[derive(Debug)]
pub struct Response<'a> {
    header: Header,
    body: Cow<'a, [u8]>,
    changed: bool,
    refused: Option<Refused>,
    /// The slots in which the response may be suspended.
    slots: Option<SuspendSlots<'a>>,
    note: Option<Note>,
    /// There is no more of the body than its beginning.
    is_cut: bool,
}

impl<'a> Response<'a> {
    pub(crate) fn new(header: Header, body: Cow<'a, [u8]>) -> Self {
        Self {
            header,
            body,
            changed: false,
            refused: None,
            slots: None,
            note: None,
            is_cut: false,
        }
    }

    /// Lets the response be suspended in these slots.
    pub(crate) fn beside(mut self, slots: SuspendSlots<'a>) -> Self {
        self.slots = Some(slots);
        self
    }

    /// Whether there is no more of the body than its beginning, because the rest was not copied.
    pub fn is_cut(&self) -> bool {
        self.is_cut
    }

    /// Notes that there is no more of the body than its beginning.
    pub(crate) fn mark_cut(&mut self) {
        self.is_cut = true;
    }

    /// Notes that the response is not as it was sent.
    pub(crate) fn mark_changed(&mut self) {
        self.changed = true;
    }

    /// Has it wait, once the step at hand has returned, until the ticket says what becomes of it; the steps
    /// that have not seen it do then. `None`: it cannot wait, because too much does, or nothing can in this flow.
    pub fn suspend(&mut self) -> Option<Ticket> {
        let bytes = self.body.len();
        self.slots.as_mut()?.suspend(bytes)
    }

    /// Takes the permit by which the step at hand has suspended the response.
    pub(crate) fn take_space(&mut self) -> Option<SlotPermit> {
        self.slots.as_mut()?.found()
    }

    /// Whether the step at hand found no slot to suspend it in.
    pub(crate) fn take_full(&mut self) -> bool {
        self.slots.as_mut().is_some_and(SuspendSlots::take_full)
    }

    pub(crate) fn header(&self) -> &Header {
        &self.header
    }

    pub(crate) fn body(&self) -> &[u8] {
        &self.body
    }

    pub(crate) fn becomes(&mut self, body: Vec<u8>) {
        self.body = Cow::Owned(body);
        self.changed = true;
    }

    pub(crate) fn set_note(&mut self, note: Option<Note>) {
        self.note = note;
    }

    /// The note that the step at hand has kept with the request.
    pub fn note(&self) -> Option<Note> {
        self.note.clone()
    }

    /// The response's opcode; `None`: none that is known.
    pub fn opcode(&self) -> Option<Opcode> {
        self.header.opcode
    }

    /// A whole frame, of one of the versions 3 to 5, whose body may be compressed like this. `None`: it is none, or would
    /// become more than so many bytes.
    pub fn of_frame(frame: &'a [u8], compression: Compression, most: usize) -> Option<Self> {
        let (raw, body) = frame.split_first_chunk()?;
        let header = Header::read(*raw)?;
        let plain = match header.is_compressed() {
            true => compress::expand_to(compression, body, most)?,
            false => body.into(),
        };
        Some(Self::new(header, plain))
    }

    /// The body proper, behind the prelude: the id of a trace, warnings, a payload. `None`: malformed.
    pub fn proper(&self) -> Option<&[u8]> {
        Some(behind_prelude(&self.header, &self.body)?.rest())
    }

    /// The body of a RESULT of rows that tells all there is: no further page, no metadata that have changed, no
    /// trace, warning or payload. `None`: it is something else, or malformed.
    pub fn whole_rows(&self) -> Option<&[u8]> {
        let is_plain = !self.header.flags.any(Flags::PRELUDE);
        let is_result = self.header.opcode == Some(Opcode::Result);
        (is_plain && is_result && Page::is_whole(&self.body)?).then_some(&*self.body)
    }

    /// The code of an ERROR; `None`: it is none.
    pub fn error(&self) -> Option<i32> {
        match self.header.opcode {
            Some(Opcode::Error) => behind_prelude(&self.header, &self.body)?.int(),
            _ => None,
        }
    }

    /// Has the client get this error in place of the response.
    pub fn refuse(&mut self, refused: Refused) {
        self.refused = Some(refused);
    }

    /// Takes the error that the client is to get in place of the response.
    pub(crate) fn take_refused(&mut self) -> Option<Refused> {
        self.refused.take()
    }

    /// Whether it has rows, that can be read or not.
    pub fn has_rows(&self) -> bool {
        const ROWS: i32 = 2;
        self.result(ROWS).is_some()
    }

    /// Makes it an ERROR, which those who see it afterwards are shown.
    pub fn fail(&mut self, error: &Error) {
        self.header.opcode = Some(Opcode::Error);
        // What these announce is gone.
        let gone = Flags::TRACING.0 | Flags::WARNING.0 | Flags::CUSTOM_PAYLOAD.0;
        self.header.flags.0 &= !gone;
        self.body = Cow::Owned(error.body());
        self.changed = true;
    }

    /// The bindings and the result of a statement, by the answer to its PREPARE. `None`: the response
    /// is another, or malformed.
    pub fn bindings(&self) -> Option<Bindings<'_>> {
        const PREPARED: i32 = 4;
        Bindings::read(&self.header, self.result(PREPARED)?)
    }

    /// The id that a PREPARE was given.
    pub fn prepared_id(&self) -> Option<&[u8]> {
        const PREPARED: i32 = 4;
        self.result(PREPARED)?.short_bytes()
    }

    /// The keyspace that the flow is in from now on.
    pub fn set_keyspace(&self) -> Option<&str> {
        const SET_KEYSPACE: i32 = 3;
        self.result(SET_KEYSPACE)?.string()
    }

    /// Adds a warning, before those that it has; what is too long is cut. False: there are none before v4, or it has as many
    /// as there may be.
    pub fn add_warning(&mut self, text: &str) -> bool {
        const TRACING_ID_BYTES: usize = 16;
        let at = match self.header.flags.any(Flags::TRACING) {
            true => TRACING_ID_BYTES,
            false => 0,
        };
        let (Some(before), Some(behind)) = (self.body.get(..at), self.body.get(at..)) else {
            return false;
        };
        let (count, rest) = match self.header.flags.any(Flags::WARNING) {
            false => (0, behind),
            true => match Cursor::new(behind).short() {
                Some(count) => (count, behind.get(2..).unwrap_or_default()),
                None => return false,
            },
        };
        let Some(count) = count.checked_add(1).filter(|_| self.header.version >= 4) else {
            return false;
        };
        let text = text.as_bytes();
        let text = text.get(..usize::from(u16::MAX)).unwrap_or(text);
        let length = text.len() as u16;
        let body = [
            before,
            &count.to_be_bytes(),
            &length.to_be_bytes(),
            text,
            rest,
        ]
        .concat();
        self.header.flags.0 |= Flags::WARNING.0;
        self.becomes(body);
        true
    }

    /// Takes what `is_added` says out of the custom payload, and the payload if there is nothing else in it. False:
    /// there is no such thing.
    pub(crate) fn drop_payload(&mut self, is_added: impl Fn(&[u8]) -> bool) -> bool {
        let Some((before, kept, proper)) = self.payload_without(is_added) else {
            return false;
        };
        let mut body = self.body.get(..before).unwrap_or_default().to_vec();
        match u16::try_from(kept.len()) {
            Ok(count @ 1..) => {
                body.extend(count.to_be_bytes());
                body.extend(kept.concat());
            }
            _ => self.header.flags.0 &= !Flags::CUSTOM_PAYLOAD.0,
        }
        body.extend_from_slice(self.body.get(proper..).unwrap_or_default());
        self.becomes(body);
        true
    }

    /// Where the payload begins, its entries that are not `is_added`, and where the body proper begins. `None`: all
    /// of it stays, or it is malformed.
    fn payload_without(
        &self,
        is_added: impl Fn(&[u8]) -> bool,
    ) -> Option<(usize, Vec<&[u8]>, usize)> {
        if !self.header.flags.any(Flags::CUSTOM_PAYLOAD) {
            return None;
        }
        let mut without = self.header;
        without.flags.0 &= !Flags::CUSTOM_PAYLOAD.0;
        let mut at = behind_prelude(&without, &self.body)?;
        let before = self.body.len() - at.rest().len();
        let count = at.short()?;
        let mut kept = Vec::new();
        for _ in 0..count {
            let entry = at.rest();
            let key = at.short_bytes()?;
            at.skip_bytes()?;
            if !is_added(key) {
                kept.push(entry.get(..entry.len() - at.rest().len())?);
            }
        }
        let proper = self.body.len() - at.rest().len();
        (kept.len() < usize::from(count)).then_some((before, kept, proper))
    }

    /// A RESULT of this kind, behind it.
    fn result(&self, kind: i32) -> Option<Cursor<'_>> {
        if self.header.opcode != Some(Opcode::Result) {
            return None;
        }
        let mut body = behind_prelude(&self.header, &self.body)?;
        (body.int()? == kind).then_some(body)
    }

    /// The type of an EVENT, such as `STATUS_CHANGE`.
    pub fn event(&self) -> Option<&str> {
        match self.header.opcode {
            Some(Opcode::Event) => behind_prelude(&self.header, &self.body)?.string(),
            _ => None,
        }
    }

    /// Changes rows, if there are any: `edit` is shown each, and says whether it stays. False: there are
    /// none that can be read.
    pub fn edit_rows(&mut self, edit: impl FnMut(&[Column<'_>], &mut [Cell<'_>]) -> bool) -> bool {
        let Some(edited) = self.with_rows(edit) else {
            return false;
        };
        self.becomes(edited);
        true
    }

    fn with_rows(
        &self,
        edit: impl FnMut(&[Column<'_>], &mut [Cell<'_>]) -> bool,
    ) -> Option<Vec<u8>> {
        if self.header.opcode != Some(Opcode::Result) {
            return None;
        }
        let proper = behind_prelude(&self.header, &self.body)?.rest();
        let prelude = self.body.get(..self.body.len() - proper.len())?;
        let rows = Rows::read(proper)?.edited(edit)?;
        Some([prelude, &rows].concat())
    }

    /// Header and body, if anything has changed.
    pub(crate) fn changed(&self) -> Option<(&Header, &[u8])> {
        self.changed.then_some((&self.header, &*self.body))
    }
}
