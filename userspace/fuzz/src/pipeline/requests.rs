//! Requests that an input chooses.

use super::{answers::Answer, steps::Steps};
use crate::script::frame;

const QUERY: u8 = 0x07;
const PREPARE: u8 = 0x09;
const EXECUTE: u8 = 0x0A;
const BATCH: u8 = 0x0D;

const VALUES: u8 = 0x01;
const PAGE_SIZE: u8 = 0x04;

/// Statements that can be prepared at once.
const MAX_PREPARED: usize = 6;

/// Choices: the bytes of an input, one after the other.
pub struct Choices<'d>(pub &'d [u8]);

impl<'d> Choices<'d> {
    /// The next one.
    pub fn next_byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    fn of(&mut self, n: u8) -> u8 {
        self.next_byte().unwrap_or(0) % n
    }

    fn text(&mut self) -> String {
        let length = usize::from(self.next_byte().unwrap_or(0)).min(self.0.len());
        let (text, rest) = self.0.split_at(length);
        self.0 = rest;
        String::from_utf8_lossy(text).into_owned()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Query,
    Prepare,
    Execute,
    Batch,
}

/// A request, and what is known of it.
#[derive(Clone, Debug)]
pub struct Request {
    pub kind: Kind,
    /// The text, or those of a batch.
    texts: Vec<String>,
    /// Bound values of each.
    values: Vec<Vec<Vec<u8>>>,
    /// Where the statement is, or is to be kept, that is prepared.
    slot: usize,
    /// The ids with which it is executed: behind the pipeline, and without.
    ids: Option<[Prepared; 2]>,
    page_size: Option<i32>,
    consistency: u16,
    /// The text is the input's own.
    pub is_free: bool,
    /// Whether it changes the schema, or truncates.
    pub is_ddl: bool,
    /// Whether it names the table `ks.u`.
    pub of_u: bool,
    /// Elements behind IN.
    pub in_list: usize,
    /// Statements of a batch.
    pub batched: usize,
}

/// The ids of a statement, and of its result's metadata.
pub type Prepared = (Vec<u8>, Vec<u8>);

/// Statements that a database has prepared.
#[derive(Default)]
pub struct Ids {
    prepared: [Option<Prepared>; MAX_PREPARED],
}

impl Ids {
    /// Notes what an answer says.
    pub fn note(&mut self, request: &Request, answer: &Answer) {
        if request.kind == Kind::Prepare {
            let slot = self.prepared.get_mut(request.slot);
            let version = if answer.body.get(22..24) == Some(&[0, 16]) {
                5
            } else {
                4
            };
            if let (Some(slot), Some(ids)) = (slot, answer.ids(version)) {
                *slot = Some(ids);
            }
        }
    }
}

/// The statements of a client.
#[derive(Default)]
pub struct Statements {
    /// Prepared statements: whether each is free, and how many values it takes.
    prepared: [Option<(bool, usize)>; MAX_PREPARED],
}

/// A statement with its values.
struct Made {
    text: String,
    values: Vec<Vec<u8>>,
    is_free: bool,
    is_ddl: bool,
    of_u: bool,
    in_list: usize,
}

impl Statements {
    /// The next request.
    pub fn request(&mut self, choices: &mut Choices<'_>, ids: &Ids, plain: &Ids) -> Request {
        let mut request = Request {
            kind: Kind::Query,
            texts: Vec::new(),
            values: Vec::new(),
            slot: usize::from(choices.of(MAX_PREPARED as u8)),
            ids: None,
            page_size: None,
            consistency: 1 + u16::from(choices.of(6)),
            is_free: false,
            is_ddl: false,
            of_u: false,
            in_list: 0,
            batched: 0,
        };
        let both = [&ids.prepared, &plain.prepared].map(|ids| ids[request.slot].clone());
        match choices.of(8) {
            0 => {
                request.kind = Kind::Prepare;
                let made = made(choices, true);
                self.prepared[request.slot] = Some((made.is_free, made.values.len()));
                request.add(Made {
                    values: Vec::new(),
                    ..made
                });
            }
            1 | 2 if let [Some(behind), Some(plain)] = both => {
                request.kind = Kind::Execute;
                let values = self.prepared[request.slot].map_or(0, |(_, values)| values);
                let value =
                    |choices: &mut Choices<'_>| i32::from(choices.of(4)).to_be_bytes().to_vec();
                request
                    .values
                    .push((0..values).map(|_| value(choices)).collect());
                request.ids = Some([behind, plain]);
                request.page_size = page_size(choices);
            }
            3 => {
                request.kind = Kind::Batch;
                for _ in 0..=choices.of(4) {
                    let made = write(choices, false);
                    request.add(made);
                    request.batched += 1;
                }
            }
            _ => {
                let made = made(choices, false);
                request.add(made);
                request.page_size = page_size(choices);
            }
        }
        request
    }
}

fn page_size(choices: &mut Choices<'_>) -> Option<i32> {
    match choices.of(4) {
        0 => None,
        size => Some(i32::from(size)),
    }
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

fn made(choices: &mut Choices<'_>, is_bound: bool) -> Made {
    match choices.of(8) {
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
            let (text, is_ddl) = texts[usize::from(choices.of(5))];
            Made {
                text: text.to_owned(),
                values: Vec::new(),
                is_free: false,
                is_ddl,
                of_u: false,
                in_list: 0,
            }
        }
        _ => Made {
            text: own_text(choices),
            values: Vec::new(),
            is_free: true,
            is_ddl: false,
            of_u: false,
            in_list: 0,
        },
    }
}

/// A text of the input's own, unless it names the keyspace by the name that only the database should know.
fn own_text(choices: &mut Choices<'_>) -> String {
    let text = choices.text();
    match text.to_ascii_lowercase().contains("other") {
        true => String::new(),
        false => text,
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
        text,
        values,
        is_free: false,
        is_ddl: false,
        of_u,
        in_list,
    }
}

fn write(choices: &mut Choices<'_>, is_bound: bool) -> Made {
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
        text,
        values,
        is_free: false,
        is_ddl: false,
        of_u,
        in_list: 0,
    }
}

