//! The reader of copies: what it has no room or no time for, when it sleeps, and an agent that stops, or dies.

use std::{
    net::{TcpListener, TcpStream},
    path::Path,
    time::Instant,
};

use nix::sys::signal::Signal;
use sandbox::{Agent, Sandbox};

use super::{
    tapped::{tapped, told_of, told_selects},
    *,
};
use crate::common::{
    BINARY, PATIENCE, accept, eventually_within, wire::host_with, without_descriptors,
};

#[test]
fn what_has_no_room_is_counted_and_reading_goes_on() {
    const REQUESTS: u64 = 3_000;
    host_with("tap_ring_bytes = 65536", |host| {
        host.policy(&tapped("tap", "{ transform = \"stats\" }"));
        let mut c = begin(host, 4);
        let asks = |c: &mut Conversation| {
            c.client_sends(&query(4, 1, SELECT));
            c.server_sends(&rows(4, 1, 100));
        };
        let counted = || {
            let list = host.agent.json("/statements").unwrap();
            let rows = list.as_array().unwrap();
            let row = rows.iter().find(|row| row["table"] == "orders");
            row.map_or(0, |row| {
                // No request is given another's response.
                let count = row["count"].as_u64().unwrap();
                assert_eq!(row["rows"], 100 * count);
                count
            })
        };
        asks(&mut c);
        eventually("it is read", || counted() == 1);
        host.agent.signal(Signal::SIGSTOP).unwrap();
        for _ in 0..REQUESTS {
            asks(&mut c);
        }
        host.agent.signal(Signal::SIGCONT).unwrap();
        let by = |what: &str, direction: &str| {
            host.metric(
                &format!("observed_{what}"),
                &format!("direction=\"{direction}\",rule=\"r\""),
            )
        };
        // The kernel counts whatever is read.
        let requests = || host.metric("observed_requests", "opcode=\"query\",rule=\"r\"");
        assert_eq!(requests(), REQUESTS + 1);
        assert!(by("uncopied_bytes", "to_client") > 0);
        let uncopied = by("uncopied_frames", "to_database");
        assert!(uncopied > 0 && uncopied < REQUESTS, "{uncopied}");
        let mut before = counted();
        eventually("all copies are read", || {
            let now = counted();
            now == std::mem::replace(&mut before, now)
        });
        assert!(before < REQUESTS, "{before}");
        // The first one shows what is missing; its response is behind that, and paired with nothing.
        for _ in 0..11 {
            asks(&mut c);
        }
        eventually("reading goes on", || counted() == before + 10);
        assert!(host.metric("tap_gaps", "rule=\"r\"") > 0);
        c.ends();
    });
}

/// How often the reader of copies has been woken, and how often all other threads of the agent.
fn wake_ups(pid: u32) -> (u64, u64) {
    let (mut reader, mut others) = (0, 0);
    for thread in fs::read_dir(format!("/proc/{pid}/task")).unwrap() {
        let thread = thread.unwrap().path();
        // Threads that may block come and go.
        let (Ok(name), Ok(status)) = (
            fs::read_to_string(thread.join("comm")),
            fs::read_to_string(thread.join("status")),
        ) else {
            continue;
        };
        let mut lines = status.lines();
        let count = lines.find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        let count: u64 = count.unwrap().trim().parse().unwrap();
        match name.as_str() {
            "tap\n" => reader += count,
            _ => others += count,
        }
    }
    (reader, others)
}

