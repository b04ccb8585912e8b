//! [`Page`]: the rows of a RESULT, to be held against another's.

use crate::rows::skip_types;
use cql::wire::Cursor;

/// RESULT of kind Rows.
const ROWS: i32 = 2;

const GLOBAL_TABLE: i32 = 0x1;
const MORE_PAGES: i32 = 0x2;
const NO_METADATA: i32 = 0x4;
const METADATA_CHANGED: i32 = 0x8;

/// A RESULT has no more columns than a table may; more is not what a database sends.
const MAX_COLUMNS: usize = 65_535;

/// A page of rows. One without rows is a RESULT that has none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page<'b> {
    /// The columns' names, where they are told.
    pub names: Vec<&'b str>,
    /// The number of columns.
    pub columns: usize,
    /// A null is `None`. Each has as many as there are columns.
    pub rows: Vec<Vec<Option<&'b [u8]>>>,
}

impl<'b> Page<'b> {
    /// Whether a RESULT's body has rows, all of them, and nothing new of their columns. `None`: malformed.
    pub(crate) fn is_whole(body: &'b [u8]) -> Option<bool> {
        let mut at = Cursor::new(body);
        let (kind, flags) = (at.int()?, at.int()?);
        Self::read(body)?;
        Some(kind == ROWS && flags & (MORE_PAGES | METADATA_CHANGED) == 0)
    }

    /// Reads the proper body of a RESULT. `None`: malformed.
    pub fn read(body: &'b [u8]) -> Option<Self> {
        let mut at = Cursor::new(body);
        if at.int()? != ROWS {
            return Some(Self::default());
        }
        let flags = at.int()?;
        let columns = usize::try_from(at.int()?).ok()?;
        if flags & MORE_PAGES != 0 {
            at.skip_bytes()?;
        }
        if flags & METADATA_CHANGED != 0 {
            at.short_bytes()?;
        }
        let names = match flags & NO_METADATA {
            0 => skip_types(&mut at, columns, flags & GLOBAL_TABLE != 0)?,
            _ => Vec::new(),
        };
        let count = usize::try_from(at.int()?).ok()?;
        // Each row takes some bytes, so that what is declared is no reason to allocate.
        if columns > MAX_COLUMNS || columns == 0 && count > 0 {
            return None;
        }
        let mut rows = Vec::new();
        for _ in 0..count {
            let mut row = Vec::new();
            for _ in 0..columns {
                row.push(match usize::try_from(at.int()?) {
                    Ok(length) => Some(at.take(length)?),
                    Err(_) => None,
                });
            }
            rows.push(row);
        }
        Some(Self {
            names,
            columns,
            rows,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn page(flags: i32, metadata: &[u8]) -> Vec<u8> {
        let head = [ROWS, flags, 1].map(i32::to_be_bytes).concat();
        let rows = [
            &2_i32.to_be_bytes()[..],
            &[0, 0, 0, 1, 7],
            &[255, 255, 255, 255],
        ]
        .concat();
        [&head[..], metadata, &rows].concat()
    }

    #[test]
    fn rows_are_read_with_names_and_without() {
        let named = page(GLOBAL_TABLE, b"\0\x02ks\0\x01t\0\x01c\0\x09");
        let bare = page(NO_METADATA, b"");
        let rows = vec![vec![Some(&[7_u8][..])], vec![None]];
        for (bytes, names) in [(&named, vec!["c"]), (&bare, vec![])] {
            let page = Page::read(bytes).unwrap();
            assert_eq!((page.columns, &page.rows), (1, &rows));
            assert_eq!(page.names, names);
            for end in 0..bytes.len() {
                assert_eq!(Page::read(&bytes[..end]), None, "{end} bytes");
            }
        }
        assert_eq!(Page::read(&[0, 0, 0, 1]), Some(Page::default()));
    }

    #[test]
    fn rows_without_columns_are_none() {
        let bytes = [ROWS, NO_METADATA, 0, i32::MAX]
            .map(i32::to_be_bytes)
            .concat();
        assert_eq!(Page::read(&bytes), None);
    }

    proptest! {
        #[test]
        fn noise_does_no_harm(noise: Vec<u8>) {
            let body = [&ROWS.to_be_bytes()[..], &noise].concat();
            let _ = Page::read(&body);
        }
    }
}
