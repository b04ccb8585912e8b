//! TLS keys of a policy file, and of its reloads; sessions; marks.

use std::fs;

use rustls::ClientConnection;

use super::{
    SELECT,
    clients::OWN,
    ends::{End, Secure, secure, troubled},
    query, ready, startup, void,
};
use crate::common::{
    certs::{Authority, NAME, file},
    operator::Operator,
    wire::{auth_response, auth_success, authenticate},
};

fn begins(client: &mut End, database: &mut End) {
    client.sends(&startup(4, &[("CQL_VERSION", "3.0.0")]));
    database.gets(&startup(4, &[("CQL_VERSION", "3.0.0")]));
    database.sends(&ready(4));
    client.gets(&ready(4));
}

fn exchange(client: &mut End, database: &mut End) {
    client.sends(&query(4, 1, SELECT));
    database.gets(&query(4, 1, SELECT));
    database.sends(&void(4, 1));
    client.gets(&void(4, 1));
}

fn reloads(s: &Secure<'_, '_>, result: &str) -> u64 {
    s.host.metric("reloads", &format!("result=\"{result}\""))
}

#[test]
fn a_new_certificate_is_for_new_flows_and_a_bad_one_for_nobody() {
    troubled(|s| {
        s.rule(OWN);
        let (mut old, mut old_database) = s.encrypted();
        begins(&mut old, &mut old_database);

        let other = Authority::new();
        s.has("agent", &other.signs(&[NAME]));
        s.rule(OWN);
        let (client, database) = s.connect();
        let mut new = End::client(client, &other.client(None), NAME);
        let mut new_database = End::Plain(database);
        begins(&mut new, &mut new_database);
        exchange(&mut old, &mut old_database);

        fs::remove_file(s.path("agent.key")).unwrap();
        let before = reloads(s, "error");
        s.host
            .agent
            .signal(nix::sys::signal::Signal::SIGHUP)
            .unwrap();
        crate::common::eventually("it is refused", || reloads(s, "error") > before);
        let log = s.host.agent.wait_for_log("tls.key: cannot read").unwrap();
        assert!(
            log.contains("the old policy stays in force: rule r: tls.key"),
            "{log}"
        );
        let (client, database) = s.connect();
        let mut newest = End::client(client, &other.client(None), NAME);
        begins(&mut newest, &mut End::Plain(database));
        exchange(&mut new, &mut new_database);
    });
}

#[test]
fn check_reads_the_files() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let authority = Authority::new();
    let (cert, key) = authority.signs(&[NAME]).write(folder, "agent");
    let (_, other) = authority.signs(&[NAME]).write(folder, "other");
    let check = |key: &std::path::Path| {
        let rule = format!(
            "[[rule]]\nname = \"r\"\nto = [\":9042\"]\naction = \"enrich\"\n\
             tls = {{ cert = {cert:?}, key = {key:?} }}\n"
        );
        let policy = file(folder, "policy.toml", &rule);
        let mut check = std::process::Command::new(crate::common::BINARY);
        let output = check.arg("check").arg(policy).output().unwrap();
        (
            output.status.success(),
            String::from_utf8(output.stderr).unwrap(),
        )
    };
    assert_eq!(check(&key), (true, String::new()));
    let (good, said) = check(&other);
    assert!(
        !good && said.contains("rule r: tls.key: expected"),
        "{said}"
    );
    assert_eq!(said.lines().count(), 1, "{said}");
}

