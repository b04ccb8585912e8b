//! The session of a flow, as copies of its handshake tell it.

use cql::{Anomaly, Completed, Details, Fact, PreparedAt, Sink};
use tap::{AskedSession, Direction, KernelFraming, Packet, TappedFlow};

struct Nobody;

impl Sink for Nobody {
    fn completed(&mut self, _: &Completed<'_>) {}
    fn anomaly(&mut self, _: Anomaly) {}
}

fn frame(first: u8, opcode: u8, body: &[u8]) -> Vec<u8> {
    let length = (body.len() as u32).to_be_bytes();
    [&[first, 0, 0, 1, opcode][..], &length, body].concat()
}

fn string(text: &str) -> Vec<u8> {
    let length = (text.len() as u16).to_be_bytes();
    [&length, text.as_bytes()].concat()
}

fn startup() -> Vec<u8> {
    let pairs = [("CQL_VERSION", "3.0.0"), ("DRIVER_NAME", "d")];
    let pairs = pairs.map(|(key, value)| [string(key), string(value)].concat());
    frame(4, 1, &[&[0, 2][..], &pairs.concat()].concat())
}

fn log_in() -> Vec<u8> {
    let token = b"\0alice\0secret";
    let length = (token.len() as i32).to_be_bytes();
    frame(4, 0x0F, &[&length[..], token].concat())
}

/// A log-in: what each side says, in turns.
fn handshake() -> [(Direction, Vec<u8>); 4] {
    [
        (Direction::Requests, startup()),
        (
            Direction::Responses,
            frame(0x84, 3, &string("Authenticator")),
        ),
        (Direction::Requests, log_in()),
        (
            Direction::Responses,
            frame(0x84, 0x10, &(-1_i32).to_be_bytes()),
        ),
    ]
}

fn asked() -> TappedFlow {
    let mut flow = TappedFlow::new(PreparedAt::default());
    flow.asks();
    flow.begin(Direction::Requests, 1_000);
    flow.begin(Direction::Responses, 2_000);
    flow
}

fn packet(seq: u32, bytes: &[u8]) -> Packet<'_> {
    Packet {
        at_ns: 1,
        seq,
        before: 0,
        bytes,
        after: 0,
        passed: seq,
        frame_at: None,
        framing: KernelFraming::Frames,
        missed: false,
    }
}

#[test]
fn it_is_known_however_packets_are_cut() {
    let longest = startup().len();
    for size in 1..=longest {
        let mut flow = asked();
        let mut next = [1_000, 2_000];
        for (direction, bytes) in handshake() {
            for piece in bytes.chunks(size) {
                let [requests, responses] = &mut next;
                let seq = match direction {
                    Direction::Requests => requests,
                    Direction::Responses => responses,
                };
                flow.packet(direction, &packet(*seq, piece), &mut Nobody, None);
                *seq += u32::try_from(piece.len()).unwrap();
            }
        }
        let AskedSession { session, over, .. } = flow.session().unwrap();
        assert_eq!(session.user, Fact::Is("alice".into()), "{size}");
        assert_eq!(session.driver, Fact::Is("d".into()));
        assert_eq!(over, None);
        assert!(flow.session().is_none(), "it is told once");
        flow.asks_no_more();
        assert!(flow.session().is_none());
    }
}

#[test]
fn it_stays_unknown_where_a_packet_was_missed() {
    let mut flow = asked();
    let [(_, startup), (_, authenticate), ..] = handshake();
    flow.packet(
        Direction::Requests,
        &packet(1_000, &startup),
        &mut Nobody,
        None,
    );
    assert!(flow.session().is_none_or(|asked| asked.over.is_none()));
    // All before it has passed, and it was not copied.
    let late = packet(2_000 + 40, &authenticate);
    flow.packet(Direction::Responses, &late, &mut Nobody, None);
    let AskedSession { session, over, .. } = flow.session().unwrap();
    assert_eq!(over, Some("not_copied"));
    assert_ne!(session.user, Fact::Is("alice".into()));
}

/// The texts of requests, as details tell them.
#[derive(Default)]
struct Texts(Vec<Option<String>>);

impl Sink for Texts {
    const DETAILS: bool = true;

    fn completed(&mut self, _: &Completed<'_>) {}
    fn anomaly(&mut self, _: Anomaly) {}

    fn detailed(&mut self, _: &Completed<'_>, details: &Details) {
        self.0.push(details.asked.text().map(str::to_owned));
    }
}

#[test]
fn what_is_wanted_is_given_until_it_is_not_and_again_behind_forgotten_details() {
    const TEXT: &str = "SELECT v FROM t";
    let mut flow = asked();
    let mut texts = Texts::default();
    let mut next = [1_000, 2_000];
    let mut pass = |flow: &mut TappedFlow, bytes: &[u8], direction| {
        let seq = &mut next[usize::from(direction == Direction::Responses)];
        flow.packet(direction, &packet(*seq, bytes), &mut texts, None);
        *seq += u32::try_from(bytes.len()).unwrap();
    };
    for (direction, bytes) in handshake() {
        pass(&mut flow, &bytes, direction);
    }
    let length = (TEXT.len() as i32).to_be_bytes();
    let query = frame(4, 7, &[&length[..], TEXT.as_bytes(), &[0, 1, 0]].concat());
    let void = frame(0x84, 8, &1_i32.to_be_bytes());
    let wanted = [true, true, false, true];
    for (number, wants) in wanted.into_iter().enumerate() {
        if number == 1 {
            flow.forget_details();
        }
        flow.wants(wants, false, false);
        pass(&mut flow, &query, Direction::Requests);
        pass(&mut flow, &void, Direction::Responses);
    }
    let seen = texts.0.split_off(texts.0.len() - wanted.len());
    assert_eq!(seen, wanted.map(|wants| wants.then(|| TEXT.to_owned())));
}
