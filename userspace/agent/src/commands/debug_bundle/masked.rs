//! The policy without its secrets: no comments, no paths of keys and passwords, no log-ins in URLs.
//!
//! Of a policy that `run` would refuse no text is shown at all: a misspelt key may have anything behind it.

use std::path::Path;

use toml::{Table, Value};

use crate::config::{Config, Sources, without_login};

/// The text in place of a value that is left out.
const MASK: &str = "(masked)";

/// Keys whose values are masked.
const SECRET: [&str; 3] = ["key", "keys", "username"];

/// Parts of keys whose values are masked, whatever the rest is.
const SECRET_PARTS: [&str; 4] = ["password", "secret", "token", "credential"];

/// The policy of a file and its further files, one after the other.
pub(super) fn policy(file: &Path) -> anyhow::Result<String> {
    let sources = Sources::read(file)?;
    let is_right = Config::of(&sources);
    let mut shown = match &is_right {
        Ok(_) => String::new(),
        Err(_) => "# The policy is wrong: `underpass check` says where. Texts are masked, because any may be a secret.\n".into(),
    };
    for (path, text) in sources.texts() {
        shown.push_str(&format!("# {}\n", path.display()));
        match text.parse::<Table>() {
            Ok(table) => shown.push_str(&toml::to_string(&masked(table, is_right.is_err()))?),
            Err(_) => shown.push_str("# It is no TOML, and left out.\n"),
        }
        shown.push('\n');
    }
    Ok(shown)
}

/// The table without secrets; `all`: and without any text.
fn masked(table: Table, all: bool) -> Table {
    let entries = table.into_iter().map(|(key, value)| {
        let is_secret =
            SECRET.contains(&key.as_str()) || SECRET_PARTS.iter().any(|part| key.contains(part));
        let value = match is_secret {
            true => Value::String(MASK.into()),
            false => of(value, all),
        };
        (key, value)
    });
    entries.collect()
}

fn of(value: Value, all: bool) -> Value {
    match value {
        Value::String(_) if all => Value::String(MASK.into()),
        Value::String(text) => Value::String(without_login(&text, MASK)),
        Value::Array(items) => Value::Array(items.into_iter().map(|item| of(item, all)).collect()),
        Value::Table(table) => Value::Table(masked(table, all)),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn shown(text: &str) -> String {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("policy.toml");
        fs::write(&file, text).unwrap();
        policy(&file).unwrap()
    }

    #[test]
    fn no_secret_is_shown_and_all_else_is() {
        let text = "# hunter2, do not forget\n[agent]\nmax_flows = 7\n\
                    [[rule]]\nname = \"r\"\nto = [\":9042\"]\naction = \"enrich\"\nfail = \"closed\"\n\
                    tls = { cert = \"/etc/crt\", key = \"/etc/hunter2.key\" }\npipeline = [\n\
                    { transform = \"protect\", keys = \"/etc/hunter2\", columns = { \"a.b\" = [\"c\"] } },\n]\n\
                    [[rule]]\nname = \"cached\"\nto = [\":9043\"]\naction = \"enrich\"\npipeline = [\n\
                    { transform = \"cache\", redis = \"127.0.0.1:1\", tables = [\"a.b\"], ttl = \"1s\", \
                      password_file = \"/hunter2\", username = \"hunter2\" },\n]\n";
        let shown = shown(text);
        assert!(!shown.contains("hunter2"), "{shown}");
        for kept in [
            "max_flows = 7",
            "\"r\"",
            "\":9042\"",
            "\"/etc/crt\"",
            "\"127.0.0.1:1\"",
            MASK,
        ] {
            assert!(shown.contains(kept), "{kept}: {shown}");
        }
    }

    #[test]
    fn of_a_policy_that_is_wrong_no_text_is_shown() {
        let shown_of = |text| {
            let shown = shown(text);
            assert!(!shown.contains("hunter2"), "{shown}");
            shown
        };
        assert!(
            shown_of("[agent]\nmax_flow = 1\npasword = \"hunter2\"\n").contains("max_flow = 1")
        );
        assert!(shown_of("[[rule]]\nname = \"hunter2\"\n").contains("wrong"));
        assert!(shown_of("hunter2").contains("no TOML"));
    }

    /// A key that a later version adds, and that sounds like a secret, has to be thought about here.
    #[test]
    fn keys_that_sound_like_secrets_are_masked() {
        fn walk(schema: &serde_json::Value, into: &mut Vec<String>) {
            if let Some(keys) = schema.get("properties").and_then(|p| p.as_object()) {
                into.extend(keys.keys().cloned());
            }
            match schema {
                serde_json::Value::Object(all) => all.values().for_each(|v| walk(v, into)),
                serde_json::Value::Array(all) => all.iter().for_each(|v| walk(v, into)),
                _ => {}
            }
        }
        let mut keys = Vec::new();
        walk(&crate::config::schema(), &mut keys);
        let sounds = |key: &&String| {
            ["pass", "key", "auth", "header", "login"]
                .iter()
                .any(|part| key.contains(part))
        };
        let known = ["keyspace", "keyspaces", "partition_key", "partition_keys"];
        let unmasked = keys.iter().filter(sounds).filter(|key| {
            let is_masked = SECRET.contains(&key.as_str())
                || SECRET_PARTS.iter().any(|part| key.contains(part));
            !is_masked && !known.contains(&key.as_str())
        });
        assert_eq!(unmasked.collect::<Vec<_>>(), Vec::<&String>::new());
        assert!(keys.len() > 100);
    }
}
