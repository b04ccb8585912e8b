//! Requests that an input chooses.

use super::{
    answers::Answer,
    statements::{HIDDEN, Known, Made, made, write},
    steps::Steps,
};
use crate::script::frame;

const QUERY: u8 = 0x07;
const PREPARE: u8 = 0x09;
const EXECUTE: u8 = 0x0A;
const BATCH: u8 = 0x0D;

const VALUES: u8 = 0x01;
const PAGE_SIZE: u8 = 0x04;
const TIMESTAMP: u8 = 0x20;
const KEYSPACE: u8 = 0x80;

/// PREPARE: a keyspace comes with it.
const WITH_KEYSPACE: u8 = 0x01;

/// Statements that can be prepared at once.
const MAX_PREPARED: usize = 6;

/// Fewer, where it matters that they are executed.
const FEW_PREPARED: usize = 2;

/// Choices: the bytes of an input, one after the other.
pub struct Choices<'d>(pub &'d [u8]);

impl<'d> Choices<'d> {
    /// The next one.
    pub fn next_byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    /// One of so many.
    pub fn of(&mut self, n: u8) -> u8 {
        self.next_byte().unwrap_or(0) % n
    }

    /// A text.
    pub fn text(&mut self) -> String {
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
    /// The client's own timestamp, by which a request can be told from all others.
    pub timestamp: Option<i64>,
    /// The keyspace that comes with it, in v5.
    keyspace: Option<&'static str>,
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
    /// Whether it changes rows. None: the text is the input's own.
    pub writes: Option<bool>,
    /// Whether it is a SELECT, which may be asked again.
    pub reads: bool,
    /// The statement that is prepared.
    prepares: Option<Known>,
}

/// The ids of a statement, and of its result's metadata.
pub type Prepared = (Vec<u8>, Vec<u8>);

/// Statements that a database has prepared.
#[derive(Default)]
pub struct Ids {
    prepared: [Option<Prepared>; MAX_PREPARED],
    known: [Known; MAX_PREPARED],
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
                self.known[request.slot] = request.prepares.clone().unwrap_or_default();
            }
        }
    }
}

/// The statements of a client.
#[derive(Default)]
pub struct Statements {
    /// Statements that were prepared last, whether or not they could be.
    prepared: [Known; MAX_PREPARED],
}

impl Statements {
    /// The next request.
    pub fn request(
        &mut self,
        choices: &mut Choices<'_>,
        [ids, plain]: [&Ids; 2],
        steps: &Steps,
    ) -> Request {
        // What steps may merge, or have read before, has to be alike.
        let (slots, consistencies, executes) = match steps.ask() {
            true => (FEW_PREPARED, 2, 1..6),
            false => (MAX_PREPARED, 6, 1..3),
        };
        let slot = usize::from(choices.of(slots as u8));
        let consistency = 1 + u16::from(choices.of(consistencies));
        let mut request = Request::new(slot, consistency);
        let both = [ids, plain].map(|ids| ids.prepared[slot].clone());
        let chosen = choices.of(8);
        match (chosen, both) {
            (0, _) => {
                request.kind = Kind::Prepare;
                let made = made(choices, true, steps);
                self.prepared[slot] = made.known.clone();
                request.prepares = Some(made.known.clone());
                request.add(Made {
                    values: Vec::new(),
                    ..made
                });
            }
            (_, [Some(behind), Some(plain)]) if executes.contains(&chosen) => {
                request.kind = Kind::Execute;
                let known = match steps.ask() {
                    true => &ids.known[slot],
                    // The values may be those of another statement than the one that could be prepared.
                    false => &self.prepared[slot],
                };
                request.is_free = steps.ask() && known.is_free;
                request.writes = known.writes;
                request.reads = known.reads;
                let values = known.values.iter().map(|is_text| value(choices, *is_text));
                request.values.push(values.collect());
                request.ids = Some([behind, plain]);
                request.page_size = page_size(choices);
            }
            (3, _) => {
                request.kind = Kind::Batch;
                request.writes = Some(true);
                for _ in 0..=choices.of(4) {
                    let made = write(choices, false).fitting(steps);
                    request.add(made);
                    request.batched += 1;
                }
            }
            _ => {
                let made = made(choices, false, steps);
                request.writes = made.known.writes;
                request.reads = made.known.reads;
                request.add(made);
                request.page_size = page_size(choices);
            }
        }
        if steps.folds() && request.takes_keyspace() {
            let keyspaces = [None, None, Some("ks"), Some("other")];
            request.keyspace = keyspaces[usize::from(choices.of(4))];
        }
        request
    }
}

