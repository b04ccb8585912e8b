//! Policies that are pushed: how long it takes until an agent has one of 1,000 rules in force, and until the fleet knows that; and what does not keep
//! one out of force.

use std::{
    io::ErrorKind,
    net::TcpStream,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use policy_source::{ETCD, Fleet, Fragment, Fragments, Settings, Status, dial_plainly};
use sandbox::{Agent, Etcd, Sandbox};
use tls::Endpoint;

use crate::common::{BINARY, eventually};

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

/// A mistake in a policy file.
const NONSENSE: &str = "[nonsense]\n";

/// A rule that writes to a journal.
fn audits(name: &str, file: &str) -> String {
    format!(
        "[[rule]]\nname = \"{name}\"\nto = [\":9\"]\naction = \"enrich\"\nfail = \"open\"\n\
         pipeline = [{{ transform = \"audit\", file = \"{file}\", full = \"drop\" }}]\n"
    )
}

/// A host whose agent follows an etcd, and an operator there, whose connections no rule meets.
struct Fleets {
    sandbox: Sandbox,
    folder: tempfile::TempDir,
}

impl Fleets {
    fn new() -> Self {
        Self {
            sandbox: Sandbox::new().unwrap(),
            folder: tempfile::tempdir().unwrap(),
        }
    }

    /// The settings of the agent, for the top of its file.
    fn source(&self, etcd: &Etcd<'_>) -> String {
        format!(
            "[host]\nname = \"h\"\n[policy]\nsource = \"etcd\"\nendpoints = {:?}\ncache = {:?}\n",
            etcd.endpoints(),
            self.folder.path().join("kept.json")
        )
    }

    fn agent(&self, policy: &str) -> Agent<'_> {
        let (netns, cgroup) = (Some(&self.sandbox.netns), &self.sandbox.cgroup);
        Agent::start(Path::new(BINARY), netns, cgroup, "", policy).unwrap()
    }

    /// Pushes, if there is something to push, and returns what the hosts say.
    fn asked(&self, etcd: &Etcd<'_>, fragments: Option<Fragments>) -> Vec<Status> {
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
        self.sandbox.server(ask).unwrap()
    }

    /// Whether a connection to the port that the last rule is about is denied.
    fn is_denied(&self) -> bool {
        let dialled = self
            .sandbox
            .client(|| TcpStream::connect(("127.0.0.1", DENIED)));
        match dialled.unwrap().unwrap_err().kind() {
            ErrorKind::PermissionDenied => true,
            ErrorKind::ConnectionRefused => false,
            other => panic!("{other}"),
        }
    }
}

#[test]
fn a_push_of_a_thousand_rules_is_in_force_and_acknowledged_within_seconds() {
    let host = Fleets::new();
    let etcd = Etcd::start(Some(&host.sandbox.netns), 3).unwrap();
    let _agent = host.agent(&host.source(&etcd));
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
        host.asked(&etcd, Some(fragments));
        within("in force", begun, IN_FORCE, &|| host.is_denied() == denies);
        within("acknowledged", begun, ACKNOWLEDGED, &|| {
            let statuses = host.asked(&etcd, None);
            statuses.iter().any(|status| status.has(&digest))
        });
    }
}

#[test]
fn a_mistake_in_the_hosts_own_file_keeps_no_push_out_of_force() {
    let host = Fleets::new();
    let etcd = Etcd::start(Some(&host.sandbox.netns), 1).unwrap();
    let own = host.source(&etcd);
    let agent = host.agent(&own);
    let file_refused = || agent.metric("underpass_policy_file_refused").unwrap();
    // One that is wrong, and one that names what is not there.
    for (mistake, action) in [
        (NONSENSE, "deny"),
        (audits("own", "/nowhere/audit.log").as_str(), "bypass"),
    ] {
        agent.write_policy(&(own.clone() + mistake)).unwrap();
        eventually("it is refused", || file_refused() == 1.0);
        let fragments = fragments(action);
        let digest = fragments.digest();
        host.asked(&etcd, Some(fragments));
        eventually("the push is in force", || {
            host.is_denied() == (action == "deny")
        });
        eventually("it is acknowledged", || {
            let statuses = host.asked(&etcd, None);
            statuses.iter().any(|status| status.has(&digest))
        });
        assert_eq!(file_refused(), 1.0);
        agent.write_policy(&own).unwrap();
        eventually("it is mended", || file_refused() == 0.0);
        assert_eq!(host.is_denied(), action == "deny");
    }
}

/// The push is tried once, beside the host's files that are in force.
#[test]
fn a_wrong_push_is_told_by_its_own_mistake_beside_a_mistake_in_the_hosts_own_file() {
    let host = Fleets::new();
    let etcd = Etcd::start(Some(&host.sandbox.netns), 1).unwrap();
    let own = host.source(&etcd);
    let agent = host.agent(&own);
    let file_refused = || agent.metric("underpass_policy_file_refused").unwrap();
    for (rule, mistake) in [
        ("first", NONSENSE),
        ("second", audits("own", "/nowhere/audit.log").as_str()),
    ] {
        agent.write_policy(&(own.clone() + mistake)).unwrap();
        eventually("it is refused", || file_refused() == 1.0);
        let wrong = Fragment {
            name: "wrong.toml".to_owned(),
            text: audits(rule, "/elsewhere/audit.log"),
        };
        let wrong = Fragments::new(0, vec![wrong]).unwrap();
        let digest = wrong.digest();
        host.asked(&etcd, Some(wrong));
        let mut told = None;
        eventually("it is told", || {
            let mut statuses = host.asked(&etcd, None).into_iter();
            told = statuses.find(|status| status.digest == digest);
            told.is_some()
        });
        let why = told.and_then(|status| status.error).unwrap_or_default();
        assert!(why.starts_with(&format!("rule {rule}: audit: ")), "{why}");
        assert_eq!(file_refused(), 1.0);
        agent.write_policy(&own).unwrap();
        eventually("it is mended", || file_refused() == 0.0);
    }
}
