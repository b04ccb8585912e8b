//! One statement; [`Writer`]: a statement that is being written.

use crate::random::Random;
use crate::schema::{Column, TABLES, Table};
use crate::text::Text;
use crate::{select, write};

/// A statement.
#[derive(Clone, Debug, PartialEq)]
pub struct Statement {
    /// The text, without NUL, and with `?` or names where values are bound.
    pub text: String,
    /// The values that are bound, in order.
    pub values: Vec<Value>,
    /// The kind of statement, in small letters.
    pub kind: &'static str,
    /// The keyspace, where the text names it, and the table that the statement is about, as the server knows them. Nothing
    /// of a batch.
    pub about: Option<(Option<String>, String)>,
    /// Whether the answer follows from the rows and the request alone: it tells no time and no order that the server is
    /// free to choose.
    pub is_certain: bool,
}

/// A bound value.
#[derive(Clone, Debug, PartialEq)]
pub struct Value {
    /// Without the colon. All values of a statement have names, or none has.
    pub name: Option<String>,
    /// The value, as the native protocol has it. `None`: null.
    pub bytes: Option<Vec<u8>>,
}

/// The way in which a statement binds values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Binds {
    Nothing,
    Positions,
    Names,
}

/// A statement that is being written.
#[derive(Debug)]
pub(crate) struct Writer<'k> {
    pub(crate) random: Random,
    pub(crate) keyspace: &'k str,
    text: Text,
    pub(crate) binds: Binds,
    pub(crate) values: Vec<Value>,
    about: Option<(Option<String>, String)>,
    pub(crate) is_certain: bool,
}

impl Writer<'_> {
    pub(crate) fn words(&mut self, words: &str) {
        self.text.words(&mut self.random, words);
    }

    pub(crate) fn token(&mut self, token: &str) {
        self.text.token(&mut self.random, token);
    }

    pub(crate) fn name(&mut self, name: &str) {
        self.text.name(&mut self.random, name);
    }

    pub(crate) fn number(&mut self, below: u64) {
        let n = self.random.below(below).to_string();
        self.token(&n);
    }

    pub(crate) fn one_in(&mut self, n: u64) -> bool {
        self.random.one_in(n)
    }

    /// A table's name, with its keyspace's in front or not.
    pub(crate) fn table(&mut self, table: &Table) {
        match self.random.one_in(2) {
            true => self.whole(self.keyspace, table.name),
            false => {
                self.about = Some((None, table.name.to_owned()));
                self.name(table.name);
            }
        }
    }

    /// A table's name, with its keyspace's.
    pub(crate) fn whole(&mut self, keyspace: &str, table: &str) {
        self.about = Some((Some(keyspace.to_owned()), table.to_owned()));
        self.qualified(keyspace, table);
    }

    pub(crate) fn qualified(&mut self, before: &str, name: &str) {
        self.text.qualified(&mut self.random, before, name);
    }

    /// Something for each of these, with this token in between.
    pub(crate) fn each<T>(
        &mut self,
        all: impl IntoIterator<Item = T>,
        between: &str,
        mut one: impl FnMut(&mut Self, T),
    ) {
        for (nth, item) in all.into_iter().enumerate() {
            if nth > 0 {
                match between.chars().all(char::is_alphabetic) {
                    true => self.words(between),
                    false => self.token(between),
                }
            }
            one(self, item);
        }
    }

    /// Some of these columns, one at least, in any order.
    pub(crate) fn some<'c>(&mut self, columns: &'c [Column], most: u64) -> Vec<&'c Column> {
        let mut left: Vec<&Column> = columns.iter().collect();
        let n = 1 + self.random.below(most.min(columns.len() as u64));
        let mut some = Vec::new();
        for _ in 0..n {
            if !left.is_empty() {
                let nth = self.random.below(left.len() as u64) as usize;
                some.push(left.swap_remove(nth));
            }
        }
        some
    }
}

/// Statement number `n` of this seed, in a keyspace.
pub fn statement(seed: u64, n: u64, keyspace: &str) -> Statement {
    let mut random = Random::new(seed ^ n.wrapping_mul(0xD6E8_FEB8_6659_FD93));
    random.any();
    let text = Text::new(&mut random);
    let binds = *random.of(&[Binds::Nothing, Binds::Positions, Binds::Names]);
    let mut writer = Writer {
        random,
        keyspace,
        text,
        binds,
        values: Vec::new(),
        about: None,
        is_certain: true,
    };
    let nth = writer.random.below(TABLES.len() as u64) as usize;
    #[expect(clippy::indexing_slicing, reason = "`nth` is below the length")]
    let table = &TABLES[nth];
    let kind = match writer.random.below(20) {
        0..=8 => select::select(&mut writer, table),
        9..=11 => write::insert(&mut writer, table),
        12..=15 => write::update(&mut writer, table),
        16..=17 => write::delete(&mut writer, table),
        18 => write::batch(&mut writer, table),
        _ => select::system(&mut writer),
    };
    let mut random = writer.random;
    Statement {
        kind,
        about: writer.about.filter(|_| kind != "batch"),
        text: writer.text.finish(&mut random),
        values: writer.values,
        is_certain: writer.is_certain,
    }
}
