//! On which terms a flow begins, where TLS ends in the agent: by whether its client begins with TLS.
//!
//! A rule that is decided says so itself. Of a flow that is decided by its session, TLS has to end
//! before the session can be read: it does where all rules that enrich, and that the flow can still meet,
//! say the same.

use std::sync::Arc;

use super::{Shared, session::Question};
use crate::{
    flows::Flow,
    tls::{Common, RuleTls},
};

/// See the module.
pub(super) struct Terms {
    pub encrypted: Encrypted,
    pub plain: Plain,
}

/// A client that begins with TLS.
pub(super) enum Encrypted {
    /// Ends here.
    Ends(Arc<RuleTls>),
    /// Goes on to the database as it is.
    Passes(Opaque),
}

/// Why TLS does not end in the agent, though a rule speaks of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opaque {
    /// The rule has no certificate to show.
    NoCertificate,
    /// Rules differ.
    RulesDiffer,
}

impl Opaque {
    /// As in metrics.
    pub const LABELS: [&str; 2] = ["no_certificate", "rules_differ"];

    /// Its own.
    pub fn as_str(self) -> &'static str {
        let [no_certificate, rules_differ] = Self::LABELS;
        match self {
            Self::NoCertificate => no_certificate,
            Self::RulesDiffer => rules_differ,
        }
    }
}

/// One that does not.
pub(super) enum Plain {
    /// Goes on to the database as it is.
    Passes,
    /// Goes on to the database, encrypted.
    Dials(Arc<RuleTls>),
    /// Is told this, and ends.
    Refused(String),
}

impl Terms {
    /// None: nothing is to be known of the client's first byte.
    pub(super) fn of(shared: &Shared, flow: &Flow, question: Option<&Question>) -> Option<Self> {
        let rules = shared.tls.borrow().clone();
        if rules.is_empty() {
            return None;
        }
        match question {
            None => rules.of(&flow.rule()).map(|tls| Self::decided(flow, tls)),
            Some(question) => {
                let [encrypted, plain] = [true, false].map(|is| question.common(&rules, is));
                Self::undecided(flow, encrypted, plain)
            }
        }
    }

    fn decided(flow: &Flow, tls: &Arc<RuleTls>) -> Self {
        Self {
            encrypted: encrypted(tls.clone()),
            plain: plain(flow, tls.clone()),
        }
    }

    fn undecided(flow: &Flow, if_encrypted: Common, if_plain: Common) -> Option<Self> {
        if matches!((&if_encrypted, &if_plain), (Common::None, Common::None)) {
            return None;
        }
        Some(Self {
            encrypted: match if_encrypted {
                Common::None => Encrypted::Passes(Opaque::NoCertificate),
                Common::All(tls) => encrypted(tls),
                Common::Differ { .. } => Encrypted::Passes(Opaque::RulesDiffer),
            },
            plain: match if_plain {
                Common::None | Common::Differ { strict: false } => Plain::Passes,
                Common::All(tls) => plain(flow, tls),
                Common::Differ { strict: true } => Plain::Refused(
                    "underpass: rules that this connection may meet differ in TLS".to_owned(),
                ),
            },
        })
    }
}

fn encrypted(tls: Arc<RuleTls>) -> Encrypted {
    match tls.accept {
        Some(_) => Encrypted::Ends(tls),
        None => Encrypted::Passes(Opaque::NoCertificate),
    }
}

fn plain(flow: &Flow, tls: Arc<RuleTls>) -> Plain {
    match (tls.wants_encrypted(), &tls.dial) {
        (true, _) => Plain::Refused(format!("underpass: rule {} wants TLS", flow.rule())),
        (false, Some(_)) => Plain::Dials(tls),
        (false, None) => Plain::Passes,
    }
}
