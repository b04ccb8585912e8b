//! A tenant's rate that agents share by a real etcd, each a process with a cgroup and clients of its own.

use std::{
    env,
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    path::Path,
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread::{self, Scope},
    time::{Duration, Instant},
};

use sandbox::{Agent, Cgroup, Etcd, Sandbox, run_in};

use super::{RATE, STEP};
use crate::common::{
    BINARY, eventually,
    frames::{STARTUP, query, ready, startup, void},
};

/// Agents of a short run. As many as `UNDERPASS_SHARING_AGENTS` says are a long one, in which agents die.
const FEW: usize = 3;

/// The time in which shares find what is asked for.
const SETTLE: Duration = Duration::from_secs(6);

/// Agents of each kind, and requests in a second of each of their clients: far below the rate.
const CALM_AGENTS: usize = 2;
const CALM_RATE: f64 = 100.0;

/// The time over which their requests are timed.
const CALM: Duration = Duration::from_secs(10);

/// How many times as long as beside a rate of the host's own a request may take beside one that is shared, in all but a hundredth of cases.
const MOST_TIMES: u32 = 2;

/// Where both take less, it is the machine that is measured: what its scheduler does in a debug build with other tests beside it.
const LEAST_P99: Duration = Duration::from_millis(2);

/// Bytes of a frame's header (v4).
const HEADER_BYTES: usize = 9;

/// Reads a frame: opcode and stream.
fn read(stream: &mut TcpStream) -> Option<(u8, i16)> {
    let mut header = [0; HEADER_BYTES];
    stream.read_exact(&mut header).ok()?;
    let length = u32::from_be_bytes(header[5..].try_into().unwrap());
    let mut body = vec![0; length as usize];
    stream.read_exact(&mut body).ok()?;
    Some((header[4], i16::from_be_bytes([header[2], header[3]])))
}

/// Answers each request of whoever connects.
fn serve<'scope>(
    scope: &'scope Scope<'scope, '_>,
    listener: &'scope TcpListener,
    ends: &'scope AtomicBool,
) {
    scope.spawn(move || {
        for connection in listener.incoming() {
            if ends.load(Relaxed) {
                return;
            }
            let Ok(mut connection) = connection else {
                continue;
            };
            scope.spawn(move || {
                while let Some((opcode, stream)) = read(&mut connection) {
                    let answer = match opcode {
                        STARTUP => ready(4),
                        _ => void(4, stream),
                    };
                    if connection.write_all(&answer).is_err() {
                        return;
                    }
                }
            });
        }
    });
}

/// When requests have passed, and how long they took.
type Passed = Mutex<Vec<(Instant, Duration)>>;

/// Asks so many times a second, until it is over or the agent has gone.
fn ask(to: SocketAddr, rate: f64, passed: &Passed, ends: &AtomicBool) {
    let mut stream = TcpStream::connect(to).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
        .write_all(&startup(4, &[("CQL_VERSION", "3.0.0")]))
        .unwrap();
    read(&mut stream).unwrap();
    let request = query(4, 1, "SELECT v FROM shop.orders WHERE id = 1");
    let (mut due, mut last) = (0.0, Instant::now());
    while !ends.load(Relaxed) {
        thread::sleep(STEP);
        let now = Instant::now();
        // Who could not ask in time does not ask twice as much later.
        due = (due + rate * (now - last).as_secs_f64()).min(rate);
        last = now;
        while due >= 1.0 {
            due -= 1.0;
            let asked = Instant::now();
            let answer = stream
                .write_all(&request)
                .ok()
                .and_then(|()| read(&mut stream));
            match answer {
                // What is refused is an ERROR.
                Some((0, _)) => {}
                Some(_) => passed.lock().unwrap().push((asked, asked.elapsed())),
                None => return,
            }
        }
    }
}

struct Host<'h> {
    agent: Agent<'h>,
    cgroup: &'h Cgroup,
}

fn start<'h>(
    host: &'h Sandbox,
    cgroup: &'h Cgroup,
    number: usize,
    to: SocketAddr,
    etcd: &Etcd<'_>,
    scope: &str,
) -> Host<'h> {
    let policy = format!(
        "[host]\nname = \"h{number}\"\n[limits]\nendpoints = {:?}\n[[rule]]\nname = \"shop\"\nto = [\"{to}\"]\naction = \"enrich\"\n\
         fail = \"closed\"\npipeline = [{{ transform = \"throttle\", rate = {RATE}, per = \"user\", scope = {scope:?}, mode = \"overloaded\" }}]\n",
        etcd.endpoints(),
    );
    let settings = "max_flows = 100";
    let agent = Agent::start(
        Path::new(BINARY),
        Some(&host.netns),
        cgroup,
        settings,
        &policy,
    );
    Host {
        agent: agent.unwrap(),
        cgroup,
    }
}

/// The time that all but a hundredth of requests take at most.
fn p99(took: &mut [Duration]) -> Duration {
    took.sort_unstable();
    took[took.len() * 99 / 100]
}

