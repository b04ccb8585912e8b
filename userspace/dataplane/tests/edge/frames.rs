//! Frames that are not plain Ethernet of 1,500 bytes, through a gateway's edge: jumbo frames, of which a
//! driver has several buffers, and VLAN tags.

use std::{
    io::Write,
    net::{IpAddr, SocketAddr, TcpListener, TcpStream},
    process::Command,
    thread,
    time::{Duration, Instant},
};

use crate::{
    gateway::{Gateway, PATIENCE, PORT, VIP4, VIP6},
    packets, rule,
};
use aya::{
    Ebpf,
    programs::{SchedClassifier, TcAttachType},
};
use dataplane::edge::{EdgeVerdict, Forward, WantedMode};
use nix::sys::socket::{getsockopt, sockopt::TcpMaxSeg};
use policy::Action;
use sandbox::{Netns, run_in};

const MIB: usize = 1 << 20;
const JUMBO: &str = "9000";
/// A SYN that nobody answers is sent again a second later.
const UNANSWERED: Duration = Duration::from_millis(300);

fn both() -> [IpAddr; 2] {
    [VIP4, VIP6].map(|ip| ip.parse().unwrap())
}

fn ends(gateway: &Gateway) -> [(&Netns, &'static str); 6] {
    let [one, two] = &gateway.backends;
    let gate = &gateway.gateway;
    [
        (&gateway.client, "veth"),
        (one, "veth"),
        (two, "veth"),
        (gate, "client"),
        (gate, "one"),
        (gate, "two"),
    ]
}

#[test]
fn jumbo_frames_are_forwarded_in_several_buffers() {
    for mode in [WantedMode::Native, WantedMode::Generic] {
        let gateway = Gateway::new();
        for (host, device) in ends(&gateway) {
            host.ip(&["link", "set", device, "mtu", JUMBO]).unwrap();
            if mode == WantedMode::Generic && device == "veth" {
                host.ip(&["link", "set", device, "gso_max_segs", "1"])
                    .unwrap();
            }
        }
        let edge = gateway.open(Forward::Snat, mode);
        for to in both() {
            let before = packets(&edge, EdgeVerdict::ToBackend);
            let mut talk = gateway.connect(to).unwrap();
            assert!(getsockopt(&talk.stream, TcpMaxSeg).unwrap() > 8_000);
            talk.echo(2 * MIB);
            // Acknowledgements included.
            let sent = packets(&edge, EdgeVerdict::ToBackend) - before;
            assert!(sent < (2 * MIB / 1460) as u64, "{mode:?}: {sent} packets");
            assert!(sent > (2 * MIB / 9000) as u64, "{mode:?}: {sent} packets");
        }
        assert_eq!(packets(&edge, EdgeVerdict::TooBig), 0);
    }
}

/// Has a client's frames tagged: in the frame, as they travel, or beside it, as where hardware puts tags
/// in and takes them off.
fn tagged(client: &Netns, in_frame: bool) -> Ebpf {
    let offload = if in_frame { "off" } else { "on" };
    let tag = || {
        let said = Command::new("ethtool")
            .args(["-K", "veth", "txvlan", offload])
            .output();
        assert!(said.unwrap().status.success());
        let mut object = Ebpf::load(ebpf::IDLE_OBJECT).unwrap();
        let program = object.program_mut("tag").unwrap();
        let program: &mut SchedClassifier = program.try_into().unwrap();
        program.load().unwrap();
        program.attach("veth", TcAttachType::Egress).unwrap();
        object
    };
    run_in(Some(client), None, tag).unwrap()
}

fn reaches(gateway: &Gateway, to: SocketAddr) -> bool {
    let dial = || TcpStream::connect_timeout(&to, UNANSWERED).is_ok();
    run_in(Some(&gateway.client), None, dial).unwrap()
}

#[test]
fn what_is_tagged_is_passed_up_and_the_filter_sees_past_the_tag() {
    for mode in [WantedMode::Native, WantedMode::Generic] {
        let gateway = Gateway::new();
        let mut edge = gateway.open(Forward::Snat, mode);
        let _listener = run_in(Some(&gateway.gateway), None, || {
            TcpListener::bind("[::]:7000").unwrap()
        });
        let mut established = both().map(|to| gateway.connect(to).unwrap());
        let _tag = tagged(&gateway.client, true);
        let own =
            ["10.0.1.254", "fd00:1::254"].map(|ip| SocketAddr::new(ip.parse().unwrap(), 7000));
        for own in own {
            assert!(reaches(&gateway, own), "{mode:?}: nothing speaks of it");
        }
        assert_eq!(packets(&edge, EdgeVerdict::Vlan), 0);
        let sent = packets(&edge, EdgeVerdict::ToBackend);
        for (talk, to) in established.iter_mut().zip(both()) {
            // The stack has it, which knows no such address.
            assert!(!reaches(&gateway, SocketAddr::new(to, PORT)));
            let before = packets(&edge, EdgeVerdict::Vlan);
            assert!(before > 0, "{mode:?}");
            talk.stream.write_all(b"x").unwrap();
            eventually(|| packets(&edge, EdgeVerdict::Vlan) > before);
        }
        assert_eq!(packets(&edge, EdgeVerdict::ToBackend), sent);
        let mut denying = Gateway::policy();
        let from = ["10.0.1.0/24", "fd00:1::/64"];
        denying
            .rules
            .insert(0, rule("no", &from, &[":7000"], Action::Deny));
        edge.install(&denying).unwrap();
        for own in own {
            let before = packets(&edge, EdgeVerdict::Denied);
            assert!(!reaches(&gateway, own));
            assert!(
                packets(&edge, EdgeVerdict::Denied) > before,
                "{mode:?}: {own}"
            );
        }
    }
}

/// What the edge cannot see it does not heed: `doctor` says so where there are devices for VLANs.
#[test]
fn a_tag_that_is_beside_the_frame_is_not_seen() {
    let gateway = Gateway::new();
    let edge = gateway.open(Forward::Snat, WantedMode::Native);
    let _tag = tagged(&gateway.client, false);
    for to in both() {
        gateway.connect(to).unwrap().echo(MIB);
    }
    assert_eq!(packets(&edge, EdgeVerdict::Vlan), 0);
}

fn eventually(holds: impl Fn() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < until);
        thread::yield_now();
    }
}
