//! How a flow goes to an agent that has taken over, or why it does not.

/// The moment at which a flow is to go to the agent that has taken over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Handing {
    /// Never, as far as is known.
    No = 0,
    /// When nothing of it is under way.
    AtRest = 1,
    /// When nothing of it is under way; until then no further request is read.
    Held = 2,
}

/// The reason why a flow stays with its agent until it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stays {
    /// TLS ends in the agent.
    Tls,
    /// The kernel has carried the flow, and may again.
    Spliced,
    /// The client is on another host: the way back to it is this agent's.
    Incoming,
    /// The bytes cannot be read as the protocol says, and a step has to see them.
    Unreadable,
    /// A step needs to know how the flow has logged in.
    Opening,
    /// A step keeps something of the flow.
    Kept,
    /// Several log-ins were out at once, or another user would meet another rule.
    Login,
    /// A name or a fact of the flow is too long for a message.
    Long,
    /// Another agent has not taken the flow.
    Declined,
}

impl Stays {
    /// All reasons.
    pub const ALL: [Self; 9] = [
        Self::Tls,
        Self::Spliced,
        Self::Incoming,
        Self::Unreadable,
        Self::Opening,
        Self::Kept,
        Self::Login,
        Self::Long,
        Self::Declined,
    ];

    /// Returns the reason as a label of metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Tls => "tls",
            Self::Spliced => "spliced",
            Self::Incoming => "incoming",
            Self::Unreadable => "unreadable",
            Self::Opening => "opening",
            Self::Kept => "kept",
            Self::Login => "login",
            Self::Long => "long",
            Self::Declined => "declined",
        }
    }
}
