//! Other programs' hooks beside ours: a cluster network's, by which connections to a service go to a backend, and
//! sockets are told of the service.

use std::{
    fs::{self, File},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream},
    os::fd::{AsFd, OwnedFd},
    path::Path,
    process::Command,
};

use aya::{Ebpf, EbpfLoader, programs::CgroupSockAddr};
use dataplane::link_to_cgroup;
use sandbox::{Agent, Cgroup, Sandbox, run_in};

use crate::common::{BINARY, rule, to};

/// Hooks of theirs, and the places at which these are attached (`enum bpf_attach_type`): by name, number, bpftool's name.
const CONNECT: [(&str, u32, &str); 2] = [
    ("to_service", 10, "connect4"),
    ("to_service6", 11, "connect6"),
];
const NAMES: [(&str, u32, &str); 2] = [
    ("of_service", 29, "getpeername4"),
    ("of_service6", 30, "getpeername6"),
];

/// `BPF_F_BEFORE` and `BPF_F_PREORDER` (linux/bpf.h).
const BEFORE: u32 = 1 << 3;
const PREORDER: u32 = 1 << 6;

/// How a hook of theirs is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    /// By a link, with these flags.
    Link(u32),
    /// By BPF_PROG_ATTACH, as one of several, as older programs do.
    Legacy,
}

impl How {
    fn is_preordered(self) -> bool {
        matches!(self, Self::Link(flags) if flags & PREORDER != 0)
    }

    fn is_before(self) -> bool {
        matches!(self, Self::Link(flags) if flags & BEFORE != 0)
    }
}

const HOWS: [How; 5] = [
    How::Link(0),
    How::Link(BEFORE),
    How::Link(PREORDER),
    How::Link(PREORDER | BEFORE),
    How::Legacy,
];

/// The cgroup of their hooks, seen from that of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Same,
    Above,
    Beneath,
}

/// A service of its own, whose hooks are attached in two of those ways.
#[derive(Clone, Copy, Debug)]
struct Service {
    number: u8,
    connect: How,
    names: How,
}

fn services() -> Vec<Service> {
    let ways = HOWS
        .iter()
        .flat_map(|connect| HOWS.map(|names| (*connect, names)));
    let of = |(number, (connect, names))| Service {
        number,
        connect,
        names,
    };
    (1..).zip(ways).map(of).collect()
}

impl Service {
    fn v4(self) -> Ipv4Addr {
        Ipv4Addr::new(10, 96, 0, self.number)
    }

    fn dialled(self, is_ipv6: bool) -> IpAddr {
        let [a, b, c, d] = self.v4().octets().map(u16::from);
        match is_ipv6 {
            true => Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, a << 8 | b, c << 8 | d).into(),
            false => self.v4().into(),
        }
    }

    /// Whether the kernel lets their hook on connect() see the address before ours does.
    fn is_first_to_connect(self, place: Place, theirs_first: bool) -> bool {
        match place {
            Place::Same => theirs_first || self.connect.is_before() || self.connect.is_preordered(),
            // Hooks of a cgroup run before those of the cgroups above, unless these are preordered.
            Place::Above => self.connect.is_preordered(),
            Place::Beneath => true,
        }
    }

    /// Whether the kernel has their hook on getpeername() run before ours, which is preordered, and before all that
    /// were attached when it came.
    fn is_first_to_name(self, place: Place, theirs_first: bool) -> bool {
        match place {
            Place::Same => !theirs_first && self.names.is_preordered() && self.names.is_before(),
            Place::Above => self.names.is_preordered(),
            Place::Beneath => false,
        }
    }
}

/// Hooks of theirs for one service. They go with it, and with the cgroup.
struct Theirs {
    _ebpf: Ebpf,
    _links: Vec<OwnedFd>,
}

