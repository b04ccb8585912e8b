//! The TLS settings that several rules have in common, where it is not known yet which of them a
//! flow meets.

use std::sync::Arc;

use policy::{Action, Candidate, Fact, Policy, RuleName, Session};

use super::{RuleTls, TlsRules};

/// The TLS settings that these rules have in common.
#[derive(Debug)]
pub enum Common {
    /// No rule has any.
    None,
    /// All rules have these.
    All(Arc<RuleTls>),
    /// The rules differ. `strict`: some rules refuse an unencrypted client, or encrypt its bytes
    /// towards the database.
    Differ {
        /// Whether some rules refuse an unencrypted client, or encrypt its bytes towards the
        /// database.
        strict: bool,
    },
}

impl Common {
    /// Finds the settings of the rules that enrich and that a flow may still meet, if its client
    /// encrypts or does not, and nothing else is known of its session.
    pub fn of(rules: &TlsRules, policy: &Policy, flow: &Candidate, is_encrypted: bool) -> Self {
        let session = Session {
            tls: Fact::Is(is_encrypted),
            ..Session::default()
        };
        let possible = policy.possible(flow, &session);
        let enriching = possible.filter(|p| p.met.action == Action::Enrich);
        let names: Vec<RuleName> = enriching.map(|p| p.met.rule).collect();
        Self::of_these(rules, &names)
    }

    fn of_these(rules: &TlsRules, names: &[RuleName]) -> Self {
        let mut each = names.iter().map(|name| rules.of(name));
        let Some(first) = each.next() else {
            return Self::None;
        };
        let is_first = |other: Option<&Arc<RuleTls>>| match (first, other) {
            (Some(first), Some(other)) => Arc::ptr_eq(first, other),
            (first, other) => first.is_none() && other.is_none(),
        };
        match (each.all(is_first), first) {
            (true, Some(all)) => Self::All(all.clone()),
            (true, None) => Self::None,
            (false, _) => Self::Differ {
                strict: names
                    .iter()
                    .filter_map(|name| rules.of(name))
                    .any(|tls| tls.wants_encrypted() || tls.dial.is_some()),
            },
        }
    }
}
