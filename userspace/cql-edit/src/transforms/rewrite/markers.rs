//! The values that are bound to markers.

use std::collections::HashMap;

use crate::Bound;

/// A marker that is looked for.
pub(super) trait Marked {
    /// Among all markers of its statement.
    fn position(&self) -> usize;
    /// By which it is bound, where values are by name.
    fn name(&self) -> &str;
}

/// Pairs them, in one pass over both.
pub(super) fn bound_to<'b, 'm, M: Marked>(
    bound: &'b [Bound<'b>],
    markers: &'m [M],
) -> Vec<(&'b Bound<'b>, &'m M)> {
    let are_named = bound.first().is_some_and(|value| value.name.is_some());
    if !are_named {
        let at = |marker: &'m M| Some((bound.get(marker.position())?, marker));
        return markers.iter().filter_map(at).collect();
    }
    let by_name: HashMap<&[u8], &M> = markers
        .iter()
        .map(|marker| (marker.name().as_bytes(), marker))
        .collect();
    let of = |value: &'b Bound<'b>| Some((value, *by_name.get(value.name?)?));
    bound.iter().filter_map(of).collect()
}
