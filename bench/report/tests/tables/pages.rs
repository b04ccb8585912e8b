//! The pages that a run is split into.

use report::pages;

use super::common::{experiment_mut, run};

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
fn a_page_says_where_paths_with_short_legs_are() {
    let mut run = run(1);
    let page = |run: &report::Run| {
        let pages = pages::experiments(run);
        let of_it = pages.into_iter().find(|(name, _)| name == "node-raw.md");
        of_it.unwrap().1
    };
    assert!(!page(&run).contains("enrichment.md"));
    for (path, says) in [("fold", true), ("fold-short-both", false)] {
        let experiment = experiment_mut(&mut run, "node-raw");
        let mut series = experiment.series[0].clone();
        series.path = path.into();
        experiment.series.push(series);
        assert_eq!(page(&run).contains("](../enrichment.md)"), says, "{path}");
    }
}
