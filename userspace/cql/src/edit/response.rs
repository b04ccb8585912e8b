//! [`Response`]: a response, or an event, that was kept back whole.

use std::borrow::Cow;

use super::bindings::Bindings;
use super::request::Note;
use super::rows::{Cell, Column, Rows};
use super::transform::Error;
use crate::frame::{Flags, Header, Opcode};
use crate::response::behind_prelude;
use crate::wire::Cursor;

/// See the module. Its body is as it was sent, but for compression.
#[derive(Debug)]
pub struct Response<'a> {
    header: Header,
    body: Cow<'a, [u8]>,
    changed: bool,
    note: Option<Note>,
}

impl<'a> Response<'a> {
    pub(super) fn new(header: Header, body: Cow<'a, [u8]>) -> Self {
        Self {
            header,
            body,
            changed: false,
            note: None,
        }
    }

    pub(super) fn set_note(&mut self, note: Option<Note>) {
        self.note = note;
    }

    /// What the step at hand has kept of the request.
    pub fn note(&self) -> Option<Note> {
        self.note.clone()
    }

    /// What it is; `None`: nothing that is known.
    pub fn opcode(&self) -> Option<Opcode> {
        self.header.opcode
    }

    /// Whether it has rows, that can be read or not.
    pub fn has_rows(&self) -> bool {
        const ROWS: i32 = 2;
        self.result(ROWS).is_some()
    }

    /// Makes it an ERROR.
    pub fn refuse(&mut self, error: &Error) {
        self.header.opcode = Some(Opcode::Error);
        // What these announce is gone.
        let gone = Flags::TRACING.0 | Flags::WARNING.0 | Flags::CUSTOM_PAYLOAD.0;
        self.header.flags.0 &= !gone;
        self.body = Cow::Owned(error.body());
        self.changed = true;
    }

    /// What the answer to a PREPARE says of the values that it takes, and of its result. `None`: it is none,
    /// or malformed.
    pub fn bindings(&self) -> Option<Bindings<'_>> {
        const PREPARED: i32 = 4;
        Bindings::read(self.header.version, self.result(PREPARED)?)
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

    /// A RESULT of this kind, behind it.
    fn result(&self, kind: i32) -> Option<Cursor<'_>> {
        if self.header.opcode != Some(Opcode::Result) {
            return None;
        }
        let mut body = behind_prelude(&self.header, &self.body)?;
        (body.int()? == kind).then_some(body)
    }

    /// Of an EVENT: its type, such as `STATUS_CHANGE`.
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
        self.body = Cow::Owned(edited);
        self.changed = true;
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
    pub(super) fn changed(&self) -> Option<(&Header, &[u8])> {
        self.changed.then_some((&self.header, &*self.body))
    }
}
