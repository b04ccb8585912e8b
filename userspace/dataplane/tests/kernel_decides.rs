//! The kernel decides as the plain reading of the policy does: random policies are put into
//! force and random connections are made.
//!
//! In a namespace in which every address is local and nobody listens, connect() answers a
//! deny with EPERM and a bypass with ECONNREFUSED, in microseconds.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests say what they expect by failing, and so do their helpers"
)]

use std::{
    io::ErrorKind,
    net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream},
    path::{Path, PathBuf},
    thread,
};

use dataplane::{Attached, ClientAddress, Dataplane, IncomingOptions, Options, host};
use policy::{
    Action, Candidate, ContainerConditions, Fail, NetnsPattern, Policy, ProcessPattern, Rule,
    RuleName, SessionConditions, Shortcut, Target,
};
use proptest::{
    collection::vec,
    prelude::*,
    sample::select,
    strategy::ValueTree,
    test_runner::{Config, RngSeed, TestRunner},
};
use sandbox::{Cgroup, Netns, Sandbox, run_in};
use socket2::{Domain, SockRef, Socket, Type};

const POLICIES: u32 = 60;
const CONNECTIONS: usize = 60;

/// Change it to look elsewhere; a failure prints the policy.
const SEED: u64 = 20_261_121;

fn targets() -> impl Strategy<Value = Target> {
    let networks = [
        "0.0.0.0/0",
        "10.0.0.0/8",
        "10.1.0.0/16",
        "10.1.2.3/32",
        "::/0",
        "fd00::/8",
        "fd00:1::5/128",
    ];
    let network = select(networks.to_vec());
    let port = select(vec![9042_u16, 9043]);
    (prop::option::of(network), prop::option::of(port)).prop_map(|(network, port)| Target {
        network: network.map(|n| n.parse().unwrap()),
        port,
    })
}

const SOURCES: [&str; 5] = [
    "0.0.0.0/0",
    "172.16.0.0/12",
    "172.16.5.9/32",
    "::/0",
    "fd02::/16",
];

fn rules(
    own_name: &str,
    cgroups: [PathBuf; 2],
    netns: &Netns,
) -> impl Strategy<Value = Rule> + use<> {
    let namespaces = [netns.path().as_str(), "1"].map(|n| NetnsPattern::parse(n).unwrap());
    let patterns = [own_name, &own_name[..3], "*", "other", "oth"]
        .map(str::to_owned)
        .map(|p| if p.len() == 3 { format!("{p}*") } else { p });
    (
        vec(targets(), 0..3),
        (
            vec(select(vec![0_u32, 1000]), 0..2),
            vec(select(vec![0_u32, 1000]), 0..2),
        ),
        vec(select(patterns.to_vec()), 0..2),
        (
            vec(select(cgroups.to_vec()), 0..2),
            vec(select(namespaces.to_vec()), 0..2),
        ),
        vec(select(SOURCES.to_vec()), 0..2),
        // Of a rule that names a process nobody elsewhere hears.
        any::<bool>(),
        select(vec![
            (Action::Bypass, false),
            (Action::Deny, false),
            (Action::Deny, true),
        ]),
    )
        .prop_map(
            |(to, ids, processes, cgroups, from, plain, action)| match plain {
                true => (
                    to,
                    Default::default(),
                    Vec::new(),
                    Default::default(),
                    from,
                    action,
                ),
                false => (to, ids, processes, cgroups, from, action),
            },
        )
        .prop_map(
            |(to, (uids, gids), processes, (cgroups, namespaces), from, (action, is_shadow))| {
                Rule {
                    from: from.iter().map(|n| n.parse().unwrap()).collect(),
                    backends: Vec::new(),
                    name: RuleName::new("r"),
                    to: to.into(),
                    uids,
                    gids,
                    processes: processes
                        .iter()
                        .map(|p| ProcessPattern::parse(p).unwrap())
                        .collect(),
                    cgroups,
                    namespaces,
                    containers: ContainerConditions::default(),
                    session: SessionConditions::default(),
                    action,
                    fail: Fail::Open,
                    shortcut: Shortcut::Neither,
                    taps: None,
                    asks_copies: false,
                    when: None,
                    remember: None,
                    sample: None,
                    holdout: None,
                    limit: None,
                    is_mark: false,
                    // Each third one that denies stands in shadow.
                    shadow: is_shadow.then_some(Action::Deny),
                    protects: false,
                }
            },
        )
}

fn destinations() -> impl Strategy<Value = SocketAddr> {
    let ips = [
        "10.1.2.3",
        "10.1.2.4",
        "10.9.9.9",
        "127.0.0.1",
        "fd00:1::5",
        "fd00:1::6",
        "::1",
    ];
    // An IPv4-mapped destination is the IPv4 destination.
    let mapped = ["::ffff:10.1.2.3", "::ffff:127.0.0.1"];
    let ip = select([ips.as_slice(), &mapped].concat());
    (ip, select(vec![9042_u16, 9043, 9]))
        .prop_map(|(ip, port)| SocketAddr::new(ip.parse().unwrap(), port))
}

