//! Towards databases.

use std::{net::TcpStream, thread};

use super::{
    SELECT,
    clients::OWN,
    ends::{End, Secure, secure},
    query, ready, startup, void,
};
use crate::common::{
    accept,
    certs::{Authority, NAME},
    eventually,
};

const TRUSTED: &str = "upstream_tls = { ca = \"DIR/ca.crt\", server_name = \"db.example\" }";

impl Secure<'_, '_> {
    /// A client that does not encrypt, to a database with this certificate.
    fn to_encrypted(&self, signed: &crate::common::certs::Signed) -> (End, End) {
        let (client, database) = self.connect();
        let database = End::server(database, &Authority::server(signed, None));
        (End::Plain(client), database)
    }
}

/// A few words each way, and the end of both.
fn talk(s: &Secure<'_, '_>, mut client: End, mut database: End) {
    client.sends(&startup(4, &[]));
    database.gets(&startup(4, &[]));
    database.sends(&ready(4));
    client.gets(&ready(4));
    client.sends(&query(4, 1, SELECT));
    database.gets(&query(4, 1, SELECT));
    database.sends(&void(4, 1));
    client.gets(&void(4, 1));
    let flow = s.flow(&client);
    assert_eq!(flow["path"], "enrich", "{flow}");
    assert_eq!(flow["tls"]["database"]["version"], "1.3", "{flow}");
    let why = flow["why"].as_str().unwrap();
    assert!(why.ends_with("TLS 1.3 with the database"), "{why}");
    client.ends();
    assert_eq!(database.rest(), b"", "its end is said");
    database.ends();
    assert_eq!(client.rest(), b"", "its end is said");
}

#[test]
fn a_client_that_does_not_encrypt_reaches_a_database_that_does() {
    secure(|s| {
        s.rule(TRUSTED);
        let (client, database) = s.to_encrypted(&s.authority.signs(&[NAME]));
        talk(s, client, database);
        s.ends_for("both_ended");
        let done = |side: &str| {
            let labels = format!("side=\"{side}\"");
            s.host.metric("tls_handshakes", &labels)
        };
        assert_eq!((done("client"), done("database")), (0, 1));
    });
}

#[test]
fn both_sides_may_be_encrypted_each_by_itself() {
    secure(|s| {
        s.rule(&format!("{OWN}\n{TRUSTED}"));
        let (client, database) = s.connect();
        let client = End::client(client, &s.authority.client(None), NAME);
        let signed = s.authority.signs(&[NAME]);
        let database = End::server(database, &Authority::server(&signed, None));
        talk(s, client, database);
        s.ends_for("both_ended");
    });
}

#[test]
fn a_database_goes_by_what_the_client_calls_it_or_else_by_its_address() {
    secure(|s| {
        s.rule(&format!("{OWN}\nupstream_tls = {{ ca = \"DIR/ca.crt\" }}"));
        s.has("agent", &s.authority.signs(&["shop.example", "127.0.0.1"]));
        s.rule(&format!(
            "{OWN}\nupstream_tls = {{ ca = \"DIR/ca.crt\" }} # again"
        ));
        for (named, has) in [("shop.example", "shop.example"), ("127.0.0.1", "127.0.0.1")] {
            let (client, database) = s.connect();
            let client = End::client(client, &s.authority.client(None), named);
            let signed = s.authority.signs(&[has]);
            let database = End::server(database, &Authority::server(&signed, None));
            talk(s, client, database);
        }
    });
}

#[test]
fn a_client_that_encrypts_where_only_the_database_has_to_passes_as_it_is() {
    secure(|s| {
        s.rule(TRUSTED);
        let (client, database) = s.connect();
        let mut client = End::client(client, &s.authority.client(None), NAME);
        let signed = s.authority.signs(&[NAME]);
        let mut database = End::server(database, &Authority::server(&signed, None));
        // One thread each: they shake hands with each other.
        thread::scope(|scope| {
            scope.spawn(|| client.sends(&startup(4, &[])));
            scope.spawn(|| database.gets(&startup(4, &[])));
        });
        let flow = s.flow(&client);
        assert!(flow["tls"].is_null(), "{flow}");
        assert_ne!(flow["path"], "enrich", "{flow}");
        assert_eq!(s.host.metric("tls_passed", "reason=\"no_certificate\""), 1);
    });
}

