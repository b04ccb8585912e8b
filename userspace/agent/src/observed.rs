//! Observed flows, as `/metrics` and `/flows` show them. Their bytes do not pass through the agent:
//! it reads the kernel's counts, when it is asked.

use std::{
    collections::BTreeMap,
    io,
    sync::{Arc, Mutex, PoisonError},
};

use dataplane::{Dataplane, OPCODES, Traffic, Untouched};
use flow::{Flow, Path, SessionView, UNDECIDED};
use policy::{Action, Policy, RuleName, Session};
use prometheus::{
    HistogramOpts, HistogramVec, IntCounterVec, IntGaugeVec, Opts,
    core::{Collector, Desc},
    proto,
};
use proxy::{ProxyContext, tap::Listed};
use serde::Serialize;

use crate::untouched::UntouchedView;

/// The path of an observed flow's bytes.
const PATH: &str = "untouched";

/// The data plane, until it is detached.
pub type SharedDataplane = Arc<Mutex<Option<Dataplane>>>;

/// Whether there may be anything to read.
pub fn is_observing(dataplane: &SharedDataplane) -> bool {
    let dataplane = dataplane.lock().unwrap_or_else(PoisonError::into_inner);
    dataplane.as_ref().is_some_and(Dataplane::is_observing)
}

/// Starts to read tapped flows, once a rule taps.
///
/// # Errors
/// There can be no more threads, or descriptors: it is to be tried again.
pub fn start_tap(shared: &Arc<ProxyContext>, dataplane: &mut Dataplane) -> io::Result<()> {
    let Some(reader) = dataplane.tap_reader() else {
        return Ok(());
    };
    let started = shared.tap.start(shared, reader);
    started.map_err(|(error, reader)| {
        dataplane.give_back(*reader);
        error
    })
}

/// Has running connections read that `policy`, which is in force, has read, and says how many they are. The data plane waits only
/// while the kernel looks at sockets, and not while their processes are looked for, which takes long where there are many.
pub fn adopt(shared: &ProxyContext, dataplane: &SharedDataplane, policy: &Policy) {
    let lock = || dataplane.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(scope) = lock().as_ref().map(Dataplane::scope) else {
        return;
    };
    let survey = scope.survey(policy);
    let adopted = survey.map(|survey| Some(lock().as_mut()?.adopt_surveyed(survey)));
    match adopted {
        Ok(Some(Ok(running))) => shared.tap.note_running(&running),
        Ok(Some(Err(error))) | Err(error) => {
            tracing::warn!("running connections cannot be read: {error}");
        }
        // The agent stops.
        Ok(None) => {}
    }
}

/// Takes flows that have ended out of the kernel's table.
pub fn sweep(dataplane: &SharedDataplane) {
    read(dataplane, |_, _| {});
}

/// Returns the meter's counts of all flows, by rule; none where it cannot be read.
pub fn by_rule(dataplane: &SharedDataplane) -> BTreeMap<RuleName, Traffic> {
    read(dataplane, |_, _| {}).unwrap_or_default()
}

/// Reads the meter's counts, by rule. None where nothing is attached or it cannot be read. The data
/// plane waits while `each` looks at a flow.
fn read(
    dataplane: &SharedDataplane,
    each: impl FnMut(Untouched, &Traffic),
) -> Option<BTreeMap<RuleName, Traffic>> {
    let mut dataplane = dataplane.lock().unwrap_or_else(PoisonError::into_inner);
    let read = dataplane.as_mut()?.observations(each);
    read.inspect_err(|e| tracing::error!("cannot read observed flows: {e}"))
        .ok()
}

/// A flow as `/flows` gives it, beside those that the agent carries.
#[derive(Debug, Serialize)]
pub struct ObservedView {
    #[serde(flatten)]
    flow: UntouchedView,
    bytes_to_database: u64,
    bytes_to_client: u64,
    requests: u64,
    responses: u64,
    errors: u64,
    in_flight: u64,
    gaps: u64,
    p50_us: Option<f64>,
    p99_us: Option<f64>,
    /// The session of a flow of which copies are read. None: nobody looks at it.
    #[serde(skip_serializing_if = "Option::is_none")]
    session: Option<Box<SessionView>>,
}

