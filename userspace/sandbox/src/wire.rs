//! A wire between two namespaces that loses, doubles and holds up packets: a thread between two
//! packet sockets, because not every kernel has netem.
//!
//! Frames travel with what the sender's offloads left to do (`virtio_net_hdr`: segmentation, a
//! checksum), so that packets of 64 KiB get through as they would over a veth pair.

use std::{
    collections::VecDeque,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::Context;
use nix::{
    errno::Errno,
    ifaddrs::getifaddrs,
    libc,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sched::{CpuSet, sched_getaffinity, sched_setaffinity},
    setsockopt_impl, sockopt_impl,
    sys::socket::{
        AddressFamily, LinkAddr, MsgFlags, SockFlag, SockProtocol, SockType, bind, recvfrom, send,
        setsockopt, socket, sockopt::RcvBufForce,
    },
    unistd::Pid,
};

use super::{Netns, run_in};

/// Before each frame on a packet socket that asks for it.
const OFFLOADS_BYTES: usize = 10;
/// Offloads, Ethernet, and the largest packet.
const FRAME_BYTES: usize = OFFLOADS_BYTES + 14 + 65_536;
/// Frames that wait for the thread: what does not fit would be lost without having been counted.
const RECEIVE_BYTES: usize = 64 << 20;
/// Packets that overtake a held one, at most; and the longest time that it is held.
const OVERTAKEN_BY: usize = 4;
const HELD: Duration = Duration::from_millis(3);
/// The time by which a packet is late.
const LATE: Duration = Duration::from_millis(30);
/// The longest packets that the wire takes in, whatever the ends' own MTU.
const MTU: &str = "9000";
/// How soon a dropped wire's thread ends.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Rates of faults of one direction's TCP packets, each in 1,000.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Faults {
    /// Packets that never arrive.
    pub lost: u32,
    /// Arrive twice, the second one at once or late.
    pub doubled: u32,
    /// Arrive after others that were sent later, or late.
    pub held: u32,
    /// Arrive tens of milliseconds late, whatever overtakes them.
    pub late: u32,
}

/// Faults that have happened so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Carried {
    /// TCP's packets, whatever became of them.
    pub packets: u64,
    /// The largest one in bytes, with Ethernet's header.
    pub largest: usize,
    /// Packets that never arrived.
    pub lost: u64,
    /// Packets that arrived twice.
    pub doubled: u64,
    /// Packets that arrived after others that were sent later, or late.
    pub held: u64,
    /// Packets that arrived tens of milliseconds late.
    pub late: u64,
}

/// A wire; gone when it is dropped, and the devices with it.
#[derive(Debug)]
pub struct Wire {
    ends: [Arc<Mutex<End>>; 2],
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// One direction of a wire.
#[derive(Debug, Default)]
struct End {
    faults: Faults,
    carried: Carried,
    random: u64,
    held: VecDeque<Held>,
}

#[derive(Debug)]
struct Held {
    until: Instant,
    overtaken_by: usize,
    frame: Vec<u8>,
}

sockopt_impl!(
    /// Frames have their offloads before them.
    Offloads,
    SetOnly,
    libc::SOL_PACKET,
    libc::PACKET_VNET_HDR,
    bool
);

impl Wire {
    /// Joins two namespaces by a device `veth` in each, as [`Netns::join`] does. No faults until
    /// they are [set](Self::set).
    ///
    /// # Errors
    /// Not root, or with what `ip` says.
    pub fn new(
        left: (&Netns, &[&str]),
        right: (&Netns, &[&str]),
        seed: u64,
    ) -> anyhow::Result<Self> {
        let middle = Netns::new()?;
        let mut sockets = Vec::new();
        for ((netns, addresses), name) in [(left, "left"), (right, "right")] {
            netns.plug(addresses, &middle, name)?;
            middle.ip(&["link", "set", name, "mtu", MTU])?;
            sockets.push(run_in(Some(&middle), None, || packet_socket(name))??);
        }
        let end = |random| {
            Arc::new(Mutex::new(End {
                random,
                ..End::default()
            }))
        };
        let ends = [end(seed), end(!seed)];
        let stop = Arc::new(AtomicBool::new(false));
        let (theirs, stopped) = (ends.clone(), Arc::clone(&stop));
        let thread = thread::Builder::new().name("wire".into()).spawn(move || {
            // Namespaces and devices live as long as the thread.
            let _middle = middle;
            if let Err(error) = carry(&sockets, &theirs, &stopped) {
                eprintln!("the wire broke: {error:#}");
            }
        })?;
        Ok(Self {
            ends,
            stop,
            thread: Some(thread),
        })
    }

    /// From now on: what goes from left to right, and from right to left.
    pub fn set(&self, faults: [Faults; 2]) {
        for (end, faults) in self.ends.iter().zip(faults) {
            lock(end).faults = faults;
        }
    }

    /// Faults so far: from left to right, and from right to left.
    pub fn carried(&self) -> [Carried; 2] {
        self.ends.each_ref().map(|end| lock(end).carried)
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            // An error is a panic that has been reported already.
            let _ = thread.join();
        }
    }
}

/// Opens a socket for whole frames of one device, also those to other addresses.
fn packet_socket(name: &str) -> anyhow::Result<OwnedFd> {
    let socket = socket(
        AddressFamily::Packet,
        SockType::Raw,
        SockFlag::SOCK_CLOEXEC,
        SockProtocol::EthAll,
    )?;
    setsockopt(&socket, Offloads, &true)?;
    setsockopt(&socket, RcvBufForce, &RECEIVE_BYTES)?;
    let device = getifaddrs()?
        .filter(|device| device.interface_name == name)
        .find_map(|device| device.address?.as_link_addr().copied());
    bind(socket.as_raw_fd(), &device.context("the device is gone")?)?;
    Ok(socket)
}

