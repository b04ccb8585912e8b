//! What becomes of single packets at a gateway's edge.

use std::net::{IpAddr, SocketAddr};

use crate::{
    DROP, PASS, REDIRECT, all_packets,
    frame::{ACK, FIN, IP, RST, SYN, Segment, folded, sum},
    lone::{CLIENT, DEVICE, OWN4, OWN6, ROUTER, VIP4, VIP6, forwarding, host, with_gateway},
    packets, policy,
    quote::{complaint, complaint_of, quoted, too_big},
    read::{Read, read},
    rule,
};
use dataplane::{
    Edge,
    edge::{EdgeVerdict, Forward, WantedMode},
};
use policy::{Action, Rule};

fn vip(is_ipv4: bool) -> SocketAddr {
    if is_ipv4 { VIP4 } else { VIP6 }.parse().unwrap()
}

fn own(is_ipv4: bool) -> IpAddr {
    if is_ipv4 { OWN4 } else { OWN6 }.parse().unwrap()
}

fn client(is_ipv4: bool, port: u16) -> SocketAddr {
    SocketAddr::new(host(CLIENT, is_ipv4), port)
}

fn request(is_ipv4: bool, port: u16, flags: u8) -> Segment {
    Segment::between(client(is_ipv4, port), vip(is_ipv4), flags)
}

/// What a frame has become, which must have been sent on.
fn sent(edge: &mut Edge, frame: &[u8]) -> Vec<u8> {
    let tried = edge.try_out(DEVICE, frame, 1).unwrap();
    assert_eq!(
        tried.action,
        REDIRECT,
        "{:?}",
        edge.counters().unwrap().packets
    );
    tried.frame
}

fn right(frame: &[u8]) -> Read {
    let read = read(frame).unwrap();
    assert!(read.header_is_right && read.check_is_right, "{read:?}");
    read
}

/// The MAC that a frame is for belongs to this host.
fn is_for(frame: &[u8], ip: IpAddr) {
    let last = match ip {
        IpAddr::V4(v4) => v4.octets()[3],
        IpAddr::V6(v6) => v6.octets()[15],
    };
    assert_eq!(frame[..6], [2, 0, 0, 0, 0, last], "for {ip}");
}

#[test]
fn addresses_ports_ttl_and_checksums_are_right_both_ways() {
    with_gateway(
        (Forward::Snat, WantedMode::Auto),
        1024,
        forwarding(4),
        |edge| {
            for is_ipv4 in [true, false] {
                let syn = sent(edge, &request(is_ipv4, 40_000, SYN).frame());
                let first = right(&syn);
                is_for(&syn, first.to.ip());
                assert_eq!(
                    (first.from.ip(), first.ttl, first.flags),
                    (own(is_ipv4), 63, SYN)
                );
                assert!((1024..32_768).contains(&first.from.port()), "{first:?}");
                let answer = Segment::between(first.to, first.from, SYN | ACK);
                let answer = sent(edge, &answer.frame());
                is_for(&answer, host(CLIENT, is_ipv4));
                let back = right(&answer);
                assert_eq!(
                    (back.from, back.to, back.ttl),
                    (vip(is_ipv4), client(is_ipv4, 40_000), 63)
                );
                let data = Segment {
                    payload: (0..101).collect(),
                    ..request(is_ipv4, 40_000, ACK)
                };
                let data = right(&sent(edge, &data.frame()));
                assert_eq!((data.from, data.to), (first.from, first.to));
                assert!(data.rest.ends_with(&(0..101).collect::<Vec<u8>>()));
            }
            assert_eq!(packets(edge, EdgeVerdict::ToBackend), 4);
            assert_eq!(packets(edge, EdgeVerdict::ToClient), 2);
            assert_eq!(all_packets(edge), 6);
        },
    );
}

/// A checksum of which the sender has computed the pseudo-header's part only.
fn left_to_hardware(segment: &Segment) -> Vec<u8> {
    let mut frame = segment.frame();
    let at = IP + if segment.from.is_ipv4() { 20 } else { 40 };
    let bytes = frame.len() - at;
    let pseudo = crate::frame::pseudo_header(segment.from.ip(), segment.to.ip(), 6, bytes);
    frame[at + 16..at + 18].copy_from_slice(&pseudo.to_be_bytes());
    frame
}

