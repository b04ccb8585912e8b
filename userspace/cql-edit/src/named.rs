//! The names of keyspaces and tables in a response, and others in their place.
//!
//! They stand in the metadata of rows and of what was prepared, in the answers to USE and to definitions, in
//! two errors, and in events (`native_protocol_v5.spec` §4.2.5, §4.2.6, §9).

use crate::response::Response;
use cql::Opcode;
use cql::wire::Cursor;
use cql::wire::Header;
use cql::wire::behind_prelude;

/// Names that clients are told in place of the database's.
pub trait Names {
    /// In place of a keyspace's; `None`: it stays.
    fn keyspace(&self, keyspace: &str) -> Option<&str>;
    /// In place of a table's, in this keyspace of the database; `None`: it stays.
    fn table(&self, keyspace: &str, table: &str) -> Option<&str>;
}

/// RESULTs, by their kinds.
const ROWS: i32 = 2;
const SET_KEYSPACE: i32 = 3;
const PREPARED: i32 = 4;
const SCHEMA_CHANGE: i32 = 5;

/// Flags of metadata.
const GLOBAL_TABLE: i32 = 0x1;
const MORE_PAGES: i32 = 0x2;
const NO_METADATA: i32 = 0x4;
const METADATA_CHANGED: i32 = 0x8;

/// ERRORs that name something.
const ALREADY_EXISTS: i32 = 0x2400;
const FUNCTION_FAILURE: i32 = 0x1400;

/// Types within types: deeper ones are none that a database has.
const MAX_DEPTH: usize = 32;

impl Response<'_> {
    /// Puts these names in place of the database's. False: there is none, or it cannot be read.
    pub fn rename(&mut self, names: &dyn Names) -> bool {
        let Some(proper) = behind_prelude(self.header(), self.body()) else {
            return false;
        };
        let mut renaming = Renaming {
            names,
            from: proper,
            to: Vec::new(),
            changed: false,
        };
        let read = match self.opcode() {
            Some(Opcode::Result) => renaming.result(self.header()),
            Some(Opcode::Error) => renaming.error(),
            Some(Opcode::Event) => renaming.event(),
            _ => None,
        };
        if read.is_none() || !renaming.changed {
            return false;
        }
        let prelude = self.body().len() - proper.rest().len();
        let prelude = self.body().get(..prelude).unwrap_or_default();
        let body = [prelude, &renaming.to, renaming.from.rest()].concat();
        self.becomes(body);
        true
    }

    /// The keyspace, and the table if there is one, of an EVENT that tells of a change of the schema.
    pub fn schema_change(&self) -> Option<(&str, Option<&str>)> {
        if self.event()? != "SCHEMA_CHANGE" {
            return None;
        }
        let mut body = behind_prelude(self.header(), self.body())?;
        body.string()?;
        body.string()?;
        let target = body.string()?;
        let keyspace = body.string()?;
        let table = match target {
            "TABLE" => Some(body.string()?),
            _ => None,
        };
        Some((keyspace, table))
    }
}

/// Copies what it reads, but for names.
struct Renaming<'r> {
    names: &'r dyn Names,
    from: Cursor<'r>,
    to: Vec<u8>,
    changed: bool,
}

impl<'r> Renaming<'r> {
    fn int(&mut self) -> Option<i32> {
        let int = self.from.int()?;
        self.to.extend(int.to_be_bytes());
        Some(int)
    }

    fn short(&mut self) -> Option<u16> {
        let short = self.from.short()?;
        self.to.extend(short.to_be_bytes());
        Some(short)
    }

