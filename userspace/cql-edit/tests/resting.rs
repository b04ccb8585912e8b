//! Editors at rest, and others that go on with their flows.

use std::sync::Arc;

use crate::support::edit::*;
use crate::support::*;
use cql::{Anomaly, Completed, FlowDecoder, PreparedAt, Sink, Unread};
use cql_edit::{Caller, Editor, NotAtRest, SessionAtRest, Spent, Transform};

const AUTH_RESPONSE: u8 = 0x0F;
const AUTH_SUCCESS: u8 = 0x10;

struct Nobody;

impl Sink for Nobody {
    fn completed(&mut self, _: &Completed<'_>) {}
    fn anomaly(&mut self, _: Anomaly) {}
}

/// Where another decoder goes on with a flow that has begun.
fn unread(kind: Kind) -> Unread {
    let mut decoder = FlowDecoder::new(PreparedAt::default());
    let [(_, startup), (_, ready)] = kind.handshake();
    decoder.requests(0, &startup, &mut Nobody);
    decoder.responses(0, &ready, &mut Nobody);
    decoder.at_rest().unwrap().unwrap()
}

/// The flow of an editor at rest, with another one.
fn goes_on(flow: &Edits, pipeline: Vec<Arc<dyn Transform>>) -> Edits {
    let told = serde_json::to_string(&flow.editor.at_rest().unwrap()).unwrap();
    let rest: SessionAtRest = serde_json::from_str(&told).unwrap();
    let caller = Caller {
        rule: "r".into(),
        client: "192.0.2.1".into(),
        ..Caller::default()
    };
    let mut editor = Editor::new(pipeline.into(), caller);
    editor.goes_on(&unread(flow.kind), rest);
    Edits {
        kind: flow.kind,
        editor,
        noted: Noted::default(),
    }
}

#[test]
fn another_editor_knows_the_session_and_the_framing() {
    for kind in KINDS {
        let throttle = step(
            "transform = \"throttle\"\nrate = 1\nburst = 1\nmode = \"overloaded\"\nper = \"user\"",
        );
        let refuses: Arc<dyn Transform> = Arc::new(Refuses(b"secret", true));
        let steps = || vec![refuses.clone(), throttle.clone()];
        let mut flow = Edits::new(kind, steps());
        let token = b"\0\0\0\x0b\0alice\0word";
        let sent = kind.sent(0, 1, AUTH_RESPONSE, token);
        assert_eq!(flow.requests(&sent), sent);
        let sent = kind.sent(0x80, 1, AUTH_SUCCESS, &[0xFF; 4]);
        assert_eq!(flow.responses(&sent), sent);
        assert_eq!(flow.editor.user(), Some("alice"), "{kind:?}");
        let asks = |text: &str| kind.sent(0, 1, QUERY, &ask(kind.version, text));
        let sent = asks("SELECT v FROM shop.a");
        assert_eq!(flow.requests(&sent), sent);
        flow.frees(1);
        let mut other = goes_on(&flow, steps());
        assert_eq!(other.editor.user(), Some("alice"));
        // Its answer is the first that goes to the client.
        assert!(other.requests(&asks("SELECT v FROM secret")).is_empty());
        let answer = other.editor.answers().unwrap();
        assert_eq!(kind.read(&answer).len(), 1, "{kind:?}");
        assert_eq!(kind.read(&answer)[0][4], ERROR);
        // Her only token is spent.
        assert!(other.requests(&sent).is_empty());
        assert_eq!(kind.read(&other.editor.answers().unwrap())[0][4], ERROR);
        // Others' are not.
        let mut stranger = goes_on(&Edits::new(kind, steps()), steps());
        assert_eq!(stranger.requests(&sent), sent);
        stranger.frees(1);
        assert!(stranger.editor.at_rest().is_ok());
    }
}

#[test]
fn a_flow_rests_between_requests_that_are_answered_and_nowhere_else() {
    for kind in KINDS {
        let null: Vec<Arc<dyn Transform>> = vec![Arc::new(Refuses(b"secret", true))];
        let request = kind.sent(0, 1, QUERY, &ask(kind.version, "SELECT v FROM shop.a"));
        let response = kind.sent(0x80, 1, RESULT, &1_i32.to_be_bytes());
        let busy = |flow: &Edits| assert_eq!(flow.editor.at_rest(), Err(NotAtRest::Busy));
        for cut in 1..request.len() {
            let mut flow = Edits::new(kind, null.clone());
            assert!(flow.editor.at_rest().is_ok(), "{kind:?}");
            flow.requests(&request[..cut]);
            busy(&flow);
            flow.requests(&request[cut..]);
            busy(&flow);
            let cut = cut % response.len();
            flow.responses(&response[..cut]);
            busy(&flow);
            flow.responses(&response[cut..]);
            assert!(flow.editor.at_rest().is_ok(), "{kind:?} {cut}");
        }
        // An answer of its own waits for the client.
        let mut flow = Edits::new(kind, null);
        flow.requests(&kind.sent(0, 1, QUERY, &ask(kind.version, "SELECT v FROM secret")));
        busy(&flow);
        assert!(flow.editor.answers().is_some());
        assert!(flow.editor.answers().is_none());
        assert!(flow.editor.at_rest().is_ok());
    }
}

fn throttle(burst: u32, mode: &str) -> Arc<dyn Transform> {
    step(&format!(
        "transform = \"throttle\"\nrate = 1\nburst = {burst}\nmode = \"{mode}\""
    ))
}

fn passes(flow: &mut Edits) -> bool {
    let sent = flow
        .kind
        .sent(0, 1, QUERY, &ask(flow.kind.version, "SELECT v FROM t"));
    let passed = !flow.requests(&sent).is_empty();
    flow.editor.answers();
    flow.frees(1);
    passed
}

#[test]
fn tokens_go_over_and_none_is_left() {
    let throttle = || throttle(5, "overloaded");
    let kind = KINDS[1];
    let (before, after) = (throttle(), throttle());
    let mut flow = Edits::new(kind, vec![before.clone()]);
    let mut other = Edits::new(kind, vec![after.clone()]);
    for _ in 0..2 {
        assert!(passes(&mut flow));
    }
    // The other one has given one out already.
    assert!(passes(&mut other));
    for (key, spent) in before.spent(0) {
        // Of three that are left one is kept.
        assert_eq!(spent, tokens(3.0));
        after.spend(&key, spent, 0);
    }
    assert!(passes(&mut other));
    assert!(!passes(&mut other));
    assert_eq!(before.unspent(0)[0].1, 1.0);
    assert!(before.unspent(0).is_empty());
    assert!(!passes(&mut flow));
    after.spend("", tokens(-1.0), 0);
    assert!(passes(&mut other));
    assert!(!passes(&mut other));
    // What is no number is nothing, and there are never more than the burst, nor less than a minute's debt.
    after.spend("", tokens(f64::NAN), 0);
    assert!(!passes(&mut other));
    after.spend("", tokens(f64::NEG_INFINITY), 0);
    assert!(after.spent(0)[0].1.tokens <= 5.0);
    for (tokens, debt) in [(f64::INFINITY, 0.0), (0.0, f64::INFINITY)] {
        after.spend("", Spent { tokens, debt }, 0);
        let spent = after.spent(0)[0].1;
        assert!(spent.tokens + spent.debt <= 65.0, "{spent:?}");
    }
}

fn tokens(tokens: f64) -> Spent {
    Spent { tokens, debt: 0.0 }
}

#[test]
fn a_bucket_that_becomes_smaller_begins_with_no_debt_but_its_own() {
    let kind = KINDS[1];
    let goes_over = |before: &Arc<dyn Transform>, after: &Arc<dyn Transform>| {
        for (key, spent) in before.spent(0) {
            after.spend(&key, spent, 0);
        }
        after.spent(0)[0].1
    };
    let before = throttle(1000, "overloaded");
    let mut flow = Edits::new(kind, vec![before.clone()]);
    assert!(passes(&mut flow));
    assert_eq!(
        goes_over(&before, &throttle(10, "overloaded")),
        tokens(10.0)
    );

    // A bucket that has lent goes on with its debt.
    let before = throttle(2, "delay");
    let mut flow = Edits::new(kind, vec![before.clone()]);
    for _ in 0..3 {
        passes(&mut flow);
    }
    let spent = Spent {
        tokens: 1.0,
        debt: 1.0,
    };
    assert_eq!(goes_over(&before, &throttle(1, "delay")), spent);
}
