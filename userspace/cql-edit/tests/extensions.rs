//! Extensions of the protocol that STARTUP asks for: frames that they change are edited as others are, and a flow
//! whose frames may look in any way is not edited at all.

use std::sync::Arc;

use cassandra_protocol::compression::Compression;
use cql::wire::Header;
use cql_edit::{Caller, Editor, Transform, Unseen};
use proptest::prelude::*;
use proptest::sample::subsequence;

use crate::support::edit::*;
use crate::support::values::*;
use crate::support::*;

const SUPPORTED: u8 = 6;

const METADATA_ID: &str = "SCYLLA_USE_METADATA_ID";
const TABLETS_V2: &str = "TABLETS_ROUTING_V2_EXPERIMENTAL_V2";

/// Extensions and options that are known.
const KNOWN: [&str; 9] = [
    METADATA_ID,
    TABLETS_V2,
    "TABLETS_ROUTING_V1",
    "SCYLLA_LWT_ADD_METADATA_MARK",
    "SCYLLA_RATE_LIMIT_ERROR",
    "DRIVER_NAME",
    "SESSION_ID",
    "CLIENT_OPTIONS",
    "THROW_ON_OVERLOAD",
];

const STEPS: [&str; 11] = [
    "transform = \"consistency\"\nexactly = \"TWO\"",
    "transform = \"guard\"\nrefuse = [\"truncate\"]\ntables = [\"ks.closed\"]",
    "transform = \"guard\"\nmax_batch = 1\nmode = \"shadow\"",
    "transform = \"paging\"\nat_most = 9\nwithout_size = \"set\"",
    "transform = \"rewrite\"\nkeyspaces = { ks = \"other\" }",
    "transform = \"rewrite\"\ntimestamps = \"server\"",
    "transform = \"tag\"\nservice = \"shop\"",
    "transform = \"throttle\"\nrate = 1\nmode = \"overloaded\"",
    "transform = \"tracing\"\none_in = 1",
    "transform = \"lookup\"",
    "transform = \"null\"",
];

fn steps(settings: &[&str]) -> Vec<Arc<dyn Transform>> {
    settings.iter().map(|settings| step(settings)).collect()
}

fn kinds() -> impl Strategy<Value = Kind> {
    prop::sample::select(KINDS.to_vec()).prop_filter("before v5", |kind| kind.version < 5)
}

/// A flow whose server has offered these keys, where that was seen, and whose client has asked for those.
fn begun(kind: Kind, settings: &[&str], offered: Option<&[&str]>, asked: &[&str]) -> Edits {
    let mut flow = Edits {
        kind,
        editor: Editor::new(steps(settings).into(), Caller::default()),
        noted: Noted::default(),
    };
    flow.editor.set_time(NOW_US);
    if let Some(offered) = offered {
        let mut body = (offered.len() as u16).to_be_bytes().to_vec();
        for key in offered {
            body.extend([string(key), vec![0, 2], string("A=1"), string("B=2")].concat());
        }
        let options = frame(kind.version, 0, 3, OPTIONS, &[]);
        assert_eq!(flow.requests(&options), options);
        let supported = frame(kind.version | 0x80, 0, 3, SUPPORTED, &body);
        for byte in &supported {
            flow.responses(&[*byte]);
        }
    }
    let mut options: Vec<_> = asked.iter().map(|key| (*key, "value")).collect();
    match kind.compression {
        Compression::None => {}
        Compression::Lz4 => options.push(("COMPRESSION", "lz4")),
        Compression::Snappy => options.push(("COMPRESSION", "snappy")),
    }
    let startup = startup(kind.version, &options);
    assert_eq!(flow.requests(&startup), startup);
    let ready = frame(kind.version | 0x80, 0, 0, READY, &[]);
    assert_eq!(flow.responses(&ready), ready);
    flow
}

/// The extensions' parts of frames.
#[derive(Clone, Copy, Debug, Default)]
struct Parts {
    metadata_id: bool,
    tablet_block: bool,
}

const ID: &[u8] = b"of the metadata!";
const BLOCK: u8 = 0xA3;

impl Parts {
    fn metadata_id(self) -> Vec<u8> {
        match self.metadata_id {
            true => short_bytes(ID),
            false => Vec::new(),
        }
    }

    fn execute(self, parameters: &[u8]) -> Vec<u8> {
        let block: &[u8] = if self.tablet_block { &[BLOCK] } else { &[] };
        [&short_bytes(b"id"), &self.metadata_id(), parameters, block].concat()
    }

