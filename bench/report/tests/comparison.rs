//! A planted regression is found, noise is not.

#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

mod common;

use common::{COSTS, Cost, did, experiment_mut, run, run_of, series_mut};
use report::{
    Comparison, compare,
    compare::{Figure, Note},
};

/// The notes of a kind, in their order.
fn notes(comparison: &Comparison, kind: Note) -> Vec<&str> {
    comparison.notes(kind).collect()
}

/// With enrich otherwise.
fn with(change: impl Fn(&mut Cost)) -> [Cost; 5] {
    let mut costs = COSTS;
    change(costs.iter_mut().find(|c| c.path == "enrich").unwrap());
    costs
}

#[test]
fn noise_moves_nothing() {
    for seed in 0..12 {
        let comparison = compare(&run(seed), &run(seed + 100));
        assert!(!comparison.is_regression(), "{seed}:\n{comparison}");
        assert!(comparison.moves.is_empty(), "{seed}:\n{comparison}");
        // Fifteen experiments, two paths of ours, five figures.
        let noisy = comparison.notes(Note::TooNoisy);
        let ours = noisy.filter(|n| n.contains("of bypass") || n.contains("of enrich"));
        assert_eq!(comparison.judged + ours.count(), 150, "{comparison}");
        assert!(comparison.to_string().ends_with("no regression\n"));
    }
}

#[test]
fn a_slower_path_is_found() {
    for seed in 0..6 {
        let slower = run_of(seed + 100, &with(|cost| cost.op_s *= 0.9));
        let comparison = compare(&run(seed), &slower);
        assert!(comparison.is_regression());
        let closed = ["node-raw", "stress-read", "stress-write-raw"];
        for id in closed {
            let found = comparison
                .moves
                .iter()
                .find(|m| m.experiment == id)
                .unwrap();
            assert_eq!((&*found.path, found.figure), ("enrich", Figure::OpS));
            assert!(!found.is_better && found.to < found.from && found.noise > 0.0);
        }
        let better = compare(&slower, &run(seed));
        assert!(!better.is_regression(), "{better}");
        assert!(better.moves.iter().all(|m| m.is_better) && !better.moves.is_empty());
    }
}

#[test]
fn latency_cpu_and_memory_are_looked_at() {
    let worse = run_of(
        7,
        &with(|cost| {
            cost.added_us *= 1.8;
            cost.cpu_us *= 1.3;
            cost.rss_kib *= 2;
        }),
    );
    let comparison = compare(&run(1), &worse);
    for figure in [Figure::P50, Figure::Cpu, Figure::Rss] {
        let found = comparison.moves.iter().filter(|m| m.figure == figure);
        assert!(found.clone().count() > 0, "{figure:?}\n{comparison}");
        assert!(
            found
                .into_iter()
                .all(|m| m.path == "enrich" && !m.is_better)
        );
    }
    let text = comparison.to_string();
    assert!(
        text.contains("worse") && text.contains("proxy's CPU/op ÷ direct's"),
        "{text}"
    );
    assert!(text.contains(" figures of ours compared, "), "{text}");
    assert!(
        text.contains("\nregression: figures that are worse: "),
        "{text}"
    );
}

#[test]
fn more_errors_are_a_regression() {
    let mut second = run(2);
    let round = &mut series_mut(&mut second, "node-raw", "bypass").rounds[0];
    (round.errors, round.first_error) = (3, Some("reset".into()));
    let comparison = compare(&run(1), &second);
    assert!(comparison.is_regression());
    assert_eq!(
        notes(&comparison, Note::MoreErrors),
        ["bypass in node-raw: 3 errors, the first: reset"]
    );
    assert_eq!(comparison.reasons(), ["paths with more errors: 1"]);
    assert!(!compare(&second, &run(1)).is_regression());
    // Where there were some, as many by a thousandth are no more.
    let mut third = run(3);
    for (errors, is_more) in [(4, false), (14_000, true)] {
        series_mut(&mut third, "node-raw", "bypass").rounds[0].errors = errors;
        let comparison = compare(&second, &third);
        assert_eq!(comparison.is_regression(), is_more, "{comparison}");
    }
    let told = compare(&second, &third).to_string();
    assert!(told.contains("14,000 errors (before: 3)"), "{told}");
}

