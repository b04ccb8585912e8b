//! A line in the log for what is different, and not for each.

use std::{
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use cql::Analysis;

use super::{
    cluster::Shared,
    compare::Difference,
    exchange::{Exchange, Named},
};

/// As often is a rule's mirror told of.
const EVERY: Duration = Duration::from_secs(1);

/// When that was, and how many differences were not told of since.
#[derive(Debug, Default)]
pub(super) struct Told(Mutex<(Option<Instant>, u64)>);

impl Told {
    /// How many were not told of before this one; None: it is not told of, either.
    fn once(&self, now: Instant) -> Option<u64> {
        let mut told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (last, silent) = &mut *told;
        if last.is_some_and(|last| now.saturating_duration_since(last) < EVERY) {
            *silent += 1;
            return None;
        }
        *last = Some(now);
        Some(std::mem::take(silent))
    }
}

impl Shared {
    /// Values are only shown if that is wanted.
    pub(super) fn tell(&self, exchange: &Exchange, difference: &Difference) {
        let Some(untold) = self.told.once(Instant::now()) else {
            return;
        };
        let text = match &exchange.named {
            Named::Text(text) => text,
            Named::Prepared(text) => &text.text,
            Named::Not => return,
        };
        let analysis = Analysis::of(text, text.len());
        let fingerprint = analysis.fingerprint.text();
        let kind = difference.kind.as_str();
        let (rule, mirror) = (&self.rule, self.settings.to);
        match &difference.values {
            Some((column, ours, theirs)) if self.settings.shows_values => tracing::warn!(
                %rule, %mirror, kind, fingerprint, untold, column, ours, theirs, "the mirror differs"
            ),
            _ => tracing::warn!(%rule, %mirror, kind, fingerprint, untold, "the mirror differs"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_told_once_in_a_while() {
        let told = Told::default();
        let now = Instant::now();
        assert_eq!(told.once(now), Some(0));
        assert_eq!(told.once(now), None);
        assert_eq!(told.once(now), None);
        assert_eq!(told.once(now + EVERY), Some(2));
    }
}
