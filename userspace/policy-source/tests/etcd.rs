//! Policies in a real cluster of etcd: how hosts follow while members die, hang, lose their leader or are compacted.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "tests say what they expect by failing, and so do their helpers"
)]

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use limits::Limit;
use nix::sys::signal::Signal;
use policy_source::{
    ETCD, Failure, Fleet, Follower, Fragment, Fragments, KEPT_VERSIONS, Login, MAX_FRAGMENT_BYTES,
    MAX_FRAGMENTS, News, Pace, Settings, Sharer, Sharing, Verdict, dial_plainly,
};
use sandbox::{Certificates, Etcd, Netns, run_in};
use tls::{Dialling, Endpoint};
use tokio::{
    runtime::Handle,
    sync::{oneshot, watch},
    task::JoinSet,
    time,
};

/// Longer than anything here takes; a hang is a failure, not a wait.
const PATIENCE: Duration = Duration::from_secs(20);

/// A change has to be everywhere within this time after its push has returned, and acknowledged by all hosts.
const PROMPT: Duration = Duration::from_secs(2);

/// Shorter than an agent's, so that tests do not wait.
const PACE: Pace = Pace {
    answer: Duration::from_secs(2),
    probe: Duration::from_millis(100),
    silence: Duration::from_millis(500),
    shortest_wait: Duration::from_millis(20),
    longest_wait: Duration::from_millis(200),
    outlives: Duration::from_millis(500),
};

fn settings(endpoints: &[String]) -> Settings {
    let endpoints = endpoints
        .iter()
        .map(|url| Endpoint::parse(url, ETCD).unwrap());
    Settings {
        endpoints: endpoints.collect(),
        prefix: "/underpass".to_owned(),
        login: None,
        tls: None,
    }
}

fn policy(files: &[(&str, &str)]) -> Fragments {
    let files = files.iter().map(|(name, text)| Fragment {
        name: (*name).to_owned(),
        text: (*text).to_owned(),
    });
    Fragments::new(0, files.collect()).unwrap()
}

/// A host that follows, and takes everything but texts with the word `bad`.
struct Host {
    offers: watch::Receiver<Option<Arc<Fragments>>>,
    said: Arc<Mutex<BTreeMap<String, u64>>>,
    _tasks: JoinSet<()>,
}

impl Host {
    fn new(runtime: &Runtime, name: &str, settings: Settings) -> Self {
        Self::at(PACE, runtime, name, settings)
    }

    fn at(pace: Pace, runtime: &Runtime, name: &str, settings: Settings) -> Self {
        let offers = watch::Sender::new(None);
        let verdicts = watch::Sender::new(None);
        let said = Arc::new(Mutex::new(BTreeMap::<String, u64>::new()));
        let follower = Follower {
            settings,
            host: name.to_owned(),
            agent: "0".to_owned(),
            pace,
            dial: dial_plainly(),
            offers: offers.clone(),
            verdicts: verdicts.subscribe(),
            tell: {
                let said = said.clone();
                Box::new(move |news: News<'_>| {
                    let word = match news {
                        News::InStep => "in step".to_owned(),
                        News::Heard => "heard".to_owned(),
                        News::Failed(failure) => failure.label().to_owned(),
                        News::Unusable(verdict) => verdict.error.clone().unwrap(),
                        News::Namesake(true) => "namesake".to_owned(),
                        News::Namesake(false) => "alone again".to_owned(),
                    };
                    *said.lock().unwrap().entry(word).or_default() += 1;
                })
            },
        };
        let mut offered = offers.subscribe();
        let mut tasks = JoinSet::new();
        tasks.spawn_on(async { match follower.run().await {} }, runtime.handle());
        let judge = async move {
            let (mut in_force, mut in_force_version) = (String::new(), None);
            while offered.changed().await.is_ok() {
                let Some(offer) = offered.borrow_and_update().clone() else {
                    continue;
                };
                let digest = digest(&offer);
                let is_bad = offer.files.iter().any(|file| file.text.contains("bad"));
                if !is_bad {
                    in_force.clone_from(&digest);
                    in_force_version = offer.version;
                }
                let verdict = Some(Verdict {
                    revision: offer.revision,
                    version: offer.version,
                    digest,
                    error: is_bad.then(|| "a word is bad".to_owned()),
                    in_force: in_force.clone(),
                    in_force_version,
                    refused: BTreeMap::new(),
                    kept: None,
                });
                // As the agent does it: a verdict that was given is none again.
                verdicts.send_if_modified(|before| {
                    let is_news = *before != verdict;
                    *before = verdict;
                    is_news
                });
            }
        };
        tasks.spawn_on(judge, runtime.handle());
        Self {
            offers: offers.subscribe(),
            said,
            _tasks: tasks,
        }
    }

    fn has(&self, digest: &str) -> bool {
        let offered = self.offers.borrow();
        offered
            .as_ref()
            .is_some_and(|offered| self::digest(offered) == digest)
    }

    fn heard(&self, word: &str) -> u64 {
        let said = self.said.lock().unwrap();
        let matching = said.iter().filter(|(known, _)| known.contains(word));
        matching.map(|(_, times)| times).sum()
    }
}

