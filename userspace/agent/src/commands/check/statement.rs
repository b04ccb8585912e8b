//! The answer to `check --statement`: whether a statement passes the pipelines of the rules that a connection may meet.

use policy::{Action, RuleName};
use serde_json::{Value, json};

use super::{
    explanation::Explanation,
    trial::{self, Asked, Tried},
};
use crate::config::Config;

/// Shows a statement to the pipelines of the rules that the connection may meet; or of all rules with a pipeline, if no
/// connection is asked about.
pub(super) fn trials(
    config: &Config,
    asked: &Asked,
    explanation: Option<&Explanation>,
) -> Vec<Trial> {
    let rules: Vec<(RuleName, Action)> = match explanation {
        Some(explanation) => {
            let may_hold = explanation.may_hold();
            may_hold.map(|met| (met.rule.clone(), met.action)).collect()
        }
        None => {
            let rules = config.policy.rules.iter();
            rules.map(|rule| (rule.name.clone(), rule.action)).collect()
        }
    };
    let trials = rules
        .into_iter()
        .map(|(rule, action)| Trial::of(config, rule, action, asked));
    trials
        .filter(|trial| explanation.is_some() || trial.has_pipeline())
        .collect()
}

/// The treatment of a statement by one rule.
pub(super) struct Trial {
    rule: RuleName,
    outcome: Outcome,
}

enum Outcome {
    /// The connection is refused.
    Denied,
    /// Nobody reads what is sent, for this reason.
    Unread(&'static str),
    /// The pipeline sees it, as a query and as what is prepared.
    Tried(Box<[Tried; 2]>),
}

impl Trial {
    fn of(config: &Config, rule: RuleName, action: Action, asked: &Asked) -> Self {
        let edits = config.pipelines.edits_of(&rule);
        let outcome = match (action, edits) {
            (Action::Deny, _) => Outcome::Denied,
            // A trigger may have what is observed enriched.
            (Action::Bypass, _) | (Action::Observe, None) => Outcome::Unread("it is not read"),
            (Action::Enrich, None) => {
                Outcome::Unread("no step of the pipeline changes or refuses it")
            }
            (Action::Enrich | Action::Observe, Some(edits)) => {
                let tried =
                    |prepared| trial::try_out(edits.clone(), rule.as_str(), asked, prepared);
                Outcome::Tried(Box::new([tried(false), tried(true)]))
            }
        };
        Self { rule, outcome }
    }

    fn has_pipeline(&self) -> bool {
        matches!(self.outcome, Outcome::Tried(_))
    }

    pub(super) fn is_refused(&self) -> bool {
        match &self.outcome {
            Outcome::Denied => true,
            Outcome::Unread(_) => false,
            Outcome::Tried(tried) => tried.iter().all(Tried::is_refused),
        }
    }

    pub(super) fn text(&self) -> String {
        let rule = &self.rule;
        match &self.outcome {
            Outcome::Denied => format!("statement, by rule {rule}: refused with its connection\n"),
            Outcome::Unread(why) => format!("statement, by rule {rule}: passes: {why}\n"),
            Outcome::Tried(tried) => {
                let [query, prepared] = &**tried;
                match query.text() == prepared.text() {
                    true => format!("statement, by rule {rule}: {}\n", query.text()),
                    false => format!(
                        "statement as a query, by rule {rule}: {}\nstatement when it is prepared, by rule {rule}: {}\n",
                        query.text(),
                        prepared.text()
                    ),
                }
            }
        }
    }

    pub(super) fn json(&self) -> Value {
        let (as_query, as_prepared) = match &self.outcome {
            Outcome::Denied => (json!({"outcome": "denied"}), json!({"outcome": "denied"})),
            Outcome::Unread(_) => (json!({"outcome": "passes"}), json!({"outcome": "passes"})),
            Outcome::Tried(tried) => {
                let [query, prepared] = &**tried;
                (query.json(), prepared.json())
            }
        };
        json!({"rule": self.rule.as_str(), "query": as_query, "prepared": as_prepared})
    }
}
