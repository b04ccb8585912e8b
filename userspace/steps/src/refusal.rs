//! A request that a transform has answered, as reporters are told of it.

/// The transform that has answered a request, and the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The transform's name, or `unseen` for a request that could not be shown to the transforms.
    pub step: &'static str,
    /// The reason, as in the metrics.
    pub reason: &'static str,
}
