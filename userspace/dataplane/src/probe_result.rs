//! The result of probing a path on this kernel.

use std::time::{Duration, Instant};

/// The result of probing a path.
#[derive(Clone, Debug)]
pub struct ProbeResult {
    /// The path's name, as in metrics.
    pub path: String,
    /// How long that took; zero where nobody looked.
    pub took: Duration,
    /// Why it is not to be used.
    pub failure: Option<String>,
}

impl ProbeResult {
    /// Tries a path out, unless a test wants it off.
    pub fn of(path: &str, probe: impl FnOnce() -> Result<(), String>) -> Self {
        let begun = Instant::now();
        let failure = test_hooks::get().off(path).or_else(|| probe().err());
        Self {
            path: path.to_owned(),
            took: begun.elapsed(),
            failure,
        }
    }
}
