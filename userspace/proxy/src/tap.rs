//! Flows that are read from copies of their packets: a thread that takes what the kernel's tap has, and a decoder
//! with its reporters for each flow.
//!
//! The application's connection is its own: nothing here can hold, change or end it. A flow is listed as the kernel's
//! meter has it; here it is only read.

mod asked;
mod budget;
mod clock;
mod copied;
mod listed;
mod metrics;
mod reading;
mod round;
mod untold;

use std::{
    collections::{HashMap, HashSet, hash_map::Entry},
    io::{self, PipeWriter},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, mpsc},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use cql::hash::BuildSpread;
use dataplane::{
    Adopted, ClientAddr, Settled, SockCookie, TapConsumer, TapEvent, TapFlow, TapFlows, TapReader,
};
use flow::Flows;
use nix::{
    fcntl::{FcntlArg, OFlag, fcntl},
    time::{ClockId, clock_gettime},
};
use parking_lot::Mutex;
use policy::RuleName;
use telemetry::Rarely;

use budget::{Budget, Loads};
use clock::monotonic_ns;
pub use listed::Listed;
use listed::{ListedFlows, MAX_FLOWS};
pub use metrics::TapMetrics;
use reading::Reading;
use round::Round;
use untold::{Outcome, Untold};

use super::context::ProxyContext;

// What the kernel copies of a body is enough for whatever reads it.
const _: () = assert!(dataplane::TAP_BODY_BYTES as usize >= cql::MAX_READ_BODY_BYTES);
const _: () =
    assert!(dataplane::TAP_COMPRESSED_BODY_BYTES as usize >= cql::MAX_READ_COMPRESSED_BODY_BYTES);
const _: () = assert!(dataplane::TAP_ID_BYTES as usize >= cql::MAX_READ_ID_BYTES);
const _: () = assert!(dataplane::TAP_FRAME_BYTES as usize >= cql::MAX_FRAME_BODY_BYTES);
const _: () = assert!(dataplane::TAP_ROWS_BYTES as usize >= cql::MAX_READ_ROWS_BYTES);

/// Flows of which nothing came lately are looked for in the kernel this often, or when all have been: the word of their
/// end may be among what was lost.
const LOOK_AFTER: Duration = reading::SILENCE;

/// The reason why a flow is read no more whose reader has panicked.
const PANICKED: &str = "panicked";

/// Lines about what the kernel is not told, for each flow or each second.
static NOT_SETTLED: Rarely = Rarely::failing();
static NOT_LEFT_OUT: Rarely = Rarely::failing();
static NOT_LOOKED_AFTER: Rarely = Rarely::failing();

/// The thread that reads tapped flows, while there is one.
#[derive(Debug)]
pub struct TapThread {
    metrics: TapMetrics,
    /// The time that it may use, in processors.
    budget: f64,
    listed: ListedFlows,
    running: Mutex<Option<Running>>,
}

#[derive(Debug)]
struct Running {
    thread: JoinHandle<()>,
    /// Reading ends when this is closed.
    stop: PipeWriter,
}

impl TapThread {
    /// Makes it; nothing runs yet. `budget`: the processor time that it may use, in processors.
    pub fn new(metrics: TapMetrics, budget: f64) -> Self {
        Self {
            metrics,
            budget,
            listed: ListedFlows::default(),
            running: Mutex::new(None),
        }
    }

    /// Starts to read.
    ///
    /// # Errors
    /// There can be no more threads, or descriptors; the reader is given back.
    pub fn start(
        &self,
        shared: &Arc<ProxyContext>,
        reader: TapReader,
    ) -> Result<(), (io::Error, Box<TapReader>)> {
        // A thread that cannot be started would take the reader with it.
        let (give, given) = mpsc::channel();
        match self.spawn(shared, given) {
            Ok(running) => {
                *self.running.lock() = Some(running);
                // The thread waits for it.
                let _ = give.send(reader);
                Ok(())
            }
            Err(error) => Err((error, Box::new(reader))),
        }
    }

