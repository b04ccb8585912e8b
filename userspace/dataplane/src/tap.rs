//! The tap: copies of the packets of flows whose rule only reads them (`tap.h`).
//!
//! The rings, of which each processor has its own, are made when a rule taps for the first time, and stay. Their reader looks every few milliseconds
//! while something comes. When nothing came twice it says in `tap_sleeps` that it sleeps, and waits: the kernel
//! looks there after it has reserved a record, and the reader sees in the rings that one is reserved, so neither
//! misses the other.

use std::{
    collections::BTreeMap,
    io::{self, ErrorKind, PipeReader, Read},
    os::fd::AsFd as _,
    thread,
    time::Duration,
};

use aya::{
    Ebpf,
    maps::{Array, HashMap, MapData, MapError, RingBuf, of_maps::ArrayOfMaps},
};
use ebpf::abi;
use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    unistd::{SysconfVar, sysconf},
};

use crate::{
    address::{self, ClientAddr, OrigDst, SockCookie},
    causes::{causes, other},
    holds::{self, Process},
    left_out::{LeftOut, Shares},
    maps::{self, MapsError},
    rule_names::FlowRules,
    sys::{self, PodOf, Rings},
    tap_outcomes::{Outcomes, Settled},
};
use policy::RuleName;
use tap::{Direction, KernelFraming, Packet};

/// The least for the rings: one has to hold one record of the largest class.
pub const MIN_TAP_RING_BYTES: u32 = 1 << 16;

/// The most for the rings.
pub const MAX_TAP_RING_BYTES: u32 = 1 << 30;

/// The large rings' bytes without a setting, together: 100 ms at 100,000 requests a second, of which each is two records of 200 bytes, and
/// as much again for the size classes.
pub const DEFAULT_TAP_RING_BYTES: u32 = 8 << 20;

/// Bytes of a frame's body that are copied, at most.
pub const TAP_BODY_BYTES: u32 = abi::TAP_BODY_BYTES;

/// Bytes that are copied of a compressed one.
pub const TAP_COMPRESSED_BODY_BYTES: u32 = abi::TAP_COMPRESSED_BODY_BYTES;

/// Bytes that are copied of a RESULT or an EXECUTE for steps that want headers.
pub const TAP_ID_BYTES: u32 = abi::TAP_ID_BYTES;

/// Bytes for steps that want the beginning of every body.
pub const TAP_FRAME_BYTES: u32 = abi::TAP_FRAME_BYTES;

/// Bytes of a RESULT for steps that want its details.
pub const TAP_ROWS_BYTES: u32 = abi::TAP_ROWS_BYTES;

/// The reader looks after this time while something comes. Each look takes a processor from somebody.
const LOOK: Duration = Duration::from_millis(4);

/// The reader looks after this time if it has slept until lately, or if it has found as much as one in [`FULL`] of the rings,
/// or half of what those have that are used first.
const LOOK_SOON: Duration = Duration::from_millis(1);
const FULL: u32 = 32;

/// Bytes of the ring that a processor uses first, where its ring is [`LARGE`] times as large and more: it stays in the
/// processor's caches. Each record of a large ring is written to memory that was last read long ago, which costs
/// applications that keep all processors busy some hundredths of their throughput.
const FIRST_RING_BYTES: u32 = 256 << 10;
const LARGE: u32 = 4;

/// Bytes of the ring that are told before the consumer pauses, and the reader looks whether it is to stop: some 5,000 short
/// records, which take milliseconds.
const MOST_AT_ONCE: u64 = 1 << 20;

/// So many looks after it has slept are soon: an answer a moment later is told at once. More of them would cost who asks in
/// bursts, of which each wakes the reader anew.
const LOOKS_SOON: u32 = 4;

/// So often it looks in vain before it sleeps.
const IDLE_LOOKS: u32 = 2;

/// The pause after a wait that has failed: as between two looks, so that the ring does not fill meanwhile.
const FAILED_WAIT_PAUSE: Duration = LOOK;

