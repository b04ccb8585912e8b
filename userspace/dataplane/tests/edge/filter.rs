//! Packets that the edge drops: by rule, by rate, however odd they are; and nothing else.

use std::{
    net::{IpAddr, Ipv6Addr, SocketAddr},
    thread,
    time::Duration,
};

use crate::{
    DROP, PASS, TestPins, all_packets,
    frame::{ACK, RST, SYN, Segment},
    interface, packets, policy, rule,
};
use dataplane::{
    Edge,
    edge::{EdgeError, EdgeVerdict, Forward, Interface, Mode, SynRate, WantedMode},
};
use policy::{Action, Candidate, Policy, Rule};
use sandbox::{Netns, run_in};

/// In a namespace of its own.
fn with_edge(body: impl FnOnce(&TestPins, &mut Edge) + Send) {
    let netns = Netns::new().unwrap();
    run_in(Some(&netns), None, || {
        let pins = TestPins::new();
        let mut edge = pins.open();
        body(&pins, &mut edge);
    })
    .unwrap();
}

fn action(edge: &mut Edge, segment: &Segment) -> u32 {
    edge.try_out("lo", &segment.frame(), 1).unwrap().action
}

#[test]
fn the_first_rule_that_holds_decides_and_the_default_is_not_asked() {
    with_edge(|_, edge| {
        edge.install(&policy(vec![
            rule(
                "office",
                &["10.1.2.0/24", "fd00:2::/64"],
                &[":9042"],
                Action::Bypass,
            ),
            rule(
                "rest",
                &["10.1.0.0/16", "fd00::/16"],
                &[":9042"],
                Action::Deny,
            ),
            rule("enriched", &["192.168.0.0/16"], &[":9042"], Action::Enrich),
        ]))
        .unwrap();
        for (from, to, flags, expected) in [
            ("10.1.2.3:40000", "10.9.0.1:9042", SYN, PASS),
            ("10.1.3.3:40000", "10.9.0.1:9042", SYN, DROP),
            ("10.1.3.3:40000", "10.9.0.1:9042", ACK, DROP),
            ("10.1.3.3:40000", "10.9.0.1:9042", RST, DROP),
            ("10.1.3.3:40000", "10.9.0.1:22", SYN, PASS),
            ("172.16.0.1:40000", "10.9.0.1:9042", SYN, PASS),
            ("192.168.1.1:40000", "10.9.0.1:9042", SYN, PASS),
            ("[fd00:2::1]:40000", "[fd00:9::1]:9042", SYN, PASS),
            ("[fd00:3::1]:40000", "[fd00:9::1]:9042", SYN, DROP),
            ("[2001:db8::1]:40000", "[fd00:9::1]:9042", SYN, PASS),
        ] {
            let segment = Segment::new(from, to, flags);
            assert_eq!(
                action(edge, &segment),
                expected,
                "{from} to {to}, {flags:#x}"
            );
        }
        assert_eq!(packets(edge, EdgeVerdict::Denied), 4);
        assert_eq!(packets(edge, EdgeVerdict::Allowed), 3);
        assert_eq!(all_packets(edge), 10);
        let counters = edge.counters().unwrap();
        let of = |rule: &str, outcome: &str| {
            let mut counts = counters.by_rule.iter();
            let found = counts.find(|c| c.rule.as_str() == rule && c.outcome.as_str() == outcome);
            found.unwrap().connections
        };
        assert_eq!(of("rest", "denied"), 4);
        assert_eq!(of("office", "allowed"), 2);
        assert_eq!(of("enriched", "allowed"), 1);
    });
}

