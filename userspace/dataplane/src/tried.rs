//! What came of trying a path out on this kernel.

use std::time::{Duration, Instant};

/// What came of trying a path.
#[derive(Clone, Debug)]
pub struct Tried {
    /// Its name, as in metrics.
    pub path: String,
    /// How long that took; zero where nobody looked.
    pub took: Duration,
    /// Why it is not to be used.
    pub failure: Option<String>,
}

impl Tried {
    /// Tries a path out, unless a test wants it off.
    pub fn out(path: &str, trial: impl FnOnce() -> Result<(), String>) -> Self {
        let begun = Instant::now();
        let failure = test_hooks::get().off(path).or_else(|| trial().err());
        Self {
            path: path.to_owned(),
            took: begun.elapsed(),
            failure,
        }
    }
}
