//! The host's own files, and what is known of them.

use tokio::time::Instant;

use crate::{config::Sources, fleet};

/// The host's own files.
pub(super) struct Own {
    /// Files as they are. None: they cannot be read.
    pub(super) read: Option<Sources>,
    /// Files beside which the fleet's are tried first.
    pub(super) beside: Sources,
}

/// A refusal of the host's files.
#[derive(Clone)]
pub(super) struct Failed {
    /// The reason that was told.
    pub(super) why: String,
    /// When they are tried again though they are the same: what they name on the host may be there by then.
    pub(super) again: Instant,
}

impl Failed {
    /// Makes one that is tried again after a while.
    pub(super) fn with(why: String) -> Self {
        let again = Instant::now() + fleet::look_again_after();
        Self { why, again }
    }
}
