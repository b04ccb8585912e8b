//! XDP programs on interfaces: which one is there, in which mode; ours, attached beside no other.

use std::{io, os::fd::AsRawFd};

use ebpf::abi;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, recv, sendto, socket,
};

/// How fast one source (an IPv4 address, an IPv6 /64) may open connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SynRate {
    /// In the long run.
    pub per_second: u32,
    /// At once.
    pub burst: u32,
}

/// Whether and how new connections to a virtual address are forwarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Forward {
    /// The stack gets them.
    #[default]
    Off,
    /// A backend gets them from an address and port of the gateway's.
    Snat,
    /// A backend on the same wire, which has the virtual address itself, gets them as they are.
    Dsr,
}

impl Forward {
    pub(super) fn to_abi(self) -> u8 {
        (match self {
            Forward::Off => abi::EDGE_FORWARD_OFF,
            Forward::Snat => abi::EDGE_FORWARD_SNAT,
            Forward::Dsr => abi::EDGE_FORWARD_DSR,
        }) as u8
    }
}

/// The mode that the policy file asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum WantedMode {
    /// In the driver if it can, in the stack otherwise.
    #[default]
    Auto,
    /// In the driver.
    Native,
    /// In the stack, whatever the driver can.
    Generic,
}

/// An interface that the edge is to guard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Name of the interface.
    pub name: String,
    /// The mode in which the program is to run.
    pub mode: WantedMode,
    /// Whether and how new connections to a virtual address are forwarded.
    pub forward: Forward,
    /// The limit for SYNs. None: there is no limit.
    pub syn_rate: Option<SynRate>,
}

impl Interface {
    pub(super) fn to_abi(&self, mode: Mode) -> abi::EdgeInterface {
        const NS: u64 = 1_000_000_000;
        let rate = self.syn_rate.filter(|rate| rate.per_second > 0);
        let interval = rate.map_or(0, |rate| NS / u64::from(rate.per_second));
        let burst = rate.map_or(0, |rate| u64::from(rate.burst.max(1)));
        abi::EdgeInterface {
            syn_interval_ns: interval,
            syn_burst_ns: interval * burst,
            forward: self.forward.to_abi(),
            generic: (mode == Mode::Generic).into(),
            pad: [0; 6],
        }
    }
}

/// The mode in which a program runs: in the driver, or in the stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// In the driver, before the kernel makes anything of a packet.
    Native,
    /// In the stack: slower, on any interface.
    Generic,
    /// On the card.
    Offloaded,
}

impl Mode {
    /// The mode's name in the policy file.
    pub fn as_str(self) -> &'static str {
        match self {
            Mode::Native => "native",
            Mode::Generic => "generic",
            Mode::Offloaded => "offloaded",
        }
    }
}

/// A program on an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OnInterface {
    /// The kernel's number of it.
    pub program: u32,
    /// The mode in which the program runs.
    pub mode: Mode,
}

// linux/rtnetlink.h, linux/if_link.h, linux/netlink.h
const RTM_GETLINK: u16 = 18;
const NLM_F_REQUEST: u16 = 1;
const NLMSG_ERROR: u16 = 2;
const IFLA_XDP: u16 = 43;
const IFLA_XDP_DRV_PROG_ID: u16 = 5;
const IFLA_XDP_SKB_PROG_ID: u16 = 6;
const IFLA_XDP_HW_PROG_ID: u16 = 7;
const HEADER_BYTES: usize = 16;
/// `struct ifinfomsg`.
const IFINFO_BYTES: usize = 16;
/// An attribute's type, without the bits that say how it is laid out.
const TYPE: u16 = 0x3fff;
/// The size of the buffer for an answer: more than the kernel sends of an interface without hundreds of
/// virtual functions.
const ANSWER_BYTES: usize = 1 << 16;

