//! Clients who log in again, as somebody who would meet another rule.

use std::io::{Read, Write};

use cassandra_protocol::compression::Compression;

use super::{OPTIONS_SENT, SELECT, SYSTEM, compressed};
use crate::common::{
    frames::{query, segment, startup, void},
    wire::{
        Conversation, Host, auth_response, auth_success, authenticate, host, refusal, rows,
        set_keyspace,
    },
};

const TRUNCATE: &str = "TRUNCATE shop.orders";

/// A rule for ann, and one for everybody else.
fn for_ann(ann: &str, fail: &str, rest: &str) -> String {
    format!(
        "[[rule]]\nname = \"ann\"\nto = [\":PORT\"]\nuser = [\"ann\"]\naction = \"{ann}\"\nfail = \"{fail}\"\n\
         [[rule]]\nname = \"rest\"\nto = [\":PORT\"]\naction = \"{rest}\"\n"
    )
}

fn token(user: &str) -> Vec<u8> {
    format!("\0{user}\0x").into_bytes()
}

/// How frames travel once a STARTUP is accepted.
#[derive(Clone, Copy, Debug)]
struct Kind {
    version: u8,
    is_lz4: bool,
}

const KINDS: [Kind; 4] = [
    Kind {
        version: 4,
        is_lz4: false,
    },
    Kind {
        version: 4,
        is_lz4: true,
    },
    Kind {
        version: 5,
        is_lz4: false,
    },
    Kind {
        version: 5,
        is_lz4: true,
    },
];

impl Kind {
    fn wrap(self, frame: &[u8]) -> Vec<u8> {
        match (self.is_lz4, self.version) {
            (true, version) => compressed(version, Compression::Lz4, frame),
            (false, 5) => segment(frame),
            (false, _) => frame.to_vec(),
        }
    }

    /// Frames that are sent at once: in one segment, where there are segments.
    fn at_once(self, frames: &[Vec<u8>]) -> Vec<u8> {
        match self.version {
            5 => self.wrap(&frames.concat()),
            _ => frames.iter().flat_map(|frame| self.wrap(frame)).collect(),
        }
    }

    fn begin(self, host: &Host<'_>, user: &str) -> Conversation {
        let Self { version, is_lz4 } = self;
        let mut options = OPTIONS_SENT.to_vec();
        if is_lz4 {
            options.push(("COMPRESSION", "lz4"));
        }
        let mut c = host.connect();
        c.client_sends(&startup(version, &options));
        c.server_sends(&authenticate(version));
        self.logs_in(&mut c, user);
        c
    }

    fn logs_in(self, c: &mut Conversation, user: &str) {
        c.client_sends(&self.wrap(&auth_response(self.version, 1, &token(user))));
        c.server_sends(&self.wrap(&auth_success(self.version, 1)));
    }

    fn asks(self, c: &mut Conversation, text: &str) {
        c.client_sends(&self.wrap(&query(self.version, 2, text)));
        c.server_sends(&self.wrap(&void(self.version, 2)));
    }
}

fn ended(host: &Host<'_>) -> u64 {
    host.metric("flows_closed", "reason=\"another_user\"")
}

#[test]
fn whoever_would_meet_another_rule_does_not_log_in_on_a_flow_that_is_decided() {
    host(|host| {
        let mut expected = 0;
        for (ann, rest) in [
            ("bypass", "enrich"),
            ("enrich", "bypass"),
            ("bypass", "deny"),
        ] {
            host.policy(&for_ann(ann, "closed", rest));
            for kind in KINDS {
                let log_in = |user: &str| auth_response(kind.version, 3, &token(user));
                let asked = query(kind.version, 2, SELECT);
                let truncates = query(kind.version, 4, TRUNCATE);
                // Alone and behind a request, at once and byte by byte.
                for (behind, in_pieces) in [(false, false), (false, true), (true, false)] {
                    let mut c = kind.begin(host, "ann");
                    kind.asks(&mut c, "USE shop");
                    kind.asks(&mut c, TRUNCATE);
                    // The same user, and everything else that a flow may say.
                    kind.logs_in(&mut c, "ann");
                    kind.asks(&mut c, SYSTEM);
                    host.meets(&c, "ann");
                    let (sent, passes) = match behind {
                        false => (
                            kind.at_once(&[log_in("bob"), truncates.clone()]),
                            Vec::new(),
                        ),
                        true => {
                            let frames = [asked.clone(), log_in("bob"), truncates.clone()];
                            // A segment passes as a whole, or not at all.
                            let passes = match kind.version {
                                5 => Vec::new(),
                                _ => kind.wrap(&asked),
                            };
                            (kind.at_once(&frames), passes)
                        }
                    };
                    let pieces = sent.chunks(if in_pieces { 1 } else { sent.len() });
                    for piece in pieces {
                        // The end may come before the last of them.
                        let _ = c.client.write_all(piece);
                    }
                    c.ends_with(b"", &passes);
                    expected += 1;
                    assert_eq!(
                        ended(host),
                        expected,
                        "{ann} {rest} {kind:?} {behind} {in_pieces}"
                    );
                }
            }
        }
        let denials = host.agent.json("/denied").unwrap();
        let told = &denials.as_array().unwrap()[0];
        for (key, value) in [("rule", "rest"), ("cause", "session"), ("user", "bob")] {
            assert_eq!(told[key], value, "{told}");
        }
        assert_eq!(told["reason"], "another user logs in");
    });
}

