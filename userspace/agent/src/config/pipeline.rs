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
    protect,
    reporters::{self, JournalSettings, Reporter},
};

/// More would be a mistake: every request passes all of them.
const MAX_STEPS: usize = 32;

/// The step that merges writes.
const COALESCE: &str = "coalesce";

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
    let (mut edit, mut report, mut keys) = (Vec::new(), Vec::new(), Vec::new());
    let mut effects: Vec<Arc<dyn Effect>> = Vec::new();
    for raw in &rule.pipeline {
        match step(raw)? {
            Step::Edits(step) => {
                behind_all(&effects, &*step, raw)?;
                before_merging(&effects, &*step, raw)?;
                edit.push(step);
            }
            Step::Carries(Built { step, effect }) => {
                if !effect.is_last() {
                    behind_all(&effects, &*step, raw)?;
                }
                before_merging(&effects, &*step, raw)?;
                edit.push(step);
                effects.push(effect);
            }
            Step::Reports(step) => report.push(step),
            Step::Protects(step, source) => {
                behind_all(&effects, &*step, raw)?;
                before_merging(&effects, &*step, raw)?;
                edit.push(step);
                keys.push(source);
            }
        }
    }
    if !keys.is_empty() {
        may_protect(rule, &report)?;
    }
    means_what_is_named(rule, &effects)?;
    Ok(Steps {
        edit: (!edit.is_empty()).then(|| edit.into()),
        report: (!report.is_empty()).then(|| report.into()),
        effects,
        keys,
    })
}

/// `cache` and `coalesce` know what a statement is about by the names in its text and the keyspace that the client is
/// in, which have to be those of one side; and a table has two names where the database's is understood, too.
fn means_what_is_named(rule: &RawRule, effects: &[Arc<dyn Effect>]) -> Result<(), Flaw> {
    let mut names = effects.iter().map(|effect| effect.name());
    let Some(name) = names.find(|name| ["cache", COALESCE].contains(name)) else {
        return Ok(());
    };
    let renames = |raw: &&Spanned<Table>| {
        let table = raw.get_ref();
        ["keyspaces", "tables"]
            .iter()
            .any(|key| table.contains_key(*key))
            && table.get(TRANSFORM).and_then(toml::Value::as_str) == Some("rewrite")
    };
    match rule.pipeline.iter().find(renames) {
        None => Ok(()),
        Some(raw) => Err(Flaw::new(
            raw.span(),
            format!(
                "rule.pipeline: expected no `keyspaces` and `tables` of rewrite in a pipeline with {name}, which would \
                 not know all writes to its tables"
            ),
        )),
    }
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

/// A step that refuses one of the writes that were merged refuses them all: what may refuse one for what is in it
/// stands before.
fn before_merging(
    effects: &[Arc<dyn Effect>],
    step: &dyn Transform,
    raw: &Spanned<Table>,
) -> Result<(), Flaw> {
    if effects.iter().all(|effect| effect.name() != COALESCE) {
        return Ok(());
    }
    let name = step.name();
    let message = match name {
        COALESCE => format!(
            "rule.pipeline: expected {COALESCE} once, with all its `tables`; found it twice"
        ),
        "guard" | protect::NAME => format!(
            "rule.pipeline: expected {name} before {COALESCE}, because a write that it refuses would have those \
             refused that are merged with it; found it behind"
        ),
        _ => return Ok(()),
    };
    Err(Flaw::new(raw.span(), message))
}

/// What must never be stored, or written to a log, in plain is not let past its step.
fn may_protect(rule: &RawRule, reporters: &[Box<dyn Reporter>]) -> Result<(), Flaw> {
    let name = protect::NAME;
    let is_closed = rule
        .fail
        .as_ref()
        .is_some_and(|fail| fail.get_ref() == "closed");
    let found = if !is_closed {
        let span = rule.fail.as_ref().unwrap_or(&rule.name).span();
        (span, "fail: expected `closed`", "while the agent is away")
    } else if let Some(sample) = &rule.sample {
        (sample.span(), "sample: expected none", "of the others")
    } else if let Some(trigger) = &rule.trigger {
        (trigger.span(), "trigger: expected none", "before it holds")
    } else if let Some(setting) = reporters.iter().find_map(|reporter| shows(&**reporter)) {
        let message = format!(
            "rule.pipeline: expected no `{setting} = true` in a pipeline with `{name}`, because that writes \
             values in plain"
        );
        return Err(Flaw::new(rule.name.span(), message));
    } else {
        return Ok(());
    };
    let (span, expected, when) = found;
    let message = format!(
        "rule.{expected} in a rule with `{name}`, because values would be stored in plain {when}"
    );
    Err(Flaw::new(span, message))
}

/// The setting by which a reporter writes values down, if it does.
fn shows(reporter: &dyn Reporter) -> Option<&'static str> {
    match (reporter.wants_texts(), reporter.wants_bodies()) {
        (true, _) => Some("statement"),
        (_, true) => Some("values"),
        (false, false) => None,
    }
}

