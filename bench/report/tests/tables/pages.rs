//! The README's table, and the pages that a run is split into.

use report::{
    overview::{Runs, readme},
    pages,
};

use super::{
    common::{Cost, did, experiment_mut, run, run_of, series_mut},
    row, shape,
};

#[test]
fn the_index_links_a_page_for_each_experiment() {
    let mut run = run(1);
    experiment_mut(&mut run, "node-raw").id = "../../etc/x|y".into();
    let index = pages::index(&run, "- [Bars](bars.md)");
    let names: Vec<String> = pages::experiments(&run)
        .into_iter()
        .map(|(n, _)| n)
        .collect();
    assert_eq!(names.len(), run.experiments.len());
    assert!(names.contains(&"------etc-x-y.md".to_owned()), "{names:?}");
    for name in &names {
        assert!(index.contains(&format!("](full/{name})")), "{name}");
    }
    assert!(index.contains("- [Bars](bars.md)"));
}

#[test]
fn the_readme_compares_every_way_with_direct() {
    let of_scene = |names: &[&'static str]| {
        let cost = |path| Cost {
            path,
            ..*common_cost("enrich")
        };
        let costs: Vec<Cost> = names.iter().map(|name| cost(name)).collect();
        let mut run = run_of(1, &costs);
        run.paths.retain(|path| names.contains(&&*path.name));
        for path in &mut run.paths {
            path.absent = None;
        }
        for (id, as_id) in [
            ("node-raw", "node-raw-nonblocking-1"),
            ("stress-read", "node-raw-nonblocking-32"),
        ] {
            experiment_mut(&mut run, id).id = as_id.into();
        }
        run
    };
    let mut host = of_scene(&[
        "direct", "bypass", "shortcut", "splice", "observe", "enrich", "haproxy",
    ]);
    let mut tap = of_scene(&["direct", "tap"]);
    let mut peers = of_scene(&["direct", "haproxy", "shotover"]);
    let many = "node-raw-nonblocking-32";
    shape(&mut host, many, "enrich", |_, round| {
        did(round, round.ops / 2);
    });
    shape(&mut peers, many, "shotover", |_, round| {
        did(round, round.ops / 4);
    });
    shape(&mut host, "node-raw-nonblocking-1", "splice", |_, round| {
        round.latency.p50_us += 8.5;
    });
    shape(&mut tap, many, "tap", |_, round| {
        did(round, round.ops * 3 / 4);
    });
    let runs = Runs {
        host: &host,
        tap: &tap,
        peers: &peers,
    };
    let page = readme(runs);
    assert!(row(&page, "| path", "| tap").contains(" | 0.75× | "));
    assert_eq!(page.lines().filter(|l| l.starts_with("| ")).count(), 11);
    assert!(row(&page, "| path", "| direct").contains(" op/s | "));
    assert!(row(&page, "| path", "| enrich").contains(" | 0.50× | "));
    assert!(row(&page, "| path", "| shotover").contains(" | 0.25× | "));
    assert!(row(&page, "| path", "| splice").starts_with("| splice | +8.50 | "));
    // What a run withholds, and a path that it has not measured, are dashes and no rows left out.
    experiment_mut(&mut host, many).refused = Some("slow".into());
    series_mut(&mut peers, many, "shotover").rounds.clear();
    let page = readme(Runs {
        host: &host,
        tap: &tap,
        peers: &peers,
    });
    assert!(row(&page, "| path", "| enrich").contains(" | – | – | "));
    assert!(row(&page, "| path", "| shotover").contains(" | – | – | "));
}

fn common_cost(path: &str) -> &'static Cost {
    let mut all = super::common::COSTS.iter();
    all.find(|cost| cost.path == path).unwrap()
}
