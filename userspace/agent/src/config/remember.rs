//! `remember`: for how long a decision stands.

use std::time::Duration;

use policy::{Action, Rule};
use steps::duration;
use toml::Spanned;

use super::{error::Flaw, value::expected};

const SHORTEST: Duration = Duration::from_secs(1);
/// Longest time for which a decision may be remembered: if it held longer, nobody would think of it.
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
    match duration(text.get_ref()) {
        Some(lasts) if (SHORTEST..=LONGEST).contains(&lasts) => Ok(lasts),
        _ => expected(
            KEY,
            text,
            "seconds, minutes or hours, from `1s` to `24h`: `30s`, `10m`, `2h`",
        ),
    }
}

/// Warns of rules that are legal and probably not meant: a process that is let through once is not asked again.
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

#[cfg(test)]
mod tests {
    use crate::config::tests::{parse, refusal};

    fn remembering(lasts: &str, rest: &str) -> String {
        format!("[[rule]]\nname = \"a\"\nremember = {lasts:?}\nto = [\":9042\"]\n{rest}\n")
    }

    #[test]
    fn a_decision_is_remembered_for_as_long_as_a_rule_says() {
        let bypass = "user = [\"etl\"]\naction = \"bypass\"";
        for (text, seconds) in [("1s", 1), ("30s", 30), ("10m", 600), ("24h", 86_400)] {
            let config = parse(&remembering(text, bypass)).unwrap();
            let rule = &config.policy.rules[0];
            assert_eq!(rule.remember.unwrap().as_secs(), seconds, "{text}");
            assert!(config.policy.remembers() && config.warnings.is_empty());
        }
        for text in [
            "",
            "m",
            "0s",
            "25h",
            "86401s",
            "10",
            "10d",
            "-1s",
            "+1s",
            "1.5h",
            "1h30m",
            "10 m",
            "1µ",
            "99999999999999999999s",
            "9999999999999999999h",
        ] {
            let refused = refusal(&remembering(text, bypass));
            let begin = "policy.toml:3:12: rule.remember: expected seconds, minutes or hours";
            assert!(refused.starts_with(begin), "{text}: {refused}");
        }
    }

    #[test]
    fn what_is_remembered_is_bypassed_and_is_behind_a_question() {
        for action in ["enrich", "deny"] {
            let rule = format!("user = [\"etl\"]\naction = {action:?}\nfail = \"closed\"");
            let refused = refusal(&remembering("10m", &rule));
            let begin = "policy.toml:3:12: rule.remember: expected `action = \"bypass\"`, because ";
            assert!(refused.starts_with(begin), "{refused}");
        }
        let plain = remembering("10m", "action = \"bypass\"");
        let refused = refusal(&plain);
        let begin = "policy.toml:3:12: rule.remember: expected a condition on the session";
        assert!(refused.starts_with(begin), "{refused}");
        // Behind a session rule it is decided in the agent.
        let asks = "[[rule]]\nname = \"s\"\nto = [\":9042\"]\nuser = [\"etl\"]\n";
        let config = parse(&format!("{asks}action = \"enrich\"\n{plain}")).unwrap();
        assert!(config.policy.rules[1].remember.is_some() && config.warnings.is_empty());
    }

    #[test]
    fn a_denial_that_a_remembered_process_escapes_is_warned_of() {
        let deny = "[[rule]]\nname = \"d\"\nto = [\":9042\"]\nuser = [\"x\"]\naction = \"deny\"\n\
                    fail = \"closed\"\n";
        let plain = remembering("10m", "action = \"bypass\"");
        let warnings = parse(&format!("{deny}{plain}")).unwrap().warnings;
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        assert!(warnings[0].contains("rule d denies none of its further sessions"));
        let session = remembering("10m", "user = [\"etl\"]\naction = \"bypass\"");
        let warnings = parse(&format!("{session}{deny}")).unwrap().warnings;
        assert_eq!(warnings.len(), 0, "{warnings:?}");
    }
}
