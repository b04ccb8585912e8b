//! The terms on which a flow begins where TLS ends in the agent: they depend on whether its client
//! begins with TLS.
//!
//! A decided rule states its terms itself. Where a flow is decided by its session, TLS has to end
//! before the session can be read. It does if all rules that enrich, and that the flow can still
//! meet, state the same terms.

use std::sync::Arc;

use flow::Flow;
use tls::{Common, Opaque, RuleTls};

use super::{context::ProxyContext, question::Question};

/// The terms of a flow, for a client that encrypts and for one that does not.
pub(super) struct Terms {
    pub encrypted: Encrypted,
    pub plain: Plain,
}

/// The terms for a client that begins with TLS.
pub(super) enum Encrypted {
    /// TLS ends here.
    Ends(Arc<RuleTls>),
    /// The client's TLS goes on to the database as it is.
    Passes(Opaque),
}

/// The terms for a client that does not begin with TLS.
pub(super) enum Plain {
    /// The client's bytes go on to the database as they are.
    Passes,
    /// The client's bytes go on to the database, encrypted.
    Dials(Arc<RuleTls>),
    /// The client gets this message, and the flow ends.
    Refused(String),
}

impl Terms {
    /// Finds the terms of a flow. None: the client's first byte does not matter.
    pub(super) fn of(
        shared: &ProxyContext,
        flow: &Flow,
        question: Option<&Question>,
    ) -> Option<Self> {
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
