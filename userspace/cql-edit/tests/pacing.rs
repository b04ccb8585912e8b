//! Tests of requests that are slowed down: the time at which each goes on, in which order, and that none is lost.

use std::sync::{Arc, Mutex};

use crate::support::edit::*;
use crate::support::*;
use cql::Opcode;
use cql_edit::{Caller, Outcome, Request, Room, Ticket, Transform};
use proptest::prelude::*;

/// A request that waits for less goes on at once.
const SLACK_NS: u64 = 4_000_000;

/// The most that rounding to whole ns comes to.
const ROUNDED_NS: u64 = 1_000;

/// No request waits for longer.
const LONGEST_DELAY_NS: u64 = 60_000_000_000;

/// Suspends everything.
#[derive(Debug, Default)]
struct Suspends(Mutex<Vec<Ticket>>);

impl Transform for Suspends {
    fn name(&self) -> &'static str {
        "suspends"
    }

    fn wants(&self, opcode: Opcode) -> bool {
        opcode == Opcode::Query
    }

    fn request(&self, request: &mut Request<'_>, _: &Caller, _: u64) -> Outcome {
        if let Some(ticket) = request.suspend() {
            self.0.lock().unwrap().push(ticket);
        }
        Outcome::Pass
    }
}

/// A flow on a clock of its own.
struct Clocked {
    flow: Edits,
    told: Arc<Completions>,
    suspends: Arc<Suspends>,
    now_ns: u64,
    /// The stream of each request that has gone on, and when it did.
    gone: Vec<(i16, u64)>,
    most_suspended: usize,
}

impl Clocked {
    /// A flow through these steps; `suspends`: all of it waits for an answer from outside first.
    fn new(kind: Kind, throttle: &str, suspends: bool, room: usize) -> Self {
        let step = step(throttle);
        let first = Arc::new(Suspends::default());
        let pipeline = match suspends {
            true => vec![first.clone() as Arc<dyn Transform>, step],
            false => vec![step],
        };
        let mut flow = Edits::new(kind, pipeline);
        let told = Arc::new(Completions::default());
        let editor = std::mem::replace(
            &mut flow.editor,
            cql_edit::Editor::new(Arc::from([]), Caller::default()),
        );
        flow.editor = editor.told_by(told.clone()).within(&Room::new(room));
        Self {
            flow,
            told,
            suspends: first,
            now_ns: 1,
            gone: Vec::new(),
            most_suspended: 0,
        }
    }

    fn goes(&mut self, bytes: &[u8]) {
        let pending = self.flow.editor.suspended();
        self.most_suspended = self.most_suspended.max(pending);
        for frame in self.flow.kind.read(bytes) {
            let stream = i16::from_be_bytes([frame[2], frame[3]]);
            self.gone.push((stream, self.now_ns));
        }
    }

    /// Does what is to be done before the client is read again, as who carries the flow does.
    fn settle(&mut self) {
        let noted = &mut self.flow.noted;
        self.suspends.0.lock().unwrap().clear();
        let told = std::mem::take(&mut *self.told.0.lock().unwrap());
        for (number, resolution) in told {
            self.flow
                .editor
                .resolve(self.now_ns, number, resolution, noted);
        }
        if let Some(late) = self.flow.editor.late() {
            return self.goes_and_settles(&late);
        }
        self.now_ns += self.flow.editor.pause_ns(self.now_ns);
        if self.flow.editor.has_more() {
            let bytes = self.flow.editor.go_on(self.now_ns, noted);
            self.goes_and_settles(&bytes);
        }
    }

    fn goes_and_settles(&mut self, bytes: &[u8]) {
        self.goes(bytes);
        self.settle();
    }

    fn sends(&mut self, bytes: &[u8]) {
        let noted = &mut self.flow.noted;
        let edited = self.flow.editor.requests(self.now_ns, bytes, noted);
        assert_eq!(edited.unreadable, None);
        self.goes(edited.instead.as_deref().unwrap_or(bytes));
        self.settle();
    }
}