/// The digest of a policy, which hosts of this process compute once for all: each of a fleet's has a processor of its own.
fn digest(of: &Fragments) -> String {
    static LAST: Mutex<Option<(Vec<Fragment>, String)>> = Mutex::new(None);
    let mut last = LAST.lock().unwrap();
    match &*last {
        Some((files, digest)) if *files == of.files => digest.clone(),
        _ => {
            let digest = of.digest();
            *last = Some((of.files.clone(), digest.clone()));
            digest
        }
    }
}

fn eventually(what: &str, within: Duration, mut holds: impl FnMut() -> bool) -> Duration {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < within, "not within {within:?}: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
    begun.elapsed()
}

/// A runtime that runs on a thread of its own until the test is over.
struct Runtime {
    handle: Handle,
    _end: oneshot::Sender<()>,
}

impl Runtime {
    fn block_on<T>(&self, asked: impl Future<Output = T>) -> T {
        self.handle.block_on(asked)
    }

    fn handle(&self) -> &Handle {
        &self.handle
    }
}

fn runtime() -> Runtime {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_all().build().unwrap();
    let handle = runtime.handle().clone();
    let (end, ended) = oneshot::channel();
    std::thread::spawn(move || runtime.block_on(ended));
    Runtime { handle, _end: end }
}

/// Pushes by any member that answers.
fn push(runtime: &Runtime, etcd: &Etcd<'_>, files: &[(&str, &str)]) -> String {
    let fragments = policy(files);
    let digest = fragments.digest();
    runtime.block_on(async {
        let mut last = None;
        for _ in 0..50 {
            let pushed = async {
                let mut fleet =
                    Fleet::connect(&settings(&etcd.endpoints()), &dial_plainly()).await?;
                fleet.push(fragments.clone(), None, 0).await
            };
            match pushed.await {
                Ok(_) => return,
                Err(failure) => last = Some(failure),
            }
            time::sleep(Duration::from_millis(100)).await;
        }
        panic!("nobody takes a policy: {last:?}");
    });
    digest
}