/// A flow that is tapped.
#[derive(Clone, Debug)]
pub struct TapFlow {
    /// The socket of this host's that it has.
    pub cookie: SockCookie,
    /// The client's side; None where it is not known.
    pub client: Option<ClientAddr>,
    /// The address that was dialled.
    pub orig_dst: OrigDst,
    /// The process that dialled.
    pub process: Process,
    /// The rule that decided.
    pub rule: RuleName,
    /// Copies of its handshake are to say which rule it meets.
    pub asks: bool,
}

/// An event of the tap, of the flow with this cookie.
#[derive(Debug)]
pub enum TapEvent<'a> {
    /// The flow begins.
    Begins(Box<TapFlow>),
    /// A direction begins with the byte of this sequence number.
    Starts(Direction, u32),
    /// A packet has passed, or a part of one.
    Passes(Direction, Packet<'a>),
    /// The flow's socket is closed.
    Ends {
        /// When, as [`Packet::at_ns`].
        at_ns: u64,
    },
}

/// The tap's maps, and its reader until somebody takes it.
pub(crate) struct Tap {
    rings: ArrayOfMaps<MapData, RingBuf<MapData>>,
    sleeps: Option<Array<MapData, u32>>,
    meters: Option<HashMap<MapData, u64, PodOf<abi::Meter>>>,
    left_out: Option<LeftOut>,
    outcomes: Option<Outcomes>,
    shares: Shares,
    reader: Option<TapReader>,
    failure: Option<String>,
}

impl Tap {
    /// Takes the maps. To be called before anybody takes `meters`.
    pub(crate) fn take(ebpf: &mut Ebpf) -> Result<Self, MapsError> {
        let name = "meters";
        let layout = |e| MapsError::Layout(name, e);
        let meters = maps::map(maps::descriptor(ebpf, name)?).map_err(layout)?;
        let left_out = LeftOut::take(ebpf)?;
        Ok(Self {
            shares: left_out.shares(),
            left_out: Some(left_out),
            outcomes: Some(Outcomes::take(ebpf)?),
            rings: maps::take(ebpf, "tap_rings")?,
            sleeps: Some(maps::take(ebpf, "tap_sleeps")?),
            meters: Some(HashMap::try_from(meters).map_err(layout)?),
            reader: None,
            failure: None,
        })
    }

    /// Makes the ring, unless there is one. Called before a policy that taps is in force. Without a ring
    /// what should be tapped is lost, and counted so.
    pub(crate) fn open(&mut self, bytes: u32, rules: &FlowRules) {
        if self.sleeps.is_none() {
            return;
        }
        let (rings, first) = match self.rings(bytes) {
            Ok(rings) => rings,
            Err(error) => {
                self.failure = Some(format!("no rings of {bytes} bytes: {}", causes(&error)));
                return;
            }
        };
        let maps = (self.sleeps.take(), self.meters.take());
        let told = (self.left_out.take(), self.outcomes.take());
        if let ((Some(sleeps), Some(meters)), (Some(left_out), Some(outcomes))) = (maps, told) {
            self.reader = Some(TapReader {
                rings,
                much: u64::from((bytes / FULL).min(first / 2)).min(MOST_AT_ONCE),
                sleeps,
                meters,
                left_out,
                outcomes,
                rules: rules.clone(),
            });
        }
    }

    /// The shares of flows that are left out.
    pub(crate) fn shares(&self) -> Shares {
        self.shares.clone()
    }

