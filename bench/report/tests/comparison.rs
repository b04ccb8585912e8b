//! A planted regression is found, noise is not.

#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

mod common;

use common::{COSTS, Cost, experiment_mut, run, run_of, series_mut};
use report::{compare, compare::Figure};

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
        // Fifteen experiments, four paths, five figures.
        assert_eq!(comparison.judged, 300);
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
        text.contains("worse") && text.contains("proxy's CPU, µs/op"),
        "{text}"
    );
    assert!(text.contains("300 figures compared, "), "{text}");
}

#[test]
fn new_errors_are_a_regression() {
    let mut second = run(2);
    let round = &mut series_mut(&mut second, "node-raw", "bypass").rounds[0];
    (round.errors, round.first_error) = (3, Some("reset".into()));
    let comparison = compare(&run(1), &second);
    assert!(comparison.is_regression());
    assert_eq!(
        comparison.new_errors,
        ["bypass in node-raw: 3 errors, the first: reset"]
    );
    assert!(!compare(&second, &run(1)).is_regression());
}

#[test]
fn what_only_one_has_is_told() {
    let (first, mut second) = (run(1), run(2));
    second.experiments.retain(|e| e.id != "connect");
    experiment_mut(&mut second, "node-raw")
        .series
        .retain(|s| s.path != "nginx");
    experiment_mut(&mut second, "nodes-1").refused = Some("slow".into());
    let comparison = compare(&first, &second);
    assert_eq!(
        comparison.only_first,
        [
            "nginx in node-raw",
            "connect",
            "nodes-1 (withheld in the other)"
        ]
    );
    assert!(comparison.only_second.is_empty());
    assert_eq!(compare(&second, &first).only_second, comparison.only_first);
    second.experiments.clear();
    let nothing = compare(&first, &second);
    assert!(nothing.is_empty() && nothing.to_string().contains("nothing to compare"));
}

#[test]
fn other_circumstances_are_warned_of() {
    let (first, mut second) = (run(1), run(2));
    assert_eq!(compare(&first, &second).warnings, Vec::<String>::new());
    second.machine.kernel = "6.2.0".into();
    second.settings.seconds = 1.0;
    second.versions.insert("haproxy".into(), "3.0".into());
    second.versions.insert("underpass".into(), "0.2.0".into());
    second.complete = false;
    experiment_mut(&mut second, "nodes-2").threads = 1;
    for round in &mut series_mut(&mut second, "stress-read", "direct").rounds {
        round.ops /= 2;
    }
    let warnings = compare(&first, &second).warnings;
    for told in [
        "kernel differs: 6.1.0 and 6.2.0",
        "seconds differs: 3 and 1",
        "version of haproxy differs: 2.6.12 and 3.0",
        "the second run was interrupted",
        "nodes-2: not compared, clients differ",
    ] {
        assert!(warnings.iter().any(|w| w == told), "{told}: {warnings:#?}");
    }
    assert!(
        warnings
            .iter()
            .any(|w| w.starts_with("stress-read: direct itself moved by −"))
    );
    assert!(!warnings.iter().any(|w| w.contains("underpass")));
}

#[test]
fn too_few_rounds_are_not_judged() {
    let (first, mut second) = (run(1), run(2));
    second.experiments.retain(|e| e.id == "node-raw");
    let enrich = series_mut(&mut second, "node-raw", "enrich");
    enrich.rounds.truncate(4);
    enrich.rounds.iter_mut().for_each(|round| round.ops /= 2);
    let comparison = compare(&first, &second);
    assert!(!comparison.is_regression());
    assert_eq!(comparison.judged, 15);
    assert!(
        comparison
            .warnings
            .contains(&"node-raw: enrich has too few rounds to be judged".into())
    );
}