#[test]
fn what_is_not_ours_is_no_regression() {
    let mut costs = COSTS;
    for cost in costs.iter_mut().filter(|c| c.path == "nginx") {
        (cost.op_s, cost.cpu_us) = (cost.op_s * 0.5, cost.cpu_us * 2.0);
    }
    let mut second = run_of(2, &costs);
    for path in ["direct", "nginx"] {
        series_mut(&mut second, "node-raw", path).rounds[0].errors = 50_000;
    }
    experiment_mut(&mut second, "connect")
        .series
        .retain(|s| s.path != "haproxy");
    let comparison = compare(&run(1), &second);
    assert!(!comparison.is_regression(), "{comparison}");
    assert!(
        comparison
            .moves
            .iter()
            .any(|m| m.path == "nginx" && !m.is_better)
    );
    assert_eq!(comparison.notes(Note::Information).count(), 2);
    assert_eq!(
        notes(&comparison, Note::OnlyFirst),
        ["haproxy in connect (not part of it)"]
    );
    let text = comparison.to_string();
    assert!(text.contains("(another's: worse)  "), "{text}");
    assert!(
        text.contains("for information: direct in node-raw: 50,000 errors"),
        "{text}"
    );
}

#[test]
fn what_of_ours_is_not_measured_any_more_is_a_regression() {
    let (first, mut second) = (run(1), run(2));
    assert!(!compare(&first, &second).is_regression());
    second
        .experiments
        .retain(|e| !["connect", "nodes-4"].contains(&&*e.id));
    second.failed.insert("nodes-4".into(), "it died".into());
    let experiment = experiment_mut(&mut second, "node-raw");
    experiment
        .series
        .retain(|s| s.path == "direct" || s.path == "bypass");
    let reason = "failed: it hung".to_owned();
    experiment.left_out.insert("enrich".into(), reason);
    experiment_mut(&mut second, "nodes-1").refused = Some("slow".into());
    series_mut(&mut second, "nodes-2", "bypass").rounds.clear();
    let comparison = compare(&first, &second);
    assert_eq!(
        notes(&comparison, Note::NotMeasured),
        [
            "enrich in node-raw (failed: it hung)",
            "connect (not part of it)",
            "nodes-1 (withheld: slow)",
            "bypass in nodes-2 (no round of it)",
            "nodes-4 (failed: it died)",
        ]
    );
    assert_eq!(
        comparison.notes(Note::OnlyFirst).count(),
        2,
        "haproxy and nginx"
    );
    assert_eq!(comparison.reasons(), ["not measured in the second run: 5"]);
    let text = comparison.to_string();
    assert!(
        text.contains("not measured in the second run: connect (not part of it)\n"),
        "{text}"
    );
    let other_way = compare(&second, &first);
    assert!(!other_way.is_regression());
    assert_eq!(other_way.notes(Note::OnlySecond).count(), 7);
}

#[test]
fn a_figure_that_is_lost_is_a_regression() {
    let mut second = run(2);
    experiment_mut(&mut second, "connect")
        .series
        .retain(|s| s.path != "direct");
    let comparison = compare(&run(1), &second);
    assert!(comparison.is_regression());
    // All but its memory are held against direct.
    let lost = notes(&comparison, Note::NotMeasured);
    assert_eq!(lost.len(), 8, "{comparison}");
    assert!(lost.contains(&"p50 ÷ direct of enrich in connect"));
}

#[test]
fn where_nothing_can_be_judged_nothing_is_well() {
    let (first, mut second) = (run(1), run(2));
    let nothing = "nothing comparable: fewer than 5 rounds or no common experiment";
    for series in second.experiments.iter_mut().flat_map(|e| &mut e.series) {
        series.rounds.truncate(4);
    }
    let comparison = compare(&first, &second);
    assert!(comparison.judged == 0 && comparison.is_regression());
    assert_eq!(comparison.reasons(), [nothing]);
    let mut empty = run(2);
    empty.experiments.clear();
    for (a, b) in [(&first, &empty), (&empty, &first), (&empty, &empty)] {
        let text = compare(a, b).to_string();
        assert!(
            compare(a, b).is_regression() && text.contains(nothing),
            "{text}"
        );
    }
}

