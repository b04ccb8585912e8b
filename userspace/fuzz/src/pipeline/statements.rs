//! Statements that an input chooses.

use super::{requests::Choices, steps::Steps};

/// The beginning of each value of a column that may be encrypted, where one is. No other text has it.
pub const HIDDEN: &str = "hidden-";

/// Words of statements that steps rely on not being there: of such as change columns.
const DEFINITIONS: [&str; 3] = ["create", "alter", "drop"];

/// The properties of a statement that matter when it is executed.
#[derive(Clone, Debug, Default)]
pub struct Known {
    pub is_free: bool,
    pub writes: Option<bool>,
    pub reads: bool,
    /// The values that it takes: whether each is a text.
    pub values: Vec<bool>,
}

/// A statement with its values.
pub struct Made {
    pub text: String,
    pub values: Vec<Vec<u8>>,
    pub known: Known,
    pub is_ddl: bool,
    pub of_u: bool,
    pub in_list: usize,
}

/// A name as clients write it.
fn table(choices: &mut Choices<'_>) -> (&'static str, bool) {
    match choices.of(8) {
        0 => ("ks.u", true),
        1 => ("\"ks\".\"u\"", true),
        2 => ("KS.T", false),
        3 => ("ks . t", false),
        4 => ("\"ks\".t", false),
        5 => ("ks/* ks.u */.t", false),
        _ => ("ks.t", false),
    }
}

/// Any statement. `is_bound`: whether it may have values that are bound.
pub fn made(choices: &mut Choices<'_>, is_bound: bool, steps: &Steps) -> Made {
    if steps.ask() && is_bound && choices.of(2) == 0 {
        return whole_write(choices).fitting(steps);
    }
    if steps.folds() && !is_bound && choices.of(6) == 0 {
        let name = ["ks", "other", "\"other\"", "nowhere"][usize::from(choices.of(4))];
        return Made::new(format!("USE {name}"), Some(false));
    }
    let made = match choices.of(8) {
        0..3 => select(choices, is_bound),
        3..6 => write(choices, is_bound),
        6 => {
            let texts = [
                ("TRUNCATE ks.t", true),
                ("CREATE TABLE ks.n (a int PRIMARY KEY)", true),
                ("DROP TABLE ks.n", true),
                ("SELECT release_version FROM system.local", false),
                ("USE ks", false),
            ];
            let at = choices.of(5);
            let (text, is_ddl) = texts[usize::from(at)];
            Made {
                is_ddl,
                ..Made::new(text.to_owned(), Some(at == 0))
            }
        }
        _ => Made::new(own_text(choices, steps), None),
    };
    made.fitting(steps)
}

impl Made {
    /// A statement without values. `writes`: whether it changes rows. None: the text is the input's own.
    pub fn new(text: String, writes: Option<bool>) -> Self {
        let reads = cql::Statement::of(text.as_bytes()).kind == cql::StatementKind::Select;
        Self {
            text,
            values: Vec::new(),
            known: Known {
                is_free: writes.is_none(),
                writes,
                reads,
                values: Vec::new(),
            },
            is_ddl: false,
            of_u: false,
            in_list: 0,
        }
    }

    /// With values for numbers.
    fn with(self, values: Vec<Vec<u8>>) -> Self {
        let known = Known {
            values: vec![false; values.len()],
            ..self.known
        };
        Self {
            values,
            known,
            ..self
        }
    }

    /// Where steps encrypt: with texts that are known to be hidden from the database. Where clients share connections:
    /// of some tables in the keyspace that the client is in.
    pub fn fitting(mut self, steps: &Steps) -> Self {
        if steps.hides() && !self.known.is_free {
            for (text, hidden) in [("'it''s ks.t'", 1), ("'x'", 2), ("'y'", 3)] {
                self.text = self.text.replace(text, &format!("'{HIDDEN}{hidden}'"));
            }
        }
        if steps.folds() && !self.known.is_free {
            self.text = self.text.replace("ks.t", "t").replace("ks.u", "u");
        }
        self
    }
}

