//! An [`Editor`] that is shown copies of what has passed already, for steps that [only read](crate::Transform::copies).
//!
//! What it would have go on goes nowhere. Copies may miss something, as the bytes themselves never do: the rest of a long
//! body, or everything between two places. Behind that no response is shown to whoever has seen a request before it.

use cql::wire::Header;
use cql::{Compression, Opcode};

use super::Editor;
use crate::cutter::{FrameAction, Frames as _};
use crate::lane::Lane;
use crate::log::{Log, Unseen};
use crate::request_editor::RequestEditor;
use crate::response_editor::ResponseEditor;
use crate::state::Pairing;

impl Editor {
    /// Has the editor read copies of a flow.
    pub fn of_copies(mut self) -> Self {
        self.state.is_copy = true;
        self
    }

    /// Begins to read in the middle of a flow, of which nothing is known but how its frames look. `segments`: the compression
    /// of those in which they travel; `None`: they travel as they are.
    pub fn joins(&mut self, version: u8, segments: Option<Compression>) {
        (self.requests, self.responses, self.over) = (Lane::new(), Lane::new(), None);
        let terms = &mut self.state.session.terms;
        terms.version = version;
        terms.accepted = true;
        terms.segmented = segments.is_some();
        terms.compression = segments.unwrap_or(terms.compression);
        self.request_state.begun = true;
        self.answered = true;
        self.unpair();
    }

    /// So many bytes of a body have passed of which there is no copy. A response's beginning is shown to whoever waits for
    /// it; a request is not.
    pub fn skip(&mut self, to_database: bool, bytes: usize, log: &mut dyn Log) {
        if self.over.is_some() {
            return;
        }
        let lane = match to_database {
            true => &mut self.requests,
            false => &mut self.responses,
        };
        match lane.skip(bytes) {
            Err(why) => self.over = Some(why),
            Ok(None) => {}
            Ok(Some((header, _))) if to_database => {
                let mut requests = RequestEditor {
                    state: &mut self.state,
                    request_state: &mut self.request_state,
                    now_ns: 0,
                    log,
                };
                let opcode = header.opcode.unwrap_or(Opcode::Options);
                requests.refuse_unseen(&header, opcode, Unseen::NotCopied);
            }
            Ok(Some((header, beginning))) => {
                let mut responses = ResponseEditor {
                    state: &mut self.state,
                    begun: &mut self.answered,
                    log,
                };
                responses.see_beginning(&header, &beginning);
            }
        }
    }

    /// Bytes of a direction have passed of which there is no copy. What is shown next of it begins with a frame.
    pub fn miss(&mut self, to_database: bool) {
        match to_database {
            true => self.requests = Lane::new(),
            false => self.responses = Lane::new(),
        }
        self.unpair();
    }

    /// Nobody knows which responses and which USEs have been missed.
    fn unpair(&mut self) {
        self.state.pairing = Pairing::default();
        let session = &mut self.state.session;
        session.caller.keyspace = None;
        session.caller.keyspace_unclear = true;
        session.uses = Default::default();
    }
}

impl ResponseEditor<'_> {
    /// Shows the beginning of a response of which there is no more.
    fn see_beginning(&mut self, header: &Header, beginning: &[u8]) {
        let is_plain = !header.is_compressed();
        let shown = is_plain.then(|| self.see(header, beginning));
        if !matches!(shown, Some(FrameAction::Keep)) {
            self.log.unseen(header.stream, Unseen::NotCopied, false);
        }
    }
}
