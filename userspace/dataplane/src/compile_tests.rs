//! The compiled sets, read as `decide.h` reads them, agree with the plain reading.

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    path::PathBuf,
};

use proptest::{collection::vec, prelude::*, sample::select};

use super::*;
use policy::{
    Candidate, Container, ContainerConditions, Destinations, Glob, SessionConditions, Shortcut,
};

/// The cgroups that exist; ids are their places in this list, from 1.
const CGROUPS: [&str; 4] = ["/", "/a", "/a/b", "/c"];

fn cgroup_id(path: &Path) -> Option<u64> {
    let at = CGROUPS.iter().position(|c| Path::new(c) == path)?;
    Some(at as u64 + 1)
}

fn running() -> [Container; 2] {
    [("one", "/a/b"), ("two", "/c")].map(|(name, cgroup)| Container {
        names: vec![name.into()],
        labels: BTreeMap::new(),
        cgroup: cgroup.into(),
        pid: 0,
        pod: None,
    })
}

/// `decide.h` in Rust.
fn kernel_decides(compiled: &Compiled, c: &Candidate) -> Option<usize> {
    first(kernel_holds(compiled, c))
}

/// The rules that hold.
fn kernel_holds(compiled: &Compiled, c: &Candidate) -> RuleSet {
    let key = |port| {
        let net = c.to.ip().into();
        let mut key = target_prefix(&Target {
            network: Some(net),
            port: None,
        });
        key.bytes[2..4].copy_from_slice(&u16::to_be_bytes(port));
        key
    };
    let mut left = longest(&compiled.targets, key(c.to.port()));
    left.unite(&longest(&compiled.targets, key(0)));
    if let Some(from) = c.from {
        let by_source = longest(&compiled.sources, source_prefix(&from.into()));
        narrow(&mut left, &compiled.elsewhere, &RuleSet::EMPTY);
        narrow(&mut left, &compiled.any_source, &by_source);
        return left;
    }
    if !compiled.sources.is_empty() {
        narrow(&mut left, &compiled.here, &RuleSet::EMPTY);
    }
    let by_process = ProcessPattern::parse(&c.process).map_or(RuleSet::EMPTY, |process| {
        longest(&compiled.processes, process_prefix(&process))
    });
    let by_uid = exact(&compiled.uids, c.uid);
    let by_gid = exact(&compiled.gids, c.gid);
    let mut by_cgroup = RuleSet::EMPTY;
    for id in c.cgroup.ancestors().filter_map(cgroup_id) {
        by_cgroup.unite(&exact(&compiled.cgroups, id));
    }
    let of_netns = |inode| exact(&compiled.namespaces, inode);
    let by_netns = c.netns.map_or(RuleSet::EMPTY, of_netns);
    for (any, set) in [
        (compiled.any_uid, by_uid),
        (compiled.any_gid, by_gid),
        (compiled.any_process, by_process),
        (compiled.any_cgroup, by_cgroup),
        (compiled.any_netns, by_netns),
    ] {
        narrow(&mut left, &any, &set);
    }
    while let Some(shadow) = first(left).filter(|n| compiled.shadows.has(*n)) {
        left.0[shadow / 64] &= !(1 << (shadow % 64));
    }
    left
}

impl RuleSet {
    fn has(&self, rule: usize) -> bool {
        self.0[rule / 64] >> (rule % 64) & 1 == 1
    }
}

fn first(of: RuleSet) -> Option<usize> {
    let word = of.0.iter().position(|w| *w != 0)?;
    Some(word * 64 + of.0[word].trailing_zeros() as usize)
}

/// The rule whose backends the kernel draws from.
fn kernel_balances(compiled: &Compiled, c: &Candidate) -> Option<usize> {
    let mut left = kernel_holds(compiled, c);
    for (left, settles) in left.0.iter_mut().zip(compiled.settles.0) {
        *left &= settles;
    }
    let settler = first(left)?;
    let mut balanced = compiled.balanced.iter();
    balanced.find(|b| b.rule == settler).map(|b| b.rule)
}

