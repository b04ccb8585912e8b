//! The meaning of `pipeline`: steps, with their settings.

use std::{
    collections::{HashMap, HashSet},
    path::PathBuf,
    sync::Arc,
};

use cql_edit::{Transform, transforms};
use flow::About;
use policy::{Action, RuleName, did_you_mean};
use serde::de::DeserializeOwned;
use steps::{
    JournalSettings, Reporter, WhenFull, effect::Effect, effects, lookup, otlp::CollectorSettings,
    pipelines::Steps, protect, reporters,
};
use toml::{Spanned, Table};

use super::bounds::MAX_STEPS;
use super::{error::Flaw, protective, raw::RawRule, value::said_by_parser};

/// The step that merges writes.
const COALESCE: &str = "coalesce";

/// The step that has flows share connections.
const FOLD: &str = "fold";

/// The step whose journal is for auditors.
const AUDIT: &str = "audit";

/// The key that names a step's transform.
const TRANSFORM: &str = "transform";

/// The transform that a step names.
pub(super) fn name_of(step: &Spanned<Table>) -> Option<&str> {
    step.get_ref().get(TRANSFORM)?.as_str()
}

/// Reads the pipelines of the rules that have one.
/// `collector`: that of `[otlp]`; `shares`: there is a store by which hosts share limits.
pub(super) fn of(
    rules: &[Spanned<RawRule>],
    collector: Option<&CollectorSettings>,
    shares: bool,
) -> Result<Vec<(RuleName, Steps)>, Flaw> {
    let rules = rules.iter().map(Spanned::get_ref);
    let rules = rules.filter(|rule| !rule.pipeline.is_empty());
    let mut journals = HashMap::new();
    rules
        .map(|rule| {
            let name = RuleName::new(rule.name.get_ref());
            let steps = pipeline(rule, collector)?;
            may_share(rule, &steps, shares)?;
            keeps_alike(rule, &steps, &mut journals)?;
            Ok((name, steps))
        })
        .collect()
}