#[test]
fn a_database_with_a_bad_certificate_gets_nothing() {
    for (names, expired, by_another, reason, advice) in [
        (
            &[NAME][..],
            false,
            true,
            "unknown_issuer",
            "have `ca` of the rule's",
        ),
        (&[NAME][..], true, false, "expired", "valid today"),
        (
            &["other.example"][..],
            false,
            false,
            "wrong_name",
            "set `server_name`",
        ),
    ] {
        secure(|s| {
            s.rule(TRUSTED);
            let stranger = Authority::new();
            let authority = if by_another { &stranger } else { &s.authority };
            let signed = match expired {
                true => authority.signs_expired(names),
                false => authority.signs(names),
            };
            let (mut client, mut database) = s.to_encrypted(&signed);
            client.sends(&startup(4, &[]));
            // It is told why, by an alert.
            let error = database.fails();
            assert!(error.to_string().contains("alert"), "{error}");
            assert_eq!(client.rest(), b"");
            s.ends_for("database_tls");
            assert_eq!(s.failed("database", reason), 1, "{reason}");
            let log = s.host.agent.wait_for_log(advice).unwrap();
            assert!(log.contains("no TLS handshake"));
        });
    }
}

#[test]
fn a_database_that_does_not_encrypt_is_told_nothing() {
    secure(|s| {
        s.rule(TRUSTED);
        let (client, database) = s.connect();
        let (mut client, mut database) = (End::Plain(client), End::Plain(database));
        client.sends(&startup(4, &[]));
        // What comes is a ClientHello, and no STARTUP.
        let mut first = [0; 1];
        std::io::Read::read_exact(&mut database, &mut first).unwrap();
        assert_eq!(first, [0x16]);
        database.sends(&ready(4));
        assert_eq!(client.rest(), b"");
        s.ends_for("database_tls");
        eventually("it is counted", || s.failed("database", "malformed") == 1);
    });
}

#[test]
fn one_that_ends_before_the_client_has_said_a_word_ends_the_client() {
    secure(|s| {
        s.rule(&format!("{OWN}\n{TRUSTED}"));
        let (client, database) = s.connect();
        drop(database);
        assert_eq!(End::Plain(client).rest(), b"");
    });
}

#[test]
fn one_that_speaks_first_waits_for_the_client() {
    secure(|s| {
        s.rule(&OWN.replace(" }", ", required = false }"));
        let (client, database) = s.connect();
        let (mut client, mut database) = (End::Plain(client), End::Plain(database));
        database.sends(b"hello");
        client.socket().set_nonblocking(true).unwrap();
        thread::sleep(std::time::Duration::from_millis(100));
        let early = std::io::Read::read(&mut client, &mut [0; 8]);
        assert_eq!(early.unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
        client.socket().set_nonblocking(false).unwrap();
        client.sends(&startup(4, &[]));
        database.gets(&startup(4, &[]));
    });
}

#[test]
fn the_agent_shows_a_certificate_where_the_database_wants_one() {
    secure(|s| {
        s.has("own", &s.authority.signs(&["agent.example"]));
        let own = ", cert = \"DIR/own.crt\", key = \"DIR/own.key\" }";
        for (rule, good) in [
            (TRUSTED.replace(" }", own), true),
            (TRUSTED.to_owned(), false),
        ] {
            s.rule(&rule);
            let (mut client, database) = s.connect();
            let signed = s.authority.signs(&[NAME]);
            let config = Authority::server(&signed, Some(&s.authority));
            let mut database = End::server(database, &config);
            if good {
                talk(s, End::Plain(client), database);
                continue;
            }
            std::io::Write::write_all(&mut client, &startup(4, &[])).unwrap();
            database.fails();
            drop(database);
            // TLS 1.3: the agent hears of it when its handshake is over.
            let _ = std::io::Read::read_to_end(&mut client, &mut Vec::new());
            eventually("it has ended", || {
                let reasons = ["database_tls", "database_reset", "database_truncated"];
                reasons.iter().any(|reason| s.closed(reason) == 1)
            });
        }
    });
}

#[test]
fn a_database_that_is_cut_off_is_passed_on_as_that() {
    secure(|s| {
        s.rule(&format!("{OWN}\n{TRUSTED}"));
        let (client, database) = s.connect();
        let mut client = End::client(client, &s.authority.client(None), NAME);
        let signed = s.authority.signs(&[NAME]);
        let mut database = End::server(database, &Authority::server(&signed, None));
        client.sends(&startup(4, &[]));
        database.gets(&startup(4, &[]));
        database.sends(&ready(4));
        database
            .socket()
            .shutdown(std::net::Shutdown::Write)
            .unwrap();
        client.gets(&ready(4));
        let error = client.fails();
        assert_eq!(error.kind(), std::io::ErrorKind::UnexpectedEof, "{error}");
        s.ends_for("database_truncated");
    });
}

#[test]
fn a_database_that_does_not_shake_hands_is_given_up() {
    secure(|s| {
        s.rule(TRUSTED);
        let (client, database) = s.connect();
        let mut client = End::Plain(client);
        let patience = crate::common::PATIENCE + crate::common::PATIENCE;
        client.socket().set_read_timeout(Some(patience)).unwrap();
        client.sends(&startup(4, &[]));
        assert_eq!(client.rest(), b"");
        s.ends_for("database_tls");
        assert_eq!(s.failed("database", "deadline"), 1);
        drop(database);
    });
}

#[test]
fn what_a_client_says_with_its_last_breath_is_encrypted_too() {
    secure(|s| {
        s.rule(&format!("{OWN}\n{TRUSTED}"));
        let (client, database) = s.connect();
        let mut client = End::client(client, &s.authority.client(None), NAME);
        client.sends(&startup(4, &[]));
        client.ends();
        let signed = s.authority.signs(&[NAME]);
        let mut database = End::server(database, &Authority::server(&signed, None));
        assert_eq!(database.rest(), startup(4, &[]), "and its end is said");
    });
}

/// Numbers that look random, the same each time.
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.0 >> 33) as usize % limit
    }
}