#[test]
fn a_checksum_that_was_left_to_the_hardware_is_right_afterwards() {
    with_gateway(
        (Forward::Snat, WantedMode::Native),
        1024,
        forwarding(1),
        |edge| {
            for is_ipv4 in [true, false] {
                for (n, bytes) in [0, 1, 2, 3, 4, 491, 492, 493, 1000, 1439, 1440]
                    .into_iter()
                    .enumerate()
                {
                    let port = 41_000 + n as u16;
                    right(&sent(edge, &left_to_hardware(&request(is_ipv4, port, SYN))));
                    let payload: Vec<u8> = (0..bytes).map(|n| (n * 31) as u8).collect();
                    let segment = Segment {
                        payload,
                        ..request(is_ipv4, port, ACK)
                    };
                    right(&sent(edge, &left_to_hardware(&segment)));
                }
            }
        },
    );
    // In the stack the kernel computes it on the way out.
    with_gateway(
        (Forward::Snat, WantedMode::Generic),
        1024,
        forwarding(1),
        |edge| {
            for is_ipv4 in [true, false] {
                let syn = sent(edge, &left_to_hardware(&request(is_ipv4, 40_000, SYN)));
                assert!(read(&syn).unwrap().check_is_partial);
                right(&sent(edge, &request(is_ipv4, 40_001, SYN).frame()));
            }
        },
    );
}

/// Host and port, administratively, and time exceeded, by type and code.
fn unreachable_or_too_far(is_ipv4: bool) -> [[u8; 2]; 4] {
    match is_ipv4 {
        true => [[3, 1], [3, 3], [3, 13], [11, 0]],
        false => [[1, 3], [1, 4], [1, 1], [3, 0]],
    }
}

#[test]
fn a_router_complains_to_whoever_sent_the_packet() {
    with_gateway(
        (Forward::Snat, WantedMode::Auto),
        1024,
        forwarding(2),
        |edge| {
            for is_ipv4 in [true, false] {
                let before = request(is_ipv4, 40_000, SYN).frame();
                let to_backend = sent(edge, &before);
                let backend = right(&to_backend);
                let reply = Segment::between(backend.to, backend.from, SYN | ACK).frame();
                let to_client = sent(edge, &reply);
                let header = if is_ipv4 { 20 } else { 40 };
                for (on_the_way, original) in [(&to_backend, &before), (&to_client, &reply)] {
                    let sender = read(original).unwrap().from.ip();
                    let router = host(ROUTER, is_ipv4);
                    let others = unreachable_or_too_far(is_ipv4);
                    let kinds = [too_big(router)].into_iter().chain(others);
                    let cases = kinds.flat_map(|kind| [(kind, header + 20), (kind, header + 8)]);
                    for (kind, bytes) in cases {
                        let complaint = complaint_of(kind, router, on_the_way, bytes);
                        let passed_on = sent(edge, &complaint);
                        is_for(&passed_on, sender);
                        assert_eq!(passed_on[IP + header..][..2], kind);
                        let (to, quoted) = quoted(&passed_on);
                        assert_eq!(to, sender);
                        // But for the time to live, which had been counted down.
                        let mut expected = original[IP..IP + bytes].to_vec();
                        if is_ipv4 {
                            expected[8] -= 1;
                            expected[10..12].copy_from_slice(&quoted[IP + 10..IP + 12]);
                            assert_eq!(folded(sum(&quoted[IP..IP + 20])), 0xffff);
                        } else {
                            expected[7] -= 1;
                        }
                        assert_eq!(quoted[IP..], expected);
                    }
                }
            }
            assert_eq!(packets(edge, EdgeVerdict::IcmpError), 40);
            // What is no complaint, whatever it carries.
            let syn = request(true, 40_000, SYN).frame();
            let to_backend = sent(edge, &syn);
            let echo = complaint_of([8, 0], host(ROUTER, true), &to_backend, 40);
            assert_eq!(edge.try_out(DEVICE, &echo, 1).unwrap().action, PASS);
            // About a connection of nobody's.
            let foreign = Segment::between(client(true, 1), SocketAddr::new(own(true), 22), ACK);
            let about = complaint(host(ROUTER, true), &foreign.frame(), 40);
            assert_eq!(edge.try_out(DEVICE, &about, 1).unwrap().action, PASS);
        },
    );
}

