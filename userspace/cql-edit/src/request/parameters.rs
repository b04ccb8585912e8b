//! Parameters of a QUERY, EXECUTE or BATCH: levels, page size, timestamp, flags.

use cql::{Consistency, Opcode};

use super::Request;
use crate::layout::{
    NOW_IN_SECONDS, PAGE_SIZE, PAGING_STATE, Parameters, SERIAL, SKIP_METADATA, TIMESTAMP,
};

impl Request<'_> {
    /// How many values are bound.
    pub fn values(&self) -> u32 {
        self.layout.parameters.map_or(0, |p| p.values)
    }

    /// The consistency of a QUERY, EXECUTE or BATCH.
    pub fn consistency(&self) -> Option<Consistency> {
        self.short(self.layout.parameters?.consistency)
    }

    /// The serial consistency of a lightweight transaction, where it is given.
    pub fn serial_consistency(&self) -> Option<Consistency> {
        self.short(self.layout.parameters?.serial?)
    }

    /// How many rows a page may have, where it is given.
    pub fn page_size(&self) -> Option<i32> {
        let at = self.layout.parameters?.page_size?;
        let bytes = self.body.get(at..)?.first_chunk()?;
        Some(i32::from_be_bytes(*bytes))
    }

    /// The client's own time of the write, where it is given beside the statement, in µs since 1970.
    pub fn timestamp(&self) -> Option<i64> {
        let at = self.layout.parameters?.timestamp?;
        let bytes = self.body.get(at..)?.first_chunk()?;
        Some(i64::from_be_bytes(*bytes))
    }

    /// Another one in its place. `None`: the database's own time counts.
    pub fn set_timestamp(&mut self, unix_us: Option<i64>) {
        let Some(parameters) = self.layout.parameters else {
            return;
        };
        match (parameters.timestamp, unix_us) {
            (None, _) => {}
            (Some(at), Some(us)) => self.replace(at, 8, &us.to_be_bytes()),
            (Some(at), None) => {
                // Both at once: what has a flag and not what it announces is malformed.
                let mut whole = self.body.to_vec();
                whole.drain(at..at + 8);
                let flags = parameters.flags..parameters.flags + parameters.flag_bytes;
                if let Some(last) = whole.get_mut(flags).and_then(<[u8]>::last_mut) {
                    *last &= !(TIMESTAMP as u8);
                }
                self.set_body(whole);
            }
        }
    }

    /// The client says what time it is for the database, too (v5).
    pub fn has_now_in_seconds(&self) -> bool {
        self.version() >= 5
            && self
                .layout
                .parameters
                .is_some_and(|parameters| self.flags(&parameters) & NOW_IN_SECONDS != 0)
    }

    /// Whether the request asks for a further page.
    pub fn has_paging_state(&self) -> bool {
        self.layout
            .parameters
            .is_some_and(|parameters| self.flags(&parameters) & PAGING_STATE != 0)
    }

    /// Sets the consistency, where there is one.
    pub fn set_consistency(&mut self, consistency: Consistency) {
        if let Some(parameters) = self.layout.parameters {
            let at = parameters.consistency;
            self.replace(at, 2, &consistency.0.to_be_bytes());
        }
    }

    /// Sets the serial consistency, where there are parameters.
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

    /// Sets the page size of a QUERY or EXECUTE.
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

    /// Rows come without the names and types of their columns, unless those have changed.
    pub fn skips_metadata(&self) -> bool {
        let flags = self.layout.parameters.map(|p| self.flags(&p));
        self.opcode() != Opcode::Batch && flags.is_some_and(|flags| flags & SKIP_METADATA != 0)
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

    fn short(&self, at: usize) -> Option<Consistency> {
        let bytes = self.body.get(at..)?.first_chunk()?;
        Some(Consistency(u16::from_be_bytes(*bytes)))
    }

    pub(crate) fn flags(&self, parameters: &Parameters) -> u32 {
        let (at, bytes) = (parameters.flags, parameters.flag_bytes);
        let flags = self.body.get(at..at + bytes).unwrap_or_default();
        flags.iter().fold(0, |n, byte| n << 8 | u32::from(*byte))
    }

    /// The flags stand before everything that they announce, so they have not moved.
    fn set_flag(&mut self, parameters: &Parameters, flag: u32) {
        self.change_flags(parameters, |flags| flags | flag);
    }

    fn change_flags(&mut self, parameters: &Parameters, change: impl Fn(u32) -> u32) -> bool {
        let (at, bytes) = (parameters.flags, parameters.flag_bytes);
        let old = self.flags(parameters);
        if change(old) == old {
            return false;
        }
        let new = change(old).to_be_bytes();
        let new = new.get(4 - bytes..).unwrap_or_default().to_owned();
        self.replace(at, bytes, &new);
        true
    }
}
