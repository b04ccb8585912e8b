//! A flow with protected columns, between a client and a database that the test plays.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use cassandra_protocol::compression::Compression;
use cassandra_protocol::frame::Envelope;
use cassandra_protocol::frame::message_batch::BatchQuerySubj;
use cassandra_protocol::frame::message_request::RequestBody;
use cassandra_protocol::query::QueryValues;
use cassandra_protocol::types::value::Value as Sent;
use cql_edit::Transform;
use cql_edit::protect::{Columns, Failures, Fate, KEY_BYTES, KeySet, NONCE_BYTES, Protect, Vault};

use crate::support::edit::*;
use crate::support::*;

/// Name and type of a column, or of a value that is bound.
pub type Spec = (&'static str, u16);

pub type Value<'a> = Option<&'a [u8]>;

/// A value that nobody but the client may see.
pub const SECRET: &str = "DE89 3704 0044 0532 0130 00";

pub const CUSTOMERS: [Spec; 3] = [("id", 0x09), ("iban", 0x0D), ("photo", 0x03)];

/// A statement of a batch: its text, or the id of what was prepared, and its values.
pub type Child<'a> = (Result<&'a str, &'a [u8]>, &'a [Value<'a>]);

/// Code and message of an ERROR.
pub type Told = (i32, String);

#[derive(Debug)]
pub struct TestVault {
    keys: Mutex<Option<Arc<KeySet>>>,
    nonces: AtomicU64,
    counted: Mutex<HashMap<Fate, u64>>,
    missed: Mutex<Vec<String>>,
}

impl TestVault {
    pub fn new() -> Arc<Self> {
        let keys = [("old".to_owned(), [0x42; KEY_BYTES].into())];
        Arc::new(Self {
            keys: Mutex::new(Some(Arc::new(KeySet::new("old", keys).unwrap()))),
            nonces: AtomicU64::new(0),
            counted: Mutex::default(),
            missed: Mutex::default(),
        })
    }

    pub fn counted(&self, fate: Fate) -> u64 {
        self.counted
            .lock()
            .unwrap()
            .get(&fate)
            .copied()
            .unwrap_or(0)
    }

    pub fn missed(&self) -> Vec<String> {
        self.missed.lock().unwrap().clone()
    }

    pub fn lose_keys(&self) {
        *self.keys.lock().unwrap() = None;
    }
}

impl Vault for TestVault {
    fn keys(&self) -> Option<Arc<KeySet>> {
        self.keys.lock().unwrap().clone()
    }

    fn nonce(&self) -> Option<[u8; NONCE_BYTES]> {
        let mut nonce = [0; NONCE_BYTES];
        nonce[..8].copy_from_slice(&self.nonces.fetch_add(1, Relaxed).to_be_bytes());
        Some(nonce)
    }

    fn misses(&self, id: &str) {
        self.missed.lock().unwrap().push(id.to_owned());
    }

    fn count(&self, fate: Fate, values: u64) {
        *self.counted.lock().unwrap().entry(fate).or_default() += values;
    }
}

/// See the module.
pub struct Protected {
    pub flow: Edits,
    vault: Arc<TestVault>,
    failures: Failures,
    /// How large pieces are, in bytes.
    pub chunks: usize,
    /// A request is out that nobody has answered. The next one comes when the database has, unless it
    /// [reuses](Self::reuses) the stream.
    is_out: bool,
    /// Requests come on a stream that has another out.
    pub reuses: bool,
}

pub fn protected(kind: Kind, vault: &Arc<TestVault>) -> Protected {
    let failures = Failures {
        unencrypted_passes: false,
        keyless_passes: false,
    };
    protected_with(kind, vault, failures)
}

pub fn protected_with(kind: Kind, vault: &Arc<TestVault>, failures: Failures) -> Protected {
    Protected {
        flow: Edits::new(kind, vec![Arc::new(step(vault, failures))]),
        vault: vault.clone(),
        failures,
        chunks: usize::MAX,
        is_out: false,
        reuses: false,
    }
}

/// None: there cannot be such columns.
pub fn protected_columns(
    kind: Kind,
    vault: &Arc<TestVault>,
    table: &str,
    columns: &[&str],
) -> Option<Protected> {
    let failures = Failures {
        unencrypted_passes: false,
        keyless_passes: false,
    };
    let columns = columns.iter().map(|column| (*column).to_owned()).collect();
    let columns = Columns::new(&HashMap::from([(table.to_owned(), columns)])).ok()?;
    let step = Protect::new(columns, failures, vault.clone());
    Some(Protected {
        flow: Edits::new(kind, vec![Arc::new(step)]),
        vault: vault.clone(),
        failures,
        chunks: usize::MAX,
        is_out: false,
        reuses: false,
    })
}

/// Flows of one rule to the databases at these addresses.
pub fn protected_at<const N: usize>(
    kind: Kind,
    vault: &Arc<TestVault>,
    addresses: [&str; N],
) -> [Protected; N] {
    let failures = Failures {
        unencrypted_passes: false,
        keyless_passes: false,
    };
    let step: Arc<dyn Transform> = Arc::new(step(vault, failures));
    addresses.map(|address| Protected {
        flow: Edits::at(kind, vec![step.clone()], address),
        vault: vault.clone(),
        failures,
        chunks: usize::MAX,
        is_out: false,
        reuses: false,
    })
}

fn step(vault: &Arc<TestVault>, failures: Failures) -> Protect {
    let names = ["iban", "photo"].map(str::to_owned).to_vec();
    let tables = HashMap::from([("shop.customers".to_owned(), names)]);
    Protect::new(Columns::new(&tables).unwrap(), failures, vault.clone())
}

/// The request that the database got.
pub struct Got {
    bytes: Vec<u8>,
    frame: Vec<u8>,
}

/// The request may be megabytes.
impl fmt::Debug for Got {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.frame.len())
    }
}

