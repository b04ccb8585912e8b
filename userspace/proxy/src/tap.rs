//! Flows that are read from copies of their packets: a thread that takes what the kernel's tap has, and a decoder
//! with its reporters for each flow.
//!
//! The application's connection is its own: nothing here can hold, change or end it. A flow is listed as the kernel's
//! meter has it; here it is only read.

use std::{
    collections::HashMap,
    io::{self, PipeReader, PipeWriter},
    sync::Arc,
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use dataplane::{
    SockCookie, TapConsumer, TapEvent, TapFlow, TapFlows, TapFraming, TapPacket, TapReader,
};
use flow::{Flow, Path};
use parking_lot::Mutex;
use policy::{Action, RuleName};
use prometheus::{IntCounterVec, IntGauge, Registry};
use tap::{Counts, Direction, KernelFraming, Packet, TappedFlow};
use telemetry::{counters_by, series_of};

use super::{
    context::ProxyContext,
    recorder::{InDetail, InFrames, Recorder},
};

// What the kernel copies of a body is enough for whatever reads it.
const _: () = assert!(dataplane::TAP_BODY_BYTES as usize >= cql::MAX_READ_BODY_BYTES);
const _: () =
    assert!(dataplane::TAP_COMPRESSED_BODY_BYTES as usize >= cql::MAX_READ_COMPRESSED_BODY_BYTES);

/// Flows that are read at once, at most: as many as the kernel observes.
const MAX_FLOWS: usize = 65_536;

/// A flow of which nothing came for this time is looked for in the kernel: the word of its end may be
/// among what was lost.
const LOOK_AFTER: Duration = Duration::from_secs(5);

/// The metrics of tapped flows.
#[derive(Clone, Debug)]
pub struct TapMetrics {
    flows: IntGauge,
    gaps: IntCounterVec,
    abandoned: IntCounterVec,
    stopped: IntCounterVec,
}

impl TapMetrics {
    /// Declares and registers the metrics.
    ///
    /// # Errors
    /// Two metrics of one name.
    pub fn register(registry: &Registry) -> prometheus::Result<Self> {
        let flows = IntGauge::new(
            "underpass_tap_flows",
            "Flows that are read from copies of their packets (`path = \"tap\"`).",
        )?;
        registry.register(Box::new(flows.clone()))?;
        Ok(Self {
            flows,
            gaps: counters_by(
                registry,
                "underpass_tap_gaps_total",
                "Times that bytes of a tapped flow were missed: the tap's ring was full, or the network brought them \
                 too late to be put in their place.",
                &["rule"],
            )?,
            abandoned: counters_by(
                registry,
                "underpass_tap_abandoned_total",
                "Requests of tapped flows that were waiting for a response when bytes were missed, and are paired \
                 with none.",
                &["rule"],
            )?,
            stopped: counters_by(
                registry,
                "underpass_tap_stopped_total",
                "Tapped flows that are not read any more, because they cannot be decoded, by rule and reason.",
                &["rule", "reason"],
            )?,
        })
    }

    /// Gives each metric a first sample, so that the documentation sees it.
    pub fn declare_for_docs(&self) {
        self.gaps.with_label_values(&["rule"]);
        self.abandoned.with_label_values(&["rule"]);
        self.stopped.with_label_values(&["rule", "reason"]);
    }
}

/// The thread that reads tapped flows, while there is one.
#[derive(Debug)]
pub struct TapThread {
    metrics: TapMetrics,
    running: Mutex<Option<Running>>,
}

#[derive(Debug)]
struct Running {
    thread: JoinHandle<()>,
    /// Reading ends when this is closed.
    stop: PipeWriter,
}

impl TapThread {
    /// Makes it; nothing runs yet.
    pub fn new(metrics: TapMetrics) -> Self {
        Self {
            metrics,
            running: Mutex::new(None),
        }
    }

    /// Starts to read.
    ///
    /// # Errors
    /// There can be no more threads, or descriptors.
    pub fn start(&self, shared: &Arc<ProxyContext>, reader: TapReader) -> io::Result<()> {
        let (stopped, stop) = io::pipe()?;
        let tapped = TappedFlows::new(shared, self.metrics.clone());
        let thread = thread::Builder::new()
            .name("tap".to_owned())
            .spawn(move || run(reader, &stopped, tapped))?;
        *self.running.lock() = Some(Running { thread, stop });
        Ok(())
    }

    /// Has the reporters told of what was not answered, and ends the thread. To be called when the tap is
    /// detached.
    pub fn finish(&self) {
        let Some(Running { thread, stop }) = self.running.lock().take() else {
            return;
        };
        drop(stop);
        if thread.join().is_err() {
            tracing::error!("the thread of tapped flows has panicked");
        }
    }
}

fn run(reader: TapReader, stopped: &PipeReader, mut tapped: TappedFlows) {
    if let Err(error) = reader.run(stopped, &mut tapped) {
        tracing::error!(%error, "tapped flows are not read any more");
    }
    tapped.finish();
}

/// All flows that are tapped.
struct TappedFlows {
    shared: Arc<ProxyContext>,
    metrics: TapMetrics,
    flows: HashMap<SockCookie, Reading>,
    looked: Instant,
}

/// One of them.
struct Reading {
    flow: Arc<Flow>,
    tapped: TappedFlow,
    recorder: Recorder,
    /// The latest packet's time, by the kernel's clock.
    at_ns: u64,
    /// When something came last.
    came: Instant,
    /// The counts that metrics have been told.
    counted: Counts,
    rule: RuleName,
    has_stopped: bool,
}

impl TapConsumer for TappedFlows {
    fn event(&mut self, cookie: SockCookie, event: TapEvent<'_>, flows: &TapFlows<'_>) {
        if let TapEvent::Begins(flow) = event {
            self.begin(&flow);
            return;
        }
        if let TapEvent::Ends { at_ns } = event {
            self.end(cookie, at_ns);
            return;
        }
        let Some(reading) = self.reading(cookie, flows) else {
            return;
        };
        match event {
            TapEvent::Starts { is_request, seq } => {
                reading.tapped.begin(direction(is_request), seq);
            }
            TapEvent::Passes(packet) => reading.packet(&packet),
            TapEvent::Begins(_) | TapEvent::Ends { .. } => {}
        }
        let counted = reading.tapped.counts();
        if counted != reading.counted || reading.has_stopped != reading.tapped.stopped().is_some() {
            self.count(cookie);
        }
    }

    fn pause(&mut self, flows: &TapFlows<'_>) {
        if self.looked.elapsed() < LOOK_AFTER {
            return;
        }
        self.looked = Instant::now();
        let silent = self.flows.iter();
        let silent = silent.filter(|(_, reading)| reading.came.elapsed() >= LOOK_AFTER);
        let gone: Vec<_> = silent
            .filter(|(cookie, _)| flows.get(**cookie).is_none())
            .map(|(cookie, reading)| (*cookie, reading.at_ns))
            .collect();
        for (cookie, at_ns) in gone {
            self.end(cookie, at_ns);
        }
    }
}

impl TappedFlows {
    fn new(shared: &Arc<ProxyContext>, metrics: TapMetrics) -> Self {
        Self {
            shared: shared.clone(),
            metrics,
            flows: HashMap::new(),
            looked: Instant::now(),
        }
    }

    /// The flow with this cookie, also if its beginning was missed. None: there is none, or no more.
    fn reading(&mut self, cookie: SockCookie, flows: &TapFlows<'_>) -> Option<&mut Reading> {
        if !self.flows.contains_key(&cookie) {
            self.begin(&flows.get(cookie)?);
        }
        self.flows.get_mut(&cookie)
    }

    fn begin(&mut self, tapped: &TapFlow) {
        let Some(client) = tapped.client.filter(|_| self.flows.len() < MAX_FLOWS) else {
            return;
        };
        let flow = Flow::begin(
            self.shared.flows.take_number(),
            client,
            tapped.process.clone(),
            tapped.orig_dst,
            tapped.rule.clone(),
        );
        flow.set_action(&tapped.rule, Action::Enrich);
        flow.travels(Path::Tap);
        let flow = Arc::new(flow);
        let mut recorder = Recorder::new(&self.shared, &flow);
        recorder.attach_reporters(&flow);
        let reading = Reading {
            tapped: TappedFlow::new(self.shared.prepared.clone()),
            recorder,
            at_ns: 0,
            came: Instant::now(),
            counted: Counts::default(),
            rule: series_of(tapped.rule.clone()),
            has_stopped: false,
            flow,
        };
        self.flows.insert(tapped.cookie, reading);
        self.metrics.flows.set(self.flows.len() as i64);
    }

    fn end(&mut self, cookie: SockCookie, at_ns: u64) {
        let Some(mut reading) = self.flows.remove(&cookie) else {
            return;
        };
        reading.finish(at_ns);
        self.metrics.flows.set(self.flows.len() as i64);
    }

    /// Counts what has become of a flow.
    fn count(&mut self, cookie: SockCookie) {
        let Some(reading) = self.flows.get_mut(&cookie) else {
            return;
        };
        let counts = reading.tapped.counts();
        let before = std::mem::replace(&mut reading.counted, counts);
        let rule = reading.rule.as_str();
        let gaps = self.metrics.gaps.with_label_values(&[rule]);
        gaps.inc_by(counts.gaps - before.gaps);
        let abandoned = self.metrics.abandoned.with_label_values(&[rule]);
        abandoned.inc_by(counts.abandoned - before.abandoned);
        let stopped = reading.tapped.stopped();
        if let Some(why) = stopped.filter(|_| !reading.has_stopped) {
            reading.has_stopped = true;
            let labels = [rule, why.as_str()];
            self.metrics.stopped.with_label_values(&labels).inc();
            tracing::debug!(flow = ?reading.flow.id, reason = why.as_str(), "not read any more");
        }
    }

    fn finish(&mut self) {
        for (_, mut reading) in self.flows.drain() {
            let at_ns = reading.at_ns;
            reading.finish(at_ns);
        }
        self.metrics.flows.set(0);
    }
}

impl Reading {
    fn packet(&mut self, packet: &TapPacket<'_>) {
        self.at_ns = packet.at_ns;
        self.came = Instant::now();
        let direction = direction(packet.is_request);
        let packet = Packet {
            at_ns: packet.at_ns,
            seq: packet.seq,
            before: packet.before,
            bytes: packet.bytes,
            after: packet.after,
            passed: packet.passed,
            frame_at: packet.frame_at,
            framing: match packet.framing {
                TapFraming::Frames => KernelFraming::Frames,
                TapFraming::Segments => KernelFraming::Segments,
                TapFraming::OtherSegments => KernelFraming::OtherSegments,
            },
        };
        let (tapped, recorder) = (&mut self.tapped, &mut self.recorder);
        match recorder.followed.take() {
            None => tapped.packet(direction, &packet, recorder),
            Some(followed) if !followed.wants_requests() => {
                let mut frames = InFrames(InDetail { recorder, followed });
                tapped.packet(direction, &packet, &mut frames);
                self.recorder.followed = Some(frames.0.followed);
            }
            Some(followed) => {
                tapped.wants(followed.wants_texts(), followed.wants_contexts());
                let mut detail = InDetail { recorder, followed };
                tapped.packet(direction, &packet, &mut detail);
                let mut followed = detail.followed;
                // Reporters write what waits when they are asked; nobody is held.
                followed.holds();
                self.recorder.followed = Some(followed);
            }
        }
    }

    /// Tells the reporters of requests that were not answered.
    fn finish(&mut self, at_ns: u64) {
        let (tapped, recorder) = (&mut self.tapped, &mut self.recorder);
        match recorder.followed.take() {
            Some(followed) if followed.wants_requests() => {
                let mut detail = InDetail { recorder, followed };
                tapped.finish(at_ns, &mut detail);
            }
            _ => tapped.finish(at_ns, recorder),
        }
    }
}

fn direction(is_request: bool) -> Direction {
    match is_request {
        true => Direction::Requests,
        false => Direction::Responses,
    }
}
