//! Values on their way to the database.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use super::Step;
use super::columns::Given;
use super::envelope::{Binding, seal as sealed};
use super::keys::{Fate, KeySet, Vault};
use super::plan::{Column, Plan, Touches};
use super::ready::Ready;
use super::refusal::Why;
use crate::{Bound, Change, Request, Statement, Value};

/// The most bytes that the values of one request may become together. With the rest of the request, that is
/// well below the longest body that there can be.
const MAX_SEALED_BYTES: usize = 64 << 20;

/// Encrypts what a request writes to protected columns. True: it has changed.
pub(super) fn seal(
    request: &mut Request<'_>,
    steps: &[Step],
    vault: &dyn Vault,
) -> Result<bool, Why> {
    let mut sealer = Sealer {
        vault,
        keys: None,
        values: 0,
        bytes: 0,
    };
    let changes = changes(request, steps, &mut sealer)?;
    if changes.is_empty() {
        return Ok(false);
    }
    if !request.try_change(changes) {
        return Err(Why::TooLarge);
    }
    vault.count(Fate::Encrypted, sealer.values);
    Ok(true)
}

fn changes(
    request: &Request<'_>,
    steps: &[Step],
    sealer: &mut Sealer<'_>,
) -> Result<Vec<Change>, Why> {
    let mut changes = Vec::new();
    // Of each statement, what of its values is to be encrypted.
    let mut all_wanted = Vec::with_capacity(steps.len());
    for (number, (step, statement)) in steps.iter().zip(request.statements()).enumerate() {
        all_wanted.push(match (step, statement) {
            (Step::Prepared(Some(ready)), _) => Wanted::of_ready(ready),
            (Step::Text(plan), Statement::Text(text)) => match &**plan {
                Plan::Touches(touches) => {
                    if let Some(text) = literals(touches, text, sealer)? {
                        changes.extend(request.text_becomes(number, &text));
                    }
                    Wanted::of_text(touches)
                }
                _ => Wanted::default(),
            },
            _ => Wanted::default(),
        });
    }
    let any = all_wanted.iter().find_map(|wanted| wanted.values.first());
    let Some((_, any, _)) = any else {
        return Ok(changes);
    };
    let mut statements = all_wanted.iter();
    let shown = request.each_bound(|bound| {
        let Some(wanted) = statements.next() else {
            return Ok(());
        };
        let Some((_, first, _)) = wanted.values.first() else {
            return Ok(());
        };
        let places = wanted.places(bound);
        for (place, column) in places.ok_or_else(|| Why::Markers(first.label()))? {
            let Some(bound) = bound.get(place) else {
                return Err(Why::Markers(column.label()));
            };
            if let Value::Is(plain) = bound.value {
                let new = sealer.seal(&column.binding, plain)?;
                changes.push(bound.becomes(Value::Is(&new)).ok_or(Why::TooLarge)?);
            }
        }
        Ok(())
    })?;
    match shown {
        true => Ok(changes),
        false => Err(Why::Markers(any.label())),
    }
}

/// The values of a statement that are to be encrypted: place, column and name.
#[derive(Default)]
struct Wanted<'p> {
    values: Vec<(usize, &'p Column, &'p str)>,
    /// How many it takes.
    count: usize,
}

impl<'p> Wanted<'p> {
    fn of_ready(ready: &'p Ready) -> Self {
        let values = ready.binds.iter();
        Self {
            values: values
                .map(|bind| (bind.place, &*bind.column, &*bind.name))
                .collect(),
            count: ready.values,
        }
    }

    fn of_text(touches: &'p Touches) -> Self {
        let values = touches.places.iter().filter_map(|place| {
            let Given::Marker(number) = place.given else {
                return None;
            };
            // A marker without a name goes by its column's.
            let name = place.name.as_ref().unwrap_or(&place.column.name);
            Some((number, &*place.column, &**name))
        });
        Self {
            values: values.collect(),
            count: touches.markers,
        }
    }

