//! Writes CQL frames by hand, and records what a decoder tells.

pub mod conversation;
pub mod kind;

use cql::{Anomaly, Completed, ErrorCode, FlowDecoder, Sink, Verdict};

pub const STARTUP: u8 = 1;
pub const OPTIONS: u8 = 5;
pub const QUERY: u8 = 7;
pub const PREPARE: u8 = 9;
pub const EXECUTE: u8 = 0x0A;
pub const BATCH: u8 = 0x0D;
pub const ERROR: u8 = 0;
pub const READY: u8 = 2;
pub const AUTHENTICATE: u8 = 3;
pub const RESULT: u8 = 8;
pub const EVENT: u8 = 0x0C;

/// A report of a decoder.
#[derive(Clone, Debug, PartialEq)]
pub enum Told {
    /// stream, "kind keyspace table", error, bytes of request and response
    Completed(i16, String, Option<ErrorCode>, u64, u64),
    Anomaly(Anomaly),
}

#[derive(Debug, Default, PartialEq)]
pub struct Recorder {
    pub told: Vec<Told>,
    pub latencies_ns: Vec<u64>,
}

impl Sink for Recorder {
    fn completed(&mut self, c: &Completed<'_>) {
        let statement = format!(
            "{} {} {}",
            c.statement.kind,
            c.statement.keyspace.as_deref().unwrap_or("-"),
            c.statement.table.as_deref().unwrap_or("-"),
        );
        self.latencies_ns.push(c.latency_ns);
        self.told.push(Told::Completed(
            c.stream.0,
            statement,
            c.error,
            c.request_bytes,
            c.response_bytes,
        ));
    }

    fn anomaly(&mut self, anomaly: Anomaly) {
        self.told.push(Told::Anomaly(anomaly));
    }
}

impl Recorder {
    /// "kind keyspace table" of all that was completed.
    pub fn statements(&self) -> Vec<&str> {
        fn statement(told: &Told) -> Option<&str> {
            match told {
                Told::Completed(_, statement, ..) => Some(statement.as_str()),
                Told::Anomaly(_) => None,
            }
        }
        self.told.iter().filter_map(statement).collect()
    }

    pub fn anomalies(&self) -> Vec<Anomaly> {
        let anomaly = |told: &Told| match told {
            Told::Completed(..) => None,
            Told::Anomaly(anomaly) => Some(*anomaly),
        };
        self.told.iter().filter_map(anomaly).collect()
    }
}

/// A decoder with its recorder; asserts that a flow goes on.
pub struct Flow {
    pub decoder: FlowDecoder,
    pub recorder: Recorder,
    pub version: u8,
}

impl Flow {
    pub fn new(version: u8) -> Self {
        Self {
            decoder: FlowDecoder::new(Default::default()),
            recorder: Recorder::default(),
            version,
        }
    }

    /// STARTUP and READY have passed.
    pub fn started(version: u8) -> Self {
        let mut flow = Self::new(version);
        flow.requests(&startup(version, &[]));
        flow.responses(&frame(version | 0x80, 0, 0, READY, &[]));
        flow.recorder.told.clear();
        flow
    }

    /// The handshake of this kind has passed.
    pub fn of(kind: kind::Kind) -> Self {
        let mut flow = Self::new(kind.version);
        let [(_, startup), (_, ready)] = kind.handshake();
        flow.requests(&startup);
        flow.responses(&ready);
        flow.recorder.told.clear();
        flow
    }

    pub fn requests(&mut self, bytes: &[u8]) {
        let verdict = self.decoder.requests(0, bytes, &mut self.recorder);
        assert_eq!(verdict, Verdict::Continue);
    }

    pub fn responses(&mut self, bytes: &[u8]) {
        let verdict = self.decoder.responses(0, bytes, &mut self.recorder);
        assert_eq!(verdict, Verdict::Continue);
    }

    pub fn request(&mut self, stream: i16, opcode: u8, body: &[u8]) {
        let frame = self.wrap(frame(self.version, 0, stream, opcode, body));
        self.requests(&frame);
    }

    pub fn response(&mut self, stream: i16, opcode: u8, body: &[u8]) {
        let frame = self.wrap(frame(self.version | 0x80, 0, stream, opcode, body));
        self.responses(&frame);
    }

    /// A request and an empty result; gives "kind keyspace table".
    pub fn ask(&mut self, opcode: u8, body: &[u8]) -> String {
        self.request(1, opcode, body);
        self.response(1, RESULT, &1_i32.to_be_bytes());
        self.recorder.statements().last().unwrap().to_string()
    }

