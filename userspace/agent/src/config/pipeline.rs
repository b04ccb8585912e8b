//! What `pipeline` means: which steps, with which settings.

use std::{collections::HashMap, path::PathBuf, sync::Arc};

use cql::{edit::Transform, transforms};
use dataplane::policy::{Action, RuleName};
use serde::de::DeserializeOwned;
use toml::{Spanned, Table};

use super::{error::Flaw, raw::RawRule};
use crate::{
    effects::{self, Built, Effect},
    pipelines::Steps,
    reporters::{self, JournalSettings, Reporter},
};

/// More would be a mistake: every request passes all of them.
const MAX_STEPS: usize = 32;

/// The key that names a step's transform.
const TRANSFORM: &str = "transform";

/// Those of the rules that have one.
pub(super) fn of(rules: &[Spanned<RawRule>]) -> Result<Vec<(RuleName, Steps)>, Flaw> {
    let rules = rules.iter().map(Spanned::get_ref);
    let rules = rules.filter(|rule| !rule.pipeline.is_empty());
    let mut journals = HashMap::new();
    rules
        .map(|rule| {
            let name = RuleName::new(rule.name.get_ref());
            let steps = pipeline(rule)?;
            keeps_alike(rule, &steps, &mut journals)?;
            Ok((name, steps))
        })
        .collect()
}

