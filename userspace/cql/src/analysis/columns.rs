//! Where a text has columns: which it writes, and by what; which it selects; and where else it names any.
//!
//! For texts whose shape is known, so that they follow the grammar ([`Analysis`](super::Analysis)). What
//! goes another way here is `None`, as there.

use std::ops::Range;

use super::token::{Token, Tokens};
use crate::lex::Name;

/// What a SELECT, INSERT, UPDATE, DELETE, or a text `BEGIN .. BATCH ..` does with columns.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Touched {
    /// One; of a batch's text one for each statement.
    pub(crate) parts: Vec<Part>,
    /// Every marker of the text in its order: `:name` has a name, `?` none.
    pub(crate) markers: Vec<Option<Box<str>>>,
}

/// One statement.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Part {
    /// Where the text names it.
    pub(crate) keyspace: Option<Box<str>>,
    pub(crate) table: Box<str>,
    pub(crate) does: Does,
    /// Every name behind what is written, or selected: columns that are compared, ordered or grouped by are
    /// among them.
    pub(crate) mentions: Vec<Box<str>>,
    /// IF: it is answered by rows.
    pub(crate) conditional: bool,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Does {
    Selects {
        json: bool,
        what: Selected,
    },
    Writes(Vec<Written>),
    /// INSERT .. JSON
    WritesJson,
    Deletes,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Selected {
    /// `*`
    All,
    These(Vec<Item>),
}

/// One of the columns of a result.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Item {
    /// A column as it is, whatever it is called in the result.
    Column(Box<str>),
    /// Something else, that has these names in it; none that shows nothing of a column's value.
    Other(Vec<Box<str>>),
}

/// A column that is written.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Written {
    pub(crate) column: Box<str>,
    pub(crate) by: Given,
}

/// What stands for a value. Ranges are of bytes of the text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Given {
    Null,
    /// The marker with this number.
    Marker(usize),
    /// `'..'` or `$$..$$`, with its quotes.
    Text(Range<usize>),
    /// `0x..`
    Blob(Range<usize>),
    /// A function, a collection, a change to what is there, and so on.
    Other,
}

/// A token, or a marker that is two of them.
#[derive(Clone, Debug)]
enum Bit<'t> {
    Name(Name<'t>),
    Marker(usize),
    Literal(Range<usize>),
    Sign(u8),
}

/// Functions whose results tell nothing of the values of their only argument.
const HARMLESS: [&str; 4] = ["count", "maxwritetime", "ttl", "writetime"];

/// `None`: not understood, or a statement of another kind.
pub(crate) fn touched(text: &[u8]) -> Option<Touched> {
    let (bits, markers) = bits(text)?;
    let mut bits = &bits[..];
    while let Some((Bit::Sign(b';'), before)) = bits.split_last() {
        bits = before;
    }
    let first = bits.first()?;
    let parts = if first.is("select") {
        vec![select(bits)?]
    } else if first.is("begin") {
        batch(text, bits)?
    } else {
        let (part, rest) = change(text, bits)?;
        if !rest.is_empty() {
            return None;
        }
        vec![part]
    };
    Some(Touched { parts, markers })
}

/// Every name in a text, and whether it has a `*`; `None`: it is not understood.
pub(crate) fn names(text: &[u8]) -> Option<(Vec<Box<str>>, bool)> {
    let (bits, _) = bits(text)?;
    let all = bits.iter().any(|bit| matches!(bit, Bit::Sign(b'*')));
    Some((mentions(&bits), all))
}

/// The text's bits, and its markers.
type Bits<'t> = (Vec<Bit<'t>>, Vec<Option<Box<str>>>);

fn bits(text: &[u8]) -> Option<Bits<'_>> {
    let mut tokens = Tokens::new(text);
    let mut bits = Vec::new();
    let mut markers = Vec::new();
    loop {
        let (token, range) = tokens.next_within(text.len());
        bits.push(match token {
            Token::End => return Some((bits, markers)),
            Token::Bad => return None,
            Token::Word(word) => Bit::Name(Name::Folded(word)),
            Token::Quoted(name) => Bit::Name(Name::Quoted(name)),
            Token::Integer(_) | Token::Literal => Bit::Literal(range),
            Token::Marker => {
                markers.push(None);
                Bit::Marker(markers.len() - 1)
            }
            Token::Sign(b':') => match marker_name(tokens) {
                Some(name) => {
                    tokens.next();
                    markers.push(Some(name.to_boxed()));
                    Bit::Marker(markers.len() - 1)
                }
                None => Bit::Sign(b':'),
            },
            Token::Sign(sign) => Bit::Sign(sign),
        });
    }
}

