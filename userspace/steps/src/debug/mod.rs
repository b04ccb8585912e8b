//! `debug`: a line for each frame of some flows, to find out what a client and its database say to
//! each other.

use std::{
    hash::{BuildHasher, RandomState},
    path::PathBuf,
    sync::{
        Arc, LazyLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Instant, SystemTime, UNIX_EPOCH},
};

use cql::{Completed, Details, Frame, MAX_FRAME_BODY_BYTES, Opcode};
use export::Fsync;
use prometheus::IntCounter;
use serde::{Deserialize, Serialize};

use super::{
    Following, Keeps, Nobody, Reporter, Services, Whose, frames,
    journal::{self, Journal, JournalSettings, Place, WhenFull},
};

/// The reporter's name.
const NAME: &str = "debug";

/// The default of `bytes`.
const BODY_BYTES: usize = 256;

/// The default of `per_second`.
const PER_SECOND: u32 = 100;

/// Writes a line for each frame of some flows.
#[derive(Clone, Debug, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("examples" = [{"sample": 0.01, "values": true, "bytes": 64}]))]
pub struct DebugSettings {
    /// `true`: lines have the beginnings of bodies, with the values in them.
    #[serde(default)]
    pub values: bool,
    /// Bytes of each body that a line shows. Needs `values`.
    #[schemars(range(min = 1, max = MAX_FRAME_BODY_BYTES), extend("default" = BODY_BYTES, "x-beside" = "values"))]
    pub bytes: Option<usize>,
    /// Fraction of the rule's flows whose frames are written.
    #[schemars(range(max = 1.0), extend("exclusiveMinimum" = 0.0, "default" = 1.0))]
    pub sample: Option<f64>,
    /// Lines per second, of all flows together. Further ones are counted.
    #[schemars(range(min = 1), extend("default" = PER_SECOND))]
    pub per_second: Option<u32>,
    /// File that lines go to. Without this key: the agent's log.
    #[schemars(with = "Option<String>", extend("title" = "absolute path", "examples" = ["/var/log/underpass/frames.jsonl"]))]
    pub file: Option<PathBuf>,
    /// Size of the file, in bytes, beyond which it is moved to `FILE.1`.
    #[serde(default = "journal::max_bytes")]
    #[schemars(range(min = journal::LEAST_BYTES), extend("x-beside" = "file"))]
    pub max_bytes: u64,
    /// Files that are kept beside it.
    #[serde(default = "journal::keep")]
    #[schemars(range(max = journal::MOST_KEPT), extend("x-beside" = "file"))]
    pub keep: u32,
}

#[derive(Debug)]
struct Debug {
    journal: Keeps,
    /// The number of a body's bytes that are shown. None: no body is shown.
    bytes: Option<usize>,
    sample: f64,
    keys: RandomState,
    rate: Arc<Rate>,
}

impl DebugSettings {
    pub(super) fn build(self) -> Result<Box<dyn Reporter>, String> {
        let bytes = match (self.values, self.bytes) {
            (false, Some(_)) => {
                return Err(
                    "bytes: expected `values = true` beside it, because bodies have values \
                            in them"
                        .to_owned(),
                );
            }
            (false, None) => None,
            (true, bytes) => Some(bytes.unwrap_or(BODY_BYTES)),
        };
        if let Some(bytes) = bytes.filter(|bytes| !(1..=MAX_FRAME_BODY_BYTES).contains(bytes)) {
            return Err(format!(
                "bytes: expected 1 to {MAX_FRAME_BODY_BYTES}, found {bytes}"
            ));
        }
        let sample = self.sample.unwrap_or(1.0);
        if !(sample > 0.0 && sample <= 1.0) {
            return Err(format!(
                "sample: expected a fraction of flows, above 0 and up to 1; found {sample}"
            ));
        }
        let per_second = self.per_second.unwrap_or(PER_SECOND);
        if per_second == 0 {
            return Err("per_second: expected 1 line or more, found 0".to_owned());
        }
        let to = match self.file {
            None => Place::Log,
            Some(path) => Place::file(path, self.max_bytes, self.keep, Fsync::Never)?,
        };
        Ok(Box::new(Debug {
            journal: Keeps::new(JournalSettings {
                to,
                when_full: WhenFull::Drop,
            }),
            bytes,
            sample,
            keys: RandomState::new(),
            rate: Arc::new(Rate::new(per_second)),
        }))
    }
}

impl Debug {
    /// Whether a flow is in the sample. A flow is shown as a whole or not at all.
    fn shows(&self, flow: u64) -> bool {
        // As many bits as a float's mantissa has.
        let drawn = (self.keys.hash_one(flow) >> 11) as f64 / (1_u64 << 53) as f64;
        drawn < self.sample
    }
}