/// A journal that several steps name is one, and is kept in one way.
fn keeps_alike(
    rule: &RawRule,
    steps: &Steps,
    journals: &mut HashMap<PathBuf, (&'static str, JournalSettings)>,
) -> Result<(), Flaw> {
    let reporters = steps.report.iter().flat_map(|report| report.iter());
    for reporter in reporters {
        let Some(journal) = reporter.journal() else {
            continue;
        };
        let found = (reporter.name(), journal.clone());
        let Some(path) = journal.to.path() else {
            continue;
        };
        let first = journals.entry(path.to_owned());
        if *first.or_insert_with(|| found.clone()) != found {
            let message = format!(
                "rule.pipeline: expected {} to be kept alike by all steps that name it: by the same \
                 transform, with the same `max_bytes`, `keep`, `fsync` and `full`",
                path.display()
            );
            return Err(Flaw::new(rule.name.span(), message));
        }
    }
    Ok(())
}

fn pipeline(rule: &RawRule) -> Result<Steps, Flaw> {
    if rule.action.get_ref() != Action::Enrich.as_str() && rule.trigger.is_none() {
        let message = format!(
            "rule.action: expected `enrich` (or `observe` with a `trigger`) in a rule with a \
             `pipeline`, because only such flows are read; found {:?}",
            rule.action.get_ref()
        );
        return Err(Flaw::new(rule.action.span(), message));
    }
    if let Some(first_too_many) = rule.pipeline.get(MAX_STEPS) {
        let message = format!(
            "rule.pipeline: expected at most {MAX_STEPS} transforms; found {}",
            rule.pipeline.len()
        );
        return Err(Flaw::new(first_too_many.span(), message));
    }
    let (mut edit, mut report) = (Vec::new(), Vec::new());
    let mut effects: Vec<Arc<dyn Effect>> = Vec::new();
    for raw in &rule.pipeline {
        match step(raw)? {
            Step::Edits(step) => {
                behind_all(&effects, &*step, raw)?;
                edit.push(step);
            }
            Step::Carries(Built { step, effect }) => {
                if !effect.is_last() {
                    behind_all(&effects, &*step, raw)?;
                }
                edit.push(step);
                effects.push(effect);
            }
            Step::Reports(step) => report.push(step),
        }
    }
    Ok(Steps {
        edit: (!edit.is_empty()).then(|| edit.into()),
        report: (!report.is_empty()).then(|| report.into()),
        effects,
    })
}

/// Nothing that changes a request stands behind a step that takes it for what the database gets.
fn behind_all(
    effects: &[Arc<dyn Effect>],
    step: &dyn Transform,
    raw: &Spanned<Table>,
) -> Result<(), Flaw> {
    let Some(last) = effects.iter().find(|effect| effect.is_last()) else {
        return Ok(());
    };
    let (last, step) = (last.name(), step.name());
    let message = format!(
        "rule.pipeline: expected {last} behind all transforms, because it takes requests as the database gets \
         them; found {step} behind it"
    );
    Err(Flaw::new(raw.span(), message))
}

enum Step {
    Edits(Box<dyn Transform>),
    Carries(Built),
    Reports(Box<dyn Reporter>),
}

/// Every step's name.
fn names() -> String {
    let all = [transforms::NAMES, effects::NAMES, reporters::NAMES];
    all.concat().join(", ")
}

fn step(raw: &Spanned<Table>) -> Result<Step, Flaw> {
    let flaw = |message: String| Flaw::new(raw.span(), format!("rule.pipeline: {message}"));
    let table = raw.get_ref();
    let Some(name) = table.get(TRANSFORM) else {
        return Err(flaw(format!("expected `{TRANSFORM}`, one of {}", names())));
    };
    let is_one_of = |names: &[&str]| name.as_str().is_some_and(|name| names.contains(&name));
    if is_one_of(transforms::NAMES) {
        let settings: transforms::Settings = settings(table).map_err(flaw)?;
        settings.build().map(Step::Edits).map_err(flaw)
    } else if is_one_of(effects::NAMES) {
        let settings: effects::Settings = settings(table).map_err(flaw)?;
        settings.build().map(Step::Carries).map_err(flaw)
    } else if is_one_of(reporters::NAMES) {
        let settings: reporters::Settings = settings(table).map_err(flaw)?;
        settings.build().map(Step::Reports).map_err(flaw)
    } else {
        let names = names();
        Err(flaw(format!(
            "{TRANSFORM}: expected one of {names}; found {name}"
        )))
    }
}

fn settings<T: DeserializeOwned>(table: &Table) -> Result<T, String> {
    T::deserialize(table.clone()).map_err(|e| e.message().replace('\n', ", "))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use dataplane::policy::RuleName;

    use super::super::Config;

    fn found(action: &str, step: &str) -> Result<Config, String> {
        let text = format!(
            "[[rule]]\nname = \"r\"\nto = [\":9042\"]\naction = \"{action}\"\npipeline = [{step}]\n"
        );
        Config::parse(Path::new("u.toml"), &text).map_err(|e| e.to_string())
    }

    #[test]
    fn every_transform_can_be_configured() {
        let steps = [
            "{ transform = \"consistency\", at_least = \"TWO\", serial = \"LOCAL_SERIAL\" }",
            "{ transform = \"guard\", refuse = [\"ddl\", \"no_limit\"], tables = [\"shop.*\"], \
             partition_keys = { \"shop.t\" = [\"k\"] }, mode = \"shadow\" }",
            "{ transform = \"null\" }",
            "{ transform = \"paging\", at_most = 10 }",
            "{ transform = \"rewrite\", addresses = \"dialled\", max_ttl = \"90d\", default_ttl = \"30d\", \
             timestamps = { max_ahead = \"1s\" }, keyspaces = { shop = \"shop_v2\" }, tables = { \
             \"shop.orders\" = \"shop_v2.orders_2026\" } }",
            "{ transform = \"tag\", service = \"s\", host = \"h\", prefix = \"p.\" }",
            "{ transform = \"throttle\", rate = 0.5, burst = 2, per = \"client\", mode = \"shadow\" }",
            "{ transform = \"tracing\", one_in = 100 }",
            "{ transform = \"coalesce\", tables = { \"shop.e\" = { partition_key = [\"d\"], clustering = [\"at\"], \
             columns = [\"v\"] } }, window = \"2ms\", max_statements = 50, max_bytes = 65536 }",
            "{ transform = \"mirror\", to = \"10.0.0.9:9042\", what = [\"reads\", \"writes\"], sample = 1.0, compare = \
             true, dual_write = true, username = \"u\", password_file = \"/p\", timeout = \"1s\", on_failure = \
             \"error\", show_values = true }",
            "{ transform = \"audit\", file = \"/a.log\", max_bytes = 1000000, keep = 3, fsync = \"batch\", \
             full = \"hold\", statement = true, tables = [\"shop.*\"], not_tables = [\"shop.x\"], kinds = \
             [\"writes\", \"select\"], not_kinds = [\"batch\"], users = [\"ann\"], not_users = [\"bob\"] }",
            "{ transform = \"count\" }",
            "{ transform = \"debug\", values = true, bytes = 64, sample = 0.1, per_second = 10, file = \
             \"/debug.log\", max_bytes = 1000000, keep = 2 }",
            "{ transform = \"slowlog\", over = \"100ms\", slowest_one_in = 1000, file = \"/var/log/slow\", \
             max_bytes = 1000000, keep = 0 }",
            "{ transform = \"stats\" }",
            "{ transform = \"trace\", endpoint = \"http://127.0.0.1:4317\", sample = 0.01, service = \"s\" }",
        ];
        let names = super::names();
        let names: Vec<&str> = names.split(", ").collect();
        assert_eq!(names.len(), steps.len());
        for (name, step) in names.iter().zip(steps) {
            assert!(step.contains(name), "{name} is not tried");
            let pipelines = found("enrich", step).unwrap().pipelines;
            let rule = &RuleName::new("r");
            let edits = !super::reporters::NAMES.contains(name);
            assert_eq!(pipelines.edit(), edits);
            assert_eq!(pipelines.edits_of(rule).is_some(), edits);
            assert_eq!(pipelines.reporters_of(rule).is_some(), !edits);
        }
    }

    #[test]
    fn what_the_documentation_shows_is_accepted() {
        let page = include_str!("../../../../docs/pipelines.md");
        let shown = page.split("```toml\n").nth(1).unwrap();
        let shown = shown.split("```").next().unwrap();
        let config = Config::parse(Path::new("u.toml"), shown).unwrap();
        assert_eq!(config.warnings, Vec::<String>::new());
        for name in super::names().split(", ") {
            assert!(page.contains(&format!("| `{name}` |")), "{name}");
        }
    }

    #[test]
    fn a_mistake_is_named_with_its_place() {
        let cases = [
            (
                "bypass",
                "{ transform = \"tag\" }",
                "u.toml:4:10: rule.action: expected `enrich`",
            ),
            (
                "enrich",
                "{ }",
                "u.toml:5:13: rule.pipeline: expected `transform`, one of consistency",
            ),
            (
                "enrich",
                "{ transform = \"tga\" }",
                "expected one of consistency, guard",
            ),
            ("enrich", "{ transform = 7 }", "found 7"),
            (
                "enrich",
                "{ transform = \"guard\", refuse = [\"dll\"] }",
                "unknown variant `dll`",
            ),
            (
                "enrich",
                "{ transform = \"guard\" }",
                "expected something to refuse",
            ),
            (
                "enrich",
                "{ transform = \"tag\", servce = \"x\" }",
                "unknown field `servce`",
            ),
            (
                "enrich",
                "{ transform = \"consistency\" }",
                "expected one of `exactly`",
            ),
            (
                "enrich",
                "{ transform = \"consistency\", exactly = \"SERIAL\" }",
                "exactly: expected one of ANY",
            ),
            (
                "enrich",
                "{ transform = \"consistency\", exactly = \"ONE\", at_most = \"TWO\" }",
                "exactly: expected without",
            ),
            (
                "enrich",
                "{ transform = \"consistency\", at_least = \"ALL\", at_most = \"TWO\" }",
                "at_least: expected a level that is not above",
            ),
            (
                "enrich",
                "{ transform = \"paging\", at_most = 0 }",
                "expected 1 row or more",
            ),
            (
                "enrich",
                "{ transform = \"throttle\", rate = 0 }",
                "rate: expected 0.001 or more",
            ),
            (
                "enrich",
                "{ transform = \"throttle\", rate = nan }",
                "rate: expected 0.001 or more",
            ),
            (
                "enrich",
                "{ transform = \"throttle\", rate = 5, burst = 0.5 }",
                "burst: expected 1 or more",
            ),
            (
                "enrich",
                "{ transform = \"tracing\", one_in = 0 }",
                "one_in: expected 1 or more",
            ),
            (
                "enrich",
                "{ transform = \"audit\" }",
                "missing field `file`",
            ),
            (
                "enrich",
                "{ transform = \"audit\", file = \"a.log\" }",
                "file: expected an absolute path",
            ),
            (
                "enrich",
                "{ transform = \"audit\", file = \"/a\", max_bytes = 1 }",
                "max_bytes: expected 262144 or more",
            ),
            (
                "enrich",
                "{ transform = \"audit\", file = \"/a\", keep = 1001 }",
                "keep: expected at most 1000",
            ),
            (
                "enrich",
                "{ transform = \"audit\", file = \"/a\", fsync = \"0s\" }",
                "fsync: expected `never`, `batch`",
            ),
            (
                "enrich",
                "{ transform = \"audit\", file = \"/a\", full = \"wait\" }",
                "unknown variant `wait`",
            ),
            (
                "enrich",
                "{ transform = \"audit\", file = \"/a\", kinds = [\"inserts\"] }",
                "kinds: expected any of reads, writes",
            ),
            (
                "enrich",
                "{ transform = \"audit\", file = \"/a\" }, { transform = \"audit\", file = \"/a\", keep = 1 }",
                "u.toml:2:8: rule.pipeline: expected /a to be kept alike",
            ),
            (
                "enrich",
                "{ transform = \"slowlog\" }",
                "expected one of `over`, `slowest_one_in`",
            ),
            (
                "enrich",
                "{ transform = \"slowlog\", over = \"61m\" }",
                "over: expected milliseconds, seconds or minutes",
            ),
            (
                "enrich",
                "{ transform = \"slowlog\", slowest_one_in = 1 }",
                "slowest_one_in: expected 2 to 1000000, found 1",
            ),
            (
                "enrich",
                "{ transform = \"slowlog\", over = \"1s\", file = \"slow\" }",
                "file: expected an absolute path",
            ),
            (
                "enrich",
                "{ transform = \"trace\", sample = 1 }",
                "missing field `endpoint`",
            ),
            (
                "enrich",
                "{ transform = \"trace\", endpoint = \"http://127.0.0.1:4317\" }",
                "missing field `sample`",
            ),
            (
                "enrich",
                "{ transform = \"trace\", endpoint = \"127.0.0.1:4317\", sample = 1 }",
                "endpoint: expected `http://HOST:PORT`, where a collector takes OTLP",
            ),
            (
                "enrich",
                "{ transform = \"trace\", endpoint = \"https://127.0.0.1:4317\", sample = 1 }",
                "endpoint: expected `http://HOST:PORT`: spans are sent without TLS",
            ),
            (
                "enrich",
                "{ transform = \"rewrite\" }",
                "expected one of `addresses`, `keyspaces`, `tables`, `max_ttl`",
            ),
            (
                "enrich",
                "{ transform = \"rewrite\", keyspaces = { shop = \"v2\" }, tables = { \"shop.a\" = \"shop.b\" } }",
                "tables: `shop.a`: expected a table of `v2`",
            ),
            (
                "enrich",
                "{ transform = \"rewrite\", timestamps = { ahead = \"1s\" } }",
                "timestamps: expected `\"server\"` or `{ max_ahead = \"1s\" }`",
            ),
            (
                "enrich",
                "{ transform = \"trace\", endpoint = \"http://a:1\", sample = 1.5 }",
                "sample: expected a fraction of requests, 0 to 1; found 1.5",
            ),
            (
                "enrich",
                "{ transform = \"trace\", endpoint = \"http://a:1\", sample = 1, service = \"\" }",
                "service: expected a name of 1 to 255 bytes; found 0 bytes",
            ),
        ];
        let mirror = "{ transform = \"mirror\", to = \"10.0.0.9:9042\"";
        let tag = "{ transform = \"tag\" }";
        let mirrors = [
            (
                "{ transform = \"mirror\" }".to_owned(),
                "missing field `to`",
            ),
            (
                "{ transform = \"mirror\", to = \"db:9042\" }".to_owned(),
                "to: expected `IP:PORT`",
            ),
            (format!("{mirror}, what = [] }}"), "what: expected any of"),
            (
                format!("{mirror}, what = [\"ddl\"] }}"),
                "unknown variant `ddl`",
            ),
            (
                format!("{mirror}, sample = 0.0 }}"),
                "sample: expected a fraction",
            ),
            (
                format!("{mirror}, timeout = \"11s\" }}"),
                "timeout: expected `1ms` to `10s`",
            ),
            (
                format!("{mirror}, username = \"u\" }}"),
                "username: expected with `password_file`",
            ),
            (
                format!("{mirror}, password_file = \"/p\" }}"),
                "password_file: expected with",
            ),
            (
                format!("{mirror}, username = \"u\", password_file = \"p\" }}"),
                "password_file: expected an absolute path",
            ),
            (
                format!("{mirror}, on_failure = \"error\" }}"),
                "on_failure: expected `error` with",
            ),
            (
                format!("{mirror}, show_values = true }}"),
                "show_values: expected with",
            ),
            (
                format!("{mirror}, dual_write = true, what = [\"reads\"] }}"),
                "dual_write: expected `writes`",
            ),
            (
                format!("{mirror}, dual_write = true, sample = 0.5 }}"),
                "dual_write: expected without",
            ),
            (
                format!("{mirror} }}, {tag}"),
                "u.toml:5:61: rule.pipeline: expected mirror behind all transforms",
            ),
        ];
        for (step, expected) in mirrors {
            let error = found("enrich", &step).unwrap_err();
            assert!(error.contains(expected), "{step}: {error}");
        }
        found(
            "enrich",
            &format!("{tag}, {mirror} }}, {mirror}, compare = true }}"),
        )
        .unwrap();
        for (action, step, expected) in cases {
            let error = found(action, step).unwrap_err();
            assert!(error.contains(expected), "{step}: {error}");
        }
        let many = vec!["{ transform = \"tag\" }"; super::MAX_STEPS + 1].join(", ");
        let error = found("enrich", &many).unwrap_err();
        assert!(error.contains("at most 32 transforms; found 33"), "{error}");
    }
}
