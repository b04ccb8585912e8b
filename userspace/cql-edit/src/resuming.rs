//! Requests that are suspended, and how they go on.

use std::sync::Arc;

use crate::awaited::Awaits;
use crate::cutter::FrameAction;
use crate::log::{Unseen, Waited};
use crate::outcome::Error;
use crate::request::Request;
use crate::request_editor::RequestEditor;
use crate::suspended::{Carrier, Completion, Kept, Resolution, Suspended, Ticket};
use cql::wire::Header;

impl RequestEditor<'_> {
    /// Has all that was slowed down go on at once: what is behind cannot wait, and is not to overtake it. Whatever
    /// comes next waits for all of it.
    #[cold]
    #[inline(never)]
    pub(crate) fn lend(&mut self) {
        for number in self.request_state.pacing.lend(self.now_ns) {
            if let Some(suspended) = self.state.suspended.take(number) {
                self.resumes(suspended, Resolution::Pass);
            }
        }
    }

    /// Suspends a request, which its carrier gets, if there is one. `frame`: as it was sent.
    #[inline(never)]
    pub(crate) fn suspend(
        &mut self,
        mut suspended: Suspended,
        carried: Option<(Arc<dyn Carrier>, Ticket, u64)>,
        frame: &[u8],
    ) -> FrameAction {
        let Some((carrier, ticket, number)) = carried else {
            self.state.suspended.put(suspended);
            return FrameAction::Drop;
        };
        // As the database would have got it from here.
        let own = match suspended.kept.bytes().split_first_chunk() {
            Some((raw, body)) if suspended.kept.is_changed() => {
                let terms = &self.state.session.terms;
                terms.encoded(&suspended.header, raw, body)
            }
            _ => FrameAction::Keep,
        };
        suspended.is_carried = true;
        self.state.suspended.put(suspended);
        let frame = match &own {
            FrameAction::Instead(own) => own,
            _ => frame,
        };
        carrier.carry(ticket, frame, number);
        FrameAction::Drop
    }

    /// Does what steps have said of what waits, while they were shown another.
    pub(crate) fn apply_completions(&mut self) {
        loop {
            let said = std::mem::take(&mut self.state.suspended.said);
            if said.is_empty() {
                return;
            }
            for Completion { number, resolution } in said {
                let Some(suspended) = self.state.suspended.take(number) else {
                    continue;
                };
                let what = match resolution {
                    Resolution::Leads(_) => Waited::Merged,
                    _ => Waited::Passed,
                };
                if let Some(step) = self.state.pipeline.get(suspended.step_index) {
                    self.log.waited(step.name(), what);
                }
                self.resumes(suspended, resolution);
            }
        }
    }

    /// Has a suspended request go on, to the steps behind the one that suspended it, or answers its
    /// client.
    pub(crate) fn resumes(&mut self, suspended: Suspended, resolution: Resolution) {
        if let Resolution::Leads(others) = resolution {
            return self.go_together(suspended, &others);
        }
        if let Some(suspended) = self.state.resolved(suspended, resolution, self.log) {
            let Suspended {
                header,
                kept,
                step_index,
                awaited,
                ..
            } = suspended;
            self.goes_on(&header, kept, step_index, awaited);
        }
    }

    pub(crate) fn goes_on(
        &mut self,
        header: &Header,
        kept: Kept,
        step_index: usize,
        awaited: Vec<Awaits>,
    ) {
        let action = self.goes_further(header, &kept, step_index, awaited);
        action.put(kept.bytes(), &mut self.state.outgoing.late);
    }

    /// Shows it to the steps behind this one.
    pub(crate) fn goes_further(
        &mut self,
        header: &Header,
        kept: &Kept,
        step_index: usize,
        awaited: Vec<Awaits>,
    ) -> FrameAction {
        let plain = kept.plain(&self.state.session.terms, header);
        // It was read before; another body may be none.
        let request = plain.and_then(|plain| Request::read(*header, plain));
        let Some(mut request) = request else {
            let error = Error::Invalid("the proxy's policy cannot read the request".to_owned());
            self.log.unseen(header.stream, Unseen::Malformed, true);
            self.state.refuse(header, error, &awaited);
            return FrameAction::Drop;
        };
        if kept.is_changed() {
            request.mark_changed();
        }
        self.go_through(request, header, kept.bytes(), step_index + 1, awaited)
    }
}
