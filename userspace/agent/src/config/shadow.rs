//! `mode` of a rule: whether it stands in shadow, where it counts and decides nothing.

use policy::{Action, SessionConditions};

use super::{
    bounds::RULE_MODES,
    error::Flaw,
    raw::{RawConfig, RawRule},
    value::{expected, one_of},
};

/// Checks the key of a rule as it is meant.
pub(super) fn check(rule: &RawRule, session: &SessionConditions) -> Result<(), Flaw> {
    let Some(mode) = &rule.mode else {
        return Ok(());
    };
    let is_shadow = one_of("rule.mode", mode, &RULE_MODES)?;
    let asked = session.named().next();
    if let (true, Some(key)) = (is_shadow, asked) {
        let meant = format!(
            "`enforce` in a rule with `{}`: of a session is asked only where a rule decides by it; `run --dry-run` has all rules count",
            key.key()
        );
        return expected("rule.mode", mode, &meant);
    }
    if is_shadow && !rule.from.is_empty() {
        let meant = "`enforce` in a rule with `from`: in shadow only connections that this host opens are counted";
        return expected("rule.mode", mode, meant);
    }
    Ok(())
}

impl RawRule {
    pub(super) fn is_shadow(&self) -> bool {
        let mode = self.mode.as_ref().map(|mode| mode.get_ref().as_str());
        RULE_MODES
            .iter()
            .any(|(name, is_shadow)| *is_shadow && mode == Some(name))
    }
}

impl RawConfig {
    /// Whether a rule is to stand in shadow.
    pub(super) fn has_shadows(&self) -> bool {
        self.rule.iter().any(|rule| rule.get_ref().is_shadow())
    }

    /// Puts the rules into shadow that are to stand there: their conditions stay, and what is done goes.
    pub(super) fn put_into_shadow(&mut self) {
        let rules = self.rule.iter_mut().map(|rule| rule.get_mut());
        for rule in rules.filter(|rule| rule.is_shadow()) {
            rule.in_shadow = Action::parse(rule.action.get_ref());
            *rule.action.get_mut() = Action::Bypass.as_str().to_owned();
            rule.do_nothing();
        }
    }
}

#[cfg(test)]
mod tests {
    use policy::{Action, Fail};

    use crate::config::tests::{parse, refusal};

    fn rule(mode: &str, rest: &str) -> String {
        format!("[[rule]]\nname = \"r\"\nmode = {mode:?}\nto = [\":9042\"]\n{rest}\n")
    }

    #[test]
    fn a_rule_in_shadow_keeps_its_conditions_and_does_nothing() {
        let rest = "uid = [7]\naction = \"enrich\"\nfail = \"closed\"\n\
                    pipeline = [{ transform = \"guard\", refuse = [\"ddl\"] }]";
        let config = parse(&rule("shadow", rest)).unwrap();
        let shadow = &config.policy.rules[0];
        assert_eq!(
            (shadow.shadow, shadow.action),
            (Some(Action::Enrich), Action::Bypass)
        );
        assert_eq!(
            (shadow.fail, &*shadow.uids, shadow.protects),
            (Fail::Open, &[7][..], false)
        );
        assert!(
            !config.pipelines.edit() && config.escapes.is_empty() && config.warnings.is_empty()
        );
        let enforced = parse(&rule("enforce", rest)).unwrap();
        assert_eq!(enforced.policy.rules[0].shadow, None);
        assert!(enforced.pipelines.edit());
    }

    #[test]
    fn a_rule_in_shadow_is_checked_as_it_is_meant() {
        for (mode, rest, says) in [
            (
                "shade",
                "action = \"deny\"\nfail = \"open\"",
                "rule.mode: expected `enforce` or `shadow`",
            ),
            (
                "shadow",
                "action = \"deny\"",
                "rule.fail: expected it to be written out",
            ),
            (
                "shadow",
                "action = \"bypass\"\npipeline = [{ transform = \"stats\" }]",
                "rule.action: expected `enrich`",
            ),
            (
                "shadow",
                "action = \"enrich\"\nuser = [\"a\"]",
                "rule.mode: expected `enforce` in a rule with `user`",
            ),
            (
                "shadow",
                "action = \"enrich\"\nfrom = [\"10.0.0.0/8\"]",
                "rule.mode: expected `enforce` in a rule with `from`",
            ),
        ] {
            let said = refusal(&rule(mode, rest));
            assert!(said.contains(says), "{said}");
        }
    }
}