/// Each has two blocks of its own, as long as there are any: `blocks.rs`.
#[test]
fn networks_that_have_no_block_are_found_all_the_same() {
    with_edge(|_, edge| {
        let host = |n: u32| IpAddr::from((n << 16 | 0x0507).to_be_bytes());
        let hosts: Vec<_> = (0..3000).map(|n| format!("{}/32", host(n))).collect();
        let hosts: Vec<_> = hosts.iter().map(String::as_str).collect();
        let wide = rule("wide", &["11.0.0.0/9"], &[":9042"], Action::Deny);
        // The next generation's blocks are others.
        for _ in 0..2 {
            let hosts = rule("hosts", &hosts, &[":9042"], Action::Deny);
            edge.install(&policy(vec![hosts, wide.clone()])).unwrap();
            for (from, wanted) in [
                (host(1), DROP),
                (host(2999), DROP),
                (IpAddr::from([0, 1, 5, 8]), PASS),
                (IpAddr::from([11, 183, 5, 8]), PASS),
                (IpAddr::from([11, 3, 5, 8]), DROP),
                (IpAddr::from([11, 127, 255, 255]), DROP),
                (IpAddr::from([11, 128, 0, 0]), PASS),
            ] {
                let to: SocketAddr = "10.0.0.9:9042".parse().unwrap();
                let segment = Segment::between(SocketAddr::new(from, 40_000), to, SYN);
                assert_eq!(action(edge, &segment), wanted, "{from}");
            }
        }
    });
}

/// Networks of every length need no walk: `prefixes.rs`.
#[test]
fn ipv6_networks_of_every_length_and_many_of_one_are_found() {
    with_edge(|_, edge| {
        let ip: Ipv6Addr = "fd00:9a5c:1234:5678:9abc:def0:1234:5678".parse().unwrap();
        let nested = (9..=128).map(|bits| {
            let cut = u128::from(ip) & u128::MAX << (128 - bits);
            format!("{}/{bits}", Ipv6Addr::from(cut))
        });
        let nested: Vec<String> = nested.collect();
        // Every other one denies.
        let [open, closed] = [1, 0].map(|odd| {
            let half = nested.iter().skip(odd).step_by(2);
            half.map(String::as_str).collect::<Vec<_>>()
        });
        // More than find room: the trie knows them.
        let many = |n: u32| Ipv6Addr::from(0xfc_u128 << 120 | u128::from(n) << 64);
        let hosts: Vec<_> = (0..7000).map(|n| format!("{}/64", many(n))).collect();
        let hosts: Vec<_> = hosts.iter().map(String::as_str).collect();
        let mut rules: Vec<Rule> = Vec::new();
        for (open, closed) in open.iter().zip(&closed).rev() {
            rules.push(rule("open", &[open], &[":9042"], Action::Bypass));
            rules.push(rule("closed", &[closed], &[":9042"], Action::Deny));
        }
        rules.push(rule("many", &hosts, &[":9042"], Action::Deny));
        // The next generation has a table of its own.
        for _ in 0..2 {
            edge.install(&policy(rules.clone())).unwrap();
            let mut denied = |from: Ipv6Addr| {
                let to: SocketAddr = "[fd77::9]:9042".parse().unwrap();
                let from = SocketAddr::new(from.into(), 40_000);
                action(edge, &Segment::between(from, to, SYN)) == DROP
            };
            for bits in 8..128 {
                // So many bits are the same.
                let from = Ipv6Addr::from(u128::from(ip) ^ 1 << (127 - bits));
                assert_eq!(denied(from), bits % 2 == 1, "{from}: {bits}");
            }
            assert!(!denied(ip));
            for n in (0..7000).step_by(7) {
                assert!(denied(many(n)) && !denied(many(n + 7000)), "{n}");
            }
        }
    });
}

/// The answers to this host's own connections look like packets of a denied client.
#[test]
fn a_deny_without_ports_is_of_new_connections_only() {
    with_edge(|_, edge| {
        edge.install(&policy(vec![rule(
            "x",
            &["10.1.0.0/16"],
            &[],
            Action::Deny,
        )]))
        .unwrap();
        let to = "10.9.0.1:40000";
        assert_eq!(action(edge, &Segment::new("10.1.0.1:443", to, SYN)), DROP);
        assert_eq!(
            action(edge, &Segment::new("10.1.0.1:443", to, SYN | ACK)),
            PASS
        );
        assert_eq!(action(edge, &Segment::new("10.1.0.1:443", to, ACK)), PASS);
    });
}

