//! Tables, row by row.

#![expect(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

#[path = "tables/bars.rs"]
mod bar_verdicts;
mod common;
#[path = "tables/headline.rs"]
mod headlines;
#[path = "tables/missing.rs"]
mod missing;
#[path = "tables/pages.rs"]
mod of_pages;

use common::{did, experiment_mut, run, series_mut};
use report::{
    Run,
    bars::{self, Verdict},
    pages,
    schema::{Profile, Round},
};

/// Everything that a run says, on one page.
fn full(run: &Run) -> String {
    pages::full(run, pages::ALL)
}

/// The summary of a run: what people choose a path by.
fn readme(run: &Run) -> String {
    let index = pages::index(run, "");
    let (summary, _) = index.split_once("## Pages").unwrap();
    summary.to_owned()
}

/// Every round of a path does what this says, by the same round of direct.
fn shape(run: &mut Run, experiment: &str, path: &str, change: impl Fn(usize, &mut Round)) {
    let direct = series_mut(run, experiment, "direct").rounds.clone();
    let series = series_mut(run, experiment, path);
    series.rounds = direct;
    for (n, round) in series.rounds.iter_mut().enumerate() {
        change(n, round);
    }
}

/// The part of a page from this heading on.
fn from<'a>(page: &'a str, heading: &str) -> &'a str {
    let at = page
        .find(heading)
        .unwrap_or_else(|| panic!("no {heading:?}"));
    &page[at..]
}

/// The first line of this beginning, after this heading.
fn row<'a>(page: &'a str, after: &str, begin: &str) -> &'a str {
    let mut lines = from(page, after).lines();
    let found = lines.find(|line| line.starts_with(begin));
    found.unwrap_or_else(|| panic!("no {begin:?} after {after:?} in\n{page}"))
}

#[test]
fn ratios_are_of_the_same_round() {
    let mut run = run(1);
    // The machine's mood: every round of both is another, the ratio is always the same.
    for (n, round) in series_mut(&mut run, "node-raw", "direct")
        .rounds
        .iter_mut()
        .enumerate()
    {
        did(round, 100_000 * (n as u64 + 1));
    }
    shape(&mut run, "node-raw", "enrich", |_, round| {
        did(round, round.ops / 10 * 7)
    });
    let page = full(&run);
    assert_eq!(
        row(&page, "### node-raw", "| enrich | 70,000 "),
        format!(
            "| enrich | 70,000 | 0.700 (0.700 … 0.700) | {} | 5 | 0 |",
            latencies(&run)
        )
    );
}

fn latencies(run: &Run) -> String {
    use report::metric::Metric;
    let series = run
        .experiment("node-raw")
        .unwrap()
        .series("enrich")
        .unwrap();
    let all = Metric::LATENCIES.into_iter().chain([Metric::Max]);
    let all = all.map(|metric| report::number::short(series.median(metric).unwrap()));
    all.collect::<Vec<_>>().join(" | ")
}

#[test]
fn what_is_within_the_interval_is_no_difference() {
    let mut run = run(1);
    let scattered = [0.97, 0.98, 0.99, 1.0, 1.01];
    shape(&mut run, "stress-read", "bypass", |n, round| {
        did(round, (round.ops as f64 * scattered[n]) as u64);
    });
    let together = [0.975, 0.98, 0.98, 0.98, 0.985];
    shape(&mut run, "stress-write", "bypass", |n, round| {
        did(round, (round.ops as f64 * together[n]) as u64);
    });
    let page = readme(&run);
    assert!(row(&page, "| path", "| bypass").contains("| no difference | 0.980× |"));
    let detail = full(&run);
    let said = row(&detail, "### stress-read", "| bypass");
    assert!(said.contains("| no difference (0.970 … 1.010) |"), "{said}");
}