/// Of a marker whose colon has passed. In a map, NULL or a function may follow one, too.
fn marker_name(mut ahead: Tokens<'_>) -> Option<Name<'_>> {
    let name = match ahead.next() {
        Token::Word(word) if !word.eq_ignore_ascii_case("null") => Name::Folded(word),
        Token::Quoted(name) => Name::Quoted(name),
        _ => return None,
    };
    let is_function = matches!(ahead.next(), Token::Sign(b'(' | b'.'));
    (!is_function).then_some(name)
}

impl Bit<'_> {
    fn is(&self, keyword: &str) -> bool {
        matches!(self, Bit::Name(Name::Folded(word)) if word.eq_ignore_ascii_case(keyword))
    }

    fn name(&self) -> Option<Box<str>> {
        match self {
            Bit::Name(name) => Some(name.to_boxed()),
            _ => None,
        }
    }
}

fn mentions(bits: &[Bit<'_>]) -> Vec<Box<str>> {
    bits.iter().filter_map(Bit::name).collect()
}

/// Where the first of these is that stands in no bracket.
fn find(bits: &[Bit<'_>], is: impl Fn(&Bit<'_>) -> bool) -> Option<usize> {
    let mut depth = 0_usize;
    bits.iter().position(|bit| {
        match bit {
            Bit::Sign(b'(' | b'[' | b'{') => depth += 1,
            Bit::Sign(b')' | b']' | b'}') => depth = depth.saturating_sub(1),
            _ => {}
        }
        depth == 0 && is(bit)
    })
}

/// What stands between commas, but those in brackets.
fn split<'b, 't>(mut bits: &'b [Bit<'t>]) -> Vec<&'b [Bit<'t>]> {
    let mut pieces = Vec::new();
    while let Some(at) = find(bits, |bit| matches!(bit, Bit::Sign(b','))) {
        let (piece, rest) = bits.split_at(at);
        pieces.push(piece);
        bits = rest.get(1..).unwrap_or_default();
    }
    pieces.push(bits);
    pieces
}

/// Behind a keyword that stands first.
fn behind<'b, 't>(bits: &'b [Bit<'t>], keyword: &str) -> Option<&'b [Bit<'t>]> {
    let (first, rest) = bits.split_first()?;
    first.is(keyword).then_some(rest)
}

/// `t` or `ks.t`, and what is behind it.
type Table<'b, 't> = (Option<Box<str>>, Box<str>, &'b [Bit<'t>]);

fn table<'b, 't>(bits: &'b [Bit<'t>]) -> Option<Table<'b, 't>> {
    let (first, rest) = bits.split_first()?;
    match rest {
        [Bit::Sign(b'.'), second, rest @ ..] => Some((Some(first.name()?), second.name()?, rest)),
        _ => Some((None, first.name()?, rest)),
    }
}

/// What stands in the parenthesis at hand, and what is behind it.
fn parenthesis<'b, 't>(bits: &'b [Bit<'t>]) -> Option<(&'b [Bit<'t>], &'b [Bit<'t>])> {
    if !matches!(bits.first()?, Bit::Sign(b'(')) {
        return None;
    }
    // Its end is the first place at which no bracket is open.
    let end = find(bits, |_| true)?;
    Some((bits.get(1..end)?, bits.get(end + 1..)?))
}