#[test]
fn two_hundred_hosts_follow_a_thousand_rules_within_two_seconds() {
    let hosts = std::env::var("UNDERPASS_FOLLOWERS").map_or(200, |hosts| hosts.parse().unwrap());
    let etcd = Etcd::start(None, 3).unwrap();
    let runtime = runtime();
    let all: Vec<Host> = (0..hosts)
        .map(|n| {
            Host::at(
                Pace::default(),
                &runtime,
                &format!("h{n}"),
                settings(&etcd.endpoints()),
            )
        })
        .collect();
    eventually("all are in step", PATIENCE, || {
        all.iter().all(|host| host.heard("in step") > 0)
    });
    let rules = |from: usize, action: &str| -> String {
        let rule = |n: usize| {
            format!(
                "[[rule]]\nname = \"r{n}\"\nto = [\"10.0.0.1:{}\"]\naction = \"{action}\"\n",
                n + 1
            )
        };
        (from..from + 100).map(rule).collect()
    };
    for action in ["bypass", "observe"] {
        let files: Vec<(String, String)> = (0..10)
            .map(|n| (format!("{n}.toml"), rules(100 * n, action)))
            .collect();
        let files: Vec<(&str, &str)> = files
            .iter()
            .map(|(n, t)| (n.as_str(), t.as_str()))
            .collect();
        let digest = push(&runtime, &etcd, &files);
        let pushed = Instant::now();
        let took = eventually("all have it", PROMPT, || {
            all.iter().all(|host| host.has(&digest))
        });
        eprintln!("{hosts} hosts have 1,000 rules after {took:?}");
        let acknowledged = async {
            let mut fleet = Fleet::connect(&settings(&etcd.endpoints()), &dial_plainly())
                .await
                .unwrap();
            loop {
                let statuses = fleet.statuses().await.unwrap();
                let good = statuses.iter().filter(|status| status.has(&digest)).count();
                if good == hosts {
                    return pushed.elapsed();
                }
                assert!(
                    pushed.elapsed() < PROMPT,
                    "{good} of {hosts} have acknowledged"
                );
                time::sleep(Duration::from_millis(20)).await;
            }
        };
        let took = runtime.block_on(acknowledged);
        eprintln!("and have acknowledged them after {took:?}");
    }
    // Nobody lost the thread on the way.
    assert!(
        all.iter()
            .all(|host| host.heard("lost") + host.heard("late") == 0)
    );
}

#[test]
fn hosts_follow_while_members_die_hang_and_lose_their_leader() {
    let mut etcd = Etcd::start(None, 3).unwrap();
    let runtime = runtime();
    let hosts: Vec<Host> = (0..6)
        .map(|n| Host::new(&runtime, &format!("h{n}"), settings(&etcd.endpoints())))
        .collect();
    let follow = |etcd: &Etcd<'_>, text: &str| {
        let digest = push(&runtime, etcd, &[("a.toml", text)]);
        eventually(text, PATIENCE, || {
            hosts.iter().all(|host| host.has(&digest))
        });
    };
    follow(&etcd, "# all are there");

    // A member dies; then the leader hangs, which nobody is told.
    etcd.kill(0).unwrap();
    follow(&etcd, "# one is dead");
    etcd.restart(0).unwrap();
    let leader = etcd.leader().unwrap();
    etcd.signal(leader, Signal::SIGSTOP).unwrap();
    follow(&etcd, "# the leader hangs");
    etcd.signal(leader, Signal::SIGCONT).unwrap();
    etcd.wait_for(leader).unwrap();

    // A member that is cut off from the others has no leader. Whoever watches there must not believe that nothing changes.
    let lonely = settings(&etcd.endpoints()[..1]);
    let alone = Host::new(&runtime, "alone", lonely);
    eventually("it is in step", PATIENCE, || alone.heard("in step") > 0);
    for other in [1, 2] {
        etcd.signal(other, Signal::SIGSTOP).unwrap();
    }
    eventually("it knows that it is cut off", PATIENCE, || {
        alone.heard("lost") + alone.heard("late") > 0
    });
    for other in [1, 2] {
        etcd.signal(other, Signal::SIGCONT).unwrap();
    }
    let digest = push(&runtime, &etcd, &[("a.toml", "# together again")]);
    eventually("it follows again", PATIENCE, || alone.has(&digest));
    eventually("all follow", PATIENCE, || {
        hosts.iter().all(|host| host.has(&digest))
    });
}

