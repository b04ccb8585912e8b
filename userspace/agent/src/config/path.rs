//! The meaning of `path`: whether the bytes of a rule's flows come to the agent, or copies of them.

use std::{collections::BTreeMap, ops::Range, sync::Arc};

use cql_edit::Copies;
use policy::{Action, Policy, Rule, RuleName, Shortcut, TapDepth};
use steps::{WhenFull, lookup, pipelines::Steps, reporter};
use toml::Spanned;

use super::{error::Flaw, raw::RawRule, value::one_of};

/// A value of `path`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wanted {
    /// The tap where every step only reads.
    Auto,
    Tap,
    Inline,
}

/// The path of a rule's flows, as `check` tells it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RulePath {
    /// Whether the kernel hands copies over; otherwise flows come to the agent.
    pub is_tap: bool,
    /// The path's name, and the reason for it.
    pub why: String,
}

/// The path that a rule wants. Whether it can have it depends on other rules, too.
pub(super) struct Plan {
    wanted: Wanted,
    /// The place of the key, if it is there.
    at: Option<Range<usize>>,
    /// The place of the action, if that is to observe.
    observes: Option<Range<usize>>,
    /// How much of each frame the rule's steps need, or why they need the bytes.
    depth: Result<TapDepth, String>,
}

/// The paths that rules want: of those that read, and of those that ask for the session.
pub(super) fn plan(
    rules: &[Spanned<RawRule>],
    pipelines: &[(RuleName, Steps)],
) -> Result<BTreeMap<RuleName, Plan>, Flaw> {
    let mut plans = BTreeMap::new();
    for rule in rules.iter().map(Spanned::get_ref) {
        let name = RuleName::new(rule.name.get_ref());
        let steps = pipelines.iter().find(|(of, _)| *of == name);
        if let Some(plan) = plan_of(rule, steps.map(|(_, steps)| steps))? {
            plans.insert(name, plan);
        }
    }
    Ok(plans)
}

fn plan_of(rule: &RawRule, steps: Option<&Steps>) -> Result<Option<Plan>, Flaw> {
    let reads = rule.action.get_ref() == Action::Enrich.as_str();
    let (wanted, at) = match &rule.path {
        Some(path) => (wanted(path)?, Some(path.span())),
        // Without steps flows are there to be shown and marked, which only those in the agent can be.
        None if reads && steps.is_none() => (Wanted::Inline, None),
        None => (Wanted::Auto, None),
    };
    if !reads && !rule.asks_for_session() {
        let flaw = |at| {
            let action = rule.action.get_ref();
            let message = format!(
                "rule.path: expected `action = \"enrich\"` or a condition on the session, because only such flows \
                 are read; found action {action:?}"
            );
            Flaw::new(at, message)
        };
        return at.map_or(Ok(None), |at| Err(flaw(at)));
    }
    let depth = match (reads, wanted) {
        (_, Wanted::Inline) => Err("that is what its `path` says".to_owned()),
        (true, _) => obstacle(rule, steps).map_or_else(|| Ok(depth(steps)), Err),
        // Nothing is read any more when it is known that the rule holds.
        (false, _) => Ok(TapDepth::Frames),
    };
    let observes = rule.action.get_ref() == Action::Observe.as_str();
    let observes = observes.then(|| rule.action.span());
    Ok(Some(Plan {
        wanted,
        at,
        observes,
        depth,
    }))
}

fn wanted(path: &Spanned<String>) -> Result<Wanted, Flaw> {
    one_of(
        "rule.path",
        path,
        &[
            ("auto", Wanted::Auto),
            ("tap", Wanted::Tap),
            ("inline", Wanted::Inline),
        ],
    )
}

fn depth(steps: Option<&Steps>) -> TapDepth {
    let report = steps.and_then(|steps| steps.report.as_ref());
    let of_reporters = report.map_or(TapDepth::Frames, |report| reporter::depth(report));
    let edits = steps.and_then(|steps| steps.edit.as_ref());
    let needs = edits
        .into_iter()
        .flat_map(|edits| edits.iter().filter_map(|step| step.copies()));
    let of_edits = needs.map(|needs| match needs {
        Copies::Requests => TapDepth::Details,
        Copies::Answers => TapDepth::Answers,
    });
    of_edits.fold(of_reporters, Ord::max)
}

