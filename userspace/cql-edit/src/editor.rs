//! [`Editor`]: one flow's pipeline, fed with the chunks of both directions.

mod copies;
pub(crate) mod rest;

use std::sync::Arc;

use cql::PreparedAt;

use crate::caller::Caller;
use crate::edited::{Edited, Unreadable};
use crate::lane::{Lane, Reads, in_segments};
use crate::log::Log;
use crate::log::Waited;
use crate::output::Output;
use crate::request_editor::{RequestEditor, RequestState};
use crate::response_editor::ResponseEditor;
use crate::room::Room;
use crate::state::EditState;
use crate::suspended::{Completion, CompletionSink, Resolution, Suspended};
use crate::transform::Pipeline;

/// See the module.
#[derive(Debug)]
pub struct Editor {
    state: EditState,
    requests: Lane,
    responses: Lane,
    request_state: RequestState,
    /// The first response was seen to begin.
    answered: bool,
    /// Bytes for the database that were slowed down, and are not any more.
    left: Vec<u8>,
    over: Option<Unreadable>,
}

/// The caller of a flow that goes through this pipeline.
fn caller_under(pipeline: &Pipeline, caller: Caller) -> Caller {
    Caller {
        texts_change: pipeline.iter().any(|step| step.changes_texts()),
        ..caller
    }
}

impl Editor {
    /// An editor for a flow that begins. Only its own limits bound the bytes that it holds back.
    pub fn new(pipeline: Pipeline, caller: Caller) -> Self {
        Self {
            state: EditState::new(pipeline.clone(), caller_under(&pipeline, caller)),
            requests: Lane::new(),
            responses: Lane::new(),
            request_state: RequestState::default(),
            answered: false,
            left: Vec::new(),
            over: None,
        }
    }

    /// Has the editor share `room`, which bounds the bytes held back, with others.
    pub fn within(mut self, room: &Arc<Room>) -> Self {
        self.state.room = room.clone();
        self
    }

    /// Lets steps suspend requests and responses, until `sink` is told how each goes on.
    pub fn told_by(mut self, sink: Arc<dyn CompletionSink>) -> Self {
        self.state.suspended.sink = Some(sink);
        self
    }

    /// Has `prepared` be told of the statements that a step has [looked up](Transform::looks_up), too.
    pub fn telling(mut self, prepared: PreparedAt) -> Self {
        self.state.lookups.prepared = Some(prepared);
        self
    }

    /// Has the editor remember how its flow begins, for a pipeline that it may get later.
    pub fn remembering(mut self) -> Self {
        self.state.session.remembers = true;
        self
    }

    /// Gives a flow without a pipeline this one, from the next request on.
    pub fn becomes(&mut self, pipeline: Pipeline, caller: Caller) {
        let caller = caller_under(&pipeline, caller);
        self.state.pipeline = pipeline;
        self.state.kept = None;
        let wants_opening = self.state.pipeline.iter().any(|step| step.wants_opening());
        self.state.session.adopt(caller, wants_opening);
        if self.state.session.early && self.is_strict() {
            self.over.get_or_insert(Unreadable::Early);
        }
    }

    /// Why nothing can be changed any more.
    pub fn unreadable(&self) -> Option<Unreadable> {
        self.over
    }

    /// The user who has logged in last, as far as that is known.
    pub fn user(&self) -> Option<&str> {
        self.state.session.caller.user.as_deref()
    }

    /// Whether the flow cannot be read, and has to end for that.
    pub fn is_denied(&self) -> bool {
        self.over.is_some_and(|over| over.denies(self.is_strict()))
    }

    /// Whether what cannot be read is better refused than let pass.
    pub fn is_strict(&self) -> bool {
        self.state.is_strict()
    }

    /// Tells the wall clock, in µs since 1970, for the requests that come next. Some steps compare
    /// clients' timestamps with it; as long as nobody has told it, they refuse what they would have to
    /// compare.
    pub fn set_time(&mut self, unix_us: i64) {
        self.request_state.unix_us = Some(unix_us);
    }

    /// Bytes on their way to the database. `now_ns`: a monotonic clock, in ns.
    pub fn requests(&mut self, now_ns: u64, bytes: &[u8], log: &mut dyn Log) -> Edited {
        if let Some(over) = self.over {
            return over.edited(self.is_strict());
        }
        let mut out = Output::new(bytes);
        let mut request_editor = RequestEditor {
            state: &mut self.state,
            request_state: &mut self.request_state,
            now_ns,
            log,
        };
        if !self.left.is_empty() {
            out.put(&std::mem::take(&mut self.left));
        }
        let passed = match request_editor.waits(bytes.len()) {
            None => self.requests.pass(&mut out, &mut request_editor),
            Some(taken) => {
                self.requests.hold(&[], &mut out, taken);
                Ok(())
            }
        };
        self.requests_passed(passed, out)
    }

    /// Whether something is held back behind requests that a step has slowed down, or was.
    pub fn has_more(&self) -> bool {
        self.requests.has_more() || self.request_state.pacing.holds().is_some()
    }

