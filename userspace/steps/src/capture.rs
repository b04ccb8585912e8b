//! Captures (`underpass capture`), and what each is given: the requests of one flow, or of one rule's flows,
//! with what became of them.
//!
//! **Invariant**: a capture that is not read slows no flow. Its queue is bounded; what has no room is dropped and counted,
//! and whoever captures is told how much it was.
//!
//! **Invariant**: while nobody captures, a flow pays one relaxed load for each chunk that is read. What no capture wants is
//! not read in detail for it.

use std::{
    sync::{
        Arc,
        atomic::{
            AtomicBool, AtomicU64, AtomicUsize,
            Ordering::{AcqRel, Relaxed},
        },
    },
    task::{Context, Poll},
    time::{Duration, Instant},
};

use cql::{
    Completed, Database, Details, ErrorCode, Statement, StatementKind, StreamId, WholeRequest,
};
use flow::Flow;
use parking_lot::RwLock;
use policy::RuleName;
use prometheus::{IntCounter, IntGauge, Registry};
use telemetry::counter;
use tokio::sync::mpsc;

use super::{What, database};

/// Captures at the same time: an operator's, and one more to compare with.
pub const MAX_CAPTURES: usize = 2;

/// Requests that wait for whoever captures, of one capture: what a busy flow asks in some hundredths of a second.
pub const MAX_CAPTURED_WAITING: usize = 4096;

/// Bytes of requests that wait likewise.
pub const MAX_CAPTURED_WAITING_BYTES: usize = 8 << 20;

/// The memory of a request that waits, beside its bytes.
const CAPTURED_BYTES: usize = 256;

/// The flows that are captured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CaptureOf {
    /// The flow with this number.
    Flow(u64),
    /// All flows of this rule.
    Rule(RuleName),
}

/// All captures that run.
#[derive(Debug)]
pub struct Captures {
    /// How many there are.
    running: AtomicUsize,
    list: RwLock<Vec<Arc<Capture>>>,
    metrics: CaptureMetrics,
}

#[derive(Debug)]
struct CaptureMetrics {
    running: IntGauge,
    requests: IntCounter,
    dropped: IntCounter,
    refused: IntCounter,
}

#[derive(Debug)]
struct Capture {
    of: CaptureOf,
    queue: mpsc::Sender<Captured>,
    waiting_bytes: AtomicUsize,
    /// Whether it takes no further requests.
    has_ended: AtomicBool,
    /// Requests that were dropped, and gaps, since whoever captures was told of any.
    dropped: AtomicU64,
    gaps: AtomicU64,
}

/// A request and what became of it. Made on the threads on which bytes move.
#[derive(Debug)]
pub struct Captured {
    /// When its response had passed, or it was clear that none would come.
    pub done: Instant,
    /// The flow's number.
    pub flow: u64,
    /// The flow's database, which has given the ids of what is executed.
    pub database: Database,
    /// The request's stream.
    pub stream: StreamId,
    /// The request itself. None: it was not kept.
    pub whole: Option<Arc<WholeRequest>>,
    /// Kind, keyspace and table.
    pub statement: Arc<Statement>,
    /// The outcome.
    pub what: What,
    /// The response was an ERROR.
    pub error: Option<ErrorCode>,
    /// Rows of the response.
    pub rows: Option<u32>,
    /// Whether there are pages behind them.
    pub more_pages: bool,
    /// From the request's header to the last byte of its response.
    pub latency: Duration,
    /// Bytes of the request's frame and of the response's.
    pub bytes: [u64; 2],
}

/// Requests that were not told, and parts of flows that were missed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NotCaptured {
    /// Requests for which there was no room.
    pub dropped: u64,
    /// Times that copies of packets were lost.
    pub gaps: u64,
}

/// The end of whoever captures, which ends the capture when it is dropped.
#[derive(Debug)]
pub struct Capturing {
    captures: Arc<Captures>,
    capture: Arc<Capture>,
    queue: mpsc::Receiver<Captured>,
}

/// The refusal of a further capture.
#[derive(Debug, thiserror::Error)]
#[error("{MAX_CAPTURES} captures run already: wait for one of them, or end it")]
pub struct TooManyCaptures;

impl CaptureOf {
    fn takes(&self, flow: &Flow) -> bool {
        match self {
            Self::Flow(number) => flow.id.number() == *number,
            Self::Rule(rule) => flow.rule() == *rule,
        }
    }
}

