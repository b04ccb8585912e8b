//! The conditions of a mark: a rule's keys, one value each.

use std::collections::HashMap;

use policy::{Action, Rule, Target, did_you_mean};
use toml::Spanned;

use super::{
    parse,
    raw::{RawRule, spanned},
    users::RawId,
};

/// Keys of a rule that a mark can name.
pub const SELECTOR_KEYS: [&str; 9] = [
    "process",
    "uid",
    "gid",
    "to",
    "cgroup",
    "user",
    "keyspace",
    "driver",
    "application",
];

/// A rule of these conditions, each with one of [`SELECTOR_KEYS`]. Where it denies by the session,
/// nobody passes while the agent cannot look.
///
/// # Errors
/// What was expected, and what was found.
pub fn marking_rule(conditions: &[(&str, &str)], action: Action) -> Result<Rule, String> {
    let mut raw = RawRule::new("mark", action.as_str());
    for (key, value) in conditions {
        let text = |list: &mut Vec<Spanned<String>>| list.push(spanned((*value).to_owned()));
        match *key {
            "process" => text(&mut raw.process),
            "to" => {
                Target::parse_all(value).map_err(|what| {
                    format!("to: expected {what}, and no name, which would have to be looked up; found {value:?}")
                })?;
                text(&mut raw.to);
            }
            "cgroup" => text(&mut raw.cgroup),
            "user" => text(&mut raw.user),
            "keyspace" => text(&mut raw.keyspace),
            "driver" => text(&mut raw.driver),
            "application" => text(&mut raw.application),
            "uid" => raw.uid.push(spanned(RawId::of(value))),
            "gid" => raw.gid.push(spanned(RawId::of(value))),
            _ => {
                return Err(format!(
                    "expected one of {}; found {key:?}{}",
                    SELECTOR_KEYS.join(", "),
                    did_you_mean(key, SELECTOR_KEYS)
                ));
            }
        }
    }
    let rule = parse::rule(raw, &mut HashMap::new(), &mut false);
    let mut rule = rule.map_err(|flaw| flaw.message.replace("rule.", ""))?;
    if let Some(key) = rule.session.named().next()
        && action == Action::Observe
    {
        return Err(format!(
            "action: expected `bypass`, `enrich` or `deny` with `{}`: the agent takes connections in to learn which ones a mark \
             means, and whether one is observed is decided at connect(); a rule of the file can observe by its session",
            key.key()
        ));
    }
    rule.is_mark = true;
    if rule.is_session() && action == Action::Deny {
        rule.fail = policy::Fail::Closed;
    }
    Ok(rule)
}
