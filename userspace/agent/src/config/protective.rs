//! Rules that protect: what passes them by is a hole, so each says what becomes of a connection that the agent cannot
//! serve.

use policy::{Action, Doubt, Fail, Match, Policy, Rule};
use toml::Spanned;

use super::{error::Flaw, pipeline, raw::RawRule};

/// Steps for which a rule protects.
const PROTECTS: [&str; 4] = ["guard", "audit", "protect", "throttle"];

/// Ways by which a connection passes a rule with `fail = "open"`.
const WAYS: &str = "while the agent is away, beyond `max_flows`, when its session cannot be known, from a network namespace that is \
                    not served yet (what a client chooses itself is refused in any case: a socket that is bound to a device, a \
                    link-local destination, more flows than its share)";

/// Says why a rule is protective: by its action, or by the first such step.
fn why(rule: &RawRule) -> Option<String> {
    if rule.action.get_ref() == Action::Deny.as_str() {
        return Some("action = \"deny\"".to_owned());
    }
    let mut names = rule.pipeline.iter().filter_map(pipeline::name_of);
    let step = names.find(|name| PROTECTS.contains(name))?;
    Some(format!("`{step}`"))
}

/// Whether a rule protects and refuses what the agent cannot serve: then nor does a request pass that cannot be read.
pub(super) fn refuses_unread(rule: &RawRule) -> bool {
    let fail = rule.fail.as_ref().map(|fail| fail.get_ref().as_str());
    fail == Some(Fail::Closed.as_str()) && protects(rule)
}

/// A rule that protects and lets pass what the agent cannot serve.
pub(super) struct Escape {
    rule: String,
    pub(super) text: String,
}

/// Whether a rule protects.
pub(super) fn protects(rule: &RawRule) -> bool {
    why(rule).is_some()
}

/// Checks that a rule that protects says `fail`. Warns where it says `open`.
pub(super) fn check(rules: &[Spanned<RawRule>]) -> Result<Vec<Escape>, Flaw> {
    let mut escapes = Vec::new();
    for rule in rules.iter().map(Spanned::get_ref) {
        let (Some(why), name) = (why(rule), rule.name.get_ref()) else {
            continue;
        };
        match rule.fail.as_ref() {
            None => {
                let message = format!(
                    "rule.fail: expected it to be written out in rule {name:?}, which protects by {why}: \"closed\" refuses \
                     connections that the agent cannot serve, \"open\" lets them pass the rule"
                );
                return Err(Flaw::new(rule.name.span(), message));
            }
            Some(fail) if fail.get_ref() == Fail::Open.as_str() => escapes.push(Escape {
                rule: name.clone(),
                text: format!(
                    "rule {name} protects by {why}, and with fail = \"open\" connections pass it: {WAYS}"
                ),
            }),
            Some(_) => {}
        }
    }
    Ok(escapes)
}

/// Says which weaker outcome a connection has that passes such a rule because its session cannot be known.
pub(super) fn undecidable(escapes: &[Escape], policy: &Policy) -> Vec<String> {
    let asked = policy.rules.iter().enumerate().filter(|(_, rule)| {
        let is_open = |escape: &Escape| escape.rule == rule.name.as_str();
        rule.is_session() && escapes.iter().any(is_open)
    });
    let met = asked.map(|(index, rule)| (rule, policy.met_unknown(index)));
    let is_weaker = |(rule, met): &(&Rule, Match)| {
        let is_open = |escape: &Escape| escape.rule == met.rule.as_str();
        let may_protect = met.action == Action::Enrich && escapes.iter().any(is_open);
        met.action.strictness() <= rule.action.strictness()
            && met.action != Action::Deny
            && !may_protect
    };
    met.filter(is_weaker)
        .map(|(rule, met)| {
            let (name, instead, action) = (&rule.name, &met.rule, met.action.as_str());
            format!(
                "rule {name}: a connection whose session cannot be known is decided by rule {instead} instead ({action}), which is \
                 weaker; fail = \"closed\" refuses it"
            )
        })
        .collect()
}

/// Describes what in a policy is probably not meant.
pub(super) fn doubts(policy: &Policy) -> impl Iterator<Item = String> {
    let named = policy
        .rules
        .iter()
        .filter(|rule| rule.protects && !rule.to.named().is_empty());
    let named = named.map(|rule| {
        format!(
            "rule {} protects databases by name: whatever DNS does not tell of them, or not yet, passes by it; addresses in \
             `to` are safe",
            rule.name
        )
    });
    let doubts = policy.doubts().into_iter().map(|doubt| match doubt {
        Doubt::Hidden { rule, by } => {
            format!("rule {rule} is never met: rule {by} above holds for all of its connections")
        }
        Doubt::Never { rule, keys: [a, b] } => {
            format!("rule {rule} never holds: its `{a}` and its `{b}` exclude each other")
        }
        Doubt::LetsPast { rule, denies } => format!(
            "rule {rule} stands before rule {denies}, which denies, and is asked first: its fail = \"open\" lets pass what \
             rule {denies} would refuse; fail = \"closed\" is safe"
        ),
    });
    named.collect::<Vec<_>>().into_iter().chain(doubts)
}