#[test]
fn odd_packets_do_not_get_past_a_deny() {
    with_edge(|_, edge| {
        edge.install(&policy(vec![rule(
            "x",
            &["10.1.0.0/16", "fd00::/16"],
            &[":9042"],
            Action::Deny,
        )]))
        .unwrap();
        let v4 = Segment::new("10.1.0.1:40000", "10.9.0.1:9042", SYN);
        let v6 = Segment::new("[fd00::1]:40000", "[fd00::2]:9042", SYN);
        let odd = [
            Segment {
                tags: 1,
                ..v4.clone()
            },
            Segment {
                tags: 2,
                ..v4.clone()
            },
            Segment {
                options: 8,
                ..v4.clone()
            },
            Segment {
                options: 40,
                tags: 1,
                ..v4.clone()
            },
            // A first fragment.
            Segment {
                fragment: 0x2000,
                ..v4.clone()
            },
            Segment {
                flags: SYN | ACK | RST,
                ..v4.clone()
            },
            Segment {
                tags: 1,
                ..v6.clone()
            },
            // Hop by hop, destination options, routing.
            Segment {
                extensions: vec![0, 60, 43],
                ..v6.clone()
            },
            Segment {
                extensions: vec![44],
                ..v6
            },
        ];
        for segment in &odd {
            assert_eq!(action(edge, segment), DROP, "{segment:?}");
        }
        // Only eight bytes of the TCP header are in the first fragment.
        let mut tiny = Segment {
            fragment: 0x2000,
            ..v4.clone()
        }
        .frame();
        tiny.truncate(14 + 28);
        tiny[16..18].copy_from_slice(&28_u16.to_be_bytes());
        assert_eq!(edge.try_out("lo", &tiny, 1).unwrap().action, DROP);
        // A later one has no ports: the stack drops it, which has no first one.
        let later = Segment {
            fragment: 0x0010,
            ..v4
        };
        assert_eq!(action(edge, &later), PASS);
    });
}

#[test]
fn a_source_may_open_as_many_at_once_as_its_burst_and_then_at_its_rate() {
    with_edge(|_, edge| {
        edge.install(&policy(vec![rule("db", &[], &[":9042"], Action::Bypass)]))
            .unwrap();
        let limited = Interface {
            syn_rate: Some(SynRate {
                per_second: 1,
                burst: 5,
            }),
            mode: WantedMode::Generic,
            ..interface("lo", Forward::Off)
        };
        edge.guard(&[limited]).unwrap();
        let mut passed = |from: &str, port: u16| {
            let frames = (0..20).map(|n| {
                Segment::new(
                    &format!("{from}:{}", 40_000 + n),
                    &format!("10.9.0.1:{port}"),
                    SYN,
                )
            });
            frames
                .filter(|segment| action(edge, segment) == PASS)
                .count()
        };
        assert_eq!(passed("10.1.0.1", 9042), 5);
        assert_eq!(passed("10.1.0.2", 9042), 5, "each source has its own");
        assert_eq!(passed("10.1.0.1", 22), 20, "no rule speaks of it");
        let mut passed6 = |host: &str| {
            let frames = (0..20)
                .map(|n| Segment::new(&format!("[{host}]:{}", 40_000 + n), "[fd00::1]:9042", SYN));
            frames
                .filter(|segment| action(edge, segment) == PASS)
                .count()
        };
        assert_eq!(passed6("fd00:1::1"), 5);
        assert_eq!(passed6("fd00:1::2"), 0, "of the same /64");
        assert_eq!(passed6("fd00:2::2"), 5);
        assert_eq!(packets(edge, EdgeVerdict::Limited), 4 * 15 + 20);
        // One in a second, and never more than at the beginning.
        thread::sleep(Duration::from_millis(1500));
        let syn = |n| Segment::new(&format!("10.1.0.1:{}", 41_000 + n), "10.9.0.1:9042", SYN);
        let later = (0..20).filter(|n| action(edge, &syn(*n)) == PASS).count();
        assert!((1..=5).contains(&later), "{later}");
    });
}

