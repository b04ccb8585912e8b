//! Counts of the meter: of flows that are observed, and by rule of all that were.
//!
//! The kernel counts by flow only, so that no two flows share a counter. Flows that have ended
//! are added to their rule here, and taken out of the kernel's table: [`Meters::read`] must be
//! called now and then. It shows one flow at a time: what is counted of each is kilobytes, and
//! there may be as many as [`abi::MAX_METERS`].

use std::{collections::BTreeMap, time::Duration};

use aya::maps::{HashMap, MapData, MapError};
use ebpf::abi;
use nix::time::{ClockId, clock_gettime};

use crate::{
    address::{self, ClientAddr, OrigDst, SockCookie},
    holds,
    ledger::{self, Groups, Ledger},
    left_out::Shares,
    rule_names::{self, FlowRules, Known},
    sys::PodOf,
    untouched::Untouched,
};
use policy::RuleName;

/// The native protocol's opcodes by number, as metrics name them.
pub const OPCODES: [&str; abi::OPCODES as usize] = [
    "error",
    "startup",
    "ready",
    "authenticate",
    "credentials",
    "options",
    "supported",
    "query",
    "result",
    "prepare",
    "execute",
    "register",
    "event",
    "batch",
    "auth_challenge",
    "auth_response",
    "auth_success",
];

/// Buckets of latencies.
pub const BUCKETS: usize = abi::LATENCY_BUCKETS as usize;

/// Counts of one direction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Side {
    /// TCP payload, each byte once.
    pub bytes: u64,
    /// Frames whose header was read.
    pub frames: u64,
    /// v5 segments.
    pub segments: u64,
    /// Segments whose frames are compressed, and so not read.
    pub compressed: u64,
    /// Times that headers were missed: bytes that came late and could not be put in their place, or
    /// no CQL.
    pub gaps: u64,
    /// Frames of tapped flows that passed and were not copied, because there was no room for them.
    pub lost_frames: u64,
    /// Bytes that were not copied, likewise.
    pub lost_bytes: u64,
    /// Frames by opcode: see [`OPCODES`].
    pub by_opcode: [u64; OPCODES.len()],
}

/// From a request's header leaving this host's TCP to its response's coming in; of a client on another
/// host, from its coming in to the response's leaving.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Latencies {
    counts: [u64; BUCKETS],
    sum_ns: u64,
}

/// Traffic of one flow, or of all flows of a rule.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// From the client.
    pub requests: Side,
    /// To the client.
    pub responses: Side,
    /// Responses whose request's time is not known: a stream id that is not measured, or a gap.
    pub unmatched: u64,
    /// Latencies of the responses that were matched to their requests.
    pub latencies: Latencies,
}

/// The kernel's table, and what was taken out of it.
pub(crate) struct Meters {
    map: HashMap<MapData, u64, PodOf<abi::Meter>>,
    left_out: Shares,
    /// Rules of the flows in the table.
    rules: FlowRules,
    ended: BTreeMap<RuleName, Traffic>,
    ledger: Ledger,
}

/// A flow in the table.
struct Live<'a> {
    flow: Untouched,
    group: u8,
    traffic: &'a Traffic,
}

impl Meters {
    pub(crate) fn new(
        map: HashMap<MapData, u64, PodOf<abi::Meter>>,
        rules: FlowRules,
        left_out: Shares,
    ) -> Self {
        Self {
            map,
            left_out,
            rules,
            ended: BTreeMap::new(),
            ledger: Ledger::default(),
        }
    }

    /// Whether a flow was in the table when it was last read.
    pub(crate) fn is_empty(&self) -> bool {
        self.rules.known().is_empty()
    }

    /// The rules of the flows in the table.
    pub(crate) fn rules(&self) -> &FlowRules {
        &self.rules
    }