/// Gives the policy's rules their paths, and says of those that read which it is.
pub(super) fn settle(
    mut plans: BTreeMap<RuleName, Plan>,
    policy: &mut Policy,
) -> Result<BTreeMap<RuleName, RulePath>, Flaw> {
    for (name, plan) in &mut plans {
        let mut rules = policy.rules.iter().filter(|rule| rule.name == *name);
        let balances =
            rules.find_map(|rule| policy.balances_for(rule).filter(|_| rule.is_of_elsewhere()));
        if let Some(by) = balances {
            plan.depth = Err(format!("the agent dials the backends of rule {}", by.name));
        }
    }
    let depth = |rule: &Rule| plans.get(&rule.name)?.depth.clone().ok();
    for rule in &mut policy.rules {
        rule.taps = depth(rule).filter(|_| rule.action == Action::Enrich);
    }
    // What a session rule's flows may meet is known now that every rule has its own path.
    let obstacles: Vec<Option<String>> = (0..policy.rules.len())
        .zip(&policy.rules)
        .map(|(index, rule)| {
            let own = plans.get(&rule.name)?.depth.clone().err();
            let behind = || policy.takes_in(index).filter(|_| rule.is_session());
            own.or_else(|| behind().map(|takes_in| takes_in.to_string()))
        })
        .collect();
    let mut paths = BTreeMap::new();
    for (rule, obstacle) in policy.rules.iter_mut().zip(obstacles) {
        let Some(plan) = plans.get(&rule.name) else {
            continue;
        };
        rule.asks_copies = rule.is_session() && obstacle.is_none();
        cannot_observe(rule, plan, obstacle.as_deref())?;
        if let Some(path) = path(rule, plan, obstacle)? {
            paths.insert(rule.name.clone(), path);
        }
    }
    Ok(paths)
}

/// Warnings of settings that have no use on the path that a rule has.
pub(super) fn doubts(policy: &Policy) -> Vec<String> {
    let left_alone = |rule: &&Rule| rule.asks_copies || rule.is_tapped();
    let rules = policy.rules.iter().filter(left_alone);
    let rules = rules.filter(|rule| rule.shortcut != Shortcut::Neither);
    let doubt = |rule: &Rule| {
        let why = match rule.asks_copies {
            true => "copies of the handshake say whether it holds",
            false => "its flows are read from copies",
        };
        format!(
            "rule {}: `shortcut` has no use, because {why}, and the application's connection is left alone; with \
             `path = \"inline\"` the agent takes it in, and the kernel can carry it",
            rule.name
        )
    };
    rules.map(doubt).collect()
}

/// Refuses a session rule that observes what comes to the agent.
fn cannot_observe(rule: &Rule, plan: &Plan, obstacle: Option<&str>) -> Result<(), Flaw> {
    let named = rule.session.named().next();
    let (Some(at), Some(why), Some(key)) = (plan.observes.clone(), obstacle, named) else {
        return Ok(());
    };
    let why = match plan.wanted {
        Wanted::Inline => "its `path` is inline",
        Wanted::Auto | Wanted::Tap => why,
    };
    let message = format!(
        "rule.action: expected `bypass`, `enrich` or `deny` in a rule with `{}`, or behind it only rules that bypass, \
         observe, or enrich by steps that only read: {why}, so connections come to the agent, where nothing is \
         observed; found \"observe\"",
        key.key()
    );
    Err(Flaw::new(at, message))
}

/// None: there is nothing to be said.
fn path(rule: &Rule, plan: &Plan, obstacle: Option<String>) -> Result<Option<RulePath>, Flaw> {
    let reads = rule.action == Action::Enrich;
    let why = match (plan.wanted, obstacle) {
        (Wanted::Inline, _) => return Ok(None),
        (Wanted::Tap, Some(why)) => {
            let message = format!(
                "rule.path: expected a rule that can be tapped, or `auto`; found \"tap\", and {why}"
            );
            return Err(Flaw::new(plan.at.clone().unwrap_or_default(), message));
        }
        (Wanted::Auto, Some(why)) => {
            let why = format!("inline, because {why}");
            return Ok(reads.then_some(RulePath { is_tap: false, why }));
        }
        (Wanted::Auto | Wanted::Tap, None) => match (reads, rule.is_session()) {
            (true, false) => "tap, because every step only reads",
            (true, true) => {
                "tap, because every step only reads, and copies of the handshake say whether the rule holds"
            }
            (false, _) => "tap, until copies of the handshake say which rule holds",
        },
    };
    Ok(Some(RulePath {
        is_tap: true,
        why: why.to_owned(),
    }))
}

