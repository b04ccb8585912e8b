//! The metrics of tapped flows.

use std::collections::BTreeMap;

use dataplane::{Adopted, NotAdopted};
use policy::RuleName;
use prometheus::{GaugeVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry};
use telemetry::{counter, counters_by, series_of};

/// The metrics of tapped flows.
#[derive(Clone, Debug)]
pub struct TapMetrics {
    pub(super) flows: IntGauge,
    pub(super) gaps: IntCounterVec,
    pub(super) abandoned: IntCounterVec,
    pub(super) stopped: IntCounterVec,
    pub(super) left_out: GaugeVec,
    pub(super) adopted: IntCounterVec,
    pub(super) not_adopted: IntGaugeVec,
    pub(super) failed_waits: IntCounter,
    pub(super) failed_looks: IntCounter,
}

impl TapMetrics {
    /// Declares and registers the metrics.
    ///
    /// # Errors
    /// Two metrics of one name.
    pub fn register(registry: &Registry) -> prometheus::Result<Self> {
        let flows = IntGauge::new(
            "underpass_tap_flows",
            "Flows that are read from copies of their packets (`path = \"tap\"`).",
        )?;
        registry.register(Box::new(flows.clone()))?;
        Ok(Self {
            flows,
            gaps: counters_by(
                registry,
                "underpass_tap_gaps_total",
                "Times that bytes of a tapped flow were missed: the tap's ring was full, or the network brought them \
                 too late to be put in their place.",
                &["rule"],
            )?,
            abandoned: counters_by(
                registry,
                "underpass_tap_abandoned_total",
                "Requests of tapped flows that had begun to pass when bytes were missed, and are paired with no \
                 response.",
                &["rule"],
            )?,
            stopped: counters_by(
                registry,
                "underpass_tap_stopped_total",
                "Tapped flows that are not read any more, because they cannot be decoded, by rule and reason.",
                &["rule", "reason"],
            )?,
            adopted: counters_by(
                registry,
                "underpass_observed_adopted_total",
                "Running connections, from before the rule that has them read or from before the agent's start, which \
                 are read where they are.",
                &["rule"],
            )?,
            not_adopted: not_adopted(registry)?,
            left_out: left_out(registry)?,
            failed_waits: counter(
                registry,
                "underpass_tap_failed_waits_total",
                "Times that copies of tapped flows could not be waited for, for want of memory or descriptors. They were \
                 looked for every few milliseconds until they could.",
            )?,
            failed_looks: counter(
                registry,
                "underpass_tap_failed_looks_total",
                "Times that the reader of copies has panicked where it keeps to its budget, and looks for flows whose end \
                 was missed. It reads on.",
            )?,
        })
    }

    /// Gives each metric a first sample, so that the documentation sees it.
    pub fn declare_for_docs(&self) {
        self.begin("rule");
        self.stopped.with_label_values(&["rule", "reason"]);
        self.adopted.with_label_values(&["rule"]);
    }

    /// Has a rule's series begin, so that whoever asks for them finds 0 and not nothing.
    pub(super) fn begin(&self, rule: &str) {
        self.gaps.with_label_values(&[rule]);
        self.abandoned.with_label_values(&[rule]);
        self.left_out.with_label_values(&[rule]);
    }

    /// Counts running connections that are read from now on, and says why others are not.
    pub(super) fn note_running(&self, running: &Adopted) {
        for (rule, count) in &running.by_rule {
            let rule = series_of(rule.clone());
            let adopted = self.adopted.with_label_values(&[rule.as_str()]);
            adopted.inc_by(*count);
            tracing::info!(
                rule = rule.as_str(),
                connections = count,
                "running connections are read"
            );
        }
        for reason in NotAdopted::ALL {
            let count = running.not.get(&reason).copied().unwrap_or(0);
            let gauge = self.not_adopted.with_label_values(&[reason.as_str()]);
            if count > 0 && gauge.get() as u64 != count {
                let why = reason.explained();
                tracing::info!(
                    connections = count,
                    "running connections are not read: {why}"
                );
            }
            gauge.set(count as i64);
        }
    }

    /// Says of which rules such shares of flows are left out, where `before` these were.
    pub(super) fn tell_left_out(&self, left_out: &BTreeMap<RuleName, f64>, before: &[RuleName]) {
        for (rule, share) in left_out {
            let rule_label = series_of(rule.clone());
            let gauge = self.left_out.with_label_values(&[rule_label.as_str()]);
            gauge.set(*share);
            if !before.contains(rule) {
                tracing::warn!(
                    rule = rule.as_str(),
                    share,
                    "reading copies takes more than `tap_cpu`: some of the rule's flows are not read"
                );
            }
        }
        for rule in before.iter().filter(|rule| !left_out.contains_key(*rule)) {
            let rule_label = series_of(rule.clone());
            let gauge = self.left_out.with_label_values(&[rule_label.as_str()]);
            gauge.set(0.0);
            tracing::info!(
                rule = rule.as_str(),
                "all of the rule's flows are read again"
            );
        }
    }
}

fn left_out(registry: &Registry) -> prometheus::Result<GaugeVec> {
    let opts = Opts::new(
        "underpass_tap_left_out",
        "Share of a rule's tapped flows, from 0 to 1, that are not read, because reading all would take more than \
         `agent.tap_cpu`. Their requests are counted as observed ones.",
    );
    let gauges = GaugeVec::new(opts, &["rule"])?;
    registry.register(Box::new(gauges.clone()))?;
    Ok(gauges)
}

fn not_adopted(registry: &Registry) -> prometheus::Result<IntGaugeVec> {
    let reasons = NotAdopted::ALL.map(NotAdopted::as_str).join("`, `");
    let help = format!(
        "Running connections that a rule has read and that are not, when they were last looked at, by reason: \
         `{reasons}`."
    );
    let opts = Opts::new("underpass_observed_not_adopted", help);
    let gauges = IntGaugeVec::new(opts, &["reason"])?;
    for reason in NotAdopted::ALL {
        gauges.with_label_values(&[reason.as_str()]);
    }
    registry.register(Box::new(gauges.clone()))?;
    Ok(gauges)
}
