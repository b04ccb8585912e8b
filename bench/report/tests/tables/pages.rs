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
