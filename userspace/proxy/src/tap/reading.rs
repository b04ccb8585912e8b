//! [`Reading`]: one flow that is read from copies, with its decoder and its reporters.

use std::{sync::Arc, time::Duration};

use dataplane::{ClientAddr, Settled, SockCookie, TapFlow, TapFlows};
use flow::{Flow, Path};
use policy::{Action, RuleName};
use tap::{Beside, Counts, Direction, Packet, TappedFlow};
use telemetry::series_of;

use super::{asked, budget::Loads, clock::monotonic_ns, copied::CopiedSteps, listed::ListedFlows};
use crate::{
    context::ProxyContext,
    question::Question,
    recorder::{InDetail, InFrames, Recorder},
};

/// So many bytes take about as long to read as a packet takes by itself.
const BYTES_LIKE_A_PACKET: u64 = 1 << 10;

/// The beginning and the end of a flow take about as long as so many packets. An estimate: what is used in all is measured,
/// and only which rule gives way first depends on this.
const BEGINNING_LIKE_PACKETS: u64 = 16;

/// A flow is silent of which nothing came for this time.
pub(super) const SILENCE: Duration = Duration::from_secs(5);

/// A flow that is read from copies.
pub(super) struct Reading {
    pub(super) flow: Arc<Flow>,
    pub(super) tapped: TappedFlow,
    recorder: Recorder,
    /// The steps that are no reporters. None: there are none.
    steps: Option<Box<CopiedSteps>>,
    /// When something came last, by the kernel's clock.
    pub(super) at_ns: u64,
    /// The counts that metrics have been told.
    pub(super) counted: Counts,
    pub(super) rule: RuleName,
    /// None: it is known which rule the flow meets.
    question: Option<Question>,
    /// The rule by its own name.
    pub(super) decided_by: RuleName,
    /// The rule that the kernel has found. Flows that begin are left out as its flows.
    kernel_rule: RuleName,
    /// The work of the flow's beginning, and of asking which rule it meets, that the budget does not know of yet.
    asking_load: u64,
    /// The work since: packets, and one more for so many bytes.
    load: u64,
    pub(super) has_stopped: bool,
    /// Nobody reads the flow any more, and the kernel has to be told.
    is_let_go: bool,
    /// The flow is one of those of its rule that are left out.
    is_left_out: bool,
    /// Copies of requests, and of responses, have been dropped since the last that was read.
    dropped: [bool; 2],
}

impl Reading {
    /// Begins to read a flow.
    pub(super) fn begin(
        shared: &Arc<ProxyContext>,
        listed: &ListedFlows,
        tapped: &TapFlow,
        client: ClientAddr,
    ) -> Self {
        let flow = Flow::begin(
            listed.number(tapped.cookie, &shared.flows),
            client,
            tapped.process.clone(),
            tapped.orig_dst,
            tapped.rule.clone(),
        );
        flow.set_action(&tapped.rule, Action::Enrich);
        flow.travels(Path::Tap);
        let flow = Arc::new(flow);
        let mut recorder = Recorder::new(shared, &flow);
        let question = asked::question(tapped, &flow, &shared.policy.borrow());
        let mut decoded = TappedFlow::new(shared.services.prepared.at(steps::database(&flow)));
        decoded.asks();
        if question.is_none() {
            decoded.asks_a_while();
            recorder.attach_reporters(&flow);
        }
        listed.enter(tapped.cookie, &flow, question.is_some());
        let steps = CopiedSteps::begin(
            &shared.pipelines.borrow(),
            &shared.pipeline_metrics,
            &flow,
            question.is_none(),
        );
        Self {
            tapped: decoded,
            question,
            steps,
            recorder,
            at_ns: monotonic_ns(),
            counted: Counts::default(),
            rule: series_of(tapped.rule.clone()),
            decided_by: tapped.rule.clone(),
            kernel_rule: tapped.rule.clone(),
            asking_load: BEGINNING_LIKE_PACKETS,
            load: 0,
            has_stopped: false,
            is_let_go: false,
            is_left_out: false,
            dropped: [false; 2],
            flow,
        }
    }

    /// Whether nothing came of it lately.
    pub(super) fn is_silent(&self, now_ns: u64) -> bool {
        u128::from(now_ns.saturating_sub(self.at_ns)) >= SILENCE.as_nanos()
    }

