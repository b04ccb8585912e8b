//! [`Response`]: a response, or an event, that was kept back whole.

use std::borrow::Cow;

use super::rows::{Cell, Column, Rows};
use crate::frame::{Header, Opcode};
use crate::response::behind_prelude;
use crate::wire::Cursor;

/// See the module. Its body is as it was sent, but for compression.
#[derive(Debug)]
pub struct Response<'a> {
    header: Header,
    body: Cow<'a, [u8]>,
    changed: bool,
}

impl<'a> Response<'a> {
    pub(super) fn new(header: Header, body: Cow<'a, [u8]>) -> Self {
        Self {
            header,
            body,
            changed: false,
        }
    }

    pub(super) fn header(&self) -> &Header {
        &self.header
    }

    pub(super) fn body(&self) -> &[u8] {
        &self.body
    }

    pub(super) fn becomes(&mut self, body: Vec<u8>) {
        self.body = Cow::Owned(body);
        self.changed = true;
    }

    /// What it is; `None`: nothing that is known.
    pub fn opcode(&self) -> Option<Opcode> {
        self.header.opcode
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
    pub(super) fn changed(&self) -> Option<(&Header, &[u8])> {
        self.changed.then_some((&self.header, &*self.body))
    }
}
