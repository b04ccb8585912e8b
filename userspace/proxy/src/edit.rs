//! The editor of one flow: applies the pipeline of the flow's rule to the bytes that pass.

use std::{
    sync::{Arc, LazyLock},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use cql::{StreamId, Unread};
use cql_edit::{Caller, Editor, NotAtRest, Pipeline, SessionAtRest, Unreadable};
use flow::{CloseReason, Flow, Stays};
use steps::{Refusal, pipelines::Counting};

use super::{
    caller::{ROOM, caller},
    completions::{Completion, CompletionReader},
    context::ProxyContext,
    passing::Direction,
    read_on::NotHanded,
};

/// The zero of the clock that all flows of a rule share.
static START: LazyLock<Instant> = LazyLock::new(Instant::now);

/// The time since [`START`], in ns.
pub(super) fn now_ns() -> u64 {
    START.elapsed().as_nanos() as u64
}

/// The wall clock, in µs since 1970.
fn unix_us() -> i64 {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH);
    since_epoch.map_or(0, |since| since.as_micros() as i64)
}

/// The editor of one flow, with its completions and its counters.
pub(super) struct Editing {
    /// The completions of requests and responses that wait. **Invariant**: the reader is dropped
    /// before the editor and before what the editor's steps have kept of the flow, so that a step
    /// that is told of their end finds that nobody waits any longer.
    completions: CompletionReader,
    pub(super) editor: Editor,
    pub(super) counting: Counting,
    /// Nothing is read from the client before this time, in ns since [`START`].
    paused_until_ns: u64,
    /// Whether the flow's rule is decided.
    is_decided: bool,
    last_words: Option<Vec<u8>>,
    /// Set once the stream cannot be read and that was counted.
    over: bool,
}

impl Editing {
    /// Makes an editor. None: no pipeline that the flow may come under changes anything, so nobody
    /// needs to know where frames begin. The editor changes nothing before the flow's rule is
    /// decided ([`Self::adopt_rule`]).
    pub(super) fn begin(
        shared: &ProxyContext,
        flow: &Arc<Flow>,
        is_decided: bool,
    ) -> Option<Box<Self>> {
        let pipelines = shared.pipelines.borrow();
        let edits = match is_decided {
            true => pipelines.edits_of(&flow.rule()).is_some(),
            false => pipelines.edit(),
        };
        if !edits {
            return None;
        }
        let editor = Editor::new(Pipeline::default(), Caller::default());
        let mut editor = editor.telling(shared.services.prepared.at(steps::database(flow)));
        if pipelines.want_openings() {
            editor = editor.remembering();
        }
        let counting = shared.pipeline_metrics.of(&flow.rule());
        Some(Box::new(Self::new(editor, flow, counting)))
    }

    /// Makes the editor of a flow that another agent has edited to here. None: no step of the flow's rule changes anything.
    pub(super) fn go_on_with(
        shared: &ProxyContext,
        flow: &Arc<Flow>,
        unread: &Unread,
        session: SessionAtRest,
    ) -> Option<Box<Self>> {
        let mut editing = Self::begin(shared, flow, true)?;
        editing.adopt_rule(shared, flow).then(|| {
            editing.editor.goes_on(unread, session);
            editing
        })
    }

    /// Returns the session of a flow of which nothing is under way.
    pub(super) fn at_rest(&self) -> Result<SessionAtRest, NotHanded> {
        if self.last_words.is_some() || self.pause().is_some() {
            return Err(NotHanded::NotYet);
        }
        self.editor.at_rest().map_err(|why| match why {
            NotAtRest::Busy => NotHanded::NotYet,
            NotAtRest::Unreadable => NotHanded::Stays(Stays::Unreadable),
            NotAtRest::Opening => NotHanded::Stays(Stays::Opening),
            NotAtRest::Kept => NotHanded::Stays(Stays::Kept),
            NotAtRest::Login => NotHanded::Stays(Stays::Login),
            NotAtRest::Long => NotHanded::Stays(Stays::Long),
        })
    }

    fn new(editor: Editor, flow: &Arc<Flow>, counting: Counting) -> Self {
        let completions = CompletionReader::of(flow);
        Self {
            editor: editor.within(&ROOM).told_by(completions.sink()),
            completions,
            counting,
            paused_until_ns: 0,
            is_decided: false,
            last_words: None,
            over: false,
        }
    }

