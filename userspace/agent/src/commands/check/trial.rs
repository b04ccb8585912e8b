//! A statement, shown to a pipeline as a client would send it: what becomes of it is said by the very code that
//! carries flows.

use cql::{Consistency, StreamId};
use cql_edit::{Caller, Editor, Log, Pipeline, Unseen};
use serde_json::{Value, json};

/// The version of the protocol that the client speaks: the newest whose frames are not in segments.
const VERSION: u8 = 4;

/// The direction bit of a response (`native_protocol_v4.spec` §2.1).
const RESPONSE: u8 = 0x80;

const ERROR: u8 = 0x00;
const STARTUP: u8 = 0x01;
const READY: u8 = 0x02;
const AUTHENTICATE: u8 = 0x03;
const QUERY: u8 = 0x07;
const PREPARE: u8 = 0x09;
const AUTH_RESPONSE: u8 = 0x0F;
const AUTH_SUCCESS: u8 = 0x10;

/// The length of a frame's header.
const HEADER_BYTES: usize = 9;

/// The page size that drivers ask for unless told otherwise.
const PAGE_SIZE: u32 = 5_000;

/// The consistency that drivers ask for unless told otherwise.
const CONSISTENCY: Consistency = Consistency(0x000A);

/// A statement, and who sends it.
#[derive(Clone, Debug, Default)]
pub(super) struct Asked {
    pub statement: String,
    pub user: Option<String>,
    pub keyspace: Option<String>,
    /// The time by the wall clock, in µs since 1970.
    pub unix_us: i64,
    pub driver: Option<String>,
    pub client: String,
    pub process: Option<String>,
    pub cgroup: Option<String>,
}

/// The fate of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// The request goes on as it was sent.
    Passes,
    /// The request goes on with this text, at this consistency.
    Changed { text: String, at: Consistency },
    /// The request does not go on, and the client gets this error.
    Refused { message: String },
    /// The request does not go on, and the client gets an answer as if it had been done.
    Answered,
}

/// The treatment of a statement by a pipeline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Tried {
    pub fate: Fate,
    /// The steps that did something, and what, in their order.
    pub notes: Vec<String>,
}

/// Shows a statement to a pipeline, as a query, or to be prepared.
pub(super) fn try_out(pipeline: Pipeline, rule: &str, asked: &Asked, prepared: bool) -> Tried {
    let caller = Caller {
        rule: rule.to_owned(),
        client: asked.client.clone(),
        keyspace: asked.keyspace.clone(),
        process: asked.process.clone(),
        cgroup: asked.cgroup.clone(),
        ..Caller::default()
    };
    let mut notes = Notes::default();
    let mut editor = Editor::new(pipeline, caller);
    editor.set_time(asked.unix_us);
    log_in(&mut editor, asked, &mut notes);
    let sent = match prepared {
        true => frame(VERSION, PREPARE, &long_string(&asked.statement)),
        false => frame(VERSION, QUERY, &query(&asked.statement)),
    };
    let edited = editor.requests(0, &sent, &mut notes);
    let goes_on = edited.instead.unwrap_or_else(|| sent.clone());
    let fate = match (goes_on, editor.answers()) {
        (bytes, _) if bytes == sent => Fate::Passes,
        (bytes, _) if !bytes.is_empty() => changed(&bytes, prepared),
        (_, Some(answer)) if answer.get(4) == Some(&ERROR) => Fate::Refused {
            message: message(&answer),
        },
        _ => Fate::Answered,
    };
    let notes = notes.0;
    Tried { fate, notes }
}

