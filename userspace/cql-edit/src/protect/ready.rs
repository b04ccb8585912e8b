//! [`Ready`]: the handling of a statement that was prepared.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::columns::Given;
use super::plan::{Column, Columns, Place, Reads, Touches};
use super::refusal::Why;
use crate::{Bindings, Spec};

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
    /// The position of the value, where values go by position.
    pub(super) place: usize,
    /// The name of the value, where values go by name.
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
    /// Holds the plan of a text against the database's description of the statement. `Err`: the
    /// statement is not to be used.
    pub(super) fn of(
        columns: &Columns,
        touches: &Touches,
        found: Option<Bindings<'_>>,
    ) -> Result<Self, Why> {
        let Some(found) = found else {
            let column = touches.places.first().map(|place| place.column.label());
            return Err(column.map_or(Why::Unknown("a table".into()), Why::Markers));
        };
        // None: there are several of that name.
        let mut by_name: HashMap<&str, Option<usize>> = HashMap::new();
        for (place, spec) in found.values.iter().enumerate() {
            let known = by_name.entry(spec.name);
            known
                .and_modify(|known| *known = None)
                .or_insert(Some(place));
        }
        let mut binds = Vec::new();
        let mut places = HashSet::new();
        for place in &touches.places {
            let bind = bind(place, touches, &found.values, &by_name);
            let bind = bind.ok_or_else(|| Why::Markers(place.column.label()))?;
            let spec = found.values.get(bind.place);
            if !spec.is_some_and(|spec| holds(spec.kind)) {
                return Err(Why::Type(bind.column.label()));
            }
            if found.keys.iter().any(|key| usize::from(*key) == bind.place) {
                return Err(Why::Key(bind.column.label()));
            }
            places.insert(bind.place);
            binds.push(bind);
        }
        // What the text has not told.
        for (place, spec) in found.values.iter().enumerate() {
            let column = columns.column(spec.keyspace, spec.table, spec.name);
            if let Some(column) = column
                && !places.contains(&place)
                // A marker with a name is called as somebody likes.
                && !touches.any_named
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

/// Checks that a statement whose text touches no protected column has none by the database's description
/// either.
pub(super) fn touches_nothing(columns: &Columns, found: Option<Bindings<'_>>) -> Result<(), Why> {
    let values = found.iter().flat_map(|found| &found.values);
    let mut protected =
        values.filter_map(|spec| columns.column(spec.keyspace, spec.table, spec.name));
    match protected.next() {
        Some(column) => Err(Why::Value(column.label())),
        None => Ok(()),
    }
}

fn bind(
    place: &Place,
    touches: &Touches,
    specs: &[Spec<'_>],
    by_name: &HashMap<&str, Option<usize>>,
) -> Option<Bind> {
    let Given::Marker(number) = place.given else {
        return None;
    };
    let column = &place.column;
    let is_named = place.name.is_some();
    let place = match &place.name {
        // Some databases have one value for all markers of a name, so that those behind it move.
        Some(name) => (*by_name.get(&**name)?)?,
        None if specs.len() == touches.markers => number,
        None => return None,
    };
    let spec = specs.get(place)?;
    let is_its = *spec.keyspace == *column.keyspace
        && *spec.table == *column.table
        && (is_named || *spec.name == *column.name);
    is_its.then(|| Bind {
        place,
        name: spec.name.into(),
        column: column.clone(),
    })
}
