//! `remember`: for how long a decision stands.

use std::time::Duration;

use dataplane::policy::{Action, Rule};
use toml::Spanned;

use super::{error::Flaw, parse::expected};

const SHORTEST: Duration = Duration::from_secs(1);
/// Who was let through is not asked for as long as this: longer, and nobody would think of it.
const LONGEST: Duration = Duration::from_secs(24 * 3600);

/// `10m`. `asks`: this rule or one before it has a condition on the session.
pub(super) fn lasts(text: &Spanned<String>, action: Action, asks: bool) -> Result<Duration, Flaw> {
    const KEY: &str = "rule.remember";
    if action != Action::Bypass {
        let message = format!(
            "{KEY}: expected `action = \"bypass\"`, because what is remembered does not come to \
             the agent; found action {:?}",
            action.as_str()
        );
        return Err(Flaw::new(text.span(), message));
    }
    if !asks {
        let message = format!(
            "{KEY}: expected a condition on the session, here or in a rule above: without one \
             every connection is decided at connect() anyway"
        );
        return Err(Flaw::new(text.span(), message));
    }
    match parse(text.get_ref()) {
        Some(lasts) if (SHORTEST..=LONGEST).contains(&lasts) => Ok(lasts),
        _ => expected(
            KEY,
            text,
            "seconds, minutes or hours, from `1s` to `24h`: `30s`, `10m`, `2h`",
        ),
    }
}

fn parse(text: &str) -> Option<Duration> {
    let (number, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let seconds = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        _ => return None,
    };
    let is_plain = number.bytes().all(|b| b.is_ascii_digit());
    let number: u64 = is_plain.then(|| number.parse().ok())??;
    Some(Duration::from_secs(number.checked_mul(seconds)?))
}

/// What is legal and probably not meant: one who is let through once is not asked again.
pub(super) fn doubts(rules: &[Rule]) -> impl Iterator<Item = String> {
    let mut denying: Option<&Rule> = None;
    rules.iter().filter_map(move |rule| {
        if rule.is_session() && rule.action == Action::Deny {
            denying = denying.or(Some(rule));
        }
        rule.remember?;
        let denying = &denying?.name;
        Some(format!(
            "rule {}: a process that it remembers is not asked who it is: rule {denying} denies \
             none of its further sessions",
            rule.name
        ))
    })
}