/// Warnings of steps that do less than their name promises.
pub(super) fn doubts(pipelines: &[(RuleName, Steps)]) -> Vec<String> {
    let doubt = |steps: &Steps| {
        let mut reporters = steps.report.iter().flat_map(|report| report.iter());
        reporters.find_map(|reporter| match reporter.journal() {
            _ if reporter.name() != AUDIT => None,
            None => Some(
                "`audit` without a `file` loses records that the collector does not take; with one, they are there, too",
            ),
            Some(journal) if journal.when_full == WhenFull::Drop => Some(
                "`audit` with full = \"drop\" loses records for which there is no room; without `full`, their flows \
                 wait instead",
            ),
            Some(_) => None,
        })
    };
    let doubts = pipelines.iter().filter_map(|(name, steps)| {
        let doubt = doubt(steps)?;
        Some(format!("rule {name}: {doubt}"))
    });
    doubts.collect()
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

fn pipeline(rule: &RawRule, collector: Option<&CollectorSettings>) -> Result<Steps, Flaw> {
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
        match step(raw, rule, collector)? {
            Step::Edits(step) => {
                behind_all(&effects, &*step, raw)?;
                before_merging(&effects, &*step, raw)?;
                edit.push(step);
            }
            Step::Carries(effect) => {
                if !effect.is_last() {
                    behind_all(&effects, &*effect, raw)?;
                }
                before_merging(&effects, &*effect, raw)?;
                before_folding(&effects, &*effect, raw)?;
                edit.push(effect.clone());
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
    means_what_is_named(rule, &edit, &report)?;
    if protective::refuses_unread(rule) && !edit.iter().any(|step| step.is_strict()) {
        edit.insert(0, transforms::readable());
    }
    let names = rule.pipeline.iter().filter_map(|raw| {
        let name = raw.get_ref().get(TRANSFORM);
        name.and_then(toml::Value::as_str)
    });
    let about = About {
        because: match (&rule.trigger, &rule.sample) {
            (Some(_), _) => Some("because others are slow"),
            (None, Some(_)) => Some("of its sample"),
            (None, None) => None,
        },
        inline: None,
        names: names.collect::<Vec<_>>().join(", "),
    };
    Ok(Steps {
        edit: (!edit.is_empty()).then(|| edit.into()),
        report: (!report.is_empty()).then(|| report.into()),
        effects,
        keys,
        about: Arc::new(about),
    })
}

/// Refuses a limit that hosts share where they have nothing to share it by, and two of one name.
fn may_share(rule: &RawRule, steps: &Steps, shares: bool) -> Result<(), Flaw> {
    let mut limits = steps.edit.iter().flat_map(|steps| steps.iter());
    let mut names = HashSet::new();
    limits.try_for_each(|step| {
        let Some(limit) = step.limit() else {
            return Ok(());
        };
        let why = match (shares, names.insert(limit.name())) {
            (false, _) => {
                "expected `[limits]` with `endpoints`, or `[policy]` with `source = \"etcd\"`, where a throttle has \
                 `scope = \"fleet\"`: etcd is what hosts share a rate by; found neither"
                    .to_owned()
            }
            (true, false) => format!(
                "expected one throttle with `scope = \"fleet\"` and the same `per` in a rule, because hosts know the limit by rule and \
                 `per` ({}); found two",
                limit.name()
            ),
            (true, true) => return Ok(()),
        };
        Err(Flaw::new(rule.name.span(), format!("rule.pipeline: {why}")))
    })
}

/// `cache`, `coalesce` and `fold` know what a statement is about by the names in its text and the keyspace that the client is
/// in, which have to be those of one side; and a table has two names where the database's is understood, too. `lookup`
/// has texts of the database, which others would take for the client's.
fn means_what_is_named(
    rule: &RawRule,
    steps: &[Arc<dyn Transform>],
    reporters: &[Box<dyn Reporter>],
) -> Result<(), Flaw> {
    let reporters = reporters.iter().map(|step| step.name());
    let mut names = steps.iter().map(|step| step.name()).chain(reporters);
    let name = names.find(|name| ["cache", COALESCE, FOLD, lookup::NAME].contains(name));
    let Some(name) = name else {
        return Ok(());
    };
    let why = match name {
        lookup::NAME => "which would take the database's names for the client's",
        _ => "which would not know all writes to its tables",
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
                "rule.pipeline: expected no `keyspaces` and `tables` of rewrite in a pipeline with {name}, {why}"
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

/// Refuses a step behind `fold`: folded requests do not reach it, nor a step that takes requests as the database gets them.
fn before_folding(
    effects: &[Arc<dyn Effect>],
    step: &dyn Transform,
    raw: &Spanned<Table>,
) -> Result<(), Flaw> {
    if effects.iter().all(|effect| effect.name() != FOLD) {
        return Ok(());
    }
    let message = match step.name() {
        FOLD => format!("rule.pipeline: expected {FOLD} once; found it twice"),
        name => format!(
            "rule.pipeline: expected {FOLD} behind all other steps, because what it hands over does not reach them; \
             found {name} behind it"
        ),
    };
    Err(Flaw::new(raw.span(), message))
}

/// Refuses a rule that could let values past its `protect` step that must never be stored, or written to a log, in plain.
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
    Edits(Arc<dyn Transform>),
    Carries(Arc<dyn Effect>),
    Reports(Box<dyn Reporter>),
    Protects(Arc<dyn Transform>, Arc<protect::Source>),
}

/// Every step's name.
fn names() -> String {
    let all: [&[&str]; 4] = [
        transforms::NAMES,
        effects::NAMES,
        &[lookup::NAME, protect::NAME],
        reporters::NAMES,
    ];
    all.concat().join(", ")
}

/// Reads a step of a rule.
fn step(
    raw: &Spanned<Table>,
    rule: &RawRule,
    collector: Option<&CollectorSettings>,
) -> Result<Step, Flaw> {
    // What goes to its databases is encrypted.
    let encrypts = rule.upstream_tls.is_some();
    let flaw = |message: String| Flaw::new(raw.span(), format!("rule.pipeline: {message}"));
    let table = raw.get_ref();
    let Some(name) = table.get(TRANSFORM) else {
        return Err(flaw(format!("expected `{TRANSFORM}`, one of {}", names())));
    };
    let is_one_of = |names: &[&str]| name.as_str().is_some_and(|name| names.contains(&name));
    if is_one_of(transforms::NAMES) {
        let settings: transforms::TransformSettings = settings(table).map_err(flaw)?;
        let settings = settings.of_rule(rule.name.get_ref());
        settings.build().map(Step::Edits).map_err(flaw)
    } else if is_one_of(effects::NAMES) {
        let mut settings: effects::EffectSettings = settings(table).map_err(flaw)?;
        if encrypts {
            settings = settings.encrypting();
        }
        settings.build().map(Step::Carries).map_err(flaw)
    } else if is_one_of(&[lookup::NAME]) {
        let settings: lookup::LookupSettings = settings_alone(table).map_err(flaw)?;
        let built = settings.build(encrypts).map_err(flaw)?;
        Ok(match built {
            lookup::Built::Transform(step) => Step::Edits(step),
            lookup::Built::Reporter(step) => Step::Reports(step),
        })
    } else if is_one_of(&[protect::NAME]) {
        let settings: protect::ProtectSettings = settings_alone(table).map_err(flaw)?;
        let built = settings.build().map_err(flaw);
        built.map(|(step, source)| Step::Protects(step, source))
    } else if is_one_of(reporters::NAMES) {
        let settings: reporters::ReporterSettings = settings(table).map_err(flaw)?;
        let built = settings.with_collector(collector).build();
        built.map(Step::Reports).map_err(flaw)
    } else {
        let names = names();
        let meant = did_you_mean(name.as_str().unwrap_or_default(), names.split(", "));
        Err(flaw(format!(
            "{TRANSFORM}: expected one of {names}; found {name}{meant}"
        )))
    }
}

/// Reads settings that have no name among them.
fn settings_alone<T: DeserializeOwned>(table: &Table) -> Result<T, String> {
    let mut table = table.clone();
    table.remove(TRANSFORM);
    settings(&table)
}

fn settings<T: DeserializeOwned>(table: &Table) -> Result<T, String> {
    T::deserialize(table.clone()).map_err(|e| said_by_parser(&e))
}

#[cfg(test)]
mod tests;