/// Explains why a tapped flow is not read any more.
fn not_read(why: &str) -> String {
    match why {
        "tls" => "; not read, because it speaks TLS: copies show nothing of it, and `tls` in its rule has it end in the agent"
            .to_owned(),
        why => format!("; not read any more ({why})"),
    }
}

/// Whether something has passed in both directions, and nothing of it was a frame.
fn has_no_frame(traffic: &Traffic) -> bool {
    let sides = [&traffic.requests, &traffic.responses];
    let is_none = |side: &&dataplane::Side| side.bytes > 0 && side.frames + side.compressed == 0;
    sides.iter().all(is_none)
}

impl ObservedView {
    /// Returns the client's process and the number of its cgroup. None on another host.
    pub fn process(&self) -> Option<(u32, u64)> {
        self.flow.process()
    }

    /// Makes the view of a flow. `listed`: what copies have told of it.
    fn new(flow: Untouched, traffic: &Traffic, listed: Option<&Listed>) -> Self {
        let us = |quantile| {
            let latency = traffic.latencies.quantile(quantile);
            latency.map(|latency| latency.as_nanos() as f64 / 1e3)
        };
        let when = match flow.process.is_elsewhere() {
            false => "connect()",
            true => "its SYN",
        };
        let tap = Path::Tap.as_str();
        let stopped = listed.and_then(|listed| listed.stopped).map(not_read);
        let (action, path, how) = match (flow.is_tapped, flow.is_left_out) {
            (false, _) if flow.is_held_out => (
                Action::Enrich,
                PATH,
                "; left alone by `holdout`, so that others can be compared with it",
            ),
            (false, _) => (Action::Observe, PATH, ""),
            (true, false) if flow.was_running && has_no_frame(traffic) => (
                Action::Enrich,
                tap,
                "; no frame of CQL has begun in what has passed since: what is encrypted cannot be read, and `tls` in its rule has \
                 later connections end in the agent",
            ),
            (true, false) => (Action::Enrich, tap, "; every step only reads, so copies do"),
            (true, true) => (
                Action::Enrich,
                tap,
                "; not read now, because `tap_cpu` is used up",
            ),
        };
        let how = stopped.as_deref().unwrap_or(how);
        let joined = match flow.was_running {
            false => format!("decided at {when}"),
            true => "found running, joined in its middle".to_owned(),
        };
        let id = listed.map(|listed| listed.id);
        let asked = listed.filter(|listed| listed.is_asked);
        let session = listed.map(|listed| session(listed.flow.as_deref()));
        let view = match asked.and_then(|listed| listed.flow.as_deref()) {
            // Nothing of it has been read.
            None if flow.is_undecided => {
                let why = "copies of its handshake are read".to_owned();
                UntouchedView::new(&flow, id, UNDECIDED, path, why)
            }
            None => {
                let why = format!("{joined}: rule {} says {}{how}", flow.rule, action.as_str());
                UntouchedView::new(&flow, id, action.as_str(), path, why)
            }
            Some(asked) => {
                let flow = Untouched {
                    rule: asked.rule(),
                    ..flow
                };
                UntouchedView::new(&flow, id, asked.action(), path, asked.why())
            }
        };
        Self {
            flow: view,
            bytes_to_database: traffic.requests.bytes,
            bytes_to_client: traffic.responses.bytes,
            requests: traffic.requests.frames,
            responses: traffic.responses.frames,
            errors: traffic.errors(),
            in_flight: traffic.in_flight(),
            gaps: traffic.requests.gaps + traffic.responses.gaps,
            p50_us: us(0.5),
            p99_us: us(0.99),
            session: session.map(|session| Box::new(SessionView::from(&session))),
        }
    }
}