/// Has the flows of rules that are not tapped say why.
pub(super) fn note(paths: &BTreeMap<RuleName, RulePath>, pipelines: &mut [(RuleName, Steps)]) {
    for (rule, steps) in pipelines {
        if let Some(path) = paths.get(rule).filter(|path| !path.is_tap) {
            Arc::make_mut(&mut steps.about).inline = Some(path.why.clone());
        }
    }
}

/// Why a rule's flows have to come to the agent, if they have to.
fn obstacle(rule: &RawRule, steps: Option<&Steps>) -> Option<String> {
    let tls = rule.tls.as_ref().filter(|tls| !tls.get_ref().is_bool());
    if tls.is_some() || rule.upstream_tls.is_some() {
        return Some("TLS ends in the agent".to_owned());
    }
    if !rule.backends.is_empty() {
        return Some("`backends` are dialled by the agent".to_owned());
    }
    if rule
        .fail
        .as_ref()
        .is_some_and(|fail| fail.get_ref() == "closed")
    {
        return Some("`fail = \"closed\"` wants flows refused that nobody reads".to_owned());
    }
    let edits = steps.and_then(|steps| steps.edit.as_ref());
    let mut edits = edits.into_iter().flat_map(|edits| edits.iter());
    if let Some(step) = edits.find(|step| step.copies().is_none()) {
        if step.name() == lookup::NAME {
            return Some(
                "`lookup` asks on the flow's connection (`connection = \"own\"` does not)"
                    .to_owned(),
            );
        }
        return Some(format!(
            "`{}` may change, answer, delay or refuse requests",
            step.name()
        ));
    }
    let mut reporters = steps
        .iter()
        .flat_map(|steps| steps.report.iter().flat_map(|report| report.iter()));
    let holds = reporters.find(|reporter| {
        let journal = reporter.journal();
        journal.is_some_and(|journal| journal.when_full == WhenFull::Hold)
    });
    let holds = holds?.name();
    Some(format!(
        "`{holds}` holds requests while its file takes no more (`full = \"drop\"` does not)"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use std::path::Path;

    const STATS: &str = r#"pipeline = [{ transform = "stats" }]"#;

    fn config(rules: &[&str]) -> Result<Config, String> {
        let rules = rules.iter().zip(["r", "s", "t"]);
        let rules = rules.map(|(keys, name)| {
            let to = if keys.contains("to = ") {
                ""
            } else {
                "to = [\"10.0.0.0/8:9042\"]\n"
            };
            format!("[[rule]]\nname = \"{name}\"\n{to}{keys}\n")
        });
        let text: String = rules.collect();
        Config::parse(Path::new("f"), &text).map_err(|e| e.to_string())
    }

    /// The path of the first rule.
    fn parsed(rules: &[&str]) -> Result<Option<RulePath>, String> {
        let config = config(rules)?;
        let rule = &config.policy.rules[0];
        let path = config.paths.get(&rule.name).cloned();
        let is_tap = path.as_ref().is_some_and(|path| path.is_tap);
        assert_eq!(rule.is_tapped(), is_tap);
        if let Some(about) = config.pipelines.about(&rule.name) {
            let why = path.as_ref().filter(|path| !path.is_tap);
            assert_eq!(about.inline, why.map(|path| path.why.clone()));
        }
        Ok(path)
    }

    fn depth_of(keys: &str) -> Option<TapDepth> {
        config(&[keys]).unwrap().policy.rules[0].taps
    }

    #[test]
    fn a_rule_whose_steps_only_read_is_tapped() {
        let readers = r#"pipeline = [{ transform = "stats" }, { transform = "count" },
            { transform = "audit", file = "/var/log/a.log", full = "drop" }]"#;
        let shadows = r#"pipeline = [{ transform = "guard", refuse = ["ddl"], mode = "shadow" },
            { transform = "mirror", to = "10.1.0.1:9042" }]"#;
        for (path, steps) in [
            ("", readers),
            ("path = \"auto\"", readers),
            ("path = \"tap\"", readers),
            ("", shadows),
            ("path = \"tap\"", shadows),
        ] {
            let keys = format!("action = \"enrich\"\nfail = \"open\"\n{path}\n{steps}");
            let taken = parsed(&[&keys]).unwrap().unwrap();
            assert_eq!(taken.why, "tap, because every step only reads");
            assert!(taken.is_tap);
        }
        let tap = parsed(&["action = \"enrich\"\npath = \"tap\""]).unwrap();
        assert!(tap.unwrap().is_tap);
        let inline = format!("action = \"enrich\"\npath = \"inline\"\n{STATS}");
        // Without steps, too.
        for keys in [&inline, "action = \"enrich\""] {
            assert_eq!(parsed(&[keys]), Ok(None));
        }
    }

    #[test]
    fn a_rule_that_may_be_gone_does_not_shield_a_session_rule_from_those_behind_it() {
        let asks = "user = [\"a\"]\naction = \"bypass\"";
        let inline = "action = \"enrich\"\npath = \"inline\"";
        for (when, is_tap) in [
            ("", true),
            ("\nwhen = { days = \"mon\", tz = \"UTC\" }", false),
        ] {
            let between = format!("action = \"bypass\"{when}");
            let config = config(&[asks, &between, inline]).unwrap();
            assert_eq!(config.policy.rules[0].asks_copies, is_tap, "{when}");
        }
    }

    #[test]
    fn copies_have_as_much_as_the_steps_need_together() {
        let needs = [
            ("", TapDepth::Frames),
            (r#"{ transform = "count" }"#, TapDepth::Frames),
            (r#"{ transform = "debug" }"#, TapDepth::Frames),
            (
                r#"{ transform = "debug", values = true }"#,
                TapDepth::Bodies,
            ),
            (
                r#"{ transform = "count" }, { transform = "stats" }"#,
                TapDepth::Details,
            ),
            (
                r#"{ transform = "guard", refuse = ["ddl"], mode = "shadow" }"#,
                TapDepth::Details,
            ),
            (
                r#"{ transform = "stats" }, { transform = "mirror", to = "10.1.0.1:9042" }"#,
                TapDepth::Details,
            ),
            (
                r#"{ transform = "mirror", to = "10.1.0.1:9042", compare = true }"#,
                TapDepth::Answers,
            ),
        ];
        for (steps, depth) in needs {
            let keys = format!(
                "action = \"enrich\"\nfail = \"open\"\npath = \"tap\"\npipeline = [{steps}]"
            );
            assert_eq!(depth_of(&keys), Some(depth), "{steps}");
        }
    }

    #[test]
    fn whatever_needs_the_bytes_is_named() {
        let needs = [
            (
                r#"fail = "open"
                pipeline = [{ transform = "stats" }, { transform = "guard", refuse = ["truncate"] }]"#,
                "`guard` may change, answer, delay or refuse requests",
            ),
            (
                r#"fail = "open"
                pipeline = [{ transform = "stats" }, { transform = "lookup" }]"#,
                "`lookup` asks on the flow's connection (`connection = \"own\"` does not)",
            ),
            (
                r#"fail = "open"
                pipeline = [{ transform = "guard", refuse = ["ddl"], mode = "shadow" },
                    { transform = "mirror", to = "10.1.0.1:9042", dual_write = true }]"#,
                "`mirror` may change, answer, delay or refuse requests",
            ),
            (
                r#"fail = "open"
                pipeline = [{ transform = "audit", file = "/var/log/a.log" }]"#,
                "`audit` holds requests while its file takes no more",
            ),
            (
                r#"fail = "closed"
                pipeline = [{ transform = "stats" }]"#,
                "`fail = \"closed\"` wants flows refused that nobody reads",
            ),
        ];
        for (keys, why) in needs {
            for path in ["", "path = \"auto\""] {
                let auto = parsed(&[&format!("action = \"enrich\"\n{path}\n{keys}")]);
                let auto = auto.unwrap().unwrap();
                assert!(!auto.is_tap && auto.why.starts_with("inline, because "));
                assert!(auto.why.contains(why), "{auto:?}");
            }
            let tap = parsed(&[&format!("action = \"enrich\"\npath = \"tap\"\n{keys}")]);
            let tap = tap.unwrap_err();
            assert!(
                tap.contains("rule.path: expected") && tap.contains(why),
                "{tap}"
            );
        }
    }

    #[test]
    fn a_session_is_read_from_copies_unless_a_rule_that_may_be_met_needs_the_bytes() {
        let reads = format!("user = [\"etl\"]\naction = \"enrich\"\n{STATS}");
        let leaves = "driver = [\"d\"]\naction = \"bypass\"";
        let rest = format!("action = \"enrich\"\n{STATS}");
        let observes = "user = [\"spark\"]\naction = \"observe\"";
        for rules in [
            &[&*reads][..],
            &[leaves],
            &[&reads, leaves, &rest],
            &[leaves, &reads, "action = \"observe\""],
            &[observes],
            &[observes, leaves, &rest],
            &[leaves, observes],
            // What is behind a rule that surely holds is not met, and neither is what is elsewhere.
            &[
                &reads,
                "action = \"bypass\"",
                "fail = \"open\"\naction = \"deny\"",
            ],
            &[
                leaves,
                "to = [\":9043\"]\nfail = \"open\"\naction = \"deny\"",
            ],
        ] {
            let path = parsed(rules).unwrap().unwrap();
            assert!(
                path.is_tap && path.why.contains("copies of the handshake"),
                "{path:?}"
            );
        }
        let needs = [
            ("fail = \"open\"\naction = \"deny\"", "rule s may deny"),
            ("action = \"enrich\"", "rule s may be met, which is inline"),
            (
                "driver = [\"d\"]\nfail = \"closed\"\naction = \"bypass\"",
                "fail = \"closed\" of rule s refuses where the session cannot be known",
            ),
            (
                "netns = [\"4026531840\"]\naction = \"bypass\"",
                "`netns` of rule s is not known of a connection that is left alone",
            ),
            (
                "to = [\"10.0.0.1:9042\"]\nbackends = [\"10.1.0.1:9042\"]\naction = \"bypass\"",
                "the agent dials the backends of rule s",
            ),
        ];
        for (behind, why) in needs {
            let path = parsed(&[&reads, behind]).unwrap().unwrap();
            assert_eq!(path.why, format!("inline, because {why}"));
            let tap = parsed(&[&format!("path = \"tap\"\n{reads}"), behind]).unwrap_err();
            assert!(tap.contains(why), "{tap}");
            let refused = parsed(&[observes, behind]).unwrap_err();
            let expected = "f:5:10: rule.action: expected `bypass`, `enrich` or `deny` in a rule with `user`, or behind it \
                            only rules that bypass, observe, or enrich by steps that only read: ";
            assert!(
                refused.starts_with(&format!(
                    "{expected}{why}, so connections come to the agent"
                )),
                "{refused}"
            );
        }
        for (own, why) in [
            ("path = \"inline\"", "its `path` is inline"),
            ("fail = \"closed\"", "fail = \"closed\" of rule r refuses"),
        ] {
            let refused = parsed(&[&format!("{observes}\n{own}")]).unwrap_err();
            assert!(
                refused.contains(why) && refused.contains("nothing is observed"),
                "{refused}"
            );
        }
        for inline in [leaves, &reads] {
            let inline = format!("path = \"inline\"\n{inline}");
            assert_eq!(parsed(&[&inline]), Ok(None));
        }
    }

    #[test]
    fn a_shortcut_that_has_no_use_is_said() {
        let leaves = "driver = [\"d\"]\naction = \"bypass\"\nshortcut = true";
        let reads = format!("action = \"enrich\"\nshortcut = \"client\"\n{STATS}");
        for (rules, why) in [
            (leaves, "copies of the handshake say whether it holds"),
            (&reads, "its flows are read from copies"),
        ] {
            let warnings = config(&[rules]).unwrap().warnings;
            let said = |warning: &String| {
                warning.starts_with("rule r: `shortcut` has no use") && warning.contains(why)
            };
            assert!(warnings.iter().any(said), "{warnings:?}");
            let inline = format!("path = \"inline\"\n{rules}");
            let warnings = config(&[&inline]).unwrap().warnings;
            assert!(
                !warnings.iter().any(|w| w.contains("has no use")),
                "{warnings:?}"
            );
        }
        // Past TCP between two sockets of this host: nobody reads it.
        let plain = "action = \"bypass\"\nshortcut = true";
        assert_eq!(config(&[plain]).unwrap().warnings, [""; 0]);
    }

    #[test]
    fn only_what_is_read_has_a_path() {
        let error = parsed(&["action = \"observe\"\npath = \"tap\""]).unwrap_err();
        assert!(error.contains("expected `action = \"enrich\"`"), "{error}");
        let error = parsed(&["action = \"enrich\"\npath = \"copy\""]).unwrap_err();
        assert!(error.contains("rule.path"), "{error}");
    }
}
