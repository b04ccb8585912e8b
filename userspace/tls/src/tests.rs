//! Certificate files, good and bad, and the errors about them.

#[path = "../../agent/tests/common/certs.rs"]
#[expect(dead_code, reason = "tests of the whole agent use all of it")]
pub(crate) mod certs;

use std::{fs, os::unix::fs::PermissionsExt, path::Path};

use certs::{Authority, NAME, file};

use super::*;

fn wanted(cert: &Path, key: &Path, client_ca: Option<&Path>) -> Vec<(RuleName, TlsSettings)> {
    let accept = Some(Accepting {
        cert: cert.to_owned(),
        key: key.to_owned(),
        client_ca: client_ca.map(Path::to_owned),
        required: true,
    });
    vec![(RuleName::new("r"), TlsSettings { accept, dial: None })]
}

fn says(wanted: &[(RuleName, TlsSettings)]) -> String {
    let said = TlsRules::load(wanted).unwrap_err().to_string();
    assert!(!said.contains('\n'), "one line: {said}");
    said
}

#[test]
fn what_is_wrong_with_a_file_is_said_in_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let authority = Authority::new();
    let (cert, key) = authority.signs(&[NAME]).write(folder, "good");
    let (_, other) = authority.signs(&[NAME]).write(folder, "other");
    let ca = file(folder, "ca.crt", &authority.pem());
    assert!(TlsRules::load(&wanted(&cert, &key, Some(&ca))).is_ok());

    let gone = folder.join("gone");
    let said = says(&wanted(&gone, &key, None));
    let expected = format!(
        "rule r: tls.cert: cannot read {}: No such file",
        gone.display()
    );
    assert!(said.starts_with(&expected), "{said}");

    let empty = file(folder, "empty", "nothing of use\n");
    let said = says(&wanted(&empty, &key, None));
    assert!(
        said.contains("tls.cert: expected a certificate in"),
        "{said}"
    );
    let said = says(&wanted(&cert, &key, Some(&empty)));
    assert!(
        said.contains("tls.client_ca: expected a certificate in"),
        "{said}"
    );
    fs::set_permissions(&empty, fs::Permissions::from_mode(0o600)).unwrap();
    let said = says(&wanted(&cert, &empty, None));
    assert!(
        said.contains("tls.key: expected a private key in"),
        "{said}"
    );

    let said = says(&wanted(&cert, &other, None));
    assert!(
        said.contains("tls.key: expected") && said.contains("another's"),
        "{said}"
    );

    fs::set_permissions(&key, fs::Permissions::from_mode(0o604)).unwrap();
    let said = says(&wanted(&cert, &key, None));
    assert!(
        said.contains("to be closed to others") && said.contains("604"),
        "{said}"
    );
    fs::set_permissions(&key, fs::Permissions::from_mode(0o640)).unwrap();
    assert!(
        TlsRules::load(&wanted(&cert, &key, None)).is_ok(),
        "a group may read it"
    );

    let said = says(&wanted(folder, &key, None));
    assert!(said.contains("tls.cert: expected a file"), "{said}");
    let broken = file(folder, "broken", "-----BEGIN CERTIFICATE-----\n!\n");
    let said = says(&wanted(&broken, &key, None));
    assert!(said.contains("cannot be read as PEM"), "{said}");
}

#[test]
fn a_pipe_is_no_file_to_wait_for() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
    assert!(says(&wanted(&pipe, &pipe, None)).contains("expected a file"));
}

/// Returns both configurations of a rule.
fn configs(rules: &TlsRules, rule: &str) -> (Arc<ServerConfig>, Arc<ClientConfig>) {
    let tls = rules.of(&RuleName::new(rule)).unwrap();
    let (accept, dial) = (tls.accept.clone().unwrap(), tls.dial.clone().unwrap());
    (accept.config, dial.config)
}