    /// Makes rings of so many bytes in all, one for each processor as far as there are slots and each has room for the largest
    /// record. Where such a ring is large, a small one is used before it. Returns with them how many bytes those have,
    /// together, that are used first.
    fn rings(&mut self, bytes: u32) -> Result<(Rings, u32), MapError> {
        let processors = sysconf(SysconfVar::_NPROCESSORS_ONLN).ok().flatten();
        let processors = processors.and_then(|count| u32::try_from(count).ok());
        let most = abi::TAP_SLOTS.min(bytes / MIN_TAP_RING_BYTES).max(1);
        let count = processors.unwrap_or(1).next_power_of_two();
        let count = count.min(1 << most.ilog2());
        let (large, small) = (bytes / count, FIRST_RING_BYTES);
        let sizes = match large >= LARGE * small {
            true => vec![small, large],
            false => vec![large],
        };
        let (mut rings, mut entered) = (Vec::new(), Vec::new());
        for (size, first) in sizes.iter().zip([0, abi::TAP_SLOTS]) {
            for _ in 0..count {
                let fd = sys::make_ring(*size)?;
                rings.push((fd.try_clone()?, *size));
                // For as long as it takes to enter it.
                entered.push((first, RingBuf::try_from(maps::map(fd)?)?));
            }
        }
        // Before the kernel has any: what could not be mapped would be filled, and nobody would read it.
        let rings = Rings::new(rings)?;
        for of_slots in entered.chunks(count as usize) {
            for (slot, (first, ring)) in (0..abi::TAP_SLOTS).zip(of_slots.iter().cycle()) {
                self.rings.set(first + slot, ring, 0)?;
            }
        }
        let first = sizes.first().map_or(0, |size| size * count);
        Ok((rings, first))
    }

    /// The reader, once there are rings; once.
    pub(crate) fn reader(&mut self) -> Option<TapReader> {
        self.reader.take()
    }

    /// Takes the reader back.
    pub(crate) fn give_back(&mut self, reader: TapReader) {
        self.reader = Some(reader);
    }

    /// Why there are no rings, if that is new.
    pub(crate) fn failure(&mut self) -> Option<String> {
        self.failure.take()
    }
}

/// The reader of the tap's rings. It is for a thread of its own.
pub struct TapReader {
    rings: Rings,
    /// A look that finds so many bytes is soon followed by another.
    much: u64,
    sleeps: Array<MapData, u32>,
    meters: HashMap<MapData, u64, PodOf<abi::Meter>>,
    left_out: LeftOut,
    outcomes: Outcomes,
    rules: FlowRules,
}

/// The table of observed flows, to ask for those whose beginning was missed.
pub struct TapFlows<'a> {
    meters: &'a HashMap<MapData, u64, PodOf<abi::Meter>>,
    left_out: &'a mut LeftOut,
    outcomes: &'a mut Outcomes,
    rules: &'a FlowRules,
}

impl TapFlows<'_> {
    /// The flow, if it is tapped and has not ended.
    pub fn get(&self, cookie: SockCookie) -> Option<TapFlow> {
        // Asked in this order: the kernel takes an outcome out of its table when it has obeyed.
        if self.outcomes.has(cookie) {
            return None;
        }
        let PodOf(meter) = self.meters.get(&cookie.0, 0).ok()?;
        let goes_on = meter.ended == 0 && meter.connect.taps != 0;
        goes_on.then(|| flow(&meter.connect, meter.opened_ns, &meter.client, self.rules))
    }

    /// Has the kernel treat a flow so from its next packet on, as one of this rule's.
    ///
    /// # Errors
    /// The kernel's.
    pub fn settle(&mut self, cookie: SockCookie, rule: &RuleName, to: Settled) -> io::Result<()> {
        let meter = self.meters.get(&cookie.0, 0);
        let PodOf(meter) = match meter {
            Ok(meter) => meter,
            // It has ended.
            Err(MapError::KeyNotFound) => return Ok(()),
            Err(error) => return Err(other(error)),
        };
        let names = self.rules.names();
        let told = self.outcomes.tell(&meter.connect, rule, to, names);
        told.map_err(other)
    }

    /// Whether the kernel has the flow in its table, and the flow has not ended.
    pub fn is_live(&self, cookie: SockCookie) -> bool {
        is_live(self.meters, cookie)
    }

    /// Forgets what the kernel was told of a flow that has ended.
    pub fn forget(&mut self, cookie: SockCookie) {
        self.outcomes.forget(cookie);
    }

    /// Flows of which the kernel was told something that is not forgotten.
    pub fn told(&self) -> impl Iterator<Item = SockCookie> {
        self.outcomes.told()
    }

    /// Forgets what the kernel was told of a flow if it has obeyed, or will not. To be called now and then for each that
    /// it was [told](Self::told) of.
    pub fn sweep(&mut self, cookie: SockCookie) {
        let meters = self.meters;
        self.outcomes.sweep(cookie, || is_live(meters, cookie));
    }

    /// Has these shares, from 0 to 1, of their rules' flows not copied, and all others. To be called every second
    /// while there are any.
    ///
    /// # Errors
    /// The kernel's.
    pub fn leave_out(&mut self, shares: &BTreeMap<RuleName, f64>) -> io::Result<()> {
        let set = self.left_out.set(shares, self.rules.names());
        set.map_err(other)
    }

    /// Whether the flow of this rule is one of those that are left out. The kernel copies one all the same that is older than the
    /// two policies that it has.
    pub fn is_left_out(&self, rule: &RuleName, cookie: SockCookie) -> bool {
        self.left_out.shares().has(rule, cookie)
    }
}

