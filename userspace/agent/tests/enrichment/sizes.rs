//! The sizes of what an agent tells of its flows, for `docs/scale.md`: measured here, committed, and held to that.

use std::fs;

use opentelemetry_proto::tonic::metrics::v1::{Metric, metric::Data};
use prost::Message;
use sandbox::measured;
use serde_json::{Value, json};

use crate::{
    common::{
        eventually,
        frames::{query, ready, startup, void},
        wire::{Conversation, Host, host},
    },
    trace::collector::{Collector, Says, listen},
};

/// A measured figure is within this factor of what is committed: more is a change that has to be seen.
const FACTOR: f64 = 1.5;

/// The rule that is read, as metrics name it.
const RULE: &str = "rule=\"r\"";

const SELECT: &str = "SELECT v FROM shop.orders WHERE id = 1";

fn asks(host: &Host<'_>) -> Conversation {
    let mut c = host.connect();
    c.client_sends(&startup(4, &[("CQL_VERSION", "3.0.0")]));
    c.server_sends(&ready(4));
    c.client_sends(&query(4, 1, SELECT));
    c.server_sends(&void(4, 1));
    c
}

fn size_of(lines: &[&str]) -> Value {
    let series = lines.iter().filter(|line| !line.starts_with('#'));
    let bytes: usize = lines.iter().map(|line| line.len() + 1).sum();
    json!({"series": series.count(), "bytes": bytes})
}

fn points(metric: &Metric) -> usize {
    match metric.data.as_ref().unwrap() {
        Data::Gauge(gauge) => gauge.data_points.len(),
        Data::Sum(sum) => sum.data_points.len(),
        Data::Histogram(histogram) => histogram.data_points.len(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_is_told_of_flows_is_as_large_as_the_page_says() {
    let mut found = Value::Null;
    host(|host| {
        let listener = listen(host.sandbox);
        let to = listener.local_addr().unwrap();
        let collector = Collector::start(listener, Says::Thanks);
        let trace =
            format!("{{ transform = \"trace\", endpoint = \"http://{to}\", sample = 1.0 }}");
        host.policy(&format!(
            "[otlp]\nendpoint = \"http://{to}\"\nmetrics_interval = \"1s\"\n[[rule]]\nname = \"r\"\nto = [\":PORT\"]\n\
             action = \"enrich\"\nfail = \"open\"\n\
             pipeline = [{{ transform = \"stats\" }}, {trace}, {{ transform = \"audit\", otlp = true, not_kinds = [\"logins\"] }}]\n"
        ));
        let first = asks(host);
        eventually("all is told", || {
            !collector.logs().is_empty() && !collector.spans().is_empty()
        });
        let scrape = host.agent.get("/metrics").unwrap();
        let second = asks(host);
        eventually("the second, too", || collector.logs().len() == 2);
        let again = host.agent.get("/metrics").unwrap();
        let before = collector.metrics().len();
        eventually("metrics come", || collector.metrics().len() > before);
        let pushed = collector.metrics().pop().unwrap();
        let (of_rule, own): (Vec<&str>, Vec<&str>) =
            scrape.lines().partition(|line| line.contains(RULE));
        let series = |text: &str| text.lines().filter(|line| !line.starts_with('#')).count();
        found = json!({
            "agent": size_of(&own),
            "rule": size_of(&of_rule),
            "connection": {"series": series(&again) - series(&scrape)},
            "log_record": {"bytes": collector.logs()[0].encoded_len()},
            "span": {"bytes": collector.spans()[0].encoded_len()},
            "push": {
                "points": pushed.iter().map(points).sum::<usize>(),
                "bytes": pushed.iter().map(Message::encoded_len).sum::<usize>(),
            },
        });
        first.ends();
        second.ends();
    });
    assert_eq!(
        found["connection"]["series"], 0,
        "a connection has no series of its own"
    );
    let file = measured::file("sizes.json");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(&file, serde_json::to_string_pretty(&found).unwrap() + "\n").unwrap();
    }
    let committed: Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    for place in [
        "/agent/series",
        "/agent/bytes",
        "/rule/series",
        "/rule/bytes",
        "/log_record/bytes",
        "/span/bytes",
        "/push/bytes",
    ] {
        let [now, then] =
            [&found, &committed].map(|sizes| sizes.pointer(place).and_then(Value::as_f64).unwrap());
        assert!(
            now < then * FACTOR && then < now * FACTOR,
            "bench/results/sizes.json is stale: {place} is {now}: set UPDATE_DOCS=1 and run this test again"
        );
    }
}
