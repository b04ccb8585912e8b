//! The meaning of `path`: whether the bytes of a rule's flows come to the agent, or copies of them.

use std::{collections::BTreeMap, sync::Arc};

use policy::{Action, RuleName};
use steps::{WhenFull, pipelines::Steps};
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

/// The paths of the rules that ask for a tap.
pub(super) fn of(
    rules: &[Spanned<RawRule>],
    pipelines: &[(RuleName, Steps)],
) -> Result<BTreeMap<RuleName, RulePath>, Flaw> {
    let rules = rules.iter().map(Spanned::get_ref);
    let named = rules.filter_map(|rule| Some((rule, rule.path.as_ref()?)));
    let mut paths = BTreeMap::new();
    for (rule, path) in named {
        let name = RuleName::new(rule.name.get_ref());
        let steps = pipelines.iter().find(|(of, _)| *of == name);
        if let Some(taken) = taken(rule, path, steps.map(|(_, steps)| steps))? {
            paths.insert(name, taken);
        }
    }
    Ok(paths)
}

/// Has the flows of rules that are not tapped say why.
pub(super) fn note(paths: &BTreeMap<RuleName, RulePath>, pipelines: &mut [(RuleName, Steps)]) {
    for (rule, steps) in pipelines {
        if let Some(path) = paths.get(rule).filter(|path| !path.is_tap) {
            Arc::make_mut(&mut steps.about).inline = Some(path.why.clone());
        }
    }
}

/// None: the rule is inline, as without the key.
fn taken(
    rule: &RawRule,
    path: &Spanned<String>,
    steps: Option<&Steps>,
) -> Result<Option<RulePath>, Flaw> {
    let wanted = one_of(
        "rule.path",
        path,
        &[
            ("auto", Wanted::Auto),
            ("tap", Wanted::Tap),
            ("inline", Wanted::Inline),
        ],
    )?;
    if rule.action.get_ref() != Action::Enrich.as_str() {
        let message = format!(
            "rule.path: expected `action = \"enrich\"`, because only such flows are read; found action {:?}",
            rule.action.get_ref()
        );
        return Err(Flaw::new(path.span(), message));
    }
    match (wanted, obstacle(rule, steps)) {
        (Wanted::Inline, _) => Ok(None),
        (Wanted::Auto, Some(why)) => Ok(Some(RulePath {
            is_tap: false,
            why: format!("inline, because {why}"),
        })),
        (Wanted::Tap, Some(why)) => {
            let message = format!(
                "rule.path: expected a rule that can be tapped, or `auto`; found \"tap\", and {why}"
            );
            Err(Flaw::new(path.span(), message))
        }
        (Wanted::Auto | Wanted::Tap, None) => Ok(Some(RulePath {
            is_tap: true,
            why: "tap, because every step only reads".to_owned(),
        })),
    }
}

/// Why a rule's flows have to come to the agent, if they have to.
fn obstacle(rule: &RawRule, steps: Option<&Steps>) -> Option<String> {
    if let Some(key) = session_key(rule) {
        return Some(format!("`{key}` is known in the agent alone"));
    }
    if rule.tls.is_some() || rule.upstream_tls.is_some() {
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
    if let Some(step) = edits.and_then(|edits| edits.iter().next()) {
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

/// The first key of the rule that asks for the session. `tls` as a condition is one, too.
fn session_key(rule: &RawRule) -> Option<&'static str> {
    let lists = [
        ("user", &rule.user),
        ("keyspace", &rule.keyspace),
        ("driver", &rule.driver),
        ("driver_version", &rule.driver_version),
        ("application", &rule.application),
        ("protocol", &rule.protocol),
        ("compression", &rule.compression),
    ];
    let mut named = lists.into_iter().filter(|(_, list)| !list.is_empty());
    if let Some((key, _)) = named.next() {
        return Some(key);
    }
    let tls = rule.tls.as_ref()?.get_ref();
    tls.is_bool().then_some("tls")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use std::path::Path;

    /// Whether the rule has no pipeline, so that nothing is said of one.
    fn rule_is_bare(keys: &str) -> bool {
        !keys.contains("pipeline")
    }

    fn parsed(keys: &str) -> Result<Option<RulePath>, String> {
        let text = format!("[[rule]]\nname = \"r\"\nto = [\"10.0.0.0/8:9042\"]\n{keys}\n");
        let config = Config::parse(Path::new("f"), &text).map_err(|e| e.to_string())?;
        let rule = &config.policy.rules[0];
        let path = config.paths.get(&rule.name).cloned();
        let is_tap = path.as_ref().is_some_and(|path| path.is_tap);
        assert_eq!(rule.is_tapped(), is_tap);
        assert_eq!(config.policy.taps(), is_tap);
        let about = config.pipelines.about(&rule.name);
        let told = about.and_then(|about| about.inline.clone());
        let why = path.as_ref().filter(|path| !path.is_tap);
        assert!(told.is_none() || told.as_ref() == why.map(|path| &path.why));
        assert_eq!(told.is_some(), why.is_some() && !rule_is_bare(keys));
        Ok(path)
    }

    #[test]
    fn a_rule_that_only_reads_is_tapped_if_it_is_asked() {
        let readers = r#"pipeline = [{ transform = "stats" }, { transform = "count" },
            { transform = "audit", file = "/var/log/a.log", full = "drop" }]"#;
        for path in ["auto", "tap"] {
            let keys =
                format!("action = \"enrich\"\nfail = \"open\"\npath = \"{path}\"\n{readers}");
            let taken = parsed(&keys).unwrap().unwrap();
            assert_eq!(taken.why, "tap, because every step only reads");
            assert!(taken.is_tap);
        }
        let inline = parsed("action = \"enrich\"\npath = \"inline\"");
        assert_eq!(inline, Ok(None));
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
                pipeline = [{ transform = "audit", file = "/var/log/a.log" }]"#,
                "`audit` holds requests while its file takes no more",
            ),
            (r#"user = ["etl"]"#, "`user` is known in the agent alone"),
            ("tls = true", "`tls` is known in the agent alone"),
            (
                r#"fail = "closed""#,
                "`fail = \"closed\"` wants flows refused that nobody reads",
            ),
        ];
        for (keys, why) in needs {
            let auto = parsed(&format!("action = \"enrich\"\npath = \"auto\"\n{keys}"));
            let auto = auto.unwrap().unwrap();
            assert!(!auto.is_tap && auto.why.starts_with("inline, because "));
            assert!(auto.why.contains(why), "{auto:?}");
            let tap = parsed(&format!("action = \"enrich\"\npath = \"tap\"\n{keys}"));
            let tap = tap.unwrap_err();
            assert!(
                tap.contains("rule.path: expected") && tap.contains(why),
                "{tap}"
            );
        }
    }

    #[test]
    fn only_what_is_read_has_a_path() {
        let error = parsed("action = \"observe\"\npath = \"tap\"").unwrap_err();
        assert!(error.contains("expected `action = \"enrich\"`"), "{error}");
        let error = parsed("action = \"enrich\"\npath = \"copy\"").unwrap_err();
        assert!(error.contains("rule.path"), "{error}");
    }
}