/// The session of a tapped flow as far as copies have told it. `flow` is None where nothing was read.
pub fn session(flow: Option<&Flow>) -> Session {
    let known = flow.and_then(|flow| flow.decided().session);
    known.map_or_else(Session::default, |session| *session)
}

/// Returns the flows that are observed now, with what copies have told of those that are read; none if not all can be
/// read.
pub fn flows(
    dataplane: &SharedDataplane,
    shared: &ProxyContext,
) -> Vec<(Untouched, Option<Listed>)> {
    keep(dataplane, |flow, _| {
        let listed = listed(&flow, shared);
        (flow, listed)
    })
}

/// Returns the observed flows, as `/flows` gives them.
pub fn views(dataplane: &SharedDataplane, shared: &ProxyContext) -> Vec<ObservedView> {
    keep(dataplane, |flow, traffic| {
        let listed = listed(&flow, shared);
        ObservedView::new(flow, traffic, listed.as_ref())
    })
}

fn listed(flow: &Untouched, shared: &ProxyContext) -> Option<Listed> {
    shared
        .tap
        .listed(flow.cookie, flow.is_tapped, &shared.flows)
}

fn keep<T>(dataplane: &SharedDataplane, of_each: impl Fn(Untouched, &Traffic) -> T) -> Vec<T> {
    let mut kept = Vec::new();
    let read = read(dataplane, |flow, traffic| kept.push(of_each(flow, traffic)));
    read.map_or_else(Vec::new, |_| kept)
}

/// The counts by rule, over all flows that are and were observed.
pub struct ObservedCounters {
    dataplane: SharedDataplane,
    empty: Families,
}

struct Families {
    bytes: IntCounterVec,
    requests: IntCounterVec,
    responses: IntCounterVec,
    gaps: IntCounterVec,
    compressed: IntCounterVec,
    uncopied_bytes: IntCounterVec,
    uncopied_frames: IntCounterVec,
    unmatched: IntCounterVec,
    in_flight: IntGaugeVec,
    seconds: HistogramVec,
}

const DIRECTIONS: [&str; 2] = ["to_database", "to_client"];
const SECONDS: &str = "underpass_observed_seconds";
const SECONDS_HELP: &str = "Latency of observed flows: from a request's header leaving this host's TCP until its response arrives; for a client on another host, from its arrival until the response leaves.";

impl Families {
    fn new() -> prometheus::Result<Self> {
        let counter = |name: &str, help: &str, labels: &[&str]| {
            IntCounterVec::new(
                Opts::new(format!("underpass_observed_{name}_total"), help),
                labels,
            )
        };
        let by_direction = ["rule", "direction"];
        Ok(Self {
            bytes: counter(
                "bytes",
                "TCP payload of observed flows, each byte once.",
                &by_direction,
            )?,
            requests: counter(
                "requests",
                "Requests of observed flows.",
                &["rule", "opcode"],
            )?,
            responses: counter(
                "responses",
                "Responses of observed flows.",
                &["rule", "opcode"],
            )?,
            gaps: counter(
                "gaps",
                "Times that headers of an observed flow were missed: bytes that came late and could \
                 not be put in their place, or that are no CQL.",
                &by_direction,
            )?,
            compressed: counter(
                "compressed_segments",
                "Segments (v5) of observed flows whose frames are compressed, and not counted.",
                &by_direction,
            )?,
            uncopied_bytes: counter(
                "uncopied_bytes",
                "TCP payload of tapped flows of which the agent got no copy, because the tap's ring was full.",
                &by_direction,
            )?,
            uncopied_frames: counter(
                "uncopied_frames",
                "Frames of tapped flows of which the agent got no copy, or not of all, because the tap's ring was full.",
                &by_direction,
            )?,
            unmatched: counter(
                "unmatched_responses",
                "Responses of observed flows that underpass_observed_seconds leaves out: stream ids \
                 beyond those that are measured, or a gap.",
                &["rule"],
            )?,
            in_flight: IntGaugeVec::new(
                Opts::new(
                    "underpass_observed_in_flight",
                    "Requests of observed flows that have no response yet; wrong after a gap.",
                ),
                &["rule"],
            )?,
            seconds: HistogramVec::new(HistogramOpts::new(SECONDS, SECONDS_HELP), &["rule"])?,
        })
    }

