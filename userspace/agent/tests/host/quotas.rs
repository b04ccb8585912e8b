//! Users without privileges who hold as many flows as they can: others are served all the same.

use std::{
    io::{self, ErrorKind},
    net::{TcpListener, TcpStream},
    os::unix::fs::chown,
    path::Path,
};

use rustix::{process::Uid, thread::set_thread_res_uid};
use sandbox::{Agent, Cgroup, Sandbox, run_in};

use crate::common::*;

const USER: u32 = 1_000;
const OTHER: u32 = 2_000;

/// A database that accepts and says nothing, and an agent in front of it.
struct Host {
    sandbox: Sandbox,
    listener: TcpListener,
}

/// A connection, both ends of it, and whether the agent carries it.
struct Opened {
    _ends: (TcpStream, TcpStream),
    is_carried: bool,
}

impl Host {
    fn new() -> Self {
        let sandbox = Sandbox::new().unwrap();
        let listener = sandbox.server(|| TcpListener::bind("127.0.0.1:0"));
        let listener = listener.unwrap().unwrap();
        Self { sandbox, listener }
    }

    fn agent(&self, settings: &str, rest: &str) -> Agent<'_> {
        let (netns, cgroup) = (Some(&self.sandbox.netns), &self.sandbox.cgroup);
        let to = to(&[self.listener.local_addr().unwrap().port()]);
        let policy = rule("enrich", &format!("{to}\n{rest}"));
        Agent::start(Path::new(BINARY), netns, cgroup, settings, &policy).unwrap()
    }

    /// Connects as this user, in this cgroup.
    fn connect(&self, uid: u32, cgroup: &Cgroup) -> io::Result<TcpStream> {
        let to = self.listener.local_addr().unwrap();
        let connect = || {
            let uid = Uid::from_raw(uid);
            set_thread_res_uid(Some(uid), Some(uid), Some(uid))?;
            TcpStream::connect(to)
        };
        run_in(Some(&self.sandbox.netns), Some(cgroup), connect).unwrap()
    }

    fn open(&self, agent: &Agent<'_>, uid: u32, cgroup: &Cgroup) -> io::Result<Opened> {
        let intercepted = || {
            let name = "underpass_connections_total{outcome=\"intercepted\",rule=\"r\"}";
            agent.metric(name).unwrap()
        };
        let before = intercepted();
        let client = self.connect(uid, cgroup)?;
        let (server, _) = accept(&self.listener);
        Ok(Opened {
            _ends: (client, server),
            is_carried: intercepted() > before,
        })
    }

    /// Opens connections as these users, in turn, until so many have not come to the agent. Returns those that have.
    fn crowd<'c>(
        &self,
        agent: &Agent<'_>,
        who: impl IntoIterator<Item = (u32, &'c Cgroup)>,
        wanted: usize,
    ) -> Vec<Opened> {
        let (mut carried, mut others) = (Vec::new(), 0);
        for (uid, cgroup) in who {
            match self.open(agent, uid, cgroup) {
                Ok(opened) if opened.is_carried => carried.push(opened),
                Ok(_) => others += 1,
                Err(error) if error.kind() == ErrorKind::PermissionDenied => others += 1,
                Err(error) => panic!("{error}"),
            }
            if others == wanted {
                break;
            }
        }
        carried
    }
}

const FAILS: [&str; 2] = ["fail = \"open\"", "fail = \"closed\""];

#[test]
fn a_user_who_holds_all_he_can_leaves_room_for_others() {
    for fail in FAILS {
        let host = Host::new();
        let agent = host.agent("max_flows = 8", fail);
        let cgroup = &host.sandbox.cgroup;
        let crowd = host.crowd(&agent, [(USER, cgroup); 12], 8);
        assert_eq!(crowd.len(), 2, "half of a user's share in one cgroup");
        assert_eq!(
            (cause(&agent, "user_full"), cause(&agent, "agent_full")),
            (8.0, 0.0)
        );
        // The same user in another container, another user in the same one, and the host's root.
        let elsewhere = cgroup.child("other").unwrap();
        for (uid, cgroup) in [(USER, &elsewhere), (OTHER, cgroup), (0, cgroup)] {
            assert!(
                host.open(&agent, uid, cgroup).unwrap().is_carried,
                "{fail}: {uid}"
            );
        }
        // Whoever ends some may open some.
        drop(crowd);
        eventually("there is room", || {
            host.open(&agent, USER, cgroup)
                .is_ok_and(|opened| opened.is_carried)
        });
        assert!(agent.log().contains("holds as many flows as its share"));
    }
}

