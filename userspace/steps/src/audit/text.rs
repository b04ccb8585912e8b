//! The parts of a line that stay the same: written once, in JSON, without the braces.

use std::fmt::Write as _;

use cql::{Fingerprint, Statement};

use super::Whose;

/// Writes the flow's identity. `tried`: the user of a log-in that failed.
pub(super) fn who(whose: &Whose, tried: Option<&str>) -> String {
    let flow = &whose.flow;
    let mut text = String::new();
    pair(&mut text, "rule", Some(whose.rule.as_str()));
    let _ = write!(text, ",\"flow\":{}", flow.id);
    pair(
        &mut text,
        "client",
        Some(&flow.client.socket_addr().to_string()),
    );
    pair(
        &mut text,
        "database",
        Some(&whose.coordinator().to_string()),
    );
    if !flow.process.is_elsewhere() {
        pair(&mut text, "process", whose.process());
        let _ = write!(
            text,
            ",\"pid\":{},\"uid\":{}",
            flow.process.pid, flow.process.uid
        );
    }
    pair(&mut text, "cgroup", whose.cgroup.as_deref());
    if let Some(of) = whose.container() {
        pair(&mut text, "container", of.container.as_deref());
        pair(&mut text, "pod", of.pod.as_deref());
        pair(&mut text, "namespace", of.namespace.as_deref());
        pair(&mut text, "owner", of.owner.as_deref());
        if !of.labels.is_empty() {
            // Every text can be written in JSON.
            let labels = serde_json::to_string(&of.labels).unwrap_or_default();
            let _ = write!(text, ",\"labels\":{labels}");
        }
    }
    if let Some(tls) = flow.tls().and_then(|tls| tls.client) {
        pair(&mut text, "tls", Some(tls.version));
        pair(
            &mut text,
            "certificate",
            tls.peer.first().map(String::as_str),
        );
    }
    let user = whose.user();
    pair(&mut text, "user", tried.or(user.as_deref()));
    pair(&mut text, "application", whose.application());
    let [driver, version] = whose.driver();
    pair(&mut text, "driver", driver);
    pair(&mut text, "driver_version", version);
    text
}

/// Writes the statement.
pub(super) fn what(statement: &Statement, fingerprint: Option<&Fingerprint>) -> String {
    let mut text = String::new();
    pair(&mut text, "kind", Some(statement.kind.as_str()));
    pair(&mut text, "keyspace", statement.keyspace.as_deref());
    pair(&mut text, "table", statement.table.as_deref());
    pair(&mut text, "fingerprint", fingerprint.map(Fingerprint::text));
    text
}

/// Quotes a text for JSON.
pub(super) fn quoted(text: &str) -> String {
    // Every text can be written in JSON.
    serde_json::to_string(text).unwrap_or_default()
}

/// Whether a text contains no password: statements that make and change roles have it in the text itself, also where the
/// word before it is misspelt.
pub fn may_be_shown(text: &str) -> bool {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let mut before = String::new();
    !words.filter(|word| !word.is_empty()).any(|word| {
        let word = word.to_ascii_lowercase();
        let of_role = matches!(&*before, "create" | "alter") && matches!(&*word, "role" | "user");
        let of_secret =
            word.contains("password") || word.contains("access_key") || word.contains("secret");
        before = word;
        of_role || of_secret
    })
}

fn pair(text: &mut String, key: &str, value: Option<&str>) {
    if let Some(value) = value {
        let comma = if text.is_empty() { "" } else { "," };
        let _ = write!(text, "{comma}\"{key}\":{}", quoted(value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_not_shown() {
        for text in [
            "CREATE ROLE r WITH PASSWORD = 'x'",
            "alter user u with hashed password 'x'",
            "CREATE ROLE r WITH/**/password='x'",
            "CREATE ROLE r WITH OPTIONS = {'my_password': 'x'}",
            "ALTER USER u WITH PASWORD 'x'",
            "create/**/role r WITH SALTED HASH = 'x'",
        ] {
            assert!(!may_be_shown(text), "{text}");
        }
        assert!(may_be_shown("SELECT pass FROM shop.orders WHERE id = 1"));
    }

    #[test]
    fn names_are_quoted() {
        let statement = Statement {
            kind: cql::StatementKind::Select,
            keyspace: Some("a\"b\n".into()),
            table: None,
        };
        assert_eq!(
            what(&statement, None),
            r#""kind":"select","keyspace":"a\"b\n""#
        );
    }
}