#[test]
fn check_says_where_tls_ends() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let (cert, key) = Authority::new().signs(&[NAME]).write(folder, "agent");
    let check = |rest: &str| {
        let tls = format!("tls = {{ cert = {cert:?}, key = {key:?} }}");
        let rules = format!(
            "[[rule]]\nname = \"ann\"\nto = [\":9042\"]\nuser = [\"ann\"]\naction = \"enrich\"\n{tls}\n\
             [[rule]]\nname = \"rest\"\nto = [\":9042\"]\naction = \"enrich\"\n{}\n",
            rest.replace("TLS", &tls)
        );
        let policy = file(folder, "policy.toml", &rules);
        let mut check = std::process::Command::new(crate::common::BINARY);
        let check = check.arg("check").arg(policy);
        let output = check.args(["--to", "127.0.0.1:9042", "--tls"]).output();
        String::from_utf8(output.unwrap().stdout).unwrap()
    };
    let said = check("TLS");
    assert!(said.contains("TLS ends in the agent"), "{said}");
    assert!(said.contains("candidate: ann: enrich, by `user`"), "{said}");
    let said = check("");
    assert!(said.starts_with("rest: enrich"), "{said}");
    assert!(!said.contains("TLS ends"), "{said}");
}

/// Two rules that ask for the user, and one for all others; each with its own words of TLS.
fn by_user(s: &Secure<'_, '_>, fail: &str, [ann, rest]: [&str; 2]) {
    s.host.policy(&s.named(&format!(
        "[[rule]]\nname = \"ann\"\nto = [\":PORT\"]\nuser = [\"ann\"]\naction = \"enrich\"\n\
         fail = \"{fail}\"\n{ann}\n\
         [[rule]]\nname = \"mal\"\nto = [\":PORT\"]\nuser = [\"mal\"]\naction = \"deny\"\n\
         fail = \"{fail}\"\n\
         [[rule]]\nname = \"rest\"\nto = [\":PORT\"]\naction = \"enrich\"\nfail = \"closed\"\n{rest}\n"
    )));
}

fn logs_in(client: &mut End, database: &mut End, user: &str) {
    client.sends(&startup(4, &[("CQL_VERSION", "3.0.0")]));
    database.gets(&startup(4, &[("CQL_VERSION", "3.0.0")]));
    database.sends(&authenticate(4));
    client.gets(&authenticate(4));
    let response = auth_response(4, 1, format!("\0{user}\0secret").as_bytes());
    client.sends(&response);
    database.gets(&response);
    database.sends(&auth_success(4, 1));
}

#[test]
fn a_session_is_read_where_every_rule_that_may_hold_says_the_same_of_tls() {
    secure(|s| {
        by_user(s, "closed", [OWN, OWN]);
        let (mut client, mut database) = s.encrypted();
        logs_in(&mut client, &mut database, "ann");
        client.gets(&auth_success(4, 1));
        let flow = s.flow(&client);
        assert_eq!(flow["rule"], "ann", "{flow}");
        assert_eq!(flow["session"]["tls"], true, "{flow}");
        exchange(&mut client, &mut database);

        let (mut client, mut database) = s.encrypted();
        logs_in(&mut client, &mut database, "mal");
        let told = String::from_utf8_lossy(&client.rest()).into_owned();
        assert!(told.ends_with("underpass: denied by rule mal"), "{told}");
        assert_eq!(database.rest(), b"");
        s.ends_for("denied");
    });
}

#[test]
fn a_session_stays_closed_where_rules_differ() {
    secure(|s| {
        by_user(s, "open", [OWN, ""]);
        let (client, database) = s.connect();
        let mut client = End::client(client, &s.authority.client(None), NAME);
        let signed = s.authority.signs(&[NAME]);
        let mut database = End::server(database, &Authority::server(&signed, None));
        std::thread::scope(|scope| {
            scope.spawn(|| client.sends(&startup(4, &[])));
            scope.spawn(|| database.gets(&startup(4, &[])));
        });
        let flow = s.flow(&client);
        assert_eq!(flow["rule"], "rest", "{flow}");
        assert!(flow["tls"].is_null(), "{flow}");
        assert_eq!(s.host.metric("tls_passed", "reason=\"rules_differ\""), 1);

        // Which of them it is would be known too late.
        let (client, database) = s.connect();
        let (mut client, mut database) = (End::Plain(client), End::Plain(database));
        client.sends(&startup(4, &[]));
        let told = String::from_utf8_lossy(&client.rest()).into_owned();
        assert!(told.contains("differ in TLS"), "{told}");
        assert_eq!(database.rest(), b"");
        s.ends_for("tls_required");
    });
}

