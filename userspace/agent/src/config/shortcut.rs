//! A rule's `shortcut`: whose sockets it lets into a sockmap.

use policy::{Action, Shortcut};
use toml::{Spanned, Value};

use super::error::Flaw;

/// `shortcut` of a rule, for the schema: [`of`] reads it.
#[derive(schemars::JsonSchema)]
#[schemars(untagged)]
#[expect(dead_code, reason = "only the schema is made of it")]
pub(super) enum RawShortcut {
    /// Both sides' sockets, or neither's.
    All(bool),
    /// One side's socket.
    One(RawSide),
}

/// The side whose socket is let in.
#[derive(schemars::JsonSchema)]
#[schemars(rename_all = "lowercase")]
#[expect(dead_code, reason = "only the schema is made of it")]
pub(super) enum RawSide {
    /// The client.
    Client,
    /// The database.
    Database,
}

/// Bytes that skip TCP pass no hook that could read them.
pub(super) fn of(wanted: &Spanned<Value>, action: Action) -> Result<Shortcut, Flaw> {
    let shortcut = match wanted.get_ref() {
        Value::Boolean(true) => Shortcut::Both,
        Value::Boolean(false) => Shortcut::Neither,
        Value::String(side) if side == "client" => Shortcut::Client,
        Value::String(side) if side == "database" => Shortcut::Database,
        _ => {
            let message = format!(
                "rule.shortcut: expected `true`, `false`, `\"client\"` or `\"database\"`; found {}",
                wanted.get_ref()
            );
            return Err(Flaw::new(wanted.span(), message));
        }
    };
    let carries = matches!(action, Action::Bypass | Action::Enrich);
    if shortcut != Shortcut::Neither && !carries {
        let message = format!(
            "rule.shortcut: expected `action = \"bypass\"` or `\"enrich\"`, because bytes that the \
             kernel carries past TCP cannot be observed; found action {:?}",
            action.as_str()
        );
        return Err(Flaw::new(wanted.span(), message));
    }
    Ok(shortcut)
}
