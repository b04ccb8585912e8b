//! `holdout`: how many of a rule's connections are left alone, so that the others can be compared with them.

use policy::{Action, Fail, Policy, Rule, Sample};
use toml::Spanned;

use super::{
    bounds::MOST_HELD_OUT, error::Flaw, pipeline, protective, raw::RawRule, value::expected,
};

/// Steps for which nothing is held out unless the rule says so: a copy that misses some connections' writes is no copy.
const COMPLETE: [&str; 1] = ["mirror"];

/// The share of a rule's connections that is held out.
#[derive(Clone, Copy, Debug)]
pub(super) enum Holdout {
    /// The rule says it. None: nothing.
    Said(Option<Sample>),
    /// The rule says nothing, and may have the agent's if its flows are read from copies.
    Usual,
    /// The rule says nothing, and needs all of its connections.
    Nothing,
}

/// Reads the shares of the rules, in their order.
pub(super) fn plan(rules: &[Spanned<RawRule>]) -> Result<Vec<Holdout>, Flaw> {
    rules.iter().map(|rule| of(rule.get_ref())).collect()
}

fn of(rule: &RawRule) -> Result<Holdout, Flaw> {
    let why_not = obstacle(rule);
    let Some(text) = &rule.holdout else {
        let mut steps = rule.pipeline.iter().filter_map(pipeline::name_of);
        let is_complete = steps.any(|step| COMPLETE.contains(&step));
        return Ok(match why_not.is_some() || is_complete {
            true => Holdout::Nothing,
            false => Holdout::Usual,
        });
    };
    match (share("rule.holdout", text)?, why_not) {
        (Some(_), Some(why)) => {
            let found = text.get_ref();
            let message =
                format!("rule.holdout: expected none, or \"0%\", because {why}; found {found:?}");
            Err(Flaw::new(text.span(), message))
        }
        (share, _) => Ok(Holdout::Said(share)),
    }
}

fn is_false(wanted: &Spanned<toml::Value>) -> bool {
    *wanted.get_ref() == toml::Value::Boolean(false)
}

/// Why none of a rule's connections can be held out.
fn obstacle(rule: &RawRule) -> Option<&'static str> {
    let is_closed = rule
        .fail
        .as_ref()
        .is_some_and(|fail| fail.get_ref() == Fail::Closed.as_str());
    if rule.action.get_ref() != Action::Enrich.as_str() {
        Some("only `action = \"enrich\"` does anything that could be compared")
    } else if protective::protects(rule) || is_closed {
        Some("what is held out would pass a rule that protects")
    } else if rule.asks_for_session() {
        Some(
            "whether a rule with a condition on the session holds is not known at connect(), where is drawn",
        )
    } else if rule
        .shortcut
        .as_ref()
        .is_some_and(|wanted| !is_false(wanted))
    {
        Some("with `shortcut` bytes skip TCP, where both groups are measured")
    } else if rule.tls.is_some() || rule.upstream_tls.is_some() {
        Some(
            "what is held out goes to the database as the client sends it, whatever `tls` and `upstream_tls` say",
        )
    } else if !rule.from.is_empty() {
        Some("only connections that this host opens are drawn")
    } else {
        None
    }
}

/// Reads a share in percent. None: nothing.
pub(super) fn share(key: &str, text: &Spanned<String>) -> Result<Option<Sample>, Flaw> {
    let percent = text.get_ref().strip_suffix('%').map(str::parse::<f64>);
    match percent {
        Some(Ok(0.0)) => Ok(None),
        Some(Ok(percent)) if percent > 0.0 && percent <= MOST_HELD_OUT => {
            match Sample::new(percent / 100.0) {
                None => refused(key, text),
                share => Ok(share),
            }
        }
        _ => refused(key, text),
    }
}

fn refused<T>(key: &str, text: &Spanned<String>) -> Result<T, Flaw> {
    expected(
        key,
        text,
        &format!("a share of connections from \"0%\" to \"{MOST_HELD_OUT}%\""),
    )
}

