//! The page of the headline, and the README's table of the same run.

use report::{
    Run,
    headline::{self, CONNECTIONS, SHARES},
    overview::readme,
};

use super::{
    common::{did, experiment_mut, run, series_mut},
    row, shape,
};

/// A run of a headline: an open loop becomes each of its rates, a closed loop its maxima.
fn measured() -> Run {
    let mut made = run(1);
    let take = |id: &str| made.experiment(id).unwrap().clone();
    let (open, closed) = (take("const-rate-5000"), take("node-raw"));
    made.experiments.clear();
    for is_apart in [false, true] {
        for connections in CONNECTIONS {
            let shares = SHARES.map(Some);
            for share in [None].into_iter().chain(shares) {
                let mut one = if share.is_some() { &open } else { &closed }.clone();
                one.id = headline::id(connections, share, is_apart);
                (one.connections, one.is_proxy_apart) = (connections, is_apart);
                made.experiments.push(one);
            }
        }
    }
    made
}

#[test]
fn latency_comes_first_and_the_maximum_last_for_each_division_of_cores() {
    let page = headline::page(Some(&measured()));
    let heads = [
        "## All cores shared",
        "1 connection, at a share",
        "64 connections, at a share",
        "CPU time per operation",
        "it measures the sum of everybody's CPU on 2 cores",
        "## A core for the proxy alone",
        "1 connection, at a share",
        "CPU time per operation",
        "what the busier of the two cores allows",
    ];
    let mut rest = &*page;
    for head in heads {
        let at = rest
            .find(head)
            .unwrap_or_else(|| panic!("no {head:?} in\n{rest}"));
        rest = &rest[at + head.len()..];
    }
    assert!(headline::page(None).contains("No run is committed"));
}

#[test]
fn figures_are_held_against_the_same_round_of_direct() {
    let mut run = measured();
    let at = |share| headline::id(64, Some(share), false);
    shape(&mut run, &at(60), "enrich", |n, round| {
        round.latency.p50_us += 10.0 + n as f64;
    });
    shape(&mut run, &at(30), "enrich", |_, round| {
        round.proxy.user_us = 7.0 * round.ops as f64;
        round.proxy.system_us = 0.0;
        round.proxy.rss_peak_kib = 1;
    });
    let page = headline::page(Some(&run));
    let line = row(&page, "64 connections, at a share", "| enrich |");
    let cells: Vec<&str> = line.split('|').map(str::trim).collect();
    // Behind the three of 30 %: p50, p99, p99.9.
    assert_eq!(cells[5], "+12.0 (+10.0 … +14.0)");
    assert!(cells[6].starts_with("no difference"), "{line}");
    let line = row(&page, "CPU time per operation", "| enrich |");
    assert_eq!(line.split('|').nth(5).unwrap().trim(), "7.00");
    let line = row(&page, "CPU time per operation", "| direct |");
    assert_eq!(line.split('|').nth(5).unwrap().trim(), "–", "no proxy");
}

#[test]
fn latencies_of_a_queue_are_not_shown() {
    let mut run = measured();
    let id = headline::id(64, Some(60), false);
    for round in &mut series_mut(&mut run, &id, "enrich").rounds {
        did(round, round.ops / 2);
    }
    let page = headline::page(Some(&run));
    let line = row(&page, "64 connections, at a share", "| enrich |");
    assert_eq!(line.matches("did not keep up").count(), 3, "{line}");
}

#[test]
fn the_picture_names_every_path_and_is_of_what_was_measured() {
    let mut run = measured();
    let svg = headline::picture(&run).unwrap();
    let document = roxmltree::Document::parse(&svg).unwrap();
    let texts = document
        .descendants()
        .filter(|node| node.tag_name().name() == "text");
    let texts: Vec<&str> = texts
        .filter_map(|node| node.text())
        .map(str::trim)
        .collect();
    for path in ["direct", "bypass", "enrich", "haproxy", "nginx"] {
        assert!(texts.contains(&path), "{path}: {texts:?}");
    }
    assert!(
        texts
            .iter()
            .any(|text| text.contains("60 % of direct's maximum (5,000 op/s)")),
        "{texts:?}"
    );
    let lines = document
        .descendants()
        .filter(|node| node.tag_name().name() == "polyline");
    assert!(lines.count() >= 5);
    assert!(headline::page(Some(&run)).contains("](headline.svg)"));
    for experiment in &mut run.experiments {
        for series in &mut experiment.series {
            series.histogram.clear();
        }
    }
    assert_eq!(headline::picture(&run), None);
    assert!(!headline::page(Some(&run)).contains("](headline.svg)"));
}

#[test]
fn the_readme_compares_every_way_with_direct() {
    let mut run = measured();
    let (at_ease, most) = (
        headline::id(1, Some(30), false),
        headline::id(64, None, false),
    );
    shape(&mut run, &at_ease, "haproxy", |_, round| {
        round.latency.p50_us += 8.5;
    });
    shape(&mut run, &most, "enrich", |_, round| {
        did(round, round.ops / 2);
    });
    let page = readme(Some(&run));
    let rows = page.lines().filter(|line| line.starts_with("| "));
    assert_eq!(rows.count(), 2 + 9, "{page}");
    assert!(row(&page, "| path", "| direct").contains(" op/s | "));
    assert!(row(&page, "| path", "| haproxy").starts_with("| haproxy | +8.50 | "));
    assert!(row(&page, "| path", "| enrich").contains(" | 0.500× | "));
    // What a run withholds, and a path that it has not measured, are dashes and no rows left out.
    experiment_mut(&mut run, &most).refused = Some("slow".into());
    run.paths.retain(|path| path.name != "shotover");
    for experiment in &mut run.experiments {
        experiment.series.retain(|series| series.path != "shotover");
    }
    let page = readme(Some(&run));
    assert!(row(&page, "| path", "| enrich").contains(" | – | "));
    assert_eq!(
        row(&page, "| path", "| shotover"),
        "| shotover | – | – | – | – | – |"
    );
    assert!(readme(None).contains("No run is committed"));
}