fn is_live(meters: &HashMap<MapData, u64, PodOf<abi::Meter>>, cookie: SockCookie) -> bool {
    let meter = meters.get(&cookie.0, 0);
    meter.is_ok_and(|PodOf(meter)| meter.ended == 0)
}

/// The consumer of the tap's events.
pub trait TapConsumer {
    /// An event of the flow with this cookie.
    fn event(&mut self, cookie: SockCookie, event: TapEvent<'_>, flows: &mut TapFlows<'_>);
    /// All events that were there have been told, or so many that it is time to look after other things. Returns after which time this is to be called again though nothing
    /// comes; None: it need not be.
    fn pause(&mut self, flows: &mut TapFlows<'_>) -> Option<Duration>;
    /// The ring cannot be waited for, for want of memory or descriptors. The reader looks every few milliseconds until it
    /// can; it is called once until then.
    fn cannot_wait(&mut self, error: &io::Error);
}

impl TapReader {
    /// Reads until the writing end of `stop`, which does not block, is closed, and then what is in the ring.
    pub fn run(mut self, stop: &PipeReader, consumer: &mut impl TapConsumer) {
        let (mut idle, mut looks) = (0, 0);
        let mut can_wait = true;
        loop {
            let (found, again) = self.drain(consumer);
            idle = if found > 0 { 0 } else { idle + 1 };
            let is_behind = found > 0 && self.rings.waiting() >= self.much;
            let look = match looks < LOOKS_SOON || found >= self.much {
                _ if is_behind => Duration::ZERO,
                true => LOOK_SOON,
                false => LOOK,
            };
            let waited = match idle > IDLE_LOOKS {
                false => {
                    looks = looks.saturating_add(1);
                    self.wait(stop, Some(look), false)
                }
                true => {
                    (idle, looks) = (0, 0);
                    self.sleep(stop, again)
                }
            };
            let could_wait = std::mem::replace(&mut can_wait, waited.is_ok());
            let stopped = waited.unwrap_or_else(|error| {
                if could_wait {
                    consumer.cannot_wait(&error);
                }
                thread::sleep(FAILED_WAIT_PAUSE);
                is_closed(stop)
            });
            if stopped {
                let mut left = self.rings.waiting();
                while left > 0 {
                    match self.drain(consumer) {
                        (0, _) => return,
                        (found, _) => left = left.saturating_sub(found),
                    }
                }
                return;
            }
        }
    }

    /// Tells what is in the ring by now, or [`MOST_AT_ONCE`] of it, whatever comes meanwhile. Returns how many of its bytes that
    /// were, and after which time to look again in any case.
    fn drain(&mut self, consumer: &mut impl TapConsumer) -> (u64, Option<Duration>) {
        let mut flows = TapFlows {
            meters: &self.meters,
            left_out: &mut self.left_out,
            outcomes: &mut self.outcomes,
            rules: &self.rules,
        };
        let rules = &self.rules;
        let tell = |bytes: &[u8]| match event(bytes, rules) {
            Some((cookie, event)) => consumer.event(cookie, event, &mut flows),
            None => tracing::error!("a record of the tap could not be read"),
        };
        let found = self.rings.drain(MOST_AT_ONCE, tell);
        (found, consumer.pause(&mut flows))
    }

    /// Sleeps until the kernel has something, and no longer than this. Whether to stop.
    fn sleep(&mut self, stop: &PipeReader, most: Option<Duration>) -> io::Result<bool> {
        self.say(1)?;
        let stopped = self.wait(stop, most, true);
        self.say(0)?;
        stopped
    }