#[test]
fn idle_connections_wake_nobody() {
    const CONNECTIONS: usize = 1_000;
    const WHILE: Duration = Duration::from_secs(5);
    /// Looks of the agent's at files, cgroups and meters that fall into one such time, and not into the other.
    const LOOKS: u64 = 8;
    host(|host| {
        host.policy(&tapped("tap", "{ transform = \"stats\" }"));
        let pid = host.agent.pid();
        thread::sleep(Duration::from_secs(1));
        let at_rest = wake_ups(pid).1;
        thread::sleep(WHILE);
        let at_rest = wake_ups(pid).1 - at_rest;
        let idle = [(); CONNECTIONS].map(|()| begin(host, 4));
        eventually("all are read", || {
            host.agent.metric("underpass_tap_flows").unwrap() == CONNECTIONS as f64
        });
        // Five seconds after the last copy it looks once for flows whose end it was not told of.
        thread::sleep(Duration::from_secs(6));
        let mut before = wake_ups(pid);
        eventually("its reader sleeps", || {
            thread::sleep(Duration::from_millis(50));
            let now = wake_ups(pid);
            now.0 == std::mem::replace(&mut before, now).0
        });
        thread::sleep(WHILE);
        let now = wake_ups(pid);
        assert_eq!(now.0, before.0);
        let woken = now.1 - before.1;
        assert!(woken <= at_rest + LOOKS, "{woken} {at_rest}");
        let [mut first, ..] = idle;
        first.client_sends(&query(4, 1, SELECT));
        first.server_sends(&void(4, 1));
        eventually("it wakes", || {
            let rows = host.agent.json("/statements").unwrap();
            rows.as_array().unwrap().iter().any(|row| row["count"] == 1)
        });
        eventually("its reader sleeps again", || wake_ups(pid).0 > before.0);
    });
}

/// Flows that are left out send nothing that could wake their reader.
#[test]
fn who_was_left_out_is_read_again_when_it_is_quiet() {
    const CONNECTIONS: usize = 8;
    const LEFT_OUT: &str = "underpass_tap_left_out{rule=\"r\"}";
    host_with("tap_cpu = \"2%\"", |host| {
        host.policy(&tapped("tap", "{ transform = \"stats\" }"));
        let mut busy = [(); CONNECTIONS].map(|()| begin(host, 4));
        let mut asks_all = || {
            for c in &mut busy {
                c.client_sends(&query(4, 1, SELECT));
                c.server_sends(&rows(4, 1, 1));
            }
        };
        let left_out = || {
            let flows = host.agent.json("/flows").unwrap();
            let why = flows
                .as_array()
                .unwrap()
                .iter()
                .map(|f| f["why"].as_str().unwrap());
            why.filter(|why| why.ends_with("not read now, because `tap_cpu` is used up"))
                .count()
        };
        eventually("some are left out", || {
            asks_all();
            host.agent.metric(LEFT_OUT).unwrap_or_default() > 0.0
        });
        eventually("it is said of some", || {
            asks_all();
            left_out() > 0
        });
        let said =
            "reading copies takes more than `tap_cpu`: some of the rule's flows are not read";
        host.agent.wait_for_log(said).unwrap();
        eventually_within("none is left out", 3 * PATIENCE, || {
            host.agent.metric(LEFT_OUT).unwrap() == 0.0
        });
        host.agent
            .wait_for_log("all of the rule's flows are read again")
            .unwrap();
        eventually("it is said of none", || left_out() == 0);
        let before = told_selects(host);
        // Requests that were not read leave a gap, and the first one behind it may have no response.
        (0..2).for_each(|_| asks_all());
        eventually("all are read", || {
            told_selects(host) >= before + CONNECTIONS as u64
        });
        busy.into_iter().for_each(Conversation::ends);
    });
}

/// Nothing passes on them: all that takes time is that they begin and end.
#[test]
fn connections_that_come_and_go_are_left_out_when_they_take_too_much() {
    const AT_ONCE: usize = 32;
    const LEFT_OUT: &str = "underpass_tap_left_out{rule=\"r\"}";
    host_with("tap_cpu = \"1%\"", |host| {
        host.policy(&tapped("tap", "{ transform = \"stats\" }"));
        eventually("some are left out", || {
            (0..AT_ONCE).for_each(|_| host.connect().ends());
            host.agent.metric(LEFT_OUT).unwrap_or_default() > 0.0
        });
        eventually_within("none is left out", 3 * PATIENCE, || {
            host.agent.metric(LEFT_OUT).unwrap() == 0.0
        });
        let mut c = begin(host, 4);
        c.client_sends(&query(4, 1, SELECT));
        c.server_sends(&rows(4, 1, 1));
        eventually("it is read", || told_selects(host) == 1);
        c.ends();
    });
}

