//! [`Plan`]: the handling of a statement, by its text.

use std::collections::HashMap;
use std::sync::Arc;

use super::columns::{self, Does, Given, Item, Part, Selected};
use super::envelope::Binding;
use super::refusal::Why;
use cql::StatementKind;
use cql::text::MAX_NAME_BYTES;
use cql::text::parse;
use cql::{Analysis, Object};

/// Protected columns of all tables together. It is a list that somebody keeps by hand.
pub const MAX_COLUMNS: usize = 1_024;

/// Values of protected columns in one text, or for one that is prepared. They are kept while it is known.
const MAX_PLACES: usize = 4_096;

/// A protected column.
#[derive(Debug)]
pub(super) struct Column {
    pub(super) keyspace: Box<str>,
    pub(super) table: Box<str>,
    pub(super) name: Box<str>,
    pub(super) binding: Binding,
}

impl Column {
    /// The column as people write it.
    pub(super) fn label(&self) -> Box<str> {
        format!("{}.{}.{}", self.keyspace, self.table, self.name).into()
    }
}

/// A table with protected columns.
#[derive(Debug)]
pub(super) struct Table {
    keyspace: Box<str>,
    name: Box<str>,
    columns: HashMap<Box<str>, Arc<Column>>,
}

impl Table {
    pub(super) fn column(&self, name: &str) -> Option<&Arc<Column>> {
        self.columns.get(name)
    }

    fn first_of(&self, names: &[Box<str>]) -> Option<&Arc<Column>> {
        names.iter().find_map(|name| self.column(name))
    }

    fn label(&self) -> Box<str> {
        format!("{}.{}", self.keyspace, self.name).into()
    }
}

/// The columns that are protected.
#[derive(Debug)]
pub struct Columns {
    tables: Vec<Arc<Table>>,
    /// The tables by name, in lower case.
    by_word: HashMap<Box<[u8]>, Arc<Table>>,
}

impl Columns {
    /// Protects these columns of these tables, `keyspace.table`; names are as the database stores them.
    ///
    /// # Errors
    /// What cannot be, and what is expected.
    pub fn new(of: &HashMap<String, Vec<String>>) -> Result<Self, String> {
        // What stands for a name in a text is one word.
        let is_word = |name: &str| {
            let allowed = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
            !name.is_empty() && name.len() <= MAX_NAME_BYTES && name.bytes().all(allowed)
        };
        let mut tables = Vec::new();
        let mut count = 0_usize;
        for (label, columns) in of {
            let (keyspace, table) = label
                .split_once('.')
                .filter(|(keyspace, table)| is_word(keyspace) && is_word(table))
                .filter(|_| !columns.is_empty())
                .ok_or_else(|| {
                    format!(
                        "columns: expected \"keyspace.table\" = [\"column\", ...], found {label:?}"
                    )
                })?;
            if columns.iter().any(String::is_empty) {
                return Err(format!(
                    "columns: expected names of columns of {label}, found \"\""
                ));
            }
            count += columns.len();
            tables.push(Arc::new(Table {
                keyspace: keyspace.into(),
                name: table.into(),
                columns: columns
                    .iter()
                    .map(|column| {
                        let name: Box<str> = column.as_str().into();
                        let column = Column {
                            keyspace: keyspace.into(),
                            table: table.into(),
                            name: name.clone(),
                            binding: Binding::new(keyspace, table, column),
                        };
                        (name, Arc::new(column))
                    })
                    .collect(),
            }));
        }
        match count {
            0 => Err("columns: expected \"keyspace.table\" = [\"column\", ...], found none".into()),
            1..=MAX_COLUMNS => {
                let word = |table: &Arc<Table>| table.name.to_ascii_lowercase().into_bytes();
                let by_word = tables
                    .iter()
                    .map(|table| (word(table).into(), table.clone()));
                Ok(Self {
                    by_word: by_word.collect(),
                    tables,
                })
            }
            _ => Err(format!(
                "columns: expected at most {MAX_COLUMNS}, found {count}"
            )),
        }
    }

    /// Whether a text may name a table. What names none touches none.
    pub(super) fn are_named_in(&self, text: &[u8]) -> bool {
        self.named_in(text).is_some()
    }

