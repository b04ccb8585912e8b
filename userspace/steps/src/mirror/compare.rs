//! The comparison of two answers: results in rows, order and values, errors in their codes.

use std::fmt::Write;

/// The largest answer that is compared: the flow's thread copies answers for nothing else.
pub(super) const MAX_COMPARED_BYTES: usize = 1 << 20;

use cql_edit::Page;

use super::metrics::Compared;

/// The answer of one of the two databases.
#[derive(Debug)]
pub(super) enum Answer {
    /// An ERROR's code.
    Error(i32),
    /// A RESULT, without what precedes its body. None: it was not kept.
    Result(Option<Box<[u8]>>),
}

/// The kind of a difference, and the first place where it shows.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Difference {
    pub(super) kind: Compared,
    /// The column, by its name if that is known, and both values, in hexadecimal.
    pub(super) values: Option<(String, String, String)>,
}

/// The most bytes of a value that are shown.
const MAX_SHOWN_BYTES: usize = 64;

pub(super) fn compare(ours: &Answer, theirs: &Answer) -> Difference {
    let of_kind = |kind| Difference { kind, values: None };
    match (ours, theirs) {
        (Answer::Error(ours), Answer::Error(theirs)) if ours == theirs => of_kind(Compared::Same),
        (Answer::Error(_), Answer::Error(_)) => of_kind(Compared::ErrorCode),
        (Answer::Error(_), Answer::Result(_)) => of_kind(Compared::DatabaseError),
        (Answer::Result(_), Answer::Error(_)) => of_kind(Compared::MirrorError),
        (Answer::Result(Some(ours)), Answer::Result(Some(theirs))) => {
            match (Page::read(ours), Page::read(theirs)) {
                (Some(ours), Some(theirs)) => pages(&ours, &theirs),
                _ => of_kind(Compared::Unknown),
            }
        }
        _ => of_kind(Compared::Unknown),
    }
}

fn pages(ours: &Page<'_>, theirs: &Page<'_>) -> Difference {
    let of_kind = |kind| Difference { kind, values: None };
    if ours.columns != theirs.columns {
        return of_kind(Compared::Columns);
    }
    if ours.rows.len() != theirs.rows.len() {
        return of_kind(Compared::Rows);
    }
    let mut pairs = ours.rows.iter().zip(&theirs.rows);
    let Some((own, other)) = pairs.find(|(own, other)| own != other) else {
        return of_kind(Compared::Same);
    };
    if sorted(ours) == sorted(theirs) {
        return of_kind(Compared::Order);
    }
    let cells = own.iter().zip(other).enumerate();
    let mut different = cells.filter(|(_, (own, other))| own != other);
    let values = different.next().map(|(column, (own, other))| {
        let name = theirs.names.get(column).or(ours.names.get(column));
        let name = name.map_or_else(|| column.to_string(), |name| (*name).to_owned());
        (name, shown(*own), shown(*other))
    });
    Difference {
        kind: Compared::Values,
        values,
    }
}

fn sorted<'p, 'b>(page: &'p Page<'b>) -> Vec<&'p Vec<Option<&'b [u8]>>> {
    let mut rows: Vec<_> = page.rows.iter().collect();
    rows.sort_unstable();
    rows
}

fn shown(value: Option<&[u8]>) -> String {
    let Some(value) = value else {
        return "null".to_owned();
    };
    let mut hex = String::from("0x");
    for byte in value.iter().take(MAX_SHOWN_BYTES) {
        // Writing to a string does not fail.
        let _ = write!(hex, "{byte:02x}");
    }
    if value.len() > MAX_SHOWN_BYTES {
        hex.push_str("...");
    }
    hex
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes rows of two text columns, `a` and `b`.
    fn rows(rows: &[[Option<&str>; 2]]) -> Answer {
        let mut body = [2_i32, 1, 2].map(i32::to_be_bytes).concat();
        body.extend(b"\0\x02ks\0\x01t\0\x01a\0\x0D\0\x01b\0\x0D");
        body.extend((rows.len() as i32).to_be_bytes());
        for cell in rows.iter().flatten() {
            body.extend(cell.map_or(-1, |cell| cell.len() as i32).to_be_bytes());
            body.extend(cell.unwrap_or_default().as_bytes());
        }
        Answer::Result(Some(body.into()))
    }

    #[test]
    fn each_kind_of_difference_is_told() {
        use Compared as C;
        let (one, two) = ([Some("1"), Some("x")], [Some("2"), None]);
        let both = rows(&[one, two]);
        let void = Answer::Result(Some(1_i32.to_be_bytes().into()));
        let garbage = Answer::Result(Some([0, 0, 0, 2, 9].into()));
        let cases = [
            (&both, &rows(&[one, two]), C::Same),
            (&both, &rows(&[two, one]), C::Order),
            (&both, &rows(&[one]), C::Rows),
            (&rows(&[one]), &both, C::Rows),
            (&both, &rows(&[one, [Some("2"), Some("y")]]), C::Values),
            (&both, &void, C::Columns),
            (&void, &void, C::Same),
            (&both, &garbage, C::Unknown),
            (&both, &Answer::Result(None), C::Unknown),
            (&both, &Answer::Error(1), C::MirrorError),
            (&Answer::Error(1), &both, C::DatabaseError),
            (&Answer::Error(1), &Answer::Error(2), C::ErrorCode),
            (&Answer::Error(1), &Answer::Error(1), C::Same),
        ];
        for (ours, theirs, expected) in cases {
            let found = compare(ours, theirs);
            assert_eq!(found.kind, expected, "{ours:?} {theirs:?}");
            assert_eq!(found.values.is_some(), expected == C::Values);
        }
        let found = compare(&both, &rows(&[one, [Some("2"), Some("y")]]));
        let (name, own, other) = found.values.unwrap();
        assert_eq!([&*name, &own, &other], ["b", "null", "0x79"]);
    }
}
