//! Reasons for which a client's TLS goes on to the database.

/// The reason why TLS does not end in the agent, though a rule is about TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opaque {
    /// The rule has no certificate to show.
    NoCertificate,
    /// The rules that the flow may meet differ.
    RulesDiffer,
}

impl Opaque {
    /// The labels in metrics.
    pub const LABELS: [&str; 2] = ["no_certificate", "rules_differ"];

    /// Returns the label of this reason.
    pub fn as_str(self) -> &'static str {
        let [no_certificate, rules_differ] = Self::LABELS;
        match self {
            Self::NoCertificate => no_certificate,
            Self::RulesDiffer => rules_differ,
        }
    }
}
