//! Log-ins on a flow that is let in already, and requests at times at which no driver sends them.

use super::*;

const SUPPORTED: u8 = 0x06;

/// Past a log-in as ann.
fn as_ann(version: u8, piece: usize) -> Peers {
    let mut peers = Peers::started(version, piece, OPTIONS_SENT, AUTHENTICATE);
    peers.client(1, AUTH_RESPONSE, &token(b"\0ann\0x"));
    peers.server(1, AUTH_SUCCESS, &[255; 4]);
    assert_eq!(peers.session().user, is("ann"));
    peers
}

#[test]
fn who_logs_in_again_is_another_user_once_the_database_takes_him() {
    for version in [4, 5] {
        for piece in [1, 7, 1000] {
            let mut peers = as_ann(version, piece);
            peers.client(2, AUTH_RESPONSE, &token(b"another mechanism's"));
            peers.server(2, AUTH_CHALLENGE, &token(b"what?"));
            peers.client(2, AUTH_RESPONSE, &token(b"\0bob\0x"));
            peers.query(3, "SELECT a FROM shop.t");
            assert_eq!(peers.session().user, is("ann"));
            assert_eq!(peers.session().keyspace, Fact::Open, "it waits");
            peers.server(2, AUTH_SUCCESS, &[255; 4]);
            assert_eq!(peers.session().user, is("bob"));
            assert_eq!(peers.session().keyspace, is("shop"));
            assert_eq!(peers.session().driver, is("Driver"));
            assert!(peers.all_passed());
        }
    }
}

/// The error may be that of a request that was out before it, so that the log-in may still succeed.
#[test]
fn a_second_log_in_and_an_error_leave_nobody_known() {
    for version in [4, 5] {
        let mut peers = as_ann(version, 1000);
        peers.query(2, "SELECT a FROM system.local");
        peers.client(2, AUTH_RESPONSE, &token(b"\0bob\0x"));
        peers.server(2, ERROR, &[0; 6]);
        assert_eq!(peers.handshake.over(), Some(Unknowable::Pipelined));
        assert!(!peers.handshake.ended_before_login());
    }
}

#[test]
fn a_watch_tells_of_log_ins_alone_and_before_they_pass() {
    for version in [4, 5] {
        for piece in [1, 7, 1000] {
            let mut peers = as_ann(version, piece);
            let before = peers.told();
            peers.handshake.watch();
            for text in ["USE shop", "SELECT a FROM shop.t", "what is this"] {
                peers.query(2, text);
            }
            peers.client(3, REGISTER, b"\0\0");
            peers.client(3, OPTIONS, b"");
            assert!(
                peers.requests.passed == peers.requests.sent,
                "nothing waits"
            );
            assert_eq!(peers.told(), before);
            for (raw, user) in [
                (&b"\0bob\0x"[..], is("bob")),
                (b"another mechanism's", Fact::Unknowable),
                (b"\0ann\0x", is("ann")),
            ] {
                peers.client(2, AUTH_RESPONSE, &token(raw));
                assert_eq!(peers.session().user, user);
            }
            assert_eq!(peers.told().0, before.0 + 3);
            assert_eq!(peers.handshake.over(), None);
        }
    }
}

#[test]
fn a_log_in_behind_a_request_for_data_in_one_segment_is_seen() {
    /// Another user's log-in.
    const EVE: u8 = 0xEE;
    let frames = |opcodes: &[u8]| {
        let frames = opcodes.iter().map(|opcode| match *opcode {
            QUERY => frame(5, 0, 1, QUERY, &query(5, "SELECT a FROM shop.t", None)),
            EVE => frame(5, 0, 1, AUTH_RESPONSE, &token(b"\0eve\0x")),
            opcode => frame(5, 0, 1, opcode, &token(b"\0bob\0x")),
        });
        segment(true, &frames.flatten().collect::<Vec<u8>>())
    };
    for (opcodes, watches, over) in [
        (&[QUERY, QUERY][..], false, None),
        (&[QUERY, AUTH_RESPONSE], false, Some(Unknowable::Pipelined)),
        (&[QUERY, QUERY, AUTH_RESPONSE, QUERY], true, None),
        (&[AUTH_RESPONSE, QUERY, AUTH_RESPONSE], true, None),
        (
            &[AUTH_RESPONSE, QUERY, EVE],
            true,
            Some(Unknowable::Pipelined),
        ),
    ] {
        let mut peers = as_ann(5, 1000);
        if watches {
            peers.handshake.watch();
        }
        peers.client_bytes(&frames(opcodes));
        assert_eq!(peers.handshake.over(), over, "{opcodes:?}");
        assert_eq!(peers.told().0, 1);
    }
}

