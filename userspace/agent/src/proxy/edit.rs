//! What a rule's pipeline does to a flow that passes.

use std::{
    sync::{Arc, LazyLock},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use cql::StreamId;
use cql_edit::{Caller, Editor, Pipeline, Room, Unreadable};

use super::{
    Shared,
    chunk::Way,
    close::{DENIED, FRAMING},
    parked::Inbox,
};
use crate::{flows::Flow, pipelines::Counting, reporters::Refusal};

/// Zero of the clock that all flows of a rule share.
static START: LazyLock<Instant> = LazyLock::new(Instant::now);

/// What all flows together may hold back of frames that are not small, in bytes: eight of the largest
/// that are held back at all.
const MAX_HELD_BYTES: usize = 256 << 20;

static ROOM: LazyLock<Arc<Room>> = LazyLock::new(|| Room::new(MAX_HELD_BYTES));

/// That clock, in ns.
pub(super) fn now_ns() -> u64 {
    START.elapsed().as_nanos() as u64
}

/// The wall clock, in µs since 1970.
fn unix_us() -> i64 {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH);
    since_epoch.map_or(0, |since| since.as_micros() as i64)
}

/// See the module.
pub(super) struct Editing {
    /// What is said of what waits. **Invariant**: it goes before the editor does, and what its steps have kept of the
    /// flow: who hears of their end finds that nobody waits any longer.
    inbox: Inbox,
    editor: Editor,
    counting: Counting,
    /// Nothing is read from the client until then.
    paused_until: Option<Instant>,
    /// Its rule is.
    is_decided: bool,
    last_words: Option<Vec<u8>>,
    /// It cannot be read, and that was counted.
    over: bool,
}

/// What goes on of a chunk.
pub(super) enum Passes {
    All,
    /// Instead of it.
    These(Vec<u8>),
}

impl Editing {
    /// None: no pipeline that the flow may come under changes anything, so nobody needs to know where
    /// frames begin. Nothing is done before the flow's rule is decided ([`Self::is_of_its_rule`]).
    pub(super) fn begin(shared: &Shared, flow: &Arc<Flow>, is_decided: bool) -> Option<Box<Self>> {
        let pipelines = shared.pipelines.borrow();
        let edits = match is_decided {
            true => pipelines.edits_of(&flow.rule()).is_some(),
            false => pipelines.edit(),
        };
        if !edits {
            return None;
        }
        let editor = Editor::new(Pipeline::default(), Caller::default());
        let mut editor = editor.telling(shared.prepared.clone());
        if pipelines.want_openings() {
            editor = editor.remembering();
        }
        let counting = shared.pipeline_metrics.of(&flow.rule());
        Some(Box::new(Self::new(editor, flow, counting)))
    }

    fn new(editor: Editor, flow: &Arc<Flow>, counting: Counting) -> Self {
        let inbox = Inbox::of(flow);
        Self {
            editor: editor.within(&ROOM).told_by(inbox.letters()),
            inbox,
            counting,
            paused_until: None,
            is_decided: false,
            last_words: None,
            over: false,
        }
    }

    /// The flow's rule is decided. False: that changes nothing.
    pub(super) fn is_of_its_rule(&mut self, shared: &Shared, flow: &Arc<Flow>) -> bool {
        let Some(pipeline) = shared.pipelines.borrow().edits_of(&flow.rule()) else {
            return false;
        };
        self.counting = shared.pipeline_metrics.of(&flow.rule());
        self.editor.becomes(pipeline, caller(flow));
        self.is_decided = true;
        self.look();
        true
    }

    /// What goes on of a chunk.
    pub(super) fn chunk(&mut self, way: Way, now_ns: u64, bytes: &[u8]) -> Passes {
        let edited = match way {
            Way::ToDatabase => {
                self.editor.is_at(unix_us());
                self.editor.requests(now_ns, bytes, &mut self.counting)
            }
            Way::ToClient => self.editor.responses(bytes, &mut self.counting),
        };
        self.rest();
        self.look();
        edited.instead.map_or(Passes::All, Passes::These)
    }

    /// A step has slowed it down.
    fn rest(&mut self) {
        let pause = self.editor.pause_ns();
        if pause > 0 {
            self.paused_until = Some(Instant::now() + Duration::from_nanos(pause));
        }
    }

    /// Does what was said of what waits. False: nothing was.
    pub(super) fn hears(&mut self, now_ns: u64) -> bool {
        let letters = self.inbox.take();
        let heard = !letters.is_empty();
        if heard {
            self.editor.is_at(unix_us());
        }
        for (number, resolution) in letters {
            let counting = &mut self.counting;
            self.editor.resolve(now_ns, number, resolution, counting);
        }
        self.rest();
        heard
    }

    /// What was asked by another connection is lost with that: what the client is still told, before the flow ends.
    pub(super) fn lost(&mut self) -> Option<Vec<u8>> {
        let lost = self.editor.is_lost();
        lost.then(|| self.editor.answers().unwrap_or_default())
    }

