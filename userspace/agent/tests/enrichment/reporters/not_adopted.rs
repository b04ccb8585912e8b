//! Running connections that are not read, and why: each is counted by its reason, and `doctor` names some.

use std::{
    fs,
    io::{IoSlice, IoSliceMut},
    mem::MaybeUninit,
    net::TcpStream,
    os::{fd::AsFd, unix::net::UnixStream},
    path::Path,
};

use agent::config::Config;
use dataplane::doctor;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

use super::{
    adopted::{STATS, are_paired, asks, counted, shows_it_read, taps},
    *,
};
use crate::common::wire::{hooked_host, host_with};

#[test]
fn whoever_needs_the_agent_has_to_connect_again_and_is_counted() {
    host(|host| {
        let mut c = begin(host, 4);
        host.policy(&policy("path = \"inline\"", STATS));
        let waits = "underpass_observed_not_adopted{reason=\"needs_agent\"}";
        let said = |file: &Path| {
            let config = Config::load(file).unwrap();
            let cgroup = host.sandbox.cgroup.path();
            let findings = || doctor::running(&config.policy, Some(cgroup), &[], true);
            let findings = host.sandbox.server(findings).unwrap().into_iter();
            findings.map(|found| found.detail).collect::<Vec<_>>()
        };
        let file = host.agent.file();
        let nobody = "0 can be read where they are";
        let again = "cannot be read: their rule needs the bytes, so they have to connect again";
        let [client, database] = [c.client.local_addr(), c.client.peer_addr()].map(Result::unwrap);
        let own = fs::read_to_string("/proc/self/comm").unwrap();
        let named = format!("{client} to {database} of {:?}", own.trim_end());
        let one = format!("1 {again} ({named})");
        assert_eq!(said(&file), [nobody, &one]);
        host.policy("");
        let others = [(); 4].map(|()| host.connect());
        host.policy(&policy("path = \"inline\"", STATS));
        let all = said(&file).pop().unwrap();
        assert!(all.starts_with(&format!("5 {again} (")), "{all}");
        assert!(all.ends_with(", and 2 more)"), "{all}");
        eventually("all are counted", || {
            host.agent.metric(waits).unwrap() == 5.0
        });
        others.into_iter().for_each(Conversation::ends);
        asks(&mut c, 4, 2);
        assert_eq!(counted(&host.agent), (0, 0));
        host.policy(&policy(
            "uid = [4711]\nfail = \"open\"\npath = \"tap\"",
            STATS,
        ));
        eventually("it is not counted any more", || {
            host.agent.metric(waits).unwrap() == 0.0
        });
        assert_eq!(said(&file), [nobody]);
        assert_eq!(host.metric("observed_adopted", "rule=\"r\""), 0);
        c.ends();
    });
}

/// A descriptor that was sent, and closed by the sender, is nobody's until it is taken.
#[test]
fn a_connection_that_no_process_has_open_is_counted_and_read_later() {
    host(|host| {
        let Conversation { client, server, .. } = begin(host, 4);
        let (here, there) = UnixStream::pair().unwrap();
        passes(&here, client);
        host.policy(&taps());
        let counted = || {
            let sample = "underpass_observed_not_adopted{reason=\"no_process\"}";
            host.agent.metric(sample).unwrap()
        };
        eventually("it is counted", || counted() == 1.0);
        let mut c = Conversation {
            client: taken(&there),
            server,
            in_segments: false,
        };
        host.policy(&taps());
        shows_it_read(&host.agent, &c);
        eventually("it is not counted any more", || counted() == 0.0);
        asks(&mut c, 4, 11);
        eventually("it is read", || are_paired(&host.agent, 10));
        c.ends();
    });
}

/// Sends a connection's descriptor, and closes its own.
fn passes(to: &UnixStream, connection: TcpStream) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds = [connection.as_fd()];
    assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
    sendmsg(to, &[IoSlice::new(b"x")], &mut control, SendFlags::empty()).unwrap();
}

/// Takes a connection's descriptor.
fn taken(from: &UnixStream) -> TcpStream {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let mut parts = [IoSliceMut::new(&mut byte)];
    recvmsg(from, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC).unwrap();
    let mut fds = control.drain().flat_map(|message| match message {
        RecvAncillaryMessage::ScmRights(fds) => fds.collect::<Vec<_>>(),
        _ => Vec::new(),
    });
    fds.next().unwrap().into()
}

#[test]
fn running_connections_for_which_there_is_no_room_are_counted() {
    const ENTRIES: usize = 8;
    hooked_host(&format!("entries={ENTRIES}"), |host| {
        let mut all = [(); ENTRIES + 4].map(|()| begin(host, 4));
        host.policy(&taps());
        let counted = || {
            let sample = "underpass_observed_not_adopted{reason=\"no_room\"}";
            host.agent.metric(sample).unwrap()
        };
        eventually("those are counted", || counted() == 4.0);
        assert_eq!(
            host.metric("observed_adopted", "rule=\"r\""),
            ENTRIES as u64
        );
        all.iter_mut().for_each(|c| asks(c, 4, 2));
        all.into_iter().for_each(Conversation::ends);
    });
}

#[test]
fn nothing_is_adopted_that_nobody_wants() {
    host_with("adopt = false", |host| {
        let mut c = begin(host, 4);
        host.policy(&taps());
        asks(&mut c, 4, 2);
        assert_eq!(counted(&host.agent), (0, 0));
        assert_eq!(host.agent.metric("underpass_tap_flows").unwrap(), 0.0);
        let said = |adopts| {
            let config = Config::load(&host.agent.file()).unwrap();
            let cgroup = host.sandbox.cgroup.path();
            let findings = || doctor::running(&config.policy, Some(cgroup), &[], adopts);
            let findings = host.sandbox.server(findings).unwrap().into_iter();
            findings.map(|found| found.detail).collect::<Vec<_>>()
        };
        let left = "1 are left alone until they connect again: `adopt = false`";
        assert_eq!(said(false), [left]);
        // As the kernel lets it a connection of the asker's own.
        assert_eq!(said(true), ["1 can be read where they are"]);
        c.ends();
    });
}
