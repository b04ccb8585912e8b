//! The rows of a RESULT, read and written again (`native_protocol_v5.spec` §4.2.5.2).

use std::borrow::Cow;

use cql::wire::Cursor;

/// RESULT of kind Rows.
const ROWS: i32 = 2;

/// Flags of the metadata.
pub(crate) const GLOBAL_TABLE: i32 = 0x1;
pub(crate) const MORE_PAGES: i32 = 0x2;
pub(crate) const NO_METADATA: i32 = 0x4;
pub(crate) const METADATA_CHANGED: i32 = 0x8;

/// Columns of a result, or values of a statement: as many as an `[short]` can count of them.
pub(crate) const MAX_COLUMNS: i32 = 65_535;

/// Types within types: deeper ones are none that a database has.
const MAX_DEPTH: usize = 32;

/// Columns with names and types, where the response has them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Column<'b> {
    /// The column's name, as a RESULT has it.
    pub name: &'b str,
    /// The type's number (§4.2.5.2, `<type>`); that of a collection is the collection's.
    pub kind: u16,
}

/// A page of rows.
#[derive(Debug)]
pub struct Rows<'b> {
    /// Up to the number of rows.
    head: &'b [u8],
    /// The rows' columns.
    pub columns: Vec<Column<'b>>,
    count: usize,
    cells: Cursor<'b>,
}

/// A column's value in one row; `None` is null.
pub type Cell<'b> = Option<Cow<'b, [u8]>>;

impl<'b> Rows<'b> {
    /// Reads the proper body of a RESULT. `None`: it has no rows, or no metadata, or is malformed.
    pub(crate) fn read(body: &'b [u8]) -> Option<Self> {
        let mut at = Cursor::new(body);
        if at.int()? != ROWS {
            return None;
        }
        let flags = at.int()?;
        let columns = at.int()?;
        if !(0..=MAX_COLUMNS).contains(&columns) {
            return None;
        }
        if flags & MORE_PAGES != 0 {
            at.skip_bytes()?;
        }
        if flags & METADATA_CHANGED != 0 {
            at.short_bytes()?;
        }
        if flags & NO_METADATA != 0 {
            return None;
        }
        let global = flags & GLOBAL_TABLE != 0;
        if global {
            at.short_bytes()?;
            at.short_bytes()?;
        }
        let mut named = Vec::new();
        for _ in 0..columns {
            if !global {
                at.short_bytes()?;
                at.short_bytes()?;
            }
            let name = at.string()?;
            let kind = skip_type(&mut at, 0)?;
            named.push(Column { name, kind });
        }
        let head = body.get(..body.len() - at.rest().len())?;
        let count = usize::try_from(at.int()?).ok()?;
        Some(Self {
            head,
            columns: named,
            count,
            cells: at,
        })
    }

    /// The body with these rows: `edit` is shown each, and says whether it stays. `None`: malformed.
    pub(crate) fn edited(
        mut self,
        mut edit: impl FnMut(&[Column<'b>], &mut [Cell<'_>]) -> bool,
    ) -> Option<Vec<u8>> {
        // Each row takes some bytes, unless there are no columns.
        if self.columns.is_empty() && self.count > 0 {
            return None;
        }
        let mut body = self.head.to_vec();
        let count_at = body.len();
        body.extend(0_i32.to_be_bytes());
        let mut kept = 0_i32;
        for _ in 0..self.count {
            let mut cells: Vec<Cell<'_>> = Vec::with_capacity(self.columns.len());
            for _ in &self.columns {
                let cell = match usize::try_from(self.cells.int()?) {
                    Ok(length) => Some(Cow::Borrowed(self.cells.take(length)?)),
                    Err(_) => None,
                };
                cells.push(cell);
            }
            if !edit(&self.columns, &mut cells) {
                continue;
            }
            kept += 1;
            for cell in cells {
                let length = cell
                    .as_ref()
                    .map_or(Ok(-1), |cell| i32::try_from(cell.len()));
                body.extend(length.ok()?.to_be_bytes());
                body.extend_from_slice(&cell.unwrap_or_default());
            }
        }
        body.extend_from_slice(self.cells.rest());
        body.get_mut(count_at..count_at + 4)?
            .copy_from_slice(&kept.to_be_bytes());
        Some(body)
    }
}

/// So many columns' tables, names and types; gives the names.
pub(crate) fn skip_types<'b>(
    at: &mut Cursor<'b>,
    columns: usize,
    global: bool,
) -> Option<Vec<&'b str>> {
    if global {
        at.short_bytes()?;
        at.short_bytes()?;
    }
    let mut names = Vec::new();
    for _ in 0..columns {
        if !global {
            at.short_bytes()?;
            at.short_bytes()?;
        }
        names.push(at.string()?);
        skip_type(at, 0)?;
    }
    Some(names)
}