    /// Lets requests go on that a step has slowed down, as far as their time has come, and then what came behind them:
    /// the bytes for the database. To be called when [`Self::pause_ns`] have gone by.
    pub fn go_on(&mut self, now_ns: u64, log: &mut dyn Log) -> Vec<u8> {
        while let Some(number) = self.request_state.pacing.take_due(now_ns) {
            self.resolve(now_ns, number, Some(Resolution::Pass), log);
        }
        if self.over.is_some() || self.request_state.pacing.holds().is_some() {
            return self.late().unwrap_or_default();
        }
        let (frames, bytes) = self.requests.take_behind().unwrap_or_default();
        let mut out = Output::new(&bytes);
        let mut request_editor = RequestEditor {
            state: &mut self.state,
            request_state: &mut self.request_state,
            now_ns,
            log,
        };
        let passed = self
            .requests
            .pass_behind(&frames, &mut out, &mut request_editor);
        let edited = self.requests_passed(passed, out);
        edited.instead.unwrap_or(bytes)
    }

    fn requests_passed(&mut self, mut passed: Result<(), Unreadable>, out: Output<'_>) -> Edited {
        // The beginning of a header, or of a segment.
        if self.state.session.terms.startup.is_some() && !self.requests.is_idle() {
            self.state.session.early = true;
        }
        if passed.is_ok() && self.state.session.early && self.is_strict() {
            passed = Err(Unreadable::Early);
        }
        self.passed(passed, out, true)
    }

    /// Bytes on their way to the client.
    pub fn responses(&mut self, bytes: &[u8], log: &mut dyn Log) -> Edited {
        if let Some(over) = self.over {
            return over.edited(self.is_strict());
        }
        let mut out = Output::new(bytes);
        let mut response_editor = ResponseEditor {
            state: &mut self.state,
            begun: &mut self.answered,
            log,
        };
        let passed = self.responses.pass(&mut out, &mut response_editor);
        self.passed(passed, out, false)
    }

    /// Does what the [`CompletionSink`] was told of what waits under this number. Something may then be [late](Self::late),
    /// or among the [answers](Self::answers).
    pub fn resolve(
        &mut self,
        now_ns: u64,
        number: u64,
        resolution: Option<Resolution>,
        log: &mut dyn Log,
    ) {
        if self.over.is_some() {
            return;
        }
        if resolution == Some(Resolution::Due) {
            return self.decide_due(now_ns, number, log);
        }
        let Some(suspended) = self.state.suspended.take(number) else {
            return;
        };
        if !suspended.is_carried {
            return self.resolves(now_ns, suspended, resolution, log);
        }
        let carried = match resolution {
            Some(known @ (Resolution::Pass | Resolution::Relayed(_))) => known,
            _ => Resolution::Lost,
        };
        // Its step may be gone: who has it in hand does not know.
        if let Some(step) = self.state.pipeline.get(suspended.step_index) {
            let what = match carried {
                Resolution::Pass => Waited::Passed,
                Resolution::Relayed(_) => Waited::Relayed,
                _ => Waited::Lost,
            };
            log.waited(step.name(), what);
        }
        match carried {
            Resolution::Relayed(relayed) => {
                let mut response_editor = ResponseEditor {
                    state: &mut self.state,
                    begun: &mut self.answered,
                    log,
                };
                response_editor.relays(suspended, relayed);
            }
            Resolution::Pass => {
                let mut request_editor = RequestEditor {
                    state: &mut self.state,
                    request_state: &mut self.request_state,
                    now_ns,
                    log,
                };
                request_editor.resumes(suspended, Resolution::Pass);
                request_editor.apply_completions();
            }
            _ => self.state.suspended.lost = true,
        }
    }

    /// Resolves a frame that was not carried.
    fn resolves(
        &mut self,
        now_ns: u64,
        suspended: Suspended,
        resolution: Option<Resolution>,
        log: &mut dyn Log,
    ) {
        let Some(step) = self.state.pipeline.get(suspended.step_index) else {
            return;
        };
        let resolution = self.state.certain(&suspended, resolution);
        let what = match resolution {
            Some(Resolution::Pass) => Waited::Passed,
            Some(Resolution::Instead(_)) => Waited::Changed,
            Some(Resolution::Answer(_)) => Waited::Answered,
            Some(Resolution::Refuse(_)) => Waited::Refused,
            Some(Resolution::Leads(_)) => Waited::Merged,
            Some(Resolution::Due | Resolution::Relayed(_) | Resolution::Lost) => return,
            None => Waited::GivenUp,
        };
        log.waited(step.name(), what);
        let resolution = resolution.unwrap_or_else(|| step.given_up());
        if suspended.to_database {
            let mut request_editor = RequestEditor {
                state: &mut self.state,
                request_state: &mut self.request_state,
                now_ns,
                log,
            };
            request_editor.resumes(suspended, resolution);
            request_editor.apply_completions();
        } else {
            let mut response_editor = ResponseEditor {
                state: &mut self.state,
                begun: &mut self.answered,
                log,
            };
            response_editor.resumes(suspended, resolution);
        }
    }