impl Captures {
    /// Declares and registers the metrics.
    ///
    /// # Errors
    /// Two metrics of one name.
    pub(crate) fn register(registry: &Registry) -> prometheus::Result<Self> {
        let running = IntGauge::new("underpass_captures", "Running `underpass capture`.")?;
        registry.register(Box::new(running.clone()))?;
        Ok(Self {
            running: AtomicUsize::new(0),
            list: RwLock::default(),
            metrics: CaptureMetrics {
                running,
                requests: counter(
                    registry,
                    "underpass_captured_total",
                    "Requests that were given to a capture.",
                )?,
                dropped: counter(
                    registry,
                    "underpass_capture_dropped_total",
                    "Requests that a capture did not take fast enough to be given.",
                )?,
                refused: counter(
                    registry,
                    "underpass_captures_refused_total",
                    "Captures that were refused because there are 2 already.",
                )?,
            },
        })
    }

    /// Begins to capture.
    ///
    /// # Errors
    /// There are [`MAX_CAPTURES`] already.
    pub fn begin(self: &Arc<Self>, of: CaptureOf) -> Result<Capturing, TooManyCaptures> {
        let (sender, queue) = mpsc::channel(MAX_CAPTURED_WAITING);
        let capture = Arc::new(Capture {
            of,
            queue: sender,
            waiting_bytes: AtomicUsize::new(0),
            has_ended: AtomicBool::new(false),
            dropped: AtomicU64::new(0),
            gaps: AtomicU64::new(0),
        });
        let mut list = self.list.write();
        if list.len() >= MAX_CAPTURES {
            self.metrics.refused.inc();
            return Err(TooManyCaptures);
        }
        list.push(capture.clone());
        self.note(&list);
        drop(list);
        Ok(Capturing {
            captures: self.clone(),
            capture,
            queue,
        })
    }

    fn note(&self, list: &[Arc<Capture>]) {
        self.running.store(list.len(), Relaxed);
        self.metrics.running.set(list.len() as i64);
    }

    /// Whether a flow is captured.
    pub fn is_captured(&self, flow: &Flow) -> bool {
        self.running.load(Relaxed) != 0 && self.list.read().iter().any(|one| one.takes(flow))
    }

    /// Gives a request and what became of it to everybody who captures its flow. Never waits. `details`: None where none are
    /// read of the flow.
    pub(crate) fn tell(
        &self,
        flow: &Flow,
        what: What,
        completed: &Completed<'_>,
        details: Option<&Details>,
    ) {
        use StatementKind as Kind;
        let kind = completed.statement.kind;
        // Nobody has to know a password, and nothing of the others is to be asked again.
        if let Kind::Startup | Kind::Options | Kind::Register | Kind::AuthResponse = kind {
            return;
        }
        // It passed before anybody wanted its words: before the capture began.
        if details.is_some_and(|details| details.asked.words.is_none()) {
            return;
        }
        for capture in self.list.read().iter() {
            if !capture.takes(flow) {
                continue;
            }
            let captured = Captured {
                done: Instant::now(),
                flow: flow.id.number(),
                database: database(flow),
                stream: completed.stream,
                whole: details.and_then(|details| details.asked.whole().cloned()),
                statement: completed.statement.clone(),
                what,
                error: completed.error,
                rows: details.and_then(|details| details.answered.rows),
                more_pages: details.is_some_and(|details| details.answered.more_pages),
                latency: Duration::from_nanos(completed.latency_ns),
                bytes: [completed.request_bytes, completed.response_bytes],
            };
            match capture.push(captured) {
                true => self.metrics.requests.inc(),
                false => self.metrics.dropped.inc(),
            }
        }
    }

    /// Parts of a flow were missed, because copies of its packets were lost.
    pub fn note_gaps(&self, flow: &Flow, gaps: u64) {
        if gaps == 0 || self.running.load(Relaxed) == 0 {
            return;
        }
        for capture in self.list.read().iter() {
            if capture.takes(flow) {
                capture.gaps.fetch_add(gaps, Relaxed);
            }
        }
    }
}

impl Captured {
    fn waiting_bytes(&self) -> usize {
        CAPTURED_BYTES + self.whole.as_ref().map_or(0, |whole| whole.body.len())
    }
}

impl Capture {
    fn takes(&self, flow: &Flow) -> bool {
        !self.has_ended.load(Relaxed) && self.of.takes(flow)
    }

    /// Queues a request. False: there is no room.
    fn push(&self, captured: Captured) -> bool {
        let bytes = captured.waiting_bytes();
        let before = self.waiting_bytes.fetch_add(bytes, Relaxed);
        let has_room = before + bytes <= MAX_CAPTURED_WAITING_BYTES;
        if has_room && self.queue.try_send(captured).is_ok() {
            return true;
        }
        self.waiting_bytes.fetch_sub(bytes, Relaxed);
        self.dropped.fetch_add(1, Relaxed);
        false
    }

    /// Makes room for others in place of a request that waits no more.
    fn taken(&self, captured: &Captured) {
        let bytes = captured.waiting_bytes();
        self.waiting_bytes.fetch_sub(bytes, Relaxed);
    }
}

