//! Thousands of running connections: how soon they are read, and what that takes.

use std::{
    net::{SocketAddr, TcpStream},
    time::Instant,
};

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use socket2::{Domain, Socket, Type};

use super::{adopted::taps, *};

/// Running connections, unless UNDERPASS_RUNNING says otherwise: `cargo xtask soak` has ten thousand.
const RUNNING: usize = 1_000;

/// So many of them are read after this time. For others that is not asserted, because tests share processors.
const ADOPTED_WITHIN: (usize, Duration) = (10_000, Duration::from_secs(2));

/// Connections that wait at a database to be accepted. Whether it has, makes no difference to the client's end, which is what is
/// read; and a process may have fewer descriptors than both ends of ten thousand.
const BACKLOG: usize = 4_000;

/// Memory of an agent that reads as many, without its program, of which a debug build has much.
const MAX_RSS_MIB: u64 = 40;

#[test]
fn running_connections_are_read_within_seconds() {
    let running = std::env::var("UNDERPASS_RUNNING");
    let running = running.map_or(RUNNING, |n| n.parse().unwrap());
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).unwrap();
    host(|host| {
        host.policy("");
        let port = host.listener.local_addr().unwrap().port();
        let databases = (2_u8..).take(running.div_ceil(BACKLOG));
        let databases: Vec<Socket> = databases
            .map(|n| {
                host.sandbox
                    .server(|| {
                        let database = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
                        let at = SocketAddr::from(([127, 0, 0, n], port));
                        database.bind(&at.into()).unwrap();
                        database.listen(2 * BACKLOG as i32).unwrap();
                        database
                    })
                    .unwrap()
            })
            .collect();
        let connect = |n: usize| {
            let to = databases[n % databases.len()].local_addr().unwrap();
            TcpStream::connect(to.as_socket().unwrap()).unwrap()
        };
        let all = || (0..running).map(connect).collect::<Vec<_>>();
        let all = host.sandbox.client(all).unwrap();
        let began = Instant::now();
        host.policy(&taps());
        let adopted = || {
            host.agent
                .metric("underpass_observed_adopted_total{rule=\"r\"}")
        };
        eventually("all are adopted", || {
            adopted().unwrap_or(0.0) == running as f64
        });
        let took = began.elapsed();
        let flows = host.agent.json("/flows").unwrap();
        let (least, within) = ADOPTED_WITHIN;
        let listed = began.elapsed();
        eprintln!("{running} running connections: adopted after {took:?}, listed after {listed:?}");
        assert_eq!(flows.as_array().unwrap().len(), running);
        let rss = rss_mib(host.agent.pid());
        // A bar that is missed is told, too.
        if running > RUNNING {
            let adopted_us = took.as_micros() as u64;
            let found = json!({ "connections": running, "adopted_us": adopted_us, "rss_mib": rss });
            sandbox::soaked::keep("running", found);
        }
        assert!(running < least || took <= within, "{took:?}");
        assert!(rss <= MAX_RSS_MIB, "{rss} MiB");
        drop(all);
    });
}

fn rss_mib(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let mut lines = status.lines();
    let rss = lines
        .find_map(|line| line.strip_prefix("RssAnon:"))
        .unwrap();
    let kib: u64 = rss.trim().trim_end_matches(" kB").parse().unwrap();
    kib / 1024
}