#[test]
fn a_reader_that_cannot_wait_reads_on() {
    host(|host| {
        host.policy(&tapped("tap", "{ transform = \"stats\" }"));
        let mut c = begin(host, 4);
        let mut ask = || {
            c.client_sends(&query(4, 1, SELECT));
            c.server_sends(&rows(4, 1, 1));
        };
        ask();
        eventually("it is read", || told_selects(host) == 1);
        let failure = "copies of tapped flows cannot be waited for";
        without_descriptors(&host.agent, || {
            // It sleeps, and finds out when it is to wait again.
            ask();
            host.agent.wait_for_log(failure).unwrap();
            ask();
        });
        eventually("all is read", || told_selects(host) == 3);
        ask();
        eventually("it reads on", || told_selects(host) == 4);
        assert_eq!(host.agent.log().matches(failure).count(), 1);
        let failed = host.agent.metric("underpass_tap_failed_waits_total");
        assert_eq!(failed.unwrap(), 1.0);
        c.ends();
    });
}

/// The longest that a request may take on busy processors.
const PATIENT: Duration = Duration::from_secs(1);

/// The median of requests with the tap, in those without it at the same time: two programs more run in each `send`, of a debug build's
/// client on busy processors.
const MEDIAN_AT_MOST: f64 = 1.5;

/// One of so many requests is answered with an error.
const FAILS_EVERY: u64 = 10;

/// A connection from outside the agent's cgroup.
fn unseen(host: &Host<'_>) -> Conversation {
    let to = host.listener.local_addr().unwrap();
    let client = host.sandbox.server(|| TcpStream::connect(to));
    let client = client.unwrap().unwrap();
    client.set_nodelay(true).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    let server = accept(&host.listener).0;
    server.set_nodelay(true).unwrap();
    Conversation {
        client,
        server,
        in_segments: false,
    }
}

/// The processor time that the reader of copies has had.
fn reader_time(pid: u32) -> Duration {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let mut threads = threads.map(|thread| thread.unwrap().path());
    let is_reader = |thread: &std::path::PathBuf| {
        fs::read_to_string(thread.join("comm")).is_ok_and(|name| name == "tap\n")
    };
    let reader = threads.find(is_reader).unwrap();
    let ran = fs::read_to_string(reader.join("schedstat")).unwrap();
    let ns = ran.split(' ').next().unwrap().parse().unwrap();
    Duration::from_nanos(ns)
}

/// The busiest flows are left out until the rest fits; what is measured is a second's mean.
#[test]
fn the_reader_takes_no_more_of_a_core_than_it_may() {
    const CONNECTIONS: usize = 64;
    const AT_ONCE: usize = 8;
    const SHARE: f64 = 0.1;
    const WHILE: Duration = Duration::from_secs(4);
    host_with("tap_cpu = \"10%\"", |host| {
        host.policy(&tapped("tap", "{ transform = \"stats\" }"));
        let mut busy = [(); CONNECTIONS].map(|()| begin(host, 4));
        let asked = query(4, 1, SELECT).repeat(AT_ONCE);
        let answered = rows(4, 1, 1).repeat(AT_ONCE);
        let mut asks_for = |time: Duration| {
            let began = Instant::now();
            while began.elapsed() < time {
                // All at once, so that as much passes as there is time for.
                for c in &busy {
                    (&c.client).write_all(&asked).unwrap();
                }
                for c in &mut busy {
                    c.server_gets(&asked);
                    c.server.write_all(&answered).unwrap();
                }
                busy.iter_mut().for_each(|c| c.client_gets(&answered));
            }
        };
        eventually("not all of it fits", || {
            asks_for(Duration::from_millis(500));
            let left_out = host.agent.metric("underpass_tap_left_out{rule=\"r\"}");
            left_out.unwrap_or_default() > 0.0
        });
        // What has been copied by then is read yet.
        asks_for(Duration::from_secs(1));
        let (before, began) = (reader_time(host.agent.pid()), Instant::now());
        asks_for(WHILE);
        let ran = reader_time(host.agent.pid()) - before;
        let share = ran.as_secs_f64() / began.elapsed().as_secs_f64();
        assert!(share < 2.0 * SHARE, "{share:.3} of a core");
        busy.into_iter().for_each(Conversation::ends);
    });
}

