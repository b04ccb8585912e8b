//! Sockets that another program's sockmap has are left to it.

use std::{net::TcpStream, os::fd::AsRawFd};

use aya::{
    Ebpf,
    maps::{MapData, SockHash},
    programs::SkMsg,
};
use sandbox::Sandbox;

use super::{agent, listener, pair, why_on};

/// A program of somebody else's at what is sent on some sockets.
struct Other {
    sockets: SockHash<MapData, u64>,
    _program: Ebpf,
}

impl Other {
    fn new() -> Self {
        let mut program = Ebpf::load(ebpf::OBJECT).unwrap();
        let map = program.take_map("near_apps").unwrap();
        let sockets = SockHash::try_from(map).unwrap();
        let sends: &mut SkMsg = program
            .program_mut("splice_up")
            .unwrap()
            .try_into()
            .unwrap();
        sends.load().unwrap();
        sends.attach(sockets.fd()).unwrap();
        Self {
            sockets,
            _program: program,
        }
    }

    fn takes(&mut self, socket: &TcpStream) {
        self.sockets.insert(1, socket.as_raw_fd(), 0).unwrap();
    }
}

#[test]
fn a_flow_whose_client_is_taken_is_relayed() {
    let sandbox = Sandbox::new().unwrap();
    let listener = listener(&sandbox);
    let agent = agent(&sandbox, "auto", listener.local_addr().unwrap().port());
    let (mut client, mut database) = pair(&sandbox, &listener);
    let mut other = Other::new();
    other.takes(&client);
    let why = why_on(&agent, "relay", (&mut client, &mut database));
    assert!(
        why.contains("refused: the client's socket belongs to another program's sockmap"),
        "{why}"
    );
    let taken = "underpass_splice_refusals_total{reason=\"client_taken\"}";
    assert_eq!(agent.metric(taken).unwrap(), 1.0);
    assert_eq!(agent.metric("underpass_handovers_total").unwrap(), 0.0);
}

#[test]
fn a_flow_whose_database_is_taken_goes_by_egress() {
    let sandbox = Sandbox::new().unwrap();
    let listener = listener(&sandbox);
    let agent = agent(&sandbox, "auto", listener.local_addr().unwrap().port());
    let (mut client, mut database) = pair(&sandbox, &listener);
    let mut other = Other::new();
    other.takes(&database);
    let why = why_on(&agent, "splice", (&mut client, &mut database));
    assert!(
        why.contains("by engine egress: the kernel does not take the database's socket"),
        "{why}"
    );
}
