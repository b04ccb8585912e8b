//! What is to be done to a statement that was prepared.

use std::sync::Arc;

use super::plan::{Column, Columns, Place, Reads, Touches};
use super::refusal::Why;
use crate::analysis::columns::Given;
use crate::edit::{Bindings, Spec};

/// See the module.
#[derive(Debug)]
pub(super) struct Ready {
    /// How many values it takes.
    pub(super) values: usize,
    pub(super) binds: Vec<Bind>,
    pub(super) reads: Option<Arc<Reads>>,
}

/// A value that is encrypted.
#[derive(Clone, Debug)]
pub(super) struct Bind {
    /// Which one, where values go by their places.
    pub(super) place: usize,
    /// Where they go by names.
    pub(super) name: Box<str>,
    pub(super) column: Arc<Column>,
}

/// The types ascii, blob and varchar (`native_protocol_v5.spec` §4.2.5.2).
const HOLDING: [u16; 3] = [0x01, 0x03, 0x0D];

/// Whether a column of this type can hold an envelope.
pub(super) fn holds(kind: u16) -> bool {
    HOLDING.contains(&kind)
}

impl Ready {
    /// What the text has told, held against what the database says. `Err`: the statement is not to be used.
    pub(super) fn of(
        columns: &Columns,
        touches: &Touches,
        found: Option<Bindings<'_>>,
    ) -> Result<Self, Why> {
        let Some(found) = found else {
            return Err(Why::Unknown("a table".into()));
        };
        let mut binds = Vec::new();
        for place in &touches.places {
            let bind = bind(place, touches, &found.values);
            let bind = bind.ok_or_else(|| Why::Markers(place.column.label()))?;
            let spec = found.values.get(bind.place);
            if !spec.is_some_and(|spec| holds(spec.kind)) {
                return Err(Why::Type(bind.column.label()));
            }
            if found.keys.iter().any(|key| usize::from(*key) == bind.place) {
                return Err(Why::Key(bind.column.label()));
            }
            binds.push(bind);
        }
        // What the text has not told.
        for (place, spec) in found.values.iter().enumerate() {
            let column = columns.column(spec.keyspace, spec.table, spec.name);
            if let Some(column) = column
                && !binds.iter().any(|bind| bind.place == place)
                && is_unnamed(touches, place)
            {
                return Err(Why::Value(column.label()));
            }
        }
        if let (Some(reads), Some(result)) = (&touches.reads, &found.result) {
            for (place, spec) in result.iter().enumerate() {
                let column = reads.at(place, result.len(), spec.name);
                let column = column.map_err(|()| Why::Unknown(spec.table.into()))?;
                if let Some(column) = column
                    && !holds(spec.kind)
                {
                    return Err(Why::Type(column.label()));
                }
            }
        }
        Ok(Self {
            values: found.values.len(),
            binds,
            reads: touches.reads.clone(),
        })
    }
}

/// The same of one whose text touches no protected column.
pub(super) fn touches_nothing(columns: &Columns, found: Option<Bindings<'_>>) -> Result<(), Why> {
    let values = found.iter().flat_map(|found| &found.values);
    let mut protected =
        values.filter_map(|spec| columns.column(spec.keyspace, spec.table, spec.name));
    match protected.next() {
        Some(column) => Err(Why::Value(column.label())),
        None => Ok(()),
    }
}

/// The marker at this place is called as its column, not as somebody has named it.
fn is_unnamed(touches: &Touches, place: usize) -> bool {
    touches.markers.get(place).is_none_or(|name| name.is_none())
}

fn bind(place: &Place, touches: &Touches, specs: &[Spec<'_>]) -> Option<Bind> {
    let Given::Marker(number) = place.given else {
        return None;
    };
    let column = &place.column;
    let is_of_table =
        |spec: &Spec<'_>| *spec.keyspace == *column.keyspace && *spec.table == *column.table;
    let place = match touches.markers.get(number)? {
        // Some databases have one value for all markers of a name, so that those behind it move.
        Some(name) => {
            let is = |spec: &Spec<'_>| *spec.name == **name;
            let place = specs.iter().position(is)?;
            if specs.iter().filter(|spec| is(spec)).count() > 1 {
                return None;
            }
            place
        }
        None => {
            let same = specs.len() == touches.markers.len();
            let spec = specs.get(number).filter(|_| same)?;
            if *spec.name != *column.name {
                return None;
            }
            number
        }
    };
    let spec = specs.get(place).filter(|spec| is_of_table(spec))?;
    Some(Bind {
        place,
        name: spec.name.into(),
        column: column.clone(),
    })
}
