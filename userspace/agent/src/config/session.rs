//! The keys of session rules.

use std::mem;

use policy::{
    Action, Compression, Fail, MAX_FACT_BYTES, Protocol, Rule, SessionConditions, TextPattern,
};
use toml::Spanned;

use super::{
    error::Flaw,
    raw::RawRule,
    tls,
    value::{expected, one_of},
};

impl RawRule {
    /// Whether the rule has a condition on the session. A `tls` with files is none.
    pub(super) fn asks_for_session(&self) -> bool {
        let lists = [
            &self.user,
            &self.keyspace,
            &self.driver,
            &self.driver_version,
            &self.application,
            &self.protocol,
            &self.compression,
        ];
        let is_condition = |tls: &Spanned<toml::Value>| tls.get_ref().is_bool();
        self.tls.as_ref().is_some_and(is_condition) || lists.iter().any(|list| !list.is_empty())
    }
}

/// Takes them out of `raw`.
pub(super) fn conditions(raw: &mut RawRule) -> Result<SessionConditions, Flaw> {
    let keyspaces = mem::take(&mut raw.keyspace);
    for keyspace in &keyspaces {
        if cql::is_system_keyspace(keyspace.get_ref()) {
            let meant = "a keyspace of yours: what is asked of the system's decides nothing";
            return expected("rule.keyspace", keyspace, meant);
        }
    }
    Ok(SessionConditions {
        users: texts("rule.user", &raw.user)?,
        keyspaces: texts("rule.keyspace", &keyspaces)?,
        drivers: texts("rule.driver", &raw.driver)?,
        driver_versions: texts("rule.driver_version", &raw.driver_version)?,
        applications: texts("rule.application", &raw.application)?,
        protocols: values(
            "rule.protocol",
            &raw.protocol,
            &Protocol::ALL.map(|p| (p.as_str(), p)),
        )?,
        compressions: values(
            "rule.compression",
            &raw.compression,
            &Compression::ALL.map(|c| (c.as_str(), c)),
        )?,
        tls: tls::condition(raw.tls.as_ref())?,
    })
}

/// Warns of a rule that is legal and probably not meant.
pub(super) fn doubt(rule: &Rule) -> Option<String> {
    let unsafe_deny = rule.is_session() && rule.action == Action::Deny && rule.fail == Fail::Open;
    unsafe_deny.then(|| {
        format!(
            "rule {}: it denies by the session, which only the agent knows: with fail = \"open\" \
             everybody passes while the agent is away; fail = \"closed\" is safe",
            rule.name
        )
    })
}

fn texts(key: &str, texts: &[Spanned<String>]) -> Result<Vec<TextPattern>, Flaw> {
    let text = |text: &Spanned<String>| match TextPattern::parse(text.get_ref()) {
        Some(pattern) => Ok(pattern),
        None => {
            let meant = format!("at most {MAX_FACT_BYTES} bytes, exact or a beginning and `*`");
            expected(key, text, &meant)
        }
    };
    texts.iter().map(text).collect()
}

fn values<T: Copy>(
    key: &str,
    texts: &[Spanned<String>],
    all: &[(&str, T)],
) -> Result<Vec<T>, Flaw> {
    texts.iter().map(|text| one_of(key, text, all)).collect()
}

#[cfg(test)]
mod tests {
    use crate::config::tests::parse;

    #[test]
    fn every_key_of_a_session_rule_is_read() {
        let config = parse(
            r#"
            [[rule]]
            name = "s"
            to = [":9042"]
            user = ["alice", "etl*"]
            keyspace = ["shop"]
            driver = ["*"]
            driver_version = ["4.*"]
            application = ["batch"]
            protocol = ["v4", "v5"]
            compression = ["none"]
            tls = false
            action = "deny"
            fail = "closed"
            "#,
        )
        .unwrap();
        let rule = &config.policy.rules[0];
        let named: Vec<&str> = rule.session.named().map(|key| key.key()).collect();
        let all = [
            "user",
            "keyspace",
            "driver",
            "driver_version",
            "application",
            "protocol",
            "compression",
            "tls",
        ];
        assert_eq!(named, all);
        assert!(rule.is_session() && config.warnings.is_empty());
    }

    #[test]
    fn a_session_rule_should_not_deny_openly() {
        let session = |action: &str| {
            format!(
                "[[rule]]\nname = \"s\"\nto = [\":9042\"]\nuser = [\"a\"]\naction = \"{action}\"\n"
            )
        };
        let open = session("deny") + "fail = \"open\"\n";
        let warnings = parse(&open).unwrap().warnings;
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        assert!(
            warnings[0].contains("fail = \"closed\" is safe"),
            "{warnings:?}"
        );
        for action in ["bypass", "observe"] {
            assert_eq!(parse(&session(action)).unwrap().warnings.len(), 0);
        }
    }
}