#[test]
fn hosts_follow_the_majority_of_a_cluster_that_is_parted() {
    let hub = Netns::new().unwrap();
    run_in(Some(&hub), None, || {
        let etcd = Etcd::start_apart(&hub, 3).unwrap();
        let runtime = runtime();
        let hosts: Vec<Host> = (0..6)
            .map(|n| Host::new(&runtime, &format!("h{n}"), settings(&etcd.endpoints())))
            .collect();
        let follow = |text: &str, lonely: usize| {
            // An operator who tries once, and has named first the member that may be apart.
            let mut endpoints = etcd.endpoints();
            endpoints.rotate_left(lonely);
            let policy = policy(&[("a.toml", text)]);
            let digest = policy.digest();
            let pushed = runtime.block_on(async {
                let settings = settings(&endpoints);
                let mut fleet = Fleet::connect(&settings, &dial_plainly()).await?;
                fleet.push(policy, None, 0).await
            });
            pushed.unwrap();
            let took = eventually(text, PATIENCE, || {
                hosts.iter().all(|host| host.has(&digest))
            });
            eprintln!("{text}: {took:?}");
        };
        follow("# all are there", 0);
        // It answers its clients, and knows nothing of what the others agree on.
        let leader = etcd.leader().unwrap();
        etcd.part(leader, true).unwrap();
        follow("# the leader is apart", leader);
        etcd.part(leader, false).unwrap();
        etcd.wait_for(leader).unwrap();
        follow("# together", leader);
        let follower = (etcd.leader().unwrap() + 1) % 3;
        etcd.part(follower, true).unwrap();
        follow("# a follower is apart", follower);
        etcd.part(follower, false).unwrap();
        etcd.wait_for(follower).unwrap();
        for number in 0..3 {
            etcd.unplug(number, true).unwrap();
            follow(&format!("# host {number} is off the network"), number);
            etcd.unplug(number, false).unwrap();
            etcd.wait_for(number).unwrap();
        }
        follow("# together again", 0);
    })
    .unwrap();
}

#[test]
fn a_watch_that_was_lost_over_a_compaction_comes_back_to_what_is_there() {
    let mut etcd = Etcd::start(None, 3).unwrap();
    let runtime = runtime();
    let host = Host::new(&runtime, "h", settings(&etcd.endpoints()[..1]));
    let first = push(&runtime, &etcd, &[("a.toml", "1"), ("b.toml", "1")]);
    eventually("it follows", PATIENCE, || host.has(&first));
    etcd.kill(0).unwrap();
    eventually("it is away", PATIENCE, || host.heard("unreachable") > 0);
    push(&runtime, &etcd, &[("a.toml", "2")]);
    let last = push(&runtime, &etcd, &[("a.toml", "3")]);
    let said = etcd
        .ctl(1, &["get", "/underpass/head", "-w", "json"])
        .unwrap();
    let revision = said.split("\"revision\":").nth(1).unwrap();
    let revision: String = revision.chars().take_while(char::is_ascii_digit).collect();
    etcd.ctl(1, &["compact", "--physical", &revision]).unwrap();
    assert!(host.has(&first), "the last good one stays meanwhile");
    etcd.restart(0).unwrap();
    eventually("it has the last", PATIENCE, || host.has(&last));
}

