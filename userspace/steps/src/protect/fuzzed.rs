//! Any bytes as a document of keys.

use cql_edit::protect::KeySet;
use serde_json::Value;

use super::document::{of_json, of_toml};

/// The shortest text that is looked for in errors: no word of a message is as long.
const LEAST_BYTES: usize = 16;

/// No error shows a key.
pub fn keys(data: &[u8]) {
    let json = serde_json::from_slice(data).unwrap_or_default();
    look(of_json(data), &json);
    let text = std::str::from_utf8(data).unwrap_or_default();
    let toml = toml::from_str(text).unwrap_or_default();
    look(of_toml(data), &toml);
}

fn look(read: Result<KeySet, String>, document: &Value) {
    let said = match read {
        Ok(keys) => format!("{keys:?}"),
        Err(why) => why,
    };
    let (Some(keys), active) = (document["keys"].as_object(), &document["active"]) else {
        return;
    };
    // Ids are shown, whatever somebody takes for one.
    let ids = keys.keys().map(String::as_str).chain(active.as_str());
    let ids: String = ids.collect();
    for key in keys.values().filter_map(Value::as_str) {
        let is_plain = key.bytes().all(|byte| byte.is_ascii_alphanumeric());
        if is_plain && key.len() >= LEAST_BYTES && !ids.contains(key) {
            assert!(!said.contains(key), "{said}");
        }
    }
}
