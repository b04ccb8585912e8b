//! A flow that reporters follow, somebody watches, or somebody captures.

use std::{collections::HashMap, sync::Arc};

use cql::{Completed, Details, Frame, StreamId};
use flow::Flow;

use super::{
    Following, Refusal, Reporters, Services, What, Whose,
    capture::Captures,
    tail::{Tails, Watched},
};

/// The reporters of one flow, and what they want to see; and whether somebody watches or captures it.
pub struct Followed {
    whose: Arc<Whose>,
    tails: Arc<Tails>,
    watched: Watched,
    captures: Arc<Captures>,
    is_captured: bool,
    /// The requests that are answered in the database's place, by stream: 65,536 at most.
    refusals: HashMap<StreamId, Refusal>,
    wants_requests: bool,
    wants_frames: bool,
    wants_bodies: bool,
    wants_texts: bool,
    wants_contexts: bool,
    by: Box<[Box<dyn Following>]>,
}

impl Followed {
    /// Begins to report a flow to these reporters.
    pub fn by(reporters: &Reporters, flow: &Arc<Flow>, services: &Arc<Services>) -> Self {
        let whose = Arc::new(Whose::new(flow, &services.containers));
        if !reporters.is_empty() {
            // While the process is there.
            whose.container();
        }
        let by = reporters.iter();
        Self {
            by: by
                .map(|reporter| reporter.follow(&whose, services))
                .collect(),
            whose,
            tails: services.tails.clone(),
            watched: Watched::No,
            captures: services.captures.clone(),
            is_captured: false,
            refusals: HashMap::new(),
            wants_requests: reporters.iter().any(|reporter| reporter.wants_requests()),
            wants_frames: reporters.iter().any(|reporter| reporter.wants_frames()),
            wants_bodies: reporters.iter().any(|reporter| reporter.wants_bodies()),
            wants_texts: reporters.iter().any(|reporter| reporter.wants_texts()),
            wants_contexts: reporters.iter().any(|reporter| reporter.wants_contexts()),
        }
    }

    /// Begins to tell those who watch or capture a flow that no reporter follows.
    pub fn by_watchers(flow: &Arc<Flow>, services: &Arc<Services>) -> Self {
        Self::by(&Reporters::from([]), flow, services)
    }

    /// Notes whether anybody watches, and whether anybody captures the flow. To be called before bytes are read.
    pub fn note_watched(&mut self, watched: Watched, is_captured: bool) {
        self.watched = watched;
        self.is_captured = is_captured;
        if !self.wants_details() {
            // Nothing takes them out any more.
            self.refusals.clear();
        }
    }

    /// Whether nobody is told anything.
    pub fn is_idle(&self) -> bool {
        self.by.is_empty() && !self.is_looked_at()
    }

    /// Whether anybody watches, or captures the flow.
    fn is_looked_at(&self) -> bool {
        self.watched != Watched::No || self.is_captured
    }

    /// Tells those who watch, and those who capture the flow.
    fn tell(&self, what: What, completed: &Completed<'_>, details: Option<&Details>) {
        if self.watched != Watched::No {
            let none = Details::default();
            let details = details.unwrap_or(&none);
            self.tails.tell(&self.whose, what, completed, details);
        }
        if self.is_captured {
            self.captures
                .tell(&self.whose.flow, what, completed, details);
        }
    }

    /// Tells those who watch or capture of a request of which no details are known.
    pub fn completed_without_details(&self, completed: &Completed<'_>) {
        if self.is_looked_at() {
            self.tell(What::Answered, completed, None);
        }
    }

    /// Reports a request and its response, which have passed.
    pub fn completed(&mut self, completed: &Completed<'_>, details: &Details) {
        if let (Some(says), true) = (&details.asked.says, details.answered.accepts) {
            self.whose.says(says);
        }
        let refusal = match self.refusals.is_empty() {
            true => None,
            false => self.refusals.remove(&completed.stream),
        };
        for following in &mut self.by {
            match refusal {
                None => following.completed(completed, details),
                Some(by) => following.refused(by, completed, details),
            }
        }
        self.tell(
            refusal.map_or(What::Answered, What::Refused),
            completed,
            Some(details),
        );
    }

    /// Reports a request that gets no response, or none that can be told from others.
    pub fn unanswered(&mut self, request: &Completed<'_>, details: &Details) {
        for following in &mut self.by {
            following.unanswered(request, details);
        }
        self.tell(What::Unanswered, request, Some(details));
    }

    /// A response has passed that may be to any of several requests: one that was refused, too.
    pub fn unpaired(&mut self, stream: StreamId) {
        self.refusals.remove(&stream);
    }

    /// Reports a request for a prepared statement that is not known.
    pub fn unknown_prepared(&mut self, id: &[u8]) {
        for following in &mut self.by {
            following.unknown_prepared(id);
        }
    }

    /// Reports a frame that passes.
    pub fn frame(&mut self, frame: &Frame<'_>) {
        if self.wants_frames {
            for following in &mut self.by {
                following.frame(frame);
            }
        }
    }

    /// Notes that the next responses on these streams are not the database's.
    pub fn note_refusals(&mut self, refusals: Vec<(StreamId, Refusal)>) {
        // Nothing would take them out again.
        if self.wants_details() {
            self.refusals.extend(refusals);
        }
    }

    /// Whether a reporter wants requests. If not, the reporters want frames at most.
    pub fn wants_requests(&self) -> bool {
        self.wants_requests
    }

    /// Whether a reporter wants requests, or somebody watches or captures, who is told of details where they can be had.
    pub fn wants_details(&self) -> bool {
        self.wants_requests || self.is_looked_at()
    }

    /// Whether a reporter looks at the bodies of frames.
    pub fn wants_bodies(&self) -> bool {
        self.wants_bodies
    }

    /// Whether somebody looks at the texts of statements.
    pub fn wants_texts(&self) -> bool {
        self.wants_texts || self.wants_values()
    }

    /// Whether somebody wants the values that are bound to requests.
    pub fn wants_values(&self) -> bool {
        self.watched == Watched::Values
    }

    /// Whether somebody captures the flow, and wants requests themselves.
    pub fn wants_whole(&self) -> bool {
        self.is_captured
    }

    /// Whether a reporter looks at the trace contexts of clients.
    pub fn wants_contexts(&self) -> bool {
        self.wants_contexts
    }

    /// Returns the flow's client.
    pub fn whose(&self) -> &Whose {
        &self.whose
    }

    /// Whether nothing more may be read from the client for now.
    pub fn holds(&mut self) -> bool {
        // Every reporter is asked, because they write their waiting records when asked.
        let mut holds = false;
        for following in &mut self.by {
            holds |= following.holds();
        }
        holds
    }
}