/// Requests on streams from 0 up.
fn requests(kind: Kind, n: i16) -> Vec<Vec<u8>> {
    let body = ask(kind.version, "SELECT v FROM shop.a WHERE k = 1");
    let one = |stream| frame(kind.version, 0, stream, QUERY, &body);
    (0..n).map(one).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn the_nth_request_of_a_chunk_goes_on_when_there_is_a_token_for_it(
        kind in proptest::sample::select(&KINDS[..]),
        n in 1_i16..400,
        rate in prop_oneof![1_u64..8, 1_u64..3_000],
        burst in 1_u64..50,
        piece in prop_oneof![Just(usize::MAX), 1_usize..3_000],
        suspends in any::<bool>(),
    ) {
        let settings = format!("transform = \"throttle\"\nrate = {rate}\nburst = {burst}");
        let mut flow = Clocked::new(kind, &settings, suspends, usize::MAX);
        let bytes = kind.wrap(&requests(kind, n));
        for piece in bytes.chunks(piece) {
            flow.sends(piece);
        }
        let streams: Vec<i16> = flow.gone.iter().map(|(stream, _)| *stream).collect();
        prop_assert_eq!(streams, (0..n).collect::<Vec<_>>(), "in order, none lost or twice");
        for (nth, (_, at)) in flow.gone.iter().enumerate() {
            let missing = (nth as u64 + 1).saturating_sub(burst);
            let token_ns = missing * 1_000_000_000 / rate;
            // Those that were suspended come to the throttle together, and each waits there by itself.
            let bound_ns = if suspends { LONGEST_DELAY_NS } else { u64::MAX };
            let least = token_ns.min(bound_ns).saturating_sub(SLACK_NS + ROUNDED_NS);
            prop_assert!(*at >= least, "request {} at {} ns, not before {}", nth, at, least);
            let most = token_ns + SLACK_NS + ROUNDED_NS;
            prop_assert!(*at <= most, "request {} at {} ns, by {}", nth, at, most);
        }
        prop_assert_eq!(flow.flow.editor.suspended(), 0);
        prop_assert!(suspends || flow.most_suspended <= 1, "only the one at hand is kept apart");
    }

    #[test]
    fn without_room_nothing_is_lost_and_the_order_is_kept(
        kind in proptest::sample::select(&KINDS[..]),
        n in 1_i16..200,
        room in 0_usize..4_000,
        piece in prop_oneof![Just(usize::MAX), 1_usize..3_000],
    ) {
        let settings = "transform = \"throttle\"\nrate = 100\nburst = 1";
        let mut flow = Clocked::new(kind, settings, false, room);
        for piece in kind.wrap(&requests(kind, n)).chunks(piece) {
            flow.sends(piece);
        }
        let streams: Vec<i16> = flow.gone.iter().map(|(stream, _)| *stream).collect();
        prop_assert_eq!(streams, (0..n).collect::<Vec<_>>());
    }

    #[test]
    fn a_flow_that_is_left_or_ends_keeps_nothing_and_refuses_what_it_refused(
        kind in proptest::sample::select(&KINDS[..]),
        n in 2_i16..100,
        cut in any::<prop::sample::Index>(),
    ) {
        let guard = Arc::new(Refuses(b"secret", true)) as Arc<dyn Transform>;
        let throttle = step("transform = \"throttle\"\nrate = 10\nburst = 1");
        let mut flow = Edits::new(kind, vec![throttle, guard]);
        let told = Arc::new(Completions::default());
        let nobody = cql_edit::Editor::new(Arc::from([]), Caller::default());
        flow.editor = std::mem::replace(&mut flow.editor, nobody).told_by(told);
        let mut frames = requests(kind, n);
        let secret = ask(kind.version, "SELECT v FROM shop.secret");
        frames[usize::from(n as u16) - 1] = frame(kind.version, 0, n - 1, QUERY, &secret);
        let bytes = kind.wrap(&frames);
        // What is whole of the chunk, and a part of what is not.
        let (now, later) = bytes.split_at(cut.index(bytes.len()));
        let mut passed = flow.requests(now);
        flow.editor.give_up(0, true, &mut flow.noted);
        passed.extend(flow.editor.late().unwrap_or_default());
        prop_assert!(!flow.editor.has_more());
        prop_assert_eq!(flow.editor.suspended(), 0);
        passed.extend(flow.requests(later));
        flow.editor.give_up(0, true, &mut flow.noted);
        passed.extend(flow.editor.late().unwrap_or_default());
        passed.extend(flow.editor.end(true));
        let streams: Vec<i16> = kind
            .read(&passed)
            .iter()
            .map(|frame| i16::from_be_bytes([frame[2], frame[3]]))
            .collect();
        prop_assert_eq!(streams, (0..n - 1).collect::<Vec<_>>());
        prop_assert_eq!(flow.noted.refused, 1);
    }
}

/// The connection of a moment has no tokens of its own.
#[test]
fn each_flows_first_request_waits_as_well() {
    for kind in KINDS {
        let step = step("transform = \"throttle\"\nrate = 100\nburst = 1");
        let mut waits = Vec::new();
        for _ in 0..4 {
            let mut flow = Edits::new(kind, vec![step.clone()]);
            let nobody = cql_edit::Editor::new(Arc::from([]), Caller::default());
            let told = Arc::new(Completions::default());
            flow.editor = std::mem::replace(&mut flow.editor, nobody).told_by(told);
            let passed = flow.requests(&kind.wrap(&requests(kind, 1)));
            let waits_ns = flow.editor.pause_ns(0);
            assert_eq!(passed.is_empty(), waits_ns > 0);
            waits.push(waits_ns / 1_000_000);
        }
        assert_eq!(waits, [0, 10, 20, 30], "{kind:?}");
    }
}
