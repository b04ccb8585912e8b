//! Whether bars are met, and when nobody can tell.

use report::{
    bars::{Bar, Bound, Measure, Tally, again_differs, is_done, tally},
    schema::{Experiment, Series},
    sequential::{LEAST_ROUNDS, MOST_ROUNDS},
    stats::Estimate,
};

use super::*;

/// Every experiment with a bar: all paths alike, in so many rounds.
fn all_alike(rounds: usize) -> Run {
    let mut run = run(1);
    let like = run.experiment("node-raw").unwrap().clone();
    let direct = like.series("direct").unwrap();
    let mut round = direct.rounds.first().unwrap().clone();
    did(&mut round, 100_000);
    let series = |path: &str| Series {
        path: path.into(),
        rounds: vec![round.clone(); rounds],
        ..Series::default()
    };
    run.experiments.clear();
    for bar in bars::ALL {
        if run.experiment(bar.experiment).is_none() {
            run.experiments.push(Experiment {
                id: bar.experiment.into(),
                series: vec![series("direct"), series("direct-again")],
                ..like.clone()
            });
        }
        for path in bar.paths() {
            let experiment = experiment_mut(&mut run, bar.experiment);
            if experiment.series(path).is_none() {
                experiment.series.push(series(path));
            }
        }
    }
    run.paths.clear();
    run
}

fn bar(path: &str, measure: impl Fn(Measure) -> bool) -> &'static Bar {
    let mut all = bars::ALL.iter();
    all.find(|bar| bar.path == path && measure(bar.measure))
        .unwrap()
}

fn throughput(path: &str) -> &'static Bar {
    bar(
        path,
        |measure| matches!(measure, Measure::Ratio(metric) if metric.name() == "op/s"),
    )
}

/// A path's throughput in each round, as a ratio to direct's.
fn ratios(run: &mut Run, bar: &Bar, ratio: impl Fn(usize) -> f64) {
    shape(run, bar.experiment, bar.path, |n, round| {
        did(round, (100_000.0 * ratio(n)) as u64);
    });
}

#[test]
fn bars_are_met_or_missed_at_the_bound() {
    let bypass = throughput("bypass");
    let mut run = all_alike(10);
    ratios(&mut run, bypass, |_| 0.9801);
    let Verdict::Met(Estimate { figure, rounds, .. }) = bypass.verdict(&run) else {
        panic!("it is above");
    };
    assert!((figure - 0.9801).abs() < 1e-9 && rounds == 10);
    ratios(&mut run, bypass, |_| 0.979);
    assert!(matches!(bypass.verdict(&run), Verdict::Missed(_)));
    assert!(pages::bars(Some(&run)).contains("| 0.979 | exact | 10 | **missed** |"));
    // A maximum: one round above it is above it.
    let memory = bar("splice", |measure| measure == Measure::RssMib);
    let Bound::AtMost(mib) = memory.bound else {
        panic!("{memory:?}");
    };
    let series = series_mut(&mut run, memory.experiment, memory.path);
    series.rounds[3].proxy.rss_peak_kib = (mib as u64 + 1) * 1024;
    assert!(matches!(memory.verdict(&run), Verdict::Missed(v) if v.figure == mib + 1.0));
    run.experiments.clear();
    let not_measured = |bar: &Bar| matches!(bar.verdict(&run), Verdict::NotMeasured(_));
    assert!(bars::ALL.iter().all(not_measured));
}

#[test]
fn the_interval_decides_or_the_median_of_a_narrow_one() {
    let bypass = throughput("bypass");
    let mut run = all_alike(MOST_ROUNDS);
    let verdict = |run: &mut Run, low: f64, high: f64| {
        // Evenly from low to high, in an order without a trend.
        ratios(run, bypass, |n| {
            low + (high - low) * ((n * 37) % MOST_ROUNDS) as f64 / MOST_ROUNDS as f64
        });
        bypass.verdict(run)
    };
    assert!(matches!(verdict(&mut run, 0.985, 1.2), Verdict::Met(_)));
    assert!(matches!(verdict(&mut run, 0.7, 0.979), Verdict::Missed(_)));
    // The bound is within, and the interval narrow.
    let Verdict::Met(value) = verdict(&mut run, 0.963, 1.0) else {
        panic!("the median is above");
    };
    assert!(value.low < 0.98 && value.figure > 0.98);
    assert!(matches!(verdict(&mut run, 0.955, 1.0), Verdict::Missed(_)));
    // And wide: it is said why.
    let Verdict::Undecided(value, why) = verdict(&mut run, 0.7, 1.3) else {
        panic!("nobody can tell");
    };
    assert!(value.low < 0.98 && value.high > 0.98);
    assert_eq!(why, "its rounds scatter");
    let page = pages::bars(Some(&run));
    assert!(page.contains("**undecided**: its rounds scatter"), "{page}");
}