/// What is larger than the wire's 1,500 bytes comes back as a complaint about it.
fn told(edge: &mut Edge, segment: &Segment, frame: &[u8]) {
    let before = packets(edge, EdgeVerdict::TooBig);
    let answer = sent(edge, frame);
    assert_eq!(packets(edge, EdgeVerdict::TooBig), before + 1);
    let (to, about) = quoted(&answer);
    assert_eq!(to, segment.from.ip());
    assert!(frame[IP..].starts_with(&about[IP..]), "another packet");
    let is_ipv4 = to.is_ipv4();
    let (all, icmp) = if is_ipv4 {
        (576, IP + 20)
    } else {
        (1280, IP + 40)
    };
    assert_eq!(answer.len(), IP + all);
    assert_eq!((&answer[..6], &answer[6..12]), (&frame[6..12], &frame[..6]));
    let kind = if is_ipv4 { [3, 4] } else { [2, 0] };
    assert_eq!(answer[icmp..icmp + 2], kind);
    assert_eq!(answer[icmp + 4..icmp + 8], 1500_u32.to_be_bytes());
}

#[test]
fn who_sends_what_is_larger_than_the_next_wire_takes_is_told() {
    for forward in [Forward::Snat, Forward::Dsr] {
        with_gateway((forward, WantedMode::Native), 1024, forwarding(1), |edge| {
            for is_ipv4 in [true, false] {
                let fits = 1500 - 20 - if is_ipv4 { 20 } else { 40 };
                let syn = right(&sent(edge, &request(is_ipv4, 40_000, SYN).frame()));
                let large = |segment: Segment, more: usize| Segment {
                    payload: (0..fits + more).map(|n| (n * 31) as u8).collect(),
                    ..segment
                };
                let from_client = || request(is_ipv4, 40_000, ACK);
                right(&sent(edge, &large(from_client(), 0).frame()));
                for more in [1, 2, 1001, 2000] {
                    let segment = large(from_client(), more);
                    told(edge, &segment, &segment.frame());
                    told(edge, &segment, &left_to_hardware(&segment));
                }
                let opens = large(request(is_ipv4, 40_001, SYN), 1);
                told(edge, &opens, &opens.frame());
                if forward == Forward::Snat {
                    let reply = large(Segment::between(syn.to, syn.from, ACK), 1);
                    told(edge, &reply, &reply.frame());
                }
            }
        });
    }
    // In the stack the kernel completes the quoted checksum on the way out.
    let snat = (Forward::Snat, WantedMode::Generic);
    with_gateway(snat, 1024, forwarding(1), |edge| {
        for is_ipv4 in [true, false] {
            let segment = Segment {
                payload: vec![7; 1501],
                ..request(is_ipv4, 40_000, SYN)
            };
            told(edge, &segment, &segment.frame());
            let mut answer = sent(edge, &left_to_hardware(&segment));
            let at = IP + if is_ipv4 { 20 + 8 + 20 } else { 40 + 8 + 40 };
            let completed = !folded(sum(&answer[at..]));
            answer[at + 16..at + 18].copy_from_slice(&completed.to_be_bytes());
            assert_eq!(quoted(&answer).0, segment.from.ip());
        }
    });
}

#[test]
fn a_complaint_about_a_backends_direct_reply_gets_to_the_backend() {
    let dsr = (Forward::Dsr, WantedMode::Auto);
    with_gateway(dsr, 1024, forwarding(4), |edge| {
        for is_ipv4 in [true, false] {
            let request = request(is_ipv4, 40_000, SYN);
            let backends_mac = sent(edge, &request.frame())[..6].to_vec();
            let reply = Segment::between(request.to, request.from, ACK).frame();
            let complaint = complaint(host(ROUTER, is_ipv4), &reply, 60);
            let passed_on = sent(edge, &complaint);
            assert_eq!(passed_on[..6], backends_mac);
            let (to, about) = quoted(&passed_on);
            assert_eq!(to, request.to.ip());
            assert!(reply[IP..].starts_with(&about[IP..]));
        }
        assert_eq!(packets(edge, EdgeVerdict::IcmpError), 2);
    });
}