#[test]
fn added_latency_and_copies() {
    let mut run = run(1);
    shape(&mut run, "node-raw", "enrich", |_, round| {
        round.latency.p50_us += 12.0;
        round.latency.p99_us -= 20.0;
        round.ops = 1000;
        round.bytes = 250_000;
        round.copied_bytes = Some(100_000);
        round.proxy.user_us = 2000.0;
        round.proxy.system_us = 5500.0;
        round.proxy.voluntary_switches = 1500;
        round.proxy.involuntary_switches = 10;
        round.proxy.rss_peak_kib = 8 * 1024 + 512;
    });
    let page = full(&run);
    let page = from(&page, "### node-raw");
    let added = row(page, "*Added latency", "| enrich");
    assert!(
        added.starts_with("| enrich | +12.0 (+12.0 … +12.0) |"),
        "{added}"
    );
    assert!(added.contains("| −20.0 (−20.0 … −20.0) |"), "{added}");
    let usage = row(page, "*For one operation", "| enrich");
    assert!(usage.contains("| 2.00 + 5.50 |"), "{usage}");
    assert!(usage.contains("| 1.50 + 0.01 |"), "{usage}");
    // 250 bytes for an operation, twice, less the 100 that were copied.
    assert!(usage.ends_with("| 100 | 400 | 8.5 |"), "{usage}");
    let direct = row(page, "*For one operation", "| direct");
    assert!(direct.ends_with("| – | – | – |"), "{direct}");
}

#[test]
fn loads_and_their_sources_are_told() {
    let mut run = run(1);
    let page = full(&run);
    assert!(page.contains(
        "**Maximum throughput** (closed loop: latencies leave out what waiting would have cost)."
    ));
    assert!(page.contains("**Open loop at 2,500 op/s**; latencies count from the intended time."));
    assert!(
        page.contains(
            "From [somewhere](<https://example.org/somewhere>). Changed here: fewer keys."
        )
    );
    assert!(page.contains(
        "different hardware: not said; [https://example.org/figures](<https://example.org/figures>)"
    ));
    assert!(page.contains("the generator alone does 310,000 op/s"));
    run.profiles.push(Profile {
        experiment: "node-raw".into(),
        path: "enrich".into(),
        samples: 12_345,
        shares: [("proxy".into(), 0.31), ("other".into(), 0.69)].into(),
        calls: [(
            "proxy".into(),
            [
                ("recvfrom", 2.0),
                ("sendto", 0.5),
                ("io_uring_enter", 0.25),
                ("all", 3.0),
            ]
            .map(|(name, times)| (name.to_owned(), times))
            .into(),
        )]
        .into(),
        flame_graph: Some("bench/results/flames/enrich.svg".into()),
    });
    let page = full(&run);
    let shares = "| enrich | `node-raw` | 69.0 % | 31.0 % | 12,345 | [picture](../../bench/results/flames/enrich.svg) |";
    assert!(page.contains(shares), "{page}");
    let calls = "| enrich | `node-raw` | – | 2.00 + 0.75 + 0.00 + 0.00 + 0.25 | – |";
    assert!(page.contains(calls), "{page}");
    let program = "| `connect4` | `cgroup_sock_addr` | `connect` | 120,000 | 412 | 2,900 | 8,123 |";
    assert!(page.contains(program), "{page}");
}

#[test]
fn figures_are_published_of_one_variant_or_of_all() {
    let mut run = run(1);
    let mut one = run.experiment("stress-read").unwrap().published[0].clone();
    for variant in ["kv-192-16", "192-16", "0-256"] {
        one.variant = Some(variant.into());
        one.system = format!("of {variant}");
        for id in ["const-rate-1000", "nodes-1"] {
            experiment_mut(&mut run, id).published.push(one.clone());
        }
    }
    experiment_mut(&mut run, "nodes-1").id = "kv-192-16".into();
    experiment_mut(&mut run, "kv-192-16").workload = "kv".into();
    let page = full(&run);
    let said = |what: &str| page.matches(what).count();
    assert_eq!((said("| of kv-192-16 |"), said("| of 192-16 |")), (1, 1));
    assert_eq!(said("| of 0-256 |"), 0);
}

#[test]
fn throughput_is_what_ended_in_time() {
    let mut run = run(1);
    shape(&mut run, "stress-read", "bypass", |_, round| {
        did(round, 30_000);
        round.in_time = 24_000;
        round.proxy.user_us = 60_000.0;
        round.proxy.system_us = 0.0;
    });
    let page = full(&run);
    let page = from(&page, "### stress-read\n");
    // In 3 s; what is said of an operation counts all of them.
    assert!(row(page, "*Maximum", "| bypass").starts_with("| bypass | 8,000 |"));
    assert!(row(page, "*For one operation", "| bypass").contains("| 2.00 + 0.00 |"));
}