    fn prepared(self, version: u8) -> Vec<u8> {
        let head = [4_i32.to_be_bytes().to_vec(), short_bytes(b"id")].concat();
        // The mark of a lightweight transaction is the highest bit.
        let mut body = [1 | i32::MIN, 1].map(i32::to_be_bytes).concat();
        if version >= 4 {
            body.extend([0, 0, 0, 1, 0, 0]);
        }
        let column = [string("ks"), string("t"), string("k"), vec![0, 9]].concat();
        body.extend(&column);
        body.extend([1, 1].map(i32::to_be_bytes).concat());
        body.extend(&column);
        [head, self.metadata_id(), body].concat()
    }

    /// An EXECUTE or PREPARED as it would be without the extensions. They have to be as they were sent.
    fn strip(self, frame: &[u8]) -> Vec<u8> {
        let (header, body) = frame.split_at(9);
        let mut at = 0;
        let short = |at: usize| usize::from(u16::from_be_bytes([body[at], body[at + 1]]));
        let is_prepared = header[4] == RESULT && body.starts_with(&[0, 0, 0, 4]);
        if header[4] == EXECUTE && header[1] & 4 != 0 {
            at = 2;
            for _ in 0..short(0) {
                at += 2 + short(at);
                at += 4 + u32::from_be_bytes(body[at..at + 4].try_into().unwrap()) as usize;
            }
        } else if is_prepared {
            at = 4;
        } else if header[4] != EXECUTE {
            return frame.to_vec();
        }
        at += 2 + short(at);
        let (before, mut behind) = body.split_at(at);
        if self.metadata_id {
            behind = behind.strip_prefix(&short_bytes(ID)[..]).expect("the id");
        }
        if self.tablet_block && !is_prepared {
            behind = behind.strip_suffix(&[BLOCK]).expect("the block");
        }
        let mut stripped = header[..5].to_vec();
        stripped.extend((before.len() as u32 + behind.len() as u32).to_be_bytes());
        [&stripped[..], before, behind].concat()
    }
}