#[test]
fn requests_and_answers_of_any_size_pass_in_any_number() {
    const ROUNDS: usize = 60;
    /// Around a record, a chunk, and what sockets take at once.
    const SIZES: [usize; 6] = [10, 1_000, 17_000, 70_000, 300_000, 1_500_000];
    let both = format!("{OWN}\n{TRUSTED}");
    for (rule, client_encrypts, database_encrypts) in [
        (OWN, true, false),
        (TRUSTED, false, true),
        (both.as_str(), true, true),
    ] {
        secure(|s| {
            s.rule(rule);
            let (client, database) = s.connect();
            let signed = s.authority.signs(&[NAME]);
            let mut client = match client_encrypts {
                true => End::client(client, &s.authority.client(None), NAME),
                false => End::Plain(client),
            };
            let mut database = match database_encrypts {
                true => End::server(database, &Authority::server(&signed, None)),
                false => End::Plain(database),
            };
            client.sends(&startup(4, &[]));
            database.gets(&startup(4, &[]));
            database.sends(&ready(4));
            client.gets(&ready(4));
            let mut dice = Dice(7);
            for round in 0..ROUNDS {
                let count = 1 + dice.below(8);
                let size = SIZES[dice.below(SIZES.len())];
                let sizes: Vec<usize> = (0..count).map(|_| dice.below(size)).collect();
                let asked = |n: usize| {
                    let text = format!("{SELECT}{}", " ".repeat(sizes[n]));
                    query(4, n as i16, &text)
                };
                // All of them fit into what sockets hold: the client reads when it has asked.
                let answer = |n: usize| {
                    let body =
                        [&2_i32.to_be_bytes()[..], &vec![n as u8; sizes[n] % 9_000]].concat();
                    crate::common::frames::frame(0x84, n as i16, 0x08, &body)
                };
                thread::scope(|scope| {
                    scope.spawn(|| {
                        for n in 0..count {
                            database.gets(&asked(n));
                            database.sends(&answer(n));
                        }
                    });
                    (0..count).for_each(|n| client.sends(&asked(n)));
                    (0..count).for_each(|n| client.gets(&answer(n)));
                });
                assert_eq!(s.closed("client_tls"), 0, "round {round}");
            }
        });
    }
}

#[test]
fn a_backend_goes_by_its_own_address() {
    const VIRTUAL: &str = "10.9.0.10:9042";
    secure(|s| {
        let port = s.host.listener.local_addr().unwrap().port();
        s.host.policy(&s.named(&format!(
            "[[rule]]\nname = \"r\"\nto = [\"{VIRTUAL}\"]\naction = \"enrich\"\nfail = \"closed\"\n\
             backends = [\"127.0.0.1:{port}\"]\nupstream_tls = {{ ca = \"DIR/ca.crt\" }}\n\
             [health]\ncql = false\n"
        )));
        let dial = || TcpStream::connect(VIRTUAL);
        // It is up once it has been checked.
        let mut client = None;
        eventually("a backend is up", || {
            client = s.host.sandbox.client(dial).unwrap().ok();
            client.is_some()
        });
        let mut client = End::Plain(client.unwrap());
        client.sends(&startup(4, &[]));
        let signed = s.authority.signs(&["127.0.0.1"]);
        let config = Authority::server(&signed, None);
        // Those who check it dial it, too, and say nothing.
        loop {
            let (database, _) = accept(&s.host.listener);
            let mut database = End::server(database, &config);
            let asked = startup(4, &[]);
            let mut got = vec![0; asked.len()];
            if std::io::Read::read_exact(&mut database, &mut got).is_ok() {
                assert_eq!(got, asked);
                break;
            }
        }
        assert_eq!(s.flow(&client)["tls"]["database"]["version"], "1.3");
    });
}
