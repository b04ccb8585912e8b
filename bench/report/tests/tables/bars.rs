//! Whether bars are met, and when nobody can tell.

use super::*;

#[test]
fn bars_are_met_or_missed_at_the_bound() {
    let mut run = run(1);
    let verdict = |run: &Run, n: usize| bars::ALL[n].verdict(run);
    let to = |run: &mut Run, ops: u64| {
        series_mut(run, "node-raw", "direct")
            .rounds
            .iter_mut()
            .for_each(|r| did(r, 100_000));
        shape(run, "node-raw", "bypass", |_, round| did(round, ops));
    };
    to(&mut run, 98_000);
    assert_eq!(verdict(&run, 0), Verdict::Met(0.98));
    to(&mut run, 97_900);
    assert!(matches!(verdict(&run, 0), Verdict::Missed(_)));
    assert!(readme(&run).contains("| 0.979 | **missed** |"));
    // The worst of all that begin so.
    let memory = memory();
    assert!(matches!(memory.verdict(&run), Verdict::Met(_)));
    series_mut(&mut run, "stress-write-raw", "enrich").rounds[1]
        .proxy
        .rss_peak_kib = 21 * 1024;
    assert_eq!(memory.verdict(&run), Verdict::Missed(21.0));
    run.experiments.clear();
    for bar in bars::ALL {
        assert!(
            matches!(bar.verdict(&run), Verdict::NotMeasured(_)),
            "{}",
            bar.text()
        );
    }
}

fn memory() -> &'static bars::Bar {
    let mut all = bars::ALL.iter();
    all.find(|b| b.measure == bars::Measure::RssMib).unwrap()
}

fn why_not(run: &Run, bar: &bars::Bar) -> String {
    match bar.verdict(run) {
        Verdict::NotMeasured(why) => why,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_bound_within_the_spread_is_neither_met_nor_missed() {
    let mut run = run(1);
    let verdict = |run: &mut Run, ratios: [f64; 5]| {
        shape(run, "node-raw", "bypass", |n, round| {
            did(round, (round.ops as f64 * ratios[n]) as u64)
        });
        bars::ALL[0].verdict(run)
    };
    let around = [0.97, 0.99, 1.0, 1.0, 1.01];
    let found = verdict(&mut run, around);
    assert!(matches!(found, Verdict::WithinNoise(v) if v.low < 0.98 && v.high > 1.0));
    let page = readme(&run);
    let said = row(&page, "*Bars", "| bypass");
    assert!(said.ends_with("| 1.000 | within noise (0.970 … 1.010) |"));
    assert!(matches!(verdict(&mut run, [0.981; 5]), Verdict::Met(_)));
    let below = verdict(&mut run, [0.95, 0.97, 0.96, 0.97, 0.979]);
    assert!(matches!(below, Verdict::Missed(_)));
}

#[test]
fn too_few_rounds_meet_no_bar() {
    let mut run = run(1);
    for series in run.experiments.iter_mut().flat_map(|e| &mut e.series) {
        series.rounds.truncate(4);
    }
    for bar in bars::ALL {
        assert!(matches!(bar.verdict(&run), Verdict::NotMeasured(_)));
    }
    assert_eq!(why_not(&run, &bars::ALL[0]), "rounds: 4, of the 5 it takes");
    assert_eq!(bars::tally(&run).met, 0);
    assert!(!readme(&run).lines().any(|row| row.ends_with("| met |")));
}

#[test]
fn who_had_errors_meets_no_bar() {
    let mut run = run(1);
    series_mut(&mut run, "node-raw", "bypass").rounds[0].errors = 2;
    assert_eq!(why_not(&run, &bars::ALL[0]), "bypass had errors: 2");
    series_mut(&mut run, "stress-read", "direct").rounds[0].errors = 1;
    assert_eq!(why_not(&run, memory()), "stress-read: direct had errors: 1");
}

#[test]
fn a_bar_over_several_needs_all_of_them() {
    let changed = |change: &dyn Fn(&mut Run)| {
        let mut run = run(1);
        change(&mut run);
        why_not(&run, memory())
    };
    let missing = changed(&|run| run.experiments.retain(|e| e.id != "stress-write-raw"));
    assert_eq!(missing, "stress-write-raw: not part of this run");
    let failed = changed(&|run| {
        run.experiments.retain(|e| e.id != "stress-read");
        run.failed.insert("stress-read".into(), "it died".into());
    });
    assert_eq!(failed, "stress-read: failed: it died");
    let refused =
        changed(&|run| experiment_mut(run, "stress-read-raw").refused = Some("slow".into()));
    assert_eq!(refused, "stress-read-raw: withheld: slow");
    let left_out = changed(&|run| {
        let experiment = experiment_mut(run, "stress-write");
        experiment.series.retain(|s| s.path != "enrich");
        let reason = "failed: it hung".into();
        experiment.left_out.insert("enrich".into(), reason);
    });
    assert_eq!(left_out, "stress-write: failed: it hung");
}

/// A bar that holds a path against another one.
fn against(measure: impl Fn(bars::Measure) -> bool) -> &'static bars::Bar {
    let mut all = bars::ALL.iter();
    all.find(|bar| bar.path == "splice" && measure(bar.measure))
        .unwrap()
}

#[test]
fn a_path_is_held_against_another_one_round_by_round() {
    let mut run = run(1);
    let measured = |run: &mut Run, id: &str, of: &dyn Fn(&str, &mut Round)| {
        let experiment = run.experiments.iter_mut().find(|e| e.id == "node-raw");
        let mut experiment = experiment.unwrap().clone();
        experiment.id = id.into();
        let series = |name: &str| {
            let mut series = experiment.series.iter().find(|s| s.path == "direct");
            let mut series = series.take().unwrap().clone();
            series.path = name.into();
            series.rounds.iter_mut().for_each(|round| of(name, round));
            series
        };
        experiment.series = ["direct", "splice", "relay"].map(series).into();
        run.experiments.push(experiment);
    };
    run.paths.retain(|path| path.name != "splice");
    for name in ["splice", "relay"] {
        let mut path = run.path("bypass").unwrap().clone();
        path.name = name.into();
        run.paths.push(path);
    }
    measured(&mut run, "node-raw-nonblocking-32", &|name, round| {
        did(round, if name == "splice" { 130_000 } else { 100_000 });
    });
    let ops = against(|m| matches!(m, bars::Measure::Against("relay", _)));
    assert_eq!(ops.verdict(&run), Verdict::Met(1.3));
    assert_eq!(ops.text(), "op/s\u{a0}≥\u{a0}1.30\u{a0}×\u{a0}relay");
    assert!(readme(&run).contains("| 1.300 | met |"));
    // What nobody adds to is no measure: the other adds nothing.
    measured(&mut run, "node-raw-nonblocking-1", &|_, _| {});
    let share = against(|m| matches!(m, bars::Measure::Share("relay", _)));
    assert!(matches!(share.verdict(&run), Verdict::NotMeasured(_)));
}
