//! How long it takes from a push until an agent has a policy of 1,000 rules in force, and until the fleet knows that.

use std::{
    io::ErrorKind,
    net::TcpStream,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use policy_source::{ETCD, Fleet, Fragment, Fragments, Settings, dial_plainly};
use sandbox::{Agent, Etcd, Sandbox};
use tls::Endpoint;

use crate::common::BINARY;

const RULES: usize = 1000;
const FILES: usize = 10;

/// From the push until the kernel decides by the last of the rules, in a debug build with other tests beside it. Alone it takes a tenth.
const IN_FORCE: Duration = Duration::from_secs(5);

/// And until the status in etcd says so.
const ACKNOWLEDGED: Duration = Duration::from_secs(6);

/// The port that the last rule denies.
const DENIED: u16 = 9042;

/// Rules for other ports, and the last one for that port.
fn fragments(action: &str) -> Fragments {
    let rule = |n: usize| {
        let (port, action) = match n + 1 == RULES {
            true => (DENIED, action),
            false => (10_000 + n as u16, "bypass"),
        };
        format!(
            "[[rule]]\nname = \"r{n}\"\nto = [\":{port}\"]\naction = \"{action}\"\nfail = \"closed\"\n"
        )
    };
    let size = RULES / FILES;
    let files = (0..FILES).map(|file| Fragment {
        name: format!("{file}.toml"),
        text: (file * size..(file + 1) * size).map(rule).collect(),
    });
    Fragments::new(0, files.collect()).unwrap()
}

#[test]
fn a_push_of_a_thousand_rules_is_in_force_and_acknowledged_within_seconds() {
    let sandbox = Sandbox::new().unwrap();
    let etcd = Etcd::start(Some(&sandbox.netns), 3).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let source = format!(
        "[host]\nname = \"h\"\n[policy]\nsource = \"etcd\"\nendpoints = {:?}\ncache = {:?}\n",
        etcd.endpoints(),
        folder.path().join("kept.json")
    );
    let (netns, cgroup) = (Some(&sandbox.netns), &sandbox.cgroup);
    let _agent = Agent::start(Path::new(BINARY), netns, cgroup, "", &source).unwrap();
    let endpoints = etcd.endpoints();
    let endpoints = endpoints
        .iter()
        .map(|url| Endpoint::parse(url, ETCD).unwrap());
    let settings = Settings {
        endpoints: endpoints.collect(),
        prefix: "/underpass".to_owned(),
        login: None,
        tls: None,
    };
    // An operator on this host, whose connections no rule meets.
    let asked = |fragments: Option<Fragments>| {
        let ask = || {
            let mut builder = tokio::runtime::Builder::new_current_thread();
            builder.enable_all().build().unwrap().block_on(async {
                let mut fleet = Fleet::connect(&settings, &dial_plainly()).await.unwrap();
                if let Some(fragments) = fragments {
                    fleet.push(fragments, None, 0).await.unwrap();
                }
                fleet.statuses().await.unwrap()
            })
        };
        sandbox.server(ask).unwrap()
    };
    let is_denied = || {
        let dialled = sandbox.client(|| TcpStream::connect(("127.0.0.1", DENIED)));
        match dialled.unwrap().unwrap_err().kind() {
            ErrorKind::PermissionDenied => true,
            ErrorKind::ConnectionRefused => false,
            other => panic!("{other}"),
        }
    };
    let within = |what: &str, begun: Instant, most: Duration, holds: &dyn Fn() -> bool| {
        while !holds() {
            assert!(begun.elapsed() < most, "{what}: not within {most:?}");
            thread::sleep(Duration::from_millis(5));
        }
        eprintln!("{what} after {:?}", begun.elapsed());
    };
    for (action, denies) in [("deny", true), ("bypass", false)] {
        let fragments = fragments(action);
        let digest = fragments.digest();
        let begun = Instant::now();
        asked(Some(fragments));
        within("in force", begun, IN_FORCE, &|| is_denied() == denies);
        within("acknowledged", begun, ACKNOWLEDGED, &|| {
            asked(None).iter().any(|status| status.has(&digest))
        });
    }
}