/// A value that is bound.
fn value(choices: &mut Choices<'_>, is_text: bool) -> Vec<u8> {
    let number = choices.of(4);
    match is_text {
        true => format!("{HIDDEN}{number}").into_bytes(),
        false => i32::from(number).to_be_bytes().to_vec(),
    }
}

fn page_size(choices: &mut Choices<'_>) -> Option<i32> {
    match choices.of(4) {
        0 => None,
        size => Some(i32::from(size)),
    }
}

impl Request {
    fn new(slot: usize, consistency: u16) -> Self {
        Self {
            kind: Kind::Query,
            texts: Vec::new(),
            values: Vec::new(),
            slot,
            ids: None,
            page_size: None,
            consistency,
            timestamp: None,
            keyspace: None,
            is_free: false,
            is_ddl: false,
            of_u: false,
            in_list: 0,
            batched: 0,
            writes: Some(false),
            prepares: None,
            reads: false,
        }
    }

    /// A QUERY of this text, which writes nothing, at ONE.
    pub fn query(text: &str) -> Self {
        let made = Made::new(text.to_owned(), Some(false));
        let mut request = Self::new(0, 1);
        request.reads = made.known.reads;
        request.add(made);
        request
    }

    /// Whether a keyspace may come with it. Databases do not agree on one that comes with a USE.
    fn takes_keyspace(&self) -> bool {
        let is_use = self.texts.iter().any(|text| text.starts_with("USE "));
        self.kind != Kind::Execute && !is_use && !self.is_free
    }

    /// Whether its session may be in another keyspace when it is answered.
    pub fn may_use(&self) -> bool {
        self.kind != Kind::Prepare && !self.reads && self.writes != Some(true)
    }

    /// Whether a USE is prepared that is not the input's own.
    pub fn is_prepared_use(&self) -> bool {
        let is_use = self.texts.iter().any(|text| text.starts_with("USE "));
        self.kind == Kind::Prepare && is_use && !self.is_free
    }

    /// Whether a value is in its text that may be encrypted.
    pub fn has_hidden_text(&self) -> bool {
        self.texts.iter().any(|text| text.contains(HIDDEN))
    }

    fn add(&mut self, made: Made) {
        self.texts.push(made.text);
        self.values.push(made.values);
        self.is_free |= made.known.is_free;
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
                let mut body = long(text());
                if version == 5 {
                    let of_keyspace = self.keyspace.map_or(0, |_| WITH_KEYSPACE);
                    body.extend(flags(version, of_keyspace));
                    body.extend(self.keyspace.iter().flat_map(|name| short(name.as_bytes())));
                }
                (PREPARE, body)
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
                body.extend(flags(version, self.flags_behind(version)));
                body.extend(self.behind(version));
                (BATCH, body)
            }
        }
    }

    /// The flags of what is behind all else.
    fn flags_behind(&self, version: u8) -> u8 {
        let of_timestamp = self.timestamp.map_or(0, |_| TIMESTAMP);
        let keyspace = self.keyspace.filter(|_| version == 5);
        of_timestamp | keyspace.map_or(0, |_| KEYSPACE)
    }

    /// The timestamp and the keyspace, which are behind all else.
    fn behind(&self, version: u8) -> Vec<u8> {
        let mut behind = Vec::new();
        behind.extend(self.timestamp.iter().flat_map(|at| at.to_be_bytes()));
        let keyspace = self.keyspace.filter(|_| version == 5);
        behind.extend(keyspace.iter().flat_map(|name| short(name.as_bytes())));
        behind
    }

    fn parameters(&self, version: u8, page_size: Option<i32>) -> Vec<u8> {
        let values = self.values.first().map_or(&[][..], Vec::as_slice);
        let of_values = if values.is_empty() { 0 } else { VALUES };
        let of_page = page_size.map_or(0, |_| PAGE_SIZE);
        let mut body = self.consistency.to_be_bytes().to_vec();
        let of_rest = self.flags_behind(version);
        body.extend(flags(version, of_values | of_page | of_rest));
        if !values.is_empty() {
            body.extend((values.len() as u16).to_be_bytes());
            values.iter().for_each(|value| body.extend(long(value)));
        }
        body.extend(page_size.map(i32::to_be_bytes).into_iter().flatten());
        body.extend(self.behind(version));
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
