//! The reasons for which flows end, as logs and metrics name them.

/// The reason for which a flow ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CloseReason {
    /// Both sides have ended, each in its time.
    BothEnded,
    /// The client has reset its connection.
    ClientReset,
    /// The database has reset its connection.
    DatabaseReset,
    /// The client's connection has failed in another way than by a reset.
    ClientError,
    /// The database's connection has failed in another way than by a reset.
    DatabaseError,
    /// The kernel failed in the middle of a spliced flow: nobody knows where its bytes are.
    SpliceFailed,
    /// A rule or a step of its pipeline denies the flow.
    Denied,
    /// Another user logs in on a flow that has met a rule which this user would not meet.
    AnotherUser,
    /// The pipeline cannot tell where frames begin any more.
    Framing,
    /// The client sends no TLS, or TLS that is not accepted.
    ClientTls,
    /// The database sends no TLS, or TLS that is not accepted.
    DatabaseTls,
    /// The client's TLS has ended without a close_notify: nobody knows how much is missing.
    ClientTruncated,
    /// The database's TLS has ended without a close_notify: nobody knows how much is missing.
    DatabaseTruncated,
    /// The flow's rule wants TLS, which the client does not speak.
    TlsRequired,
    /// A mark denies the flow, or closes it because it could not become what the mark says.
    Marked,
    /// The flow's backend was found dead, and the policy file says to reset.
    BackendDown,
    /// A shared connection to the database was lost while this flow had a request out on it.
    SharedLost,
    /// The client had not logged in when its time was over.
    HandshakeTimeout,
    /// The agent was full, and the flow had not begun in earnest: it made room for others.
    MadeRoom,
    /// The agent ends, and the flow with it.
    AgentEnded,
    /// The agent panicked while it carried or read the flow, which nobody can go on with.
    Panicked,
    /// The decoder has lost the framing of the flow's bytes, for this reason.
    Decoder(cql::CloseReason),
}

impl CloseReason {
    /// The reasons that are not the decoder's.
    pub const OWN: [Self; 21] = [
        Self::BothEnded,
        Self::ClientReset,
        Self::DatabaseReset,
        Self::ClientError,
        Self::DatabaseError,
        Self::SpliceFailed,
        Self::Denied,
        Self::AnotherUser,
        Self::Framing,
        Self::ClientTls,
        Self::DatabaseTls,
        Self::ClientTruncated,
        Self::DatabaseTruncated,
        Self::TlsRequired,
        Self::Marked,
        Self::BackendDown,
        Self::SharedLost,
        Self::HandshakeTimeout,
        Self::MadeRoom,
        Self::AgentEnded,
        Self::Panicked,
    ];

    /// Returns every reason, the decoder's included.
    pub fn all() -> impl Iterator<Item = Self> {
        let decoders = cql::CloseReason::ALL.iter().copied();
        Self::OWN.into_iter().chain(decoders.map(Self::Decoder))
    }

    /// Returns the labels of all reasons, for metrics that are to start at zero.
    pub fn labels() -> Vec<&'static str> {
        Self::all().map(Self::as_str).collect()
    }

    /// Whether a client brings this end about at will, by what it sends or does not send: whoever dials decides how
    /// often it happens.
    pub const fn is_brought_about(self) -> bool {
        match self {
            Self::Denied
            | Self::Framing
            | Self::ClientTls
            // A client decides how often the agent dials a database whose TLS it does not take.
            | Self::DatabaseTls
            | Self::ClientTruncated
            | Self::TlsRequired
            | Self::HandshakeTimeout
            | Self::MadeRoom
            | Self::AnotherUser
            // By bytes at which the agent fails.
            | Self::Panicked
            | Self::Decoder(_) => true,
            Self::BothEnded
            | Self::ClientReset
            | Self::DatabaseReset
            | Self::ClientError
            | Self::DatabaseError
            | Self::SpliceFailed
            | Self::DatabaseTruncated
            | Self::Marked
            | Self::BackendDown
            | Self::SharedLost
            | Self::AgentEnded => false,
        }
    }

    /// Returns the reason's name in logs, and its label in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::BothEnded => "both_ended",
            Self::ClientReset => "client_reset",
            Self::DatabaseReset => "database_reset",
            Self::ClientError => "client_error",
            Self::DatabaseError => "database_error",
            Self::SpliceFailed => "splice_failed",
            Self::Denied => "denied",
            Self::AnotherUser => "another_user",
            Self::Framing => "framing",
            Self::ClientTls => "client_tls",
            Self::DatabaseTls => "database_tls",
            Self::ClientTruncated => "client_truncated",
            Self::DatabaseTruncated => "database_truncated",
            Self::TlsRequired => "tls_required",
            Self::Marked => "marked",
            Self::BackendDown => "backend_down",
            Self::SharedLost => "shared_lost",
            Self::HandshakeTimeout => "handshake_timeout",
            Self::MadeRoom => "made_room",
            Self::AgentEnded => "agent_ended",
            Self::Panicked => "panicked",
            Self::Decoder(reason) => reason.as_str(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// Labels that dashboards and log searches know. A new reason adds one; none changes.
    const LABELS: [&str; 27] = [
        "both_ended",
        "client_reset",
        "database_reset",
        "client_error",
        "database_error",
        "splice_failed",
        "denied",
        "another_user",
        "framing",
        "client_tls",
        "database_tls",
        "client_truncated",
        "database_truncated",
        "tls_required",
        "marked",
        "backend_down",
        "shared_lost",
        "handshake_timeout",
        "made_room",
        "agent_ended",
        "panicked",
        "length",
        "direction",
        "version_changed",
        "segment_crc",
        "segment_compression",
        "segment_length",
    ];

    #[test]
    fn every_reason_has_its_known_label() {
        assert_eq!(CloseReason::labels(), LABELS);
    }

    #[test]
    fn no_two_reasons_share_a_label() {
        let labels: HashSet<&str> = CloseReason::labels().into_iter().collect();
        assert_eq!(labels.len(), CloseReason::all().count());
    }

    #[test]
    fn the_list_of_reasons_has_every_reason_once() {
        // The match fails to compile when a reason is added, and the list with it.
        let position = |reason: &CloseReason| match reason {
            CloseReason::BothEnded => 0,
            CloseReason::ClientReset => 1,
            CloseReason::DatabaseReset => 2,
            CloseReason::ClientError => 3,
            CloseReason::DatabaseError => 4,
            CloseReason::SpliceFailed => 5,
            CloseReason::Denied => 6,
            CloseReason::AnotherUser => 7,
            CloseReason::Framing => 8,
            CloseReason::ClientTls => 9,
            CloseReason::DatabaseTls => 10,
            CloseReason::ClientTruncated => 11,
            CloseReason::DatabaseTruncated => 12,
            CloseReason::TlsRequired => 13,
            CloseReason::Marked => 14,
            CloseReason::BackendDown => 15,
            CloseReason::SharedLost => 16,
            CloseReason::HandshakeTimeout => 17,
            CloseReason::MadeRoom => 18,
            CloseReason::AgentEnded => 19,
            CloseReason::Panicked => 20,
            CloseReason::Decoder(_) => 21,
        };
        let positions: Vec<usize> = CloseReason::OWN.iter().map(position).collect();
        assert_eq!(positions, (0..21).collect::<Vec<_>>());
    }
}