#[test]
fn a_bad_policy_and_one_beyond_the_bounds_change_nothing_and_are_told() {
    let etcd = Etcd::start(None, 1).unwrap();
    let runtime = runtime();
    let host = Host::new(&runtime, "h", settings(&etcd.endpoints()));
    let good = push(&runtime, &etcd, &[("a.toml", "good")]);
    eventually("it follows", PATIENCE, || host.has(&good));
    let status = |holds: &dyn Fn(&policy_source::Status) -> bool| {
        let mut found = None;
        eventually("its status says so", PATIENCE, || {
            runtime.block_on(async {
                let mut fleet = Fleet::connect(&settings(&etcd.endpoints()), &dial_plainly())
                    .await
                    .unwrap();
                found = fleet.statuses().await.unwrap().pop();
            });
            found.as_ref().is_some_and(holds)
        });
        found.unwrap()
    };
    let applied = status(&|status| status.has(&good));
    assert_eq!(applied.result, "applied");
    assert_eq!(
        (applied.version, applied.in_force_version),
        (Some(1), Some(1))
    );
    let bad = push(&runtime, &etcd, &[("a.toml", "bad")]);
    let refused = status(&|status| status.digest == bad);
    assert_eq!(
        (refused.version, refused.in_force_version),
        (Some(2), Some(1))
    );
    assert_eq!(
        (refused.result.as_str(), refused.in_force),
        ("refused", good.clone())
    );
    assert_eq!(refused.error.unwrap(), "a word is bad");

    // What nobody can push, because etcd is written to directly.
    let put = |key: &str, value: &str| etcd.ctl(0, &["put", key, value]).unwrap();
    push(
        &runtime,
        &etcd,
        &[("a.toml", &"#".repeat(MAX_FRAGMENT_BYTES))],
    );
    put("/underpass/rules/b.toml", "#");
    eventually("it is too long", PATIENCE, || {
        host.heard("bytes together") > 0
    });
    let refused = status(&|status| status.digest.is_empty());
    // What was pushed may have come into force before it became too long.
    assert!(refused.result == "refused" && !refused.in_force.is_empty());
    assert!(refused.error.unwrap().contains("bytes together"));
    put("/underpass/rules/a b.toml", "");
    let names: Vec<String> = (0..MAX_FRAGMENTS).map(|n| format!("{n}.toml")).collect();
    let files: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "#")).collect();
    push(&runtime, &etcd, &files);
    put("/underpass/rules/b.toml", "");
    eventually("there are too many", PATIENCE, || {
        host.heard("more than 60 files") > 0
    });
    push(&runtime, &etcd, &[]);
    put("/underpass/rules/a b.toml", "");
    eventually("a name is none", PATIENCE, || {
        host.heard("is no name of a file") > 0
    });
    assert_eq!(host.heard("lost") + host.heard("late"), 0);

    // A push puts it right, whatever there was.
    let good = push(&runtime, &etcd, &[("a.toml", "good again")]);
    eventually("it follows again", PATIENCE, || host.has(&good));
    assert_eq!(status(&|status| status.has(&good)).in_force, good);

    // And so does whoever takes the mistake away: that policy has its verdict already.
    put("/underpass/rules/x", "");
    let refused = status(&|status| status.error.is_some());
    assert_eq!(refused.in_force, good);
    etcd.ctl(0, &["del", "/underpass/rules/x"]).unwrap();
    assert_eq!(status(&|status| status.has(&good)).error, None);
}

#[test]
fn a_host_has_a_version_exactly_if_its_files_are_those_of_a_push() {
    let etcd = Etcd::start(None, 1).unwrap();
    let runtime = runtime();
    let host = Host::new(&runtime, "h", settings(&etcd.endpoints()));
    let ctl = |args: &[&str]| drop(etcd.ctl(0, args).unwrap());
    let says = |version: Option<u64>, texts: &[(&str, &str)]| {
        let digest = policy(texts).digest();
        eventually(&format!("{version:?}: {texts:?}"), PATIENCE, || {
            let statuses = runtime.block_on(async {
                let settings = settings(&etcd.endpoints());
                let mut fleet = Fleet::connect(&settings, &dial_plainly()).await.unwrap();
                fleet.statuses().await.unwrap()
            });
            statuses.iter().any(|status| {
                status.has(&digest)
                    && [status.version, status.in_force_version] == [version, version]
            })
        });
    };
    let (one, two) = (("a.toml", "1"), ("b.toml", "2"));
    // Files that nobody has pushed.
    ctl(&["put", "/underpass/rules/a.toml", "1"]);
    says(None, &[one]);
    push(&runtime, &etcd, &[one, two]);
    says(Some(1), &[one, two]);
    // Past a push: a file that is another one, one more, and one that is gone.
    ctl(&["put", "/underpass/rules/b.toml", "3"]);
    says(None, &[one, ("b.toml", "3")]);
    push(&runtime, &etcd, &[one, two]);
    says(Some(2), &[one, two]);
    ctl(&["put", "/underpass/rules/c.toml", "3"]);
    says(None, &[one, two, ("c.toml", "3")]);
    push(&runtime, &etcd, &[one, two]);
    says(Some(3), &[one, two]);
    ctl(&["del", "/underpass/rules/b.toml"]);
    says(None, &[one]);
    // The same files again are another version, of which hosts hear.
    for version in [4, 5] {
        push(&runtime, &etcd, &[one, two]);
        says(Some(version), &[one, two]);
    }
    assert_eq!(host.heard("lost") + host.heard("late"), 0);
}

