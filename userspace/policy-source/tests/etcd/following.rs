//! Hosts follow while members die, hang, lose their leader, are parted or are compacted.

use std::{
    io::{self, Read as _, Write as _},
    net::{Shutdown, TcpListener, TcpStream},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use nix::sys::signal::Signal;
use policy_source::{Fleet, Pace, dial_plainly};
use sandbox::{Etcd, Netns, run_in};
use tokio::time;

use super::common::{Host, PACE, PATIENCE, PROMPT, eventually, policy, push, runtime, settings};

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
    compact(&etcd, 1);
    assert!(host.has(&first), "the last good one stays meanwhile");
    etcd.restart(0).unwrap();
    eventually("it has the last", PATIENCE, || host.has(&last));
}

/// Has a member forget all that is not its latest state.
fn compact(etcd: &Etcd<'_>, number: usize) {
    let said = etcd.ctl(number, &["get", "/underpass/head", "-w", "json"]);
    let said = said.unwrap();
    let (_, revision) = said.split_once("\"revision\":").unwrap();
    let revision: String = revision.chars().take_while(char::is_ascii_digit).collect();
    let args = ["compact", "--physical", &revision];
    etcd.ctl(number, &args).unwrap();
}

/// A relay to a member, which holds the first request to watch the rules until it is told to go on.
struct Relay {
    url: String,
    held: mpsc::Receiver<()>,
    go_on: mpsc::Sender<()>,
}

impl Relay {
    fn start(to: &str) -> Self {
        let to = to.strip_prefix("http://").unwrap().to_owned();
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let ((holds, held), (go_on, goes_on)) = (mpsc::channel(), mpsc::channel());
        thread::spawn(move || {
            let mut is_first = true;
            for client in listener.incoming() {
                let (client, member) = (client.unwrap(), TcpStream::connect(&to).unwrap());
                let (mut answers, mut back) =
                    (member.try_clone().unwrap(), client.try_clone().unwrap());
                thread::spawn(move || io::copy(&mut answers, &mut back));
                carry(client, member, || {
                    if std::mem::take(&mut is_first) {
                        holds.send(()).unwrap();
                        goes_on.recv().unwrap();
                    }
                });
            }
        });
        Self { url, held, go_on }
    }
}

/// Carries requests of one connection to a member. `hold` is called before one that asks for the rules once more: they have been read, and are to be watched.
fn carry(mut client: TcpStream, mut member: TcpStream, mut hold: impl FnMut()) {
    const RULES: &[u8] = b"/underpass/rules/";
    let (mut seen, mut buffer) = (Vec::new(), [0; 4096]);
    loop {
        let read = match client.read(&mut buffer) {
            Ok(0) | Err(_) => break,
            Ok(read) => buffer.get(..read).unwrap(),
        };
        seen.extend_from_slice(read);
        let asked = seen.windows(RULES.len()).filter(|key| *key == RULES);
        if asked.count() == 2 {
            hold();
        }
        if member.write_all(read).is_err() {
            break;
        }
    }
    let _ = member.shutdown(Shutdown::Both);
}

#[test]
fn a_watch_that_begins_after_a_compaction_is_begun_again() {
    let etcd = Etcd::start(None, 1).unwrap();
    let runtime = runtime();
    let first = push(&runtime, &etcd, &[("a.toml", "1")]);
    let endpoints = etcd.endpoints();
    let relay = Relay::start(endpoints.first().unwrap());
    // What the test does meanwhile takes as long as it takes.
    let pace = Pace {
        answer: PATIENCE,
        ..PACE
    };
    let host = Host::at(
        pace,
        &runtime,
        "h",
        settings(std::slice::from_ref(&relay.url)),
    );
    relay.held.recv_timeout(PATIENCE).unwrap();
    assert!(host.has(&first));
    push(&runtime, &etcd, &[("a.toml", "2")]);
    let last = push(&runtime, &etcd, &[("a.toml", "3")]);
    compact(&etcd, 0);
    relay.go_on.send(()).unwrap();
    eventually("it has the last", PATIENCE, || host.has(&last));
    // The member lives on, and so does the host's connection: what its watch should have told is gone.
    assert_eq!(host.heard("compacted"), 1);
    assert_eq!(host.heard("lost") + host.heard("late"), 0);
}
