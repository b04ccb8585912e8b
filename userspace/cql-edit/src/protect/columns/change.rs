//! The columns that an INSERT, UPDATE or DELETE writes, alone or in a batch.

use super::bits::{Bit, behind, find, mentions, parenthesis, split, table};
use super::{Does, Given, Part, Written};

pub(super) fn batch(text: &[u8], bits: &[Bit<'_>]) -> Option<Vec<Part>> {
    let first = find(bits, begins_change).or_else(|| find(bits, |bit| bit.is("apply")))?;
    let mut bits = bits.get(first..)?;
    let mut parts = Vec::new();
    loop {
        while let Some((Bit::Sign(b';'), rest)) = bits.split_first() {
            bits = rest;
        }
        if let [apply, batch] = bits
            && apply.is("apply")
            && batch.is("batch")
        {
            return Some(parts);
        }
        let (part, rest) = change(text, bits)?;
        parts.push(part);
        bits = rest;
    }
}

fn begins_change(bit: &Bit<'_>) -> bool {
    ["insert", "update", "delete"]
        .iter()
        .any(|verb| bit.is(verb))
}

/// INSERT, UPDATE or DELETE, and what is behind it. These words, and APPLY, are no names unless they are
/// quoted.
pub(super) fn change<'b, 't>(text: &[u8], bits: &'b [Bit<'t>]) -> Option<(Part, &'b [Bit<'t>])> {
    let (verb, behind) = bits.split_first()?;
    let ends =
        |bit: &Bit<'_>| matches!(bit, Bit::Sign(b';')) || begins_change(bit) || bit.is("apply");
    let end = find(behind, ends).unwrap_or(behind.len());
    let (own, rest) = behind.split_at(end);
    let part = if verb.is("insert") {
        insert(text, own)
    } else if verb.is("update") {
        update(text, own)
    } else if verb.is("delete") {
        delete(own)
    } else {
        None
    };
    Some((part?, rest))
}

fn insert(text: &[u8], bits: &[Bit<'_>]) -> Option<Part> {
    let (keyspace, table, rest) = table(behind(bits, "into")?)?;
    if rest.first()?.is("json") {
        return Some(Part {
            keyspace,
            table,
            does: Does::WritesJson,
            mentions: Vec::new(),
            conditional: is_conditional(rest),
        });
    }
    let (columns, rest) = parenthesis(rest)?;
    let (values, rest) = parenthesis(behind(rest, "values")?)?;
    let (columns, values) = (split(columns), split(values));
    if columns.len() != values.len() {
        return None;
    }
    let pairs = columns.into_iter().zip(values);
    let written = pairs.map(|(column, value)| match column {
        [column] => Some(Written {
            column: column.name()?,
            by: given(text, value),
        }),
        _ => None,
    });
    Some(Part {
        keyspace,
        table,
        does: Does::Writes(written.collect::<Option<_>>()?),
        mentions: mentions(rest),
        conditional: is_conditional(rest),
    })
}

fn update(text: &[u8], bits: &[Bit<'_>]) -> Option<Part> {
    let (keyspace, table, rest) = table(bits)?;
    let set = find(rest, |bit| bit.is("set"))?;
    let rest = rest.get(set + 1..)?;
    let end = find(rest, |bit| bit.is("where"))?;
    let (assignments, rest) = rest.split_at(end);
    let written = split(assignments).into_iter().map(|assignment| {
        let (column, behind) = assignment.split_first()?;
        let by = match behind {
            [Bit::Sign(b'='), value @ ..] => given(text, value),
            _ => Given::Other,
        };
        Some(Written {
            column: column.name()?,
            by,
        })
    });
    Some(Part {
        keyspace,
        table,
        does: Does::Writes(written.collect::<Option<_>>()?),
        mentions: mentions(rest),
        conditional: is_conditional(rest),
    })
}

fn delete(bits: &[Bit<'_>]) -> Option<Part> {
    let from = find(bits, |bit| bit.is("from"))?;
    let (keyspace, table, rest) = table(bits.get(from + 1..)?)?;
    Some(Part {
        keyspace,
        table,
        does: Does::Deletes,
        mentions: mentions(rest),
        conditional: is_conditional(rest),
    })
}

fn is_conditional(rest: &[Bit<'_>]) -> bool {
    find(rest, |bit| bit.is("if")).is_some()
}

fn given(text: &[u8], value: &[Bit<'_>]) -> Given {
    match value {
        [null] if null.is("null") => Given::Null,
        [Bit::Marker(number)] => Given::Marker(*number),
        [Bit::Literal(range)] => match text.get(range.clone()) {
            Some([b'\'', ..] | [b'$', ..]) => Given::Text(range.clone()),
            Some([b'0', b'x' | b'X', ..]) => Given::Blob(range.clone()),
            _ => Given::Other,
        },
        _ => Given::Other,
    }
}