#[test]
fn a_slower_host_needs_no_more_cpu() {
    let (first, mut second) = (run(1), run(2));
    for series in second.experiments.iter_mut().flat_map(|e| &mut e.series) {
        for round in &mut series.rounds {
            for usage in [&mut round.generator, &mut round.proxy, &mut round.database] {
                usage.user_us *= 1.6;
                usage.system_us *= 1.6;
            }
        }
    }
    let comparison = compare(&first, &second);
    assert!(comparison.moves.is_empty(), "{comparison}");
}

#[test]
fn noise_that_hides_a_move_is_told() {
    let (first, mut second) = (run(1), run(2));
    let scattered = [0.85, 0.95, 1.0, 1.05, 1.15];
    let rounds = &mut series_mut(&mut second, "node-raw", "enrich").rounds;
    for (round, scale) in rounds.iter_mut().zip(scattered) {
        round.latency.p50_us *= scale;
    }
    let comparison = compare(&first, &second);
    let mut noisy = comparison.notes(Note::TooNoisy);
    let told = noisy.find(|n| n.ends_with("p50 ÷ direct of enrich in node-raw"));
    let share = told.unwrap().strip_prefix("± ").unwrap().split(' ').next();
    let share: f64 = share.unwrap().parse().unwrap();
    assert!((28.0..40.0).contains(&share), "{share}");
    assert!(comparison.to_string().contains("too noisy to judge: ± "));
    // Further than the noise it is judged all the same.
    for round in &mut series_mut(&mut second, "node-raw", "enrich").rounds {
        round.latency.p50_us *= 2.0;
    }
    let comparison = compare(&first, &second);
    let moved = comparison.ours().filter(|m| m.figure == Figure::P50);
    assert_eq!(moved.count(), 1, "{comparison}");
}

#[test]
fn other_circumstances_are_warned_of() {
    let (first, mut second) = (run(1), run(2));
    assert_eq!(compare(&first, &second).notes(Note::Warning).count(), 0);
    second.machine.kernel = "6.2.0".into();
    second.settings.seconds = 1.0;
    second.versions.insert("haproxy".into(), "3.0".into());
    second.versions.insert("underpass".into(), "0.2.0".into());
    second.complete = false;
    experiment_mut(&mut second, "nodes-2").threads = 1;
    for round in &mut series_mut(&mut second, "stress-read", "direct").rounds {
        did(round, round.ops / 2);
    }
    let comparison = compare(&first, &second);
    let warnings = notes(&comparison, Note::Warning);
    for told in [
        "machine kernel differs: 6.1.0 and 6.2.0",
        "settings seconds differs: 3.0 and 1.0",
        "versions haproxy differs: 2.6.12 and 3.0",
        "the second run was interrupted",
        "nodes-2: not compared, it asks for something else",
        "stress-read: direct itself moved by −",
    ] {
        assert!(
            warnings.iter().any(|w| w.starts_with(told)),
            "{told}: {warnings:#?}"
        );
    }
    assert!(!warnings.iter().any(|w| w.contains("underpass")));
}

#[test]
fn too_few_rounds_are_not_judged() {
    let (mut first, mut second) = (run(1), run(2));
    first.experiments.retain(|e| e.id == "node-raw");
    second.experiments.retain(|e| e.id == "node-raw");
    let enrich = series_mut(&mut second, "node-raw", "enrich");
    enrich.rounds.truncate(4);
    enrich
        .rounds
        .iter_mut()
        .for_each(|round| did(round, round.ops / 2));
    let comparison = compare(&first, &second);
    assert!(!comparison.is_regression());
    assert_eq!(comparison.judged, 5, "bypass's");
    let warned = notes(&comparison, Note::Warning);
    assert!(warned.contains(&"node-raw: enrich has too few rounds to be judged"));
}