impl Reporter for Debug {
    fn name(&self) -> &'static str {
        NAME
    }

    fn journal(&self) -> Option<&JournalSettings> {
        Some(&self.journal.settings)
    }

    fn open(&self, services: &Services) -> Result<(), String> {
        self.journal.open(&services.journals, NAME, line)
    }

    fn wants_requests(&self) -> bool {
        false
    }

    fn wants_frames(&self) -> bool {
        true
    }

    fn wants_bodies(&self) -> bool {
        self.bytes.is_some()
    }

    fn follow(&self, whose: &Arc<Whose>, services: &Arc<Services>) -> Box<dyn Following> {
        let Some(journal) = self.journal.get() else {
            return Box::new(Nobody);
        };
        let flow = whose.flow.id.number();
        if !self.shows(flow) {
            return Box::new(Nobody);
        }
        let label = services.frames.label(&whose.rule);
        Box::new(FlowDebug {
            journal: journal.clone(),
            bytes: self.bytes,
            rate: self.rate.clone(),
            head: Head {
                flow,
                rule: whose.rule.as_str().to_owned(),
                client: whose.flow.client.to_string(),
            },
            skipped: services.frames.skipped(label.as_str()),
            record: Vec::new(),
        })
    }
}

/// The zero of the clock by which lines are counted.
static START: LazyLock<Instant> = LazyLock::new(Instant::now);

/// A limit on the lines in each second.
#[derive(Debug)]
struct Rate {
    per_second: u32,
    /// The current second, and the number of lines in it: 32 bits each.
    now: AtomicU64,
}

impl Rate {
    fn new(per_second: u32) -> Self {
        Self {
            per_second,
            now: AtomicU64::new(0),
        }
    }

    /// Whether one more line is allowed in this second.
    fn allows(&self, second: u32) -> bool {
        let next = |now: u64| {
            let (of, count) = ((now >> 32) as u32, now as u32);
            let count = if of == second { count } else { 0 };
            (count < self.per_second).then_some(u64::from(second) << 32 | u64::from(count + 1))
        };
        self.now.fetch_update(Relaxed, Relaxed, next).is_ok()
    }
}

/// The beginning of every line of a flow.
#[derive(Debug)]
struct Head {
    flow: u64,
    rule: String,
    client: String,
}

struct FlowDebug {
    journal: Arc<Journal>,
    bytes: Option<usize>,
    rate: Arc<Rate>,
    head: Head,
    skipped: IntCounter,
    /// The buffer of a record, kept from frame to frame.
    record: Vec<u8>,
}

impl Following for FlowDebug {
    fn completed(&mut self, _: &Completed<'_>, _: &Details) {}

    fn frame(&mut self, frame: &Frame<'_>) {
        if !self.rate.allows(START.elapsed().as_secs() as u32) {
            return self.skipped.inc();
        }
        // Passwords, and what replaces them, are never shown.
        let is_secret = matches!(
            frame.opcode,
            Some(Opcode::AuthResponse | Opcode::AuthChallenge | Opcode::AuthSuccess)
        );
        let body = self.bytes.filter(|_| !is_secret).map(|bytes| {
            let shown = frame.body.get(..bytes);
            shown.unwrap_or(frame.body)
        });
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH);
        let unix_ms = since_epoch.unwrap_or_default().as_millis() as u64;
        self.record.clear();
        record(&mut self.record, unix_ms, &self.head, frame, body);
        if let Err(full) = self.journal.push(&self.record) {
            self.journal.drops(full);
        }
    }
}

/// The mark of a frame whose body is not shown.
const NO_BODY: u8 = 0;
const BODY: u8 = 1;

/// The mark of a frame whose opcode is not known; known ones are numbered from 0.
const NO_OPCODE: u8 = u8::MAX;

/// Appends the record of which the journal's thread makes a line.
fn record(to: &mut Vec<u8>, unix_ms: u64, head: &Head, frame: &Frame<'_>, body: Option<&[u8]>) {
    to.extend(unix_ms.to_be_bytes());
    to.extend(head.flow.to_be_bytes());
    let opcode = frame.opcode.map_or(NO_OPCODE, |opcode| opcode as u8);
    let has_body = body.map_or(NO_BODY, |_| BODY);
    to.extend([
        u8::from(frame.is_request),
        frame.version,
        frame.flags,
        opcode,
        has_body,
    ]);
    to.extend(frame.stream.0.to_be_bytes());
    to.extend(frame.length.to_be_bytes());
    for text in [&head.rule, &head.client] {
        let bytes = text.as_bytes();
        let bytes = bytes.get(..usize::from(u16::MAX)).unwrap_or(bytes);
        to.extend((bytes.len() as u16).to_be_bytes());
        to.extend_from_slice(bytes);
    }
    to.extend_from_slice(body.unwrap_or_default());
}

/// A line as it is written.
#[derive(Debug, Serialize)]
struct Line<'r> {
    unix_ms: u64,
    rule: &'r str,
    flow: u64,
    client: &'r str,
    from: &'static str,
    version: u8,
    flags: u8,
    stream: i16,
    opcode: &'static str,
    /// The length of the body in bytes, as sent.
    length: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    body: Option<String>,
}