/// A request, and what the database answers.
#[derive(Clone, Debug)]
enum Exchange {
    Query(&'static str, Option<i64>),
    Prepare(&'static str),
    /// With values, and a timestamp.
    Execute(Vec<i32>, Option<i64>),
    Batch(&'static str),
}

const TEXTS: [&str; 5] = [
    "SELECT k FROM ks.t WHERE k = ?",
    "INSERT INTO ks.t (k) VALUES (?)",
    "UPDATE ks.t USING TIMESTAMP ? SET v = 1 WHERE k = ? IF EXISTS",
    "TRUNCATE ks.t",
    "SELECT k FROM ks.closed",
];

fn exchanges() -> impl Strategy<Value = Exchange> {
    let text = || prop::sample::select(TEXTS.to_vec());
    let times = || prop::option::of(any::<i64>());
    prop_oneof![
        (text(), times()).prop_map(|(text, us)| Exchange::Query(text, us)),
        text().prop_map(Exchange::Prepare),
        (prop::collection::vec(any::<i32>(), 0..3), times())
            .prop_map(|(values, us)| Exchange::Execute(values, us)),
        text().prop_map(Exchange::Batch),
    ]
}

impl Exchange {
    fn request(&self, version: u8, parts: Parts) -> (u8, Vec<u8>) {
        match self {
            Self::Query(text, us) => {
                let parameters = parameters(version, &[ttl(1)], None, *us);
                (QUERY, [long_string(text), parameters].concat())
            }
            Self::Prepare(text) => (PREPARE, prepare(version, text, None)),
            Self::Execute(values, us) => {
                let values: Vec<_> = values.iter().map(|value| ttl(*value)).collect();
                let parameters = parameters(version, &values, None, *us);
                (EXECUTE, parts.execute(&parameters))
            }
            Self::Batch(text) => {
                let body = batch_of(version, &Child::Text(text), &[ttl(1)], None);
                (BATCH, body)
            }
        }
    }

    fn answer(&self, version: u8, parts: Parts) -> Vec<u8> {
        match self {
            Self::Prepare(_) => parts.prepared(version),
            // Rows whose metadata have changed: the new id of them stands there.
            Self::Execute(..) if parts.metadata_id => rows(0x08),
            _ => rows(0),
        }
    }
}

fn rows(flags: i32) -> Vec<u8> {
    let mut body = [2, 1 | flags, 1].map(i32::to_be_bytes).concat();
    if flags & 0x08 != 0 {
        body.extend(short_bytes(ID));
    }
    body.extend([string("ks"), string("t"), string("k"), vec![0, 9]].concat());
    body.extend([1, 4, 5].map(i32::to_be_bytes).concat());
    body
}

/// The frames that go on to the database for this request, and those that its client gets.
fn ask(flow: &mut Edits, opcode: u8, body: &[u8]) -> [Vec<Vec<u8>>; 2] {
    let kind = flow.kind;
    let passed = flow.requests(&kind.sent(0, 7, opcode, body));
    let told = flow.editor.answers().unwrap_or_default();
    [kind.read(&passed), kind.read(&told)]
}

proptest! {
    #[test]
    fn frames_with_an_extension_are_edited_as_those_without(
        kind in kinds(),
        settings in subsequence(STEPS.to_vec(), 0..4),
        known in subsequence(KNOWN.to_vec(), 0..=KNOWN.len()),
        offered in subsequence(KNOWN.to_vec(), 0..=KNOWN.len()),
        exchanges in prop::collection::vec(exchanges(), 1..12),
    ) {
        let version = kind.version;
        let parts = Parts {
            metadata_id: known.contains(&METADATA_ID) && offered.contains(&METADATA_ID),
            tablet_block: known.contains(&TABLETS_V2) && offered.contains(&TABLETS_V2),
        };
        let mut plain = begun(kind, &settings, None, &[]);
        let mut extended = begun(kind, &settings, Some(&offered), &known);
        for exchange in exchanges {
            let (opcode, body) = exchange.request(version, Parts::default());
            let [passed, told] = ask(&mut plain, opcode, &body);
            let (opcode, body) = exchange.request(version, parts);
            let [with, told_with] = ask(&mut extended, opcode, &body);
            let stripped: Vec<_> = with.iter().map(|frame| parts.strip(frame)).collect();
            prop_assert_eq!(&passed, &stripped, "{:?}", exchange);
            prop_assert_eq!(told, told_with);
            // A question of the editor's own has a stream of its own.
            for one in &passed {
                let stream = i16::from_be_bytes([one[2], one[3]]);
                let answer = match stream {
                    7 => exchange.answer(version, Parts::default()),
                    _ => rows(0),
                };
                let got = plain.responses(&kind.sent(0x80, stream, RESULT, &answer));
                let answer_with = match stream {
                    7 => exchange.answer(version, parts),
                    _ => rows(0),
                };
                let sent = kind.sent(0x80, stream, RESULT, &answer_with);
                let got_with = kind.read(&extended.responses(&sent));
                let stripped: Vec<_> = got_with.iter().map(|frame| parts.strip(frame)).collect();
                if answer.len() == answer_with.len() || opcode == PREPARE {
                    prop_assert_eq!(kind.read(&got), stripped);
                }
            }
        }
        prop_assert_eq!(plain.noted, extended.noted);
    }

    #[test]
    fn an_extension_that_is_not_known_is_never_guessed(
        kind in kinds(),
        settings in prop::sample::select(STEPS.to_vec()),
        mut asked in subsequence(KNOWN.to_vec(), 0..=KNOWN.len()),
        is_seen: bool,
        exchanges in prop::collection::vec(exchanges(), 1..8),
    ) {
        asked.push("SCYLLA_OF_TOMORROW");
        let offered = is_seen.then_some(&asked[..]);
        let mut flow = begun(kind, &[settings], offered, &asked);
        let is_strict = step(settings).is_strict();
        for exchange in exchanges {
            let (opcode, body) = exchange.request(kind.version, Parts::default());
            let opcode_seen = Header::read([4, 0, 0, 7, opcode, 0, 0, 0, 0]).unwrap().opcode;
            let wanted = step(settings).wants(opcode_seen.unwrap());
            flow.noted = Noted::default();
            let sent = kind.sent(0, 7, opcode, &body);
            let passed = flow.requests(&sent);
            let expected = if wanted { vec![(Unseen::Extension, is_strict)] } else { Vec::new() };
            prop_assert_eq!(&flow.noted.unseen, &expected);
            if is_strict && wanted {
                prop_assert_eq!(passed, b"");
                let told = kind.read(&flow.editor.answers().unwrap());
                prop_assert_eq!(told[0][4], ERROR);
                continue;
            }
            prop_assert_eq!(passed, sent);
            let answer = exchange.answer(kind.version, Parts::default());
            let sent = kind.sent(0x80, 7, RESULT, &answer);
            prop_assert_eq!(flow.responses(&sent), sent);
        }
    }
}

#[test]
fn a_second_startup_changes_nothing() {
    let kind = kind(4, Compression::None);
    let settings = ["transform = \"consistency\"\nexactly = \"TWO\""];
    let mut flow = begun(kind, &settings, Some(&[METADATA_ID]), &[METADATA_ID]);
    flow.requests(&frame(
        4,
        0,
        9,
        STARTUP,
        &startup(4, &[("SCYLLA_OF_TOMORROW", "")])[9..],
    ));
    flow.responses(&frame(0x84, 0, 9, ERROR, &[0, 0, 0, 10, 0, 0]));
    let parts = Parts {
        metadata_id: true,
        tablet_block: false,
    };
    let body = parts.execute(&parameters(4, &[], None, None));
    let [passed, _] = ask(&mut flow, EXECUTE, &body);
    let at = 9 + 4 + 2 + ID.len();
    assert_eq!(passed[0][at..at + 2], [0, 2], "TWO");
}
