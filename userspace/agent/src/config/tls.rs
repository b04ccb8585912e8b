//! `tls` and `upstream_tls`: which files, which names. What is in the files is looked at later
//! ([`tls::TlsRules::load`]): not everybody who reads the policy may read keys.

use policy::{Action, Fail, RuleName};
use serde::{Deserialize, de::DeserializeOwned};
use tls::{Accepting, Dialling, RawDialling, TlsSettings, file, secret};
use toml::{Spanned, Table, Value};

use super::{error::Flaw, raw::RawRule, value::said_by_parser};

const TLS: &str = "rule.tls";
const UPSTREAM: &str = "rule.upstream_tls";

/// `tls` of a rule, for the schema: [`condition`] and [`accepting`] read it.
#[derive(schemars::JsonSchema)]
#[schemars(untagged)]
#[expect(dead_code, reason = "only the schema is made of it")]
pub(super) enum RawTls {
    /// Whether the client encrypts.
    Condition(bool),
    /// Certificate with which TLS ends in the agent. Needs `action = "enrich"`.
    Certificate(RawAccepting),
}

/// Certificate with which TLS ends in the agent.
#[derive(Debug, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("examples" = [{"cert": "/etc/underpass/agent.crt", "key": "/etc/underpass/agent.key"}]))]
pub(super) struct RawAccepting {
    /// File with the certificate chain that clients are shown (PEM), the agent's own certificate first.
    #[schemars(extend("title" = "absolute path"))]
    cert: String,
    /// File with the private key of the certificate (PEM). `${NAME}` in its path is a variable of the agent's environment.
    #[schemars(extend("title" = "absolute path"))]
    key: String,
    /// File with the authorities (PEM) that have to have signed a client's certificate. Without this key clients need
    /// none.
    #[schemars(extend("title" = "absolute path"))]
    client_ca: Option<String>,
    /// `true`: clients that do not encrypt are refused.
    #[schemars(extend("default" = true))]
    required: Option<bool>,
}

/// `tls` as a condition on the session: a boolean.
pub(super) fn condition(raw: Option<&Spanned<Value>>) -> Result<Option<bool>, Flaw> {
    match raw.map(|raw| (raw.get_ref(), raw)) {
        None | Some((Value::Table(_), _)) => Ok(None),
        Some((Value::Boolean(wanted), _)) => Ok(Some(*wanted)),
        Some((found, raw)) => {
            let message = format!(
                "{TLS}: expected `true` or `false`, which is a condition, or a table with `cert` and \
                 `key`; found {found}"
            );
            Err(Flaw::new(raw.span(), message))
        }
    }
}

/// Reads the TLS settings of the rules that have certificates, or trust some. `asks_in_cql`: how backends are checked.
pub(super) fn of(
    rules: &[Spanned<RawRule>],
    asks_in_cql: Option<bool>,
    warnings: &mut Vec<String>,
) -> Result<Vec<(RuleName, TlsSettings)>, Flaw> {
    let rules = rules.iter().map(Spanned::get_ref);
    let mut found = Vec::new();
    for rule in rules {
        let settings = TlsSettings {
            accept: accepting(rule)?,
            dial: dialling(rule)?,
        };
        if settings == TlsSettings::default() {
            continue;
        }
        if let Some(sample) = &rule.sample {
            let message = "rule.sample: expected none in a rule with `tls` or `upstream_tls`: what is not \
                           sampled goes to the database as the client sends it";
            return Err(Flaw::new(sample.span(), message));
        }
        let name = RuleName::new(rule.name.get_ref());
        let is_open = rule.fail.as_ref().is_none_or(|f| f.get_ref() != "closed");
        if settings.dial.is_some() && is_open {
            warnings.push(format!(
                "rule {name}: with fail = {:?} what `upstream_tls` encrypts goes out as the client \
                 sends it while the agent is away; fail = {:?} is safe",
                Fail::Open.as_str(),
                Fail::Closed.as_str()
            ));
        }
        if settings.dial.is_some() && !rule.backends.is_empty() && asks_in_cql != Some(false) {
            warnings.push(format!(
                "rule {name}: its backends are checked in the clear, and may be found dead because they \
                 encrypt: [health] cql = false only has them accept"
            ));
        }
        found.push((name, settings));
    }
    Ok(found)
}

fn accepting(rule: &RawRule) -> Result<Option<Accepting>, Flaw> {
    let Some((table, raw)) = rule.tls.as_ref().and_then(|raw| match raw.get_ref() {
        Value::Table(table) => Some((table, raw)),
        _ => None,
    }) else {
        return Ok(None);
    };
    enriches(rule, TLS)?;
    let flaw = |message: String| Flaw::new(raw.span(), format!("{TLS}: {message}"));
    let RawAccepting {
        cert,
        key,
        client_ca,
        required,
    } = settings(table).map_err(flaw)?;
    Ok(Some(Accepting {
        cert: file("cert", cert).map_err(flaw)?,
        key: secret("key", key).map_err(flaw)?,
        client_ca: client_ca
            .map(|ca| file("client_ca", ca))
            .transpose()
            .map_err(flaw)?,
        required: required.unwrap_or(true),
    }))
}