    /// A table that this text may name: its name is a word of it.
    fn named_in(&self, text: &[u8]) -> Option<&Arc<Table>> {
        let is_of_word = |b: &u8| b.is_ascii_alphanumeric() || *b == b'_';
        let words = text
            .split(|b| !is_of_word(b))
            .filter(|word| !word.is_empty());
        let mut lower = [0; MAX_NAME_BYTES];
        for word in words {
            if let Some(lower) = lower.get_mut(..word.len()) {
                lower.copy_from_slice(word);
                lower.make_ascii_lowercase();
                if let Some(table) = self.by_word.get(&*lower) {
                    return Some(table);
                }
            }
        }
        None
    }

    pub(super) fn column(&self, keyspace: &str, table: &str, name: &str) -> Option<&Arc<Column>> {
        let is = |t: &&Arc<Table>| *t.keyspace == *keyspace && *t.name == *table;
        self.tables.iter().find(is)?.column(name)
    }

    /// The protected one that a statement in this keyspace means, if it is one.
    fn table(&self, part: &Part, keyspace: Option<&str>) -> Result<Option<&Arc<Table>>, Why> {
        let mut same = self.tables.iter().filter(|table| table.name == part.table);
        match part.keyspace.as_deref().or(keyspace) {
            Some(keyspace) => Ok(same.find(|table| *table.keyspace == *keyspace)),
            None => match same.next() {
                Some(_) => Err(Why::Keyspace(part.table.clone())),
                None => Ok(None),
            },
        }
    }
}

/// The handling of a statement.
#[derive(Clone, Debug)]
pub(super) enum Plan {
    /// Nothing: it touches no table with protected columns.
    Passes,
    /// The statement touches protected columns.
    Touches(Touches),
    /// The statement does not pass.
    Refused(Why),
}

#[derive(Clone, Debug)]
pub(super) struct Touches {
    /// The places of values of protected columns.
    pub(super) places: Vec<Place>,
    /// How many markers there are.
    pub(super) markers: usize,
    /// Some of them have names.
    pub(super) any_named: bool,
    pub(super) reads: Option<Arc<Reads>>,
}

impl Touches {
    /// Some value is in the text.
    pub(super) fn literal(&self) -> Option<&Place> {
        let is_literal = |place: &&Place| !matches!(place.given, Given::Marker(_));
        self.places.iter().find(is_literal)
    }
}

/// The place of a value of a column.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) column: Arc<Column>,
    pub(super) given: Given,
    /// The marker's, if it is one with a name.
    pub(super) name: Option<Box<str>>,
}

/// The protected columns of a result.
#[derive(Debug)]
pub(super) enum Reads {
    /// The columns that have the names of this table's protected ones.
    Named(Arc<Table>),
    /// The columns at these positions.
    Placed(Vec<Option<Arc<Column>>>),
}

impl Reads {
    /// The protected column at this position among so many, which has this name in the result. `Err`:
    /// the result is not that of the statement.
    pub(super) fn at(
        &self,
        place: usize,
        of: usize,
        name: &str,
    ) -> Result<Option<&Arc<Column>>, ()> {
        match self {
            Self::Named(table) => Ok(table.column(name)),
            Self::Placed(columns) if columns.len() == of => {
                Ok(columns.get(place).and_then(Option::as_ref))
            }
            Self::Placed(_) => Err(()),
        }
    }
}

impl Plan {
    /// The plan for this text, where the flow is in this keyspace.
    pub(super) fn of(columns: &Columns, text: &[u8], keyspace: Option<&str>) -> Self {
        let Some(table) = columns.named_in(text) else {
            return Self::Passes;
        };
        use StatementKind as S;
        let planned = match parse(text, text.len()).statement.kind {
            S::Select | S::Insert | S::Update | S::Delete | S::Batch => {
                let understood = Analysis::of(text, text.len()).shape.is_some();
                let touched = understood.then(|| columns::touched(text)).flatten();
                match touched {
                    Some(touched) => data(columns, touched, keyspace),
                    None => Err(Why::Unknown(table.label())),
                }
            }
            S::Create => definition(columns, text, table),
            // None of them writes a value, or reads one.
            S::Use
            | S::Truncate
            | S::Alter
            | S::Drop
            | S::Grant
            | S::Revoke
            | S::List
            | S::Describe => Ok(Self::Passes),
            _ => Err(Why::Unknown(table.label())),
        };
        planned.unwrap_or_else(Self::Refused)
    }
}