/// A certificate for this host, signed by an authority of its own, in a folder.
fn certificates(folder: &Path) -> Certificates {
    let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let key = rcgen::KeyPair::generate().unwrap();
    let authority = params.self_signed(&key).unwrap();
    let issuer = rcgen::Issuer::new(params, key);
    let own = rcgen::KeyPair::generate().unwrap();
    let names = vec!["127.0.0.1".to_owned()];
    let cert = rcgen::CertificateParams::new(names)
        .unwrap()
        .signed_by(&own, &issuer)
        .unwrap();
    let written = |name: &str, text: String| {
        let path = folder.join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        path
    };
    Certificates {
        ca: written("ca", authority.pem()),
        cert: written("cert", cert.pem()),
        key: written("key", own.serialize_pem()),
    }
}

#[test]
fn only_the_right_etcd_is_believed_and_it_is_told_who_asks() {
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let [files, others] = [&folders[0], &folders[1]].map(|folder| certificates(folder.path()));
    let etcd = Etcd::start_encrypted(files.clone()).unwrap();
    for args in [
        &["user", "add", "root:first"][..],
        &["user", "grant-role", "root", "root"],
        &["role", "add", "underpass-agent"],
        &[
            "role",
            "grant-permission",
            "underpass-agent",
            "--prefix=true",
            "read",
            "/underpass/rules/",
        ],
        &[
            "role",
            "grant-permission",
            "underpass-agent",
            "--prefix=true",
            "readwrite",
            "/underpass/status/",
        ],
        &["user", "add", "agent:hunter2"],
        &["user", "grant-role", "agent", "underpass-agent"],
        &["put", "/underpass/rules/a.toml", "good"],
        &["auth", "enable"],
    ] {
        etcd.ctl(0, args).unwrap();
    }
    let good = policy(&[("a.toml", "good")]).digest();
    let runtime = runtime();
    let password = |text: &str| {
        let path = folders[0].path().join(text.trim());
        fs::write(&path, text).unwrap();
        path
    };
    let host = |ca: &Path, own: Option<&Certificates>, password_file: Option<PathBuf>| {
        let own = own.map(|own| (own.cert.clone(), own.key.clone()));
        let tls = Dialling {
            ca: ca.to_owned(),
            server_name: None,
            own,
        };
        let login = password_file.map(|password_file| Login {
            user: "agent".to_owned(),
            password_file,
        });
        let settings = Settings {
            login,
            tls: Some(tls),
            ..settings(&etcd.endpoints())
        };
        Host::new(&runtime, "h", settings)
    };
    let right = host(&files.ca, Some(&files), Some(password("hunter2\n")));
    eventually("who may follows", PATIENCE, || {
        right.has(&good) && right.heard("in step") > 0
    });
    for (wrong, label) in [
        (
            host(&others.ca, Some(&files), Some(password("hunter2"))),
            "tls",
        ),
        (
            host(&files.ca, Some(&files), Some(password("hunter3"))),
            "denied",
        ),
        (
            host(
                &files.ca,
                Some(&files),
                Some(folders[0].path().join("none")),
            ),
            "password",
        ),
        (host(&files.ca, Some(&files), None), "denied"),
    ] {
        eventually(label, PATIENCE, || wrong.heard(label) > 0);
        assert!(!wrong.has(&good) && wrong.heard("in step") == 0);
    }
    // A client without the right certificate is ended by etcd, in or after the handshake.
    let stranger = host(&files.ca, Some(&others), Some(password("hunter2")));
    eventually("a stranger", PATIENCE, || {
        stranger.heard("tls") + stranger.heard("lost") > 0
    });
    assert!(!stranger.has(&good));
}

