//! Other programs' hooks beside ours.

use std::{
    fs::File,
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    path::Path,
};

use aya::{
    Ebpf, EbpfLoader,
    programs::{CgroupAttachMode, CgroupSockAddr},
};
use sandbox::{Agent, Sandbox};

use crate::common::{BINARY, rule, to};

const SERVICE: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 1);
const BACKEND: Ipv4Addr = Ipv4Addr::LOCALHOST;

/// Attaches a cluster network's hooks, which have connections to the service go to the backend.
fn cluster_network(sandbox: &Sandbox, port: u16) -> Ebpf {
    let in_order = |ip: Ipv4Addr| u32::from(ip).to_be();
    let mut ebpf = EbpfLoader::new()
        .override_global("service", &in_order(SERVICE), true)
        .override_global("backend", &in_order(BACKEND), true)
        .override_global("service_port", &u32::from(port.to_be()), true)
        .load(ebpf::IDLE_OBJECT)
        .unwrap();
    let cgroup = File::open(sandbox.cgroup.path()).unwrap();
    for name in ["to_service", "of_service"] {
        let hook: &mut CgroupSockAddr = ebpf.program_mut(name).unwrap().try_into().unwrap();
        hook.load().unwrap();
        hook.attach(&cgroup, CgroupAttachMode::Single).unwrap();
    }
    ebpf
}

/// The application is told of the service that it dialled, whichever hooks were attached first.
#[test]
fn a_client_of_a_service_sees_the_service_whoever_was_there_first() {
    for (action, outcome) in [("enrich", "intercepted"), ("bypass", "untouched")] {
        for theirs_first in [true, false] {
            let sandbox = Sandbox::new().unwrap();
            // Reached by those, too, for whom nothing is rewritten: the agent itself.
            let service = format!("{SERVICE}/32");
            let assign = ["addr", "add", service.as_str(), "dev", "lo"];
            sandbox.netns.ip(&assign).unwrap();
            let listener = sandbox.server(|| TcpListener::bind("0.0.0.0:0").unwrap());
            let listener = listener.unwrap();
            let port = listener.local_addr().unwrap().port();
            let start = || {
                let (netns, cgroup) = (Some(&sandbox.netns), &sandbox.cgroup);
                let policy = rule(action, &to(&[port]));
                Agent::start(Path::new(BINARY), netns, cgroup, "", &policy).unwrap()
            };
            let (_theirs, agent) = match theirs_first {
                true => {
                    let theirs = cluster_network(&sandbox, port);
                    (theirs, start())
                }
                false => {
                    let agent = start();
                    (cluster_network(&sandbox, port), agent)
                }
            };
            let dialled = SocketAddr::from((SERVICE, port));
            let client = sandbox.client(|| {
                let client = TcpStream::connect(dialled).unwrap();
                // The hooks are asked in the cgroup of whoever asks.
                client.peer_addr().unwrap()
            });
            let what = format!("{action}, theirs first: {theirs_first}");
            assert_eq!(client.unwrap(), dialled, "{what}");
            let counted =
                format!("underpass_connections_total{{outcome=\"{outcome}\",rule=\"r\"}}");
            assert_eq!(agent.metric(&counted).unwrap(), 1.0, "{what}");
        }
    }
}
