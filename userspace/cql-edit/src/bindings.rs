//! [`Bindings`]: the markers and the result of a statement, by the answer to a PREPARE
//! (`native_protocol_v5.spec` §4.2.5.4).

use crate::rows::{
    GLOBAL_TABLE, MAX_COLUMNS, METADATA_CHANGED, MORE_PAGES, NO_METADATA, skip_type,
};
use cql::wire::{Cursor, Header};

/// A column of a table, or the value that is bound to one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spec<'b> {
    /// The column's keyspace.
    pub keyspace: &'b str,
    /// The column's table.
    pub table: &'b str,
    /// The column's name; the marker's, if that has one.
    pub name: &'b str,
    /// The type's number, as [`Column::kind`](super::Column::kind).
    pub kind: u16,
}

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bindings<'b> {
    /// By which it is executed.
    pub id: &'b [u8],
    /// The values that it takes, in their order.
    pub values: Vec<Spec<'b>>,
    /// The markers that are parts of the partition key (v4, v5).
    pub keys: Vec<u16>,
    /// The columns of its result, where there are any that are known.
    pub result: Option<Vec<Spec<'b>>>,
}

impl<'b> Bindings<'b> {
    /// Reads the bindings of a PREPARED. `at` stands behind the result's kind.
    pub(crate) fn read(header: &Header, mut at: Cursor<'b>) -> Option<Self> {
        let version = header.version;
        let id = at.short_bytes()?;
        if header.metadata_id {
            at.short_bytes()?;
        }
        let flags = at.int()?;
        let count = at.int()?;
        let mut keys = Vec::new();
        if version >= 4 {
            for _ in 0..at.int()? {
                keys.push(at.short()?);
            }
        }
        let values = specs(&mut at, flags, count)?;
        Some(Self {
            id,
            values,
            keys,
            result: result(&mut at)?,
        })
    }
}

/// Reads the columns of the statement's result.
fn result<'b>(at: &mut Cursor<'b>) -> Option<Option<Vec<Spec<'b>>>> {
    let flags = at.int()?;
    let count = at.int()?;
    if flags & MORE_PAGES != 0 {
        at.skip_bytes()?;
    }
    if flags & METADATA_CHANGED != 0 {
        at.short_bytes()?;
    }
    if flags & NO_METADATA != 0 {
        return Some(None);
    }
    specs(at, flags, count).map(Some)
}

fn specs<'b>(at: &mut Cursor<'b>, flags: i32, count: i32) -> Option<Vec<Spec<'b>>> {
    if !(0..=MAX_COLUMNS).contains(&count) {
        return None;
    }
    let of = match flags & GLOBAL_TABLE {
        0 => None,
        _ => Some((at.string()?, at.string()?)),
    };
    let mut specs = Vec::new();
    for _ in 0..count {
        let (keyspace, table) = match of {
            Some(of) => of,
            None => (at.string()?, at.string()?),
        };
        specs.push(Spec {
            keyspace,
            table,
            name: at.string()?,
            kind: skip_type(at, 0)?,
        });
    }
    Some(specs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn header(version: u8) -> Header {
        Header::read([version | 0x80, 0, 0, 0, 8, 0, 0, 0, 0]).unwrap()
    }

    fn string(text: &str) -> Vec<u8> {
        [&(text.len() as u16).to_be_bytes()[..], text.as_bytes()].concat()
    }

    /// `INSERT INTO ks.t (k, v) VALUES (?, ?)`
    fn body(version: u8) -> Vec<u8> {
        let mut body = string("id");
        if version >= 5 {
            body.extend(string("of the metadata"));
        }
        for int in [GLOBAL_TABLE, 2] {
            body.extend(int.to_be_bytes());
        }
        if version >= 4 {
            body.extend([0, 0, 0, 1, 0, 0]);
        }
        body.extend([string("ks"), string("t")].concat());
        body.extend([string("k"), vec![0, 9], string("v"), vec![0, 0x22, 0, 3]].concat());
        body.extend([0, 0, 0, NO_METADATA as u8, 0, 0, 0, 0]);
        body
    }

    #[test]
    fn values_are_named_and_have_types() {
        for version in [3, 4, 5] {
            let body = body(version);
            let found = Bindings::read(&header(version), Cursor::new(&body)).unwrap();
            let spec = |name, kind| Spec {
                keyspace: "ks",
                table: "t",
                name,
                kind,
            };
            assert_eq!(found.values, [spec("k", 9), spec("v", 0x22)]);
            assert_eq!(found.keys, if version > 3 { &[0][..] } else { &[] });
            assert_eq!((found.id, &found.result), (&b"id"[..], &None));
            for end in 0..body.len() {
                let cut = Bindings::read(&header(version), Cursor::new(&body[..end]));
                assert_eq!(cut, None, "v{version}, {end} bytes");
            }
        }
    }

    proptest! {
        #[test]
        fn noise_does_no_harm(version in 3_u8..6, noise: Vec<u8>) {
            let _ = Bindings::read(&header(version), Cursor::new(&noise));
        }
    }
}