#[test]
fn two_live_agents_of_one_name_are_noticed_and_one_that_has_ended_is_not() {
    let etcd = Etcd::start(None, 1).unwrap();
    let runtime = runtime();
    let good = push(&runtime, &etcd, &[("a.toml", "good")]);
    let key = "/underpass/status/clone";
    let leases = || -> Vec<String> {
        let said = etcd.ctl(0, &["lease", "list"]).unwrap();
        let lines = said.lines().skip(1).map(|lease| lease.trim().to_owned());
        lines.filter(|lease| !lease.is_empty()).collect()
    };
    let settings = || settings(&etcd.endpoints());
    let first = Host::new(&runtime, "clone", settings());
    eventually("the first has a status", PATIENCE, || {
        first.has(&good) && etcd.ctl(0, &["get", key]).unwrap().contains("clone")
    });
    let [of_first] = leases().try_into().unwrap();
    let second = Host::new(&runtime, "clone", settings());
    let other = Host::new(&runtime, "other", settings());
    eventually("two say that they are one host", PATIENCE, || {
        second.heard("namesake") > 1
    });
    // The first one has ended, and its lease with it.
    drop(first);
    etcd.ctl(0, &["lease", "revoke", &of_first]).unwrap();
    eventually("there is one again", PATIENCE, || {
        second.heard("alone again") > 0
    });
    let heard = second.heard("namesake");
    push(&runtime, &etcd, &[("a.toml", "better")]);
    std::thread::sleep(3 * PACE.outlives);
    assert_eq!(second.heard("namesake"), heard);
    assert_eq!(other.heard("namesake") + other.heard("alone"), 0);
    assert_eq!(second.heard("lost") + second.heard("late"), 0);
}

#[test]
fn a_lease_is_as_long_as_the_fleets_period_asks_for() {
    let etcd = Etcd::start(None, 1).unwrap();
    let runtime = runtime();
    let prefix = "/underpass/limits";
    let put = |key: &str, value: &str| {
        let key = format!("{prefix}/{key}");
        etcd.ctl(0, &["put", &key, value]).unwrap();
    };
    let levels = |period_ms: u64| {
        let levels = format!("{{\"seen\":0,\"period_ms\":{period_ms},\"limits\":{{}}}}");
        put("fleet/levels", &levels);
    };
    // Somebody else leads, whose levels are this test's.
    put("fleet/leader", "another");
    let failed = Arc::new(Mutex::new(Vec::new()));
    let limits = watch::Sender::new(vec![Arc::new(Limit::new("shop.user", 1000.0))]);
    let sharer = Sharer {
        settings: settings(&etcd.endpoints()),
        host: "h".to_owned(),
        pace: PACE,
        dial: dial_plainly(),
        limits: limits.subscribe(),
        tell: {
            let failed = failed.clone();
            Box::new(move |news| {
                if let Sharing::Failed(failure) = news {
                    failed.lock().unwrap().push(failure.to_string());
                }
            })
        },
    };
    let mut tasks = JoinSet::new();
    tasks.spawn_on(async { match sharer.run().await {} }, runtime.handle());
    let key = format!("{prefix}/hosts/h");
    // As `etcdctl lease timetolive` says it: granted with TTL(4s).
    let number = |key: &str, of: &str| -> Option<i64> {
        let found = etcd.ctl(0, &["get", key, "--write-out", "json"]).unwrap();
        let (_, number) = found.split_once(&format!("\"{of}\":"))?;
        let number = number.split(|c: char| !c.is_ascii_digit()).next()?;
        number.parse().ok()
    };
    let granted = || {
        let lease = format!("{:x}", number(&key, "lease")?);
        let said = etcd.ctl(0, &["lease", "timetolive", &lease]).ok()?;
        let (_, granted) = said.split_once("TTL(")?;
        Some(granted.split_once("s)")?.0.to_owned())
    };
    let has = |seconds: &str| {
        eventually(&format!("a lease of {seconds} s"), PATIENCE, || {
            granted().as_deref() == Some(seconds)
        })
    };
    has("4");
    levels(3_000);
    has("12");
    // A little more is none of its business.
    levels(4_000);
    std::thread::sleep(Duration::from_secs(5));
    has("12");
    levels(1_000);
    has("4");
    // Long after the first lease has ended, the host is still there.
    assert!(etcd.ctl(0, &["get", &key]).unwrap().contains("shop.user"));

    // A leader goes on to lead, on the lease that it has then.
    let leader = format!("{prefix}/fleet/leader");
    etcd.ctl(0, &["del", &leader]).unwrap();
    eventually("it leads", PATIENCE, || number(&leader, "lease").is_some());
    let (since, before) = (number(&leader, "create_revision"), number(&leader, "lease"));
    eventually("it leads on another lease", PATIENCE, || {
        // Its own levels take the place of these.
        levels(3_000);
        let lease = number(&leader, "lease");
        lease != before && lease == number(&key, "lease")
    });
    assert_eq!(number(&leader, "create_revision"), since);
    assert_eq!(*failed.lock().unwrap(), Vec::<String>::new());
}