/// A CREATE of whatever.
fn definition(columns: &Columns, text: &[u8], table: &Arc<Table>) -> Result<Plan, Why> {
    let object = Analysis::of(text, text.len()).object;
    let Some(object @ (Object::Index | Object::MaterializedView)) = object else {
        return Ok(Plan::Passes);
    };
    let Some((names, all)) = columns::names(text) else {
        return Err(Why::Unknown(table.label()));
    };
    let is_named = |table: &&Arc<Table>| names.contains(&table.name);
    for table in columns.tables.iter().filter(is_named) {
        let column = table.first_of(&names);
        match (object, column) {
            (Object::Index, Some(column)) => return Err(Why::Index(column.label())),
            (Object::MaterializedView, found) if all || found.is_some() => {
                return Err(Why::View(table.label()));
            }
            _ => {}
        }
    }
    Ok(Plan::Passes)
}

/// A statement that reads or changes data.
fn data(columns: &Columns, touched: columns::Touched, keyspace: Option<&str>) -> Result<Plan, Why> {
    let mut places = Vec::new();
    let mut reads = None;
    let mut any_protected = false;
    for part in touched.parts {
        let Some(table) = columns.table(&part, keyspace)? else {
            continue;
        };
        any_protected = true;
        if let Some(column) = table.first_of(&part.mentions) {
            return Err(Why::Predicate(column.label()));
        }
        if part.conditional {
            reads = Some(Arc::new(Reads::Named(table.clone())));
        }
        match part.does {
            Does::Deletes => {}
            Does::WritesJson => return Err(Why::Json(table.label())),
            Does::Selects { json, what } => {
                reads = selected(table, json, what)?;
            }
            Does::Writes(written) => {
                for written in written {
                    let Some(column) = table.column(&written.column) else {
                        continue;
                    };
                    match written.by {
                        Given::Null => {}
                        Given::Other => return Err(Why::Value(column.label())),
                        _ if places.len() >= MAX_PLACES => return Err(Why::TooLarge),
                        given => places.push(Place {
                            name: match given {
                                Given::Marker(number) => touched.markers.get(number).cloned(),
                                _ => None,
                            }
                            .flatten(),
                            column: column.clone(),
                            given,
                        }),
                    }
                }
            }
        }
    }
    if let Some(place) = ambiguous(&places, &touched.markers) {
        return Err(Why::Markers(place.column.label()));
    }
    Ok(match any_protected {
        false => Plan::Passes,
        true => Plan::Touches(Touches {
            places,
            markers: touched.markers.len(),
            any_named: touched.markers.iter().any(Option::is_some),
            reads,
        }),
    })
}

/// A place whose marker stands elsewhere, too, or where some markers have names and others have none: what
/// is bound to it depends on the database.
fn ambiguous<'p>(places: &'p [Place], markers: &[Option<Box<str>>]) -> Option<&'p Place> {
    let mut times: HashMap<&str, usize> = HashMap::new();
    for name in markers.iter().flatten() {
        *times.entry(name).or_default() += 1;
    }
    let is_mixed = !times.is_empty() && markers.contains(&None);
    places.iter().find(|place| {
        let is_marker = matches!(place.given, Given::Marker(_));
        let name = place.name.as_deref();
        is_marker && (is_mixed || name.is_some_and(|name| times.get(name) != Some(&1)))
    })
}

/// The protected columns of a result.
fn selected(table: &Arc<Table>, json: bool, what: Selected) -> Result<Option<Arc<Reads>>, Why> {
    let items = match what {
        Selected::All if json => return Err(Why::Json(table.label())),
        Selected::All => return Ok(Some(Arc::new(Reads::Named(table.clone())))),
        Selected::These(items) => items,
    };
    let mut places = Vec::with_capacity(items.len());
    for item in items {
        places.push(match item {
            Item::Column(name) => table.column(&name).cloned(),
            Item::Other(names) => match table.first_of(&names) {
                Some(column) => return Err(Why::Hidden(column.label())),
                None => None,
            },
        });
    }
    if !places.iter().any(Option::is_some) {
        return Ok(None);
    }
    match json {
        true => Err(Why::Json(table.label())),
        false => Ok(Some(Arc::new(Reads::Placed(places)))),
    }
}
