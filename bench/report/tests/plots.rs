//! Plots: well-formed, in paths' colours, and never silent about what is missing.

#![expect(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

mod common;

use std::collections::BTreeSet;

use common::{run, series_mut};
use report::{
    Run, artifacts,
    plot::{self, theme},
};

/// The highest rate, which all paths of these runs keep.
const CHOSEN: &str = "const-rate-10000";

fn parsed(file: &str, svg: &str, look: impl Fn(&roxmltree::Document<'_>)) {
    let document = roxmltree::Document::parse(svg);
    look(&document.unwrap_or_else(|error| panic!("{file}: {error}\n{svg}")));
}

fn texts(svg: &str) -> Vec<String> {
    let document = roxmltree::Document::parse(svg).unwrap();
    let all = document
        .descendants()
        .filter(|n| n.tag_name().name() == "text");
    all.filter_map(|n| n.text().map(str::to_owned)).collect()
}

/// Numbers of all coordinates.
fn numbers(document: &roxmltree::Document<'_>) -> Vec<f64> {
    let places = [
        "x", "y", "x1", "x2", "y1", "y2", "cx", "cy", "width", "height",
    ];
    let mut all = Vec::new();
    for node in document.descendants() {
        let named = node.attributes().filter(|a| places.contains(&a.name()));
        all.extend(
            named
                .filter(|a| !a.value().ends_with('%'))
                .map(|a| a.value().parse::<f64>().unwrap()),
        );
        let shape = node.attribute("d").unwrap_or("");
        let words = shape
            .split(['M', 'L', 'Z', ' '])
            .filter(|word| !word.is_empty());
        all.extend(words.map(|word| word.parse::<f64>().unwrap()));
    }
    all
}

#[test]
fn files_are_well_formed_and_inside() {
    for (file, svg) in artifacts(&run(1)) {
        parsed(&file, &svg, |document| {
            let root = document.root_element();
            let height: f64 = root.attribute("height").unwrap().parse().unwrap();
            let all = numbers(document);
            assert!(all.len() > 50, "{file}");
            assert!(
                all.iter()
                    .all(|n| (-1.0..=800.0_f64.max(height)).contains(n)),
                "{file}"
            );
            assert_eq!(
                root.tag_name().namespace(),
                Some("http://www.w3.org/2000/svg")
            );
        });
        assert!(svg.contains("prefers-color-scheme:dark"), "{file}");
    }
}

#[test]
fn every_path_is_named_in_its_colour() {
    for (file, svg) in artifacts(&run(1)) {
        let texts = texts(&svg);
        for path in ["direct", "bypass", "enrich", "haproxy", "nginx"] {
            if path == "direct" && file == "added-latency.svg" {
                continue;
            }
            assert!(
                texts.iter().any(|text| text == path),
                "{file}: {path} in {texts:?}"
            );
            assert!(svg.contains(&theme::color(path)), "{file}: {path}");
        }
    }
}

#[test]
fn known_paths_look_different() {
    let known = [
        "direct",
        "bypass",
        "observe",
        "shortcut",
        "splice",
        "relay",
        "enrich",
        "forward",
        "haproxy",
        "nginx",
        "envoy",
        "shotover",
        "cql-proxy",
        "zdm-proxy",
    ];
    let colors: BTreeSet<_> = known.iter().map(|path| theme::colors(path)).collect();
    let markers: BTreeSet<_> = known.iter().map(|path| theme::marker(path)).collect();
    assert_eq!((colors.len(), markers.len()), (known.len(), known.len()));
    assert_eq!(theme::slot("another"), theme::slot("another"));
    assert!(theme::colors("another").is_some());
}

#[test]
fn axes_have_units() {
    let all: Vec<String> = artifacts(&run(1))
        .iter()
        .flat_map(|(_, svg)| texts(svg))
        .collect();
    for unit in [
        "µs added",
        "percentile",
        "99.9 %",
        "achieved op/s",
        "nodes",
        "1 ms",
    ] {
        assert!(all.iter().any(|text| text == unit), "{unit} in {all:?}");
    }
    assert!(all.iter().any(|text| text.starts_with("µs of CPU")));
}

#[test]
fn figures_are_written_beside_their_bars() {
    let mut run = run(1);
    let direct = series_mut(&mut run, CHOSEN, "direct").rounds.clone();
    let enrich = series_mut(&mut run, CHOSEN, "enrich");
    enrich.rounds = direct.clone();
    for round in &mut enrich.rounds {
        round.latency.p50_us += 50.0;
    }
    let svg = plot::added::plot(&run).file();
    assert!(texts(&svg).iter().any(|text| text == "+50.0"), "{svg}");
    // At p99 they are the same.
    assert!(
        texts(&svg).iter().any(|text| text == "no difference"),
        "{svg}"
    );
}

fn says_what_is_missing(run: &Run) {
    for plot in plot::shown(run) {
        let svg = plot.file();
        parsed(plot.name, &svg, |document| {
            assert!(numbers(document).len() < 12)
        });
        let texts = texts(&svg);
        let said = |text: &String| text.starts_with("Not measured") || text.contains(": no");
        assert!(texts.iter().any(said), "{}: {texts:?}", plot.name);
    }
}

#[test]
fn nothing_to_draw_is_said() {
    let mut empty = run(1);
    empty.experiments.clear();
    says_what_is_missing(&empty);
    let mut refused = run(1);
    refused
        .experiments
        .iter_mut()
        .for_each(|e| e.refused = Some("slow".into()));
    says_what_is_missing(&refused);
    let mut idle = run(1);
    for series in idle.experiments.iter_mut().flat_map(|e| &mut e.series) {
        series.rounds.clear();
        series.histogram = "not a histogram".into();
    }
    says_what_is_missing(&idle);
}
