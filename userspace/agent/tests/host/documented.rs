//! `docs/cli.md` and `docs/metrics.md` are what the program itself says. `UPDATE_DOCS=1
//! cargo test -p underpass --test host documented` writes them again.

use std::{fs, path::PathBuf, process::Command};

const BINARY: &str = env!("CARGO_BIN_EXE_underpass");

pub fn matches_the_file(name: &str, expected: &str) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../../docs")
        .join(name);
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(&path, expected).unwrap();
    }
    let found = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        found == expected,
        "docs/{name} is stale: set UPDATE_DOCS=1 and run this test again"
    );
}

/// No command, and then each that `underpass --help` lists.
fn commands() -> Vec<String> {
    let help = Command::new(BINARY).arg("--help").output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    let (_, list) = help.split_once("Commands:\n").unwrap();
    let lines = list.lines().take_while(|line| !line.is_empty());
    let names = lines.map(|line| line.split_whitespace().next().unwrap().to_owned());
    let names = names.filter(|name| name != "help");
    [String::new()].into_iter().chain(names).collect()
}

#[test]
fn help_texts() {
    let mut text = String::from(
        "# Commands\n\nWhat `underpass --help` says, written by a test. Exit codes: 0 done; 1 it \
         could not be done,\nand one line on standard error says why and what to do; 2 the \
         command line is wrong.\n`doctor` also exits with 1 when something is missing that every \
         flow needs.\n",
    );
    for command in commands() {
        let mut underpass = Command::new(BINARY);
        if !command.is_empty() {
            underpass.arg(&command);
        }
        let help = underpass.arg("--help").output().unwrap();
        assert!(help.status.success());
        let help = String::from_utf8(help.stdout).unwrap();
        let title = format!("underpass {command}");
        text.push_str(&format!(
            "\n## {}\n\n```text\n{}\n```\n",
            title.trim(),
            help.trim_end()
        ));
    }
    matches_the_file("cli.md", &text);
}

#[test]
fn metrics() {
    let registry = prometheus::Registry::new();
    let own = telemetry::Metrics::register(&registry, &flow::CloseReason::labels()).unwrap();
    own.declare_for_docs();
    agent::containers::ContainerMetrics::register(&registry).unwrap();
    agent::fleet::FleetMetrics::register(&registry).unwrap();
    let sharing = agent::fleet::sharing::SharingMetrics::register(&registry).unwrap();
    sharing.declare_for_docs();
    ::names::NameMetrics::register(&registry).unwrap();
    let pipelines = steps::pipelines::PipelineMetrics::register(&registry).unwrap();
    pipelines.declare_for_docs();
    let tap = proxy::tap::TapMetrics::register(&registry).unwrap();
    tap.declare_for_docs();
    let services = steps::Services::register(&registry, &own, &pipelines, &[]).unwrap();
    services.declare_for_docs();
    let backends = agent::backends::BackendMetrics::register(&registry).unwrap();
    backends.declare_for_docs();
    let dataplane = std::sync::Arc::default();
    let kernel =
        agent::kernel_counters::KernelCounters::new(std::sync::Arc::clone(&dataplane)).unwrap();
    let observed =
        agent::observed::ObservedCounters::new(std::sync::Arc::clone(&dataplane)).unwrap();
    let shortcuts =
        agent::shortcuts::ShortcutCounters::new(std::sync::Arc::clone(&dataplane)).unwrap();
    let balanced =
        agent::backends::BalancedCounters::new(std::sync::Arc::clone(&dataplane)).unwrap();
    let remembered = agent::remembered::RememberedGauge::new(dataplane).unwrap();
    agent::admin::register(&registry).unwrap();
    agent::process_metrics::register(&registry).unwrap();
    agent::log::Log::register(&registry).unwrap();
    let paths = proxy::paths::PathsAvailable::register(&registry).unwrap();
    paths.declare_for_docs();
    let namespaces = agent::namespaces::NamespacesGauge::new(None).unwrap();
    let edge = agent::edge::EdgeMetrics::new(agent::edge::SharedEdge::default()).unwrap();
    let mut rows: Vec<String> = registry
        .gather()
        .iter()
        .chain(&kernel.declared())
        .chain(&observed.declared())
        .chain(&shortcuts.declared())
        .chain(&balanced.declared())
        .chain(&edge.declared())
        .chain(&agent::overhead::OverheadMetrics::declared().unwrap())
        .chain(&prometheus::core::Collector::collect(&remembered))
        .chain(&prometheus::core::Collector::collect(&namespaces))
        .map(|family| {
            let labels = family
                .get_metric()
                .first()
                .map(|m| m.get_label())
                .unwrap_or_default();
            let labels: Vec<String> = labels.iter().map(|l| format!("`{}`", l.name())).collect();
            let kind = format!("{:?}", family.get_field_type()).to_lowercase();
            let help = family.help().replace('|', "\\|");
            format!(
                "| `{}` | {kind} | {} | {help} |\n",
                family.name(),
                labels.join(", ")
            )
        })
        .collect();
    rows.sort();
    let causes: String = dataplane::Cause::ALL
        .iter()
        .map(|cause| format!("- `{}`\n", cause.as_str()))
        .collect();
    let outcomes: String = dataplane::Outcome::ALL
        .iter()
        .map(|outcome| format!("- `{}`\n", outcome.as_str()))
        .collect();
    let ways: String = dataplane::Turn::ALL
        .iter()
        .map(|turn| format!("- `{}`\n", turn.as_str()))
        .collect();
    let text = format!(
        "# Metrics\n\nWhat `/metrics` on the admin interface holds, written by a test. \
         `/statements` gives the same\nstatements as JSON, with exact quantiles.\n\n| metric | kind \
         | labels | what it counts |\n| --- | --- | --- | --- |\n{}\n## Outcomes\n\n{outcomes}\n## \
         Causes\n\n{causes}\n## Ways of messages on the shortcut\n\n{ways}",
        rows.concat()
    );
    matches_the_file("metrics.md", &text);
}
