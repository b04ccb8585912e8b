//! The operator's view once the driver is done.

use std::{
    collections::BTreeMap,
    thread,
    time::{Duration, Instant},
};

use sandbox::{Agent, Metric};

use super::cassandra::{PAST_TCP, PIPELINE, RULE};

/// A driver's process has ended, or its session is closed; its last FIN may be under way.
const LAST_FIN: Duration = Duration::from_secs(10);

/// How flows end here.
const GOOD_ENDS: [&str; 2] = ["both_ended", "client_reset"];

/// Dials that a driver may give up: one that closes its pool while the pool still connects does.
const MAX_GIVEN_UP: f64 = 1.0;

/// Source ports that were in use: by flows of the tests beside this one, whose agents dial the same database from the same
/// address.
const MAX_PORTS_TAKEN: f64 = 2.0;

/// Messages that skip TCP at least, of thousands.
const MIN_PAST_TCP: f64 = 500.0;

/// Requests by kind.
pub type Kinds = BTreeMap<String, u64>;

/// The agent was never in the way of a single byte.
pub fn only_untouched(agent: &Agent<'_>) {
    let metrics = agent.metrics().unwrap();
    let mut outcomes = outcomes(&metrics);
    let untouched = outcomes.remove("untouched").unwrap_or_default();
    assert!(untouched > 0.0, "no connection was seen");
    assert_eq!(nonzero(outcomes), BTreeMap::new(), "other outcomes");
    for (name, label) in [
        ("underpass_flows_closed_total", "reason"),
        ("underpass_safer_path_total", "cause"),
        ("underpass_bytes_total", "direction"),
        ("underpass_dial_failures_total", "answer"),
    ] {
        assert_eq!(
            nonzero(by_label(&metrics, name, label)),
            BTreeMap::new(),
            "{name}"
        );
    }
    assert_eq!(metrics["underpass_flows"], 0.0);
    assert_eq!(agent.json("/statements").unwrap(), serde_json::json!([]));
    unharmed(agent);
}

/// Checks a rule with `fold`: most requests went by shared connections, and none of those was lost.
pub fn folds_as_asked(agent: &Agent<'_>, more: &str) {
    if !more.contains("\"fold\"") {
        return;
    }
    let metrics = agent.metrics().unwrap();
    let became = by_label(&metrics, "underpass_fold_requests_total", "outcome");
    // Those that went while none was there yet are more the slower the machine is.
    let not = became.values().sum::<f64>() - became["folded"] - became["away"];
    assert!(became["folded"] > not, "{became:?}");
    let mut ended = nonzero(by_label(&metrics, "underpass_fold_ended_total", "why"));
    ended.remove("unused");
    assert_eq!(ended, BTreeMap::new(), "shared connections");
}

/// Checks a rule with `shortcut`: both sides of each flow were let in, and what they exchanged with the agent skipped TCP.
pub fn skips_tcp_as_asked(agent: &Agent<'_>, more: &str) {
    if !more.contains(PAST_TCP) {
        return;
    }
    let metrics = agent.metrics().unwrap();
    let mut long = nonzero(by_label(&metrics, "underpass_long_legs_total", "reason"));
    // A driver may close a connection as its leg is entered.
    let gone = long.remove("gone").unwrap_or_default();
    assert!(gone <= MAX_GIVEN_UP, "{gone} connections were gone");
    assert_eq!(long, BTreeMap::new(), "long legs");
    // Requests that follow a large one, before that is read, take TCP as it did.
    let ways = by_label(&metrics, "underpass_shortcut_messages_total", "way");
    assert!(ways["shortcut"] > MIN_PAST_TCP, "{ways:?}");
}

/// Every connection was carried to a good end and understood from its first byte to its last.
pub fn all_enriched(agent: &Agent<'_>) {
    wait_for_last_fin(agent);
    let metrics = agent.metrics().unwrap();
    let mut outcomes = outcomes(&metrics);
    let intercepted = outcomes.remove("intercepted").unwrap_or_default();
    assert!(intercepted > 0.0, "no connection was intercepted");
    assert_eq!(nonzero(outcomes), BTreeMap::new(), "other outcomes");

    let closed = nonzero(by_label(&metrics, "underpass_flows_closed_total", "reason"));
    let is_good = |reason: &String| GOOD_ENDS.contains(&reason.as_str());
    assert!(closed.keys().all(is_good), "close reasons: {closed:?}");
    let given_up = metrics["underpass_clients_gone_total"];
    assert!(given_up <= MAX_GIVEN_UP, "{given_up} clients were gone");
    // A client that gives up as its SYN is let pass is a stranger to the listener.
    let mut safer = nonzero(by_label(&metrics, "underpass_safer_path_total", "cause"));
    let strangers = safer.remove("stranger").unwrap_or_default();
    assert!(
        strangers <= given_up,
        "{strangers} strangers, {given_up} gone"
    );
    let ways = by_label(&metrics, "underpass_shortcut_messages_total", "way");
    if ways["shortcut"] > 0.0 {
        // One that takes a tenth of a second for the part of a large value that it has read is taken for one that waits in vain.
        let stalled = safer.remove("reader_stalled").unwrap_or_default();
        assert!(stalled < intercepted, "{stalled} readers stalled");
    }
    assert_eq!(safer, BTreeMap::new(), "safer paths");
    for (name, label) in [
        ("underpass_dial_failures_total", "answer"),
        ("underpass_undecodable_flows_total", "reason"),
        // None is explained by what the drivers do: what they compress is read, and they prepare
        // what they execute on the same cluster.
        ("underpass_anomalies_total", "cause"),
    ] {
        assert_eq!(
            nonzero(by_label(&metrics, name, label)),
            BTreeMap::new(),
            "{name}"
        );
    }
    let taken = metrics["underpass_source_ports_changed_total"];
    assert!(taken <= MAX_PORTS_TAKEN, "{taken} source ports were taken");
    let name = "underpass_strangers_total";
    assert_eq!(metrics[name], 0.0, "{name}");
    let carried = intercepted - given_up;
    assert_eq!(closed.values().sum::<f64>(), carried, "{closed:?}");
    let log = agent.log();
    let closes = log.lines().filter(|l| l.contains("flow closed")).count();
    assert_eq!(closes as f64, carried, "one close line per flow");
    unharmed(agent);
}

