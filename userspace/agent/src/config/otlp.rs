//! `[otlp]`: the collector that gets everything.

use std::time::Duration;

use serde::Deserialize;
use steps::otlp::{CollectorSettings, MAX_SERVICE_BYTES, MetricsPush, SERVICE};
use toml::Spanned;

use super::{error::Flaw, value::within};

/// Collector of OpenTelemetry's (OTLP over gRPC), which is sent the agent's metrics; steps with `otlp = true` send log records
/// there, and `trace` spans, unless it names another.
#[derive(Debug, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("examples" = [{"endpoint": "http://127.0.0.1:4317", "metrics_interval": "15s"}]))]
pub(super) struct RawOtlp {
    /// Address of the collector: `http://HOST:PORT` or `https://HOST:PORT`.
    #[schemars(with = "String", extend("title" = "URL"))]
    pub endpoint: Spanned<String>,
    /// TLS towards the collector, with the keys of `upstream_tls`. Needed with `https`, and only there.
    pub tls: Option<tls::RawDialling>,
    /// `service.name` of everything that is sent.
    #[schemars(
        with = "Option<String>",
        length(min = 1, max = MAX_SERVICE_BYTES),
        extend("default" = SERVICE)
    )]
    pub service: Option<Spanned<String>>,
    /// Time between two messages with all metrics, cumulative since the start; `off`: none are sent.
    #[schemars(
        with = "Option<String>",
        regex(pattern = "^(off|[0-9]+(ms|s|m))$"),
        extend("title" = "`off`, or a duration from 1s to 60m", "default" = "1m")
    )]
    pub metrics_interval: Option<Spanned<String>>,
}

/// The shortest interval of metrics: they are as costly as a scrape of `/metrics`.
const SHORTEST_INTERVAL: Duration = Duration::from_secs(1);

/// The longest interval: what does not come for an hour is taken for gone.
const LONGEST_INTERVAL: Duration = Duration::from_secs(3600);

/// The interval unless the file says another: that of OpenTelemetry's own exporters.
const INTERVAL: Duration = Duration::from_secs(60);

/// Reads the collector, and how often it gets metrics. None: never.
pub(super) fn of(
    raw: Option<RawOtlp>,
) -> Result<(Option<CollectorSettings>, Option<MetricsPush>), Flaw> {
    let Some(raw) = raw else {
        return Ok((None, None));
    };
    let service = raw.service.map(Spanned::into_inner);
    let to = CollectorSettings::read(raw.endpoint.get_ref(), raw.tls, service);
    let to = to.map_err(|why| Flaw::new(raw.endpoint.span(), format!("otlp.{why}")))?;
    let every = match &raw.metrics_interval {
        None => Some(INTERVAL),
        Some(text) if text.get_ref() == "off" => None,
        Some(text) => Some(within(
            "otlp.metrics_interval",
            text,
            SHORTEST_INTERVAL,
            LONGEST_INTERVAL,
        )?),
    };
    let push = every.map(|every| MetricsPush {
        to: to.clone(),
        every,
    });
    Ok((Some(to), push))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::tests::parse;

    #[test]
    fn metrics_are_sent_every_minute_unless_the_file_says_otherwise() {
        let every = |text: &str| {
            let file = format!("[otlp]\nendpoint = \"http://127.0.0.1:4317\"\n{text}\n");
            parse(&file).map(|config| config.metrics_push.map(|push| push.every))
        };
        assert_eq!(every("").unwrap(), Some(INTERVAL));
        let fast = every("metrics_interval = \"1s\"").unwrap();
        assert_eq!(fast, Some(Duration::from_secs(1)));
        assert_eq!(every("metrics_interval = \"off\"").unwrap(), None);
        assert_eq!(parse("").unwrap().metrics_push, None);
        for (text, said) in [
            (
                "metrics_interval = \"999ms\"",
                "otlp.metrics_interval: expected from 1000ms to 3600s",
            ),
            (
                "metrics_interval = \"61m\"",
                "otlp.metrics_interval: expected from 1000ms to 3600s",
            ),
            (
                "service = \"\"",
                "otlp.service: expected a name of 1 to 255 bytes",
            ),
            (
                "tls = { ca = \"/a\" }",
                "otlp.tls: expected with `https://` only",
            ),
        ] {
            let refused = every(text).unwrap_err().to_string();
            assert!(refused.contains(said), "{refused}");
        }
    }

    #[test]
    fn steps_send_to_it_unless_they_name_another() {
        let rule = |table: &str, step: &str| {
            let rule =
                "[[rule]]\nname = \"r\"\nto = [\":9042\"]\naction = \"enrich\"\nfail = \"open\"";
            parse(&format!(
                "{table}\n{rule}\npipeline = [{{ transform = {step} }}]\n"
            ))
        };
        let otlp = "[otlp]\nendpoint = \"http://127.0.0.1:4317\"";
        let audit = "\"audit\", otlp = true";
        let config = rule(otlp, audit).unwrap();
        let [warning] = &config.warnings[..] else {
            panic!("{:?}", config.warnings);
        };
        assert!(
            warning.contains("`audit` without a `file` loses records"),
            "{warning}"
        );
        // No flow waits for it, so nothing has to come to the agent.
        assert!(config.policy.rules[0].is_tapped());
        for step in [
            "\"trace\", sample = 1",
            "\"slowlog\", over = \"1s\", otlp = true",
            "\"audit\", otlp = true, file = \"/a\"",
        ] {
            rule(otlp, step).unwrap();
            let refused = rule("", step).unwrap_err().to_string();
            assert!(refused.contains("a table `[otlp]`"), "{refused}");
        }
    }
}
