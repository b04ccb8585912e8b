//! The tables of classes agree with the plain reading, restricted to rules of the edge.

use std::{net::SocketAddr, path::PathBuf};

use proptest::{collection::vec, prelude::*, sample::select};

use super::*;
use policy::{
    Candidate, ContainerConditions, Destinations, Fail, ProcessPattern, SessionConditions, Shortcut,
};

const NETWORKS: [&str; 11] = [
    "0.0.0.0/0",
    "10.0.0.0/8",
    "10.1.0.0/16",
    "10.1.2.0/24",
    "10.1.2.3/32",
    "10.128.0.0/9",
    "192.168.1.0/24",
    "::/0",
    "fd00::/8",
    "fd00:1::/32",
    "fd00:1::5/128",
];
const ADDRESSES: [&str; 10] = [
    "10.1.2.3",
    "10.1.2.4",
    "10.1.9.9",
    "10.200.0.1",
    "192.168.1.1",
    "172.16.0.1",
    "fd00:1::5",
    "fd00:1::6",
    "fd77::1",
    "2001:db8::1",
];
const PORTS: [u16; 4] = [9042, 9043, 7000, 1];

fn networks() -> impl Strategy<Value = IpNet> {
    select(NETWORKS.to_vec()).prop_map(|n| n.parse().unwrap())
}

pub(crate) fn rules() -> impl Strategy<Value = Rule> {
    let port = select(PORTS[..3].to_vec());
    let target = (prop::option::of(networks()), prop::option::of(port));
    let target = target.prop_map(|(network, port)| Target { network, port });
    (
        vec(networks(), 0..3),
        vec(target, 0..3),
        prop::option::weighted(0.2, select(vec!["uid", "gid", "process", "cgroup"])),
        select(Action::ALL.to_vec()),
    )
        .prop_map(|(from, to, local, action)| Rule {
            name: RuleName::new("r"),
            from,
            to: to.into(),
            uids: (local == Some("uid")).then_some(0).into_iter().collect(),
            gids: (local == Some("gid")).then_some(0).into_iter().collect(),
            processes: (local == Some("process"))
                .then(|| ProcessPattern::parse("*").unwrap())
                .into_iter()
                .collect(),
            cgroups: (local == Some("cgroup"))
                .then(|| PathBuf::from("/"))
                .into_iter()
                .collect(),
            namespaces: Vec::new(),
            containers: ContainerConditions::default(),
            session: SessionConditions::default(),
            backends: Vec::new(),
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
            shadow: None,
            protects: false,
        })
}

fn plainly(policy: &Policy, from: IpAddr, to: SocketAddr) -> Option<usize> {
    let candidate = Candidate {
        from: Some(from),
        to,
        uid: 0,
        gid: 0,
        process: "any".into(),
        cgroup: "/".into(),
        netns: None,
    };
    let speaks = |rule: &Rule| !(rule.from.is_empty() && rule.to.is_any());
    let mut rules = policy.rules.iter();
    rules.position(|rule| speaks(rule) && rule.miss(&candidate).is_none())
}

fn policy(rules: Vec<Rule>) -> Policy {
    Policy {
        rules,
        default_action: Action::Deny,
        default_fail: Fail::Open,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn classes_decide_as_the_plain_reading_does(rules in vec(rules(), 0..12)) {
        let policy = policy(rules);
        let classes = compile(&policy).unwrap();
        for from in ADDRESSES {
            for to in ADDRESSES {
                for port in PORTS {
                    let from = from.parse().unwrap();
                    let to = SocketAddr::new(to.parse().unwrap(), port);
                    let decided = classes.first_match(from, to.ip(), port);
                    prop_assert_eq!(decided, plainly(&policy, from, to), "{} to {}", from, to);
                }
            }
        }
    }
}

#[test]
fn a_thousand_rules_with_everything_of_their_own_fit_and_a_thousand_that_cross_do_not() {
    let of_its_own = |n: u32| Rule {
        name: RuleName::new(&format!("r{n}")),
        from: vec![IpNet::new(IpAddr::from((0x0a00_0000 + n).to_be_bytes()), 32).unwrap()],
        to: vec![Target {
            network: IpNet::new(IpAddr::from((0x0b00_0000 + n).to_be_bytes()), 32).ok(),
            port: Some(1000 + n as u16),
        }]
        .into(),
        ..template()
    };
    let classes = compile(&policy((0..1000).map(of_its_own).collect())).unwrap();
    let first = |from, to, port| classes.first_match(from, to, port);
    let (from, to) = (0x0a00_0007_u32, 0x0b00_0007_u32);
    let (from, to) = (
        IpAddr::from(from.to_be_bytes()),
        IpAddr::from(to.to_be_bytes()),
    );
    assert_eq!(first(from, to, 1007), Some(7));
    assert_eq!(first(from, to, 1008), None);
    let crossing = |n: u32| {
        let mut rule = of_its_own(n);
        let target = rule.to.fixed()[0];
        rule.to = vec![
            Target {
                network: None,
                ..target
            },
            Target {
                port: None,
                ..target
            },
        ]
        .into();
        rule
    };
    let refused = compile(&policy((0..1024).map(crossing).collect()));
    assert!(
        matches!(refused, Err(CompileError::TooManyEntries { .. })),
        "{refused:?}"
    );
}

fn template() -> Rule {
    Rule {
        name: RuleName::new("r"),
        from: Vec::new(),
        to: Destinations::ANY,
        uids: Vec::new(),
        gids: Vec::new(),
        processes: Vec::new(),
        cgroups: Vec::new(),
        namespaces: Vec::new(),
        containers: ContainerConditions::default(),
        session: SessionConditions::default(),
        backends: Vec::new(),
        action: Action::Deny,
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
        shadow: None,
        protects: false,
    }
}