impl Got {
    /// Whether `bytes` are somewhere in it, before compression or after.
    pub fn has(&self, bytes: &[u8]) -> bool {
        [&self.bytes, &self.frame]
            .iter()
            .any(|all| all.windows(bytes.len()).any(|w| w == bytes))
    }

    fn body(&self) -> RequestBody {
        let envelope = Envelope::from_buffer(&self.frame, Compression::None);
        envelope.unwrap().envelope.request_body().unwrap()
    }

    pub fn text(&self) -> String {
        match self.body() {
            RequestBody::Query(query) => query.query,
            other => panic!("{other:?}"),
        }
    }

    pub fn values(&self) -> Vec<Option<Vec<u8>>> {
        match self.body() {
            RequestBody::Query(query) => values(query.query_params.values),
            RequestBody::Execute(execute) => values(execute.query_parameters.values),
            other => panic!("{other:?}"),
        }
    }

    pub fn skips_metadata(&self) -> bool {
        let (_, flags) = execute_flags(self.frame[0], &self.frame);
        self.frame[flags] & 0x02 != 0
    }

    /// Texts, and values.
    pub fn batch(&self) -> Vec<(String, Vec<Option<Vec<u8>>>)> {
        let RequestBody::Batch(batch) = self.body() else {
            panic!("no batch")
        };
        let children = batch.queries.into_iter().map(|child| {
            let text = match child.subject {
                BatchQuerySubj::QueryString(text) => text,
                BatchQuerySubj::PreparedId(_) => String::new(),
            };
            (text, values(Some(child.values)))
        });
        children.collect()
    }
}

fn values(values: Option<QueryValues>) -> Vec<Option<Vec<u8>>> {
    let value = |value: Sent| match value {
        Sent::Some(bytes) => Some(bytes),
        Sent::Null | Sent::NotSet => None,
    };
    match values {
        None => Vec::new(),
        Some(QueryValues::SimpleValues(values)) => values.into_iter().map(value).collect(),
        Some(QueryValues::NamedValues(_)) => panic!("they have no order"),
    }
}

fn specs(specs: &[Spec]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (name, kind) in specs {
        bytes.extend([string("shop"), string("customers"), string(name)].concat());
        bytes.extend(kind.to_be_bytes());
    }
    bytes
}