    /// Reads all flows: shows `each` the live ones, and adds those that have ended to their rules.
    /// Returns what went over both, by rule.
    pub(crate) fn read(
        &mut self,
        mut each: impl FnMut(Untouched, &Traffic),
    ) -> Result<BTreeMap<RuleName, Traffic>, MapError> {
        let mut by_rule = self.read_all(|live| {
            // Those that the agent carries are listed and counted there.
            if !ledger::is_inline(live.group) {
                each(live.flow, live.traffic);
            }
        })?;
        for (rule, traffic) in &self.ended {
            by_rule.entry(rule.clone()).or_default().add(traffic);
        }
        Ok(by_rule)
    }

    /// Reads the connections that can be compared, by rule: those that go on, and those of which the ledger knows the end.
    pub(crate) fn compared(&mut self) -> Result<BTreeMap<RuleName, Groups>, MapError> {
        let mut live = BTreeMap::new();
        self.read_all(|one| ledger::add_live(&mut live, &one.flow.rule, one.group, one.traffic))?;
        let mut all = self.ledger.groups();
        for (rule, groups) in live {
            let of_rule = all.entry(rule).or_default();
            of_rule.held_out.extend(groups.held_out);
            of_rule.treated.extend(groups.treated);
        }
        Ok(all)
    }

    /// Reads all flows, those of the ledger alone included. Returns what went over the live ones that are observed, by rule.
    fn read_all(
        &mut self,
        mut each: impl FnMut(Live),
    ) -> Result<BTreeMap<RuleName, Traffic>, MapError> {
        let now = clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(Duration::ZERO, Duration::from);
        // Collected first: an entry that is removed sends the iteration back to its beginning.
        let most = abi::MAX_METERS as usize;
        let cookies: Vec<u64> = self.map.keys().take(most).collect::<Result<_, _>>()?;
        let known = self.rules.known();
        let mut rules = Known::with_capacity(cookies.len());
        let mut by_rule = BTreeMap::<_, Traffic>::new();
        for cookie in cookies {
            let PodOf(meter) = match self.map.get(&cookie, 0) {
                Ok(meter) => meter,
                Err(MapError::KeyNotFound) => continue,
                Err(error) => return Err(error),
            };
            let (connect, opened_ns) = (&meter.connect, meter.opened_ns);
            let rule = self.rules.name_by(&known, connect, opened_ns);
            let traffic = Traffic::from(&meter);
            let group = meter.connect.group;
            if meter.ended != 0 {
                self.ledger.keep(&rule, group, &traffic);
                if !ledger::is_inline(group) {
                    self.ended.entry(rule).or_default().add(&traffic);
                }
                match self.map.remove(&cookie) {
                    Ok(()) | Err(MapError::KeyNotFound) => {}
                    Err(error) => return Err(error),
                }
                continue;
            }
            rules.note(connect, opened_ns, rule.clone());
            if !ledger::is_inline(group) {
                by_rule.entry(rule.clone()).or_default().add(&traffic);
            }
            let is_left_out = self.left_out.has(&rule, SockCookie(cookie));
            let flow = Untouched {
                is_left_out,
                ..untouched(&meter, rule, now)
            };
            let traffic = &traffic;
            each(Live {
                flow,
                group,
                traffic,
            });
        }
        self.rules.keep(rules);
        Ok(by_rule)
    }

    /// Rules that no policy has any more count as one, so that generated names cannot pile up.
    pub(crate) fn forget_rules(&mut self, gone: &RuleName) {
        let names = rule_names::lock(self.rules.names()).to_vec();
        let is_known = |rule: &RuleName| names.iter().any(|of| of.by_slot.contains(rule));
        let ended = std::mem::take(&mut self.ended);
        for (rule, traffic) in ended {
            let rule = if is_known(&rule) { rule } else { gone.clone() };
            self.ended.entry(rule).or_default().add(&traffic);
        }
        self.ledger.retain(is_known);
    }
}

fn untouched(meter: &abi::Meter, rule: RuleName, now: Duration) -> Untouched {
    let client =
        (meter.client.family != 0).then(|| ClientAddr::new(address::from_abi(&meter.client)));
    Untouched {
        cookie: SockCookie(meter.connect.cookie),
        client,
        orig_dst: OrigDst::new(address::from_abi(&meter.connect.opener.orig_dst)),
        process: holds::process(&meter.connect),
        is_tapped: meter.connect.taps != 0,
        is_undecided: u32::from(meter.connect.taps) & abi::TAP_ASKS != 0,
        was_running: meter.joined != 0,
        is_left_out: false,
        is_held_out: ledger::is_held_out(meter.connect.group),
        rule,
        age: now.saturating_sub(Duration::from_nanos(meter.opened_ns)),
    }
}