fn narrow(left: &mut RuleSet, any: &RuleSet, set: &RuleSet) {
    for ((left, any), set) in left.0.iter_mut().zip(any.0).zip(set.0) {
        *left &= any | set;
    }
}

fn longest<const N: usize>(entries: &[(Prefix<N>, RuleSet)], key: Prefix<N>) -> RuleSet {
    entries
        .iter()
        .filter(|(p, _)| p.bits <= key.bits && key.cut(p.bits).bytes == p.bytes)
        .max_by_key(|(p, _)| p.bits)
        .map_or(RuleSet::EMPTY, |(_, set)| *set)
}

fn exact<K: PartialEq>(entries: &[(K, RuleSet)], key: K) -> RuleSet {
    entries
        .iter()
        .find(|(k, _)| *k == key)
        .map_or(RuleSet::EMPTY, |(_, set)| *set)
}

fn targets() -> impl Strategy<Value = Target> {
    let network = select(vec![
        "0.0.0.0/0",
        "10.0.0.0/8",
        "10.1.0.0/16",
        "10.1.2.0/24",
        "10.1.2.3/32",
        "::/0",
        "fd00::/8",
        "fd00:1::/32",
        "fd00:1::5/128",
        "10.128.0.0/9",
    ]);
    let port = select(vec![9042_u16, 9043, 7000]);
    (proptest::option::of(network), proptest::option::of(port)).prop_map(|(network, port)| Target {
        network: network.map(|n| n.parse().unwrap()),
        port,
    })
}

const SOURCES: [&str; 6] = [
    "0.0.0.0/0",
    "172.16.0.0/12",
    "172.16.5.0/24",
    "172.16.5.9/32",
    "::/0",
    "fd02::/16",
];

fn clients() -> impl Strategy<Value = Option<IpAddr>> {
    let ip = select(vec![
        "172.16.5.9",
        "172.16.5.8",
        "172.17.0.1",
        "8.8.8.8",
        "fd02::1",
        "fd03::1",
    ]);
    proptest::option::of(ip).prop_map(|ip| ip.map(|ip| ip.parse().unwrap()))
}

fn rules() -> impl Strategy<Value = Rule> {
    (
        vec(targets(), 0..3),
        (
            vec(select(vec![0_u32, 1000, 1001]), 0..2),
            vec(select(vec![0_u32, 50, 51]), 0..2),
        ),
        vec(
            select(vec![
                "java",
                "spark*",
                "s*",
                "*",
                "sparkling",
                "fifteen_letters",
            ]),
            0..2,
        ),
        vec(select(vec!["/", "/a", "/a/b", "/c", "/missing"]), 0..2),
        vec(select(vec!["one", "two", "*", "gone"]), 0..2),
        vec(select(vec!["1", "2", "/missing"]), 0..2),
        vec(select(SOURCES.to_vec()), 0..2),
        // Of a rule that names a process nobody elsewhere hears.
        any::<bool>(),
        select(vec![
            (false, false, false),
            (true, false, false),
            (false, true, false),
            (false, false, true),
        ]),
    )
        .prop_map(
            |(to, ids, processes, cgroups, containers, namespaces, from, plain, kind)| match plain {
                true => (
                    to,
                    Default::default(),
                    Vec::new(),
                    Default::default(),
                    from,
                    kind,
                ),
                false => (
                    to,
                    ids,
                    processes,
                    (cgroups, containers, namespaces),
                    from,
                    kind,
                ),
            },
        )
        .prop_map(
            |(
                to,
                (uids, gids),
                processes,
                (cgroups, containers, namespaces),
                from,
                (is_mark, is_balanced, is_shadow),
            )| {
                Rule {
                    from: from.iter().map(|n| n.parse().unwrap()).collect(),
                    backends: is_balanced
                        .then(|| "10.9.9.9:9042".parse().unwrap())
                        .into_iter()
                        .collect(),
                    name: RuleName::new("r"),
                    to: to.into(),
                    uids,
                    gids,
                    processes: processes
                        .iter()
                        .map(|p| ProcessPattern::parse(p).unwrap())
                        .collect(),
                    cgroups: cgroups.iter().map(PathBuf::from).collect(),
                    namespaces: namespaces
                        .iter()
                        .map(|n| NetnsPattern::parse(n).unwrap())
                        .collect(),
                    containers: ContainerConditions::new(
                        containers.into_iter().filter_map(Glob::parse).collect(),
                        Vec::new(),
                    ),
                    session: SessionConditions::default(),
                    action: Action::Enrich,
                    fail: Fail::Open,
                    shortcut: Shortcut::Neither,
                    taps: None,
                    asks_copies: false,
                    when: None,
                    remember: None,
                    sample: None,
                    holdout: None,
                    limit: None,
                    is_mark,
                    shadow: is_shadow.then_some(Action::Deny),
                    protects: false,
                }
            },
        )
}

