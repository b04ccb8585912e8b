//! [`Sites`]: where in the text of a SELECT, INSERT, UPDATE, DELETE or BATCH things stand, for who changes
//! them there.
//!
//! Only of texts that [`walk`] has followed to their end: the words that are looked for are reserved, so
//! that outside of brackets they are keywords in such a text, and nothing else.

use std::ops::Range;

use cql::StatementKind;
use cql::text::Name;
use cql::text::{MAX_DEPTH, Token, Tokens, is_understood};
use cql::{MAX_ANALYSED_BYTES, Number};

/// A token, and where in the text it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Spot<'t> {
    pub(crate) token: Token<'t>,
    pub(crate) at: Range<usize>,
}

impl<'t> Spot<'t> {
    /// The name or keyword that the token is, if it is one.
    pub(crate) fn name(&self) -> Option<Name<'t>> {
        match self.token {
            Token::Word(word) => Some(Name::Folded(word)),
            Token::Quoted(text) => Some(Name::Quoted(text)),
            _ => None,
        }
    }

    pub(crate) fn is_word(&self, keyword: &str) -> bool {
        matches!(self.token, Token::Word(word) if word.eq_ignore_ascii_case(keyword))
    }

    pub(crate) fn is_sign(&self, sign: u8) -> bool {
        self.token == Token::Sign(sign)
    }
}

/// The tokens of a text. `None`: it is too long, or has something in it that is none.
pub(crate) fn spots(text: &[u8]) -> Option<Vec<Spot<'_>>> {
    if text.len() > MAX_ANALYSED_BYTES {
        return None;
    }
    let mut tokens = Tokens::new(text);
    let mut spots = Vec::new();
    loop {
        let (token, begins, ends) = tokens.next_at();
        match token {
            Token::End => return Some(spots),
            Token::Bad => return None,
            token => spots.push(Spot {
                token,
                at: text.len() - begins..text.len() - ends,
            }),
        }
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Sites<'t> {
    /// The statements that change or read data: one, or those of a batch.
    pub(crate) parts: Vec<Part<'t>>,
    /// The USING of a batch, which holds for all of it.
    pub(crate) batch: Option<Using<'t>>,
    /// The statement is a batch of counters.
    pub(crate) counters: bool,
    /// The names of the markers by position, where they have one.
    pub(crate) markers: Vec<Option<Name<'t>>>,
    /// The places of their tokens, likewise.
    pub(crate) marker_spots: Vec<usize>,
}

/// One statement of a text.
#[derive(Debug)]
pub(crate) struct Part<'t> {
    pub(crate) kind: StatementKind,
    /// The index of the keyspace's token, if the text names it.
    pub(crate) keyspace: Option<usize>,
    pub(crate) table: usize,
    pub(crate) using: Option<Using<'t>>,
    /// The index at which USING would stand.
    pub(crate) using_at: usize,
}

/// `USING ..`
#[derive(Debug, Default)]
pub(crate) struct Using<'t> {
    pub(crate) at: Range<usize>,
    pub(crate) ttl: Option<Given<'t>>,
    pub(crate) timestamp: Option<Given<'t>>,
    /// ScyllaDB's TIMEOUT stands there, too.
    pub(crate) timeout: bool,
}

/// A number that it gives.
#[derive(Debug)]
pub(crate) struct Given<'t> {
    pub(crate) number: Number,
    pub(crate) at: Range<usize>,
    /// If that is a marker: its position, and its name if it has one.
    pub(crate) marker: Option<(usize, Option<Name<'t>>)>,
}

impl<'t> Sites<'t> {
    /// `spots`: those of `text`. `None`: it is not understood, or is no such statement.
    pub(crate) fn of(text: &[u8], spots: &[Spot<'t>]) -> Option<Self> {
        if !is_understood(text) {
            return None;
        }
        let mut finding = Finding {
            spots,
            at: 0,
            open: Vec::new(),
            sites: Self::default(),
        };
        finding.all()?;
        Some(finding.sites)
    }
}

struct Finding<'s, 't> {
    spots: &'s [Spot<'t>],
    at: usize,
    /// The brackets around what is at hand.
    open: Vec<u8>,
    sites: Sites<'t>,
}