    /// Takes over the pipeline of the flow's rule, which is decided now. False: that pipeline
    /// changes nothing.
    pub(super) fn adopt_rule(&mut self, shared: &ProxyContext, flow: &Arc<Flow>) -> bool {
        let Some(pipeline) = shared.pipelines.borrow().edits_of(&flow.rule()) else {
            return false;
        };
        self.counting = shared.pipeline_metrics.of(&flow.rule());
        self.editor.becomes(pipeline, caller(flow));
        self.is_decided = true;
        self.note_unreadable();
        true
    }

    /// Tells the editor the wall clock, for the requests that come next.
    pub(super) fn set_time(&mut self) {
        self.editor.set_time(unix_us());
    }

    /// Takes note of what a chunk that was edited has led to. To be called after each.
    pub(super) fn note_chunk(&mut self) {
        self.begin_pause();
        self.note_unreadable();
    }

    /// Starts the pause that a step has asked for.
    fn begin_pause(&mut self) {
        let now_ns = now_ns();
        let pause = self.editor.pause_ns(now_ns);
        if pause > 0 {
            self.paused_until_ns = now_ns.saturating_add(pause);
        }
    }

    /// Applies the completions of requests and responses that wait. False: there were none.
    pub(super) fn apply_completions(&mut self, now_ns: u64) -> bool {
        let completions = self.completions.take();
        let heard = !completions.is_empty();
        if heard {
            self.set_time();
        }
        for Completion { number, resolution } in completions {
            let counting = &mut self.counting;
            self.editor.resolve(now_ns, number, resolution, counting);
        }
        self.begin_pause();
        heard
    }

    /// Handles the loss of a shared connection that had a request of this flow. Returns the last
    /// bytes for the client before the flow ends.
    pub(super) fn lost(&mut self) -> Option<Vec<u8>> {
        let lost = self.editor.is_lost();
        lost.then(|| self.editor.answers().unwrap_or_default())
    }

    /// Returns bytes for the database that have waited and may go now.
    pub(super) fn late(&mut self) -> Option<Vec<u8>> {
        self.editor.late()
    }

    /// Stops editing; nothing waits any longer. False: in the middle of a frame the editor cannot
    /// stop yet, and some bytes have to go on before.
    pub(super) fn leaves(&mut self, now_ns: u64) -> bool {
        for to_database in [true, false] {
            let counting = &mut self.counting;
            self.editor.give_up(now_ns, to_database, counting);
        }
        let rests = self.editor.can_leave();
        if !rests {
            let nobody = Caller::default();
            self.editor.becomes(Pipeline::default(), nobody);
        }
        rests
    }

    /// Gives up everything that waits: the flow has ended.
    pub(super) fn abandon(&mut self) {
        self.editor.abandon(&mut self.counting);
    }

    /// Notes, once, that the stream cannot be read. Only a stream whose rule is decided, or that
    /// has to end in any case, is noted.
    fn note_unreadable(&mut self) {
        let Some(why) = self.editor.unreadable() else {
            return;
        };
        let denied = self.editor.is_denied();
        if self.over || !self.is_decided && !denied {
            return;
        }
        self.over = true;
        self.counting.unreadable(why, denied);
        if denied {
            let words = self.editor.answers().unwrap_or_default();
            self.last_words = Some(words);
        }
    }

    /// Returns the answers for the client that take the place of the database's.
    pub(super) fn answers(&mut self) -> Option<Vec<u8>> {
        self.editor.answers()
    }

    /// Returns the requests, by their streams, that were refused since the last call.
    pub(super) fn refusals(&mut self) -> Vec<(StreamId, Refusal)> {
        self.counting.refusals()
    }

    /// Returns the user whom the database has let in, as far as that is known.
    pub(super) fn user(&self) -> Option<&str> {
        self.editor.user()
    }

    /// Whether the client has to be told something.
    pub(super) fn has_words(&self) -> bool {
        self.last_words.is_some() || self.editor.has_answers()
    }

    /// Whether the client has to read its answers before more requests are read from it.
    pub(super) fn is_full(&self) -> bool {
        self.editor.has_many_answers()
    }

    /// Whether everything passes from here on.
    pub(super) fn is_over(&self) -> bool {
        self.over && !self.editor.is_denied()
    }

    /// Returns the last bytes for the client of a denied flow, and the reason why it ends.
    pub(super) fn last_words(&mut self) -> Option<(Vec<u8>, CloseReason)> {
        let reason = match self.editor.unreadable() {
            Some(Unreadable::Framing) => CloseReason::Framing,
            _ => CloseReason::Denied,
        };
        Some((self.last_words.take()?, reason))
    }

    /// Whether bytes pass that the editor cannot read.
    pub(super) fn lets_pass(&self) -> bool {
        self.is_decided && !self.editor.is_strict()
    }