    pub fn prepare(&mut self, id: &[u8], text: &str) -> String {
        self.request(2, PREPARE, &prepare(self.version, text, None));
        self.response(2, RESULT, &prepared(id));
        self.recorder.statements().last().unwrap().to_string()
    }

    pub fn use_keyspace(&mut self, keyspace: &str) {
        self.request(
            3,
            QUERY,
            &query(self.version, &format!("USE {keyspace}"), None),
        );
        self.response(3, RESULT, &set_keyspace(keyspace));
    }

    fn wrap(&self, frame: Vec<u8>) -> Vec<u8> {
        if self.version < 5 {
            frame
        } else {
            segment(true, &frame)
        }
    }
}

pub fn frame(version: u8, flags: u8, stream: i16, opcode: u8, body: &[u8]) -> Vec<u8> {
    let mut frame = vec![version, flags];
    frame.extend(stream.to_be_bytes());
    frame.push(opcode);
    frame.extend((body.len() as i32).to_be_bytes());
    frame.extend(body);
    frame
}

pub fn segment(self_contained: bool, payload: &[u8]) -> Vec<u8> {
    use cassandra_protocol::crc::{crc24, crc32};
    assert!(payload.len() < 1 << 17);
    let word = payload.len() as u32 | u32::from(self_contained) << 17;
    let mut segment = word.to_le_bytes()[..3].to_vec();
    let crc = crc24(&segment) as u32;
    segment.extend(&crc.to_le_bytes()[..3]);
    segment.extend(payload);
    segment.extend(crc32(payload).to_le_bytes());
    segment
}

pub fn string(text: &str) -> Vec<u8> {
    short_bytes(text.as_bytes())
}

pub fn short_bytes(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u16).to_be_bytes(), bytes].concat()
}

pub fn long_string(text: &str) -> Vec<u8> {
    [&(text.len() as u32).to_be_bytes(), text.as_bytes()].concat()
}

pub fn startup(version: u8, options: &[(&str, &str)]) -> Vec<u8> {
    let mut body = (options.len() as u16 + 1).to_be_bytes().to_vec();
    for (option, value) in [("CQL_VERSION", "3.0.0")].iter().chain(options) {
        body.extend(string(option));
        body.extend(string(value));
    }
    frame(version, 0, 0, STARTUP, &body)
}

/// A QUERY's body with a consistency and no parameters but the keyspace.
pub fn query(version: u8, text: &str, keyspace: Option<&str>) -> Vec<u8> {
    let mut body = long_string(text);
    body.extend([0, 1]);
    body.extend(flags_and_keyspace(version, 0x80, keyspace));
    body
}

pub fn prepare(version: u8, text: &str, keyspace: Option<&str>) -> Vec<u8> {
    let mut body = long_string(text);
    if version >= 5 {
        body.extend(flags_and_keyspace(version, 0x01, keyspace));
    }
    body
}

fn flags_and_keyspace(version: u8, flag: u32, keyspace: Option<&str>) -> Vec<u8> {
    if version < 5 {
        return vec![0];
    }
    match keyspace {
        None => vec![0; 4],
        Some(keyspace) => [&flag.to_be_bytes()[..], &string(keyspace)].concat(),
    }
}

pub fn execute(id: &[u8]) -> Vec<u8> {
    [&short_bytes(id)[..], &[0, 1, 0, 0, 0, 0]].concat()
}

pub enum Child<'a> {
    Text(&'a str),
    Id(&'a [u8]),
}

/// A BATCH's body; every child has two values, one of them null.
pub fn batch(version: u8, children: &[Child<'_>], keyspace: Option<&str>) -> Vec<u8> {
    let mut body = vec![0];
    body.extend((children.len() as u16).to_be_bytes());
    for child in children {
        match child {
            Child::Text(text) => {
                body.push(0);
                body.extend(long_string(text));
            }
            Child::Id(id) => {
                body.push(1);
                body.extend(short_bytes(id));
            }
        }
        body.extend([0, 2, 0, 0, 0, 1, 9, 255, 255, 255, 255]);
    }
    body.extend([0, 1]);
    body.extend(flags_and_keyspace(version, 0x80, keyspace));
    body
}

pub fn prepared(id: &[u8]) -> Vec<u8> {
    [&4_i32.to_be_bytes()[..], &short_bytes(id)].concat()
}

pub fn set_keyspace(keyspace: &str) -> Vec<u8> {
    [&3_i32.to_be_bytes()[..], &string(keyspace)].concat()
}

pub fn table(n: usize) -> String {
    format!("SELECT v FROM ks.t{n} WHERE k = 'something to be compressed, compressed'")
}

pub fn ask(version: u8, text: &str) -> Vec<u8> {
    query(version, text, None)
}
