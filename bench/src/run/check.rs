//! The checks of a quick run, which must hold on any machine, however noisy: everything was
//! measured and nothing is absurd. The bars are for full runs (`report::bars`).

use report::{
    schema::{Experiment, Path, Run, Series},
    stats::median,
};

use super::experiment::FAILED;
use crate::paths::{DIRECT, SHORTCUT};

/// The bounds of bypass against direct, in operations a second: both do the same, on a noisy
/// machine.
const BYPASS: [f64; 2] = [0.4, 2.5];
/// The least ratio of every other way. A proxy on the same two cores halves it, and one that is built
/// without optimisation, as for tests, leaves a tenth on a busy machine. A broken one does far worse.
const LEAST: f64 = 0.03;
/// The greatest ratio. Nothing is faster than direct except by noise: on a machine that was busy
/// otherwise, 1.71 was seen.
const MOST: f64 = 2.5;
/// The greatest ratio of ways past TCP: more than twice direct was seen.
const MOST_PAST_TCP: f64 = 4.0;
/// The least share of the rate that a schedule calls for.
const LEAST_OF_RATE: f64 = 0.8;

/// Lists the faults of a run. Without any it will do.
pub fn loose(run: &Run) -> Vec<String> {
    let mut wrong = missing(run);
    for experiment in &run.experiments {
        let id = &experiment.id;
        let judged = experiment.series.iter();
        let judged = judged.filter_map(|series| judge(experiment, series));
        wrong.extend(judged.map(|why| format!("{id}: {why}")));
    }
    wrong
}

/// Lists what was to be measured and was not, and what is withheld.
pub fn missing(run: &Run) -> Vec<String> {
    let failed = run.failed.iter();
    let mut missing: Vec<String> = failed.map(|(id, why)| format!("{id}: {why}")).collect();
    let experiments = run.experiments.iter();
    missing.extend(experiments.flat_map(|experiment| missing_of(experiment, &run.paths)));
    missing
}

fn missing_of(experiment: &Experiment, paths: &[Path]) -> Vec<String> {
    let refused = experiment.refused.iter();
    let refused = refused.map(|why| format!("{}: refused: {why}", experiment.id));
    let wanted = paths.iter().filter(|path| path.absent.is_none());
    let lacking = wanted.filter(|path| {
        let mut series = experiment.series.iter();
        !series.any(|series| series.path == path.name)
    });
    refused
        .chain(lacking.filter_map(|path| fault(experiment, &path.name)))
        .collect()
}

/// A path that cannot carry a protocol says so; one that failed is a fault of somebody.
fn fault(experiment: &Experiment, path: &str) -> Option<String> {
    let why = experiment
        .left_out
        .get(path)
        .map_or("no reason was kept", String::as_str);
    let is_fault = why.starts_with(FAILED) || path == DIRECT;
    is_fault.then(|| format!("{}: {path} was not measured: {why}", experiment.id))
}

fn judge(experiment: &Experiment, series: &Series) -> Option<String> {
    let path = &series.path;
    let errors: u64 = series.rounds.iter().map(|round| round.errors).sum();
    if errors > 0 {
        let first = series
            .rounds
            .iter()
            .find_map(|round| round.first_error.as_deref());
        return Some(format!(
            "{path}: {errors} errors, the first: {}",
            first.unwrap_or_default()
        ));
    }
    let mine = op_s(series)?;
    if let Some(rate) = experiment.rate.filter(|_| path == DIRECT) {
        let is_slow = mine < rate * LEAST_OF_RATE;
        return is_slow.then(|| format!("{path}: {mine:.0} op/s of a schedule of {rate:.0}"));
    }
    let direct = experiment
        .series
        .iter()
        .find(|series| series.path == DIRECT);
    let ratio = mine / direct.and_then(op_s)?;
    let [least, most] = match path.as_str() {
        "bypass" => BYPASS,
        name if name == SHORTCUT.name => [LEAST, MOST_PAST_TCP],
        _ => [LEAST, MOST],
    };
    let is_absurd = !(least..=most).contains(&ratio);
    is_absurd.then(|| format!("{path}: {ratio:.2} × direct's op/s, not {least} to {most}"))
}

fn op_s(series: &Series) -> Option<f64> {
    median(
        series
            .rounds
            .iter()
            .map(|round| round.in_time as f64 / round.seconds.max(f64::MIN_POSITIVE)),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use report::schema::Round;

    fn experiment(bypass_ops: u64, errors: u64) -> Experiment {
        let series = |path: &str, ops| Series {
            path: path.into(),
            rounds: vec![
                Round {
                    seconds: 1.0,
                    ops,
                    in_time: ops,
                    errors,
                    ..Round::default()
                };
                3
            ],
            ..Series::default()
        };
        let text = serde_json::json!({
            "id": "x", "workload": "x", "title": "", "origin": { "name": "", "url": "", "changed": "" },
            "published": [], "database": "node", "nodes": 1, "client": "raw", "threads": 1,
            "connections": 1, "depth": 1, "rate": null, "refused": null, "left_out": {}, "headroom": null,
            "series": [series("direct", 1_000), series("bypass", bypass_ops)],
        });
        serde_json::from_value(text).unwrap()
    }

    fn wrong(experiment: &Experiment) -> Vec<String> {
        experiment
            .series
            .iter()
            .filter_map(|series| judge(experiment, series))
            .collect()
    }

    #[test]
    fn the_absurd_is_noticed() {
        assert_eq!(wrong(&experiment(900, 0)), Vec::<String>::new());
        assert!(wrong(&experiment(300, 0))[0].contains("bypass: 0.30"));
        assert!(wrong(&experiment(3_000, 0))[0].contains("bypass: 3.00"));
        assert_eq!(wrong(&experiment(900, 1)).len(), 2);
    }

    #[test]
    fn a_path_that_failed_is_noticed_and_one_that_cannot_is_not() {
        let mut experiment = experiment(900, 0);
        experiment
            .left_out
            .insert("nginx".into(), "failed: it died".into());
        experiment
            .left_out
            .insert("enrich".into(), "it decodes CQL alone".into());
        assert!(fault(&experiment, "nginx").is_some());
        assert_eq!(fault(&experiment, "enrich"), None);
    }

    #[test]
    fn an_experiment_that_is_withheld_is_noticed() {
        let mut experiment = experiment(900, 0);
        assert_eq!(missing_of(&experiment, &[]), Vec::<String>::new());
        experiment.refused = Some("two directs differ".into());
        assert_eq!(
            missing_of(&experiment, &[]),
            ["x: refused: two directs differ"]
        );
    }
}
