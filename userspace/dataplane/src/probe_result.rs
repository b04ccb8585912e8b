//! The result of probing a path on this kernel.

use std::time::{Duration, Instant};

/// How often a path is tried out before it is taken for one that does not work: on a busy host a try may not end
/// within its time limit.
const TRIES: u32 = 3;

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
    /// Tries a path out, unless a test wants it off: up to [`TRIES`] times, until a try succeeds.
    pub fn of(path: &str, probe: impl FnMut() -> Result<(), String>) -> Self {
        let begun = Instant::now();
        let off = test_hooks::get().off(path);
        let failure = off.or_else(|| after_tries(path, probe).err());
        Self {
            path: path.to_owned(),
            took: begun.elapsed(),
            failure,
        }
    }
}

/// The last failure, if every try fails.
fn after_tries(path: &str, mut probe: impl FnMut() -> Result<(), String>) -> Result<(), String> {
    for again in 1..TRIES {
        match probe() {
            Ok(()) => return Ok(()),
            Err(reason) => tracing::debug!(path, again, reason, "tried again"),
        }
    }
    probe()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_works_if_one_try_succeeds_and_says_why_the_last_failed() {
        for works_at in 1..=TRIES + 1 {
            let mut tries = 0;
            let result = ProbeResult::of("path", || {
                tries += 1;
                (tries == works_at)
                    .then_some(())
                    .ok_or(format!("try {tries}"))
            });
            assert_eq!(tries, works_at.min(TRIES));
            let failed = (works_at > TRIES).then(|| format!("try {TRIES}"));
            assert_eq!(result.failure, failed);
        }
    }
}