fn candidates() -> impl Strategy<Value = Candidate> {
    let ip = select(vec![
        "10.1.2.3",
        "10.1.2.4",
        "10.1.9.9",
        "10.200.0.1",
        "10.9.9.9",
        "192.168.1.1",
        "fd00:1::5",
        "fd00:1::6",
        "fd77::1",
        "2001:db8::1",
    ]);
    let process = select(vec![
        "java",
        "spark",
        "sparkling",
        "s",
        "cqlsh",
        "fifteen_letters",
    ]);
    (
        ip,
        select(vec![9042_u16, 9043, 22]),
        (select(vec![0_u32, 1000, 7]), select(vec![0_u32, 50, 7])),
        process,
        select(vec!["/", "/a", "/a/b", "/a/b/x", "/c", "/d"]),
        select(vec![None, Some(1), Some(2), Some(3)]),
        clients(),
    )
        .prop_map(
            |(ip, port, (uid, gid), process, cgroup, netns, from)| Candidate {
                from,
                to: SocketAddr::new(ip.parse().unwrap(), port),
                uid,
                gid,
                process: process.into(),
                cgroup: cgroup.into(),
                netns,
            },
        )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn compiled_rules_agree_with_the_plain_reading(
        rules in vec(rules(), 0..80),
        flows in vec(candidates(), 20),
    ) {
        let mut policy = Policy { rules, default_action: Action::Bypass, default_fail: Fail::Open };
        policy.find_containers(running().iter());
        let compiled = compile(&policy, cgroup_id).unwrap();
        for flow in flows {
            // A cgroup that does not exist holds for nobody: the plain reading compares
            // paths and none of the flows is beneath it.
            prop_assert_eq!(kernel_decides(&compiled, &flow), policy.first_match(&flow).index);
            // What others open meets no connect hook.
            if flow.from.is_some() {
                continue;
            }
            let balances = policy.balances(&flow);
            let balances = balances.and_then(|of| policy.rules.iter().position(|r| std::ptr::eq(r, of)));
            prop_assert_eq!(kernel_balances(&compiled, &flow), balances);
        }
    }
}