/// Makes a line of a record.
fn line(record: &[u8], to: &mut Vec<u8>) {
    if let Some(line) = Line::read(record)
        && let Ok(json) = serde_json::to_string(&line)
    {
        to.extend_from_slice(json.as_bytes());
        to.push(b'\n');
    }
}

impl<'r> Line<'r> {
    fn read(record: &'r [u8]) -> Option<Self> {
        let (unix_ms, rest) = record.split_first_chunk()?;
        let (flow, rest) = rest.split_first_chunk()?;
        let ([is_request, version, flags, opcode, has_body], rest) = rest.split_first_chunk()?;
        let (stream, rest) = rest.split_first_chunk()?;
        let (length, rest) = rest.split_first_chunk()?;
        let (rule, rest) = text(rest)?;
        let (client, body) = text(rest)?;
        let opcode = Opcode::ALL.get(usize::from(*opcode));
        let hex = || body.iter().map(|byte| format!("{byte:02x}")).collect();
        Some(Self {
            unix_ms: u64::from_be_bytes(*unix_ms),
            rule,
            flow: u64::from_be_bytes(*flow),
            client,
            from: frames::from(*is_request != 0),
            version: *version,
            flags: *flags,
            stream: i16::from_be_bytes(*stream),
            opcode: opcode.map_or("unknown", |opcode| opcode.as_str()),
            length: u32::from_be_bytes(*length),
            body: (*has_body == BODY).then(hex),
        })
    }
}

fn text(bytes: &[u8]) -> Option<(&str, &[u8])> {
    let (length, rest) = bytes.split_first_chunk()?;
    let (text, rest) = rest.split_at_checked(u16::from_be_bytes(*length).into())?;
    Some((std::str::from_utf8(text).ok()?, rest))
}

#[cfg(test)]
mod tests {
    use cql::StreamId;

    use super::*;

    fn head() -> Head {
        Head {
            flow: 7,
            rule: "\"r\"\n".to_owned(),
            client: "192.0.2.1:4000".to_owned(),
        }
    }

    #[test]
    fn a_line_says_what_a_record_holds() {
        for opcode in Opcode::ALL.iter().copied().map(Some).chain([None]) {
            let frame = Frame {
                is_request: true,
                version: 4,
                flags: 2,
                stream: StreamId(-3),
                opcode,
                length: 70_000,
                body: &[],
            };
            let mut bytes = Vec::new();
            record(&mut bytes, 5, &head(), &frame, Some(&[0, 0xFE]));
            let mut text = Vec::new();
            line(&bytes, &mut text);
            let opcode = opcode.map_or("unknown", Opcode::as_str);
            let expected = format!(
                "{{\"unix_ms\":5,\"rule\":\"\\\"r\\\"\\n\",\"flow\":7,\"client\":\"192.0.2.1:4000\",\
                 \"from\":\"client\",\"version\":4,\"flags\":2,\"stream\":-3,\"opcode\":\"{opcode}\",\
                 \"length\":70000,\"body\":\"00fe\"}}\n"
            );
            assert_eq!(String::from_utf8(text).unwrap(), expected);
            for end in 0..bytes.len() - 2 {
                line(&bytes[..end], &mut Vec::new());
            }
        }
    }

    #[test]
    fn so_many_in_a_second() {
        let rate = Rate::new(3);
        let allowed = |second| (0..10).filter(|_| rate.allows(second)).count();
        assert_eq!(
            [allowed(0), allowed(0), allowed(1), allowed(9)],
            [3, 0, 3, 3]
        );
    }

    #[test]
    fn a_sample_is_of_flows() {
        let settings: DebugSettings = toml::from_str("sample = 0.25").unwrap();
        let debug = Debug {
            journal: Keeps::new(JournalSettings {
                to: Place::Log,
                when_full: WhenFull::Drop,
            }),
            bytes: None,
            sample: settings.sample.unwrap(),
            keys: RandomState::new(),
            rate: Arc::new(Rate::new(1)),
        };
        let shown = (0..10_000).filter(|flow| debug.shows(*flow)).count();
        // Eleven standard deviations.
        assert!((2_000..3_000).contains(&shown), "{shown}");
        assert!((0..100).all(|flow| debug.shows(flow) == debug.shows(flow)));
    }

    #[test]
    fn mistakes_are_named() {
        for (text, expected) in [
            ("bytes = 10", "bytes: expected `values = true`"),
            (
                "values = true\nbytes = 0",
                "bytes: expected 1 to 4096, found 0",
            ),
            (
                "values = true\nbytes = 5000",
                "bytes: expected 1 to 4096, found 5000",
            ),
            ("sample = 0.0", "sample: expected a fraction of flows"),
            ("sample = nan", "sample: expected a fraction of flows"),
            ("per_second = 0", "per_second: expected 1 line or more"),
            ("file = \"relative\"", "file: expected an absolute path"),
        ] {
            let settings: DebugSettings = toml::from_str(text).unwrap();
            let error = settings.build().unwrap_err();
            assert!(error.starts_with(expected), "{error}");
        }
    }
}
