use super::*;
use crate::measure::results::{AgentRss, Cassandra, Connects, Loads, Settings};

fn results() -> Results {
    let numbers = |op_s: f64| Numbers {
        op_s,
        p50_us: (8e8 / op_s).round() / 100.0,
        p99_us: (16e8 / op_s).round() / 100.0,
        agent_cpu_us: 7.25,
        ..Numbers::default()
    };
    let comparison = |bypass, enrich| {
        Comparison::from_rounds(vec![ByPath {
            direct: numbers(100_000.0),
            bypass: numbers(bypass),
            enrich: numbers(enrich),
        }])
    };
    let connects = ByPath {
        direct: 20.0,
        bypass: 21.5,
        enrich: 90.0,
    };
    let other = serde_json::json!({
        "source": { "commit": "0123456789abcdef0123", "dirty": false },
        "machine": { "kernel": "6.1.0", "cpu": "A CPU", "cores": 2, "memory_mib": 4096 },
        "versions": { "rustc": "rustc 1", "agent": "underpass 1", "driver": "1.9" },
    });
    let loads = Loads {
        read: comparison(100_000.0, 79_900.0),
        write: comparison(100_000.0, 80_000.0),
        agent_rss_peak_kib: AgentRss {
            start: 40 * 1024,
            under_load: 10 * 1024,
        },
    };
    let part = |name: &str| other[name].clone();
    Results {
        schema: SCHEMA,
        date: "2025-01-31T12:00:00Z".into(),
        source: serde_json::from_value(part("source")).unwrap(),
        machine: serde_json::from_value(part("machine")).unwrap(),
        versions: serde_json::from_value(part("versions")).unwrap(),
        settings: Settings {
            rounds: 7,
            seconds: 3.0,
            threads: 8,
        },
        node: comparison(99_000.0, 70_000.0),
        cassandra: Some(Cassandra {
            version: "5.0.9".into(),
            driver: loads.clone(),
            raw: loads,
        }),
        connects: Connects::new(100, vec![connects.clone()], &connects),
    }
}

#[test]
fn the_table_says_what_was_met_and_what_was_missed() {
    let page = render(&results());
    let row = |begin: &str| {
        let found = page.lines().find(|l| l.starts_with(&format!("| {begin}")));
        found
            .unwrap_or_else(|| panic!("no row {begin:?} in\n{page}"))
            .to_owned()
    };
    assert_eq!(
        row("embedded node, raw: op/s"),
        "| embedded node, raw: op/s | 100,000 | 99,000 | 70,000 | 0.990 | 0.700 | bypass ≥ 0.98 | met |"
    );
    assert_eq!(
        row("embedded node, raw: p50"),
        "| embedded node, raw: p50, µs | 80 | 81 | 114 | 1.010 | 1.429 | bypass ≤ 1.02 | met |"
    );
    assert!(
        row("Cassandra, driver, reads: op/s").ends_with("| 0.799 | enrich ≥ 0.80 | **missed** |")
    );
    assert!(row("Cassandra, driver, writes: op/s").ends_with("| 0.800 | enrich ≥ 0.80 | met |"));
    assert!(row("Cassandra, raw, reads: op/s").ends_with("| 0.799 | enrich ≥ 0.80 | **missed** |"));
    assert!(row("agent's RSS, peak under").contains("|  |  | 10.0 |  |  | peak ≤ 20 MiB | met"));
    assert!(
        row("`connect()`").contains("| 20.0 | 21.5 | 90.0 |  |  | bypass adds 1.5, ≤ 5 µs | met")
    );
    assert!(page.contains("Commit 0123456789ab, 2025-01-31."), "{page}");
    let columns = |line: &str| line.matches('|').count();
    let table: Vec<_> = page.lines().filter(|l| l.starts_with('|')).collect();
    assert!(
        table.iter().all(|l| columns(l) == columns(table[0])),
        "{page}"
    );
}

#[test]
fn without_cassandra_nothing_is_claimed_of_it() {
    let mut results = results();
    results.cassandra = None;
    let page = render(&results);
    assert!(!page.contains("| Cassandra"), "{page}");
    assert!(page.contains("Cassandra was not measured"));
}

#[test]
fn only_what_is_between_the_markers_changes() {
    let page = format!("# A\n\n{BEGIN}\nold\n{END}\n\nB\n");
    let new = replaced(&page, &render(&results())).unwrap();
    assert!(new.starts_with("# A\n\n<!--") && new.ends_with("-->\n\nB\n"));
    assert!(!new.contains("old"));
    assert_eq!(replaced(&new, &render(&results())).unwrap(), new);
    assert_eq!(replaced("no markers", ""), None);
}

#[test]
fn a_result_file_survives_the_way() {
    let text = serde_json::to_string_pretty(&results()).unwrap();
    assert_eq!(serde_json::from_str::<Results>(&text).unwrap(), results());
}

#[test]
fn checking_finds_a_stale_page_and_changes_nothing() {
    let folder = std::env::temp_dir().join(format!("underpass-report-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let args = |check| Args {
        page: folder.join("page.md"),
        results: folder.join("results.json"),
        check,
    };
    let stale = format!("{BEGIN}\n{END}\n");
    fs::write(folder.join("page.md"), &stale).unwrap();
    fs::write(
        folder.join("results.json"),
        serde_json::to_string(&results()).unwrap(),
    )
    .unwrap();
    let failure = format!("{:?}", ExitCode::FAILURE);
    assert_eq!(format!("{:?}", run(&args(true)).unwrap()), failure);
    assert_eq!(fs::read_to_string(folder.join("page.md")).unwrap(), stale);
    run(&args(false)).unwrap();
    assert_ne!(format!("{:?}", run(&args(true)).unwrap()), failure);
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn digits_in_groups() {
    for (number, text) in [
        (0.4, "0"),
        (999.0, "999"),
        (1000.0, "1,000"),
        (1234567.0, "1,234,567"),
    ] {
        assert_eq!(grouped(number), text);
    }
}

#[test]
fn the_readme_is_what_the_committed_results_say() {
    let root = FilePath::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let results = read(&root.join("bench/results/slice.json")).unwrap();
    let page = fs::read_to_string(root.join("README.md")).unwrap();
    let fresh = replaced(&page, &render(&results)).unwrap();
    assert!(
        page == fresh,
        "README.md is stale: `cargo xtask bench report` renders it"
    );
}
