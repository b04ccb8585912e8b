//! The lines of a file.

use serde::{Deserialize, Serialize};

use crate::Value;

/// The version of the format, in the first line. Another number is another format.
pub const VERSION: u32 = 1;

/// The first line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Header {
    /// [`VERSION`].
    pub underpass_capture: u32,
    /// The version of the agent that has read the flows.
    pub agent: String,
    /// When the capture began, in ms since 1970.
    pub began_unix_ms: u64,
    /// The flow that is captured, as `underpass flows` lists it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub flow: Option<String>,
    /// The rule whose flows are.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub rule: Option<String>,
    /// Whether literals and bound values are in the file as they were.
    pub values: bool,
}

/// A request's opcode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Op {
    /// A statement as text.
    Query,
    /// A statement to be prepared.
    Prepare,
    /// A statement that was prepared.
    Execute,
    /// Several statements at once.
    Batch,
}

/// The kind of a BATCH.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Batch {
    /// All of it is done, or nothing.
    Logged,
    /// Without that.
    Unlogged,
    /// Changes of counters.
    Counter,
}

/// The outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The database has answered.
    Ok,
    /// The database has answered by an ERROR.
    Error,
    /// A step of the agent has refused it.
    Refused,
    /// No answer has come, or none that can be told from others.
    Unanswered,
}

/// The reason why a request, or a statement of it, cannot be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unread {
    /// The body is longer than what is read of it, compressed in no known way, or there was no room for it.
    NotKept,
    /// The body is not what a request of its kind is.
    Malformed,
    /// The statement was prepared where nobody looked.
    Unprepared,
    /// The text is none that the agent understands, so that it does not know what in it is a value.
    NotUnderstood,
    /// The text may have a password in it.
    Secret,
}

impl Unread {
    /// The reason in words.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NotKept => "too long to be kept",
            Self::Malformed => "malformed",
            Self::Unprepared => "prepared before anybody looked",
            Self::NotUnderstood => "not understood",
            Self::Secret => "may have a password in it",
        }
    }
}

/// A statement of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Statement {
    /// The text. None: see `unread`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub text: Option<String>,
    /// Why there is no text.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub unread: Option<Unread>,
    /// The values that are bound to it.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub values: Vec<Value>,
}

/// A request and what became of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// When the request passed, in µs after the capture began.
    pub at_us: u64,
    /// The flow's number.
    pub flow: u64,
    /// The request's stream.
    pub stream: i16,
    /// The opcode. None: the request itself was not kept.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub op: Option<Op>,
    /// The kind of statement, such as `select`.
    pub kind: String,
    /// The keyspace in which the statement is asked, where it is known.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub keyspace: Option<String>,
    /// The table.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub table: Option<String>,
    /// Why there are no statements.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub unread: Option<Unread>,
    /// Statements: one, or a BATCH's.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub statements: Vec<Statement>,
    /// Names of the values, if they have some.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub names: Vec<String>,
    /// The kind of a BATCH.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub batch: Option<Batch>,
    /// The consistency level, by its name.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub consistency: Option<String>,
    /// The level of a condition.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub serial_consistency: Option<String>,
    /// Rows to a page.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub page_size: Option<i32>,
    /// Whether it asks for a later page.
    #[serde(skip_serializing_if = "is_false", default)]
    pub later_page: bool,
    /// The client's time of a write, in µs since 1970.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub timestamp_us: Option<i64>,
    /// The outcome.
    pub outcome: Outcome,
    /// The code of an ERROR (`native_protocol_v5.spec` §9), where it could be read.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub error_code: Option<i32>,
    /// The name of that code.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub error: Option<String>,
    /// Rows of the response.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub rows: Option<u32>,
    /// Whether there are pages behind them.
    #[serde(skip_serializing_if = "is_false", default)]
    pub more_pages: bool,
    /// From the request's header to the last byte of its response.
    pub latency_us: u64,
    /// Bytes of the request's frame, as sent.
    pub request_bytes: u64,
    /// Bytes of the response's.
    pub response_bytes: u64,
}

/// The parts that are missing at this place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Missed {
    /// Requests that were not told: whoever read the capture was too slow, or they are too long for a line.
    pub dropped: u64,
    /// Times that a part of a flow was missed, because copies of its packets were lost.
    pub gaps: u64,
}

/// The reason why a capture ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ended {
    /// The time was over.
    Time,
    /// The file was as long as it may be.
    Bytes,
    /// The operator ended it.
    Interrupted,
    /// The agent stopped, had no room for it any more, or did not end it in time.
    Agent,
    /// Another agent has taken over, and what passes there is not told.
    TakenOver,
}

/// The last line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct End {
    /// The reason.
    pub end: Ended,
    /// Records in the file.
    pub requests: u64,
    /// Requests that were not told, of all places.
    pub dropped: u64,
    /// Times that a part of a flow was missed, likewise.
    pub gaps: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
fn is_false(value: &bool) -> bool {
    !value
}