impl Capturing {
    /// Takes what was not told since it was asked last.
    pub fn take_missed(&self) -> NotCaptured {
        NotCaptured {
            dropped: self.capture.dropped.swap(0, AcqRel),
            gaps: self.capture.gaps.swap(0, AcqRel),
        }
    }

    /// Returns the next request, once there is one. None: it was [ended](Self::end), and there are no more.
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Captured>> {
        let next = self.queue.poll_recv(cx);
        if let Poll::Ready(Some(captured)) = &next {
            self.capture.taken(captured);
        }
        next
    }

    /// Takes no further requests: those that wait are the last ones.
    pub fn end(&mut self) {
        // Nobody gives anything meanwhile, so that nothing which comes behind is counted as dropped.
        let list = self.captures.list.write();
        self.capture.has_ended.store(true, Relaxed);
        drop(list);
        self.queue.close();
    }

    /// Drops the requests that wait, and returns how many they were.
    pub fn discard(&mut self) -> u64 {
        let mut dropped = 0;
        while let Ok(captured) = self.queue.try_recv() {
            self.capture.taken(&captured);
            dropped += 1;
        }
        self.captures.metrics.dropped.inc_by(dropped);
        dropped
    }
}

impl Drop for Capturing {
    fn drop(&mut self) {
        let mut list = self.captures.list.write();
        list.retain(|capture| !Arc::ptr_eq(capture, &self.capture));
        self.captures.note(&list);
    }
}

#[cfg(test)]
mod tests {
    use cql::wire::{HEADER_BYTES, Header};

    use super::*;

    fn captured(bytes: usize) -> Captured {
        Captured {
            done: Instant::now(),
            flow: 1,
            database: Database::default(),
            stream: StreamId(1),
            whole: Some(Arc::new(WholeRequest {
                header: Header::read([0; HEADER_BYTES]).unwrap(),
                body: vec![0; bytes].into(),
            })),
            statement: Arc::new(Statement {
                kind: StatementKind::Select,
                keyspace: None,
                table: None,
            }),
            what: What::Answered,
            error: None,
            rows: None,
            more_pages: false,
            latency: Duration::ZERO,
            bytes: [0; 2],
        }
    }

    #[test]
    fn what_waits_is_bounded_in_number_and_bytes_and_the_rest_is_counted() {
        for (bytes, most) in [
            (0, MAX_CAPTURED_WAITING),
            (
                64 << 10,
                MAX_CAPTURED_WAITING_BYTES / ((64 << 10) + CAPTURED_BYTES),
            ),
        ] {
            let captures = Arc::new(Captures::register(&Registry::new()).unwrap());
            let mut capturing = captures.begin(CaptureOf::Flow(1)).unwrap();
            let pushed = (0..most + 3).filter(|_| capturing.capture.push(captured(bytes)));
            assert_eq!(pushed.count(), most);
            assert_eq!(capturing.take_missed().dropped, 3);
            assert_eq!(capturing.take_missed(), NotCaptured::default());
            let mut cx = Context::from_waker(std::task::Waker::noop());
            for _ in 0..most {
                assert!(capturing.poll_next(&mut cx).is_ready());
            }
            assert!(capturing.poll_next(&mut cx).is_pending());
            assert_eq!(capturing.capture.waiting_bytes.load(Relaxed), 0);
        }
    }

    #[test]
    fn what_waits_at_the_end_is_told_or_dropped_and_nothing_comes_behind() {
        let captures = Arc::new(Captures::register(&Registry::new()).unwrap());
        let mut capturing = captures.begin(CaptureOf::Flow(1)).unwrap();
        let pushed = (0..3).filter(|_| capturing.capture.push(captured(10)));
        assert_eq!(pushed.count(), 3);
        capturing.end();
        assert!(!capturing.capture.push(captured(10)));
        let mut cx = Context::from_waker(std::task::Waker::noop());
        assert!(matches!(capturing.poll_next(&mut cx), Poll::Ready(Some(_))));
        assert_eq!(capturing.discard(), 2);
        assert!(matches!(capturing.poll_next(&mut cx), Poll::Ready(None)));
        assert_eq!(capturing.capture.waiting_bytes.load(Relaxed), 0);
        assert_eq!(captures.metrics.dropped.get(), 2);
        // It has its place until nobody holds it.
        assert_eq!(captures.running.load(Relaxed), 1);
    }

    #[test]
    fn there_are_only_so_many_captures_and_one_that_ends_makes_room() {
        let captures = Arc::new(Captures::register(&Registry::new()).unwrap());
        let both = [1, 2].map(|flow| captures.begin(CaptureOf::Flow(flow)).unwrap());
        assert!(captures.begin(CaptureOf::Flow(3)).is_err());
        assert_eq!(captures.metrics.refused.get(), 1);
        drop(both);
        assert_eq!(captures.running.load(Relaxed), 0);
        assert!(captures.begin(CaptureOf::Flow(3)).is_ok());
    }
}