    fn counters(&self) -> [&IntCounterVec; 8] {
        [
            &self.bytes,
            &self.requests,
            &self.responses,
            &self.gaps,
            &self.compressed,
            &self.uncopied_bytes,
            &self.uncopied_frames,
            &self.unmatched,
        ]
    }

    fn add(&self, rule: &str, traffic: &Traffic) {
        let sides = [&traffic.requests, &traffic.responses];
        for ((direction, side), by_opcode) in DIRECTIONS
            .iter()
            .zip(sides)
            .zip([&self.requests, &self.responses])
        {
            let labels = [rule, direction];
            self.bytes.with_label_values(&labels).inc_by(side.bytes);
            self.gaps.with_label_values(&labels).inc_by(side.gaps);
            let compressed = self.compressed.with_label_values(&labels);
            compressed.inc_by(side.compressed);
            let uncopied = self.uncopied_bytes.with_label_values(&labels);
            uncopied.inc_by(side.lost_bytes);
            let uncopied = self.uncopied_frames.with_label_values(&labels);
            uncopied.inc_by(side.lost_frames);
            let frames = OPCODES.iter().zip(side.by_opcode).filter(|(_, n)| *n > 0);
            for (opcode, n) in frames {
                by_opcode.with_label_values(&[rule, opcode]).inc_by(n);
            }
        }
        self.unmatched
            .with_label_values(&[rule])
            .inc_by(traffic.unmatched);
    }
}

impl ObservedCounters {
    /// Makes the metrics over the data plane, which may have been detached.
    ///
    /// # Errors
    /// Two metrics of one name: a mistake in this file.
    pub fn new(dataplane: SharedDataplane) -> prometheus::Result<Self> {
        Ok(Self {
            dataplane,
            empty: Families::new()?,
        })
    }

    /// Returns what [`Collector::collect`] gives, with one sample each that says zero: for
    /// documentation.
    pub fn declared(&self) -> Vec<proto::MetricFamily> {
        let sample = [(String::new(), Traffic::default())];
        for counter in self.empty.counters() {
            let labels = counter
                .desc()
                .first()
                .map_or(0, |desc| desc.variable_labels.len());
            counter.with_label_values(&vec![""; labels]);
        }
        self.empty.in_flight.with_label_values(&[""]);
        let counters = self.empty.counters().into_iter();
        counters
            .flat_map(Collector::collect)
            .chain(self.empty.in_flight.collect())
            .chain([histograms(
                sample.iter().map(|(rule, traffic)| (&**rule, traffic)),
            )])
            .collect()
    }
}

impl Collector for ObservedCounters {
    fn desc(&self) -> Vec<&Desc> {
        let counters = self.empty.counters().into_iter();
        counters
            .flat_map(|counter| counter.desc())
            .chain(self.empty.in_flight.desc())
            .chain(self.empty.seconds.desc())
            .collect()
    }

    fn collect(&self) -> Vec<proto::MetricFamily> {
        // Requests of flows that have ended are not answered any more.
        let mut in_flight = BTreeMap::<RuleName, u64>::new();
        let live = |flow: Untouched, traffic: &Traffic| {
            *in_flight.entry(flow.rule).or_default() += traffic.in_flight();
        };
        let (Some(read), Ok(families)) = (read(&self.dataplane, live), Families::new()) else {
            return Vec::new();
        };
        let by_rule = || read.iter().map(|(rule, traffic)| (rule.as_str(), traffic));
        for (rule, traffic) in by_rule() {
            families.add(rule, traffic);
        }
        for rule in read.keys() {
            let gauge = families.in_flight.with_label_values(&[rule.as_str()]);
            gauge.set(in_flight.get(rule).copied().unwrap_or(0).cast_signed());
        }
        let counters = families.counters().into_iter();
        let counters = counters.flat_map(Collector::collect);
        let counters = counters.chain(families.in_flight.collect());
        let mut all: Vec<_> = counters
            .filter(|family| !family.get_metric().is_empty())
            .collect();
        if !read.is_empty() {
            all.push(histograms(by_rule()));
        }
        all
    }
}