impl<'s, 't> Finding<'s, 't> {
    fn here(&self) -> Option<&'s Spot<'t>> {
        self.spots.get(self.at)
    }

    fn accepts(&mut self, keyword: &str) -> bool {
        let here = self.here().is_some_and(|spot| spot.is_word(keyword));
        self.at += usize::from(here);
        here
    }

    fn all(&mut self) -> Option<()> {
        let is_batch = self.here()?.is_word("BEGIN");
        if is_batch {
            self.at += 1;
            self.sites.counters = self.accepts("COUNTER");
            _ = self.accepts("UNLOGGED");
            if !self.accepts("BATCH") {
                return None;
            }
            if self.accepts("USING") {
                self.sites.batch = Some(self.using()?);
            }
        }
        while let Some(spot) = self.here() {
            if self.open.is_empty() {
                let kind = match spot.token {
                    _ if spot.is_word("SELECT") => Some(StatementKind::Select),
                    _ if spot.is_word("INSERT") => Some(StatementKind::Insert),
                    _ if spot.is_word("UPDATE") => Some(StatementKind::Update),
                    _ if spot.is_word("DELETE") => Some(StatementKind::Delete),
                    _ if spot.is_word("APPLY") || spot.is_sign(b';') => {
                        self.at += 1;
                        continue;
                    }
                    _ => None,
                };
                match kind {
                    Some(kind) => self.part(kind)?,
                    // `BATCH`, behind APPLY.
                    None if spot.is_word("BATCH") => self.at += 1,
                    None => return None,
                }
            }
        }
        // A batch may be empty.
        (is_batch || !self.sites.parts.is_empty()).then_some(())
    }

    /// From its verb on, up to the next one.
    fn part(&mut self, kind: StatementKind) -> Option<()> {
        use StatementKind as Kind;
        self.at += 1;
        let mut part = Part {
            kind,
            keyspace: None,
            table: usize::MAX,
            using: None,
            using_at: 0,
        };
        if kind == Kind::Update {
            self.table(&mut part)?;
        }
        while let Some(spot) = self.here() {
            if !self.open.is_empty() {
                self.step()?;
                continue;
            }
            let ends = ["SELECT", "INSERT", "UPDATE", "DELETE", "APPLY"];
            if spot.is_sign(b';') || ends.iter().any(|word| spot.is_word(word)) {
                break;
            }
            if spot.is_word("FROM") || spot.is_word("INTO") {
                self.at += 1;
                self.table(&mut part)?;
            } else if spot.is_word("USING") {
                self.at += 1;
                part.using = Some(self.using()?);
            } else {
                self.step()?;
            }
        }
        if kind == Kind::Insert {
            part.using_at = self.end_before()?;
        }
        if part.table == usize::MAX {
            return None;
        }
        self.sites.parts.push(part);
        Some(())
    }

    /// The end of the last token.
    fn end_before(&self) -> Option<usize> {
        Some(self.spots.get(self.at.checked_sub(1)?)?.at.end)
    }

    fn table(&mut self, part: &mut Part<'t>) -> Option<()> {
        self.here()?.name()?;
        part.table = self.at;
        self.at += 1;
        if self.here().is_some_and(|spot| spot.is_sign(b'.')) {
            part.keyspace = Some(part.table);
            part.table = self.at + 1;
            self.spots.get(part.table)?.name()?;
            self.at += 2;
        }
        part.using_at = self.end_before()?;
        Some(())
    }

