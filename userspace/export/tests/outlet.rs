//! Threads that write, and one that reads: no accepted record is lost, and nobody runs in vain.

#![expect(
    clippy::unwrap_used,
    reason = "tests say what they expect by failing, and so do their helpers"
)]

use std::{
    fs,
    sync::{
        Arc,
        mpsc::{self, Receiver, Sender},
    },
    thread,
    time::{Duration, Instant},
};

use export::{Export, Full, Sink};

const PATIENCE: Duration = Duration::from_secs(10);

/// Tells a test what it is told.
struct Told(Sender<Told2>);

#[derive(Debug, PartialEq, Eq)]
enum Told2 {
    Record(Vec<u8>),
    Due,
    End,
}

impl Sink for Told {
    fn record(&mut self, record: &[u8]) {
        let _ = self.0.send(Told2::Record(record.to_vec()));
    }
    fn batch_ends(&mut self) {}
    fn on_due(&mut self) {
        let _ = self.0.send(Told2::Due);
    }
    fn end(&mut self) {
        let _ = self.0.send(Told2::End);
    }
}

fn told(ring_bytes: usize) -> (Export, Receiver<Told2>) {
    let (sender, receiver) = mpsc::channel();
    let export = Export::with_rings_of(ring_bytes, "told", Told(sender)).unwrap();
    (export, receiver)
}

#[test]
fn what_threads_wrote_is_read_and_then_it_ends() {
    const EACH: u32 = 20_000;
    let (export, receiver) = told(4096);
    let export = Arc::new(export);
    let writers: Vec<_> = (0..3_u8)
        .map(|thread| {
            let export = export.clone();
            thread::spawn(move || {
                for n in 0..EACH {
                    let record = [&[thread][..], &n.to_le_bytes()].concat();
                    while export.push(&record) == Err(Full::Now) {
                        thread::yield_now();
                    }
                }
            })
        })
        .collect();
    drop(export);
    let mut next = [0; 3];
    loop {
        match receiver.recv_timeout(PATIENCE).unwrap() {
            Told2::Record(record) => {
                let (thread, n) = record.split_first().unwrap();
                let expected = next.get_mut(usize::from(*thread)).unwrap();
                assert_eq!(n, u32::to_le_bytes(*expected));
                *expected += 1;
            }
            Told2::End => break,
            Told2::Due => {}
        }
    }
    assert_eq!(next, [EACH; 3]);
    for writer in writers {
        writer.join().unwrap();
    }
}

#[test]
fn one_that_sleeps_is_woken_and_costs_nothing_before() {
    let (export, receiver) = told(4096);
    export.push(b"first").unwrap();
    assert_eq!(
        receiver.recv_timeout(PATIENCE).unwrap(),
        Told2::Record(b"first".to_vec())
    );
    // The thread dozes for a while, then it sleeps.
    let deadline = Instant::now() + PATIENCE;
    let mut switches = switches("told");
    loop {
        thread::sleep(Duration::from_millis(100));
        let now = self::switches("told");
        if now == switches {
            break;
        }
        switches = now;
        assert!(Instant::now() < deadline, "it does not sleep");
    }
    export.push(b"second").unwrap();
    assert_eq!(
        receiver.recv_timeout(PATIENCE).unwrap(),
        Told2::Record(b"second".to_vec())
    );
    export.call();
    assert_eq!(receiver.recv_timeout(PATIENCE).unwrap(), Told2::Due);
    drop(export);
    assert_eq!(receiver.recv_timeout(PATIENCE).unwrap(), Told2::End);
}

/// Counts how often threads of this name in this process have given up the processor so far.
fn switches(name: &str) -> u64 {
    let tasks = fs::read_dir("/proc/self/task").unwrap();
    let of = |path: std::path::PathBuf| {
        let status = fs::read_to_string(path.join("status")).ok()?;
        let is_it = status.lines().any(|line| line == format!("Name:\t{name}"));
        let counts = status.lines().filter_map(|line| {
            let (key, count) = line.split_once(":\t")?;
            key.ends_with("ctxt_switches")
                .then(|| count.parse::<u64>().ok())?
        });
        is_it.then(|| counts.sum::<u64>())
    };
    tasks.filter_map(|task| of(task.ok()?.path())).sum()
}

/// Takes its time.
struct Stuck(Receiver<()>);

impl Sink for Stuck {
    fn record(&mut self, _: &[u8]) {
        let _ = self.0.recv();
    }
    fn batch_ends(&mut self) {}
}

#[test]
fn one_that_is_full_says_so_and_goes_on() {
    let (go, stuck) = mpsc::channel();
    let export = Export::with_rings_of(256, "stuck", Stuck(stuck)).unwrap();
    let began = Instant::now();
    let accepted = (0..100).filter(|_| export.push(&[0; 24]).is_ok()).count();
    // At most the records in the ring, and those that were taken out of it.
    assert!((8..=16).contains(&accepted), "{accepted}");
    assert!(began.elapsed() < PATIENCE);
    assert_eq!(export.push(&[0; 300]), Err(Full::TooLong));
    drop(go);
    let deadline = Instant::now() + PATIENCE;
    while export.push(&[0; 24]).is_err() {
        assert!(Instant::now() < deadline);
        thread::yield_now();
    }
}
