//! Why etcd, or an API server, could not be read or written.

use std::{error::Error as _, io};

use thiserror::Error;
use tonic::Code;

/// The reason why a session with etcd ended, or never began.
#[derive(Debug, Error)]
pub enum Failure {
    /// No connection could be made.
    #[error("{0} cannot be reached: {1}")]
    Unreachable(String, io::Error),
    /// The member can be reached, but the TLS handshake failed.
    #[error("{0}: TLS: {1}")]
    Tls(String, io::Error),
    /// The password cannot be read.
    #[error("{0}")]
    Password(String),
    /// The member does not let this user do that.
    #[error("{0}")]
    Denied(String),
    /// The member did not answer in time.
    #[error("no answer in time")]
    Late,
    /// The member has no leader, or ended the watch, the lease or the connection.
    #[error("the session ended: {0}")]
    Lost(String),
    /// The revision from which changes were wanted is gone; all is read again.
    #[error("the watched revision is compacted")]
    Compacted,
    /// An answer exceeds what is taken.
    #[error("an answer is too large: {0}")]
    TooLarge(String),
    /// Somebody else has changed the policy in the meantime.
    #[error(
        "somebody else has changed the policy in the meantime: look at it again (`underpass policy diff`)"
    )]
    Raced,
    /// The latest version is not the one on which a push was made.
    #[error(
        "the latest version is {latest}, and this push was made on {on}: nothing is changed. Look at what others have pushed (`underpass policy diff`), take it over \
         into your files, and push them with `--on {latest}`"
    )]
    Superseded {
        /// The latest version. 0: nobody has pushed.
        latest: u64,
        /// The one on which the push was made.
        on: u64,
    },
    /// The policy is not that of a push.
    #[error(
        "the files in etcd are those of no push: somebody has changed them with something else. Nothing is changed. Look at them (`underpass policy diff`), \
         and push without `--on` to put yours in their place"
    )]
    Unpushed,
    /// A wanted version is not there.
    #[error("{0}")]
    Absent(String),
}

impl Failure {
    /// The labels in metrics.
    pub const LABELS: [&str; 10] = [
        "unreachable",
        "tls",
        "password",
        "denied",
        "late",
        "lost",
        "compacted",
        "too_large",
        "raced",
        "absent",
    ];

    fn denied_by_etcd(said: &str) -> Self {
        Self::Denied(format!(
            "etcd refuses: {said}: look at `user`, its password and its role"
        ))
    }

    /// Returns the label, one of [`Self::LABELS`].
    pub fn label(&self) -> &'static str {
        match self {
            Self::Unreachable(..) => "unreachable",
            Self::Tls(..) => "tls",
            Self::Password(_) => "password",
            Self::Denied(_) => "denied",
            Self::Late => "late",
            Self::Lost(_) => "lost",
            Self::Compacted => "compacted",
            Self::TooLarge(_) => "too_large",
            Self::Raced | Self::Superseded { .. } | Self::Unpushed => "raced",
            Self::Absent(_) => "absent",
        }
    }
}

impl From<etcd_client::Error> for Failure {
    fn from(error: etcd_client::Error) -> Self {
        let etcd_client::Error::GRpcStatus(status) = &error else {
            return Self::Lost(error.to_string());
        };
        let mut said = status.message().to_owned();
        let mut cause = status.source();
        while let Some(deeper) = cause {
            said = deeper.to_string();
            cause = deeper.source();
        }
        match status.code() {
            Code::Unauthenticated | Code::PermissionDenied => Self::denied_by_etcd(&said),
            Code::InvalidArgument if said.contains("authentication failed") => {
                Self::denied_by_etcd(&said)
            }
            // What tonic says of a message above the limit.
            Code::OutOfRange | Code::ResourceExhausted => Self::TooLarge(said),
            Code::DeadlineExceeded => Self::Late,
            _ => Self::Lost(said),
        }
    }
}