/// Errors that the database answered, by code.
pub fn errors(agent: &Agent<'_>) -> BTreeMap<String, f64> {
    let metrics = agent.metrics().unwrap();
    nonzero(by_label(
        &metrics,
        "underpass_statement_errors_total",
        "code",
    ))
}

/// Every reporter of a pipeline that has all of them has had something to tell.
pub fn all_reported(agent: &Agent<'_>, pipeline: &str) {
    if !pipeline.contains(PIPELINE.trim_end_matches(']')) {
        return;
    }
    let metrics = agent.metrics().unwrap();
    let told = |name: &str, label: &str| {
        let samples = metrics.iter().filter(|(sample, _)| {
            sample.starts_with(name) && sample.contains(&format!("\"{label}\""))
        });
        samples.map(|(_, value)| value).sum::<f64>()
    };
    for (name, label) in [
        ("underpass_stats_requests_total", RULE),
        ("underpass_frames_total", RULE),
        ("underpass_journal_records_total", "audit"),
        ("underpass_journal_records_total", "debug"),
        ("underpass_journal_records_total", "slowlog"),
    ] {
        assert!(told(name, label) > 0.0, "{name} of {label}");
    }
    // What is for auditors is complete without a setting.
    let audits = metrics.iter().filter(|(sample, _)| {
        sample.starts_with("underpass_journal_records_total") && sample.contains("\"audit\"")
    });
    for (sample, records) in audits {
        assert!(
            sample.contains("\"written\"") || *records == 0.0,
            "{sample} {records}"
        );
    }
}

/// Requests that transforms have seen, by outcome.
pub fn transforms(agent: &Agent<'_>) -> BTreeMap<String, f64> {
    let metrics = agent.metrics().unwrap();
    nonzero(by_label(&metrics, "underpass_transforms_total", "outcome"))
}

/// Statements that enrichment has seen of a keyspace, by table; "" where a statement names none.
pub fn statements(agent: &Agent<'_>, keyspace: &str) -> BTreeMap<String, Kinds> {
    let rows = agent.json("/statements").unwrap();
    let mut tables: BTreeMap<String, Kinds> = BTreeMap::new();
    for row in rows.as_array().unwrap() {
        assert_eq!(row["rule"], RULE);
        let (p50, max) = (&row["p50_us"], &row["max_us"]);
        assert!(p50.as_u64().unwrap() <= max.as_u64().unwrap(), "{row}");
        if row["keyspace"] == keyspace {
            let table = row["table"].as_str().unwrap().to_owned();
            let kind = row["kind"].as_str().unwrap().to_owned();
            let count = row["count"].as_u64().unwrap();
            tables.entry(table).or_default().insert(kind, count);
        }
    }
    tables
}

/// Kinds and counts, as [`statements`] gives them.
pub fn kinds<const N: usize>(kinds: [(&str, u64); N]) -> Kinds {
    kinds.map(|(kind, count)| (kind.to_owned(), count)).into()
}

fn wait_for_last_fin(agent: &Agent<'_>) {
    let deadline = Instant::now() + LAST_FIN;
    while agent.metric("underpass_flows").unwrap() > 0.0 {
        let flows = agent.get("/flows").unwrap();
        assert!(Instant::now() < deadline, "flows that stay: {flows}");
        thread::sleep(Duration::from_millis(20));
    }
}

fn unharmed(agent: &Agent<'_>) {
    assert_eq!(agent.get("/healthz").unwrap(), "ok\n");
    let log = agent.log();
    let is_bad = |l: &&str| {
        // Those of a pipeline have no collector. Source ports that are taken are counted.
        let is_known = ["takes no spans", "source port was taken"]
            .iter()
            .any(|known| l.contains(known));
        ["panicked", " WARN ", " ERROR "]
            .iter()
            .any(|w| l.contains(w) && !is_known)
    };
    let bad: Vec<&str> = log.lines().filter(is_bad).collect();
    assert_eq!(bad, [""; 0], "the agent complained");
}

/// Outcomes of the connections that the rule decided on.
fn outcomes(metrics: &Metric) -> BTreeMap<String, f64> {
    let rule = format!("rule=\"{RULE}\"");
    let of_rule = metrics.iter().filter(|(sample, _)| sample.contains(&rule));
    let of_rule = of_rule.map(|(sample, value)| (sample.clone(), *value));
    by_label(&of_rule.collect(), "underpass_connections_total", "outcome")
}

/// The samples of a metric, by one of their labels.
fn by_label(metrics: &Metric, name: &str, label: &str) -> BTreeMap<String, f64> {
    let mut sums = BTreeMap::new();
    for (sample, value) in metrics {
        let Some(labels) = sample.strip_prefix(name).and_then(|l| l.strip_prefix('{')) else {
            continue;
        };
        let behind = labels.split(&format!("{label}=\"")).nth(1).unwrap();
        let text = behind.split('"').next().unwrap().to_owned();
        *sums.entry(text).or_default() += value;
    }
    sums
}

fn nonzero(mut samples: BTreeMap<String, f64>) -> BTreeMap<String, f64> {
    samples.retain(|_, value| *value != 0.0);
    samples
}
