//! Work that can be repeated any number of times, and the tally that shows whether it was done.

/// Result of one round of work: makes fast and wrong look different.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Headers, frames, segments, statements or operations, whichever the case is about.
    pub elements: u64,
    /// Bytes of bodies or payloads, as the part under test counted them.
    pub bytes: u64,
    /// Anomalies, verdicts, and what could not be read. A sound case has none.
    pub odd: u64,
}

/// Work, and its expected tally.
pub struct Case {
    /// The tally of one round.
    pub expected: Tally,
    /// The bytes that one round is fed.
    pub fed_bytes: u64,
    work: Box<dyn FnMut() -> Tally>,
}

impl Case {
    pub(super) fn new(
        fed_bytes: usize,
        expected: Tally,
        work: impl FnMut() -> Tally + 'static,
    ) -> Self {
        Self {
            expected,
            fed_bytes: fed_bytes as u64,
            work: Box::new(work),
        }
    }

    /// Does one round.
    pub fn work(&mut self) -> Tally {
        (self.work)()
    }
}
