//! The policy's changes by what is observed: rules whose trigger is on enrich.

use std::collections::BTreeMap;

use flow::commands::FlowCommand;
use policy::{Action, RuleName};
use tokio::time::Instant;

use super::Control;
use crate::{observed, triggers::Changes};

impl Control {
    pub(super) async fn look_at_triggers(&mut self) {
        let dataplane = self.dataplane.clone();
        let looked = tokio::task::spawn_blocking(move || observed::by_rule(&dataplane)).await;
        let observed = looked.unwrap_or_else(|error| {
            tracing::error!(%error, "cannot read observed flows");
            BTreeMap::new()
        });
        let changes = self.triggers.look(Instant::now(), &observed);
        if changes == Changes::default() {
            return;
        }
        for (rule, p99) in &changes.begun {
            tracing::warn!(%rule, ?p99, "rule is slow: new connections are enriched");
        }
        if let Err(error) = self.put(&self.config.policy.clone()) {
            // Putting it into force is tried again.
            self.stale = true;
            tracing::error!("cannot put a trigger into force: {error:#}");
        }
        self.let_go(&changes.ended);
        self.show_triggers();
    }

    /// Flows that were enriched because of triggers that are over.
    pub(super) fn let_go(&self, rules: &[RuleName]) {
        if rules.is_empty() {
            return;
        }
        for rule in rules {
            tracing::info!(%rule, "rule is no longer slow: new connections are observed");
        }
        for flow in self.shared.flows.all() {
            let by = flow.rule();
            if rules.contains(&by) {
                // A flow that has ended meanwhile need not answer.
                drop(flow.commands.post(FlowCommand {
                    action: Action::Bypass,
                    by,
                    reset: false,
                    ask: None,
                    closing: None,
                }));
            }
        }
    }

    pub(super) fn show_triggers(&self) {
        let gauge = &self.metrics.marks.triggered;
        gauge.reset();
        for (rule, on) in self.triggers.states() {
            gauge.with_label_values(&[rule.as_str()]).set(on.into());
        }
    }
}
