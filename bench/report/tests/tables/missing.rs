//! Notes of a table on what is not in it, and on how to read it.

use report::{
    Run,
    schema::{Round, Shared},
};

use super::{
    common::{did, experiment_mut, run, series_mut},
    from, full, readme, row, shape,
};

#[test]
fn chance_is_told() {
    let mut run = run(1);
    let said = "Two equal paths look different in up to 1 of 16 comparisons";
    assert!(readme(&run).contains(said));
    for series in run.experiments.iter_mut().flat_map(|e| &mut e.series) {
        series.rounds.truncate(4);
    }
    assert!(readme(&run).contains("With fewer than 5 rounds chance cannot be told"));
}

#[test]
fn headroom_that_was_not_measured_is_told() {
    let mut run = run(1);
    let count = |run: &Run| full(run).matches("Headroom not measured.").count();
    experiment_mut(&mut run, "connect").headroom = None;
    assert_eq!(count(&run), 0, "there is nothing to measure");
    experiment_mut(&mut run, "stress-read").headroom = None;
    assert_eq!(count(&run), 1);
    experiment_mut(&mut run, "stress-read").refused = Some("slow".into());
    assert_eq!(count(&run), 0);
}

#[test]
fn who_is_absent_is_told_with_the_reason() {
    let mut run = run(1);
    let told = "| shotover | another proxy | shotover | no: not installed |";
    assert!(full(&run).contains(told), "{}", full(&run));
    let left_out = &mut experiment_mut(&mut run, "connect").left_out;
    left_out.insert("haproxy".into(), "does not pass them on".into());
    assert!(full(&run).contains("Not here: haproxy (does not pass them on)."));
}

#[test]
fn refused_figures_are_withheld() {
    let mut run = run(1);
    experiment_mut(&mut run, "node-raw").refused = Some("the generator was the bottleneck".into());
    let page = full(&run);
    assert!(page.contains("> **Withheld**: `node-raw`, the generator was the bottleneck"));
    let section = &page[page.find("### node-raw").unwrap()..page.find("## connect").unwrap()];
    assert!(section.contains("**Figures are withheld**: the generator was the bottleneck"));
    assert!(!section.contains("| enrich"), "{section}");
}

#[test]
fn errors_are_shown() {
    let mut run = run(1);
    let round = &mut series_mut(&mut run, "stress-read", "enrich").rounds[3];
    (round.errors, round.first_error) = (12, Some("timed out".into()));
    let errors = "> **12 errors** of enrich in `stress-read`, the first: timed out";
    assert!(readme(&run).contains(errors), "{}", readme(&run));
    let page = full(&run);
    let page = from(&page, "### stress-read\n");
    assert!(row(page, "*Maximum", "| enrich").ends_with("| 5 | **12** |"));
}

#[test]
fn what_failed_is_told() {
    let mut run = run(1);
    run.experiments.retain(|e| e.id != "stress-write");
    run.failed
        .insert("stress-write".into(), "Cassandra did not start".into());
    let page = readme(&run);
    assert!(
        page.contains("> **Failed**: `stress-write`, Cassandra did not start"),
        "{page}"
    );
}

#[test]
fn an_interrupted_run_uses_what_both_have() {
    let mut run = run(1);
    run.complete = false;
    series_mut(&mut run, "node-raw", "enrich")
        .rounds
        .truncate(2);
    series_mut(&mut run, "stress-read", "direct").rounds.clear();
    experiment_mut(&mut run, "stress-write").series.remove(0);
    run.experiments.truncate(5);
    let page = full(&run);
    assert!(page.contains("> **Interrupted**"));
    let said = row(&page, "### node-raw", "| enrich");
    assert!(
        said.contains("(2 rounds, no interval)") && said.ends_with("| 2 | 0 |"),
        "{said}"
    );
    assert!(row(&page, "### stress-read\n", "| enrich").contains(" | – | "));
    assert!(row(&page, "### stress-write\n", "| enrich").contains(" | – | "));
}

#[test]
fn no_operations_are_no_figures() {
    let mut run = run(1);
    shape(&mut run, "node-raw", "nginx", |_, round| {
        *round = Round::default()
    });
    let said = full(&run);
    let said = row(&said, "### node-raw", "| nginx");
    assert_eq!(said, "| nginx | – | – | – | – | – | – | – | 5 | 0 |");
    shape(&mut run, "node-raw", "nginx", |_, round| did(round, 0));
    let said = full(&run);
    let said = row(&said, "### node-raw", "| nginx");
    assert!(
        said.starts_with("| nginx | 0 | 0.000 (0.000 … 0.000) | – |"),
        "{said}"
    );
}

#[test]
fn shared_connections_are_told_where_there_were_some() {
    let mut run = run(1);
    assert!(!full(&run).contains("shared connection"));
    series_mut(&mut run, "stress-read", "enrich").shared = Some(Shared {
        requests: 600,
        writes: 200,
        reads: 240,
    });
    let told = "enrich: 3.00 requests for each write to a shared connection, and 2.50 for each read from one.";
    assert!(full(&run).contains(told), "{}", full(&run));
}