#[test]
fn a_backend_with_the_virtual_address_gets_the_packet_as_it_was() {
    with_gateway(
        (Forward::Dsr, WantedMode::Auto),
        1024,
        forwarding(4),
        |edge| {
            for is_ipv4 in [true, false] {
                let before = request(is_ipv4, 40_000, SYN).frame();
                let after = sent(edge, &before);
                let (was, is) = (right(&before), right(&after));
                assert_eq!(Read { ttl: 64, ..is }, was);
                assert!((100..104).contains(&after[5]), "to a backend's MAC");
                right(&sent(
                    edge,
                    &left_to_hardware(&request(is_ipv4, 40_000, ACK)),
                ));
            }
        },
    );
}

#[test]
fn odd_packets_are_passed_up_as_they_were_and_counted_by_cause() {
    with_gateway(
        (Forward::Snat, WantedMode::Auto),
        1024,
        forwarding(2),
        |edge| {
            let (v4, v6) = (request(true, 40_000, SYN), request(false, 40_000, SYN));
            for (segment, fate) in [
                (
                    Segment {
                        fragment: 0x2000,
                        ..v4.clone()
                    },
                    EdgeVerdict::Fragment,
                ),
                (
                    Segment {
                        options: 4,
                        ..v4.clone()
                    },
                    EdgeVerdict::IpOptions,
                ),
                (
                    Segment {
                        tags: 1,
                        ..v4.clone()
                    },
                    EdgeVerdict::Vlan,
                ),
                (
                    Segment {
                        ttl: 1,
                        ..v4.clone()
                    },
                    EdgeVerdict::Ttl,
                ),
                (
                    Segment {
                        flags: SYN | FIN,
                        ..v4.clone()
                    },
                    EdgeVerdict::Malformed,
                ),
                (
                    Segment {
                        flags: SYN | RST,
                        ..v4.clone()
                    },
                    EdgeVerdict::Malformed,
                ),
                (
                    Segment {
                        extensions: vec![60],
                        ..v6.clone()
                    },
                    EdgeVerdict::ExtensionHeader,
                ),
                (
                    Segment {
                        extensions: vec![44],
                        ..v6.clone()
                    },
                    EdgeVerdict::Fragment,
                ),
                (
                    Segment {
                        tags: 2,
                        ..v6.clone()
                    },
                    EdgeVerdict::Vlan,
                ),
                (Segment { ttl: 0, ..v6 }, EdgeVerdict::Ttl),
            ] {
                let (before, frame) = (packets(edge, fate), segment.frame());
                let tried = edge.try_out(DEVICE, &frame, 1).unwrap();
                assert_eq!(
                    (tried.action, tried.frame == frame),
                    (PASS, true),
                    "{segment:?}"
                );
                assert_eq!(packets(edge, fate), before + 1, "{segment:?}");
            }
            let mut wrong = v4.frame();
            wrong[IP + 10] ^= 1;
            assert_eq!(edge.try_out(DEVICE, &wrong, 1).unwrap().action, PASS);
            assert_eq!(packets(edge, EdgeVerdict::Malformed), 3);
            assert_eq!(packets(edge, EdgeVerdict::ToBackend), 0);
        },
    );
}

#[test]
fn a_port_goes_to_another_connection_when_its_own_has_ended_and_not_before() {
    with_gateway(
        (Forward::Snat, WantedMode::Auto),
        4096,
        forwarding(1),
        |edge| {
            // Of the gateway's 31,744 ports: too many connections for the table, let alone for chance.
            let open =
                |edge: &mut Edge, port: u16| right(&sent(edge, &request(true, port, SYN).frame()));
            let first = open(edge, 40_000);
            assert_eq!(
                open(edge, 40_000),
                first,
                "a SYN that is sent again goes the same way"
            );
            sent(edge, &request(true, 40_000, ACK).frame());
            sent(edge, &request(true, 40_000, ACK | FIN).frame());
            sent(
                edge,
                &Segment::between(first.to, first.from, ACK | FIN).frame(),
            );
            // The last acknowledgement still gets there, and so does a new connection from there.
            sent(edge, &request(true, 40_000, ACK).frame());
            assert_eq!(open(edge, 40_000).to, first.to);
            // Nobody has this port.
            let stray = Segment::between(first.to, SocketAddr::new(own(true), 1023), ACK);
            assert_eq!(
                edge.try_out(DEVICE, &stray.frame(), 1).unwrap().action,
                PASS
            );
        },
    );
}