impl From<&abi::Meter> for Traffic {
    fn from(meter: &abi::Meter) -> Self {
        let mut counts = [0; BUCKETS];
        for (count, latency) in counts.iter_mut().zip(meter.latencies) {
            *count = u64::from(latency);
        }
        Self {
            requests: Side::of_flow(&meter.requests, meter.ended != 0),
            responses: Side::of_flow(&meter.responses, meter.ended != 0),
            unmatched: meter.unmatched,
            latencies: Latencies {
                counts,
                sum_ns: meter.latency_sum_ns,
            },
        }
    }
}

impl Side {
    /// Nothing fills a hole any more once the flow has ended.
    fn of_flow(direction: &abi::Direction, has_ended: bool) -> Self {
        let has_hole = u32::from(direction.late.sync) == abi::SYNC_OK;
        Self {
            bytes: direction.bytes,
            frames: direction.frames,
            segments: direction.segments,
            compressed: direction.compressed,
            gaps: direction.gaps + u64::from(has_ended && has_hole),
            lost_frames: direction.lost_frames,
            lost_bytes: direction.lost_bytes,
            by_opcode: direction.by_opcode,
        }
    }

    fn of(&self, opcode: &str) -> u64 {
        let named = OPCODES.iter().zip(self.by_opcode);
        named
            .filter(|(name, _)| **name == opcode)
            .map(|(_, n)| n)
            .sum()
    }

    fn add(&mut self, other: &Self) {
        self.bytes += other.bytes;
        self.frames += other.frames;
        self.segments += other.segments;
        self.compressed += other.compressed;
        self.gaps += other.gaps;
        self.lost_frames += other.lost_frames;
        self.lost_bytes += other.lost_bytes;
        for (mine, theirs) in self.by_opcode.iter_mut().zip(other.by_opcode) {
            *mine += theirs;
        }
    }
}

impl Traffic {
    fn add(&mut self, other: &Self) {
        self.requests.add(&other.requests);
        self.responses.add(&other.responses);
        self.unmatched += other.unmatched;
        for (mine, theirs) in self.latencies.counts.iter_mut().zip(other.latencies.counts) {
            *mine += theirs;
        }
        self.latencies.sum_ns += other.latencies.sum_ns;
    }

    /// ERROR responses.
    pub fn errors(&self) -> u64 {
        self.responses.of("error")
    }

    /// Requests without a response yet; wrong after a gap. Events answer nobody. A connection that is read from its middle on can have
    /// answers to requests that nobody has counted.
    pub fn in_flight(&self) -> u64 {
        let answers = self
            .responses
            .frames
            .saturating_sub(self.responses.of("event"));
        self.requests.frames.saturating_sub(answers)
    }
}

impl Default for Latencies {
    fn default() -> Self {
        Self {
            counts: [0; BUCKETS],
            sum_ns: 0,
        }
    }
}