/// Has the editor see a log-in, by this driver or by one that does not say its name, as this user or as nobody.
fn log_in(editor: &mut Editor, asked: &Asked, notes: &mut Notes) {
    let mut options = vec![("CQL_VERSION", "3.0.0")];
    options.extend(asked.driver.as_deref().map(|name| ("DRIVER_NAME", name)));
    let mut startup = (options.len() as u16).to_be_bytes().to_vec();
    startup.extend(
        options
            .iter()
            .flat_map(|(option, value)| [string(option), string(value)].concat()),
    );
    editor.requests(0, &frame(VERSION, STARTUP, &startup), notes);
    let Some(user) = asked.user.as_deref() else {
        editor.responses(&frame(VERSION | RESPONSE, READY, &[]), notes);
        return;
    };
    let class = string("org.apache.cassandra.auth.PasswordAuthenticator");
    editor.responses(&frame(VERSION | RESPONSE, AUTHENTICATE, &class), notes);
    // SASL PLAIN (RFC 4616). Nobody looks at the password.
    let token = [b"\0", user.as_bytes(), b"\0x"].concat();
    let token = [&(token.len() as u32).to_be_bytes()[..], &token].concat();
    editor.requests(0, &frame(VERSION, AUTH_RESPONSE, &token), notes);
    let nothing = (-1_i32).to_be_bytes();
    editor.responses(&frame(VERSION | RESPONSE, AUTH_SUCCESS, &nothing), notes);
}

fn frame(first: u8, opcode: u8, body: &[u8]) -> Vec<u8> {
    let length = (body.len() as u32).to_be_bytes();
    [&[first, 0, 0, 1, opcode], &length[..], body].concat()
}

fn string(text: &str) -> Vec<u8> {
    [&(text.len() as u16).to_be_bytes()[..], text.as_bytes()].concat()
}

fn long_string(text: &str) -> Vec<u8> {
    [&(text.len() as u32).to_be_bytes()[..], text.as_bytes()].concat()
}

/// A QUERY's body without values, with a page size, as drivers send it.
fn query(text: &str) -> Vec<u8> {
    const PAGE_SIZE_FOLLOWS: u8 = 0x04;
    [
        &long_string(text)[..],
        &CONSISTENCY.0.to_be_bytes(),
        &[PAGE_SIZE_FOLLOWS],
        &PAGE_SIZE.to_be_bytes(),
    ]
    .concat()
}

/// Reads the text, and a query's consistency, of a request that a step has changed.
fn changed(frame: &[u8], prepared: bool) -> Fate {
    let body = frame.get(HEADER_BYTES..).unwrap_or_default();
    let length = body.first_chunk().map_or(0, |l| u32::from_be_bytes(*l)) as usize;
    let text = body.get(4..4 + length).unwrap_or_default();
    let at = body.get(4 + length..).and_then(|rest| rest.first_chunk());
    Fate::Changed {
        text: String::from_utf8_lossy(text).into_owned(),
        at: match (prepared, at) {
            (false, Some(at)) => Consistency(u16::from_be_bytes(*at)),
            _ => CONSISTENCY,
        },
    }
}

/// Reads the message of an ERROR.
fn message(frame: &[u8]) -> String {
    let message = frame.get(HEADER_BYTES + 4 + 2..).unwrap_or_default();
    String::from_utf8_lossy(message).into_owned()
}

/// Notes of what steps say that they did.
#[derive(Default)]
struct Notes(Vec<String>);

impl Log for Notes {
    fn changed(&mut self, transform: &'static str) {
        self.0.push(format!("changed by {transform}"));
    }

    fn refused(&mut self, _: StreamId, transform: &'static str, reason: &'static str) {
        self.0.push(format!("refused by {transform} ({reason})"));
    }

    fn answered(&mut self, transform: &'static str) {
        self.0.push(format!("answered by {transform}"));
    }

    fn would_refuse(&mut self, transform: &'static str, reason: &'static str) {
        self.0.push(format!(
            "would be refused by {transform} ({reason}), which only counts"
        ));
    }

    fn warned(&mut self, transform: &'static str, reason: &'static str, _: bool) {
        self.0.push(format!("warned of by {transform} ({reason})"));
    }

    fn slowed(&mut self, transform: &'static str, ns: u64) {
        let ms = ns / 1_000_000;
        self.0.push(format!("slowed by {transform}, for {ms} ms"));
    }

    fn unseen(&mut self, _: StreamId, why: Unseen, refused: bool) {
        let fate = if refused { "refused" } else { "passes" };
        self.0
            .push(format!("{fate}, and no step sees it ({})", why.as_str()));
    }
}

impl Tried {
    /// Whether the client gets an error.
    pub(super) fn is_refused(&self) -> bool {
        matches!(self.fate, Fate::Refused { .. })
    }