    /// Reads what stands behind USING. None if a TTL or timestamp stands twice: only the database knows which
    /// counts.
    fn using(&mut self) -> Option<Using<'t>> {
        let start = self.spots.get(self.at.checked_sub(1)?)?.at.start;
        let mut using = Using::default();
        loop {
            if self.accepts("TIMEOUT") {
                using.timeout = true;
                self.step()?;
            } else {
                let is_ttl = self.accepts("TTL");
                if !is_ttl && !self.accepts("TIMESTAMP") {
                    return None;
                }
                let given = self.number()?;
                let known = match is_ttl {
                    true => &mut using.ttl,
                    false => &mut using.timestamp,
                };
                if known.replace(given).is_some() {
                    return None;
                }
            }
            if !self.accepts("AND") {
                break;
            }
        }
        using.at = start..self.end_before()?;
        Some(using)
    }

    fn number(&mut self) -> Option<Given<'t>> {
        let first = self.here()?;
        let start = first.at.start;
        let minus = first.is_sign(b'-');
        self.at += usize::from(minus);
        let (number, marker) = match self.here()?.token {
            Token::Integer(digits) => {
                let number: i64 = digits.parse().ok()?;
                self.at += 1;
                (Number::Is(if minus { -number } else { number }), None)
            }
            Token::Marker | Token::Sign(b':') if !minus => {
                self.step()?;
                let position = self.sites.markers.len().checked_sub(1)?;
                let name = self.sites.markers.last().copied().flatten();
                (Number::Marker, Some((position, name)))
            }
            _ => return None,
        };
        Some(Given {
            number,
            at: start..self.end_before()?,
            marker,
        })
    }

    /// Moves past the token at hand, and notes brackets and markers.
    fn step(&mut self) -> Option<()> {
        let spot = self.here()?;
        match spot.token {
            Token::Sign(sign @ (b'(' | b'[' | b'{')) => {
                if self.open.len() >= MAX_DEPTH {
                    return None;
                }
                self.open.push(sign);
            }
            Token::Sign(b')' | b']' | b'}') => drop(self.open.pop()?),
            Token::Marker => {
                self.sites.markers.push(None);
                self.sites.marker_spots.push(self.at);
            }
            Token::Sign(b':') if self.begins_marker()? => {
                let name = self.spots.get(self.at + 1)?.name()?;
                self.sites.markers.push(Some(name));
                self.sites.marker_spots.push(self.at);
                self.at += 1;
            }
            _ => {}
        }
        self.at += 1;
        Some(())
    }

    /// Whether a colon begins a marker, or stands between a key and a value. `None`: it could be either.
    fn begins_marker(&self) -> Option<bool> {
        if self.open.last() != Some(&b'{') {
            return Some(true);
        }
        let before = self.spots.get(self.at.checked_sub(1)?)?;
        match before.token {
            Token::Sign(b')') => None,
            Token::Sign(b']' | b'}') => Some(false),
            Token::Sign(_) => Some(true),
            _ => Some(false),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sites<R>(text: &str, then: impl FnOnce(&Sites<'_>, &[Spot<'_>]) -> R) -> Option<R> {
        let spots = spots(text.as_bytes())?;
        let sites = Sites::of(text.as_bytes(), &spots)?;
        Some(then(&sites, &spots))
    }

    fn shown(text: &str) -> String {
        let show = |sites: &Sites<'_>, spots: &[Spot<'_>]| {
            let piece = |at: &Range<usize>| text[at.clone()].to_owned();
            let given = |given: &Option<Given<'_>>| match given {
                None => "-".to_owned(),
                Some(given) => match &given.marker {
                    None => piece(&given.at),
                    Some((position, _)) => format!("{}@{position}", piece(&given.at)),
                },
            };
            let using = |using: &Option<Using<'_>>| match using {
                None => "none".to_owned(),
                Some(using) => format!(
                    "[{}] {} {}",
                    piece(&using.at),
                    given(&using.ttl),
                    given(&using.timestamp)
                ),
            };
            let mut all: Vec<String> = sites
                .parts
                .iter()
                .map(|part| {
                    let keyspace = part
                        .keyspace
                        .map_or("-".to_owned(), |at| piece(&spots[at].at));
                    let table = piece(&spots[part.table].at);
                    let before = &text[..part.using_at];
                    let before = before.split_whitespace().last().unwrap_or_default();
                    format!(
                        "{} {keyspace} {table} {} ..{before}",
                        part.kind,
                        using(&part.using)
                    )
                })
                .collect();
            if sites.batch.is_some() {
                all.push(format!("batch {}", using(&sites.batch)));
            }
            all.push(sites.markers.len().to_string());
            all.join("; ")
        };
        sites(text, show).unwrap_or_else(|| "unknown".to_owned())
    }

    #[test]
    fn what_stands_where() {
        for (text, expected) in [
            (
                "SELECT a, shop.b(\"from\", ?) FROM ks.t WHERE a = :using AND b IN (?, :c)",
                "select ks t none ..ks.t; 4",
            ),
            (
                "INSERT INTO t (a) VALUES ({ 'x': ?, :y : 2, 'z': now() }) USING TTL ? ; ",
                "insert - t [USING TTL ?] ?@2 - ..?; 3",
            ),
            (
                "insert into \"T\" JSON '{}' -- using ttl 3\n",
                "insert - \"T\" none ..'{}'; 0",
            ),
            (
                "UPDATE ks . t USING TIMESTAMP 5 AND TTL -7 SET a = ?, m[:k] = ? WHERE b = 1 IF a = ?",
                "update ks t [USING TIMESTAMP 5 AND TTL -7] -7 5 ..t; 4",
            ),
            (
                "DELETE a FROM t USING TIMESTAMP :ts WHERE b = ?",
                "delete - t [USING TIMESTAMP :ts] - :ts@0 ..t; 2",
            ),
            (
                "BEGIN UNLOGGED BATCH USING TIMESTAMP ? INSERT INTO t (a) VALUES (?); \
                 UPDATE u SET a = 1 WHERE b = ? DELETE FROM v WHERE b = 1 APPLY BATCH;",
                "insert - t none ..(?); update - u none ..u; delete - v none ..v; \
                 batch [USING TIMESTAMP ?] - ?@0; 3",
            ),
            ("INSERT INTO t (a) VALUES ({ (int) :x : 1 })", "unknown"),
            (
                "UPDATE t USING TTL 1 AND TTL 2 SET a = 1 WHERE b = 1",
                "unknown",
            ),
            (
                "UPDATE t USING TIMEOUT 1s AND TTL 5 AND TIMEOUT :t SET a = 1 WHERE b = 1",
                "update - t [USING TIMEOUT 1s AND TTL 5 AND TIMEOUT :t] 5 - ..t; 1",
            ),
            (
                "SELECT a FROM t WHERE b = 1 BYPASS CACHE USING TIMEOUT 1s",
                "select - t [USING TIMEOUT 1s] - - ..t; 0",
            ),
            ("UPDATE t USING TIMEOUT SET a = 1 WHERE b = 1", "unknown"),
            ("SELECT a FROM t; SELECT a FROM u", "unknown"),
            ("SELECT 'open FROM t", "unknown"),
            ("USE ks", "unknown"),
            ("CREATE TABLE t (a int PRIMARY KEY)", "unknown"),
            ("", "unknown"),
        ] {
            assert_eq!(shown(text), expected, "{text}");
        }
    }

    #[test]
    fn spots_are_what_they_span() {
        let text = "a /* b */ . \"c\"\"d\" -- e\n'f' 12 ? $$g$$";
        let spots = spots(text.as_bytes()).unwrap();
        let pieces: Vec<_> = spots.iter().map(|spot| &text[spot.at.clone()]).collect();
        assert_eq!(pieces, ["a", ".", "\"c\"\"d\"", "'f'", "12", "?", "$$g$$"]);
    }
}