fn select(bits: &[Bit<'_>]) -> Option<Part> {
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

fn batch(text: &[u8], bits: &[Bit<'_>]) -> Option<Vec<Part>> {
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
fn change<'b, 't>(text: &[u8], bits: &'b [Bit<'t>]) -> Option<(Part, &'b [Bit<'t>])> {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Touched {
        touched(text.as_bytes()).unwrap_or_else(|| panic!("not understood: {text}"))
    }

    fn part(text: &str) -> Part {
        let mut parts = of(text).parts;
        assert_eq!(parts.len(), 1, "{text}");
        parts.remove(0)
    }

    fn written(text: &str) -> Vec<(String, Given)> {
        match part(text).does {
            Does::Writes(written) => written
                .into_iter()
                .map(|one| (one.column.into(), one.by))
                .collect(),
            other => panic!("{text}: {other:?}"),
        }
    }

    fn selected(text: &str) -> Vec<Item> {
        match part(text).does {
            Does::Selects {
                json: false,
                what: Selected::These(items),
            } => items,
            other => panic!("{text}: {other:?}"),
        }
    }

    #[test]
    fn what_is_written_and_by_what() {
        let text = "INSERT INTO ks.T (a, \"B\", c, d, e, f, g) VALUES (?, 'x''y', 0xAB, NULL, uuid(), {1, 2}, 7)";
        let at = |what: &str| {
            let start = text.find(what).unwrap();
            start..start + what.len()
        };
        let name = |name: &str, given| (name.to_owned(), given);
        assert_eq!(
            written(text),
            [
                name("a", Given::Marker(0)),
                name("B", Given::Text(at("'x''y'"))),
                name("c", Given::Blob(at("0xAB"))),
                name("d", Given::Null),
                name("e", Given::Other),
                name("f", Given::Other),
                name("g", Given::Other),
            ]
        );
        let part = part(text);
        assert_eq!((part.keyspace.as_deref(), &*part.table), (Some("ks"), "t"));
        assert!(!part.conditional);
    }

    #[test]
    fn an_update_writes_what_it_sets() {
        let text = "UPDATE t USING TTL ? AND TIMESTAMP 5 SET a = ?, b = b + ?, c[1] = ?, d += ?, e.f = ?, \
                    g = (text)'x', h = $$it's$$ WHERE k = ? IF a = ?";
        let found: Vec<_> = written(text);
        let names: Vec<&str> = found.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["a", "b", "c", "d", "e", "g", "h"]);
        assert_eq!(found[0].1, Given::Marker(1));
        for (name, given) in &found[1..6] {
            assert_eq!(*given, Given::Other, "{name}");
        }
        assert!(matches!(found[6].1, Given::Text(_)));
        let part = part(text);
        assert!(part.conditional);
        assert_eq!(of(text).markers.len(), 8);
        let mentions: Vec<&str> = part.mentions.iter().map(|name| &**name).collect();
        assert_eq!(mentions, ["where", "k", "if", "a"]);
    }

    #[test]
    fn what_is_selected_and_what_hides() {
        let column = |name: &str| Item::Column(name.into());
        let other = |names: &[&str]| Item::Other(names.iter().map(|n| (*n).into()).collect());
        assert_eq!(
            selected(
                "SELECT a, A AS x, \"A\" as \"as\", f(a), count(*), writetime(a) AS w, ttl(a), max(a), \
                 CAST(a AS blob), a[1], json FROM t"
            ),
            [
                column("a"),
                column("a"),
                column("A"),
                other(&["f", "a"]),
                other(&["count"]),
                other(&[]),
                other(&[]),
                other(&["max", "a"]),
                other(&["cast", "a", "as", "blob"]),
                other(&["a"]),
                column("json"),
            ]
        );
        assert!(matches!(
            part("SELECT * FROM t").does,
            Does::Selects {
                json: false,
                what: Selected::All
            }
        ));
        assert!(matches!(
            part("SELECT JSON * FROM t").does,
            Does::Selects {
                json: true,
                what: Selected::All
            }
        ));
        assert_eq!(selected("SELECT DISTINCT a FROM t"), [column("a")]);
        let mentions = part("SELECT a FROM t WHERE b = :a AND c IN ? ORDER BY \"D\"").mentions;
        let mentions: Vec<&str> = mentions.iter().map(|name| &**name).collect();
        assert_eq!(
            mentions,
            ["where", "b", "and", "c", "in", "order", "by", "D"]
        );
    }

    #[test]
    fn markers_are_counted_wherever_they_are() {
        let text = "BEGIN BATCH USING TIMESTAMP ? INSERT INTO a (x, y) VALUES ({?, 'k': ?}, :Name); \
                    UPDATE b SET m[?] = ? WHERE k = ? DELETE z FROM c WHERE k = :\"Q\" APPLY BATCH;";
        let touched = of(text);
        let names: Vec<_> = touched.markers.iter().map(Option::as_deref).collect();
        let expected = [None, None, None, Some("name"), None, None, None, Some("Q")];
        assert_eq!(names, expected);
        let tables: Vec<&str> = touched.parts.iter().map(|part| &*part.table).collect();
        assert_eq!(tables, ["a", "b", "c"]);
        let Does::Writes(written) = &touched.parts[0].does else {
            panic!("it writes")
        };
        assert_eq!(written[1].by, Given::Marker(3));
        // What follows a colon in a map is not always a marker.
        let text =
            "INSERT INTO a (m, x) VALUES ({a: null, b: f(1), c: ks.f(2), d: true, e: :x}, ?)";
        assert_eq!(of(text).markers, [Some("x".into()), None]);
    }

    #[test]
    fn what_goes_another_way_is_nothing() {
        for text in [
            "",
            "CREATE TABLE t (a int PRIMARY KEY)",
            "INSERT INTO t (a, b) VALUES (1)",
            "INSERT INTO t (a) VALUES (1",
            "UPDATE t SET a = 1",
            "SELECT a",
            "INSERT INTO t (a) VALUES ('open)",
            "BEGIN BATCH INSERT INTO t (a) VALUES (1)",
        ] {
            assert_eq!(touched(text.as_bytes()), None, "{text}");
        }
        assert_eq!(
            part("INSERT INTO t JSON '{}' IF NOT EXISTS").does,
            Does::WritesJson
        );
        assert!(part("DELETE a FROM t WHERE k = 1 IF EXISTS").conditional);
    }
}