    /// Says it in one line.
    pub(super) fn text(&self) -> String {
        let steps = match self.notes.as_slice() {
            [] => String::new(),
            notes => format!(" ({})", notes.join("; ")),
        };
        match &self.fate {
            Fate::Passes => format!("passes{steps}"),
            Fate::Changed { text, at } if *at == CONSISTENCY => {
                format!("passes as: {}{steps}", plain(text))
            }
            Fate::Changed { text, at } => {
                let at = at.as_str().to_uppercase();
                format!("passes at {at} as: {}{steps}", plain(text))
            }
            Fate::Refused { message } => format!("refused: {}{steps}", plain(message)),
            Fate::Answered => format!("does not pass, and is answered{steps}"),
        }
    }

    /// Says it for programs.
    pub(super) fn json(&self) -> Value {
        let (outcome, detail) = match &self.fate {
            Fate::Passes => ("passes", json!({})),
            Fate::Changed { text, at } => {
                ("changed", json!({"text": text, "consistency": at.as_str()}))
            }
            Fate::Refused { message } => ("refused", json!({"message": message})),
            Fate::Answered => ("answered", json!({})),
        };
        json!({"outcome": outcome, "detail": detail, "steps": self.notes})
    }
}

/// A text without what could forge terminal output.
fn plain(text: &str) -> String {
    text.replace(char::is_control, "?")
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::Config;

    fn tried(steps: &str, asked: &Asked) -> [Tried; 2] {
        let rule = "name = \"r\"\nto = [\":9042\"]\naction = \"enrich\"\nfail = \"closed\"";
        let text = format!("[[rule]]\n{rule}\npipeline = [{steps}]\n");
        let config = Config::parse(Path::new("u.toml"), &text).unwrap();
        let pipeline = config.pipelines.edits_of(&policy::RuleName::new("r"));
        [false, true].map(|prepared| try_out(pipeline.clone().unwrap(), "r", asked, prepared))
    }

    fn asked(statement: &str) -> Asked {
        Asked {
            statement: statement.to_owned(),
            user: Some("x".to_owned()),
            keyspace: Some("shop".to_owned()),
            client: "192.0.2.1".to_owned(),
            ..Asked::default()
        }
    }

    #[test]
    fn what_a_step_does_is_said_in_its_own_words() {
        for (steps, statement, said) in [
            (
                "{ transform = \"guard\", refuse = [\"truncate\"] }",
                "TRUNCATE t",
                "refused: underpass: refused by rule r: TRUNCATE is not allowed (refused by guard (truncate))",
            ),
            (
                "{ transform = \"guard\", refuse = [\"truncate\"] }",
                "SELECT * FROM t",
                "passes",
            ),
            (
                "{ transform = \"guard\", not_tables = [\"shop.cards\"] }",
                "SELECT * FROM cards",
                "refused: underpass: refused by rule r: table shop.cards is closed to user x (refused by guard (table))",
            ),
            (
                "{ transform = \"guard\", mode = \"shadow\", refuse = [\"ddl\"] }",
                "DROP TABLE t",
                "passes (would be refused by guard (ddl), which only counts)",
            ),
            (
                "{ transform = \"rewrite\", keyspaces = { shop = \"shop_v2\" } }, \
                 { transform = \"guard\", not_tables = [\"shop_v2.cards\"] }",
                "SELECT * FROM shop.cards",
                "refused: underpass: refused by rule r: table shop_v2.cards is closed to user x (changed by rewrite; refused \
                 by guard (table))",
            ),
            (
                "{ transform = \"rewrite\", keyspaces = { shop = \"shop_v2\" } }",
                "SELECT * FROM shop.t",
                "passes as: SELECT * FROM shop_v2.t (changed by rewrite)",
            ),
        ] {
            for tried in tried(steps, &asked(statement)) {
                assert_eq!(tried.text(), said, "{statement}");
                assert_eq!(tried.is_refused(), said.starts_with("refused"));
            }
        }
    }

    #[test]
    fn what_holds_for_a_query_alone_is_said_of_it() {
        let steps = "{ transform = \"consistency\", exactly = \"quorum\" }";
        let [query, prepared] = tried(steps, &asked("SELECT * FROM t"));
        assert_eq!(
            query.text(),
            "passes at QUORUM as: SELECT * FROM t (changed by consistency)"
        );
        assert_eq!(prepared.text(), "passes");
    }
}
