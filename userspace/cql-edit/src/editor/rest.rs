//! An [`Editor`] at rest: nothing of its flow is under way, so that another one, maybe in another process, can go on with it.

use cql::{Compression, Unread};
use serde::{Deserialize, Serialize};

use super::Editor;
use crate::lane::Lane;
use crate::login::Login;

/// The longest fact of a session that goes on elsewhere, in bytes, as policies have it (`MAX_FACT_BYTES`). Names of
/// keyspaces are shorter.
const MAX_FACT_BYTES: usize = 256;

/// The facts of a session that another editor cannot find out from what comes next.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionAtRest {
    keyspace: Option<String>,
    keyspace_unclear: bool,
    keyspace_before: bool,
    /// The keyspace stays unclear until the flow ends.
    keyspace_lost: bool,
    user: Option<String>,
    driver: Option<String>,
    logged_in: bool,
}

/// Why no other editor can go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotAtRest {
    /// Something is under way.
    Busy,
    /// The stream cannot be read.
    Unreadable,
    /// A step needs to know how the flow has logged in.
    Opening,
    /// A step keeps something of the flow.
    Kept,
    /// The user who has logged in cannot be told.
    Login,
    /// A fact is longer than facts are.
    Long,
}

impl Editor {
    /// The session of a flow of which nothing is under way.
    ///
    /// # Errors
    /// Something is, or no other editor can go on.
    pub fn at_rest(&self) -> Result<SessionAtRest, NotAtRest> {
        if self.over.is_some() {
            return Err(NotAtRest::Unreadable);
        }
        let state = &self.state;
        if state.pipeline.iter().any(|step| step.wants_opening()) {
            return Err(NotAtRest::Opening);
        }
        if state.kept.is_some() {
            return Err(NotAtRest::Kept);
        }
        let session = &state.session;
        match session.login {
            Login::Idle => {}
            Login::Out { .. } => return Err(NotAtRest::Busy),
            Login::Ambiguous => return Err(NotAtRest::Login),
        }
        let terms = &session.terms;
        let is_settled = terms.accepted && terms.startup.is_none() && !session.early;
        let has_bytes =
            !self.left.is_empty() || !self.requests.is_at_rest() || !self.responses.is_at_rest();
        if !is_settled || has_bytes || self.has_more() || !state.is_at_rest() {
            return Err(NotAtRest::Busy);
        }
        let caller = &session.caller;
        let facts = [&caller.keyspace, &caller.user, &caller.driver];
        if facts
            .into_iter()
            .flatten()
            .any(|fact| fact.len() > MAX_FACT_BYTES)
        {
            return Err(NotAtRest::Long);
        }
        Ok(SessionAtRest {
            keyspace: caller.keyspace.clone(),
            keyspace_unclear: caller.keyspace_unclear,
            keyspace_before: caller.keyspace_before,
            keyspace_lost: session.uses.is_lost(),
            user: caller.user.clone(),
            driver: caller.driver.clone(),
            logged_in: caller.logged_in,
        })
    }

    /// Goes on with a flow that another editor has left at rest, under the pipeline that this one has. To be called before
    /// any byte is shown.
    pub fn goes_on(&mut self, unread: &Unread, rest: SessionAtRest) {
        let session = &mut self.state.session;
        let terms = &mut session.terms;
        terms.version = unread.version_byte();
        terms.compression = unread.compression().unwrap_or(Compression::None);
        terms.extensions = unread.extensions().unwrap_or_default();
        terms.accepted = true;
        terms.segmented = unread.is_segmented();
        // What a step makes up may go on before anything comes.
        let segments = terms.segmented.then_some(terms.compression);
        (self.requests, self.responses) = (Lane::within(segments), Lane::within(segments));
        self.request_state.begun = true;
        self.answered = true;
        let SessionAtRest {
            keyspace,
            keyspace_unclear,
            keyspace_before,
            keyspace_lost,
            user,
            driver,
            logged_in,
        } = rest;
        if keyspace_lost {
            session.uses.lose();
        }
        let caller = &mut session.caller;
        (caller.keyspace, caller.keyspace_unclear) = (keyspace, keyspace_unclear);
        caller.keyspace_before = keyspace_before;
        (caller.user, caller.driver) = (user, driver);
        caller.logged_in = logged_in;
    }
}