fn rule_to(n: usize) -> Rule {
    let network = format!("10.{}.{}.0/24", n / 256 % 256, n % 256)
        .parse()
        .unwrap();
    Rule {
        from: Vec::new(),
        backends: Vec::new(),
        name: RuleName::new(&format!("r{n}")),
        to: vec![Target {
            network: Some(network),
            port: Some(9042),
        }]
        .into(),
        uids: vec![],
        gids: vec![],
        processes: vec![],
        cgroups: vec![],
        namespaces: vec![],
        containers: ContainerConditions::default(),
        session: SessionConditions::default(),
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

fn policy_of(rules: usize) -> Policy {
    Policy {
        rules: (0..rules).map(rule_to).collect(),
        default_action: Action::Bypass,
        default_fail: Fail::Open,
    }
}

#[test]
fn a_thousand_and_more_rules_fit_and_the_last_one_is_found() {
    let policy = policy_of(MAX_RULES);
    let compiled = compile(&policy, cgroup_id).unwrap();
    let last = Candidate {
        from: None,
        to: SocketAddr::new("10.3.255.9".parse().unwrap(), 9042),
        uid: 0,
        gid: 0,
        process: String::new(),
        cgroup: "/".into(),
        netns: None,
    };
    assert_eq!(kernel_decides(&compiled, &last), Some(MAX_RULES - 1));
}

#[test]
fn too_many_rules_are_refused() {
    let refused = compile(&policy_of(MAX_RULES + 1), cgroup_id).unwrap_err();
    assert_eq!(refused, CompileError::TooManyRules(MAX_RULES + 1));
}

#[test]
fn too_many_destinations_are_refused() {
    let mut policy = policy_of(1);
    let most = abi::MAX_TARGETS as usize / 2;
    let targets = (0..=most).map(|n| Target {
        network: None,
        port: Some(n as u16 + 1),
    });
    policy.rules[0].to = targets.collect::<Vec<_>>().into();
    let refused = compile(&policy, cgroup_id).unwrap_err();
    assert!(matches!(
        refused,
        CompileError::TooManyEntries {
            what: "destinations",
            ..
        }
    ));
}

#[test]
fn a_session_rule_intercepts_whatever_its_action() {
    let mut policy = policy_of(2);
    policy.rules[0].session.tls = Some(true);
    policy.rules[0].fail = Fail::Closed;
    let compiled = compile(&policy, cgroup_id).unwrap();
    let expected = [(Action::Enrich, Fail::Closed), (Action::Deny, Fail::Open)];
    assert_eq!(compiled.rules, expected);
}

#[test]
fn the_ports_that_clients_elsewhere_may_have_the_agent_serve_are_known() {
    let target = |port| Target {
        network: None,
        port,
    };
    let rule = |to: Vec<Target>, action| Rule {
        to: to.into(),
        action,
        ..rule_to(0)
    };
    let by_process = Rule {
        processes: vec![ProcessPattern::parse("java").unwrap()],
        ..rule(vec![target(Some(7))], Action::Enrich)
    };
    let mut policy = policy_of(0);
    policy.rules = vec![
        rule(vec![target(Some(1)), target(Some(2))], Action::Enrich),
        rule(vec![target(Some(3))], Action::Deny),
        // Of this host's own connections.
        rule(vec![], Action::Enrich),
        by_process,
    ];
    let compiled = compile(&policy, cgroup_id).unwrap();
    assert_eq!(compiled.incoming_ports, [1, 2].into());
    policy.rules[2].from = vec!["10.0.0.0/8".parse().unwrap()];
    let compiled = compile(&policy, cgroup_id).unwrap();
    assert_eq!(compiled.incoming_ports, [0, 1, 2].into());
}

#[test]
fn what_does_not_fit_is_counted_and_named_cgroups_come_first() {
    let mut named = Rule {
        to: Destinations::ANY,
        ..rule_to(0)
    };
    named.cgroups = vec!["/named".into()];
    let for_containers = |name: &str| Rule {
        to: Destinations::ANY,
        containers: ContainerConditions::new(vec![Glob::parse(name).unwrap()], Vec::new()),
        ..rule_to(0)
    };
    let each = |n| Container {
        names: vec!["a".into()],
        labels: BTreeMap::new(),
        cgroup: format!("/c/{n}").into(),
        pid: 0,
        pod: None,
    };
    let running: Vec<_> = (0..policy::MAX_CGROUPS + 4).map(each).collect();
    let mut policy = Policy {
        rules: vec![for_containers("*"), for_containers("a"), named],
        ..policy_of(0)
    };
    assert_eq!(policy.find_containers(running.iter()), 5);
    let ids = |path: &Path| {
        Some(
            path.to_str()?
                .bytes()
                .fold(7, |n: u64, b| n * 31 + u64::from(b)),
        )
    };
    assert!(compile(&policy, ids).is_ok());
}