#[test]
fn a_backend_whose_mac_is_not_known_is_asked_for() {
    let mut rules = forwarding(1);
    rules[0].backends = vec!["10.0.0.77:9042".parse().unwrap()];
    with_gateway((Forward::Snat, WantedMode::Auto), 1024, rules, |edge| {
        // The host knows this one, too: forget it.
        let forgotten = std::process::Command::new("ip")
            .args(["neigh", "del", "10.0.0.77", "dev", DEVICE])
            .status();
        assert!(forgotten.unwrap().success());
        let frame = request(true, 40_000, SYN).frame();
        assert_eq!(edge.try_out(DEVICE, &frame, 1).unwrap().action, DROP);
        assert_eq!(packets(edge, EdgeVerdict::NoNeighbour), 1);
        edge.tend().unwrap();
        let asked = std::process::Command::new("ip")
            .args(["neigh", "show", "10.0.0.77"])
            .output();
        let asked = String::from_utf8(asked.unwrap().stdout).unwrap();
        assert!(asked.contains("INCOMPLETE"), "{asked}");
    });
}

/// Rules by which the agent sees clients of IPv4's virtual address.
fn enriching(from: &[&str]) -> Vec<Rule> {
    let mut rules = forwarding(1);
    let read = Rule {
        backends: rules[0].backends.clone(),
        ..rule("read", from, &[VIP4], Action::Enrich)
    };
    rules.insert(0, read);
    rules
}

#[test]
fn where_the_agent_has_an_address_odd_packets_of_forwarded_connections_are_dropped() {
    let snat = (Forward::Snat, WantedMode::Auto);
    with_gateway(snat, 1024, forwarding(1), |edge| {
        let odd = Segment {
            ttl: 1,
            ..request(true, 40_000, ACK)
        };
        let action = |edge: &mut Edge, segment: &Segment| {
            edge.try_out(DEVICE, &segment.frame(), 1).unwrap().action
        };
        sent(edge, &request(true, 40_000, SYN).frame());
        sent(edge, &request(true, 40_000, ACK).frame());
        assert_eq!(action(edge, &odd), PASS);
        edge.install(&policy(enriching(&["10.0.0.77/32"]))).unwrap();
        assert_eq!(action(edge, &odd), DROP, "the stack would reset it");
        sent(edge, &request(true, 40_000, ACK).frame());
        // What opens a connection is the agent's, if it cannot be forwarded.
        let opens = Segment {
            ttl: 64,
            options: 4,
            ..request(true, 40_001, SYN)
        };
        assert_eq!(action(edge, &opens), PASS);
    });
}

#[test]
fn a_connection_that_the_stack_gets_is_not_anothers_before_it() {
    let snat = (Forward::Snat, WantedMode::Auto);
    with_gateway(snat, 1024, forwarding(1), |edge| {
        let first = right(&sent(edge, &request(true, 40_000, SYN).frame()));
        sent(edge, &request(true, 40_000, ACK).frame());
        edge.install(&policy(enriching(&[]))).unwrap();
        let action = |edge: &mut Edge, flags: u8| {
            let frame = request(true, 40_000, flags).frame();
            edge.try_out(DEVICE, &frame, 1).unwrap().action
        };
        assert_eq!(action(edge, ACK), REDIRECT, "what is forwarded goes on");
        sent(
            edge,
            &Segment::between(first.to, first.from, ACK | RST).frame(),
        );
        assert_eq!(action(edge, SYN), PASS);
        assert_eq!(action(edge, ACK), PASS, "it is the agent's now");
    });
}