    /// Returns the time for which nothing is read from the client.
    pub(super) fn pause(&self) -> Option<Duration> {
        let pause = self.paused_until_ns.saturating_sub(now_ns());
        (pause > 0).then(|| Duration::from_nanos(pause))
    }

    /// Whether a request was slowed down, and what came behind it was not looked at.
    pub(super) fn has_more(&self) -> bool {
        self.editor.has_more()
    }

    /// Returns the bytes for the database that go on after a pause.
    pub(super) fn go_on(&mut self) -> Vec<u8> {
        self.set_time();
        self.editor.go_on(now_ns(), &mut self.counting)
    }

    /// Returns the bytes that were kept back of a direction that ends, or is not edited any more.
    /// Those among them that waited wait no longer.
    pub(super) fn end(&mut self, direction: Direction, now_ns: u64) -> Vec<u8> {
        let to_database = direction == Direction::ToDatabase;
        let counting = &mut self.counting;
        self.editor.give_up(now_ns, to_database, counting);
        let late = match direction {
            Direction::ToDatabase => self.editor.late(),
            Direction::ToClient => self.editor.answers(),
        };
        let mut rest = late.unwrap_or_default();
        rest.extend(self.editor.end(to_database));
        rest
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use cql::Opcode;
    use cql_edit::{Outcome, Request, Ticket, Transform};
    use dataplane::{ClientAddr, OrigDst, Process};
    use policy::RuleName;
    use prometheus::Registry;
    use steps::pipelines::PipelineMetrics;

    use super::*;

    /// Notes at each look whether an answer was awaited.
    type Awaited = Arc<Mutex<Vec<bool>>>;

    /// A step that makes requests wait, and looks on.
    #[derive(Debug)]
    struct Parks(Awaited);

    #[derive(Debug)]
    struct Kept {
        ticket: Ticket,
        awaited: Awaited,
    }

    impl Kept {
        fn look(&self) {
            let awaited = self.ticket.is_awaited();
            self.awaited.lock().unwrap().push(awaited);
        }
    }

    impl Drop for Kept {
        fn drop(&mut self) {
            self.look();
        }
    }

    impl Transform for Parks {
        fn name(&self) -> &'static str {
            "parks"
        }

        fn wants(&self, opcode: Opcode) -> bool {
            opcode == Opcode::Query
        }

        fn request(&self, request: &mut Request<'_>, _: &Caller, _: u64) -> Outcome {
            let kept = Kept {
                ticket: request.suspend().unwrap(),
                awaited: self.0.clone(),
            };
            kept.look();
            request.keep(Some(Arc::new(kept)));
            Outcome::Pass
        }
    }

    /// A frame of protocol v4 on stream 1.
    fn frame(direction: u8, opcode: u8, body: &[u8]) -> Vec<u8> {
        let header = [4 | direction, 0, 0, 1, opcode];
        let length = (body.len() as u32).to_be_bytes();
        [&header[..], &length, body].concat()
    }

    fn chunk(editing: &mut Editing, direction: Direction, bytes: &[u8]) {
        let log = &mut editing.counting;
        match direction {
            Direction::ToDatabase => editing.editor.requests(0, bytes, log),
            Direction::ToClient => editing.editor.responses(bytes, log),
        };
        editing.note_chunk();
    }

    #[test]
    fn who_sees_what_a_flow_has_kept_go_finds_that_it_waits_no_longer() {
        let flow = Arc::new(Flow::begin(
            1,
            ClientAddr::new(([127, 0, 0, 1], 4000).into()),
            Process::elsewhere(),
            OrigDst::new(([127, 0, 0, 1], 9042).into()),
            RuleName::new("r"),
        ));
        let counting = PipelineMetrics::register(&Registry::new()).unwrap();
        let awaited = Awaited::default();
        let step: Arc<dyn Transform> = Arc::new(Parks(awaited.clone()));
        let editor = Editor::new(Pipeline::from([step]), Caller::default());
        let mut editing = Editing::new(editor, &flow, counting.of(&flow.rule()));
        let startup = b"\0\x01\0\x0bCQL_VERSION\0\x053.0.0";
        let query = b"\0\0\0\x08SELECT 1\0\x01\0";
        chunk(
            &mut editing,
            Direction::ToDatabase,
            &frame(0, 0x01, startup),
        );
        chunk(&mut editing, Direction::ToClient, &frame(0x80, 0x02, &[]));
        chunk(&mut editing, Direction::ToDatabase, &frame(0, 0x07, query));
        assert_eq!(*awaited.lock().unwrap(), [true]);
        // Its slot is given back last of all.
        drop(editing);
        assert_eq!(*awaited.lock().unwrap(), [true, false]);
        drop(flow);
    }
}