fn kernel_denies(sandbox: &Sandbox, cgroup: &Cgroup, to: &[SocketAddr]) -> Vec<bool> {
    let dial = |to: &SocketAddr| match TcpStream::connect(to).map_err(|e| e.kind()) {
        Err(ErrorKind::PermissionDenied) => true,
        Err(ErrorKind::ConnectionRefused) => false,
        other => panic!("{to}: {other:?}"),
    };
    let all = || to.iter().map(dial).collect();
    run_in(Some(&sandbox.netns), Some(cgroup), all).unwrap()
}

#[test]
fn the_kernel_decides_as_the_plain_reading_does() {
    let sandbox = Sandbox::new().unwrap();
    sandbox
        .netns
        .ip(&["route", "add", "local", "10.0.0.0/8", "dev", "lo"])
        .unwrap();
    sandbox
        .netns
        .ip(&["-6", "route", "add", "local", "fd00::/8", "dev", "lo"])
        .unwrap();
    let cgroups = ["one", "two"].map(|name| sandbox.cgroup.child(name).unwrap());
    let paths = cgroups.each_ref().map(Cgroup::rule_path);
    let name = own_name();
    let mut runner = runner();
    let pins = Pins::new("decides");
    let (mut dataplane, _runtime) = attach(&sandbox, &pins, Vec::new());
    let inode = host::netns_inode(sandbox.netns.path().as_ref());
    assert!(inode.is_some());
    let mut denied = 0;
    for _ in 0..POLICIES {
        let rules = vec(rules(&name, paths.clone(), &sandbox.netns), 0..70);
        let policy = policy(rules.new_tree(&mut runner).unwrap().current());
        dataplane.install(&policy).unwrap();
        let to = vec(destinations(), CONNECTIONS)
            .new_tree(&mut runner)
            .unwrap()
            .current();
        for (cgroup, path) in cgroups.iter().zip(&paths) {
            let got = kernel_denies(&sandbox, cgroup, &to);
            for (to, got) in to.iter().zip(got) {
                let expected = plainly_denied(&policy, *to, &name, path, inode);
                assert_eq!(
                    got,
                    expected,
                    "{to} in {} under {policy:#?}",
                    path.display()
                );
                denied += u32::from(got);
            }
        }
    }
    dataplane.detach().unwrap();
    something_was_tested(denied, POLICIES * CONNECTIONS as u32 * 2);
}

/// Between two namespaces in which every address is local, of which one listens: a denied connection is
/// refused, and others are accepted.
#[test]
fn the_kernel_decides_of_clients_elsewhere_as_the_plain_reading_does() {
    let (sandbox, clients) = (Sandbox::new().unwrap(), Netns::new().unwrap());
    let (own, others) = (
        ["192.0.2.2/24", "2001:db8::2/64"],
        ["192.0.2.1/24", "2001:db8::1/64"],
    );
    sandbox.netns.join(&clients, &own, &others).unwrap();
    for (here, there, network, gateway) in [
        (&sandbox.netns, &clients, "10.0.0.0/8", "192.0.2.2"),
        (&sandbox.netns, &clients, "fd00::/16", "2001:db8::2"),
        (&clients, &sandbox.netns, "172.16.0.0/12", "192.0.2.1"),
        (&clients, &sandbox.netns, "fd02::/15", "2001:db8::1"),
    ] {
        here.ip(&["route", "add", "local", network, "dev", "lo"])
            .unwrap();
        there
            .ip(&["route", "add", network, "via", gateway])
            .unwrap();
    }
    // An IPv6 socket is bound to nothing less than an address.
    for address in ["fd02::1", "fd02:1::1", "fd03::1"] {
        clients.ip(&["addr", "add", address, "dev", "lo"]).unwrap();
    }
    let bind = || [9042, 9043, 9].map(|port| TcpListener::bind(("::", port)).unwrap());
    let listeners = run_in(Some(&sandbox.netns), None, bind).unwrap();
    let mut runner = runner();
    let pins = Pins::new("decides-elsewhere");
    let own = IncomingOptions {
        netns: None,
        client_address: ClientAddress::Keep,
    };
    let (mut dataplane, _runtime) = attach(&sandbox, &pins, vec![own]);
    let paths = ["/one", "/two"].map(PathBuf::from);
    let mut denied = 0;
    thread::scope(|scope| {
        for listener in &listeners {
            scope.spawn(|| while listener.accept().is_ok() {});
        }
        let _end = End(&listeners);
        for _ in 0..POLICIES {
            let rules = vec(rules(&own_name(), paths.clone(), &sandbox.netns), 0..70);
            let policy = policy(rules.new_tree(&mut runner).unwrap().current());
            dataplane.install(&policy).unwrap();
            let connections = vec(from_elsewhere(), CONNECTIONS);
            let connections = connections.new_tree(&mut runner).unwrap().current();
            let got = kernel_refuses(&clients, &connections);
            for ((from, to), got) in connections.into_iter().zip(got) {
                let plainly = policy.first_match(&Candidate::elsewhere(from, to));
                let expected = plainly.action == Action::Deny;
                assert_eq!(got, expected, "{from} to {to} under {policy:#?}");
                denied += u32::from(got);
            }
        }
    });
    dataplane.detach().unwrap();
    something_was_tested(denied, POLICIES * CONNECTIONS as u32);
}