/// The programs on an interface of this thread's network namespace.
pub(super) fn programs_on(ifindex: u32) -> io::Result<Vec<OnInterface>> {
    let netlink = socket(
        AddressFamily::Netlink,
        SockType::Raw,
        SockFlag::SOCK_CLOEXEC,
        SockProtocol::NetlinkRoute,
    )?;
    let mut question = Vec::with_capacity(HEADER_BYTES + IFINFO_BYTES);
    question.extend((HEADER_BYTES as u32 + IFINFO_BYTES as u32).to_ne_bytes());
    question.extend(RTM_GETLINK.to_ne_bytes());
    question.extend(NLM_F_REQUEST.to_ne_bytes());
    question.extend([0; 8]);
    question.extend([0; 4]);
    question.extend(ifindex.to_ne_bytes());
    question.extend([0; 8]);
    let kernel = NetlinkAddr::new(0, 0);
    sendto(netlink.as_raw_fd(), &question, &kernel, MsgFlags::empty())?;
    let mut answer = vec![0; ANSWER_BYTES];
    let bytes = recv(netlink.as_raw_fd(), &mut answer, MsgFlags::empty())?;
    answer.truncate(bytes);
    programs_in(&answer)
}

fn programs_in(answer: &[u8]) -> io::Result<Vec<OnInterface>> {
    let cut = || io::Error::from(io::ErrorKind::UnexpectedEof);
    let kind = answer.get(4..6).ok_or_else(cut)?;
    if kind == NLMSG_ERROR.to_ne_bytes() {
        let errno = word(answer.get(HEADER_BYTES..).unwrap_or_default());
        return Err(io::Error::from_raw_os_error(
            errno.cast_signed().wrapping_neg(),
        ));
    }
    let attributes = answer.get(HEADER_BYTES + IFINFO_BYTES..).ok_or_else(cut)?;
    let xdp = Attributes(attributes).find(|(kind, _)| *kind == IFLA_XDP);
    let nested = Attributes(xdp.map_or(&[], |(_, value)| value));
    let programs = nested.filter_map(|(kind, value)| {
        let mode = match kind {
            IFLA_XDP_DRV_PROG_ID => Mode::Native,
            IFLA_XDP_SKB_PROG_ID => Mode::Generic,
            IFLA_XDP_HW_PROG_ID => Mode::Offloaded,
            _ => return None,
        };
        let program = word(value);
        (program != 0).then_some(OnInterface { program, mode })
    });
    Ok(programs.collect())
}

/// `struct nlattr`s: length, type, value, each at a multiple of four.
struct Attributes<'a>(&'a [u8]);

impl<'a> Iterator for Attributes<'a> {
    type Item = (u16, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let half = |at: usize| Some(u16::from_ne_bytes(self.0.get(at..at + 2)?.try_into().ok()?));
        let length = usize::from(half(0)?);
        let kind = half(2)? & TYPE;
        let value = self.0.get(4..length)?;
        self.0 = self.0.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    }
}

fn word(bytes: &[u8]) -> u32 {
    let first = bytes.get(..4).and_then(|bytes| bytes.try_into().ok());
    first.map_or(0, u32::from_ne_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        let mut bytes = (value.len() as u16 + 4).to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(value);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    #[test]
    fn programs_are_found_behind_other_attributes() {
        let mut answer = vec![0; HEADER_BYTES + IFINFO_BYTES];
        answer.extend(attribute(3, b"eth0\0"));
        let skb = attribute(IFLA_XDP_SKB_PROG_ID, &7_u32.to_ne_bytes());
        let drv = attribute(IFLA_XDP_DRV_PROG_ID, &0_u32.to_ne_bytes());
        let attached = attribute(2, &[2]);
        // NLA_F_NESTED
        answer.extend(attribute(IFLA_XDP | 0x8000, &[attached, skb, drv].concat()));
        let found = OnInterface {
            program: 7,
            mode: Mode::Generic,
        };
        assert_eq!(programs_in(&answer).unwrap(), [found]);
        assert_eq!(programs_in(&answer[..40]).unwrap(), []);
        assert!(programs_in(&answer[..5]).is_err());
    }

    #[test]
    fn the_loopback_has_none_and_a_missing_interface_is_an_error() {
        assert_eq!(programs_on(1).unwrap(), []);
        let missing = programs_on(0x7fff_fff0).unwrap_err();
        assert_eq!(missing.raw_os_error(), Some(nix::libc::ENODEV));
    }
}