#[test]
fn who_goes_back_twice_is_two_versions_behind_and_never_at_the_bad_one() {
    let etcd = Etcd::start(None, 1).unwrap();
    runtime().block_on(async {
        let settings = settings(&etcd.endpoints());
        let mut fleet = Fleet::connect(&settings, &dial_plainly()).await.unwrap();
        assert_eq!(fleet.before_latest().await.unwrap(), None);
        let text = |n: u64| policy(&[("a.toml", &format!("# {n}"))]);
        // The version that each push repeats, and the one before it: 3 is bad, and so is 6.
        for (number, repeats, before) in [
            (1, None, None),
            (2, None, Some(1)),
            (3, None, Some(2)),
            (4, Some(2), Some(1)),
            (5, Some(1), None),
            (6, None, Some(5)),
            (7, Some(4), Some(1)),
        ] {
            let pushed = fleet.push(text(repeats.unwrap_or(number)), repeats, 0);
            assert_eq!(pushed.await.unwrap().number, number);
            assert_eq!(fleet.before_latest().await.unwrap(), before, "{number}");
        }
        // A version that repeats one that is no longer kept is behind that one.
        for _ in 0..KEPT_VERSIONS {
            fleet.push(text(7), Some(7), 0).await.unwrap();
        }
        assert_eq!(fleet.before_latest().await.unwrap(), Some(6));
    });
}

#[test]
fn versions_are_kept_bounded_and_can_be_pushed_again_but_not_at_the_same_time() {
    let etcd = Etcd::start(None, 1).unwrap();
    runtime().block_on(async {
        let settings = settings(&etcd.endpoints());
        let mut fleet = Fleet::connect(&settings, &dial_plainly()).await.unwrap();
        assert_eq!(fleet.head().await.unwrap(), None);
        let text = |n: u64| policy(&[("a.toml", &format!("# {n}"))]);
        for n in 1..=KEPT_VERSIONS + 2 {
            assert_eq!(fleet.push(text(n), None, n).await.unwrap().number, n);
        }
        assert_eq!(fleet.head().await.unwrap(), Some(KEPT_VERSIONS + 2));
        let gone = fleet.version(2).await.unwrap_err();
        assert!(matches!(gone, Failure::Absent(_)), "{gone}");
        let third = fleet.version(3).await.unwrap();
        assert_eq!(third.fragments.files, text(3).files);
        let again = fleet.push(third.fragments, Some(3), 0).await.unwrap();
        assert_eq!((again.number, again.repeats), (KEPT_VERSIONS + 3, Some(3)));
        let wanted = fleet.wanted().await.unwrap().unwrap();
        assert_eq!(wanted.digest(), text(3).digest());

        // Of two at once, each wins or is told that it has not.
        let mut other = Fleet::connect(&settings, &dial_plainly()).await.unwrap();
        let (one, two) = tokio::join!(fleet.push(text(7), None, 0), other.push(text(8), None, 0));
        let raced = [&one, &two]
            .iter()
            .filter(|p| matches!(p, Err(Failure::Raced)))
            .count();
        let pushed = [one, two]
            .into_iter()
            .flatten()
            .map(|version| version.number);
        let mut numbers: Vec<_> = pushed.collect();
        numbers.dedup();
        assert_eq!(numbers.len() + raced, 2, "{numbers:?}, {raced} raced");
    });
}
