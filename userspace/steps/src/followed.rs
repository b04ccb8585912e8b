//! A flow that reporters follow, or somebody watches.

use std::{collections::HashMap, sync::Arc};

use cql::{Completed, Details, Frame, StreamId};
use flow::Flow;

use super::{
    Following, Refusal, Reporters, Services, Whose,
    tail::{Tails, Watched, What},
};

/// The reporters of one flow, and what they want to see; and whether somebody watches it.
pub struct Followed {
    whose: Arc<Whose>,
    tails: Arc<Tails>,
    watched: Watched,
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
            refusals: HashMap::new(),
            wants_requests: reporters.iter().any(|reporter| reporter.wants_requests()),
            wants_frames: reporters.iter().any(|reporter| reporter.wants_frames()),
            wants_bodies: reporters.iter().any(|reporter| reporter.wants_bodies()),
            wants_texts: reporters.iter().any(|reporter| reporter.wants_texts()),
            wants_contexts: reporters.iter().any(|reporter| reporter.wants_contexts()),
        }
    }

    /// Begins to tell watchers of a flow that no reporter follows.
    pub fn by_watchers(flow: &Arc<Flow>, services: &Arc<Services>) -> Self {
        Self::by(&Reporters::from([]), flow, services)
    }

    /// Notes whether anybody watches. To be called before bytes are read.
    pub fn note_watched(&mut self, watched: Watched) {
        self.watched = watched;
        if !self.wants_details() {
            // Nothing takes them out any more.
            self.refusals.clear();
        }
    }

    /// Whether nobody is told anything.
    pub fn is_idle(&self) -> bool {
        self.by.is_empty() && self.watched == Watched::No
    }

    /// Tells those who watch of a request of which no details are known.
    pub fn completed_without_details(&self, completed: &Completed<'_>) {
        if self.watched != Watched::No {
            let details = Details::default();
            self.tails
                .tell(&self.whose, What::Answered, completed, &details);
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
        if self.watched != Watched::No {
            let what = refusal.map_or(What::Answered, What::Refused);
            self.tails.tell(&self.whose, what, completed, details);
        }
    }

    /// Reports a request that gets no response, or none that can be told from others.
    pub fn unanswered(&mut self, request: &Completed<'_>, details: &Details) {
        for following in &mut self.by {
            following.unanswered(request, details);
        }
        if self.watched != Watched::No {
            self.tails
                .tell(&self.whose, What::Unanswered, request, details);
        }
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

    /// Whether a reporter wants requests, or somebody watches, who is told of details where they can be had.
    pub fn wants_details(&self) -> bool {
        self.wants_requests || self.watched != Watched::No
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

    /// Whether a reporter looks at the trace contexts of clients.
    pub fn wants_contexts(&self) -> bool {
        self.wants_contexts
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
