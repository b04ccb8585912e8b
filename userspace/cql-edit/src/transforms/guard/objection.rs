//! [`Objection`]: why a statement is refused, in words.

use std::sync::Arc;

use super::judge::Reason;

/// The most characters of a name that are shown: the client chose it, and knows it.
const MAX_SHOWN: usize = 64;

/// Why a statement is refused. It has names that the statement has, and no values; it may be that of a
/// statement which another flow has prepared, so it has nothing of a flow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Objection {
    /// The reason, as a metric's label.
    pub reason: Reason,
    /// The whole reason, or what is closed.
    words: Arc<str>,
}

impl Objection {
    /// Makes an objection of a whole sentence, without its end.
    pub(super) fn new(reason: Reason, words: &str) -> Self {
        let words = Arc::from(words);
        Self { reason, words }
    }

    /// Makes the objection that something is closed: `table shop.cards`.
    pub(super) fn closed(what: &str) -> Self {
        Self::new(Reason::Table, what)
    }

    /// Tells a user why his statement is refused.
    pub(super) fn told_to(&self, user: Option<&str>) -> String {
        match (self.reason, user) {
            (Reason::Table, Some(user)) => {
                format!("{} is closed to user {}", self.words, shown(user))
            }
            (Reason::Table, None) => format!("{} is closed", self.words),
            _ => self.words.to_string(),
        }
    }
}

/// A name as it is shown: short, and on one line.
pub(super) fn shown(name: &str) -> String {
    let safe = |c: char| if c.is_control() { '?' } else { c };
    let mut shown: String = name.chars().take(MAX_SHOWN).map(safe).collect();
    if name.chars().nth(MAX_SHOWN).is_some() {
        shown.push('…');
    }
    shown
}
