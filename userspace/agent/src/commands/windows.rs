//! The windows of a policy's rules, as `check` shows them.

use policy::{Policy, Timestamp};
use serde_json::{Value, json};

/// A line for each rule that has a window.
pub(super) fn text(file: &Policy, now: Timestamp) -> String {
    let lines = file.windows().map(|(rule, when)| {
        let state = when.state(now);
        format!("  rule {}: {state} ({when})\n", rule.name)
    });
    lines.collect()
}

/// The rules that have a window, as JSON.
pub(super) fn json(file: &Policy, now: Timestamp) -> Value {
    let each = file.windows().map(|(rule, when)| {
        let state = when.state(now);
        json!({
            "rule": rule.name.as_str(),
            "window": when.to_string(),
            "is_open": state.is_open,
            "until": state.until.map(|until| until.to_string()),
        })
    });
    each.collect()
}