fn attach(service: Service, port: u16, at: &Cgroup) -> Theirs {
    let in_order = |ip: Ipv4Addr| u32::from(ip).to_be();
    let mut ebpf = EbpfLoader::new()
        .override_global("service", &in_order(service.v4()), true)
        .override_global("backend", &in_order(Ipv4Addr::LOCALHOST), true)
        .override_global("service_port", &u32::from(port.to_be()), true)
        .load(ebpf::IDLE_OBJECT)
        .unwrap();
    let cgroup = File::open(at.path()).unwrap();
    let mut links = Vec::new();
    let hooks = CONNECT.map(|hook| (hook, service.connect));
    for ((name, hook, called), how) in hooks
        .into_iter()
        .chain(NAMES.map(|hook| (hook, service.names)))
    {
        let program: &mut CgroupSockAddr = ebpf.program_mut(name).unwrap().try_into().unwrap();
        program.load().unwrap();
        match how {
            How::Link(flags) => {
                let program = program.fd().unwrap().as_fd();
                links.push(link_to_cgroup(program, cgroup.as_fd(), hook, flags).unwrap());
            }
            How::Legacy => {
                let pin = format!("/sys/fs/bpf/neighbour-{}-{name}", std::process::id());
                program.pin(&pin).unwrap();
                let mut bpftool = Command::new("bpftool");
                bpftool.args(["cgroup", "attach"]).arg(at.path());
                let attached = bpftool.args([called, "pinned", &pin, "multi"]).output();
                fs::remove_file(&pin).unwrap();
                let attached = attached.unwrap();
                assert!(attached.status.success(), "{attached:?}");
            }
        }
    }
    Theirs {
        _ebpf: ebpf,
        _links: links,
    }
}

/// The application is told of the service that it dialled, whichever hooks were attached first, wherever and however;
/// where the kernel has theirs run first at both ends it is told of the backend, as docs/limits.md says.
#[test]
fn a_client_of_a_service_sees_the_service_whoever_was_there_first() {
    for place in [Place::Same, Place::Above, Place::Beneath] {
        for theirs_first in [true, false] {
            for (action, outcome) in [("enrich", "intercepted"), ("bypass", "untouched")] {
                see(place, theirs_first, action, outcome);
            }
        }
    }
}

fn see(place: Place, theirs_first: bool, action: &str, outcome: &str) {
    let sandbox = Sandbox::new().unwrap();
    let inner = sandbox.cgroup.child("inner").unwrap();
    let (ours, theirs) = match place {
        Place::Same => (&sandbox.cgroup, &sandbox.cgroup),
        Place::Above => (&inner, &sandbox.cgroup),
        Place::Beneath => (&sandbox.cgroup, &inner),
    };
    let listener = sandbox.server(|| TcpListener::bind("[::]:0").unwrap());
    let listener = listener.unwrap();
    let port = listener.local_addr().unwrap().port();
    let services = services();
    let dials = || {
        let families = [false, true];
        services
            .iter()
            .flat_map(move |s| families.map(|is_ipv6| (*s, s.dialled(is_ipv6))))
    };
    for (_, address) in dials() {
        // Reached by those, too, for whom nothing is rewritten: the agent itself.
        let bits = if address.is_ipv6() { 128 } else { 32 };
        let assign = format!("{address}/{bits}");
        sandbox
            .netns
            .ip(&["addr", "add", &assign, "dev", "lo"])
            .unwrap();
    }
    let start = || {
        let (netns, policy) = (Some(&sandbox.netns), rule(action, &to(&[port])));
        Agent::start(Path::new(BINARY), netns, ours, "", &policy).unwrap()
    };
    let attach_all =
        || -> Vec<Theirs> { services.iter().map(|s| attach(*s, port, theirs)).collect() };
    let (_theirs, agent) = match theirs_first {
        true => {
            let theirs = attach_all();
            (theirs, start())
        }
        false => {
            let agent = start();
            (attach_all(), agent)
        }
    };
    let mut dialled = 0;
    for (service, address) in dials() {
        let asked = SocketAddr::new(address, port);
        let seen = run_in(Some(&sandbox.netns), Some(&inner), || {
            // The hooks are asked in the cgroup of whoever asks.
            TcpStream::connect(asked).unwrap().peer_addr().unwrap()
        });
        let is_lost = action == "enrich"
            && service.is_first_to_connect(place, theirs_first)
            && service.is_first_to_name(place, theirs_first);
        let expected = match (is_lost, address.is_ipv6()) {
            (false, _) => address,
            (true, false) => Ipv4Addr::LOCALHOST.into(),
            (true, true) => Ipv6Addr::LOCALHOST.into(),
        };
        let what = format!("{action}, {place:?}, theirs first: {theirs_first}, {service:?}");
        assert_eq!(seen.unwrap(), SocketAddr::new(expected, port), "{what}");
        dialled += 1;
    }
    let counted = format!("underpass_connections_total{{outcome=\"{outcome}\",rule=\"r\"}}");
    assert_eq!(agent.metric(&counted).unwrap(), f64::from(dialled));
    drop(agent);
}