#[test]
fn another_programs_interface_is_left_alone_and_a_restart_takes_ones_own_over() {
    with_edge(|pins, edge| {
        edge.install(&policy(vec![rule(
            "x",
            &["10.1.0.0/16"],
            &[":9042"],
            Action::Deny,
        )]))
        .unwrap();
        let lo = [interface("lo", Forward::Off)];
        let first = edge.guard(&lo).unwrap();
        // The loopback's driver cannot.
        assert_eq!(first[0].mode, Mode::Generic);
        assert!(first[0].not_native.is_some() && !first[0].taken_over);
        let before = dataplane::edge::programs_of("lo").unwrap();
        let denied = Segment::new("10.1.0.1:40000", "10.9.0.1:9042", SYN);
        assert_eq!(action(edge, &denied), DROP);

        let other_pins = TestPins::new();
        let refused = other_pins.open().guard(&lo).unwrap_err();
        assert!(
            matches!(&refused, EdgeError::Foreign { interface, program, .. }
                if interface == "lo" && *program == before[0].program),
            "{refused}"
        );
        assert_eq!(dataplane::edge::programs_of("lo").unwrap(), before);

        // As after a restart: the policy in force is there before the new agent has put one.
        let mut next = pins.open();
        assert_eq!(action(&mut next, &denied), DROP);
        assert_eq!(packets(&next, EdgeVerdict::Denied), 2);
        let taken = next.guard(&lo).unwrap();
        assert!(taken[0].taken_over, "{taken:?}");
        let after = dataplane::edge::programs_of("lo").unwrap();
        assert_ne!(after[0].program, before[0].program);
        next.install(&policy(vec![])).unwrap();
        assert_eq!(action(&mut next, &denied), PASS);

        next.guard(&[]).unwrap();
        assert_eq!(dataplane::edge::programs_of("lo").unwrap(), []);
    });
}

/// The kernel follows the plain reading, whatever else is written and erased between.
#[test]
fn the_kernel_decides_as_the_plain_reading_does() {
    let networks = [
        "0.0.0.0/0",
        "10.0.0.0/8",
        "10.1.0.0/16",
        "10.1.2.3/32",
        "fd00::/8",
        "fd00:1::/32",
    ];
    let targets = [
        ":9042",
        ":9043",
        "10.0.0.0/8:",
        "10.1.2.3/32:9042",
        "fd00::/8:9043",
        "fd00:1::/32:",
    ];
    let addresses = [
        "10.1.2.3",
        "10.1.9.9",
        "10.9.9.9",
        "192.168.0.1",
        "fd00:1::5",
        "fd77::1",
    ];
    let addresses: Vec<IpAddr> = addresses.iter().map(|a| a.parse().unwrap()).collect();
    let mut random = Random(20_261_122);
    with_edge(|_, edge| {
        for _ in 0..60 {
            let rules = (0..random.below(9)).map(|_| {
                let from: Vec<&str> = random.some(&networks);
                let to: Vec<&str> = random.some(&targets);
                let action = [Action::Bypass, Action::Deny][random.below(2)];
                rule("r", &from, &to, action)
            });
            let policy = policy(rules.collect());
            edge.install(&policy).unwrap();
            for from in &addresses {
                for to in addresses.iter().filter(|to| to.is_ipv4() == from.is_ipv4()) {
                    for port in [9042, 9043, 1] {
                        let (from, to) =
                            (SocketAddr::new(*from, 40_000), SocketAddr::new(*to, port));
                        let denies = plainly(&policy, from, to) == Some(Action::Deny);
                        let dropped = action(edge, &Segment::between(from, to, SYN)) == DROP;
                        assert_eq!(dropped, denies, "{from} to {to}: {policy:#?}");
                    }
                }
            }
        }
    });
}

fn plainly(policy: &Policy, from: SocketAddr, to: SocketAddr) -> Option<Action> {
    let candidate = Candidate {
        from: Some(from.ip()),
        to,
        uid: 0,
        gid: 0,
        process: String::new(),
        cgroup: "/".into(),
        netns: None,
    };
    let speaks = |rule: &&Rule| !(rule.from.is_empty() && rule.to.is_any());
    let mut rules = policy.rules.iter().filter(speaks);
    Some(rules.find(|rule| rule.miss(&candidate).is_none())?.action)
}

struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % limit
    }

    fn some<'a>(&mut self, all: &[&'a str]) -> Vec<&'a str> {
        (0..self.below(3))
            .map(|_| all[self.below(all.len())])
            .collect()
    }
}
