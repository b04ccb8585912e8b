//! Clients that have to show who they are.

use std::{fs, io::ErrorKind};

use rustls::{
    AlertDescription,
    version::{TLS12, TLS13},
};
use serde_json::Value;

use super::{
    SELECT,
    ends::{End, Secure, is_alert, secure},
    query, ready, startup, void,
};
use crate::common::{
    certs::{Authority, NAME},
    eventually,
};

const ASKS: &str = "tls = { cert = \"DIR/agent.crt\", key = \"DIR/agent.key\", \
                    client_ca = \"DIR/ca.crt\" }";

#[test]
fn who_shows_a_certificate_is_known_by_it() {
    secure(|s| {
        let audit = "pipeline = [{ transform = \"audit\", file = \"DIR/audit.log\" }]";
        s.rule(&format!("{ASKS}\n{audit}"));
        let own = s
            .authority
            .signs(&["app.example", "URI:spiffe://example/app"]);
        for version in [&TLS12, &TLS13] {
            let (client, database) = s.connect();
            let config = s.authority.client_of(&[version], Some(&own));
            let mut client = End::client(client, &config, NAME);
            let mut database = End::Plain(database);
            client.sends(&startup(4, &[("CQL_VERSION", "3.0.0")]));
            database.gets(&startup(4, &[("CQL_VERSION", "3.0.0")]));
            database.sends(&ready(4));
            client.gets(&ready(4));
            client.sends(&query(4, 1, SELECT));
            database.gets(&query(4, 1, SELECT));
            database.sends(&void(4, 1));
            client.gets(&void(4, 1));
            let flow = s.flow(&client);
            assert_eq!(flow["tls"]["client"]["peer"][0], "app.example", "{flow}");
        }
        eventually("both are in the audit log", || {
            fs::read_to_string(s.path("audit.log"))
                .is_ok_and(|log| log.matches(SELECT_KIND).count() == 2)
        });
        let log = fs::read_to_string(s.path("audit.log")).unwrap();
        let lines = log.lines().filter(|line| line.contains(SELECT_KIND));
        for (line, version) in lines.zip(["1.2", "1.3"]) {
            let line: Value = serde_json::from_str(line).unwrap();
            assert_eq!(line["tls"], version, "{line}");
            assert_eq!(line["certificate"], "app.example", "{line}");
        }
    });
}

const SELECT_KIND: &str = "\"kind\":\"select\"";

/// A client is not let in, and the database hears nothing.
fn expect_refused(
    s: &Secure<'_, '_>,
    client: &mut End,
    mut database: End,
    alert: AlertDescription,
) {
    // With TLS 1.3 a client has said its first words before it is told.
    let _ = std::io::Write::write_all(client, &startup(4, &[]));
    let error = client.fails();
    assert_eq!(error.kind(), ErrorKind::InvalidData, "{error}");
    assert!(is_alert(&error, alert), "{error}");
    assert_eq!(database.rest(), b"", "the database hears nothing");
    s.ends_for("client_tls");
}

#[test]
fn who_shows_none_is_told_so() {
    secure(|s| {
        s.rule(ASKS);
        let (mut client, database) = s.encrypted();
        expect_refused(
            s,
            &mut client,
            database,
            AlertDescription::CertificateRequired,
        );
        assert_eq!(s.failed("client", "no_certificate"), 1);
        s.host
            .agent
            .wait_for_log("give the client a certificate")
            .unwrap();
    });
}

#[test]
fn whose_certificate_is_no_good_is_told_so() {
    let stranger = Authority::new();
    type Sign = fn(&Authority) -> crate::common::certs::Signed;
    let good: Sign = |by| by.signs(&["app.example"]);
    let expired: Sign = |by| by.signs_expired(&["app.example"]);
    for (sign, by, reason, alert) in [
        (good, Some(&stranger), "unknown_issuer", None),
        (
            expired,
            None,
            "expired",
            Some(AlertDescription::CertificateExpired),
        ),
    ] {
        secure(|s| {
            s.rule(ASKS);
            let own = sign(by.unwrap_or(&s.authority));
            let (client, database) = s.connect();
            let mut client = End::client(client, &s.authority.client(Some(&own)), NAME);
            let alert = alert.unwrap_or(AlertDescription::DecryptError);
            expect_refused(s, &mut client, End::Plain(database), alert);
            assert_eq!(s.failed("client", reason), 1);
        });
    }
}

#[test]
fn who_had_to_show_a_certificate_shows_it_again() {
    secure(|s| {
        s.rule(ASKS);
        let own = s.authority.signs(&["app.example"]);
        let config = s.authority.client(Some(&own));
        for _ in 0..2 {
            assert_eq!(shakes(s, &config), rustls::HandshakeKind::Full);
        }
        s.rule(super::clients::OWN);
        // One that need not is given a ticket with its first answer.
        let config = s.authority.client(None);
        let kinds = [shakes(s, &config), shakes(s, &config)];
        assert_eq!(kinds[1], rustls::HandshakeKind::Resumed, "{kinds:?}");
        // Also where the file was read again, and its certificate is what it was; and not where it is another.
        s.rule(super::clients::OWN);
        assert_eq!(shakes(s, &config), rustls::HandshakeKind::Resumed);
        s.has("agent", &s.authority.signs(&[NAME]));
        s.rule(super::clients::OWN);
        assert_eq!(shakes(s, &config), rustls::HandshakeKind::Full);
    });
}

fn shakes(
    s: &Secure<'_, '_>,
    config: &std::sync::Arc<rustls::ClientConfig>,
) -> rustls::HandshakeKind {
    let (client, database) = s.connect();
    let mut client = End::client(client, config, NAME);
    let mut database = End::Plain(database);
    client.sends(&startup(4, &[]));
    database.gets(&startup(4, &[]));
    database.sends(&ready(4));
    client.gets(&ready(4));
    let End::Client(stream) = &client else {
        panic!("a client");
    };
    stream.conn.handshake_kind().unwrap()
}