/// No database takes them, and what it answers could be taken for something else's answer.
#[test]
fn requests_before_their_time_end_it() {
    let all = [
        QUERY,
        PREPARE,
        EXECUTE,
        BATCH,
        REGISTER,
        AUTH_RESPONSE,
        OPTIONS,
        STARTUP,
    ];
    for version in [4, 5] {
        for opcode in all {
            let mut peers = Peers::new(version, 1000);
            peers.client(1, opcode, b"\0\0\0\0");
            let may_begin = [OPTIONS, STARTUP].contains(&opcode);
            let over = (!may_begin).then_some(Unknowable::Early);
            assert_eq!(peers.handshake.over(), over, "v{version} {opcode:#x} first");
            assert_eq!(peers.handshake.ended_before_login(), !may_begin);

            let mut peers = Peers::started(version, 1000, OPTIONS_SENT, AUTHENTICATE);
            peers.client(1, opcode, &token(b"\0ann\0x"));
            let over = (opcode != AUTH_RESPONSE).then_some(Unknowable::Early);
            assert_eq!(
                peers.handshake.over(),
                over,
                "v{version} {opcode:#x} before the log-in"
            );

            let mut peers = as_ann(version, 1000);
            peers.client(1, opcode, &token(b"\0ann\0x"));
            assert_eq!(peers.handshake.over(), None, "v{version} {opcode:#x} then");
        }
    }
}

/// A request of a client that does not wait for answers.
#[derive(Clone, Copy, Debug)]
enum Sent {
    LogIn { user: u8, is_accepted: bool },
    Select,
    Options,
    Register,
    Startup,
}

fn sent() -> impl Strategy<Value = (Sent, i16)> {
    let sent = prop_oneof![
        (0..3_u8, any::<bool>()).prop_map(|(user, is_accepted)| Sent::LogIn { user, is_accepted }),
        Just(Sent::Select),
        Just(Sent::Options),
        Just(Sent::Register),
        Just(Sent::Startup),
    ];
    (sent, 0..3_i16)
}

/// A database that takes log-ins in order, and answers late.
struct Database {
    user: Fact<Box<str>>,
    /// How much of what has passed it has read.
    at: usize,
    answers: Vec<(i16, u8, Vec<u8>)>,
}

impl Database {
    /// Reads what has passed. Returns whether it did something for whom the handshake takes for another user.
    fn reads(&mut self, peers: &Peers) -> bool {
        let in_segment = |at: usize| match peers.version {
            5 => at + 6,
            _ => at,
        };
        let mut mistaken = false;
        loop {
            let at = in_segment(self.at);
            let Some(header) = peers.requests.passed.get(at..at + 9) else {
                return mistaken;
            };
            let length = u32::from_be_bytes(header[5..].try_into().unwrap()) as usize;
            let Some(body) = peers.requests.passed.get(at + 9..at + 9 + length) else {
                return mistaken;
            };
            self.at = at + 9 + length + if peers.version == 5 { 4 } else { 0 };
            let stream = i16::from_be_bytes([header[2], header[3]]);
            let (opcode, answer) = match header[4] {
                AUTH_RESPONSE if body.ends_with(b"right") => {
                    let name = std::str::from_utf8(&body[5..8]).unwrap();
                    self.user = is(name);
                    (AUTH_SUCCESS, vec![255; 4])
                }
                QUERY => {
                    let known = &peers.session().user;
                    mistaken |= peers.handshake.over().is_none() && *known != self.user;
                    (ERROR, vec![0; 6])
                }
                OPTIONS => (SUPPORTED, vec![0; 2]),
                REGISTER => (READY, Vec::new()),
                _ => (ERROR, vec![0; 6]),
            };
            self.answers.push((stream, opcode, answer));
        }
    }
}

proptest! {
    /// Nothing passes for a client that the handshake takes for another user, whatever comes at which time, on whichever
    /// stream, and however late it is answered.
    #[test]
    fn nobody_is_taken_for_another_user(
        version in 4..6_u8,
        piece in 1..40_usize,
        sent in prop::collection::vec((sent(), any::<bool>()), 1..12),
    ) {
        let mut peers = as_ann(version, piece);
        let at = peers.requests.passed.len();
        let mut database = Database { user: is("ann"), at, answers: Vec::new() };
        for ((sent, stream), answers) in sent {
            match sent {
                Sent::LogIn { user, is_accepted } => {
                    let user = ["ann", "bob", "eve"][usize::from(user)];
                    let word = if is_accepted { "right" } else { "wrong" };
                    let raw = format!("\0{user}\0{word}");
                    peers.client(stream, AUTH_RESPONSE, &token(raw.as_bytes()));
                }
                Sent::Select => peers.query(stream, "SELECT a FROM system.local"),
                Sent::Options => peers.client(stream, OPTIONS, b""),
                Sent::Register => peers.client(stream, REGISTER, b"\0\0"),
                Sent::Startup => peers.client(stream, STARTUP, b"\0\0"),
            }
            prop_assert!(!database.reads(&peers));
            while answers && !database.answers.is_empty() {
                let (stream, opcode, body) = database.answers.remove(0);
                peers.server(stream, opcode, &body);
                prop_assert!(!database.reads(&peers));
            }
        }
    }
}