/// Cgroups that rules name and this host does not have.
pub fn absent_cgroups(rules: &[Rule], exists: impl Fn(&std::path::Path) -> bool) -> Vec<String> {
    let named = rules.iter().flat_map(|rule| {
        let cgroups = rule.cgroups.iter();
        cgroups.map(move |path| (&rule.name, path))
    });
    named
        .filter(|(_, path)| !exists(path))
        .map(|(rule, path)| {
            let path = path.display();
            format!("rule {rule} holds for nobody in {path}: there is no such cgroup on this host")
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use crate::config::tests::{parse, refusal};

    fn rule(name: &str, rest: &str) -> String {
        format!("[[rule]]\nname = {name:?}\n{rest}\n")
    }

    #[test]
    fn a_rule_that_protects_says_what_becomes_of_what_it_cannot_serve() {
        let pipelines = [
            "{ transform = \"guard\", refuse = [\"ddl\"] }",
            "{ transform = \"stats\" }, { transform = \"audit\", file = \"/var/log/audit\" }",
            "{ transform = \"throttle\", rate = 1 }",
        ];
        let enrich =
            |steps: &str| format!("to = [\":9042\"]\naction = \"enrich\"\npipeline = [{steps}]");
        let deny = "to = [\":9042\"]\naction = \"deny\"".to_owned();
        let protective: Vec<String> = pipelines.iter().map(|p| enrich(p)).chain([deny]).collect();
        for rest in &protective {
            let said = refusal(&rule("r", rest));
            assert!(
                said.starts_with("policy.toml:2:8: rule.fail: expected"),
                "{said}"
            );
            let closed = parse(&rule("r", &format!("{rest}\nfail = \"closed\""))).unwrap();
            assert_eq!(closed.escapes, [""; 0]);
            let open = parse(&rule("r", &format!("{rest}\nfail = \"open\""))).unwrap();
            assert_eq!(open.escapes.len(), 1);
            for way in ["away", "max_flows", "device", "session", "namespace"] {
                assert!(open.escapes[0].contains(way), "{:?}", open.escapes);
            }
        }
        let sorts = enrich("{ transform = \"stats\" }");
        assert_eq!(parse(&rule("r", &sorts)).unwrap().escapes, [""; 0]);
    }

    #[test]
    fn a_weaker_outcome_where_the_session_cannot_be_known_is_named() {
        let guard = |fail: &str| {
            let rest = "to = [\":9042\"]\nuser = [\"a\"]\naction = \"enrich\"\n\
                        pipeline = [{ transform = \"guard\", refuse = [\"ddl\"] }]\nfail = ";
            rule("guarded", &format!("{rest}{fail:?}"))
        };
        let rest = |action: &str| rule("rest", &format!("to = [\":9042\"]\naction = {action:?}"));
        let weaker = |text: &str| {
            let said = escapes(text);
            said.into_iter()
                .filter(|said| said.contains("weaker"))
                .collect::<Vec<_>>()
        };
        for (behind, instead) in [
            (String::new(), "rule default instead (bypass)"),
            (rest("bypass"), "rule rest instead (bypass)"),
            (rest("enrich"), "rule rest instead (enrich)"),
        ] {
            let said = weaker(&(guard("open") + &behind));
            assert!(said.len() == 1 && said[0].contains(instead), "{said:?}");
            assert_eq!(weaker(&(guard("closed") + &behind)), [""; 0]);
        }
        let denied = rest("deny") + "fail = \"closed\"\n";
        assert_eq!(weaker(&(guard("open") + &denied)), [""; 0]);
    }

    fn escapes(text: &str) -> Vec<String> {
        parse(text).unwrap().escapes
    }

    #[test]
    fn a_rule_that_another_hides_is_named() {
        let wide = rule("wide", "to = [\"10.0.0.0/8\"]\naction = \"bypass\"");
        for narrow in [
            "to = [\"10.1.0.0/16:9042\"]\naction = \"enrich\"",
            "to = [\"10.1.2.3:9042\", \"10.9.0.0/16\"]\nuid = [1]\naction = \"enrich\"",
            "to = [\"10.1.2.3:9042\"]\nuser = [\"a\"]\naction = \"enrich\"",
            "from = [\"192.0.2.0/24\"]\nto = [\"10.1.2.3:9042\"]\naction = \"enrich\"",
        ] {
            let said = escapes(&(wide.clone() + &rule("narrow", narrow)));
            assert_eq!(said.len(), 1, "{narrow}: {said:?}");
            assert!(
                said[0].contains("rule narrow is never met: rule wide"),
                "{said:?}"
            );
        }
        for other in [
            "to = [\"11.1.0.0/16\"]\naction = \"enrich\"",
            "to = [\"10.0.0.0/7\"]\naction = \"enrich\"",
            "to = [\":9042\"]\naction = \"enrich\"",
            "action = \"enrich\"",
        ] {
            assert_eq!(
                escapes(&(wide.clone() + &rule("other", other))),
                [""; 0],
                "{other}"
            );
        }
        let some = |key: &str, values: &str| {
            rule("some", &format!("{key} = {values}\naction = \"bypass\""))
        };
        for (key, wide, narrow, beside) in [
            ("uid", "[1, 2]", "[2]", "[2, 3]"),
            (
                "process",
                "[\"spark*\"]",
                "[\"spark-1\", \"spark\"]",
                "[\"spar*\"]",
            ),
            ("cgroup", "[\"/a\"]", "[\"/a/b\"]", "[\"/ab\"]"),
        ] {
            let hidden = |values: &str| {
                let later = rule("later", &format!("{key} = {values}\naction = \"enrich\""));
                escapes(&(some(key, wide) + &later)).len()
            };
            assert_eq!((hidden(narrow), hidden(beside)), (1, 0), "{key}");
        }
        // What it holds for depends on the session, or on chance.
        let asks = rule(
            "asks",
            "to = [\":9042\"]\nuser = [\"a\"]\naction = \"bypass\"",
        );
        let sampled = rule(
            "some",
            "to = [\":9042\"]\nsample = 0.5\naction = \"enrich\"",
        );
        let later = rule("later", "to = [\":9042\"]\naction = \"enrich\"");
        for first in [asks, sampled] {
            assert_eq!(escapes(&(first + &later)), [""; 0]);
        }
    }

    #[test]
    fn a_rule_that_is_not_always_there_hides_only_what_is_not_there_either() {
        let rule = |name: &str, days: &str| {
            let when = format!("when = {{ days = {days:?}, tz = \"UTC\" }}\n");
            let when = if days.is_empty() { "" } else { &when };
            rule(
                name,
                &format!("to = [\":9042\"]\naction = \"bypass\"\n{when}"),
            )
        };
        for (first, second, hidden) in [
            ("", "mon", 1),
            ("mon", "mon", 1),
            ("mon", "tue", 0),
            ("mon", "", 0),
        ] {
            let said = escapes(&(rule("first", first) + &rule("second", second)));
            assert_eq!(said.len(), hidden, "{first} {second}: {said:?}");
        }
    }

    #[test]
    fn a_rule_that_never_holds_is_named() {
        for (keys, a, b) in [
            ("from = [\"10.0.0.0/8\"]\nuid = [1]", "`from`", "`uid`"),
            (
                "from = [\"10.0.0.0/8\"]\ncgroup = [\"/a\"]",
                "`from`",
                "`cgroup`",
            ),
            (
                "protocol = [\"v5\"]\ncompression = [\"snappy\"]",
                "`protocol`",
                "`compression`",
            ),
        ] {
            let text = rule(
                "r",
                &format!("to = [\":9042\"]\n{keys}\naction = \"bypass\""),
            );
            let Ok(config) = parse(&text) else {
                // Some are refused outright.
                continue;
            };
            let said = config.escapes.join(" ");
            assert!(
                said.contains(a) && said.contains(b) && said.contains("never holds"),
                "{said}"
            );
        }
    }

    #[test]
    fn an_allow_list_that_is_open_lets_past_what_is_denied_behind_it() {
        let allow = |fail: &str| {
            let rest = "to = [\":9042\"]\nuser = [\"etl\"]\naction = \"enrich\"\nfail = ";
            rule("allow", &format!("{rest}{fail:?}"))
        };
        let deny = rule(
            "others",
            "to = [\":9042\"]\naction = \"deny\"\nfail = \"closed\"",
        );
        let said = escapes(&(allow("open") + &deny));
        assert_eq!(said.len(), 1, "{said:?}");
        assert!(
            said[0].contains("rule allow stands before rule others"),
            "{said:?}"
        );
        assert_eq!(escapes(&(allow("closed") + &deny)), [""; 0]);
    }

    #[test]
    fn a_cgroup_that_is_not_there_is_named() {
        let config = parse(&rule("r", "cgroup = [\"/a\", \"/b\"]\naction = \"bypass\"")).unwrap();
        let said = super::absent_cgroups(&config.policy.rules, |path| path.ends_with("a"));
        assert_eq!(said.len(), 1);
        assert!(
            said[0].contains("rule r") && said[0].contains("/b"),
            "{said:?}"
        );
    }
}