    /// What the database gets now that has waited.
    pub(super) fn late(&mut self) -> Option<Vec<u8>> {
        self.editor.late()
    }

    /// It edits nothing from here on, and nothing waits any longer. False: something has to go on yet, and cannot
    /// in the middle of a frame.
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

    /// The flow has ended.
    pub(super) fn is_gone(&mut self) {
        self.editor.abandon(&mut self.counting);
    }

    /// Once, when it cannot be read and its rule is decided, or it has to end in any case.
    fn look(&mut self) {
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

    /// What the client is told now in place of the database.
    pub(super) fn answers(&mut self) -> Option<Vec<u8>> {
        self.editor.answers()
    }

    /// Which requests, by their streams, were refused since this was last asked.
    pub(super) fn refusals(&mut self) -> Vec<(StreamId, Refusal)> {
        self.counting.refusals()
    }

    /// The client has to be told something.
    pub(super) fn has_words(&self) -> bool {
        self.last_words.is_some() || self.editor.has_answers()
    }

    /// The client has to read what it is told before it is asked for more.
    pub(super) fn is_full(&self) -> bool {
        self.editor.has_many_answers()
    }

    /// Everything passes from here on.
    pub(super) fn is_over(&self) -> bool {
        self.over && !self.editor.is_denied()
    }

    /// The last that the client is told, if the flow is denied, and why that ends.
    pub(super) fn last_words(&mut self) -> Option<(Vec<u8>, &'static str)> {
        let reason = match self.editor.unreadable() {
            Some(Unreadable::Framing) => FRAMING,
            _ => DENIED,
        };
        Some((self.last_words.take()?, reason))
    }

    /// What it cannot be shown passes.
    pub(super) fn lets_pass(&self) -> bool {
        self.is_decided && !self.editor.is_strict()
    }

    /// For how long nothing is read from the client.
    pub(super) fn pause(&mut self) -> Option<Duration> {
        let until = self.paused_until.take()?;
        let pause = until.saturating_duration_since(Instant::now());
        (!pause.is_zero()).then_some(pause)
    }

    /// What was kept back of a direction that ends, or is not edited any more. What of it waited does no longer.
    pub(super) fn end(&mut self, way: Way, now_ns: u64) -> Vec<u8> {
        let to_database = way == Way::ToDatabase;
        let counting = &mut self.counting;
        self.editor.give_up(now_ns, to_database, counting);
        let late = match way {
            Way::ToDatabase => self.editor.late(),
            Way::ToClient => self.editor.answers(),
        };
        let mut rest = late.unwrap_or_default();
        rest.extend(self.editor.end(to_database));
        rest
    }
}

fn caller(flow: &Arc<Flow>) -> Caller {
    let process = &flow.process;
    let is_here = !process.is_elsewhere();
    let cgroup = || dataplane::host::cgroup_of(process.pid, process.cgroup_id);
    Caller {
        rule: flow.rule().as_str().to_owned(),
        client: flow.client.socket_addr().ip().to_string(),
        dialled: Some(flow.orig_dst.socket_addr()),
        flow: Some(flow.clone()),
        keyspace: None,
        keyspace_unclear: false,
        keyspace_before: false,
        user: None,
        logged_in: false,
        process: is_here.then(|| process.name.to_string()),
        cgroup: is_here
            .then(cgroup)
            .flatten()
            .map(|path| path.display().to_string()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use cql::Opcode;
    use cql_edit::{Outcome, Request, Ticket, Transform};
    use dataplane::{ClientAddr, OrigDst, Process, policy::RuleName};
    use prometheus::Registry;

    use super::*;
    use crate::pipelines::PipelineMetrics;

    /// Whether an answer was awaited, each time that it was looked at.
    type Awaited = Arc<Mutex<Vec<bool>>>;

    /// Has requests wait, and looks as it goes.
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
                ticket: request.park().unwrap(),
                awaited: self.0.clone(),
            };
            kept.look();
            request.keep(Some(Arc::new(kept)));
            Outcome::Pass
        }
    }

    /// Of v4, on stream 1.
    fn frame(direction: u8, opcode: u8, body: &[u8]) -> Vec<u8> {
        let header = [4 | direction, 0, 0, 1, opcode];
        let length = (body.len() as u32).to_be_bytes();
        [&header[..], &length, body].concat()
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
        editing.chunk(Way::ToDatabase, 0, &frame(0, 0x01, startup));
        editing.chunk(Way::ToClient, 0, &frame(0x80, 0x02, &[]));
        editing.chunk(Way::ToDatabase, 0, &frame(0, 0x07, query));
        assert_eq!(*awaited.lock().unwrap(), [true]);
        // Its place is given back last of all.
        drop(editing);
        assert_eq!(*awaited.lock().unwrap(), [true, false]);
        drop(flow);
    }
}