#[test]
fn a_path_that_falls_behind_is_named() {
    let mut run = run(1);
    let mut late = |rounds: &[usize], in_time| {
        let series = series_mut(&mut run, "const-rate-10000", "nginx");
        rounds
            .iter()
            .for_each(|n| series.rounds[*n].in_time = in_time);
        (full(&run), readme(&run))
    };
    // All of them were answered, some of them late: 29,700 in time would have been enough.
    let (page, summary) = late(&[2, 4], 29_699);
    let said = "> **nginx did not keep up**: in 2 of 5 rounds less than 99 % of the schedule ended \
                in time (at worst 29,699 of 30,000 operations);";
    assert!(page.contains(said), "{page}");
    let said =
        "> **Did not keep up**: nginx in `const-rate-10000`. In more than a quarter of the rounds";
    assert!(summary.contains(said), "{summary}");
    // One late round of five is no queue.
    assert!(!late(&[4], 29_700).0.contains("did not keep up"));
    // In a closed loop there is nothing to keep up with.
    series_mut(&mut run, "stress-read", "nginx").rounds[2].in_time = 1;
    assert!(!full(&run).contains("did not keep up"));
}

#[test]
fn the_origin_is_told() {
    let mut run = run(1);
    run.source.dirty = true;
    let page = readme(&run);
    assert!(
        page.contains("Medians of 5 rounds of 3 s for each path"),
        "{page}"
    );
    assert!(
        page.contains("2 cores of A CPU, 4.0 GiB, Linux 6.1.0. cassandra 5.0.9, haproxy 2.6.12")
    );
    assert!(page.contains("Commit 0123456789ab with local changes, 2025-01-31."));
}

const HOSTILE: &str = "<script>alert(1)</script>|`a`\n# b \" ' & ]](javascript:x) \u{1}";

#[test]
fn hostile_names_stay_text() {
    let mut run = run(1);
    run.paths[4].name = HOSTILE.into();
    run.paths[3].absent = Some(HOSTILE.into());
    run.machine.cpu = HOSTILE.into();
    run.versions.insert(HOSTILE.into(), HOSTILE.into());
    for experiment in &mut run.experiments {
        experiment.title = HOSTILE.into();
        experiment.origin.url = format!("javascript:{HOSTILE}");
        experiment.left_out.insert(HOSTILE.into(), HOSTILE.into());
        experiment.series[2].path = HOSTILE.into();
        experiment.series[2].rounds[0].errors = 1;
        experiment.series[2].rounds[0].first_error = Some(HOSTILE.into());
    }
    experiment_mut(&mut run, "const-rate-5000").id = HOSTILE.into();
    for page in [full(&run), readme(&run)] {
        assert!(!page.contains("<script"), "markup in Markdown");
        assert!(!page.contains("\n# b"), "a heading of its own");
        assert!(!page.contains("](<javascript"), "a link to a script");
    }
}

#[test]
fn a_schedule_shows_the_whole_distribution() {
    let mut run = run(1);
    let mut histogram = hdrhistogram::Histogram::<u64>::new(3).unwrap();
    // 1 to 1,000 µs, once each.
    for us in 1..=1_000 {
        histogram.record(us * 1_000).unwrap();
    }
    series_mut(&mut run, "const-rate-1000", "direct").histogram = common::encoded(&histogram);
    let page = full(&run);
    let at = page.find("### const-rate-1000").unwrap();
    let spectrum = &page[at..];
    let first = |begin| row(spectrum, "Percentile spectrum of all rounds", begin);
    assert!(
        first("| 50 % ").starts_with("| 50 % | 500 |"),
        "{}",
        first("| 50 % ")
    );
    assert!(
        first("| 99 % ").starts_with("| 99 % | 990 |"),
        "{}",
        first("| 99 % ")
    );
    // A thousand operations say nothing of one in a hundred thousand.
    assert!(first("| 99.999 % ").starts_with("| 99.999 % | – |"));
    let closed = page.find("### node-raw").unwrap();
    let section = page[closed..].split("### ").nth(1).unwrap();
    assert!(!section.contains("Percentile spectrum"));
}