/// A RESULT of kind Rows.
pub fn rows_body(columns: &[Spec], rows: &[&[Value<'_>]]) -> Vec<u8> {
    let mut body = [2, 0, columns.len() as i32].map(i32::to_be_bytes).concat();
    body.extend(specs(columns));
    body.extend((rows.len() as i32).to_be_bytes());
    for cell in rows.iter().copied().flatten() {
        body.extend(cell.map_or(-1, |cell| cell.len() as i32).to_be_bytes());
        body.extend(cell.unwrap_or_default());
    }
    body
}

impl Protected {
    fn version(&self) -> u8 {
        self.flow.kind.version
    }

    /// A request. `Err`: it was refused.
    fn request(&mut self, opcode: u8, body: &[u8]) -> Result<Got, Told> {
        let kind = self.flow.kind;
        if std::mem::take(&mut self.is_out) && !self.reuses {
            self.flow.frees(7);
        }
        let sent = kind.wrap(&[frame(kind.version, 0, 7, opcode, body)]);
        let mut bytes = Vec::new();
        for chunk in sent.chunks(self.chunks.min(sent.len())) {
            bytes.extend(self.flow.requests(chunk));
        }
        let mut frames = kind.read(&bytes);
        match self.flow.editor.answers() {
            Some(told) => {
                assert_eq!(frames.len(), 0);
                Err(told_by(&kind.read(&told)))
            }
            None => {
                self.is_out = true;
                Ok(Got {
                    frame: frames.remove(0),
                    bytes,
                })
            }
        }
    }

    /// The database answers by this RESULT; gives the one that the client gets.
    pub fn answered(&mut self, body: &[u8]) -> Result<Vec<u8>, Told> {
        let kind = self.flow.kind;
        self.is_out = false;
        let sent = kind.wrap(&[frame(kind.version | 0x80, 0, 7, RESULT, body)]);
        let mut bytes = Vec::new();
        for chunk in sent.chunks(self.chunks.min(sent.len())) {
            bytes.extend(self.flow.responses(chunk));
        }
        let mut frames = kind.read(&bytes);
        if let Some(told) = self.flow.editor.answers() {
            frames.extend(kind.read(&told));
        }
        assert_eq!(frames.len(), 1);
        match frames[0][4] {
            RESULT => Ok(frames.remove(0).split_off(9)),
            _ => Err(told_by(&frames)),
        }
    }

    pub fn uses(&mut self, keyspace: &str) {
        self.asks(&format!("USE {keyspace}"), &[]).unwrap();
        self.answered(&set_keyspace(keyspace)).unwrap();
    }

    pub fn prepares(
        &mut self,
        id: &[u8],
        text: &str,
        values: &[Spec],
        result: &[Spec],
    ) -> Result<(), Told> {
        self.request(PREPARE, &prepare(self.version(), text, None))?;
        let mut body = prepared(id);
        if self.version() >= 5 {
            body.extend(short_bytes(b"of the metadata"));
        }
        body.extend([0, values.len() as i32].map(i32::to_be_bytes).concat());
        if self.version() >= 4 {
            // The first number is the partition key; without one, the first value.
            let key = values.iter().position(|(_, kind)| *kind == 0x09);
            body.extend([0, 0, 0, 1, 0, key.unwrap_or(0) as u8]);
        }
        body.extend(specs(values));
        body.extend([0, result.len() as i32].map(i32::to_be_bytes).concat());
        body.extend(specs(result));
        let told = self.answered(&body)?;
        assert_eq!(told, body);
        Ok(())
    }

    fn parameters(&self, flags: u32, values: &[u8]) -> Vec<u8> {
        let flags = flags.to_be_bytes();
        let flags = if self.version() < 5 {
            &flags[3..]
        } else {
            &flags
        };
        [&[0, 1], flags, values].concat()
    }

    pub fn executes(
        &mut self,
        id: &[u8],
        values: &[Value<'_>],
        skip_metadata: bool,
    ) -> Result<Got, Told> {
        let flags = if skip_metadata { 0x03 } else { 0x01 };
        let values = simple(values);
        self.execute(id, flags, &values)
    }

    pub fn executes_named(&mut self, id: &[u8], values: &[(&str, Value<'_>)]) -> Result<Got, Told> {
        let mut got = self.execute(id, 0x41, &named(values))?;
        // Read without their names, because their order is what is asked for.
        got.frame = without_names(self.version(), &got.frame, values);
        Ok(got)
    }

    fn execute(&mut self, id: &[u8], flags: u32, values: &[u8]) -> Result<Got, Told> {
        let mut body = short_bytes(id);
        if self.version() >= 5 {
            body.extend(short_bytes(b"of the metadata"));
        }
        body.extend(self.parameters(flags, values));
        self.request(EXECUTE, &body)
    }

    pub fn asks_named(&mut self, text: &str, values: &[(&str, Value<'_>)]) -> Result<Got, Told> {
        let mut body = long_string(text);
        body.extend(self.parameters(0x41, &named(values)));
        self.request(QUERY, &body)
    }

    pub fn asks(&mut self, text: &str, values: &[Value<'_>]) -> Result<Got, Told> {
        let mut body = long_string(text);
        match values.is_empty() {
            true => body.extend(self.parameters(0, &[])),
            false => body.extend(self.parameters(1, &simple(values))),
        }
        self.request(QUERY, &body)
    }

    /// Texts or ids, and values.
    pub fn batches(&mut self, children: &[Child<'_>]) -> Result<Got, Told> {
        let mut body = vec![0];
        body.extend((children.len() as u16).to_be_bytes());
        for (asked, values) in children {
            match asked {
                Ok(text) => body.extend([&[0], &long_string(text)[..]].concat()),
                Err(id) => body.extend([&[1], &short_bytes(id)[..]].concat()),
            }
            body.extend(simple(values));
        }
        body.extend(self.parameters(0, &[]));
        self.request(BATCH, &body)
    }

    /// The client asked for rows, and these are there.
    pub fn reads(&mut self, columns: &[Spec], rows: &[&[Value<'_>]]) -> Result<Vec<u8>, Told> {
        self.answered(&rows_body(columns, rows))
    }

    /// The stored form of this value, as another flow writes it.
    pub fn sealed(&mut self, column: &str, plain: &[u8]) -> Vec<u8> {
        let mut other = protected_with(KINDS[3], &self.vault, self.failures);
        let text = format!("UPDATE shop.customers SET {column} = ? WHERE id = 1");
        let mut values = other.asks(&text, &[Some(plain)]).unwrap().values();
        values.remove(0).unwrap()
    }

    /// The plain form of what was stored for this column, as another flow reads it.
    pub fn opened(&mut self, column: &'static str, stored: &Option<Vec<u8>>) -> Vec<u8> {
        let mut other = protected_with(KINDS[3], &self.vault, self.failures);
        let text = format!("SELECT {column} FROM shop.customers");
        other.asks(&text, &[]).unwrap();
        let found = [(column, 0x0D)];
        let row = [stored.as_deref()];
        let read = other.reads(&found, &[&row]).unwrap();
        let head = rows_body(&found, &[]).len() + 4;
        read[head..].to_vec()
    }
}

fn one(value: Value<'_>) -> Vec<u8> {
    let length = value.map_or(-1, |value| value.len() as i32);
    [&length.to_be_bytes()[..], value.unwrap_or_default()].concat()
}

fn named(values: &[(&str, Value<'_>)]) -> Vec<u8> {
    let mut bytes = (values.len() as u16).to_be_bytes().to_vec();
    for (name, value) in values {
        bytes.extend(string(name));
        bytes.extend(one(*value));
    }
    bytes
}

fn simple(values: &[Value<'_>]) -> Vec<u8> {
    let mut bytes = (values.len() as u16).to_be_bytes().to_vec();
    bytes.extend(values.iter().flat_map(|value| one(*value)));
    bytes
}

/// The end of an EXECUTE's flags, and the last of their bytes.
fn execute_flags(version: u8, frame: &[u8]) -> (usize, usize) {
    let mut at = 9;
    for _ in 0..if version >= 5 { 2 } else { 1 } {
        at += 2 + usize::from(u16::from_be_bytes([frame[at], frame[at + 1]]));
    }
    at += 2 + if version >= 5 { 4 } else { 1 };
    (at, at - 1)
}

/// An EXECUTE with its flag for names, and the names, gone.
fn without_names(version: u8, frame: &[u8], values: &[(&str, Value<'_>)]) -> Vec<u8> {
    let (mut at, _) = execute_flags(version, frame);
    let mut bytes = frame[..at].to_vec();
    bytes[at - 1] &= !0x40;
    bytes.extend(&frame[at..at + 2]);
    at += 2;
    for (name, _) in values {
        assert!(frame[at..].starts_with(&string(name)));
        at += 2 + name.len();
        let length = i32::from_be_bytes(frame[at..at + 4].try_into().unwrap());
        let end = at + 4 + usize::try_from(length).unwrap_or(0);
        bytes.extend(&frame[at..end]);
        at = end;
    }
    bytes.extend(&frame[at..]);
    let length = (bytes.len() - 9) as u32;
    bytes[5..9].copy_from_slice(&length.to_be_bytes());
    bytes
}

fn told_by(frames: &[Vec<u8>]) -> Told {
    let [told] = frames else {
        panic!("{} answers", frames.len())
    };
    assert_eq!((told[4], &told[2..4]), (ERROR, &[0, 7][..]));
    let code = i32::from_be_bytes(told[9..13].try_into().unwrap());
    let length = usize::from(u16::from_be_bytes([told[13], told[14]]));
    let message = String::from_utf8(told[15..15 + length].to_vec());
    (code, message.unwrap())
}