    fn say(&mut self, sleeps: u32) -> io::Result<()> {
        for slot in 0..abi::TAP_SLOTS {
            let said = self.sleeps.set(slot, sleeps, 0);
            said.map_err(other)?;
        }
        Ok(())
    }

    /// Whether to stop.
    fn wait(&self, stop: &PipeReader, most: Option<Duration>, for_rings: bool) -> io::Result<bool> {
        let timeout = match most {
            Some(most) => PollTimeout::try_from(most).unwrap_or(PollTimeout::MAX),
            None => PollTimeout::NONE,
        };
        let comes = self
            .rings
            .fds()
            .take(if for_rings { usize::MAX } else { 0 });
        let waited = std::iter::once(stop.as_fd()).chain(comes);
        let mut waited: Vec<_> = waited
            .map(|fd| PollFd::new(fd, PollFlags::POLLIN))
            .collect();
        match poll(&mut waited, timeout) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
        let stops = waited.first().and_then(PollFd::any);
        Ok(stops.unwrap_or(false))
    }
}

/// Whether the writing end of a pipe is closed into which nothing is written. Unlike poll(2) this needs no memory, and no limit.
fn is_closed(mut pipe: &PipeReader) -> bool {
    let read = pipe.read(&mut [0]);
    !read.is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
}

fn event<'a>(bytes: &'a [u8], rules: &FlowRules) -> Option<(SockCookie, TapEvent<'a>)> {
    let record = sys::bytes::read::<abi::TapRecord>(bytes)?;
    let direction = match record.is_request {
        0 => Direction::Responses,
        _ => Direction::Requests,
    };
    let event = match u32::from(record.kind) {
        abi::TAP_BEGIN => {
            let begin = sys::bytes::read::<abi::TapBegin>(bytes)?;
            let opened_ns = record.at_ns;
            let flow = flow(&begin.connect, opened_ns, &begin.client, rules);
            TapEvent::Begins(Box::new(flow))
        }
        abi::TAP_START => TapEvent::Starts(direction, record.seq),
        abi::TAP_BYTES => {
            let behind = bytes.get(size_of::<abi::TapRecord>()..)?;
            let packet = Packet {
                at_ns: record.at_ns,
                seq: record.seq,
                before: record.before,
                bytes: behind.get(..record.copied as usize)?,
                after: record.after,
                passed: record.passed,
                frame_at: (record.has_frame != 0).then_some(record.frame_at),
                framing: match u32::from(record.framing) {
                    abi::FRAMING_FRAMES => KernelFraming::Frames,
                    abi::FRAMING_SEGMENTS => KernelFraming::Segments,
                    abi::FRAMING_SEGMENTS_LZ4 => KernelFraming::SegmentsLz4,
                    _ => KernelFraming::Unsure,
                },
                missed: record.missed != 0,
            };
            TapEvent::Passes(direction, packet)
        }
        abi::TAP_END => TapEvent::Ends {
            at_ns: record.at_ns,
        },
        _ => return None,
    };
    Some((SockCookie(record.cookie), event))
}

fn flow(
    connect: &abi::Connect,
    opened_ns: u64,
    client: &abi::Endpoint,
    rules: &FlowRules,
) -> TapFlow {
    TapFlow {
        cookie: SockCookie(connect.cookie),
        client: (client.family != 0).then(|| ClientAddr::new(address::from_abi(client))),
        orig_dst: OrigDst::new(address::from_abi(&connect.opener.orig_dst)),
        process: holds::process(connect),
        rule: rules.name(connect, opened_ns),
        asks: u32::from(connect.taps) & abi::TAP_ASKS != 0,
    }
}

#[cfg(test)]
mod tests {
    use nix::fcntl::{FcntlArg, OFlag, fcntl};

    use super::*;

    #[test]
    fn a_pipe_is_closed_when_its_writer_is_gone() {
        let (reader, writer) = io::pipe().unwrap();
        fcntl(&reader, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).unwrap();
        assert!(!is_closed(&reader));
        drop(writer);
        assert!(is_closed(&reader));
    }
}
