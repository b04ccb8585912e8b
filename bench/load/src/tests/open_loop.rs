//! Schedules: rates are kept, and what waits counts.

use std::{
    io::{Read, Write},
    net::TcpListener,
    thread,
    time::Duration,
};

use super::{command, job, operation, server, server::Server, work};
use crate::{
    order::Answer,
    workload::{Job, Protocol},
};

const STALL: Duration = Duration::from_millis(200);

fn get() -> Job {
    job(
        Protocol::Redis,
        vec![operation("get", vec![command(&["GET", "{key}"], 1)])],
    )
}

/// Works for a second against a server that stalls once.
fn with_a_stall(rate: Option<f64>) -> Answer {
    let server = Server::start(|nth, _| {
        if nth == 100 {
            thread::sleep(STALL);
        }
        Some("+OK\r\n".into())
    });
    let job = Job { rate, ..get() };
    work(&job, &[server.addr], 1.0).unwrap()
}

#[test]
fn a_stall_shows_in_all_requests_that_were_due() {
    let answer = with_a_stall(Some(1_000.0));
    assert_eq!(answer.scheduled, Some(1_000));
    assert_eq!(answer.ops(), 1_000);
    // 200 of 1,000 were due in the stall, and waited for 100 ms in the mean.
    assert!(answer.max_ms() > 195.0, "{}", answer.max_ms());
    let p92_ms = answer.latencies.quantile_us(0.92) / 1e3;
    assert!((80.0..200.0).contains(&p92_ms), "{p92_ms}");
    // The wait was not the generator's fault: the requests that had to wait have no lateness.
    assert!(answer.lateness.count() < 850, "{}", answer.lateness.count());
    assert!(
        answer.lateness.max_us() < 150e3,
        "{}",
        answer.lateness.max_us()
    );

    // A closed loop waits with the server, and sees it once.
    let answer = with_a_stall(None);
    assert!(answer.scheduled.is_none() && answer.lateness.count() == 0);
    assert!(answer.max_ms() > 195.0, "{}", answer.max_ms());
    let p99_ms = answer.latencies.quantile_us(0.99) / 1e3;
    assert!(p99_ms < 80.0, "{p99_ms}");
}

#[test]
fn the_rate_is_kept_over_threads_connections_and_targets() {
    let servers: Vec<_> = (0..2)
        .map(|_| Server::start(|_, _| Some("$-1\r\n".into())))
        .collect();
    let targets: Vec<_> = servers.iter().map(|s| s.addr).collect();
    let job = Job {
        threads: 2,
        connections: 6,
        depth: 3,
        rate: Some(2_000.0),
        ..get()
    };
    let answer = work(&job, &targets, 1.0).unwrap();
    let scheduled = answer.scheduled.unwrap();
    assert!((1_996..=2_004).contains(&scheduled), "{scheduled}");
    assert_eq!((answer.ops(), answer.errors), (scheduled, 0));
    assert!(answer.lateness.count() > scheduled / 2);
    assert!((0.9..1.5).contains(&answer.seconds), "{}", answer.seconds);
    // Half of it each.
    for server in &servers {
        let asked = server.asked().len() as u64;
        assert!(asked.abs_diff(scheduled / 2) < 5, "{asked} of {scheduled}");
    }
}

#[test]
fn what_had_to_wait_is_sent_after_the_end_and_counts() {
    let server = Server::start(|_, _| {
        thread::sleep(Duration::from_millis(10));
        Some("+OK\r\n".into())
    });
    let job = Job {
        rate: Some(300.0),
        ..get()
    };
    let answer = work(&job, &[server.addr], 0.5).unwrap();
    assert_eq!((answer.scheduled, answer.ops()), (Some(150), 150));
    assert!((10..=51).contains(&answer.in_time), "{}", answer.in_time);
    assert_eq!(answer.seconds, 0.5);
    // The last of them was due at 0.5 s, and its turn came after a second and a half.
    assert!(answer.max_ms() > 900.0, "{}", answer.max_ms());
}

/// Answers only when no more requests come; the most that came.
fn most_in_flight(job: &Job) -> usize {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    let server = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let silence = Duration::from_millis(20);
        stream.set_read_timeout(Some(silence)).unwrap();
        let (mut input, mut piece, mut most) = (Vec::new(), [0; 4096], 0);
        loop {
            match stream.read(&mut piece) {
                Ok(0) => return most,
                Ok(read) => input.extend_from_slice(&piece[..read]),
                Err(_) => {
                    let mut count = 0;
                    while let Some((_, bytes)) = server::command(&input) {
                        input.drain(..bytes);
                        count += 1;
                    }
                    most = most.max(count);
                    let answers = "+OK\r\n".repeat(count);
                    stream.write_all(answers.as_bytes()).unwrap();
                }
            }
        }
    });
    let answer = work(job, &[addr], 0.3).unwrap();
    assert!(answer.ops() > 0 && answer.errors == 0, "{answer:?}");
    server.join().unwrap()
}

#[test]
fn so_many_requests_are_in_flight_and_no_more() {
    for (depth, rate) in [(1, None), (7, None), (7, Some(5_000.0))] {
        let job = Job {
            depth,
            rate,
            ..get()
        };
        assert_eq!(most_in_flight(&job), depth, "{rate:?}");
    }
}

impl Answer {
    fn max_ms(&self) -> f64 {
        self.latencies.max_us() / 1e3
    }
}