/// The ring is smaller than what passes while the agent is stopped.
#[test]
fn an_agent_that_stops_for_seconds_is_not_noticed_and_each_frame_is_accounted_for() {
    const STOPPED: Duration = Duration::from_secs(5);
    host_with("tap_ring_bytes = 1048576", |host| {
        host.policy(&tapped("tap", "{ transform = \"stats\" }"));
        let mut c = begin(host, 4);
        let ask = |c: &mut Conversation| {
            c.client_sends(&query(4, 1, SELECT));
            c.server_sends(&rows(4, 1, 1));
        };
        ask(&mut c);
        eventually("it is read", || told_selects(host) == 1);
        // In the same moments, by a connection of which the agent sees nothing.
        let mut unseen = unseen(host);
        host.agent.signal(Signal::SIGSTOP).unwrap();
        let (mut asked, mut failed) = (1, 0);
        let mut took = [Vec::new(), Vec::new()];
        let stopped = Instant::now();
        while stopped.elapsed() < STOPPED {
            for (c, took) in [&mut c, &mut unseen].into_iter().zip(&mut took) {
                let began = Instant::now();
                // Panics when a byte is missing or wrong.
                ask(c);
                took.push(began.elapsed());
            }
            asked += 1;
            if asked % FAILS_EVERY == 0 {
                c.client_sends(&query(4, 1, "SELECT v FROM shop.failing"));
                c.server_sends(&error(4, 1, 0x1100));
                failed += 1;
            }
        }
        host.agent.signal(Signal::SIGCONT).unwrap();
        took.iter_mut().for_each(|took| took.sort_unstable());
        let at = |per_cent: usize| {
            took.each_ref()
                .map(|took| took[took.len() * per_cent / 100])
        };
        let [median, without] = at(50);
        assert!(
            median < without.mul_f64(MEDIAN_AT_MOST),
            "{median:?}, {without:?}"
        );
        let [slowest, others] = took.each_ref().map(|took| *took.last().unwrap());
        assert!(slowest < PATIENT + others, "{slowest:?}, {others:?}");
        unseen.ends();
        let mut before = told_selects(host);
        eventually("all copies are read", || {
            let now = told_selects(host);
            now == std::mem::replace(&mut before, now)
        });
        let passed = |direction: &str, opcode: &str| {
            let name = format!("observed_{direction}");
            host.metric(&name, &format!("opcode=\"{opcode}\",rule=\"r\""))
        };
        assert_eq!(passed("requests", "query"), asked + failed);
        assert_eq!(passed("responses", "result"), asked);
        assert_eq!(passed("responses", "error"), failed);
        let uncopied = |direction: &str| {
            let labels = format!("direction=\"{direction}\",rule=\"r\"");
            host.metric("observed_uncopied_frames", &labels)
        };
        let [requests, responses] = ["to_database", "to_client"].map(uncopied);
        let abandoned = host.metric("tap_abandoned", "rule=\"r\"");
        let counts = format!(
            "{before} of {asked} told, {abandoned} abandoned, {requests} and {responses} not copied"
        );
        assert!(requests + responses > 0, "the ring has held all: {counts}");
        // What was told has both its frames; what was not has lost one of them, or was waiting when others were lost.
        let (told, passed) = (before + told_of(host, "failing"), asked + failed);
        assert!(told + requests.max(responses) <= passed, "{counts}");
        let lost = abandoned + requests + responses;
        assert!(told + lost >= passed, "{counts}");
        c.ends();
    });
}