#[test]
fn a_request_within_a_shared_rate_takes_no_longer_than_within_a_hosts_own() {
    let host = Sandbox::new().unwrap();
    let etcd = Etcd::start(Some(&host.netns), 1).unwrap();
    let listener = host.server(|| TcpListener::bind(("127.0.0.1", 0)));
    let listener = listener.unwrap().unwrap();
    let to = listener.local_addr().unwrap();
    let cgroups: Vec<Cgroup> = (0..2 * CALM_AGENTS)
        .map(|_| Cgroup::new().unwrap())
        .collect();
    // In turn, and all at the same time: what else the machine does meets both kinds.
    let is_shared = |number: usize| number.is_multiple_of(2);
    let scope = |number: usize| if is_shared(number) { "fleet" } else { "host" };
    let hosts: Vec<Host<'_>> = cgroups
        .iter()
        .enumerate()
        .map(|(number, cgroup)| start(&host, cgroup, number, to, &etcd, scope(number)))
        .collect();
    let of = |kind: bool| {
        let all = hosts.iter().enumerate();
        all.filter(move |(number, _)| is_shared(*number) == kind)
    };
    let value = |host: &Host<'_>, name: &str| host.agent.metric(name).unwrap_or_default();
    eventually("their rate is shared", || {
        of(true).all(|(_, host)| {
            value(host, "underpass_limits_in_step") == 1.0
                && value(host, "underpass_limits_hosts{limit=\"shop.user\"}") == CALM_AGENTS as f64
        })
    });
    let (passed, ends) = (
        [Passed::default(), Passed::default()],
        AtomicBool::new(false),
    );
    let begun = thread::scope(|scope| {
        serve(scope, &listener, &ends);
        for (number, host_of) in hosts.iter().enumerate() {
            let passed = &passed[usize::from(is_shared(number))];
            let (netns, cgroup, ends) = (&host.netns, host_of.cgroup, &ends);
            scope.spawn(move || {
                run_in(Some(netns), Some(cgroup), || {
                    ask(to, CALM_RATE, passed, ends)
                })
                .unwrap()
            });
        }
        // Shares have found what is asked for, and connections their way.
        thread::sleep(SETTLE);
        let begun = Instant::now();
        thread::sleep(CALM);
        ends.store(true, Relaxed);
        let _ = host.client(|| TcpStream::connect(to)).unwrap();
        begun
    });
    let [alone, shared] = passed.map(|passed| {
        let passed = passed.into_inner().unwrap().into_iter();
        let mut took: Vec<Duration> = passed
            .filter(|(at, _)| *at >= begun)
            .map(|(_, took)| took)
            .collect();
        // None was refused, nor did a client wait.
        let expected = CALM.as_secs_f64() * CALM_RATE * CALM_AGENTS as f64;
        assert!(took.len() as f64 > 0.9 * expected, "{}", took.len());
        p99(&mut took)
    });
    eprintln!("p99 {shared:?} within a shared rate, {alone:?} within a host's own");
    assert!(
        shared <= MOST_TIMES * alone.max(LEAST_P99),
        "{shared:?}, and {alone:?} within a host's own"
    );
}

#[test]
fn agents_hold_a_tenants_rate_together() {
    let wanted = env::var("UNDERPASS_SHARING_AGENTS").ok();
    let agents = wanted.map_or(FEW, |number| number.parse().unwrap());
    let host = Sandbox::new().unwrap();
    let mut etcd = Etcd::start(Some(&host.netns), 1).unwrap();
    let listener = host
        .server(|| TcpListener::bind(("127.0.0.1", 0)))
        .unwrap()
        .unwrap();
    let to = listener.local_addr().unwrap();
    let cgroups: Vec<Cgroup> = (0..agents).map(|_| Cgroup::new().unwrap()).collect();
    let mut hosts: Vec<Host<'_>> = cgroups
        .iter()
        .enumerate()
        .map(|(number, cgroup)| start(&host, cgroup, number, to, &etcd, "fleet"))
        .collect();
    eventually("all are in step", || {
        hosts
            .iter()
            .all(|host| host.agent.metric("underpass_limits_in_step").unwrap() == 1.0)
    });
    let (passed, ends) = (Passed::default(), AtomicBool::new(false));
    // Who asks for much, and who for little: together more than there is.
    let rate = |number: usize| match number.is_multiple_of(4) {
        true => 4.0 * RATE / agents as f64,
        false => 0.8 * RATE / agents as f64,
    };
    let measured = thread::scope(|scope| {
        serve(scope, &listener, &ends);
        for (number, host_of) in hosts.iter().enumerate() {
            let (netns, cgroup, passed, ends) = (&host.netns, host_of.cgroup, &passed, &ends);
            scope.spawn(move || {
                run_in(Some(netns), Some(cgroup), || {
                    ask(to, rate(number), passed, ends)
                })
                .unwrap()
            });
        }
        thread::sleep(SETTLE);
        let begun = Instant::now();
        let after = |seconds: u64| thread::sleep(Duration::from_secs(seconds));
        if agents > FEW {
            after(3);
            // One that asks for much, and two that ask for little.
            hosts[..3]
                .iter_mut()
                .for_each(|host| host.agent.kill().unwrap());
            after(9);
            etcd.kill(0).unwrap();
            after(8);
            etcd.restart(0).unwrap();
            after(10);
        } else {
            after(2);
            etcd.kill(0).unwrap();
            after(4);
            etcd.restart(0).unwrap();
            after(4);
        }
        let measured = begun..Instant::now();
        ends.store(true, Relaxed);
        // The listener sees that it is over.
        let _ = host.client(|| TcpStream::connect(to)).unwrap();
        measured
    });
    let mut took: Vec<Duration> = passed
        .lock()
        .unwrap()
        .iter()
        .filter(|(at, _)| measured.contains(at))
        .map(|(_, took)| *took)
        .collect();
    let seconds = (measured.end - measured.start).as_secs_f64();
    let rate = took.len() as f64 / seconds;
    eprintln!(
        "{agents} agents: {rate:.0} a second in {seconds:.0} s; p99 {:?}",
        p99(&mut took)
    );
    assert!((rate - RATE).abs() <= RATE * 0.05, "{rate}");
    eventually("those that live are in step again", || {
        let alive = hosts.iter().skip(if agents > FEW { 3 } else { 0 });
        alive
            .into_iter()
            .all(|host| host.agent.metric("underpass_limits_in_step").unwrap() == 1.0)
    });
}