#[test]
fn cgroups_that_a_user_makes_beneath_his_own_count_as_one() {
    // His by ownership, as systemd gives it to user@1000.service, and by its name, as sessions are beneath it.
    for (name, owner) in [("given", Some(USER)), ("user-1000.slice", None)] {
        let host = Host::new();
        let agent = host.agent("max_flows = 8", FAILS[1]);
        let his = host.sandbox.cgroup.child(name).unwrap();
        chown(his.path(), owner, None).unwrap();
        // Deeper than the kernel looks.
        let mut deep = vec![his.child("deep").unwrap()];
        for _ in 0..20 {
            deep.push(deep.last().unwrap().child("deep").unwrap());
        }
        let flat: Vec<Cgroup> = (0..6).map(|n| his.child(&n.to_string()).unwrap()).collect();
        let cgroups = flat.iter().chain([deep.last().unwrap()]);
        // With ids that are his as well: newuidmap gives him some.
        let crowd = cgroups
            .zip(100_000..)
            .flat_map(|(cgroup, uid)| [(uid, cgroup), (USER, cgroup)]);
        let held = host.crowd(&agent, crowd, 8).len();
        assert_eq!(held, 4, "a cgroup's share");
        assert!(cause(&agent, "cgroup_full") >= 1.0);
        let elsewhere = host.sandbox.cgroup.child("service").unwrap();
        assert!(host.open(&agent, OTHER, &elsewhere).unwrap().is_carried);
        while let Some(cgroup) = deep.pop() {
            drop(cgroup);
        }
    }
}

#[test]
fn users_who_come_at_once_hold_no_more_than_may_come_late() {
    let host = Host::new();
    let agent = host.agent("max_flows = 32", FAILS[1]);
    let cgroup = &host.sandbox.cgroup;
    let connected: Vec<_> = std::thread::scope(|scope| {
        let connects = (0..64).map(|_| scope.spawn(|| host.connect(USER, cgroup)));
        let connects: Vec<_> = connects.collect();
        connects.into_iter().map(|c| c.join().unwrap()).collect()
    });
    let held = connected.iter().filter(|c| c.is_ok()).count();
    // 8 and the eighth of that.
    assert!((8..=9).contains(&held), "{held}");
    let late = agent.metric("underpass_over_quota_total").unwrap();
    assert_eq!(cause(&agent, "user_full") + late, (64 - held) as f64);
    assert!(host.connect(OTHER, cgroup).is_ok());
}

#[test]
fn a_log_in_that_does_not_end_is_closed_and_counted() {
    let host = Host::new();
    let agent = host.agent(
        "handshake_timeout = \"1s\"",
        "user = [\"shop\"]\nfail = \"closed\"",
    );
    let opened = host.open(&agent, USER, &host.sandbox.cgroup).unwrap();
    let (mut client, mut server) = opened._ends;
    for stream in [&mut client, &mut server] {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let ended = io::Read::read(stream, &mut [0; 1]).map_err(|e| e.kind());
        assert_eq!(ended, Err(ErrorKind::ConnectionReset));
    }
    let closed = "underpass_flows_closed_total{reason=\"handshake_timeout\"}";
    eventually("it is counted", || agent.metric(closed).unwrap() == 1.0);
}

#[test]
fn flows_that_have_not_begun_make_room_when_the_agent_is_full() {
    for rest in ["fail = \"closed\"", "user = [\"shop\"]\nfail = \"closed\""] {
        let host = Host::new();
        let agent = host.agent("max_flows = 4\nhandshake_timeout = \"3s\"", rest);
        let cgroup = &host.sandbox.cgroup;
        // Many users, as many as there are flows; one of them has begun.
        let crowd: Vec<_> = (1..=4)
            .map(|uid| {
                let cgroup = cgroup.child(&uid.to_string()).unwrap();
                let client = host.connect(uid, &cgroup).unwrap();
                (client, accept(&host.listener).0, cgroup)
            })
            .collect();
        io::Write::write_all(&mut &crowd[0].1, b"ok").unwrap();
        assert_eq!(
            host.connect(OTHER, cgroup).unwrap_err().kind(),
            ErrorKind::PermissionDenied
        );
        eventually("there is room", || host.connect(OTHER, cgroup).is_ok());
        let closed = "underpass_flows_closed_total{reason=\"made_room\"}";
        assert!(agent.metric(closed).unwrap() >= 1.0);
    }
}