/// An `[option]`; gives its number.
pub(crate) fn skip_type(at: &mut Cursor<'_>, depth: usize) -> Option<u16> {
    if depth > MAX_DEPTH {
        return None;
    }
    let kind = at.short()?;
    match kind {
        0x0000 => drop(at.short_bytes()?),
        0x0020 | 0x0022 => drop(skip_type(at, depth + 1)?),
        0x0021 => {
            skip_type(at, depth + 1)?;
            skip_type(at, depth + 1)?;
        }
        0x0030 => {
            at.short_bytes()?;
            at.short_bytes()?;
            for _ in 0..at.short()? {
                at.short_bytes()?;
                skip_type(at, depth + 1)?;
            }
        }
        0x0031 => {
            for _ in 0..at.short()? {
                skip_type(at, depth + 1)?;
            }
        }
        _ => {}
    }
    Some(kind)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn string(text: &str) -> Vec<u8> {
        [&(text.len() as u16).to_be_bytes()[..], text.as_bytes()].concat()
    }

    /// Two columns: an inet, and a map from text to a list of a type of the user's.
    type Pair<'a> = (Option<&'a [u8]>, Option<&'a [u8]>);

    fn body(rows: &[Pair<'_>]) -> Vec<u8> {
        let mut body = Vec::new();
        for int in [ROWS, GLOBAL_TABLE | MORE_PAGES, 2] {
            body.extend(int.to_be_bytes());
        }
        body.extend([0, 0, 0, 1, 9]);
        body.extend([string("system"), string("local"), string("rpc_address")].concat());
        body.extend([0, 0x10]);
        body.extend(string("odd"));
        body.extend([0, 0x21, 0, 0x0D, 0, 0x20, 0, 0x30]);
        body.extend([string("ks"), string("udt")].concat());
        body.extend([0, 1]);
        body.extend(string("field"));
        body.extend([0, 0x31, 0, 2, 0, 9, 0, 0]);
        body.extend(string("org.example.Type"));
        body.extend((rows.len() as i32).to_be_bytes());
        for (a, b) in rows {
            for cell in [a, b] {
                let length = cell.map_or(-1, |cell| cell.len() as i32);
                body.extend(length.to_be_bytes());
                body.extend(cell.unwrap_or_default());
            }
        }
        body
    }

    #[test]
    fn rows_are_changed_and_left_out() {
        let bytes = body(&[
            (Some(&[127, 0, 0, 1]), None),
            (None, Some(b"left out")),
            (Some(&[127, 0, 0, 2]), Some(b"")),
        ]);
        let rows = Rows::read(&bytes).unwrap();
        let names: Vec<_> = rows.columns.iter().map(|c| (c.name, c.kind)).collect();
        assert_eq!(names, [("rpc_address", 0x10), ("odd", 0x21)]);
        let edited = rows.edited(|_, cells| {
            if cells[1].as_deref() == Some(b"left out") {
                return false;
            }
            cells[0] = Some(Cow::Owned(vec![10, 9, 8, 7]));
            true
        });
        let expected = body(&[
            (Some(&[10, 9, 8, 7]), None),
            (Some(&[10, 9, 8, 7]), Some(b"")),
        ]);
        assert_eq!(edited.unwrap(), expected);
        let same = Rows::read(&bytes).unwrap().edited(|_, _| true);
        assert_eq!(same.unwrap(), bytes);
    }

    #[test]
    fn what_ends_early_is_no_rows() {
        let bytes = body(&[(Some(&[127, 0, 0, 1]), Some(b"x"))]);
        for end in 0..bytes.len() {
            let rows = Rows::read(&bytes[..end]);
            let edited = rows.and_then(|rows| rows.edited(|_, _| true));
            assert_eq!(edited, None, "{end} bytes");
        }
    }

    #[test]
    fn types_within_types_end() {
        let mut bytes = Vec::new();
        for int in [ROWS, 0, 1] {
            bytes.extend(i32::to_be_bytes(int));
        }
        bytes.extend([string("ks"), string("t"), string("c")].concat());
        bytes.extend([0, 0x20].repeat(100_000));
        assert!(Rows::read(&bytes).is_none());
    }

    proptest! {
        #[test]
        fn noise_does_no_harm(noise: Vec<u8>) {
            let body = [&ROWS.to_be_bytes()[..], &noise].concat();
            let _ = Rows::read(&body).and_then(|rows| rows.edited(|_, _| true));
        }
    }
}
