//! The server's own tables that tell of keyspaces and tables: what is asked of them by name, and what they
//! answer.

use std::borrow::Cow;

use super::json;
use super::markers::{Marked, bound_to};
use super::refusal::{refusal, refused};
use super::renames::Renames;
use super::text::{Edits, edited};
use crate::sites::{Sites, Spot};
use crate::{Bound, Cell, Change, Column, Names, Refused, Request, Response, Value};
use cql::text::Token;

/// Columns of such tables that hold a keyspace's name (`SystemKeyspace.java`, `SystemDistributedKeyspace.java`).
const KEYSPACES: [&str; 3] = ["keyspace_name", "logged_keyspace", "ks_name"];

/// Columns of such tables that hold the name of a table, or of a view.
const TABLES: [&str; 4] = [
    "table_name",
    "view_name",
    "base_table_name",
    "columnfamily_name",
];

/// The table of which the column that is named after tables holds the keyspace (`SystemKeyspace.java`).
const INDEX_INFO: &str = "IndexInfo";
const KEYSPACE_OF_INDEX_INFO: &str = "table_name";

/// The one column of a SELECT JSON (`Selection.java`).
const JSON: &str = "[json]";

/// Types of texts: ascii, and two of varchar.
const TEXTS: [u16; 3] = [0x01, 0x0A, 0x0D];

/// Elements of a list that is bound.
const MAX_LISTED: usize = 65_536;

/// The names that markers ask for.
#[derive(Clone, Debug, Default)]
pub(super) struct Lookups {
    /// The one keyspace, if the text says it: the client's name.
    keyspace: Option<Box<str>>,
    markers: Box<[Marker]>,
    /// The contents of the columns of its rows.
    columns: Columns,
}

/// The columns of a table of the server's that hold names, and the names under which they are selected.
#[derive(Clone, Debug, Default)]
struct Columns {
    is_index_info: bool,
    /// Columns by what stands behind AS.
    renamed: Vec<(Box<str>, Of)>,
}

impl Columns {
    /// The content of a column of the table.
    fn of_table(&self, has_name: impl Fn(&str) -> bool) -> Option<Of> {
        if self.is_index_info && has_name(KEYSPACE_OF_INDEX_INFO) {
            return Some(Of::Keyspace);
        }
        match () {
            () if KEYSPACES.iter().any(|column| has_name(column)) => Some(Of::Keyspace),
            () if TABLES.iter().any(|column| has_name(column)) => Some(Of::Table),
            () => None,
        }
    }

    /// The content of a column of the rows.
    fn of_rows(&self, name: &str) -> Option<Of> {
        let renamed = self.renamed.iter().find(|(known, _)| **known == *name);
        renamed
            .map(|(_, of)| *of)
            .or_else(|| self.of_table(|column| column == name))
    }
}