    /// Spawns a thread that reads with the reader that it is given.
    fn spawn(
        &self,
        shared: &Arc<ProxyContext>,
        given: mpsc::Receiver<TapReader>,
    ) -> io::Result<Running> {
        let (stopped, stop) = io::pipe()?;
        fcntl(&stopped, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        let (metrics, listed) = (self.metrics.clone(), self.listed.clone());
        let mut tapped = TappedFlows::new(shared, metrics, self.budget, listed);
        let reads = move || {
            if let Ok(reader) = given.recv() {
                reader.run(&stopped, &mut tapped);
                tapped.finish();
            }
        };
        let thread = thread::Builder::new().name("tap".to_owned()).spawn(reads)?;
        Ok(Running { thread, stop })
    }

    /// Returns what is known of a flow. `is_tapped`: the flow is to be listed, also if nothing of it was read.
    pub fn listed(&self, cookie: SockCookie, is_tapped: bool, flows: &Flows) -> Option<Listed> {
        match is_tapped {
            true => Some(self.listed.list(cookie, flows)),
            false => self.listed.get(cookie),
        }
    }

    /// Counts running connections that are read from now on, and says why others are not.
    pub fn note_running(&self, running: &Adopted) {
        self.metrics.note_running(running);
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

/// All flows that are tapped.
struct TappedFlows {
    shared: Arc<ProxyContext>,
    metrics: TapMetrics,
    listed: ListedFlows,
    /// Flows whose readers have panicked, until they end.
    broken: HashSet<SockCookie>,
    /// In boxes, because a table is up to twice as large as what it has.
    flows: HashMap<SockCookie, Box<Reading>, BuildSpread>,
    /// Rules that flows meet of which the kernel has not been told.
    untold: Untold,
    looked: Instant,
    /// Flows of which nothing came lately.
    silent: Round,
    /// Something came since the last pause.
    came: bool,
    /// When something came last, until a round has begun that finds all silent of which it was the last: the word of their end
    /// may not come.
    came_last: Option<Instant>,
    budget: Budget,
    /// The work, since the budget was looked at, of flows that are not read any more.
    loads: Loads,
    /// When the budget was looked at, and what this thread had used by then.
    budget_looked: (Instant, Duration),
}

impl TapConsumer for TappedFlows {
    fn event(&mut self, cookie: SockCookie, event: TapEvent<'_>, flows: &mut TapFlows<'_>) {
        let reads = AssertUnwindSafe(|| self.read(cookie, event, flows));
        if catch_unwind(reads).is_err() {
            self.give_up(cookie);
        }
    }

    fn pause(&mut self, flows: &mut TapFlows<'_>) -> Option<Duration> {
        let looks = AssertUnwindSafe(|| self.look_after(flows));
        if catch_unwind(looks).is_err() {
            self.metrics.failed_looks.inc();
            NOT_LOOKED_AFTER.say(|not_said_before| {
                tracing::error!(
                    not_said_before,
                    "tapped flows are read on, but what looks after them has panicked"
                );
            });
        }
        if !self.silent.is_over() {
            return Some(round::NEXT_TURN);
        }
        // Nothing comes of those that are left out: they would be left out for ever.
        let leaves_out = !self.budget.left_out().is_empty();
        if leaves_out || !self.untold.is_empty() {
            return Some(budget::LOOK_EVERY);
        }
        self.came_last.map(|_| LOOK_AFTER)
    }

    fn cannot_wait(&mut self, error: &io::Error) {
        self.metrics.failed_waits.inc();
        tracing::warn!(
            %error,
            "copies of tapped flows cannot be waited for, and are looked for every few milliseconds until they can"
        );
    }
}

impl TappedFlows {
    fn new(
        shared: &Arc<ProxyContext>,
        metrics: TapMetrics,
        budget: f64,
        listed: ListedFlows,
    ) -> Self {
        Self {
            shared: shared.clone(),
            metrics,
            listed,
            broken: HashSet::new(),
            flows: HashMap::default(),
            untold: Untold::default(),
            looked: Instant::now(),
            silent: Round::default(),
            came: false,
            came_last: None,
            budget: Budget::new(budget),
            loads: Loads::default(),
            budget_looked: (Instant::now(), Duration::ZERO),
        }
    }

    /// Reads an event of a flow.
    fn read(&mut self, cookie: SockCookie, event: TapEvent<'_>, flows: &mut TapFlows<'_>) {
        self.came = true;
        if let TapEvent::Begins(flow) = event {
            self.begin(&flow, flows);
            return;
        }
        if let TapEvent::Ends { at_ns } = event {
            self.end(cookie, at_ns);
            flows.forget(cookie);
            return;
        }
        if let TapEvent::Starts(direction, seq) = event {
            // Of a flow that is left out, or whose beginning was missed, it is not asked for.
            if let Some(reading) = self.flows.get_mut(&cookie) {
                reading.tapped.begin(direction, seq);
            }
            return;
        }
        let TapEvent::Passes(direction, packet) = event else {
            return;
        };
        let Some(reading) = self.reading(cookie, flows) else {
            return;
        };
        reading.packet(direction, &packet);
        let settled = reading.settle();
        let counted = reading.tapped.counts();
        if counted != reading.counted || reading.has_stopped != reading.tapped.stopped().is_some() {
            self.count(cookie);
        }
        if let Some((rule, settled)) = settled {
            self.untold.add((cookie, rule, settled));
            self.settle(flows);
        }
    }

    /// Keeps to the budget, and ends flows whose end was missed.
    fn look_after(&mut self, flows: &mut TapFlows<'_>) {
        let panics = u64::from(test_hooks::get().tap_looks_panic);
        assert!(
            self.metrics.failed_looks.get() >= panics,
            "a test has asked for it"
        );
        self.settle(flows);
        self.keep_to_budget(flows);
        if std::mem::take(&mut self.came) {
            self.came_last = Some(Instant::now());
        }
        if self.silent.is_over() && self.looked.elapsed() >= LOOK_AFTER {
            self.looked = Instant::now();
            self.came_last = self.came_last.filter(|came| came.elapsed() < LOOK_AFTER);
            self.begin_round(flows);
        }
        for cookie in self.silent.take_turn() {
            self.look_after_flow(cookie, flows);
        }
    }

    /// Reads a flow no more: its reader has panicked. The others are read on.
    fn give_up(&mut self, cookie: SockCookie) {
        if self.broken.len() < MAX_FLOWS {
            self.broken.insert(cookie);
        }
        let Some(reading) = self.remove(cookie) else {
            return;
        };
        self.listed.stop(cookie, PANICKED);
        let labels = [reading.rule.as_str(), PANICKED];
        self.metrics.stopped.with_label_values(&labels).inc();
        tracing::error!(flow = ?reading.flow.id, "not read any more: what reads it has panicked");
    }

    /// Has the kernel asked for flows of which nothing came lately, or that are listed alone, a few at each turn.
    fn begin_round(&mut self, flows: &TapFlows<'_>) {
        let now_ns = monotonic_ns();
        let mut round = self.listed.filter(|cookie| {
            let reading = self.flows.get(&cookie);
            reading.is_none_or(|reading| reading.is_silent(now_ns))
        });
        round.extend(&self.broken);
        round.extend(flows.told());
        self.silent.begin(round);
    }

    /// Ends a flow of which nothing comes, and that the kernel has no more.
    fn look_after_flow(&mut self, cookie: SockCookie, flows: &mut TapFlows<'_>) {
        flows.sweep(cookie);
        match self.flows.get(&cookie) {
            Some(reading) if !reading.is_silent(monotonic_ns()) => {}
            Some(reading) => {
                let at_ns = reading.at_ns;
                if flows.get(cookie).is_none() {
                    self.end(cookie, at_ns);
                }
            }
            None if flows.is_live(cookie) => {}
            None => {
                self.broken.remove(&cookie);
                self.listed.remove(cookie);
            }
        }
    }

    /// Leaves flows out if reading all takes more than it may.
    fn keep_to_budget(&mut self, flows: &mut TapFlows<'_>) {
        let (looked, used_before) = self.budget_looked;
        let passed = looked.elapsed();
        if passed < budget::LOOK_EVERY {
            return;
        }
        let clock = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID);
        let used = clock.map_or(used_before, Duration::from);
        self.budget_looked = (Instant::now(), used);
        let mut loads = std::mem::take(&mut self.loads);
        for reading in self.flows.values_mut() {
            reading.add_load(&mut loads);
        }
        let before: Vec<RuleName> = self.budget.left_out().keys().cloned().collect();
        let used = used.saturating_sub(used_before).as_secs_f64() / passed.as_secs_f64();
        let changed = self.budget.look(used, passed, &loads);
        let left_out = self.budget.left_out();
        // A rule's slot in the kernel may be another's by now.
        let set = match changed || !left_out.is_empty() {
            true => flows.leave_out(left_out),
            false => Ok(()),
        };
        if let Err(error) = set {
            NOT_LEFT_OUT.say(|not_said_before| {
                tracing::error!(%error, not_said_before, "the kernel cannot be told which tapped flows to leave out");
            });
        }
        if changed {
            self.metrics.tell_left_out(left_out, &before);
            for (cookie, reading) in &mut self.flows {
                reading.note_share(*cookie, flows);
            }
        }
    }

    /// The flow with this cookie, also if its beginning was missed. None: there is none, or no more.
    fn reading(&mut self, cookie: SockCookie, flows: &TapFlows<'_>) -> Option<&mut Reading> {
        let count = self.flows.len();
        if self.broken.contains(&cookie) {
            return None;
        }
        match self.flows.entry(cookie) {
            Entry::Occupied(known) => Some(known.into_mut()),
            Entry::Vacant(free) => {
                let tapped = flows.get(cookie)?;
                let client = tapped.client.filter(|_| count < MAX_FLOWS)?;
                self.metrics.flows.set(count as i64 + 1);
                let mut reading = Reading::begin(&self.shared, &self.listed, &tapped, client);
                reading.note_share(cookie, flows);
                self.metrics.begin(reading.rule.as_str());
                Some(free.insert(Box::new(reading)))
            }
        }
    }

    fn begin(&mut self, tapped: &TapFlow, flows: &mut TapFlows<'_>) {
        let Some(client) = tapped.client.filter(|_| self.flows.len() < MAX_FLOWS) else {
            return;
        };
        if flows.is_left_out(&tapped.rule, tapped.cookie) {
            return self.leave_out(tapped, client, flows);
        }
        let reading = Reading::begin(&self.shared, &self.listed, tapped, client);
        self.metrics.begin(reading.rule.as_str());
        self.flows.insert(tapped.cookie, Box::new(reading));
        self.metrics.flows.set(self.flows.len() as i64);
    }

    /// Reads nothing of a flow that begins, as there is no time. If copies of its handshake were to say which rule it meets,
    /// that is decided as where nobody can know: the kernel would copy it all until then.
    fn leave_out(&mut self, tapped: &TapFlow, client: ClientAddr, flows: &mut TapFlows<'_>) {
        if !tapped.asks {
            return;
        }
        let shared = self.shared.clone();
        let id = self.listed.list(tapped.cookie, &shared.flows).id;
        let (policy, metrics) = (shared.policy.borrow(), &shared.metrics.sessions);
        if let Some((rule, settled)) = asked::answer_unread(tapped, client, id, &policy, metrics) {
            self.untold.add((tapped.cookie, rule, settled));
            self.settle(flows);
        }
    }

    /// Tells the kernel which rules flows meet, as copies have said. Who is let go is forgotten then.
    fn settle(&mut self, flows: &mut TapFlows<'_>) {
        let tell = |(cookie, rule, settled): &Outcome| flows.settle(*cookie, rule, *settled);
        let (told, failed) = self.untold.tell(tell);
        if let Err(error) = failed {
            NOT_SETTLED.say(|not_said_before| {
                tracing::error!(
                    %error,
                    not_said_before,
                    "the kernel cannot be told which rule a tapped flow meets; it is tried again"
                );
            });
        }
        for (cookie, _, settled) in told {
            if matches!(settled, Settled::Tapped(_)) {
                if let Some(reading) = self.flows.get_mut(&cookie) {
                    reading.note_share(cookie, flows);
                }
                continue;
            }
            drop(self.remove(cookie));
        }
    }

    /// Removes a flow, the work of which is not forgotten.
    fn remove(&mut self, cookie: SockCookie) -> Option<Box<Reading>> {
        let mut reading = self.flows.remove(&cookie)?;
        reading.add_load(&mut self.loads);
        self.metrics.flows.set(self.flows.len() as i64);
        Some(reading)
    }

    fn end(&mut self, cookie: SockCookie, at_ns: u64) {
        self.listed.remove(cookie);
        if let Some(mut reading) = self.remove(cookie) {
            reading.finish(at_ns);
        }
    }

    /// Counts what has become of a flow.
    fn count(&mut self, cookie: SockCookie) {
        let Some(reading) = self.flows.get_mut(&cookie) else {
            return;
        };
        let counts = reading.tapped.counts();
        let before = std::mem::replace(&mut reading.counted, counts);
        let captures = &self.shared.services.captures;
        captures.note_gaps(&reading.flow, counts.gaps - before.gaps);
        let rule = reading.rule.as_str();
        let gaps = self.metrics.gaps.with_label_values(&[rule]);
        gaps.inc_by(counts.gaps - before.gaps);
        let abandoned = self.metrics.abandoned.with_label_values(&[rule]);
        abandoned.inc_by(counts.abandoned - before.abandoned);
        let stopped = reading.tapped.stopped();
        if let Some(why) = stopped.filter(|_| !reading.has_stopped) {
            reading.has_stopped = true;
            let labels = [rule, why.as_str()];
            self.listed.stop(cookie, why.as_str());
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