/// Keeps this thread, and those that it starts, on one processor. What is put on a device waits in
/// a queue of the processor that put it there: from two of them (a sender on one, its
/// acknowledgements on the other), packets overtake each other, and no wire has counted it.
///
/// # Errors
/// The kernel's.
pub fn stay_on_one_processor() -> anyhow::Result<()> {
    let own = Pid::from_raw(0);
    let allowed = sched_getaffinity(own)?;
    let mut one = CpuSet::new();
    if let Some(first) = (0..CpuSet::count()).find(|cpu| allowed.is_set(*cpu) == Ok(true)) {
        one.set(first)?;
        sched_setaffinity(own, &one)?;
    }
    Ok(())
}

fn carry(
    sockets: &[OwnedFd],
    ends: &[Arc<Mutex<End>>; 2],
    stop: &AtomicBool,
) -> anyhow::Result<()> {
    let [left, right] = sockets else {
        return Ok(());
    };
    let ways = [(left, right, &ends[0]), (right, left, &ends[1])];
    let mut buffer = vec![0; FRAME_BYTES];
    while !stop.load(Relaxed) {
        let due = ends.iter().filter_map(|end| lock(end).next_due()).min();
        let wait = due.map_or(LOOK_EVERY, |due| {
            due.saturating_duration_since(Instant::now())
        });
        let timeout = PollTimeout::try_from(wait + Duration::from_millis(1))?;
        let mut fds = [left, right].map(|fd| PollFd::new(fd.as_fd(), PollFlags::POLLIN));
        match poll(&mut fds, timeout) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
        for (from, to, end) in ways {
            while let Some(frame) = receive(from, &mut buffer)? {
                let frames = lock(end).pass(frame);
                frames.iter().try_for_each(|frame| put(to, frame))?;
            }
            let late = lock(end).take_due();
            late.iter().try_for_each(|frame| put(to, frame))?;
        }
    }
    Ok(())
}

/// The next frame that has come in.
fn receive<'a>(from: &OwnedFd, buffer: &'a mut [u8]) -> anyhow::Result<Option<&'a [u8]>> {
    loop {
        let mut fds = [PollFd::new(from.as_fd(), PollFlags::POLLIN)];
        if poll(&mut fds, PollTimeout::ZERO)? == 0 {
            return Ok(None);
        }
        let (bytes, from) = recvfrom::<LinkAddr>(from.as_raw_fd(), buffer)?;
        // What was put there comes back, too.
        if from.is_some_and(|from| from.pkttype() != libc::PACKET_OUTGOING) {
            return Ok(buffer.get(..bytes));
        }
    }
}

fn put(to: &OwnedFd, frame: &[u8]) -> anyhow::Result<()> {
    send(to.as_raw_fd(), frame, MsgFlags::empty()).context("a frame cannot be sent")?;
    Ok(())
}

impl End {
    /// Frames that go on at once: this one, or none, or others that it is the last to overtake.
    fn pass(&mut self, frame: &[u8]) -> Vec<Vec<u8>> {
        let mut now = Vec::new();
        if !is_tcp(frame) {
            now.push(frame.to_vec());
            return now;
        }
        self.carried.packets += 1;
        self.carried.largest = self.carried.largest.max(frame.len() - OFFLOADS_BYTES);
        if self.strikes(self.faults.lost) {
            self.carried.lost += 1;
        } else if self.strikes(self.faults.held) {
            self.carried.held += 1;
            self.hold(frame);
            return now;
        } else if self.strikes(self.faults.late) {
            self.carried.late += 1;
            self.held.push_back(Held {
                until: Instant::now() + LATE,
                overtaken_by: usize::MAX,
                frame: frame.to_vec(),
            });
            return now;
        } else {
            now.push(frame.to_vec());
            if self.strikes(self.faults.doubled) {
                self.carried.doubled += 1;
                if self.below(2) == 0 {
                    now.push(frame.to_vec());
                } else {
                    self.hold(frame);
                    return now;
                }
            }
        }
        for held in &mut self.held {
            held.overtaken_by = held.overtaken_by.saturating_sub(1);
        }
        now.extend(self.take_due());
        now
    }

    fn hold(&mut self, frame: &[u8]) {
        let held = Held {
            until: Instant::now() + HELD,
            overtaken_by: 1 + self.below(OVERTAKEN_BY as u32) as usize,
            frame: frame.to_vec(),
        };
        self.held.push_back(held);
    }

    fn next_due(&self) -> Option<Instant> {
        self.held.iter().map(|held| held.until).min()
    }

    fn take_due(&mut self) -> Vec<Vec<u8>> {
        let now = Instant::now();
        let (due, held) = std::mem::take(&mut self.held)
            .into_iter()
            .partition(|held: &Held| held.overtaken_by == 0 || held.until <= now);
        self.held = held;
        let due: VecDeque<Held> = due;
        due.into_iter().map(|held| held.frame).collect()
    }

    fn strikes(&mut self, per_mille: u32) -> bool {
        per_mille > 0 && self.below(1_000) < per_mille
    }

    /// An LCG's upper half.
    fn below(&mut self, limit: u32) -> u32 {
        self.random = self
            .random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) as u32 % limit
    }
}

/// Without IPv6's extension headers: nobody here sends them.
fn is_tcp(frame: &[u8]) -> bool {
    const IP: usize = OFFLOADS_BYTES + 14;
    let byte = |at: usize| frame.get(at).copied().unwrap_or_default();
    match (byte(IP - 2), byte(IP - 1)) {
        (0x08, 0x00) => byte(IP + 9) == 6,
        (0x86, 0xdd) => byte(IP + 6) == 6,
        _ => false,
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