/// The kernel's buckets, as Prometheus has them: one for each doubling.
fn histograms<'a>(by_rule: impl Iterator<Item = (&'a str, &'a Traffic)>) -> proto::MetricFamily {
    let mut family = proto::MetricFamily::default();
    family.set_name(SECONDS.into());
    family.set_help(SECONDS_HELP.into());
    family.set_field_type(proto::MetricType::HISTOGRAM);
    family.set_metric(
        by_rule
            .map(|(rule, traffic)| histogram(rule, traffic))
            .collect(),
    );
    family
}

fn histogram(rule: &str, traffic: &Traffic) -> proto::Metric {
    let latencies = &traffic.latencies;
    let buckets = latencies.cumulative().into_iter().map(|(end, below)| {
        let mut bucket = proto::Bucket::default();
        bucket.set_upper_bound(end.as_secs_f64());
        bucket.set_cumulative_count(below);
        bucket
    });
    let mut histogram = proto::Histogram::default();
    histogram.set_bucket(buckets.collect());
    histogram.set_sample_count(latencies.count());
    histogram.set_sample_sum(latencies.sum().as_secs_f64());
    let mut label = proto::LabelPair::default();
    label.set_name("rule".into());
    label.set_value(rule.to_owned());
    let mut metric = proto::Metric::from_label(vec![label]);
    metric.set_histogram(histogram);
    metric
}

#[cfg(test)]
mod tests {
    use super::*;
    use dataplane::{ClientAddr, OrigDst, Process, Side, SockCookie};
    use std::time::Duration;

    fn shown(process: Process) -> String {
        let flow = Untouched {
            cookie: SockCookie::new(7),
            client: Some(ClientAddr::new(([10, 0, 0, 1], 40_000).into())),
            orig_dst: OrigDst::new(([10, 0, 0, 2], 9042).into()),
            process,
            is_tapped: false,
            is_undecided: false,
            was_running: false,
            is_left_out: false,
            is_held_out: false,
            rule: RuleName::new("r"),
            age: Duration::from_millis(1500),
        };
        let requests = Side {
            bytes: 90,
            frames: 3,
            gaps: 2,
            ..Side::default()
        };
        let traffic = Traffic {
            requests,
            ..Traffic::default()
        };
        serde_json::to_string(&ObservedView::new(flow, &traffic, None)).unwrap()
    }

    const COUNTED: &str = concat!(
        r#""rule":"r","age_ms":1500,"bytes_to_database":90,"bytes_to_client":0,"requests":3,"#,
        r#""responses":0,"errors":0,"in_flight":3,"gaps":2,"p50_us":null,"p99_us":null}"#,
    );

    #[test]
    fn one_is_shown_with_who_dialled_if_that_was_on_this_host() {
        let process = Process {
            pid: 12,
            uid: 1000,
            gid: 1000,
            name: "app".to_owned(),
            cgroup_id: 5,
            holder: None,
        };
        let here = concat!(
            r#"{"id":"socket-7","client":"10.0.0.1:40000","pid":12,"process":"app","uid":1000,"#,
            r#""orig_dst":"10.0.0.2:9042","action":"observe","path":"untouched","#,
            r#""why":"decided at connect(): rule r says observe","#,
        );
        assert_eq!(shown(process), format!("{here}{COUNTED}"));
        let elsewhere = concat!(
            r#"{"id":"socket-7","client":"10.0.0.1:40000","pid":null,"process":null,"uid":null,"#,
            r#""orig_dst":"10.0.0.2:9042","action":"observe","path":"untouched","#,
            r#""why":"decided at its SYN: rule r says observe","#,
        );
        assert_eq!(shown(Process::elsewhere()), format!("{elsewhere}{COUNTED}"));
    }
}
