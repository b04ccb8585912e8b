//! Texts, fingerprints and the client's identity, for a sink that asks for details.

use crate::support::*;
use cql::{Anomaly, Asked, Completed, Details, FlowDecoder, Introduction, PreparedAt, Says, Sink};
use std::sync::Arc;

const AUTH_RESPONSE: u8 = 0x0F;
const AUTH_SUCCESS: u8 = 0x10;
const ID: &[u8] = b"0123456789abcdef";
const UPDATE: &str = "UPDATE t SET v = ? WHERE k = 1";

/// The last report; with details if it asks for them.
#[derive(Default)]
struct Last<const DETAILS: bool>(Option<Asked>);

impl<const DETAILS: bool> Sink for Last<DETAILS> {
    const DETAILS: bool = DETAILS;

    fn completed(&mut self, _: &Completed<'_>) {}

    fn detailed(&mut self, _: &Completed<'_>, details: &Details) {
        self.0 = Some(details.asked.clone());
    }

    fn anomaly(&mut self, _: Anomaly) {}
}

struct Flow<const DETAILS: bool> {
    decoder: FlowDecoder,
    sink: Last<DETAILS>,
    version: u8,
}

impl<const DETAILS: bool> Flow<DETAILS> {
    fn started(version: u8, prepared: &PreparedAt) -> Self {
        let mut flow = Self {
            decoder: FlowDecoder::new(prepared.clone()),
            sink: Last::default(),
            version,
        };
        let startup = startup(version, &[]);
        flow.decoder.requests(0, &startup, &mut flow.sink);
        let ready = frame(version | 0x80, 0, 0, READY, &[]);
        flow.decoder.responses(0, &ready, &mut flow.sink);
        flow
    }

    fn says(&mut self, opcode: u8, body: &[u8], answer: u8, flags: u8) -> Option<Asked> {
        let wrap = |frame: Vec<u8>| match self.version {
            5 => segment(true, &frame),
            _ => frame,
        };
        let request = wrap(frame(self.version, flags, 1, opcode, body));
        let response = wrap(frame(self.version | 0x80, 0, 1, answer, &prepared(ID)));
        self.decoder.requests(0, &request, &mut self.sink);
        self.decoder.responses(0, &response, &mut self.sink);
        self.sink.0.take()
    }

    fn asks(&mut self, opcode: u8, body: &[u8]) -> Option<String> {
        let asked = self.says(opcode, body, RESULT, 0)?;
        asked.fingerprint.map(|known| known.text().to_owned())
    }
}

#[test]
fn texts_are_told_without_their_values() {
    for version in [3, 4, 5] {
        let mut flow = Flow::<true>::started(version, &PreparedAt::default());
        let text = "SELECT a FROM ks.t WHERE k = 'secret'";
        let select = flow.asks(QUERY, &query(version, text, None));
        assert_eq!(select.as_deref(), Some("SELECT a FROM ks.t WHERE k = ?"));
        let unknown = flow.asks(QUERY, &query(version, "SELECT 'secret'", None));
        assert_eq!(unknown, None);
        let body = query(version, text, None);
        // Compressed, which v5 does not do to frames: nothing of it is read.
        let asked = flow.says(QUERY, &body, RESULT, 1).unwrap();
        assert_eq!(asked.fingerprint.is_some(), version == 5);
        assert_eq!(
            flow.says(OPTIONS, &[], RESULT, 0).unwrap().fingerprint,
            None
        );
    }
}

#[test]
fn what_is_executed_goes_by_the_text_that_was_prepared() {
    for version in [3, 4, 5] {
        let shared = Arc::default();
        let expected = Some("UPDATE t SET v = ? WHERE k = ?");
        let mut unseen = Flow::<false>::started(version, &shared);
        unseen.asks(PREPARE, &prepare(version, UPDATE, None));
        let mut flow = Flow::<true>::started(version, &shared);
        // Nobody asked when it was prepared.
        assert_eq!(flow.asks(EXECUTE, &execute(ID)), None);
        let again = flow.asks(PREPARE, &prepare(version, UPDATE, None));
        assert_eq!(again.as_deref(), expected);
        assert_eq!(flow.asks(EXECUTE, &execute(ID)).as_deref(), expected);
        // One for whom nobody asks does not forget it.
        unseen.asks(PREPARE, &prepare(version, UPDATE, None));
        let mut other = Flow::<true>::started(version, &shared);
        assert_eq!(other.asks(EXECUTE, &execute(ID)).as_deref(), expected);
        assert_eq!(other.asks(EXECUTE, &execute(b"unknown")), None);
    }
}

#[test]
fn texts_that_were_prepared_are_kept_whoever_asks_for_details() {
    for version in [3, 4, 5] {
        let shared = PreparedAt::default();
        assert_eq!(shared.text(ID), None);
        let mut flow = Flow::<false>::started(version, &shared);
        flow.asks(PREPARE, &prepare(version, UPDATE, None));
        assert_eq!(shared.text(ID).as_deref(), Some(UPDATE));
        // One that failed leaves nothing that a later one on its stream could take for its own.
        let other = PreparedAt::default();
        let mut flow = Flow::<true>::started(version, &other);
        flow.says(PREPARE, &prepare(version, UPDATE, None), ERROR, 0);
        let long = format!("SELECT {} FROM t", "x".repeat(cql::MAX_TEXT_BYTES));
        flow.asks(PREPARE, &prepare(version, &long, None));
        assert_eq!((other.knows(ID), other.text(ID)), (true, None));
    }
}

#[test]
fn a_batch_shows_each_of_its_statements_once_in_a_row() {
    for version in [3, 4, 5] {
        let mut flow = Flow::<true>::started(version, &PreparedAt::default());
        flow.asks(PREPARE, &prepare(version, UPDATE, None));
        let delete = "DELETE FROM t WHERE k = 'secret'";
        let mut children: Vec<Child> = (0..100).map(|_| Child::Id(ID)).collect();
        children.extend([Child::Text(delete), Child::Text(UPDATE), Child::Id(ID)]);
        let told = flow.asks(BATCH, &batch(version, &children, None));
        let update = "UPDATE t SET v = ? WHERE k = ?;";
        let expected =
            format!("BEGIN BATCH {update} DELETE FROM t WHERE k = ?; {update} APPLY BATCH");
        assert_eq!(told, Some(expected));
        children.push(Child::Id(b"unknown"));
        assert_eq!(flow.asks(BATCH, &batch(version, &children, None)), None);
    }
}

#[test]
fn what_a_client_says_of_itself_is_told() {
    let mut flow = Flow::<true>::started(4, &PreparedAt::default());
    let options = startup(4, &[("APPLICATION_NAME", "shop"), ("DRIVER_NAME", "d")]);
    let mut says = |opcode, body: &[u8], answer| {
        let asked = flow.says(opcode, body, answer, 0);
        asked.and_then(|asked| asked.says).map(|says| *says)
    };
    let introduction = Introduction {
        application: Some("shop".into()),
        driver: Some("d".into()),
        driver_version: None,
    };
    let shop = Some(Says::Startup(Box::new(introduction)));
    assert_eq!(says(STARTUP, &options[9..], READY), shop);
    let token = [&15_i32.to_be_bytes()[..], b"\0alice\0password"].concat();
    let alice = Some(Says::User("alice".into()));
    assert_eq!(says(AUTH_RESPONSE, &token, AUTH_SUCCESS), alice);
    let unknown = Some(Says::UnknownUser);
    assert_eq!(
        says(AUTH_RESPONSE, b"\0\0\0\x05token", AUTH_SUCCESS),
        unknown
    );
}