#[derive(Clone, Debug)]
struct Marker {
    position: usize,
    /// By which it is bound, where values are by name.
    name: Box<str>,
    of: Of,
    /// The marker stands for the list of IN.
    is_list: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Of {
    Keyspace,
    Table,
}

fn unclear() -> Refused {
    refusal(
        "lookup",
        "the proxy's policy calls a table of that name otherwise, and does not know in which keyspace it is \
         looked for; name the keyspace by `=`",
    )
}

/// A comparison of a column that holds names.
struct Compared {
    of: Of,
    column: Box<str>,
    /// By `=`.
    is_equal: bool,
    /// Places of tokens: literals and markers.
    with: Vec<usize>,
}

/// Replaces names that a SELECT of such a table compares with.
pub(super) fn find(
    renames: &Renames,
    text: &[u8],
    spots: &[Spot<'_>],
    sites: &Sites<'_>,
    edits: &mut Edits,
) -> Result<Lookups, Refused> {
    let columns = selected(spots, sites)?;
    let compared = comparisons(spots, &columns);
    let literal = |at: usize| spots.get(at).and_then(|spot| literal(text, spot));
    // In which keyspace tables are looked for.
    let mut keyspaces = compared
        .iter()
        .filter(|compared| compared.of == Of::Keyspace);
    let keyspace = match (keyspaces.next(), keyspaces.next()) {
        (Some(one), None) if one.is_equal => one.with.first().and_then(|at| literal(*at)),
        _ => None,
    };
    let mut markers = Vec::new();
    for Compared {
        of,
        column,
        is_equal,
        with,
    } in &compared
    {
        for at in with {
            if let Ok(position) = sites.marker_spots.binary_search(at) {
                let is_list = !is_equal && with.len() == 1 && !in_brackets(spots, *at);
                markers.push(Marker {
                    position,
                    name: marker_name(sites, column, position, is_list),
                    of: *of,
                    is_list,
                });
                continue;
            }
            let Some(name) = literal(*at) else {
                continue;
            };
            let called = match of {
                Of::Keyspace => Some(renames.database_keyspace(&name)),
                Of::Table => table(renames, keyspace.as_deref(), &name)?,
            };
            if let (Some(called), Some(spot)) = (called, spots.get(*at))
                && *called != *name
            {
                edits.push((spot.at.clone(), format!("'{called}'")));
            }
        }
    }
    Ok(Lookups {
        keyspace,
        markers: markers.into(),
        columns,
    })
}

/// The columns that a SELECT reads.
///
/// # Errors
/// A name goes into a function, and what comes out is not known.
fn selected(spots: &[Spot<'_>], sites: &Sites<'_>) -> Result<Columns, Refused> {
    let table = sites.parts.first().map(|part| part.table);
    let name = table.and_then(|at| spots.get(at)?.name());
    let mut columns = Columns {
        is_index_info: name.is_some_and(|name| name.is(INDEX_INFO)),
        renamed: Vec::new(),
    };
    let list = spots.iter().take_while(|spot| !spot.is_word("FROM"));
    for (at, spot) in list.enumerate() {
        let of = spot
            .name()
            .and_then(|name| columns.of_table(|column| name.is(column)));
        let behind = |n: usize| spots.get(at + n);
        if let Some(of) = of
            && behind(1).is_some_and(|spot| spot.is_word("AS"))
            && let Some(alias) = behind(2).and_then(Spot::name)
        {
            columns.renamed.push((alias.to_boxed(), of));
        }
    }
    Ok(columns)
}

/// The database's name of a table; `None`: the client's.
fn table<'r>(
    renames: &'r Renames,
    keyspace: Option<&str>,
    name: &str,
) -> Result<Option<&'r str>, Refused> {
    match keyspace {
        Some(keyspace) => Ok(renames.database_table(keyspace, name)),
        None if renames.renames_some_table(name) => Err(unclear()),
        None => Ok(None),
    }
}

/// The comparisons of columns with names by `=` or IN.
fn comparisons(spots: &[Spot<'_>], columns: &Columns) -> Vec<Compared> {
    let mut found = Vec::new();
    let is_sign = |at: usize, sign| spots.get(at).is_some_and(|spot| spot.is_sign(sign));
    for (at, spot) in spots.iter().enumerate() {
        let Some(name) = spot.name() else {
            continue;
        };
        let Some(of) = columns.of_table(|column| name.is(column)) else {
            continue;
        };
        let column = name.to_boxed();
        if is_sign(at + 1, b'=') {
            let with = vec![at + 2];
            found.push(Compared {
                of,
                column,
                is_equal: true,
                with,
            });
        } else if spots.get(at + 1).is_some_and(|spot| spot.is_word("IN")) {
            let mut with = vec![at + 2];
            if is_sign(at + 2, b'(') {
                let list = spots.iter().enumerate().skip(at + 3);
                let list = list.take_while(|(_, spot)| !spot.is_sign(b')'));
                with = list.map(|(at, _)| at).collect();
            }
            found.push(Compared {
                of,
                column,
                is_equal: false,
                with,
            });
        }
    }
    found
}

fn in_brackets(spots: &[Spot<'_>], at: usize) -> bool {
    let before = at.checked_sub(1).and_then(|at| spots.get(at));
    before.is_some_and(|spot| spot.is_sign(b'(') || spot.is_sign(b','))
}

/// Cassandra's name of a marker: the marker's own, or that of the column that it is compared with.
fn marker_name(sites: &Sites<'_>, column: &str, position: usize, is_list: bool) -> Box<str> {
    match sites.markers.get(position).copied().flatten() {
        Some(own) => own.to_boxed(),
        None if is_list => format!("in({column})").into(),
        None => column.into(),
    }
}

/// The text of a string.
fn literal(text: &[u8], spot: &Spot<'_>) -> Option<Box<str>> {
    if spot.token != Token::Literal {
        return None;
    }
    let written = std::str::from_utf8(text.get(spot.at.clone())?).ok()?;
    if let Some(inside) = written.strip_prefix('\'') {
        return Some(inside.strip_suffix('\'')?.replace("''", "'").into());
    }
    Some(written.strip_prefix("$$")?.strip_suffix("$$")?.into())
}

impl Marked for Marker {
    fn position(&self) -> usize {
        self.position
    }

    fn name(&self) -> &str {
        &self.name
    }
}

impl Lookups {
    /// Replaces names that are bound.
    pub(super) fn values(
        &self,
        renames: &Renames,
        request: &Request<'_>,
        number: usize,
        changes: &mut Vec<Change>,
    ) -> Result<(), Refused> {
        if self.markers.is_empty() {
            return Ok(());
        }
        let bound = request.bound(number);
        let bound = bound_to(&bound, &self.markers);
        let mut keyspaces = bound.iter().filter(|(_, marker)| marker.of == Of::Keyspace);
        let keyspace = match (&self.keyspace, keyspaces.next(), keyspaces.next()) {
            (Some(keyspace), ..) => Some(&**keyspace),
            (None, Some((one, marker)), None) if !marker.is_list => text_of(one),
            _ => None,
        };
        for (value, marker) in &bound {
            let called = |name: &str| match marker.of {
                Of::Keyspace => Ok(Some(renames.database_keyspace(name).to_owned())),
                Of::Table => table(renames, keyspace, name).map(|name| name.map(str::to_owned)),
            };
            let new = match (marker.is_list, value.value) {
                (true, Value::Is(bytes)) => list(bytes, called)?,
                (false, _) => match text_of(value) {
                    Some(name) => called(name)?.map(String::into_bytes),
                    None => None,
                },
                _ => None,
            };
            if let Some(new) = new
                && value.value != Value::Is(&new)
            {
                changes.extend(value.becomes(Value::Is(&new)));
            }
        }
        Ok(())
    }
}

fn text_of<'b>(bound: &'b Bound<'_>) -> Option<&'b str> {
    match bound.value {
        Value::Is(bytes) => std::str::from_utf8(bytes).ok(),
        Value::Null | Value::Unset => None,
    }
}

/// A list of texts, each of them called otherwise if it is (`native_protocol_v5.spec` §6, `list`). `None`: it
/// is none.
fn list(
    bytes: &[u8],
    called: impl Fn(&str) -> Result<Option<String>, Refused>,
) -> Result<Option<Vec<u8>>, Refused> {
    let mut from = cql::wire::Cursor::new(bytes);
    let count = from.int().and_then(|count| usize::try_from(count).ok());
    let Some(count) = count.filter(|count| *count <= MAX_LISTED) else {
        return Err(refused());
    };
    let mut to = bytes.get(..4).unwrap_or_default().to_vec();
    for _ in 0..count {
        let element = from
            .bytes()
            .and_then(|bytes| std::str::from_utf8(bytes).ok());
        let name = element.ok_or_else(refused)?;
        let called = called(name)?;
        let name = called.as_deref().unwrap_or(name);
        to.extend((name.len() as i32).to_be_bytes());
        to.extend_from_slice(name.as_bytes());
    }
    Ok(Some(to))
}

/// Rows of such a table, as the client may know them. True: something has changed.
pub(super) fn show(renames: &Renames, lookups: &Lookups, response: &mut Response<'_>) -> bool {
    let mut changed = false;
    response.edit_rows(|columns, cells| {
        let (stays, told) = match (columns, &mut *cells) {
            ([column], [cell]) if column.name == JSON => show_json(renames, &lookups.columns, cell),
            _ => show_row(renames, &lookups.columns, columns, cells),
        };
        changed |= told || !stays;
        stays
    });
    changed
}

/// The names of a row, as the client may know them. `None`: the row is hidden from it.
fn told_names<'r>(renames: &'r Renames, names: &[(Of, String)]) -> Option<Vec<Option<&'r str>>> {
    let keyspace = names.iter().find(|(of, _)| *of == Of::Keyspace);
    let Some((_, keyspace)) = keyspace else {
        return Some(vec![None; names.len()]);
    };
    let told = names.iter().map(|(of, name)| match of {
        Of::Keyspace if renames.hides(name, None) => None,
        Of::Keyspace => Some(Names::keyspace(renames, name)),
        Of::Table if renames.hides(keyspace, Some(name)) => None,
        Of::Table => Some(Names::table(renames, keyspace, name)),
    });
    told.collect()
}

/// Whether it stays, and whether it was changed.
fn show_row(
    renames: &Renames,
    known: &Columns,
    columns: &[Column<'_>],
    cells: &mut [Cell<'_>],
) -> (bool, bool) {
    let mut places = Vec::new();
    let mut names = Vec::new();
    for (place, (column, cell)) in columns.iter().zip(&*cells).enumerate() {
        let of = known
            .of_rows(column.name)
            .filter(|_| TEXTS.contains(&column.kind));
        let name = cell
            .as_deref()
            .and_then(|bytes| std::str::from_utf8(bytes).ok());
        if let (Some(of), Some(name)) = (of, name) {
            places.push(place);
            names.push((of, name.to_owned()));
        }
    }
    let Some(told) = told_names(renames, &names) else {
        return (false, true);
    };
    let mut changed = false;
    for (place, told) in places.into_iter().zip(told) {
        if let (Some(cell), Some(told)) = (cells.get_mut(place), told) {
            *cell = Some(Cow::Owned(told.as_bytes().to_vec()));
            changed = true;
        }
    }
    (true, changed)
}

/// Whether a row in JSON stays, and whether it was changed. One that cannot be read is hidden: nobody can tell what is in it.
fn show_json(renames: &Renames, known: &Columns, cell: &mut Cell<'_>) -> (bool, bool) {
    let Some(text) = cell
        .as_deref()
        .and_then(|bytes| std::str::from_utf8(bytes).ok())
    else {
        return (cell.is_none(), false);
    };
    let Some(members) = json::strings(text) else {
        return (false, true);
    };
    let of = |member: &json::Member| known.of_rows(&member.key);
    let members: Vec<_> = members
        .into_iter()
        .filter_map(|member| Some((of(&member)?, member)))
        .collect();
    let names: Vec<_> = members
        .iter()
        .map(|(of, member)| (*of, member.value.clone()))
        .collect();
    let Some(told) = told_names(renames, &names) else {
        return (false, true);
    };
    // Names that are told are of letters, digits and underscores: nothing in them is to be escaped.
    let told = members.into_iter().zip(told);
    let edits: Edits = told
        .filter_map(|((_, member), told)| Some((member.at, format!("\"{}\"", told?))))
        .collect();
    if edits.is_empty() {
        return (true, false);
    }
    *cell = Some(Cow::Owned(edited(text.as_bytes(), edits)));
    (true, true)
}
