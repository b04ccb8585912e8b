//! The columns that a SELECT shows.

use super::bits::{Bit, behind, find, mentions, split, table};
use super::{Does, Item, Part, Selected};

/// Functions whose results tell nothing of the values of their only argument.
const HARMLESS: [&str; 4] = ["count", "maxwritetime", "ttl", "writetime"];

pub(super) fn select(bits: &[Bit<'_>]) -> Option<Part> {
    let mut bits = behind(bits, "select")?;
    let json = is_modifier(bits, "json");
    for modifier in ["json", "distinct"] {
        if is_modifier(bits, modifier) {
            bits = bits.get(1..)?;
        }
    }
    let from = find(bits, |bit| bit.is("from"))?;
    let (selected, rest) = bits.split_at(from);
    let (keyspace, table, rest) = table(rest.get(1..)?)?;
    let what = match selected {
        [Bit::Sign(b'*')] => Selected::All,
        _ => Selected::These(split(selected).into_iter().map(item).collect()),
    };
    Some(Part {
        keyspace,
        table,
        does: Does::Selects { json, what },
        mentions: mentions(rest),
        conditional: false,
    })
}

/// `word` stands first, and what follows says that it is no column of that name.
fn is_modifier(bits: &[Bit<'_>], word: &str) -> bool {
    match bits {
        [first, next, behind @ ..] if first.is(word) => match next {
            Bit::Name(_) => !next.is("from") && !next.is("as"),
            Bit::Literal(_) | Bit::Marker(_) => true,
            Bit::Sign(b'*') => behind.first().is_some_and(|bit| bit.is("from")),
            Bit::Sign(_) => false,
        },
        _ => false,
    }
}

fn item(bits: &[Bit<'_>]) -> Item {
    let bits = match bits {
        [selected @ .., alias, Bit::Name(_)] if alias.is("as") && !selected.is_empty() => selected,
        _ => bits,
    };
    match bits {
        [Bit::Name(name)] => Item::Column(name.to_boxed()),
        [function, Bit::Sign(b'('), Bit::Name(_), Bit::Sign(b')')]
            if HARMLESS.iter().any(|harmless| function.is(harmless)) =>
        {
            Item::Other(Vec::new())
        }
        _ => Item::Other(mentions(bits)),
    }
}