impl Latencies {
    /// So many more of this one.
    pub fn add(&mut self, latency: Duration, count: u64) {
        let ns = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX);
        let bucket = (1..BUCKETS).take_while(|n| begin_ns(*n) <= ns).count();
        if let Some(n) = self.counts.get_mut(bucket) {
            *n += count;
        }
        self.sum_ns = self.sum_ns.saturating_add(ns.saturating_mul(count));
    }

    /// The latencies that were added since `before`.
    pub fn since(&self, before: &Self) -> Self {
        let mut since = self.clone();
        for (now, then) in since.counts.iter_mut().zip(before.counts) {
            *now = now.saturating_sub(then);
        }
        since.sum_ns = self.sum_ns.saturating_sub(before.sum_ns);
        since
    }

    /// How many.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Returns the sum of all latencies.
    pub fn sum(&self) -> Duration {
        Duration::from_nanos(self.sum_ns)
    }

    /// At this quantile (0.5 is the median), to 1/64 of itself; None without any.
    pub fn quantile(&self, quantile: f64) -> Option<Duration> {
        let count = self.count();
        let rank = ((quantile * count as f64).ceil() as u64).clamp(1, count.max(1));
        let mut below = 0;
        for (bucket, n) in self.counts.iter().enumerate() {
            below += n;
            if below >= rank && *n > 0 {
                let middle = (begin_ns(bucket) + begin_ns(bucket + 1)) / 2;
                return Some(Duration::from_nanos(middle));
            }
        }
        None
    }

    /// The buckets that are not empty, by their number, and how many latencies are in each.
    pub fn buckets(&self) -> impl Iterator<Item = (u16, u32)> {
        let counts = self.counts.iter().enumerate();
        counts
            .filter(|(_, n)| **n > 0)
            .map(|(bucket, n)| (bucket as u16, u32::try_from(*n).unwrap_or(u32::MAX)))
    }

    /// For each doubling from the unit on: its end, and how many lie below it.
    pub fn cumulative(&self) -> Vec<(Duration, u64)> {
        let steps = abi::LATENCY_STEPS as usize;
        let mut below = 0;
        let doublings = self.counts.chunks(steps).enumerate();
        doublings
            .map(|(n, counts)| {
                below += counts.iter().sum::<u64>();
                (Duration::from_nanos(begin_ns((n + 1) * steps)), below)
            })
            .collect()
    }
}

/// The latency at which a bucket begins. What is one behind the last one is where that ends.
pub fn bucket_begins(bucket: usize) -> Duration {
    Duration::from_nanos(begin_ns(bucket))
}

/// The latency at which a bucket begins: the inverse of the BPF program's `bucket_of`.
fn begin_ns(bucket: usize) -> u64 {
    let steps = abi::LATENCY_STEPS as usize;
    let units = if bucket < steps {
        bucket as u64
    } else {
        let doublings = (bucket / steps - 1) as u32;
        ((steps + bucket % steps) as u64) << doublings
    };
    units * u64::from(abi::LATENCY_UNIT_NS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_observed_flows_at_once_are_a_few_megabytes() {
        assert!(size_of::<Untouched>() * abi::MAX_METERS as usize <= 16 << 20);
    }

    #[test]
    fn an_answer_to_a_request_that_was_not_counted_leaves_nothing_in_flight() {
        let mut traffic = Traffic::default();
        traffic.responses.frames = 1;
        assert_eq!(traffic.in_flight(), 0);
        traffic.requests.frames = 3;
        assert_eq!(traffic.in_flight(), 2);
    }

    #[test]
    fn buckets_follow_each_other() {
        assert_eq!(begin_ns(0), 0);
        assert_eq!(begin_ns(32), 32 * 256);
        assert_eq!(begin_ns(64), 64 * 256);
        assert_eq!(begin_ns(65), 66 * 256);
        for bucket in 0..BUCKETS {
            assert!(begin_ns(bucket) < begin_ns(bucket + 1), "{bucket}");
        }
        // What abi.h says of the last one.
        assert_eq!(begin_ns(BUCKETS - 1) / 1_000_000_000, 135);
    }

    #[test]
    fn quantiles_are_in_the_middle_of_their_bucket() {
        let mut latencies = Latencies::default();
        assert_eq!(latencies.quantile(0.5), None);
        // 99 of 64 to 66 units, one of 1,024 to 1,056.
        latencies.counts[64] = 99;
        latencies.counts[32 * 6] = 1;
        let us = |q| latencies.quantile(q).unwrap().as_nanos();
        assert_eq!(us(0.5), 65 * 256);
        assert_eq!(us(0.99), 65 * 256);
        assert_eq!(us(0.999), 1_040 * 256);
        let (end, below) = latencies.cumulative()[2];
        assert_eq!((end.as_nanos(), below), (128 * 256, 99));
        assert_eq!(latencies.cumulative().last().unwrap().1, 100);
    }
}
