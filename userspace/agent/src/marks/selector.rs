//! The flows that a mark matches.

use std::fmt;

use flow::{FlowId, Selector};
use policy::{Action, Rule, RuleName};

use crate::config::{SELECTOR_KEYS, marking_rule};

/// The word for every flow and every later connection; nobody writes it by mistake.
const ALL: &str = "all";

/// The key that only running flows have.
const RULE: &str = "rule";

/// A flow by its number in `flows`. The number of a flow that is left alone is its socket's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowNumber {
    /// A flow that the agent carries.
    Carried(FlowId),
    /// A flow that is observed, or on the shortcut.
    Untouched(u64),
}

impl FlowNumber {
    /// Parses `17`, or `socket-4711`.
    pub fn parse(text: &str) -> Option<Self> {
        let digits = |text: &str| {
            let plain = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
            plain.then(|| text.parse().ok()).flatten()
        };
        match text.strip_prefix("socket-") {
            Some(cookie) => digits(cookie).map(Self::Untouched),
            None => digits(text).map(FlowId::new).map(Self::Carried),
        }
    }
}

impl fmt::Display for FlowNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Carried(id) => id.fmt(f),
            Self::Untouched(cookie) => write!(f, "socket-{cookie}"),
        }
    }
}

/// The flows that a mark is for.
#[derive(Clone, Debug)]
pub enum Target {
    /// The flow with this number.
    Flow(FlowNumber),
    /// The flows that this selector matches.
    Selector(Box<Selector>),
}

impl Target {
    /// Parses `17`, `all`, or `key=value,key=value`.
    ///
    /// # Errors
    /// Says what was expected, and what was found.
    pub fn parse(text: &str, action: Action) -> Result<Self, String> {
        if let Some(number) = FlowNumber::parse(text) {
            return Ok(Self::Flow(number));
        }
        Ok(Self::Selector(Box::new(selector(text, action)?)))
    }

    /// The rule that later connections meet.
    pub fn rule(&self) -> Option<&Rule> {
        match self {
            Self::Selector(selector) => selector.later(),
            Self::Flow(_) => None,
        }
    }

    /// Whether connections that are made while the mark lasts can meet it.
    pub fn holds_later(&self) -> bool {
        self.rule().is_some()
    }

    /// The one flow that is meant.
    pub fn flow(&self) -> Option<FlowNumber> {
        match self {
            Self::Flow(number) => Some(*number),
            Self::Selector(_) => None,
        }
    }

    /// Warns of a target that is legal and probably not meant.
    pub fn doubt(&self) -> Option<&'static str> {
        let rule = self.rule()?;
        let wide = rule.to.is_any() && rule.action != Action::Bypass;
        wide.then_some("without `to` it holds for every destination, not only for the database's")
    }

    pub(super) fn named(self, name: &RuleName) -> Self {
        match self {
            Self::Selector(mut selector) => {
                selector.rename(name);
                Self::Selector(selector)
            }
            flow @ Self::Flow(_) => flow,
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flow(number) => number.fmt(f),
            Self::Selector(selector) => f.write_str(selector.text()),
        }
    }
}

fn selector(text: &str, action: Action) -> Result<Selector, String> {
    let form = || {
        format!(
            "expected a flow's number, `{ALL}`, or `key=value,...` of {}, {RULE}; found {text:?}",
            SELECTOR_KEYS.join(", ")
        )
    };
    if text.contains(char::is_control) {
        return Err(form());
    }
    let mut conditions: Vec<(&str, &str)> = Vec::new();
    if text != ALL {
        for condition in text.split(',') {
            let (key, value) = condition.split_once('=').ok_or_else(form)?;
            if conditions.iter().any(|(other, _)| *other == key) {
                return Err(format!("{key}: expected once; found it twice in {text:?}"));
            }
            conditions.push((key, value));
        }
    }
    let met = conditions.iter().find(|(key, _)| *key == RULE);
    let met = met.map(|(_, name)| RuleName::new(name));
    if met.as_ref().is_some_and(|met| met.as_str().is_empty()) {
        return Err(format!("{RULE}: expected a rule's name; found none"));
    }
    conditions.retain(|(key, _)| *key != RULE);
    Ok(Selector::new(
        text.to_owned(),
        met,
        marking_rule(&conditions, action)?,
    ))
}