/// `fail` decides where nobody can tell who it is.
#[test]
fn whoever_cannot_be_told_is_met_by_the_strictest_rule() {
    let another = b"another mechanism's";
    host(|host| {
        // The flow's user, the rule's `fail`, and whether the flow ends.
        for (user, fail, ends) in [
            ("ann", "closed", true),
            ("bob", "closed", true),
            ("ann", "open", true),
            ("bob", "open", false),
        ] {
            host.policy(&for_ann("enrich", fail, "bypass"));
            for kind in KINDS {
                let mut c = kind.begin(host, user);
                kind.asks(&mut c, SELECT);
                let sent = kind.wrap(&auth_response(kind.version, 3, another));
                if ends {
                    c.client.write_all(&sent).unwrap();
                    c.ends_with(b"", b"");
                } else {
                    c.client_sends(&sent);
                    c.server_sends(&kind.wrap(&auth_success(kind.version, 3)));
                    kind.asks(&mut c, SELECT);
                    c.ends();
                }
            }
        }
        // Segments that nobody can read.
        host.policy(&for_ann("bypass", "closed", "deny"));
        let kind = KINDS[2];
        let mut c = kind.begin(host, "ann");
        kind.asks(&mut c, SELECT);
        let mut bad = kind.wrap(&query(5, 2, SELECT));
        *bad.last_mut().unwrap() ^= 1;
        c.client.write_all(&bad).unwrap();
        c.ends_with(b"", b"");
    });
}

#[test]
fn where_no_rule_depends_on_the_user_nobody_looks_for_log_ins() {
    host(|host| {
        let rules = for_ann("bypass", "closed", "enrich").replace("user", "driver");
        host.policy(&rules);
        for kind in KINDS {
            let mut c = kind.begin(host, "ann");
            for user in ["bob", "eve"] {
                kind.logs_in(&mut c, user);
                kind.asks(&mut c, SELECT);
            }
            host.meets(&c, "rest");
            c.ends();
        }
        assert_eq!(ended(host), 0);
    });
}

#[test]
fn a_flow_that_is_not_decided_is_decided_by_the_user_whom_the_database_took_last() {
    host(|host| {
        let waits = "[[rule]]\nname = \"other\"\nto = [\":PORT\"]\nkeyspace = [\"other\"]\naction = \"bypass\"\n";
        let deny = for_ann("deny", "closed", "bypass");
        host.policy(&format!("{waits}{deny}"));
        for kind in KINDS {
            let Kind { version, .. } = kind;
            for (users, is_denied) in [
                (&["bob", "ann"][..], true),
                (&["ann", "bob"], false),
                (&["bob", "ann", "bob"], false),
            ] {
                let mut c = kind.begin(host, users[0]);
                for user in &users[1..] {
                    c.client_sends(&kind.wrap(&query(version, 2, SYSTEM)));
                    c.server_sends(&kind.wrap(&rows(version, 2)));
                    kind.logs_in(&mut c, user);
                }
                assert_eq!(host.flow(&c)["action"], "undecided");
                c.client_sends(&kind.wrap(&query(version, 5, "USE system")));
                c.server_sends(&kind.wrap(&set_keyspace(version, 5, "system")));
                let asked = kind.wrap(&query(version, 6, SELECT));
                if is_denied {
                    c.client.write_all(&asked).unwrap();
                    // In v5 in a segment of its own, whose bytes depend on who makes it.
                    let mut told = Vec::new();
                    c.client.read_to_end(&mut told).unwrap();
                    let refusal = refusal(version, 6, "ann");
                    let is_it = |bytes: &[u8]| bytes == refusal;
                    assert!(told.windows(refusal.len()).any(is_it), "{told:?}");
                    c.ends_with(b"", b"");
                } else {
                    c.client_sends(&asked);
                    c.server_sends(&kind.wrap(&void(version, 6)));
                    host.meets(&c, "rest");
                    c.ends();
                }
            }
        }
    });
}
