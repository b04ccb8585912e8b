//! The scanner in front of `cassandra-protocol`: walks the body of an answer and checks what the crate
//! believes. The crate allocates as much as a count declares, reads a length as a signed number, and
//! recurses once for each level of a type.
//!
//! It is stricter than the protocol where no database goes (a name of 32,768 bytes, a result without columns),
//! so that it and the crate cannot read the same bytes in two ways.

use cassandra_protocol::frame::Version;

/// Types within types. A deeper one is none that a database has, and would fill the stack.
const MAX_DEPTH: usize = 32;

/// Columns of a result and values of a statement: as many as a `[short]` can count.
const MAX_COLUMNS: i32 = 65_535;

/// Cells of a result. In memory a cell takes 24 bytes and an allocation, on the wire four bytes: this bounds the one
/// by more than the answer's size. A thousand nodes have 20,000 in `system.peers_v2`.
const MAX_CELLS: i64 = 1 << 18;

const ROWS: i32 = 2;
const PREPARED: i32 = 4;

/// Flags of a result's metadata (`native_protocol_v5.spec` §4.2.5.2).
const GLOBAL_TABLE: i32 = 0x1;
const MORE_PAGES: i32 = 0x2;
const NO_METADATA: i32 = 0x4;
const METADATA_CHANGED: i32 = 0x8;

/// Types that have others within them, or a name.
const CUSTOM: u16 = 0x00;
const LIST: u16 = 0x20;
const MAP: u16 = 0x21;
const SET: u16 = 0x22;
const UDT: u16 = 0x30;
const TUPLE: u16 = 0x31;

/// Whether the crate may read this RESULT of rows.
pub(crate) fn is_rows(body: &[u8]) -> bool {
    rows(Walk(body)).is_some()
}

/// Whether the crate may read this RESULT of a PREPARE.
pub(crate) fn is_prepared(body: &[u8], version: Version) -> bool {
    prepared(Walk(body), version).is_some()
}

/// Whether the crate may read this SUPPORTED.
pub(crate) fn is_supported(body: &[u8]) -> bool {
    supported(Walk(body)).is_some()
}

/// How many rows a RESULT has, and whether there are pages behind them; reads none of them. `Some(None)`: it is of another
/// kind. `None`: malformed.
pub(crate) fn counted(body: &[u8]) -> Option<Option<(u32, bool)>> {
    let mut at = Walk(body);
    if at.int()? != ROWS {
        return Some(None);
    }
    let flags = Walk(at.0).int()?;
    at.metadata()?;
    let rows = u32::try_from(at.int()?).ok()?;
    Some(Some((rows, flags & MORE_PAGES != 0)))
}

/// The code and the text of an ERROR. What stands behind them differs by code and version, and nobody here wants
/// it. `None`: malformed.
pub(crate) fn error(body: &[u8]) -> Option<(i32, &[u8])> {
    let mut at = Walk(body);
    Some((at.int()?, at.string()?))
}

/// The bytes that have not been walked over.
struct Walk<'b>(&'b [u8]);

impl<'b> Walk<'b> {
    fn take(&mut self, bytes: usize) -> Option<&'b [u8]> {
        let (taken, rest) = self.0.split_at_checked(bytes)?;
        self.0 = rest;
        Some(taken)
    }

    fn short(&mut self) -> Option<u16> {
        let (number, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u16::from_be_bytes(*number))
    }

    /// A count or length that is the same whether it is read as signed or not.
    fn small(&mut self) -> Option<usize> {
        i16::try_from(self.short()?).ok()?.try_into().ok()
    }

    fn int(&mut self) -> Option<i32> {
        let (number, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(i32::from_be_bytes(*number))
    }

    /// A `[string]`, or `[short bytes]`.
    fn string(&mut self) -> Option<&'b [u8]> {
        let length = self.small()?;
        self.take(length)
    }

    /// `[bytes]`, which may be null.
    fn bytes(&mut self) -> Option<()> {
        if let Ok(length) = usize::try_from(self.int()?) {
            self.take(length)?;
        }
        Some(())
    }

    fn table(&mut self) -> Option<()> {
        self.string()?;
        self.string()?;
        Some(())
    }

    fn columns(&mut self, columns: i32, is_global: bool) -> Option<()> {
        if is_global {
            self.table()?;
        }
        for _ in 0..columns {
            if !is_global {
                self.table()?;
            }
            self.string()?;
            self.kind(0)?;
        }
        Some(())
    }

    /// An `[option]`: a type.
    fn kind(&mut self, depth: usize) -> Option<()> {
        if depth > MAX_DEPTH {
            return None;
        }
        match self.short()? {
            CUSTOM => {
                self.string()?;
            }
            LIST | SET => self.kind(depth + 1)?,
            MAP => {
                self.kind(depth + 1)?;
                self.kind(depth + 1)?;
            }
            UDT => {
                self.table()?;
                for _ in 0..self.small()? {
                    self.string()?;
                    self.kind(depth + 1)?;
                }
            }
            TUPLE => {
                for _ in 0..self.small()? {
                    self.kind(depth + 1)?;
                }
            }
            _ => {}
        }
        Some(())
    }

    /// A result's metadata; gives the number of its columns.
    fn metadata(&mut self) -> Option<i32> {
        let flags = self.int()?;
        let columns = self.int().filter(|n| (0..=MAX_COLUMNS).contains(n))?;
        if flags & MORE_PAGES != 0 {
            self.bytes()?;
        }
        let changed = flags & METADATA_CHANGED != 0;
        match flags & NO_METADATA {
            0 => {
                if changed {
                    self.string()?;
                }
                self.columns(columns, flags & GLOBAL_TABLE != 0)?;
            }
            // The specification has no such thing, and the crate reads it in another way.
            _ if changed => return None,
            _ => {}
        }
        Some(columns)
    }
}

