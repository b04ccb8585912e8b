//! The kernel decides as the plain reading of the policy does: random policies are put into
//! force and random connections are made.
//!
//! In a namespace in which every address is local and nobody listens, connect() answers a
//! deny with EPERM and a bypass with ECONNREFUSED, in microseconds.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "tests say what they expect by failing, and so do their helpers"
)]

use std::{
    io::ErrorKind,
    net::{SocketAddr, TcpStream},
    path::{Path, PathBuf},
};

use dataplane::{
    Attached, Dataplane, Options,
    policy::{
        Action, Candidate, Fail, Policy, ProcessPattern, Rule, RuleName, SessionConditions, Target,
    },
};
use proptest::{
    collection::vec,
    prelude::*,
    sample::select,
    strategy::ValueTree,
    test_runner::{Config, RngSeed, TestRunner},
};
use testkit::sandbox::{Cgroup, Sandbox, run_in};

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

fn rules(own_name: &str, cgroups: [PathBuf; 2]) -> impl Strategy<Value = Rule> + use<> {
    let patterns = [own_name, &own_name[..3], "*", "other", "oth"]
        .map(str::to_owned)
        .map(|p| if p.len() == 3 { format!("{p}*") } else { p });
    (
        vec(targets(), 0..3),
        vec(select(vec![0_u32, 1000]), 0..2),
        vec(select(patterns.to_vec()), 0..2),
        vec(select(cgroups.to_vec()), 0..2),
        select(vec![Action::Bypass, Action::Deny]),
    )
        .prop_map(|(to, uids, processes, cgroups, action)| Rule {
            name: RuleName::new("r"),
            to,
            uids,
            processes: processes
                .iter()
                .map(|p| ProcessPattern::parse(p).unwrap())
                .collect(),
            cgroups,
            session: SessionConditions::default(),
            action,
            fail: Fail::Open,
            shortcut: false,
            remember: None,
        })
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
    let name = std::fs::read_to_string("/proc/self/comm")
        .unwrap()
        .trim()
        .to_owned();
    let mut runner = TestRunner::new(Config {
        rng_seed: RngSeed::Fixed(SEED),
        ..Config::default()
    });

    let pins = Pins(format!("/sys/fs/bpf/underpass-test-decides-{}", std::process::id()).into());
    let options = Options {
        cgroup: sandbox.cgroup.path().to_owned(),
        pins: pins.0.clone(),
    };
    let attached = run_in(Some(&sandbox.netns), None, || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let _entered = runtime.enter();
        let Attached { dataplane, .. } = Dataplane::attach(&options, &policy(vec![])).unwrap();
        (dataplane, runtime)
    });
    let (dataplane, _runtime) = attached.unwrap();
    // Dropped before `pins`, whose lock it holds.
    let mut dataplane = dataplane;
    let mut denied = 0;
    for _ in 0..POLICIES {
        let rules = vec(rules(&name, paths.clone()), 0..70);
        let policy = policy(rules.new_tree(&mut runner).unwrap().current());
        dataplane.install(&policy).unwrap();
        let to = vec(destinations(), CONNECTIONS)
            .new_tree(&mut runner)
            .unwrap()
            .current();
        for (cgroup, path) in cgroups.iter().zip(&paths) {
            let got = kernel_denies(&sandbox, cgroup, &to);
            for (to, got) in to.iter().zip(got) {
                let expected = plainly_denied(&policy, *to, &name, path);
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
    let all = POLICIES * CONNECTIONS as u32 * 2;
    assert!(
        (all / 10..all * 9 / 10).contains(&denied),
        "{denied} of {all}: nothing was tested"
    );
}

/// Removes what a failed test would leave pinned.
struct Pins(PathBuf);

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

fn plainly_denied(policy: &Policy, to: SocketAddr, process: &str, cgroup: &Path) -> bool {
    let candidate = Candidate {
        to,
        uid: 0,
        process: process.to_owned(),
        cgroup: cgroup.to_owned(),
    };
    policy.first_match(&candidate).action == Action::Deny
}