/// Gives the policy's rules their shares. `usual`: the agent's, for rules that are only read from copies.
pub(super) fn settle(holdouts: &[Holdout], usual: Option<Sample>, policy: &mut Policy) {
    let settled = |rule: &Rule, holdout: &Holdout| match holdout {
        Holdout::Said(share) => *share,
        Holdout::Usual => usual.filter(|_| rule.is_tapped()),
        Holdout::Nothing => None,
    };
    for (rule, holdout) in policy.rules.iter_mut().zip(holdouts) {
        rule.holdout = settled(rule, holdout);
    }
}

/// Says of a rule how many of its connections are left alone, if any are.
pub fn told(rule: &Rule) -> Option<String> {
    let percent = rule.holdout?.fraction() * 100.0;
    let share = format!("{percent:.3}");
    let share = share.trim_end_matches('0').trim_end_matches('.');
    Some(format!(
        "{}: {share} % of new connections are left alone for comparison (`underpass overhead`)",
        rule.name
    ))
}

#[cfg(test)]
mod tests {
    use crate::config::tests::{parse, refusal};

    fn held_out(agent: &str, rest: &str) -> Option<f64> {
        let text = format!("[agent]\n{agent}\n[[rule]]\nname = \"r\"\nto = [\":9042\"]\n{rest}\n");
        let config = parse(&text).unwrap();
        let share = config.policy.rules[0].holdout?;
        Some((share.fraction() * 1e4).round() / 1e4)
    }

    const STATS: &str = "action = \"enrich\"\npipeline = [{ transform = \"stats\" }]";

    #[test]
    fn a_hundredth_is_held_out_where_a_rule_only_reads_and_nothing_elsewhere() {
        assert_eq!(held_out("", STATS), Some(0.01));
        assert_eq!(held_out("holdout = \"2.5%\"", STATS), Some(0.025));
        assert_eq!(held_out("holdout = \"0%\"", STATS), None);
        for whole in [
            "action = \"bypass\"".to_owned(),
            "action = \"observe\"".to_owned(),
            "action = \"enrich\"".to_owned(),
            format!("{STATS}\npath = \"inline\""),
            format!("{STATS}\nfail = \"closed\""),
            format!("{STATS}\nuser = [\"a\"]"),
            format!("{STATS}\nfrom = [\"10.0.0.0/8\"]"),
            "action = \"enrich\"\nfail = \"open\"\npipeline = [{ transform = \"audit\", file = \"/var/log/a\" }]".to_owned(),
            "action = \"enrich\"\npipeline = [{ transform = \"mirror\", to = \"10.0.0.1:9042\", what = [\"reads\"] }]".to_owned(),
        ] {
            assert_eq!(held_out("", &whole), None, "{whole}");
        }
    }

    #[test]
    fn a_rule_says_its_own_share_where_something_can_be_compared() {
        let own = |rest: &str| held_out("", &format!("{STATS}\n{rest}"));
        assert_eq!(own("holdout = \"0%\""), None);
        assert_eq!(own("holdout = \"20%\""), Some(0.2));
        assert_eq!(own("path = \"inline\"\nholdout = \"20%\""), Some(0.2));
        assert_eq!(own("shortcut = false"), Some(0.01));
        for (rest, why) in [
            ("fail = \"closed\"", "protects"),
            ("user = [\"a\"]", "session"),
            ("shortcut = true", "skip TCP"),
            ("from = [\"10.0.0.0/8\"]", "this host opens"),
        ] {
            let text = format!(
                "[[rule]]\nname = \"r\"\nto = [\":9042\"]\n{STATS}\nholdout = \"1%\"\n{rest}\n"
            );
            let said = refusal(&text);
            assert!(
                said.starts_with("policy.toml:6:11: rule.holdout: expected none")
                    && said.contains(why),
                "{said}"
            );
        }
        for wrong in ["1", "-1%", "51%", "nan%", "inf%", "0.000000001%", "one%"] {
            let text = format!("[[rule]]\nname = \"r\"\n{STATS}\nholdout = {wrong:?}\n");
            let said = refusal(&text);
            assert!(
                said.contains("a share of connections from \"0%\" to \"50%\""),
                "{said}"
            );
        }
    }
}