#[test]
fn a_session_that_stays_closed_is_refused_by_a_rule_that_is() {
    secure(|s| {
        by_user(s, "closed", [OWN, ""]);
        let (client, database) = s.connect();
        let mut client = End::Plain(client);
        let mut hello = Vec::new();
        let config = s.authority.client(None);
        let mut tls = ClientConnection::new(config, NAME.try_into().unwrap()).unwrap();
        tls.write_tls(&mut hello).unwrap();
        client.sends(&hello);
        assert_eq!(End::Plain(database).rest(), b"", "it may be mal");
        client.rest();
        s.ends_for("denied");
        assert_eq!(s.host.metric("sessions_undecidable", "reason=\"tls\""), 1);
    });
}

#[test]
fn a_condition_on_tls_is_one_on_the_client() {
    secure(|s| {
        s.host.policy(&s.named(&format!(
            "[[rule]]\nname = \"open\"\nto = [\":PORT\"]\ntls = false\naction = \"deny\"\n\
             fail = \"closed\"\n\
             [[rule]]\nname = \"rest\"\nto = [\":PORT\"]\naction = \"enrich\"\n{}\n",
            OWN.replace(" }", ", required = false }")
        )));
        let (mut client, mut database) = s.encrypted();
        begins(&mut client, &mut database);
        assert_eq!(s.flow(&client)["rule"], "rest");
        let (client, database) = s.connect();
        let (mut client, mut database) = (End::Plain(client), End::Plain(database));
        client.sends(&startup(4, &[]));
        database.gets(&startup(4, &[]));
        database.sends(&ready(4));
        let told = String::from_utf8_lossy(&client.rest()).into_owned();
        assert!(told.ends_with("denied by rule open"), "{told}");
    });
}

#[test]
fn a_mark_takes_it_out_of_its_pipeline_and_not_out_of_the_agent() {
    secure(|s| {
        s.rule(OWN);
        let operator = Operator::of(s.host);
        let (mut client, mut database) = s.encrypted();
        begins(&mut client, &mut database);
        exchange(&mut client, &mut database);
        let id = s.flow(&client)["id"].to_string();
        assert_eq!(operator.mark(&[&id, "bypass"])["counts"]["changed"], 1);
        exchange(&mut client, &mut database);
        let flow = s.flow(&client);
        assert_eq!(flow["path"], "relay", "{flow}");
        let why = flow["why"].as_str().unwrap();
        assert!(why.contains("TLS ends in the agent"), "{why}");
        // It stays there, however long nothing comes.
        std::thread::sleep(std::time::Duration::from_millis(300));
        assert_eq!(s.flow(&client)["path"], "relay");
        operator.mark(&[&id, "enrich"]);
        exchange(&mut client, &mut database);
        assert_eq!(s.flow(&client)["path"], "enrich");
    });
}

#[test]
fn a_strict_pipeline_reads_what_was_encrypted() {
    secure(|s| {
        s.rule(&format!(
            "{OWN}\npipeline = [{{ transform = \"guard\", refuse = [\"no_limit\"] }}]"
        ));
        let (mut client, mut database) = s.encrypted();
        begins(&mut client, &mut database);
        client.sends(&query(4, 3, "SELECT v FROM shop.orders"));
        let mut header = [0; 9];
        std::io::Read::read_exact(&mut client, &mut header).unwrap();
        assert_eq!(header[..5], [0x84, 0, 0, 3, 0], "an ERROR on its stream");
    });
}

#[test]
fn an_agent_that_is_stopped_ends_what_it_has_keys_of() {
    troubled(|s| {
        s.rule(OWN);
        let (mut client, mut database) = s.encrypted();
        begins(&mut client, &mut database);
        s.host
            .agent
            .signal(nix::sys::signal::Signal::SIGTERM)
            .unwrap();
        assert_eq!(client.rest(), b"", "its end is said");
        assert_eq!(database.rest(), b"");
    });
}