#[test]
fn what_is_read_again_and_says_the_same_stays_the_very_one_side_by_side() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let authority = Authority::new();
    let (cert, key) = authority.signs(&[NAME]).write(folder, "agent");
    let ca = file(folder, "ca.crt", &authority.pem());
    let mut said = wanted(&cert, &key, None);
    said[0].1.dial = Some(Dialling {
        ca,
        server_name: None,
        own: None,
    });
    // Another rule with the same databases takes clients that do not encrypt.
    let mut other = said[0].clone();
    other.0 = RuleName::new("s");
    other.1.accept.as_mut().unwrap().required = false;
    said.push(other);
    let stay = |before: &TlsRules, now: &TlsRules, rule: &str| {
        let (old, new) = (configs(before, rule), configs(now, rule));
        (Arc::ptr_eq(&old.0, &new.0), Arc::ptr_eq(&old.1, &new.1))
    };
    let first = TlsRules::load(&said).unwrap();
    let shared = [configs(&first, "r").1, configs(&first, "s").1];
    assert!(Arc::ptr_eq(&shared[0], &shared[1]));

    // The files were written again, and say the same.
    let (pem, secret) = (fs::read(&cert).unwrap(), fs::read(&key).unwrap());
    file(folder, "ca.crt", &authority.pem());
    fs::write(&cert, pem).unwrap();
    fs::write(&key, secret).unwrap();
    let again = first.reload(&said).unwrap();
    assert_eq!(stay(&first, &again, "r"), (true, true));
    assert_eq!(stay(&first, &again, "s"), (true, true));
    // The same holds for a rule that was gone and comes back.
    let gone = TlsRules::default().replacing(&first, |_| false);
    let back = gone.reload(&said).unwrap();
    assert_eq!(stay(&first, &back, "r"), (true, true));

    // The certificate that clients get is renewed.
    authority.signs(&[NAME]).write(folder, "agent");
    let renewed = again.reload(&said).unwrap();
    assert_eq!(stay(&again, &renewed, "r"), (false, true));
    // The authorities change.
    let both = authority.pem() + &Authority::new().pem();
    file(folder, "ca.crt", &both);
    let believes = renewed.reload(&said).unwrap();
    assert_eq!(stay(&renewed, &believes, "r"), (true, false));
    // The expected name changes, which is in no file.
    said[0].1.dial.as_mut().unwrap().server_name = Some(NAME.try_into().unwrap());
    let named = believes.reload(&said).unwrap();
    assert_eq!(stay(&believes, &named, "r"), (true, false));
    assert_eq!(stay(&believes, &named, "s"), (true, true));
}

#[test]
fn a_rule_that_is_gone_is_known_until_the_next_file() {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::new();
    let (cert, key) = authority.signs(&[NAME]).write(folder.path(), "good");
    let rule = RuleName::new("r");
    let first = TlsRules::load(&wanted(&cert, &key, None)).unwrap();
    let stays = TlsRules::default().replacing(&first, |_| true);
    assert!(stays.of(&rule).is_none(), "it says nothing of TLS any more");
    let gone = TlsRules::default().replacing(&first, |_| false);
    assert!(gone.of(&rule).is_some() && !gone.is_empty());
    let later = TlsRules::default().replacing(&gone, |_| false);
    assert!(later.of(&rule).is_none() && later.is_empty());
}

#[test]
fn rules_that_say_the_same_are_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let authority = Authority::new();
    let (cert, key) = authority.signs(&[NAME]).write(folder, "good");
    let mut both = wanted(&cert, &key, None);
    both.extend(wanted(&cert, &key, None));
    both[1].0 = RuleName::new("s");
    both.extend(wanted(&cert, &key, None));
    both[2].0 = RuleName::new("t");
    both[2].1.accept.as_mut().unwrap().required = false;
    let rules = TlsRules::load(&both).unwrap();
    let of = |name| rules.of(&RuleName::new(name)).unwrap();
    assert!(Arc::ptr_eq(of("r"), of("s")));
    assert!(!Arc::ptr_eq(of("r"), of("t")));
}