/// A write of one row, of which every value is bound.
fn whole_write(choices: &mut Choices<'_>) -> Made {
    let (table, of_u) = table(choices);
    let (text, values) = match (choices.of(4), of_u) {
        (0 | 1, true) => (
            format!("INSERT INTO {table} (a, v) VALUES (?, ?)"),
            vec![false, true],
        ),
        (_, true) => (
            format!("UPDATE {table} SET v = ? WHERE a = ?"),
            vec![true, false],
        ),
        (0 | 1, false) => (
            format!("INSERT INTO {table} (a, b, v, w) VALUES (?, ?, ?, ?)"),
            vec![false, false, true, false],
        ),
        (2, false) => (
            format!("UPDATE {table} SET v = ? WHERE a = ? AND b = ?"),
            vec![true, false, false],
        ),
        (_, false) => (
            format!("DELETE FROM {table} WHERE a = ? AND b = ?"),
            vec![false, false],
        ),
    };
    let mut made = Made::new(text, Some(true));
    made.known.values = values;
    made.of_u = of_u;
    made
}

/// A text of the input's own, unless it has something that only others have.
fn own_text(choices: &mut Choices<'_>, steps: &Steps) -> String {
    let text = choices.text();
    let lower = text.to_ascii_lowercase();
    let has = |word: &&str| lower.contains(word);
    // "other": the name of the keyspace that only the database should know. "system_views": who is connected to it.
    let is_free = match steps.ask() {
        true => !DEFINITIONS.iter().any(has),
        false => true,
    };
    match is_free && !["other", "system_views", HIDDEN].iter().any(has) {
        true => text,
        false => String::new(),
    }
}

/// A number in the text, or one that is bound.
fn number(choices: &mut Choices<'_>, is_bound: bool, values: &mut Vec<Vec<u8>>) -> String {
    let number = i32::from(choices.of(4));
    match is_bound && choices.of(2) == 0 {
        true => {
            values.push(number.to_be_bytes().to_vec());
            "?".to_owned()
        }
        false => number.to_string(),
    }
}

fn select(choices: &mut Choices<'_>, is_bound: bool) -> Made {
    let (table, of_u) = table(choices);
    let mut values = Vec::new();
    let mut number = |choices: &mut Choices<'_>| number(choices, is_bound, &mut values);
    let columns = ["*", "a", "v, a", "count(*)", "a AS x"][usize::from(choices.of(5))];
    let mut text = format!("SELECT {columns} FROM {table}");
    let mut in_list = 0;
    match choices.of(4) {
        0 => {}
        1 => text += &format!(" WHERE a = {}", number(choices)),
        2 => {
            in_list = 1 + usize::from(choices.of(4));
            let list: Vec<_> = (0..in_list).map(|_| number(choices)).collect();
            text += &format!(" WHERE a IN ({})", list.join(", "));
        }
        _ => text += &format!(" WHERE a = {} AND b > {}", number(choices), number(choices)),
    }
    if choices.of(4) == 0 {
        text += &format!(" LIMIT {}", 1 + choices.of(4));
    }
    Made {
        of_u,
        in_list,
        ..Made::new(text, Some(false)).with(values)
    }
}

/// A statement that writes.
pub fn write(choices: &mut Choices<'_>, is_bound: bool) -> Made {
    let (table, of_u) = table(choices);
    let mut values = Vec::new();
    let mut number = |choices: &mut Choices<'_>| number(choices, is_bound, &mut values);
    let using = ["", " USING TTL 7200", " USING TIMESTAMP 5"][usize::from(choices.of(3))];
    let text = match (choices.of(3), of_u) {
        (0, true) => format!(
            "INSERT INTO {table} (a, v) VALUES ({}, 'x'){using}",
            number(choices)
        ),
        (0, false) => {
            let [a, b, w] = [0; 3].map(|_| number(choices));
            format!("INSERT INTO {table} (a, b, v, w) VALUES ({a}, {b}, 'it''s ks.t', {w}){using}")
        }
        (1, true) => format!(
            "UPDATE {table}{using} SET v = 'y' WHERE a = {}",
            number(choices)
        ),
        (1, false) => {
            let [w, a, b] = [0; 3].map(|_| number(choices));
            format!("UPDATE {table}{using} SET w = {w} WHERE a = {a} AND b = {b}")
        }
        _ => format!("DELETE FROM {table} WHERE a = {}", number(choices)),
    };
    Made {
        of_u,
        ..Made::new(text, Some(true)).with(values)
    }
}