fn dialling(rule: &RawRule) -> Result<Option<Dialling>, Flaw> {
    let Some(raw) = &rule.upstream_tls else {
        return Ok(None);
    };
    enriches(rule, UPSTREAM)?;
    let flaw = |message: String| Flaw::new(raw.span(), format!("{UPSTREAM}: {message}"));
    let dialling: RawDialling = settings(raw.get_ref()).map_err(flaw)?;
    dialling.read().map(Some).map_err(flaw)
}

/// Only such flows are the agent's for good.
fn enriches(rule: &RawRule, key: &str) -> Result<(), Flaw> {
    if rule.action.get_ref() == Action::Enrich.as_str() {
        return Ok(());
    }
    let message = format!(
        "rule.action: expected `enrich` in a rule with `{}`, because TLS ends where bytes are read; \
         found {:?}",
        key.trim_start_matches("rule."),
        rule.action.get_ref()
    );
    Err(Flaw::new(rule.action.span(), message))
}

fn settings<T: DeserializeOwned>(table: &Table) -> Result<T, String> {
    T::deserialize(table.clone()).map_err(|e| said_by_parser(&e))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::config::Config;

    fn found(rest: &str) -> Result<Config, String> {
        let text = format!("[[rule]]\nname = \"r\"\nto = [\":9042\"]\n{rest}\n");
        Config::parse(Path::new("u.toml"), &text).map_err(|e| e.to_string())
    }

    #[test]
    fn a_table_is_a_certificate_and_a_boolean_a_condition() {
        let both = "action = \"enrich\"\nfail = \"closed\"\n\
                    tls = { cert = \"/c\", key = \"/k\", client_ca = \"/a\" }\n\
                    upstream_tls = { ca = \"/a\", server_name = \"db.example\" }";
        let config = found(both).unwrap();
        let [(rule, settings)] = &config.tls[..] else {
            panic!("one rule: {:?}", config.tls);
        };
        assert_eq!(rule.as_str(), "r");
        let accept = settings.accept.as_ref().unwrap();
        assert!(accept.required && accept.client_ca.is_some());
        let dial = settings.dial.as_ref().unwrap();
        assert!(dial.server_name.is_some() && dial.own.is_none());
        assert!(!config.policy.rules[0].is_session());
        assert_eq!(config.warnings, [""; 0]);

        let config = found("action = \"enrich\"\ntls = true").unwrap();
        assert!(config.tls.is_empty() && config.policy.rules[0].is_session());
    }

    #[test]
    fn what_goes_out_in_the_clear_without_the_agent_is_warned_of() {
        let open = "action = \"enrich\"\nupstream_tls = { ca = \"/a\" }";
        let [warning] = &found(open).unwrap().warnings[..] else {
            panic!("one warning");
        };
        assert!(warning.starts_with("rule r: with fail = \"open\""));
    }

    #[test]
    fn backends_that_are_asked_in_the_clear_are_warned_of() {
        let rule = "[[rule]]\nname = \"r\"\nto = [\"10.9.0.1:9042\"]\naction = \"enrich\"\n\
                    fail = \"closed\"\nbackends = [\"10.1.0.1:9042\"]\nupstream_tls = { ca = \"/a\" }\n";
        let warnings = |text: &str| {
            let config = Config::parse(Path::new("u.toml"), text).unwrap();
            config.warnings
        };
        let [warning] = &warnings(rule)[..] else {
            panic!("one warning");
        };
        assert!(warning.contains("[health] cql = false"), "{warning}");
        let asks_not = format!("{rule}[health]\ncql = false\n");
        assert_eq!(warnings(&asks_not), [""; 0]);
    }

    #[test]
    fn mistakes_are_named() {
        for (rest, says) in [
            (
                "action = \"observe\"\ntls = { cert = \"/c\", key = \"/k\" }",
                "u.toml:4:10: rule.action: expected `enrich` in a rule with `tls`",
            ),
            (
                "action = \"bypass\"\nupstream_tls = { ca = \"/c\" }",
                "u.toml:4:10: rule.action: expected `enrich` in a rule with `upstream_tls`",
            ),
            (
                "action = \"enrich\"\ntls = { cert = \"/c\" }",
                "u.toml:5:7: rule.tls: missing field `key`",
            ),
            (
                "action = \"enrich\"\ntls = { cert = \"c\", key = \"/k\" }",
                "u.toml:5:7: rule.tls: cert: expected an absolute path; found \"c\"",
            ),
            (
                "action = \"enrich\"\ntls = { cert = \"/c\", key = \"/k\", insecure = true }",
                "u.toml:5:7: rule.tls: unknown field `insecure`",
            ),
            (
                "action = \"enrich\"\ntls = \"yes\"",
                "u.toml:5:7: rule.tls: expected `true` or `false`",
            ),
            (
                "action = \"enrich\"\nupstream_tls = { ca = \"/a\", cert = \"/c\" }",
                "u.toml:5:16: rule.upstream_tls: expected both `cert` and `key`",
            ),
            (
                "action = \"enrich\"\nsample = 0.5\nupstream_tls = { ca = \"/a\" }",
                "u.toml:5:10: rule.sample: expected none",
            ),
            (
                "action = \"enrich\"\nupstream_tls = { ca = \"/a\", server_name = \"a b\" }",
                "u.toml:5:16: rule.upstream_tls: server_name: expected a name or an address",
            ),
        ] {
            let refused = found(rest).unwrap_err();
            assert!(refused.starts_with(says), "{refused}");
        }
    }
}
