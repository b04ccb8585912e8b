//! [`RowWrite`]: a write whose every value is bound to a marker of its own, by its text.
//!
//! Followed to the last token. Whatever else stands in a text (a condition, a time of its own, a literal, a function,
//! an operation on what is there) makes it none: nothing is guessed.

use super::token::{Token, Tokens};

/// An INSERT, UPDATE or DELETE of which every term is `?`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowWrite {
    /// The keyspace, where the text names one. Names are as the database stores them, here and below.
    pub keyspace: Option<String>,
    /// The table.
    pub table: String,
    is_insert: bool,
    /// Columns that are given or restricted, with their marker's number.
    bound: Vec<(String, usize)>,
    /// Columns that are set or deleted.
    written: Vec<String>,
}

/// Columns of a statement, beyond which it is none of these.
const MAX_COLUMNS: usize = 256;

impl RowWrite {
    /// Reads a write of one row. None: the text is another statement, or not understood for sure.
    pub fn of(text: &[u8]) -> Option<Self> {
        if text.len() > super::MAX_ANALYSED_BYTES {
            return None;
        }
        let mut reader = Reader {
            tokens: Tokens::new(text),
            next: Token::End,
            markers: 0,
        };
        reader.step();
        let write = match reader.next {
            Token::Word(word) if word.eq_ignore_ascii_case("INSERT") => reader.insert(),
            Token::Word(word) if word.eq_ignore_ascii_case("UPDATE") => reader.update(),
            Token::Word(word) if word.eq_ignore_ascii_case("DELETE") => reader.delete(),
            _ => None,
        }?;
        if reader.next == Token::Sign(b';') {
            reader.step();
        }
        (reader.next == Token::End).then_some(write)
    }

    /// The numbers of the markers that stand for the columns of `key`, in its order, if those are what says which row
    /// it is about, and nothing is written but those and `columns`.
    pub fn row(&self, key: &[String], columns: &[String]) -> Option<Vec<usize>> {
        if !self.is_insert && self.bound.len() != key.len() {
            return None;
        }
        let in_key = |column: &String| self.is_insert && key.contains(column);
        let mut written = self.written.iter();
        if !written.all(|column| in_key(column) || columns.contains(column)) {
            return None;
        }
        let markers = key.iter().map(|column| {
            let mut of = self.bound.iter().filter(|(name, _)| name == column);
            match (of.next(), of.next()) {
                (Some((_, marker)), None) => Some(*marker),
                _ => None,
            }
        });
        markers.collect()
    }
}

struct Reader<'t> {
    tokens: Tokens<'t>,
    next: Token<'t>,
    markers: usize,
}