    /// The positions of the values among what is bound, each another. `None`: they cannot be told, and
    /// any value could be one of them.
    fn places(&self, bound: &[Bound<'_>]) -> Option<Vec<(usize, &'p Column)>> {
        let values = self.values.iter();
        if bound.first()?.name.is_none() {
            let places = values.map(|(place, column, _)| (*place, *column));
            return (bound.len() == self.count).then(|| places.collect());
        }
        // None: there are several of that name.
        let mut by_name: HashMap<&[u8], Option<usize>> = HashMap::with_capacity(bound.len());
        for (place, value) in bound.iter().enumerate() {
            let known = by_name.entry(value.name?);
            known
                .and_modify(|known| *known = None)
                .or_insert(Some(place));
        }
        // What is taken is gone.
        let places = values.map(|(_, column, name)| {
            let place = by_name.remove(name.as_bytes())??;
            Some((place, *column))
        });
        places.collect()
    }
}

/// The text with the values in it encrypted; `None`: there are none.
fn literals(
    touches: &Touches,
    text: &[u8],
    sealer: &mut Sealer<'_>,
) -> Result<Option<Vec<u8>>, Why> {
    if touches.literal().is_none() {
        return Ok(None);
    }
    let mut new = Vec::with_capacity(2 * text.len());
    let mut at = 0;
    for place in &touches.places {
        let (range, is_blob) = match &place.given {
            Given::Text(range) => (range, false),
            Given::Blob(range) => (range, true),
            _ => continue,
        };
        let unclear = || Why::Value(place.column.label());
        let literal = text.get(range.clone()).ok_or_else(unclear)?;
        let plain = match is_blob {
            true => blob(literal).map(Cow::Owned),
            false => string(literal),
        };
        let sealed = sealer.seal(&place.column.binding, &plain.ok_or_else(unclear)?)?;
        // Places are in the order of the text.
        new.extend_from_slice(text.get(at..range.start).ok_or_else(unclear)?);
        match is_blob {
            true => {
                new.extend(b"0x");
                new.extend(sealed.iter().flat_map(|byte| hex(*byte)));
            }
            false => {
                new.push(b'\'');
                new.extend(sealed);
                new.push(b'\'');
            }
        }
        at = range.end;
    }
    new.extend_from_slice(text.get(at..).unwrap_or_default());
    Ok(Some(new))
}

/// The text that `'it''s'` and `$$it's$$` stand for.
fn string(literal: &[u8]) -> Option<Cow<'_, [u8]>> {
    if let Some(inside) = literal.strip_prefix(b"$$") {
        return inside.strip_suffix(b"$$").map(Cow::Borrowed);
    }
    let inside = literal.strip_prefix(b"'")?.strip_suffix(b"'")?;
    let mut plain = Vec::with_capacity(inside.len());
    let mut bytes = inside.iter();
    while let Some(byte) = bytes.next() {
        if *byte == b'\'' && bytes.next() != Some(&b'\'') {
            return None;
        }
        plain.push(*byte);
    }
    Some(Cow::Owned(plain))
}

/// The bytes that `0xCAFE` stands for.
fn blob(literal: &[u8]) -> Option<Vec<u8>> {
    let digit = |digit: u8| char::from(digit).to_digit(16).map(|value| value as u8);
    let (pairs, rest) = literal.get(2..)?.as_chunks::<2>();
    if !rest.is_empty() {
        return None;
    }
    let bytes = pairs
        .iter()
        .map(|[high, low]| Some(digit(*high)? << 4 | digit(*low)?));
    bytes.collect()
}

fn hex(byte: u8) -> [u8; 2] {
    let digit = |value: u8| match value {
        0..=9 => b'0' + value,
        _ => b'a' + value - 10,
    };
    [digit(byte >> 4), digit(byte & 0x0F)]
}

/// Encrypts the values of one request, all by the same keys.
struct Sealer<'v> {
    vault: &'v dyn Vault,
    keys: Option<Arc<KeySet>>,
    values: u64,
    bytes: usize,
}

impl Sealer<'_> {
    fn seal(&mut self, binding: &Binding, plain: &[u8]) -> Result<Vec<u8>, Why> {
        if self.keys.is_none() {
            self.keys = self.vault.keys();
        }
        let keys = self.keys.as_ref().ok_or(Why::NoKeys)?;
        let nonce = self.vault.nonce().ok_or(Why::NoKeys)?;
        let sealed = sealed(keys, nonce, binding, plain).ok_or(Why::TooLarge)?;
        self.values += 1;
        self.bytes += sealed.len();
        match self.bytes > MAX_SEALED_BYTES {
            true => Err(Why::TooLarge),
            false => Ok(sealed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn literals_stand_for_values() {
        let found = |literal: &str| string(literal.as_bytes()).map(Cow::into_owned);
        assert_eq!(found("'it''s'").unwrap(), b"it's");
        assert_eq!(found("$$it's$$").unwrap(), b"it's");
        assert_eq!(found("''").unwrap(), b"");
        assert_eq!(found("''''").unwrap(), b"'");
        assert_eq!(found("'''"), None);
        assert_eq!(found("'a"), None);
        assert_eq!(blob(b"0x"), Some(vec![]));
        assert_eq!(blob(b"0XcAfE"), Some(vec![0xCA, 0xFE]));
        assert_eq!(blob(b"0xABC"), None);
    }

    proptest! {
        #[test]
        fn bytes_are_written_as_they_are_read(bytes: Vec<u8>) {
            let digits: Vec<u8> = bytes.iter().flat_map(|byte| hex(*byte)).collect();
            prop_assert_eq!(blob(&[b"0x", &digits[..]].concat()), Some(bytes.clone()));
            let text = String::from_utf8_lossy(&bytes).into_owned();
            let quoted = format!("'{}'", text.replace('\'', "''"));
            prop_assert_eq!(string(quoted.as_bytes()).unwrap(), text.as_bytes());
        }
    }
}
