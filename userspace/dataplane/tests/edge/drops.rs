//! What an interface drops in a second, on one processor: the edge beside nftables, which drops as
//! early as the stack lets it. The kernel sends, by a program of its own: no socket is in the way.

use std::{
    io::Write,
    process::{Command, Stdio},
    time::Instant,
};

use aya::{
    Ebpf, EbpfLoader,
    programs::{TestRun, TestRunAttrs, TestRunOptions, Xdp},
};
use dataplane::{
    Edge,
    edge::{EdgeVerdict, Forward},
};
use nix::net::if_::if_nametoindex;
use policy::Action;
use sandbox::{Netns, run_in, stay_on_one_processor};

use crate::{
    TestPins,
    frame::{SYN, Segment},
    interface, packets, policy,
    results::Drops,
    rule,
};

const DENIED: &str = "172.16.0.0/12";
const TURN: u32 = 200_000;
const TURNS: usize = 5;
/// As drivers poll. A veth holds 256.
const BATCH: u32 = 64;

/// A host, and who sends to it.
struct Line {
    host: Netns,
    sender: Netns,
    toss: Ebpf,
    frame: Vec<u8>,
    sent: u64,
}

impl Line {
    fn new() -> Self {
        let (host, sender) = (Netns::new().unwrap(), Netns::new().unwrap());
        // Neither solicits routers, which are packets, too.
        for netns in [&host, &sender] {
            netns
                .sysctl("net.ipv6.conf.default.disable_ipv6", "1")
                .unwrap();
        }
        sender
            .join_as(&["10.0.0.1/24"], (&host, "edge"), &["10.0.0.2/24"])
            .unwrap();
        // Where the frames go to.
        host.ip(&["link", "set", "edge", "address", "02:00:00:00:00:01"])
            .unwrap();
        // Without, a veth takes no frames but from a socket.
        said(&host, "ethtool", &["-K", "edge", "gro", "on"], "");
        let device = run_in(Some(&sender), None, || if_nametoindex("veth").unwrap());
        let mut toss = EbpfLoader::new()
            .override_global("device", &device.unwrap(), true)
            .load(ebpf::IDLE_OBJECT)
            .unwrap();
        let program: &mut Xdp = toss.program_mut("toss").unwrap().try_into().unwrap();
        program.load().unwrap();
        Self {
            host,
            sender,
            toss,
            frame: Segment::new("172.16.0.1:40000", "10.0.0.2:9042", SYN).frame(),
            sent: 0,
        }
    }

    /// Packets in a second.
    fn send(&mut self) -> f64 {
        let program: &mut Xdp = self.toss.program_mut("toss").unwrap().try_into().unwrap();
        let frame = &self.frame;
        let send = || {
            stay_on_one_processor().unwrap();
            let options = TestRunOptions {
                data_in: Some(frame),
                repeat: TURN,
                attrs: TestRunAttrs::new().xdp_live_frames(BATCH),
                ..TestRunOptions::new()
            };
            let begun = Instant::now();
            program.test_run(options).unwrap();
            begun.elapsed()
        };
        let took = run_in(Some(&self.sender), None, send).unwrap();
        self.sent += u64::from(TURN);
        f64::from(TURN) / took.as_secs_f64()
    }
}

fn edge_of(line: &Line, pins: &TestPins) -> Edge {
    let guard = || {
        let mut edge = pins.open();
        let deny = rule("no", &[DENIED], &[":9042"], Action::Deny);
        edge.install(&policy(vec![deny])).unwrap();
        edge.guard(&[interface("edge", Forward::Off)]).unwrap();
        edge
    };
    run_in(Some(&line.host), None, guard).unwrap()
}

/// The first hook that a packet of IPv4 meets.
const RULES: &str = "table ip t {\n chain c {\n type filter hook prerouting priority raw\n \
                     ip saddr 172.16.0.0/12 tcp dport 9042 counter drop\n }\n}\n";

fn said(host: &Netns, program: &str, args: &[&str], input: &str) -> String {
    let run = || {
        let mut child = Command::new(program)
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|e| panic!("{program}: {e} (cargo xtask setup)"));
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(input.as_bytes()).unwrap();
        drop(stdin);
        let done = child.wait_with_output().unwrap();
        assert!(done.status.success(), "{program}");
        String::from_utf8(done.stdout).unwrap()
    };
    run_in(Some(host), None, run).unwrap()
}

/// `counter packets N bytes M`
fn dropped_by_nft(host: &Netns) -> u64 {
    let listed = said(host, "nft", &["list", "ruleset"], "");
    let (_, rest) = listed.split_once("counter packets ").unwrap();
    rest.split(' ').next().unwrap().parse().unwrap()
}

fn median(mut of: Vec<f64>) -> f64 {
    of.sort_by(f64::total_cmp);
    of[of.len() / 2]
}

/// In turns, beside each other.
pub(crate) fn measure() -> Drops {
    let (mut guarded, mut filtered) = (Line::new(), Line::new());
    let pins = TestPins::new();
    let edge = edge_of(&guarded, &pins);
    said(&filtered.host, "nft", &["-f", "-"], RULES);
    let (mut by_edge, mut by_nft) = (Vec::new(), Vec::new());
    for _ in 0..TURNS {
        by_edge.push(guarded.send());
        by_nft.push(filtered.send());
    }
    assert_eq!(packets(&edge, EdgeVerdict::Denied), guarded.sent);
    assert_eq!(dropped_by_nft(&filtered.host), filtered.sent);
    let ratios = by_edge.iter().zip(&by_nft).map(|(edge, nft)| edge / nft);
    let mut ratios: Vec<f64> = ratios.collect();
    ratios.sort_by(f64::total_cmp);
    Drops {
        edge_per_second: median(by_edge),
        nftables_per_second: median(by_nft),
        ratios,
    }
}

#[test]
fn more_packets_are_dropped_in_a_second_than_by_nftables() {
    let drops = measure();
    println!("{drops:?}");
    assert!(drops.ratio() > 1.0, "{drops:?}");
}