impl Reader<'_> {
    fn step(&mut self) {
        self.next = self.tokens.next_token();
    }

    fn is(&self, word: &str) -> bool {
        matches!(self.next, Token::Word(found) if found.eq_ignore_ascii_case(word))
    }

    fn word(&mut self, word: &str) -> Option<()> {
        self.is(word).then(|| self.step())
    }

    fn sign(&mut self, sign: u8) -> Option<()> {
        (self.next == Token::Sign(sign)).then(|| self.step())
    }

    fn marker(&mut self) -> Option<usize> {
        if self.next != Token::Marker {
            return None;
        }
        self.step();
        self.markers += 1;
        Some(self.markers - 1)
    }

    fn name(&mut self) -> Option<String> {
        let name = match self.next {
            Token::Word(word) => word.to_ascii_lowercase(),
            // Two quotes are one of the name's: nobody calls a column that.
            Token::Quoted(name) if !name.contains('"') => name.to_owned(),
            _ => return None,
        };
        self.step();
        Some(name)
    }

    fn table(&mut self) -> Option<(Option<String>, String)> {
        let first = self.name()?;
        match self.sign(b'.') {
            Some(()) => Some((Some(first), self.name()?)),
            None => Some((None, first)),
        }
    }

    fn names(&mut self) -> Option<Vec<String>> {
        let mut names = vec![self.name()?];
        while names.len() < MAX_COLUMNS && self.sign(b',').is_some() {
            names.push(self.name()?);
        }
        Some(names)
    }

    fn time_to_live(&mut self) -> Option<()> {
        if !self.is("USING") {
            return Some(());
        }
        self.step();
        self.word("TTL")?;
        match self.next {
            Token::Integer(_) => self.step(),
            _ => drop(self.marker()?),
        }
        Some(())
    }

    /// `column = ?`, with this between them.
    fn equal(&mut self, between: impl Fn(&mut Self) -> bool) -> Option<Vec<(String, usize)>> {
        let mut all = Vec::new();
        loop {
            let name = self.name()?;
            self.sign(b'=')?;
            all.push((name, self.marker()?));
            if all.len() >= MAX_COLUMNS || !between(self) {
                return Some(all);
            }
        }
    }

    fn restricted(&mut self) -> Option<Vec<(String, usize)>> {
        self.word("WHERE")?;
        self.equal(|reader| reader.word("AND").is_some())
    }

    fn insert(&mut self) -> Option<RowWrite> {
        self.step();
        self.word("INTO")?;
        let (keyspace, table) = self.table()?;
        self.sign(b'(')?;
        let written = self.names()?;
        self.sign(b')')?;
        self.word("VALUES")?;
        self.sign(b'(')?;
        let mut bound = Vec::with_capacity(written.len());
        for (number, name) in written.iter().enumerate() {
            if number > 0 {
                self.sign(b',')?;
            }
            bound.push((name.clone(), self.marker()?));
        }
        self.sign(b')')?;
        self.time_to_live()?;
        Some(RowWrite {
            keyspace,
            table,
            is_insert: true,
            bound,
            written,
        })
    }

    fn update(&mut self) -> Option<RowWrite> {
        self.step();
        let (keyspace, table) = self.table()?;
        self.time_to_live()?;
        self.word("SET")?;
        let set = self.equal(|reader| reader.sign(b',').is_some())?;
        let bound = self.restricted()?;
        Some(RowWrite {
            keyspace,
            table,
            is_insert: false,
            bound,
            written: set.into_iter().map(|(name, _)| name).collect(),
        })
    }

    fn delete(&mut self) -> Option<RowWrite> {
        self.step();
        let written = match self.is("FROM") {
            true => Vec::new(),
            false => self.names()?,
        };
        self.word("FROM")?;
        let (keyspace, table) = self.table()?;
        Some(RowWrite {
            keyspace,
            table,
            is_insert: false,
            bound: self.restricted()?,
            written,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(text: &str) -> Option<Vec<usize>> {
        let key = ["device", "at"].map(str::to_owned);
        let columns = ["v", "W"].map(str::to_owned);
        RowWrite::of(text.as_bytes())?.row(&key, &columns)
    }

    #[test]
    fn markers_of_the_key_are_found() {
        let cases = [
            (
                "INSERT INTO shop.e (v, at, device) VALUES (?, ?, ?);",
                [2, 1],
            ),
            (
                "insert into e (device, AT) values (?, ?) using ttl 60",
                [0, 1],
            ),
            (
                "INSERT INTO e (device, at, v) VALUES (?, ?, ?) USING TTL ?",
                [0, 1],
            ),
            (
                "UPDATE e USING TTL ? SET v = ?, \"W\" = ? WHERE at = ? AND device = ?",
                [4, 3],
            ),
            ("DELETE FROM e WHERE device = ? AND at = ?", [0, 1]),
            ("DELETE v, \"W\" FROM e WHERE device = ? AND at = ?", [0, 1]),
        ];
        for (text, expected) in cases {
            assert_eq!(row(text).as_deref(), Some(&expected[..]), "{text}");
        }
        let named = RowWrite::of(b"DELETE FROM \"S\".E WHERE a = ?").unwrap();
        let found = (named.keyspace.as_deref(), &*named.table);
        assert_eq!(found, (Some("S"), "e"));
    }

    #[test]
    fn what_may_be_about_more_than_one_row_or_is_not_known_is_none() {
        for text in [
            "INSERT INTO e (device, at, v) VALUES (?, ?, ?) IF NOT EXISTS",
            "INSERT INTO e (device, at, v) VALUES (?, ?, ?) USING TIMESTAMP ?",
            "INSERT INTO e (device, at, v) VALUES (?, ?, ?) USING TTL ? AND TIMESTAMP ?",
            "INSERT INTO e (device, at, v) VALUES (?, now(), ?)",
            "INSERT INTO e (device, at, v) VALUES (?, ?, 1)",
            "INSERT INTO e (device, at, w) VALUES (?, ?, ?)",
            "INSERT INTO e (device, v) VALUES (?, ?)",
            "INSERT INTO e (device, at) VALUES (?, ?, ?)",
            "INSERT INTO e JSON ?",
            "INSERT INTO e (device, at, at) VALUES (?, ?, ?)",
            "UPDATE e SET v = v + ? WHERE device = ? AND at = ?",
            "UPDATE e SET v[?] = ? WHERE device = ? AND at = ?",
            "UPDATE e SET v = ? WHERE device = ?",
            "UPDATE e SET v = ? WHERE device = ? AND at = ? AND at = ?",
            "UPDATE e SET v = ? WHERE device = ? AND at > ?",
            "UPDATE e SET v = ? WHERE device = ? AND at IN ?",
            "UPDATE e SET v = ? WHERE device = ? AND at = ? IF v = ?",
            "UPDATE e SET device = ? WHERE device = ? AND at = ?",
            "UPDATE e SET v = :v WHERE device = :d AND at = :a",
            "DELETE FROM e WHERE device = ?",
            "DELETE FROM e USING TIMESTAMP ? WHERE device = ? AND at = ?",
            "DELETE FROM e WHERE device = ? AND at = ? IF EXISTS",
            "DELETE v[?] FROM e WHERE device = ? AND at = ?",
            "SELECT v FROM e WHERE device = ? AND at = ?",
            "BEGIN BATCH DELETE FROM e WHERE device = ? AND at = ?; APPLY BATCH",
            "INSERT INTO e (device, at) VALUES (?, ?); x",
            "",
        ] {
            assert_eq!(row(text), None, "{text}");
        }
    }
}