#[test]
fn a_bar_is_done_when_it_is_decided() {
    let bypass = throughput("bypass");
    let mut run = all_alike(LEAST_ROUNDS);
    ratios(&mut run, bypass, |_| 1.0);
    let done = |run: &Run| is_done(bypass, run.experiment(bypass.experiment).unwrap());
    assert!(done(&run));
    ratios(&mut run, bypass, |n| 0.8 + n as f64 / 20.0);
    assert!(!done(&run));
    let mut run = all_alike(LEAST_ROUNDS - 1);
    ratios(&mut run, bypass, |_| 1.0);
    assert!(!done(&run), "nobody looks so early");
    // What only all rounds together tell is not waited for.
    let pauses = bar("splice", |measure| measure == Measure::HandOver);
    assert!(is_done(pauses, run.experiment(pauses.experiment).unwrap()));
}

#[test]
fn without_a_figure_there_is_no_verdict() {
    let bypass = throughput("bypass");
    let why = |change: &dyn Fn(&mut Run)| {
        let mut run = all_alike(LEAST_ROUNDS);
        change(&mut run);
        match bypass.verdict(&run) {
            Verdict::NotMeasured(why) => why,
            other => panic!("{other:?}"),
        }
    };
    let id = bypass.experiment;
    let few = why(&|run| series_mut(run, id, "bypass").rounds.truncate(4));
    assert_eq!(few, "rounds: 4, of the 10 it takes");
    let errors = why(&|run| series_mut(run, id, "bypass").rounds[0].errors = 2);
    assert_eq!(errors, "bypass had errors: 2");
    let errors = why(&|run| series_mut(run, id, "direct").rounds[0].errors = 1);
    assert_eq!(errors, "direct had errors: 1");
    let refused = why(&|run| experiment_mut(run, id).refused = Some("slow".into()));
    assert_eq!(refused, "withheld: slow");
    let left_out = why(&|run| {
        let experiment = experiment_mut(run, id);
        experiment.series.retain(|series| series.path != "bypass");
        let reason = "failed: it hung".into();
        experiment.left_out.insert("bypass".into(), reason);
    });
    assert_eq!(left_out, "failed: it hung");
    let failed = why(&|run| {
        run.experiments.retain(|experiment| experiment.id != id);
        run.failed.insert(id.into(), "it died".into());
    });
    assert_eq!(failed, "failed: it died");
}

#[test]
fn a_path_is_held_against_another_one_round_by_round() {
    let mut run = all_alike(LEAST_ROUNDS);
    let ops = bar(
        "splice",
        |m| matches!(m, Measure::Against("relay", metric) if metric.name() == "op/s"),
    );
    ratios(&mut run, ops, |_| 1.3001);
    assert!(matches!(ops.verdict(&run), Verdict::Met(v) if (v.figure - 1.3001).abs() < 1e-9));
    assert_eq!(ops.text(), "op/s\u{a0}≥\u{a0}1.30\u{a0}×\u{a0}relay");
    // What nobody adds to is no measure: the other adds nothing.
    let share = bar("splice", |m| matches!(m, Measure::Share("relay", _)));
    assert!(matches!(share.verdict(&run), Verdict::NotMeasured(_)));
    let id = share.experiment;
    shape(&mut run, id, "relay", |_, round| {
        round.latency.p50_us += 20.0
    });
    shape(&mut run, id, "splice", |_, round| {
        round.latency.p50_us += 10.0
    });
    assert!(matches!(share.verdict(&run), Verdict::Met(v) if (v.figure - 0.5).abs() < 1e-9));
}

#[test]
fn an_experiment_whose_directs_differ_is_noticed() {
    let mut run = all_alike(LEAST_ROUNDS);
    let id = throughput("bypass").experiment;
    let differs = |run: &Run| again_differs(run.experiment(id).unwrap());
    assert_eq!(differs(&run), None);
    shape(&mut run, id, "direct-again", |n, round| {
        did(round, 99_000 + 200 * n as u64);
    });
    assert_eq!(differs(&run), None, "1 is in the interval");
    shape(&mut run, id, "direct-again", |_, round| did(round, 97_000));
    let why = differs(&run).unwrap();
    assert!(why.contains("0.970"), "{why}");
    let page = pages::bars(Some(&run));
    assert!(row(&page, "Direct against itself", &format!("| `{id}`")).contains("**thrown out**"));
    // Of an experiment without a second direct nothing is said.
    let experiment = experiment_mut(&mut run, id);
    experiment
        .series
        .retain(|series| series.path != "direct-again");
    assert_eq!(differs(&run), None);
}

#[test]
fn verdicts_are_counted() {
    let mut run = all_alike(LEAST_ROUNDS);
    let before = tally(&run);
    let sum = |t: Tally| t.met + t.missed + t.undecided + t.not_measured;
    assert_eq!(sum(before), bars::ALL.len());
    ratios(&mut run, throughput("bypass"), |_| 0.5);
    let after = tally(&run);
    assert_eq!(
        (after.missed, after.met),
        (before.missed + 1, before.met - 1)
    );
    let page = pages::bars(Some(&run));
    let said = format!("{} met, {} missed, 0 undecided", after.met, after.missed);
    assert!(page.contains(&said), "{page}");
    assert!(pages::bars(None).contains("No run of the bars is committed."));
}
