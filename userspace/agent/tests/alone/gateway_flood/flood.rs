//! SYNs from a hundred thousand sources, as fast as is asked for.

use std::{
    net::Ipv4Addr,
    os::fd::{AsRawFd, OwnedFd},
    sync::atomic::{AtomicU32, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

use nix::{
    ifaddrs::getifaddrs,
    sys::socket::{AddressFamily, LinkAddr, MsgFlags, SockFlag, SockType, bind, send, socket},
};
use sandbox::run_in;

use crate::common::gateway::Hosts;

pub const SOURCES: u32 = 100_000;

/// A socket on the clients' wire.
pub struct Flood {
    wire: OwnedFd,
    frame: Vec<u8>,
    sent: AtomicU32,
}

impl Flood {
    pub fn new(hosts: &Hosts) -> Self {
        let gate = run_in(Some(&hosts.gateway.netns), None, || link("clients")).unwrap();
        let (wire, own) = run_in(Some(&hosts.clients), None, || {
            let own = link("veth");
            let wire = socket(
                AddressFamily::Packet,
                SockType::Raw,
                SockFlag::SOCK_CLOEXEC,
                None,
            );
            let wire = wire.unwrap();
            bind(wire.as_raw_fd(), &own).unwrap();
            (wire, own)
        })
        .unwrap();
        let mut frame = gate.addr().unwrap().to_vec();
        frame.extend(own.addr().unwrap());
        frame.extend([0x08, 0x00]);
        frame.extend([0x45, 0, 0, 40, 0, 1, 0, 0, 64, 6, 0, 0]);
        frame.extend([0; 4]);
        frame.extend([10, 9, 0, 10]);
        frame.extend([0xc3, 0x50, 0x23, 0x52, 0, 0, 0, 1, 0, 0, 0, 0]);
        frame.extend([0x50, 0x02, 0xff, 0xff, 0, 0, 0, 0]);
        Self {
            wire,
            frame,
            sent: AtomicU32::new(0),
        }
    }

    /// How many so far, each from a source of its own until there are [`SOURCES`].
    pub fn sent(&self) -> u32 {
        self.sent.load(Relaxed)
    }

    /// Sends for so long, so many each millisecond at most.
    pub fn run(&self, lasts: Duration, each_ms: u32) {
        let began = Instant::now();
        let mut frame = self.frame.clone();
        let mut ms = 0;
        while began.elapsed() < lasts {
            for _ in 0..each_ms {
                let number = self.sent.fetch_add(1, Relaxed);
                fill(&mut frame, number);
                // A queue that is full loses one, as a wire would.
                let _ = send(self.wire.as_raw_fd(), &frame, MsgFlags::MSG_DONTWAIT);
            }
            ms += 1;
            thread::sleep(Duration::from_millis(ms).saturating_sub(began.elapsed()));
        }
    }
}

/// The source of one of them, and the checksums that follow from it.
fn fill(frame: &mut [u8], number: u32) {
    let source = Ipv4Addr::from_bits(u32::from_be_bytes([11, 0, 0, 0]) + number % SOURCES);
    frame[26..30].copy_from_slice(&source.octets());
    frame[24..26].fill(0);
    frame[50..52].fill(0);
    let header = folded(sum(&frame[14..34]));
    // Its protocol and length stand for those of the pseudo-header.
    let segment = folded(sum(&frame[26..]) + 6 + 20);
    frame[24..26].copy_from_slice(&(!header).to_be_bytes());
    frame[50..52].copy_from_slice(&(!segment).to_be_bytes());
}

fn sum(bytes: &[u8]) -> u32 {
    let words = bytes.chunks(2);
    words
        .map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])))
        .sum()
}

fn folded(mut sum: u32) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

fn link(name: &str) -> LinkAddr {
    let mut all = getifaddrs().unwrap();
    let found = all.find_map(|one| {
        let link = one.address?.as_link_addr().copied()?;
        (one.interface_name == name).then_some(link)
    });
    found.unwrap()
}
