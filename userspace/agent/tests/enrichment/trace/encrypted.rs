//! Collectors that speak TLS: who they have to be, what they are shown, and what is said of mistakes.

use std::{fs, path::Path, process::Command, sync::Arc};

use rustls::ServerConfig;

use super::{
    SELECT, asks, begin,
    collector::{Collector, Says, listen},
    counted, said,
};
use crate::common::{
    BINARY,
    certs::{Authority, file},
    eventually,
    frames::query,
    wire::{Host, host},
};

/// Name in the collector's certificate.
const NAME: &str = "collector.example";

/// One rule, `r`, that traces to this URL, with these certificates.
fn policy(to: &str, tls: &str) -> String {
    format!(
        "[[rule]]\nname = \"r\"\nto = [\":PORT\"]\npath = \"inline\"\naction = \"enrich\"\npipeline = [{{ transform = \"trace\", \
         endpoint = \"{to}\", sample = 1, tls = {{ {tls} }} }}]\n"
    )
}

/// HTTP/2, as gRPC wants it.
fn speaks_h2(config: Arc<ServerConfig>) -> Arc<ServerConfig> {
    let mut config = Arc::unwrap_or_clone(config);
    config.alpn_protocols = vec![b"h2".to_vec()];
    Arc::new(config)
}

fn asks_once(host: &Host<'_>) {
    let mut c = begin(host, 4);
    asks(&mut c, 4, &query(4, 1, SELECT));
    c.ends();
}

fn failed(host: &Host<'_>, why: &str) -> u64 {
    host.metric(
        "otlp_exports_failed",
        &format!("signal=\"spans\",why=\"{why}\""),
    )
}

#[test]
fn spans_go_where_a_certificate_is_good() {
    let folder = tempfile::tempdir().unwrap();
    let (authority, clients) = (Authority::new(), Authority::new());
    let ca = file(folder.path(), "ca.crt", &authority.pem());
    let (cert, key) = clients.signs(&["agent"]).write(folder.path(), "own");
    let ca = format!("ca = {ca:?}");
    let own = format!("cert = {cert:?}, key = {key:?}");
    for (names, wants_own, tls) in [
        (&["127.0.0.1"], false, ca.clone()),
        (&[NAME], false, format!("{ca}, server_name = {NAME:?}")),
        (&["127.0.0.1"], true, format!("{ca}, {own}")),
    ] {
        host(|host| {
            let server = Authority::server(&authority.signs(names), wants_own.then_some(&clients));
            let listener = listen(host.sandbox);
            let to = format!("https://{}", listener.local_addr().unwrap());
            host.policy(&policy(&to, &tls));
            let collector = Collector::start_with(listener, Says::Thanks, Some(speaks_h2(server)));
            asks_once(host);
            eventually("the span is there", || collector.spans().len() == 1);
            eventually("it is counted", || counted(host, "exported") == 1);
        });
    }
}

#[test]
fn what_is_not_good_is_said_and_a_renewed_file_mends_it() {
    let folder = tempfile::tempdir().unwrap();
    let (authority, other) = (Authority::new(), Authority::new());
    let ca = file(folder.path(), "ca.crt", &other.pem());
    host(|host| {
        let server = Authority::server(&authority.signs(&["127.0.0.1"]), None);
        let listener = listen(host.sandbox);
        let to = format!("https://{}", listener.local_addr().unwrap());
        let policy = policy(&to, &format!("ca = {ca:?}"));
        host.policy(&policy);
        let collector = Collector::start_with(listener, Says::Thanks, Some(speaks_h2(server)));
        asks_once(host);
        eventually("it is not trusted", || failed(host, "tls") > 0);
        assert_eq!(
            said(
                host,
                "have `ca` of its `tls` hold who signed its certificate"
            ),
            1
        );
        assert_eq!(collector.spans().len(), 0);
        fs::write(&ca, authority.pem()).unwrap();
        host.policy(&policy);
        // What has waited is sent now.
        eventually("the span is there", || collector.spans().len() == 1);
    });
}

#[test]
fn a_collector_of_another_name_or_without_tls_gets_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::new();
    let ca = file(folder.path(), "ca.crt", &authority.pem());
    for (encrypts, advice) in [
        (true, "set `server_name` of its `tls`"),
        (false, "does it speak TLS at that port?"),
    ] {
        host(|host| {
            let server = Authority::server(&authority.signs(&[NAME]), None);
            let listener = listen(host.sandbox);
            let to = format!("https://{}", listener.local_addr().unwrap());
            host.policy(&policy(&to, &format!("ca = {ca:?}")));
            let server = encrypts.then(|| speaks_h2(server));
            let collector = Collector::start_with(listener, Says::Thanks, server);
            asks_once(host);
            eventually("it is not taken", || failed(host, "tls") > 0);
            assert_eq!(said(host, advice), 1, "{}", host.agent.log());
            assert_eq!((collector.spans().len(), counted(host, "exported")), (0, 0));
            host.policy("");
        });
    }
}

#[test]
fn a_file_that_cannot_be_used_is_an_error_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("u.toml");
    let checks = |ca: &Path| {
        let policy = policy("https://127.0.0.1:1", &format!("ca = {ca:?}"));
        fs::write(&path, policy.replace("PORT", "9042")).unwrap();
        let checked = Command::new(BINARY).arg("check").arg(&path).output();
        let checked = checked.unwrap();
        assert!(!checked.status.success());
        String::from_utf8(checked.stderr).unwrap()
    };
    let (missing, empty) = (
        folder.path().join("missing.crt"),
        file(folder.path(), "empty.crt", ""),
    );
    let says = checks(&missing);
    let expected = format!(
        "rule r: trace: tls.ca: cannot read {}: No such file",
        missing.display()
    );
    assert!(says.contains(&expected), "{says}");
    let says = checks(&empty);
    let expected = "tls.ca: expected a certificate in";
    assert!(says.contains(expected), "{says}");
}