    /// Asks the step of a suspended request for its decision, on this thread, so that nothing of the
    /// flow comes in between.
    fn decide_due(&mut self, now_ns: u64, number: u64, log: &mut dyn Log) {
        let suspended = self.state.suspended.get(number);
        let step = suspended.and_then(|suspended| self.state.pipeline.get(suspended.step_index));
        let flow = self.state.suspended.flow();
        let (Some(step), Some(flow)) = (step, flow) else {
            return;
        };
        for Completion { number, resolution } in step.due(flow, number) {
            if resolution != Resolution::Due {
                self.resolve(now_ns, number, Some(resolution), log);
            }
        }
    }

    /// Nothing that travels this way waits any longer: all of it is [given up](Transform::given_up).
    pub fn give_up(&mut self, now_ns: u64, to_database: bool, log: &mut dyn Log) {
        let sink = self.state.suspended.sink.take();
        for number in self.state.suspended.numbers(to_database) {
            // What is carried is somebody's who will answer.
            if !self.state.suspended.is_carried(number) {
                self.resolve(now_ns, number, None, log);
            }
        }
        self.state.suspended.sink = sink;
        if to_database && self.has_more() {
            self.hurry(now_ns, log);
        }
    }

    /// Has all that was slowed down go on at once.
    #[cold]
    fn hurry(&mut self, now_ns: u64, log: &mut dyn Log) {
        self.request_state.pacing.hurry(true);
        let bytes = self.go_on(now_ns, log);
        self.left.extend(bytes);
        self.request_state.pacing.hurry(false);
    }

    /// The flow has ended: what waits never goes on.
    pub fn abandon(&mut self, log: &mut dyn Log) {
        for to_database in [true, false] {
            for number in self.state.suspended.numbers(to_database) {
                let suspended = self.state.suspended.take(number);
                let step =
                    suspended.and_then(|suspended| self.state.pipeline.get(suspended.step_index));
                if let Some(step) = step {
                    log.waited(step.name(), Waited::Abandoned);
                }
            }
        }
    }

    /// Whether what was carried is lost: the flow has to end, as one that has lost its database.
    pub fn is_lost(&self) -> bool {
        self.state.suspended.lost
    }

    /// How many requests and responses wait.
    pub fn suspended(&self) -> usize {
        self.state.suspended.len()
    }

    /// Whether nothing is to go on, either way, that could not now.
    pub fn can_leave(&self) -> bool {
        self.state.pairing.riders.is_empty()
            && self.state.lookups.is_idle()
            && !self.state.suspended.are_carried()
            && (self.state.outgoing.late.is_empty() || self.requests.cutter.is_between())
            && (self.state.outgoing.answers.is_empty() || self.responses.cutter.is_between())
    }

    /// Requests that have waited, for the database, if they can go on now.
    pub fn late(&mut self) -> Option<Vec<u8>> {
        if !self.left.is_empty() {
            return Some(std::mem::take(&mut self.left));
        }
        if self.state.outgoing.late.is_empty() || !self.requests.cutter.is_between() {
            return None;
        }
        let frames = std::mem::take(&mut self.state.outgoing.late);
        Some(in_segments(&self.requests, &frames))
    }

    /// Whether the client has to be told something.
    pub fn has_answers(&self) -> bool {
        !self.state.outgoing.answers.is_empty()
    }

    /// Whether the client has to be told so much that it is better not asked for more before it was.
    pub fn has_many_answers(&self) -> bool {
        self.state.outgoing.is_full()
    }

    /// Frames for the client, if it can be told now. To be called once everything that went to the
    /// client before has been written: notes that those frames [held](Relayed::new) are dropped.
    pub fn answers(&mut self) -> Option<Vec<u8>> {
        self.state.outgoing.going.clear();
        if self.state.outgoing.answers.is_empty() || !self.responses.cutter.is_between() {
            return None;
        }
        let frames = self.state.outgoing.take_answers();
        Some(in_segments(&self.responses, &frames))
    }

    /// For how many ns, from now on, nothing more is to be read from the client.
    pub fn pause_ns(&mut self, now_ns: u64) -> u64 {
        self.request_state.pacing.take_pause(now_ns)
    }

    /// The bytes that were held back of a direction that has ended: to the database, or to the client.
    pub fn end(&mut self, to_database: bool) -> Vec<u8> {
        match to_database {
            true => self.requests.give_up(),
            false => self.responses.give_up(),
        }
    }

    fn passed(
        &mut self,
        passed: Result<(), Unreadable>,
        mut out: Output<'_>,
        to_database: bool,
    ) -> Edited {
        let unreadable = passed.err();
        if let Some(why) = unreadable {
            self.over = Some(why);
            let held = self.end(to_database);
            match why.denies(self.is_strict()) {
                true => out.skip(out.rest().len()),
                false => {
                    out.put(&held);
                    out.keep(out.rest().len());
                }
            }
        }
        Edited {
            instead: out.finish(),
            unreadable,
        }
    }
}
