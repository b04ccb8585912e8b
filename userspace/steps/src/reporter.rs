//! Reporters: steps of a pipeline that change nothing. They see requests and answers, and report
//! them.
//!
//! Each reporter is one file, and one line in the list in `reporters.rs`. A [`Reporter`] is shared by all flows
//! of its rule; its part in one flow is a [`Following`]. Reporters see what the client sent and
//! what the client got, wherever they are in the list of steps.

use std::{fmt, sync::Arc};

use cql::{Completed, Details, Frame, StatementKind};
use policy::TapDepth;

use super::{journal::JournalSettings, refusal::Refusal, services::Services, whose::Whose};

/// A step that reports, shared by all flows of its rule.
pub trait Reporter: fmt::Debug + Send + Sync {
    /// Returns the name in the configuration, which is a metric's label, too.
    fn name(&self) -> &'static str;

    /// Returns the settings of the journal that the reporter writes to.
    fn journal(&self) -> Option<&JournalSettings> {
        None
    }

    /// Reads the certificates that the step names, as [`Self::open`] does, only to check whether
    /// they are good.
    ///
    /// # Errors
    /// Names the bad certificate, and the reason.
    fn reads(&self) -> Result<(), String> {
        Ok(())
    }

    /// Opens what the step needs, before its rule is in force.
    ///
    /// # Errors
    /// Names what cannot be opened, and the reason.
    fn open(&self, services: &Services) -> Result<(), String> {
        let _ = services;
        Ok(())
    }

    /// Whether the reporter wants requests. For one that only wants frames no statement is looked
    /// at.
    fn wants_requests(&self) -> bool {
        true
    }

    /// Whether the reporter wants frames.
    fn wants_frames(&self) -> bool {
        false
    }

    /// Whether the reporter looks at [the bodies of frames](cql::Frame::body).
    fn wants_bodies(&self) -> bool {
        false
    }

    /// Whether the reporter looks at [the texts of statements](cql::Asked::text).
    fn wants_texts(&self) -> bool {
        false
    }

    /// Whether the reporter looks at [the trace contexts of clients](cql::Details::context).
    fn wants_contexts(&self) -> bool {
        false
    }

    /// Makes the reporter's part in a flow that begins, or that is read again.
    fn follow(&self, whose: &Arc<Whose>, services: &Arc<Services>) -> Box<dyn Following>;
}

/// A reporter's part in one flow. Called on the threads on which bytes move: it never waits, and
/// allocates nothing for what it has seen before.
pub trait Following: Send + Sync {
    /// Reports a request and its response, which have passed.
    fn completed(&mut self, completed: &Completed<'_>, details: &Details);

    /// Reports, instead of [`Self::completed`], a request that a transform has answered, and that
    /// has not reached the database.
    fn refused(&mut self, by: Refusal, completed: &Completed<'_>, details: &Details) {
        let _ = by;
        self.completed(completed, details);
    }

    /// Reports a request to which there will be no response, because its flow has ended or is not read any more; or
    /// none that can be told from others, because several requests were out on its stream.
    fn unanswered(&mut self, request: &Completed<'_>, details: &Details) {
        let _ = (request, details);
    }

    /// Reports a request for a prepared statement that is not known. Called for every reporter.
    fn unknown_prepared(&mut self, id: &[u8]) {
        let _ = id;
    }

    /// Reports a frame that passes. Only called for a reporter that wants frames.
    fn frame(&mut self, frame: &Frame<'_>) {
        let _ = frame;
    }

    /// Whether nothing more may be read from the client until the waiting records are written.
    /// Writes as many as it can, and is called again after a while.
    fn holds(&mut self) -> bool {
        false
    }
}

/// The reporters of a rule.
pub type Reporters = Arc<[Box<dyn Reporter>]>;

/// How much of each frame these reporters need together. Of a frame that nobody reports the decoder reads what says
/// which statement it is.
pub fn depth(reporters: &[Box<dyn Reporter>]) -> TapDepth {
    let deepest = reporters.iter().map(|reporter| {
        match (reporter.wants_requests(), reporter.wants_bodies()) {
            (true, _) => TapDepth::Details,
            (false, true) => TapDepth::Bodies,
            (false, false) => TapDepth::Frames,
        }
    });
    deepest.max().unwrap_or(TapDepth::Frames)
}

/// Whether a statement of this kind belongs into a list of statements.
pub(crate) fn asks_for_data(kind: StatementKind) -> bool {
    use StatementKind as Kind;
    !matches!(
        kind,
        Kind::Prepare | Kind::Startup | Kind::Options | Kind::Register | Kind::AuthResponse
    )
}