/// Ends the threads that accept, whatever ends the test.
struct End<'a>(&'a [TcpListener]);

impl Drop for End<'_> {
    fn drop(&mut self) {
        for listener in self.0 {
            if let Err(error) = SockRef::from(listener).shutdown(Shutdown::Both) {
                eprintln!("{error}");
            }
        }
    }
}

fn from_elsewhere() -> impl Strategy<Value = (IpAddr, SocketAddr)> {
    let pairs = [
        (
            ["172.16.5.9", "172.16.5.8", "172.17.0.1", "192.0.2.1"],
            ["10.1.2.3", "10.1.2.4", "10.9.9.9"],
        ),
        (
            ["fd02::1", "fd02:1::1", "fd03::1", "2001:db8::1"],
            ["fd00:1::5", "fd00:1::6", "2001:db8::2"],
        ),
    ];
    (
        select(pairs.to_vec()),
        0..4_usize,
        0..3_usize,
        select(vec![9042_u16, 9043, 9]),
    )
        .prop_map(|((from, to), f, t, port)| {
            let to = SocketAddr::new(to[t].parse().unwrap(), port);
            (from[f].parse().unwrap(), to)
        })
}

fn kernel_refuses(clients: &Netns, connections: &[(IpAddr, SocketAddr)]) -> Vec<bool> {
    let dial = |(from, to): &(IpAddr, SocketAddr)| {
        let socket = Socket::new(Domain::for_address(*to), Type::STREAM, None).unwrap();
        socket.bind(&SocketAddr::new(*from, 0).into()).unwrap();
        match socket.connect(&(*to).into()).map_err(|e| e.kind()) {
            Ok(()) => false,
            Err(ErrorKind::ConnectionRefused) => true,
            Err(other) => panic!("{from} to {to}: {other:?}"),
        }
    };
    let all = || connections.iter().map(dial).collect();
    run_in(Some(clients), None, all).unwrap()
}

fn own_name() -> String {
    let name = std::fs::read_to_string("/proc/self/comm").unwrap();
    name.trim().to_owned()
}

fn runner() -> TestRunner {
    TestRunner::new(Config {
        rng_seed: RngSeed::Fixed(SEED),
        ..Config::default()
    })
}

fn something_was_tested(denied: u32, all: u32) {
    assert!(
        (all / 10..all * 9 / 10).contains(&denied),
        "{denied} of {all}: nothing was tested"
    );
}

/// The caller drops it before the pins, whose lock it holds.
fn attach(
    sandbox: &Sandbox,
    pins: &Pins,
    incoming: Vec<IncomingOptions>,
) -> (Dataplane, tokio::runtime::Runtime) {
    let options = Options {
        cgroup: sandbox.cgroup.path().to_owned(),
        pins: pins.0.clone(),
        incoming,
        max_namespaces: 0,
        tap_ring_bytes: dataplane::DEFAULT_TAP_RING_BYTES,
        taken: Default::default(),
    };
    run_in(Some(&sandbox.netns), None, || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let entered = runtime.enter();
        let Attached { dataplane, .. } = Dataplane::attach(&options, &policy(vec![])).unwrap();
        drop(entered);
        (dataplane, runtime)
    })
    .unwrap()
}

/// Removes what a failed test would leave pinned.
struct Pins(PathBuf);

impl Pins {
    fn new(test: &str) -> Self {
        let unique = std::process::id();
        Self(format!("/sys/fs/bpf/underpass-test-{test}-{unique}").into())
    }
}

impl Drop for Pins {
    fn drop(&mut self) {
        if let Err(error) = dataplane::detach(&self.0) {
            eprintln!("{error}");
        }
    }
}

fn policy(rules: Vec<Rule>) -> Policy {
    Policy {
        rules,
        default_action: Action::Bypass,
        default_fail: Fail::Open,
    }
}

fn plainly_denied(
    policy: &Policy,
    to: SocketAddr,
    process: &str,
    cgroup: &Path,
    netns: Option<u32>,
) -> bool {
    let candidate = Candidate {
        from: None,
        to,
        uid: 0,
        gid: 0,
        process: process.to_owned(),
        cgroup: cgroup.to_owned(),
        netns,
    };
    policy.first_match(&candidate).action == Action::Deny
}