impl Request {
    /// Whether a USE is prepared that is not the input's own.
    pub fn is_prepared_use(&self) -> bool {
        let is_use = self.texts.iter().any(|text| text.starts_with("USE "));
        self.kind == Kind::Prepare && is_use && !self.is_free
    }

    fn add(&mut self, made: Made) {
        self.texts.push(made.text);
        self.values.push(made.values);
        self.is_free |= made.is_free;
        self.is_ddl |= made.is_ddl;
        self.of_u |= made.of_u;
        self.in_list = self.in_list.max(made.in_list);
    }

    /// The frames to the pipeline, and to the other database: that is asked for pages as small as the steps make them.
    pub fn frames(&self, version: u8, stream: i16, steps: &Steps) -> [Vec<u8>; 2] {
        let smaller = match (self.page_size, steps.at_most) {
            (Some(size), Some(most)) => Some(size.min(most)),
            (size, _) => size,
        };
        [(0, self.page_size), (1, smaller)].map(|(who, page_size)| {
            let (opcode, body) = self.body(version, who, page_size);
            frame(version, 0, stream, opcode, &body)
        })
    }

    fn body(&self, version: u8, who: usize, page_size: Option<i32>) -> (u8, Vec<u8>) {
        let text = || self.texts.first().map_or(&b""[..], String::as_bytes);
        match self.kind {
            Kind::Query => {
                let parameters = self.parameters(version, page_size);
                (QUERY, [long(text()), parameters].concat())
            }
            Kind::Prepare => {
                let flags: &[u8] = if version == 5 { &[0; 4] } else { &[] };
                (PREPARE, [&long(text()), flags].concat())
            }
            Kind::Execute => {
                let (id, of_result) = self
                    .ids
                    .as_ref()
                    .map_or_else(Default::default, |ids| ids[who].clone());
                let mut body = short(&id);
                if version == 5 {
                    body.extend(short(&of_result));
                }
                body.extend(self.parameters(version, page_size));
                (EXECUTE, body)
            }
            Kind::Batch => {
                let mut body = vec![0];
                body.extend((self.texts.len() as u16).to_be_bytes());
                for text in &self.texts {
                    body.push(0);
                    body.extend(long(text.as_bytes()));
                    body.extend([0, 0]);
                }
                body.extend(self.consistency.to_be_bytes());
                body.extend(flags(version, 0));
                (BATCH, body)
            }
        }
    }

    fn parameters(&self, version: u8, page_size: Option<i32>) -> Vec<u8> {
        let values = self.values.first().map_or(&[][..], Vec::as_slice);
        let of_values = if values.is_empty() { 0 } else { VALUES };
        let of_page = page_size.map_or(0, |_| PAGE_SIZE);
        let mut body = self.consistency.to_be_bytes().to_vec();
        body.extend(flags(version, of_values | of_page));
        if !values.is_empty() {
            body.extend((values.len() as u16).to_be_bytes());
            values.iter().for_each(|value| body.extend(long(value)));
        }
        body.extend(page_size.map(i32::to_be_bytes).into_iter().flatten());
        body
    }
}

fn flags(version: u8, flags: u8) -> Vec<u8> {
    match version {
        5 => u32::from(flags).to_be_bytes().to_vec(),
        _ => vec![flags],
    }
}

fn long(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u32).to_be_bytes()[..], bytes].concat()
}

fn short(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u16).to_be_bytes()[..], bytes].concat()
}