enum Step {
    Edits(Box<dyn Transform>),
    Carries(Built),
    Reports(Box<dyn Reporter>),
    Protects(Box<dyn Transform>, Arc<protect::Source>),
}

/// Every step's name.
fn names() -> String {
    let all: [&[&str]; 4] = [
        transforms::NAMES,
        effects::NAMES,
        &[protect::NAME],
        reporters::NAMES,
    ];
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
    } else if is_one_of(&[protect::NAME]) {
        let mut table = table.clone();
        table.remove(TRANSFORM);
        let settings: protect::Settings = settings(&table).map_err(flaw)?;
        let built = settings.build().map_err(flaw);
        built.map(|(step, source)| Step::Protects(step, source))
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
            "[[rule]]\nname = \"r\"\nto = [\":9042\"]\naction = \"{action}\"\npipeline = [{step}]\nfail = \"closed\"\n"
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
            "{ transform = \"cache\", redis = \"10.0.0.9:6379\", tables = [\"shop.products\"], ttl = \"30s\", max_bytes = 1, \
             timeout = \"20ms\", prefix = \"p\", username = \"u\", password_file = \"/p\" }",
            "{ transform = \"coalesce\", tables = { \"shop.e\" = { partition_key = [\"d\"], clustering = [\"at\"], \
             columns = [\"v\"] } }, window = \"2ms\", max_statements = 50, max_bytes = 65536 }",
            "{ transform = \"mirror\", to = \"10.0.0.9:9042\", what = [\"reads\", \"writes\"], sample = 1.0, compare = \
             true, dual_write = true, username = \"u\", password_file = \"/p\", timeout = \"1s\", on_failure = \
             \"error\", show_values = true }",
            "{ transform = \"protect\", columns = { \"shop.customers\" = [\"iban\"] }, kms = \
             \"http://127.0.0.1:8200/keys\", refresh = \"10s\", max_age = \"60m\", timeout = \"1s\", \
             unencrypted = \"pass\", on_failure = \"error\" }",
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
    fn what_must_not_be_in_plain_is_under_a_rule_that_lets_nothing_past() {
        let of = |rule: &str, more: &str| {
            let text = format!(
                "[[rule]]\nname = \"r\"\nto = [\":9042\"]\naction = \"enrich\"\n{rule}\npipeline = [{{ \
                 transform = \"protect\", columns = {{ \"a.b\" = [\"c\"] }}, keys = \"/k\" }}{more}]\n"
            );
            Config::parse(Path::new("u.toml"), &text).map_err(|e| e.to_string())
        };
        of("fail = \"closed\"", "").unwrap();
        of(
            "fail = \"closed\"",
            ", { transform = \"audit\", file = \"/a\" }",
        )
        .unwrap();
        for (rule, more, expected) in [
            ("", "", "u.toml:2:8: rule.fail: expected `closed`"),
            (
                "fail = \"open\"",
                "",
                "u.toml:5:8: rule.fail: expected `closed`",
            ),
            (
                "fail = \"closed\"\nsample = 0.5",
                "",
                "rule.sample: expected none",
            ),
            (
                "fail = \"closed\"",
                ", { transform = \"audit\", file = \"/a\", statement = true }",
                "expected no `statement = true`",
            ),
            (
                "fail = \"closed\"",
                ", { transform = \"debug\", values = true }",
                "expected no `values = true`",
            ),
        ] {
            let error = of(rule, more).unwrap_err();
            assert!(error.contains(expected), "{error}");
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
            (
                format!(
                    "{mirror} }}, {{ transform = \"protect\", columns = {{ \"a.b\" = [\"c\"] }}, keys = \"/k\" }}"
                ),
                "expected mirror behind all transforms, because it takes requests as the database gets them; found \
                 protect behind it",
            ),
        ];
        for (step, expected) in mirrors {
            let error = found("enrich", &step).unwrap_err();
            assert!(error.contains(expected), "{step}: {error}");
        }
        let cache = "{ transform = \"cache\", redis = \"10.0.0.9:6379\"";
        let of = "tables = [\"shop.a\"], ttl = \"30s\"";
        let caches = [
            (format!("{cache} }}"), "missing field `tables`"),
            (
                format!("{{ transform = \"cache\", redis = \"r:6379\", {of} }}"),
                "redis: expected `IP:PORT`; found \"r:6379\"",
            ),
            (
                format!("{cache}, tables = [], ttl = \"30s\" }}"),
                "tables: expected 1 to 32",
            ),
            (
                format!("{cache}, tables = [\"shop\"], ttl = \"30s\" }}"),
                "tables: expected `keyspace.table`",
            ),
            (
                format!("{cache}, tables = [\"system.local\"], ttl = \"30s\" }}"),
                "tables: expected none of the server's own",
            ),
            (
                format!("{cache}, tables = [\"a.b\"], ttl = \"2000m\" }}"),
                "ttl: expected `1ms` to `1440m`; found \"2000m\"",
            ),
            (
                format!("{cache}, {of}, timeout = \"0ms\" }}"),
                "timeout: expected `1ms` to `10s`",
            ),
            (
                format!("{cache}, {of}, max_bytes = 0 }}"),
                "max_bytes: expected 1 to 1048576; found 0",
            ),
            (
                format!("{cache}, {of}, prefix = \"\" }}"),
                "prefix: expected",
            ),
            (
                format!("{cache}, {of}, username = \"u\" }}"),
                "username: expected with `password_file`",
            ),
            (
                format!("{cache}, {of}, password_file = \"p\" }}"),
                "password_file: expected an absolute path",
            ),
            (
                format!("{cache}, {of} }}, {tag}"),
                "expected cache behind all transforms",
            ),
            (
                format!(
                    "{{ transform = \"rewrite\", keyspaces = {{ a = \"b\" }} }}, {cache}, {of} }}"
                ),
                "expected no `keyspaces` and `tables` of rewrite",
            ),
        ];
        for (step, expected) in caches {
            let error = found("enrich", &step).unwrap_err();
            assert!(error.contains(expected), "{step}: {error}");
        }
        let coalesce = "{ transform = \"coalesce\", tables = { \"a.b\" = { partition_key = [\"p\"], clustering = \
                        [\"c\"], columns = [] } } }";
        let protect = "{ transform = \"protect\", columns = { \"a.b\" = [\"v\"] }, keys = \"/k\" }";
        let guard = "{ transform = \"guard\", max_batch = 9 }";
        let rewrite = "{ transform = \"rewrite\"";
        let orders = [
            (
                format!("{coalesce}, {protect}"),
                "u.toml:5:123: rule.pipeline: expected protect before coalesce, because a write that it refuses",
            ),
            (
                format!("{coalesce}, {guard}"),
                "expected guard before coalesce",
            ),
            (
                format!("{coalesce}, {tag}, {coalesce}"),
                "expected coalesce once",
            ),
            (
                format!("{mirror} }}, {coalesce}"),
                "expected mirror behind all transforms",
            ),
            (
                format!("{cache}, {of} }}, {coalesce}"),
                "expected cache behind all transforms",
            ),
            (
                format!("{coalesce}, {rewrite}, tables = {{ \"a.b\" = \"a.c\" }} }}"),
                "`tables` of rewrite in a pipeline with coalesce",
            ),
        ];
        for (steps, expected) in orders {
            let error = found("enrich", &steps).unwrap_err();
            assert!(error.contains(expected), "{steps}: {error}");
        }
        let all = format!(
            "{guard}, {rewrite}, timestamps = \"server\" }}, {protect}, {coalesce}, {rewrite}, default_ttl = \"9d\" }}, \
             {{ transform = \"throttle\", rate = 9 }}, {cache}, {of} }}, {mirror} }}"
        );
        found("enrich", &all).unwrap();
        found("enrich", &format!("{tag}, {cache}, {of} }}, {mirror} }}")).unwrap();
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