    fn short_bytes(&mut self) -> Option<&'r [u8]> {
        let bytes = self.from.short_bytes()?;
        self.put(bytes);
        Some(bytes)
    }

    fn bytes(&mut self) -> Option<()> {
        let length = self.int()?;
        let bytes = self.from.take(usize::try_from(length).unwrap_or(0))?;
        self.to.extend_from_slice(bytes);
        Some(())
    }

    /// A `[string]`, or `[short bytes]`, which is not too long.
    fn put(&mut self, bytes: &[u8]) {
        self.to.extend((bytes.len() as u16).to_be_bytes());
        self.to.extend_from_slice(bytes);
    }

    fn keyspace(&mut self) -> Option<&'r str> {
        let keyspace = self.from.string()?;
        let told = self.names.keyspace(keyspace);
        self.changed |= told.is_some();
        self.put(told.unwrap_or(keyspace).as_bytes());
        Some(keyspace)
    }

    fn table_of(&mut self, keyspace: &str) -> Option<()> {
        let table = self.from.string()?;
        let told = self.names.table(keyspace, table);
        self.changed |= told.is_some();
        self.put(told.unwrap_or(table).as_bytes());
        Some(())
    }

    /// `<keyspace><table>`
    fn table(&mut self) -> Option<()> {
        let keyspace = self.keyspace()?;
        self.table_of(keyspace)
    }

    fn result(&mut self, header: &Header) -> Option<()> {
        let version = header.version;
        match self.int()? {
            ROWS => self.metadata(),
            SET_KEYSPACE => self.keyspace().map(drop),
            PREPARED => {
                self.short_bytes()?;
                if header.metadata_id {
                    self.short_bytes()?;
                }
                let flags = self.int()?;
                let columns = self.int()?;
                if version >= 4 {
                    for _ in 0..self.int()? {
                        self.short()?;
                    }
                }
                self.columns(flags, columns)?;
                self.metadata()
            }
            SCHEMA_CHANGE => self.schema_change(),
            _ => Some(()),
        }
    }

    /// Walks the metadata of rows.
    fn metadata(&mut self) -> Option<()> {
        let flags = self.int()?;
        let columns = self.int()?;
        if flags & MORE_PAGES != 0 {
            self.bytes()?;
        }
        if flags & METADATA_CHANGED != 0 {
            self.short_bytes()?;
        }
        match flags & NO_METADATA {
            0 => self.columns(flags, columns),
            _ => Some(()),
        }
    }

    fn columns(&mut self, flags: i32, columns: i32) -> Option<()> {
        let global = flags & GLOBAL_TABLE != 0;
        if global {
            self.table()?;
        }
        for _ in 0..columns {
            if !global {
                self.table()?;
            }
            self.short_bytes()?;
            self.column_type(0)?;
        }
        Some(())
    }

    /// An `[option]`.
    fn column_type(&mut self, depth: usize) -> Option<()> {
        if depth > MAX_DEPTH {
            return None;
        }
        match self.short()? {
            0x0000 => drop(self.short_bytes()?),
            0x0020 | 0x0022 => self.column_type(depth + 1)?,
            0x0021 => {
                self.column_type(depth + 1)?;
                self.column_type(depth + 1)?;
            }
            0x0030 => {
                self.keyspace()?;
                self.short_bytes()?;
                for _ in 0..self.short()? {
                    self.short_bytes()?;
                    self.column_type(depth + 1)?;
                }
            }
            0x0031 => {
                for _ in 0..self.short()? {
                    self.column_type(depth + 1)?;
                }
            }
            _ => {}
        }
        Some(())
    }

    /// `<change><target><options>`
    fn schema_change(&mut self) -> Option<()> {
        self.short_bytes()?;
        match self.short_bytes()? {
            b"TABLE" => self.table(),
            _ => self.keyspace().map(drop),
        }
    }

    fn error(&mut self) -> Option<()> {
        let code = self.int()?;
        self.short_bytes()?;
        match code {
            ALREADY_EXISTS => self.table(),
            FUNCTION_FAILURE => self.keyspace().map(drop),
            _ => Some(()),
        }
    }

    fn event(&mut self) -> Option<()> {
        match self.short_bytes()? {
            b"SCHEMA_CHANGE" => self.schema_change(),
            _ => Some(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use super::*;
    use cql::StreamId;
    use cql::wire::Flags;
    use proptest::prelude::*;

    /// `ks` is longer for clients, and `t` shorter.
    struct Other;

    impl Names for Other {
        fn keyspace(&self, keyspace: &str) -> Option<&str> {
            (keyspace == "ks").then_some("keyspace")
        }
        fn table(&self, keyspace: &str, table: &str) -> Option<&str> {
            (keyspace == "ks" && table == "table").then_some("t")
        }
    }

    fn response(opcode: Opcode, body: &[u8]) -> Response<'_> {
        let header = Header {
            version: 5,
            flags: Flags(0),
            stream: StreamId(0),
            opcode: Some(opcode),
            length: body.len() as u32,
            metadata_id: true,
        };
        Response::new(header, Cow::Borrowed(body))
    }

    fn named(opcode: Opcode, body: &[u8]) -> Option<Vec<u8>> {
        let mut response = response(opcode, body);
        let renamed = response.rename(&Other);
        assert_eq!(renamed, response.changed().is_some());
        response.changed().map(|(_, body)| body.to_vec())
    }

    fn strings(texts: &[&str]) -> Vec<u8> {
        let string =
            |text: &&str| [&(text.len() as u16).to_be_bytes()[..], text.as_bytes()].concat();
        texts.iter().flat_map(string).collect()
    }

    #[test]
    fn what_stands_behind_a_name_stays() {
        let code = |code: i32| code.to_be_bytes().to_vec();
        for (opcode, head, before, after) in [
            (
                Opcode::Result,
                code(SET_KEYSPACE),
                vec!["ks"],
                vec!["keyspace"],
            ),
            (
                Opcode::Result,
                code(SCHEMA_CHANGE),
                vec!["DROPPED", "FUNCTION", "ks", "table"],
                vec!["DROPPED", "FUNCTION", "keyspace", "table"],
            ),
            (
                Opcode::Event,
                Vec::new(),
                vec!["SCHEMA_CHANGE", "CREATED", "TABLE", "ks", "table"],
                vec!["SCHEMA_CHANGE", "CREATED", "TABLE", "keyspace", "t"],
            ),
            (
                Opcode::Error,
                code(ALREADY_EXISTS),
                vec!["ks is there", "ks", "table"],
                vec!["ks is there", "keyspace", "t"],
            ),
            (
                Opcode::Error,
                code(FUNCTION_FAILURE),
                vec!["it failed", "ks", "f"],
                vec!["it failed", "keyspace", "f"],
            ),
        ] {
            let body = |texts: &[&str]| [&head[..], &strings(texts), b"and more"].concat();
            assert_eq!(named(opcode, &body(&before)), Some(body(&after)));
            assert_eq!(named(opcode, &body(&after)), None);
            // Up to the keyspace's last letter.
            let at = before.iter().position(|text| *text == "ks").unwrap();
            let whole = head.len() + strings(&before[..=at]).len();
            for end in 0..whole {
                let cut = named(opcode, &body(&before)[..end]);
                assert_eq!(cut, None, "{before:?} {end}");
            }
        }
        assert_eq!(
            named(Opcode::Event, &strings(&["STATUS_CHANGE", "ks"])),
            None
        );
        assert_eq!(
            named(Opcode::Error, &[&code(0)[..], &strings(&["ks"])].concat()),
            None
        );
    }

    proptest! {
        #[test]
        fn noise_does_no_harm(kind in 0..6_i32, noise: Vec<u8>) {
            let body = [&kind.to_be_bytes()[..], &noise].concat();
            for opcode in [Opcode::Result, Opcode::Error, Opcode::Event] {
                let _ = named(opcode, &body);
            }
        }
    }
}