    /// Adds the work since this was last called to that of the rules as whose flow it would have been left out.
    pub(super) fn add_load(&mut self, loads: &mut Loads) {
        loads.add(&self.kernel_rule, std::mem::take(&mut self.asking_load));
        loads.add(&self.decided_by, std::mem::take(&mut self.load));
    }

    /// Notes whether the flow is left out from now on. One of which it is not known which rule it meets never is.
    pub(super) fn note_share(&mut self, cookie: SockCookie, flows: &TapFlows<'_>) {
        self.is_left_out = self.question.is_none() && flows.is_left_out(&self.decided_by, cookie);
    }

    pub(super) fn packet(&mut self, direction: Direction, packet: &Packet<'_>) {
        self.at_ns = packet.at_ns;
        if self.is_let_go {
            return;
        }
        let [requests, responses] = &mut self.dropped;
        let dropped = match direction {
            Direction::Requests => requests,
            Direction::Responses => responses,
        };
        // The kernel copies on what is older than its two policies.
        if self.is_left_out {
            *dropped = true;
            return;
        }
        let missed = packet.missed | std::mem::take(dropped);
        let packet = &Packet { missed, ..*packet };
        test_hooks::get().may_panic(packet.bytes);
        self.load += 1 + packet.bytes.len() as u64 / BYTES_LIKE_A_PACKET;
        let (tapped, recorder) = (&mut self.tapped, &mut self.recorder);
        let steps = self.steps.as_deref_mut();
        let steps = steps.map(|steps| steps as &mut dyn Beside);
        recorder.look_for_watchers(&self.flow);
        let followed = recorder.followed.take();
        // Copies have what the rule's steps need. Whoever watches or captures gets no more.
        let in_detail = followed.as_ref().is_some_and(|f| f.wants_requests());
        if recorder.reads_details(in_detail) {
            tapped.forget_details();
        }
        match followed {
            None => tapped.packet(direction, packet, recorder, steps),
            Some(followed) if !in_detail => {
                let mut frames = InFrames(InDetail { recorder, followed });
                tapped.packet(direction, packet, &mut frames, steps);
                self.recorder.followed = Some(frames.0.followed);
            }
            Some(followed) => {
                tapped.wants(
                    followed.wants_texts(),
                    followed.wants_contexts(),
                    followed.wants_values(),
                );
                tapped.wants_whole(followed.wants_whole());
                let mut detail = InDetail { recorder, followed };
                tapped.packet(direction, packet, &mut detail, steps);
                let mut followed = detail.followed;
                // Reporters write what waits when they are asked; nobody is held.
                followed.holds();
                self.recorder.followed = Some(followed);
            }
        }
    }

    /// Notes what is known of the session. Answers which rule the flow meets, once it is known, and begins to report to
    /// that rule's reporters.
    pub(super) fn settle(&mut self) -> Option<(RuleName, Settled)> {
        let asked = self.tapped.session()?;
        let Some(question) = &self.question else {
            if asked::note(asked, &self.flow) {
                self.tapped.asks_no_more();
            }
            return None;
        };
        let metrics = &self.recorder.shared.metrics.sessions;
        let (by, settled) = asked::answer(question, asked, &self.flow, metrics)?;
        self.question = None;
        self.tapped.asks_a_while();
        self.is_let_go = !matches!(settled, Settled::Tapped(_));
        if !self.is_let_go {
            self.recorder.switch_rule(&self.flow);
            let shared = &self.recorder.shared;
            let (pipelines, metrics) = (shared.pipelines.borrow(), &shared.pipeline_metrics);
            let flow = &self.flow;
            let adopts = |steps: &mut Box<CopiedSteps>| steps.adopt_rule(&pipelines, metrics, flow);
            if !self.steps.as_mut().is_some_and(adopts) {
                self.steps = None;
            }
            self.asking_load += std::mem::take(&mut self.load);
            self.rule = series_of(by.rule.clone());
            self.decided_by = by.rule.clone();
        }
        Some((by.rule, settled))
    }

    /// Tells the reporters of requests that were not answered.
    pub(super) fn finish(&mut self, at_ns: u64) {
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
