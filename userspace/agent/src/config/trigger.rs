//! `trigger`: when a rule that observes has its later connections enriched.

use std::time::Duration;

use policy::{Action, RuleName};
use toml::Spanned;

use super::bounds::{LEAST_P99_MS, MOST_P99_MS};
use super::{
    error::Flaw,
    raw::{RawRule, RawTrigger},
};
use crate::{marks, triggers::Trigger};

/// Reads the triggers of the rules that have one.
pub(super) fn of(rules: &[Spanned<RawRule>]) -> Result<Vec<(RuleName, Trigger)>, Flaw> {
    let rules = rules.iter().map(Spanned::get_ref);
    let each = rules.filter_map(|rule| Some((rule, rule.trigger.as_ref()?)));
    each.map(|(rule, raw)| Ok((RuleName::new(rule.name.get_ref()), trigger(rule, raw)?)))
        .collect()
}

fn trigger(rule: &RawRule, raw: &Spanned<RawTrigger>) -> Result<Trigger, Flaw> {
    let flaw = |message: String| Flaw::new(raw.span(), format!("rule.trigger: {message}"));
    let action = rule.action.get_ref();
    if action != Action::Observe.as_str() {
        return Err(flaw(format!(
            "expected `action = \"observe\"`, because it goes by what is observed; found action \
             {action:?}"
        )));
    }
    if rule.asks_for_session() {
        return Err(flaw(
            "expected a rule without conditions on the session, because its connections are left alone until the session \
             is known"
                .to_owned(),
        ));
    }
    let RawTrigger { p99_ms, lasts } = raw.get_ref();
    if !(LEAST_P99_MS..=MOST_P99_MS).contains(p99_ms) {
        return Err(flaw(format!(
            "p99_ms: expected {LEAST_P99_MS} to {MOST_P99_MS}; found {p99_ms}"
        )));
    }
    Ok(Trigger {
        p99: Duration::from_secs_f64(p99_ms / 1e3),
        lasts: marks::lasting(lasts).map_err(|message| flaw(format!("for: {message}")))?,
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::Config;

    fn found(action: &str, trigger: &str) -> Result<Config, String> {
        let text = format!(
            "[[rule]]\nname = \"r\"\naction = \"{action}\"\ntrigger = {trigger}\n\
             pipeline = [{{ transform = \"tag\" }}]\n"
        );
        Config::parse(Path::new("u.toml"), &text).map_err(|e| e.to_string())
    }

    #[test]
    fn a_rule_that_observes_may_have_one_and_a_pipeline_with_it() {
        let config = found("observe", "{ p99_ms = 50, for = \"30s\" }").unwrap();
        let expected = Trigger {
            p99: Duration::from_millis(50),
            lasts: Duration::from_secs(30),
        };
        assert_eq!(config.triggers, [(RuleName::new("r"), expected)]);
        assert!(config.pipelines.edit());
    }

    #[test]
    fn a_mistake_is_named_with_its_place() {
        for (action, trigger, expected) in [
            (
                "enrich",
                "{ p99_ms = 50, for = \"30s\" }",
                "u.toml:4:11: rule.trigger: expected `action = \"observe\"`",
            ),
            (
                "observe",
                "{ p99_ms = 0, for = \"30s\" }",
                "u.toml:4:11: rule.trigger: p99_ms: expected 0.01 to 60000; found 0",
            ),
            (
                "observe",
                "{ p99_ms = 5, for = \"soon\" }",
                "u.toml:4:11: rule.trigger: for: expected 1s to 7d",
            ),
            ("observe", "{ p99_ms = 5 }", "missing field `for`"),
            (
                "observe",
                "{ p99_ms = 5, for = \"1m\" }\nuser = [\"a\"]",
                "u.toml:4:11: rule.trigger: expected a rule without conditions on the session",
            ),
        ] {
            let error = found(action, trigger).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }
}
