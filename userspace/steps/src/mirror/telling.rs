//! The log lines on differences and outages, at a limited rate.

use std::{
    collections::HashSet,
    io,
    sync::Arc,
    time::{Duration, Instant},
};

use cql::Analysis;
use parking_lot::Mutex;

use super::{
    compare::Difference,
    exchange::{Exchange, Named},
    shared::{MAX_KEYSPACES, Shared},
};

/// The least time between two log lines on a rule's mirror.
const EVERY: Duration = Duration::from_secs(1);

/// The time of the last line, and the number of differences without a line since.
#[derive(Debug, Default)]
pub(super) struct Told(Mutex<(Option<Instant>, u64)>);

impl Told {
    /// Returns the number of differences that had no line before this one. None: this one gets no
    /// line, either.
    fn once(&self, now: Instant) -> Option<u64> {
        let mut told = self.0.lock();
        let (last, silent) = &mut *told;
        if last.is_some_and(|last| now.saturating_duration_since(last) < EVERY) {
            *silent += 1;
            return None;
        }
        *last = Some(now);
        Some(std::mem::take(silent))
    }
}

/// The keyspaces for which the log says that the mirror is away. There are no more of them than
/// connections, since clients may name any keyspace.
#[derive(Debug, Default)]
pub(super) struct Away(Mutex<HashSet<Option<Arc<str>>>>);

impl Away {
    /// Notes an outage. False: it was noted before, or there are too many to report.
    fn begins(&self, keyspace: &Option<Arc<str>>) -> bool {
        let mut away = self.0.lock();
        away.len() < MAX_KEYSPACES && away.insert(keyspace.clone())
    }

    /// Notes the end of an outage. False: there was none.
    fn ends(&self, keyspace: &Option<Arc<str>>) -> bool {
        let mut away = self.0.lock();
        away.remove(keyspace)
    }
}

impl Shared {
    /// Logs that the mirror cannot be asked in this keyspace.
    pub(super) fn report_away(&self, keyspace: &Option<Arc<str>>, error: &io::Error) {
        if self.away.begins(keyspace) {
            let (rule, mirror, keyspace) = (&self.rule, self.settings.to, keyspace.as_deref());
            tracing::warn!(%rule, %mirror, keyspace, %error, "the mirror is away; what is for it is dropped");
        }
    }

    /// Logs that the mirror can be asked in this keyspace again.
    pub(super) fn report_back(&self, keyspace: &Option<Arc<str>>) {
        if self.away.ends(keyspace) {
            let (rule, mirror, keyspace) = (&self.rule, self.settings.to, keyspace.as_deref());
            tracing::info!(%rule, %mirror, keyspace, "the mirror is there again");
        }
    }

    /// Logs a difference, with its values only if that is wanted.
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

    #[test]
    fn who_is_away_is_told_once_and_of_so_many() {
        let away = Away::default();
        let named = |n: usize| Some(Arc::from(n.to_string()));
        assert!(!away.ends(&None));
        assert!(away.begins(&None) && !away.begins(&None));
        assert!(away.ends(&None) && !away.ends(&None));
        let told = (0..2 * MAX_KEYSPACES)
            .filter(|n| away.begins(&named(*n)))
            .count();
        assert_eq!(told, MAX_KEYSPACES);
    }
}