fn rows(mut at: Walk<'_>) -> Option<()> {
    if at.int()? != ROWS {
        return None;
    }
    // Rows without columns take no bytes: their number would be limited by nothing.
    let columns = at.metadata().filter(|columns| *columns > 0)?;
    let rows = at.int().filter(|rows| *rows >= 0)?;
    let cells = i64::from(columns) * i64::from(rows);
    if cells > MAX_CELLS {
        return None;
    }
    for _ in 0..cells {
        at.bytes()?;
    }
    Some(())
}

fn prepared(mut at: Walk<'_>, version: Version) -> Option<()> {
    if at.int()? != PREPARED {
        return None;
    }
    at.string()?;
    if version >= Version::V5 {
        at.string()?;
    }
    let flags = at.int()?;
    let columns = at.int().filter(|n| (0..=MAX_COLUMNS).contains(n))?;
    if version >= Version::V4 {
        let keys = at.int().filter(|n| (0..=MAX_COLUMNS).contains(n))?;
        for _ in 0..keys {
            at.short()?;
        }
    }
    at.columns(columns, flags & GLOBAL_TABLE != 0)?;
    at.metadata()?;
    Some(())
}

fn supported(mut at: Walk<'_>) -> Option<()> {
    for _ in 0..at.small()? {
        at.string()?;
        for _ in 0..at.small()? {
            at.string()?;
        }
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ints(ints: &[i32]) -> Vec<u8> {
        ints.iter().flat_map(|int| int.to_be_bytes()).collect()
    }

    /// Makes a result of one column of a type, with these rows.
    fn rows_of(kind: &[u8], rows: i32, cells: &[u8]) -> Vec<u8> {
        let names = b"\0\x02ks\0\x01t\0\x01c";
        let head = ints(&[ROWS, GLOBAL_TABLE, 1]);
        [&head[..], names, kind, &rows.to_be_bytes(), cells].concat()
    }

    #[test]
    fn rows_are_walked_to_their_end() {
        let map_of_tuples = [0, 0x21, 0, 0x0D, 0, 0x31, 0, 2, 0, 9, 0, 9];
        let cells = [&ints(&[1])[..], &[7], &ints(&[-1])].concat();
        let body = rows_of(&map_of_tuples, 2, &cells);
        assert!(is_rows(&body));
        for end in 0..body.len() {
            assert!(!is_rows(&body[..end]), "{end} bytes");
        }
    }

    #[test]
    fn rows_are_counted_without_being_read() {
        let body = rows_of(&[0, 9], 7, &[]);
        assert_eq!(counted(&body), Some(Some((7, false))));
        for end in 0..body.len() {
            assert!(
                !matches!(counted(&body[..end]), Some(Some(_))),
                "{end} bytes"
            );
        }
        let paged = ints(&[ROWS, NO_METADATA | MORE_PAGES, 1, 1]);
        let paged = [&paged[..], b"s", &ints(&[i32::MAX])].concat();
        assert_eq!(counted(&paged), Some(Some((i32::MAX as u32, true))));
        assert_eq!(counted(&ints(&[PREPARED])), Some(None));
        assert_eq!(counted(&ints(&[ROWS, NO_METADATA, 1, -1])), None);
    }

    #[test]
    fn bombs_are_refused() {
        for body in [
            // Rows without columns, or with fewer than none.
            ints(&[ROWS, NO_METADATA, 0, i32::MAX]),
            ints(&[ROWS, NO_METADATA, -1, i32::MAX]),
            ints(&[ROWS, NO_METADATA, 1, -1]),
            // Read one way there are no rows, read another way there are many.
            [
                &ints(&[ROWS, NO_METADATA | METADATA_CHANGED, 1])[..],
                &[0, 4],
                &ints(&[i32::MAX, 0]),
            ]
            .concat(),
            // A name whose length is negative, or not.
            [&ints(&[ROWS, 0, 1])[..], &[0xFF; 70_000]].concat(),
            // A list of lists of lists.
            rows_of(&[0, 0x20].repeat(30_000), 0, &[]),
            // More cells than a result has.
            [
                &ints(&[ROWS, NO_METADATA, 1, 1 << 19])[..],
                &[0xFF; 4 << 19],
            ]
            .concat(),
            // Fields that are not there.
            rows_of(&[0, 0x31, 0x7F, 0xFF], 0, &[]),
            rows_of(&[0, 0x31, 0xFF, 0xFF], 0, &[]),
        ] {
            assert!(!is_rows(&body));
        }
    }

    #[test]
    fn a_prepared_statement_is_walked_to_its_end() {
        for version in [Version::V3, Version::V4, Version::V5] {
            let mut body = ints(&[PREPARED]);
            body.extend(b"\0\x02id");
            if version == Version::V5 {
                body.extend(b"\0\x01m");
            }
            body.extend(ints(&[GLOBAL_TABLE, 1]));
            if version != Version::V3 {
                body.extend([&ints(&[1])[..], &[0, 0]].concat());
            }
            body.extend(b"\0\x02ks\0\x01t\0\x01c\0\x09");
            body.extend(ints(&[NO_METADATA, 0]));
            assert!(is_prepared(&body, version));
            for end in 0..body.len() {
                assert!(!is_prepared(&body[..end], version), "{end} bytes");
            }
        }
    }

    #[test]
    fn an_error_is_a_code_and_a_text() {
        let body = [&ints(&[0x2500])[..], b"\0\x02no", b"whatever"].concat();
        assert_eq!(error(&body), Some((0x2500, &b"no"[..])));
        assert_eq!(error(&body[..7]), None);
    }
}
