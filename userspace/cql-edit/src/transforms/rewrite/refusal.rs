//! Refusals of requests that cannot be rewritten.

use crate::{Error, Refused};

/// A request is refused as invalid.
pub(super) fn refusal(reason: &'static str, message: &str) -> Refused {
    Refused {
        reason,
        error: Error::Invalid(message.to_owned()),
    }
}

/// Why a text is refused.
pub(super) fn refused() -> Refused {
    refusal(
        "renamed",
        "the proxy's policy calls something otherwise that the statement seems to name, and does not \
         understand the statement",
    )
}