/// The word of its end is lost with what there is no room for, and nothing comes that could wake the reader.
#[test]
fn a_flow_whose_end_was_lost_is_found_though_nothing_comes_any_more() {
    const REQUESTS: usize = 2_000;
    const CONNECTIONS: usize = 8;
    host_with("tap_ring_bytes = 65536", |host| {
        host.policy(&tapped("tap", "{ transform = \"stats\" }"));
        let mut all = [(); CONNECTIONS].map(|()| begin(host, 4));
        let ask = |c: &mut Conversation| {
            c.client_sends(&query(4, 1, SELECT));
            c.server_sends(&rows(4, 1, 1));
        };
        all.iter_mut().for_each(ask);
        eventually("all are read", || told_selects(host) == CONNECTIONS as u64);
        host.agent.signal(Signal::SIGSTOP).unwrap();
        (0..REQUESTS).for_each(|_| ask(&mut all[0]));
        // There may be room for one or two.
        all.into_iter().for_each(Conversation::ends);
        host.agent.signal(Signal::SIGCONT).unwrap();
        eventually_within("their ends are found", 3 * PATIENCE, || {
            host.agent.metric("underpass_tap_flows").unwrap() == 0.0
        });
        let uncopied = host.metric(
            "observed_uncopied_frames",
            "direction=\"to_database\",rule=\"r\"",
        );
        assert!(uncopied > 0);
    });
}

/// Where the programs are attached that read packets.
const SKB_HOOKS: [&str; 2] = ["cgroup_inet_ingress", "cgroup_inet_egress"];

/// Where programs are attached at a cgroup.
fn attached(cgroup: &Path) -> Vec<String> {
    let shown = Command::new("/usr/sbin/bpftool")
        .args(["--json", "cgroup", "show"])
        .arg(cgroup)
        .output()
        .unwrap();
    // Of a cgroup that has none it says nothing.
    let programs: Vec<Value> = serde_json::from_slice(&shown.stdout).unwrap_or_default();
    let hooks = programs.iter().map(|program| &program["attach_type"]);
    hooks
        .map(|hook| hook.as_str().unwrap().to_owned())
        .collect()
}

#[test]
fn the_agents_end_is_not_noticed_and_takes_its_programs_along() {
    for is_killed in [true, false] {
        let sandbox = Sandbox::new().unwrap();
        let listener = sandbox.server(|| TcpListener::bind("127.0.0.1:0"));
        let listener = listener.unwrap().unwrap();
        let port = listener.local_addr().unwrap().port().to_string();
        let rules = tapped("tap", "{ transform = \"stats\" }").replace("PORT", &port);
        let (netns, cgroup) = (Some(&sandbox.netns), &sandbox.cgroup);
        let mut agent = Agent::start(Path::new(BINARY), netns, cgroup, "", &rules).unwrap();
        let connect = || {
            let to = listener.local_addr().unwrap();
            let client = sandbox.client(|| TcpStream::connect(to));
            Conversation {
                client: client.unwrap().unwrap(),
                server: accept(&listener).0,
                in_segments: false,
            }
        };
        let mut before = connect();
        before.client_sends(&startup(4, &[("CQL_VERSION", "3.0.0")]));
        before.server_sends(&ready(4));
        eventually("it is read", || {
            agent.metric("underpass_tap_flows").unwrap() == 1.0
        });
        let hooks = attached(cgroup.path());
        for hook in SKB_HOOKS {
            assert!(hooks.iter().any(|attached| attached == hook), "{hooks:?}");
        }
        match is_killed {
            true => agent.kill().unwrap(),
            false => assert!(agent.stop().unwrap().success()),
        }
        // Of a dead agent those of `connect()` stay, which say what becomes of new connections.
        let stay = |hook: &String| is_killed && !SKB_HOOKS.contains(&hook.as_str());
        eventually("nothing else is attached", || {
            attached(cgroup.path()).iter().all(stay)
        });
        // Neither the connection nor a new one notices.
        for mut c in [before, connect()] {
            c.client_sends(&query(4, 1, SELECT));
            c.server_sends(&void(4, 1));
            c.ends();
        }
    }
}
