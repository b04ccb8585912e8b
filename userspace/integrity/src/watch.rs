//! Watch over ends that make no progress.
//!
//! A connection's ends may be in different processes, so each is watched by itself. An end may
//! be idle for as long as the script lets both ends be, and for the limit; then it hangs, is
//! reported, and its socket is shut down, so that its threads come back.
//!
//! Edited streams come in whole frames: of a long one that is sent in small pieces an end gets nothing for as long as
//! that takes. So an end of an edited stream does not hang while the other moves, which is in this process then.

use std::{
    collections::HashMap,
    fs,
    net::{Shutdown, TcpStream},
    sync::{
        Arc, Condvar, Mutex, PoisonError, Weak,
        atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use super::{
    notes::Notes,
    report::{Hang, Report, Side},
    script::Script,
};

const LOOK_EVERY: Duration = Duration::from_millis(100);
/// A look that comes later than this has seen nothing in between: the machine stood still, or this
/// process, and with it whoever is watched.
const LOOK_LATE: Duration = Duration::from_millis(300);
/// With less of the machine's time idle than this, somebody waits for a CPU, not for bytes...
const BUSY_BELOW: f64 = 0.1;
/// ...but nobody waits for a CPU longer than so many times the limit.
const BUSY_TIMES: u32 = 10;

/// Activity of half of an end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Doing {
    /// The half is about to use its socket, or uses it.
    Working,
    /// The half may send no more before more has come.
    WaitingForTurn,
    /// The half waits in poll or epoll.
    Polling,
    /// The half pauses, as the script says.
    Pausing,
    /// The half is done.
    Done,
}

impl Doing {
    const ALL: [Self; 5] = [
        Self::Working,
        Self::WaitingForTurn,
        Self::Polling,
        Self::Pausing,
        Self::Done,
    ];
}

/// One end of a connection, as its watcher sees it.
#[derive(Debug)]
pub(super) struct Watch {
    connection: u64,
    shape: &'static str,
    side: Side,
    totals: (u64, u64),
    limit: Duration,
    excuse: Duration,
    born: Instant,
    sent: AtomicU64,
    received: AtomicU64,
    touched_us: AtomicU64,
    longest_us: AtomicU64,
    writer: AtomicU8,
    reader: AtomicU8,
    hung: AtomicBool,
    socket: Mutex<Weak<TcpStream>>,
    notes: Notes,
    /// The ends of the connection, if it is edited.
    ends: Option<Arc<Ends>>,
}

/// The ends of a connection that are in this process, the client's first.
type Ends = Mutex<[Weak<Watch>; 2]>;

/// Edited connections, by the numbers of run and connection.
type Edited = HashMap<(u64, u64), Weak<Ends>>;

static EDITED: Mutex<Option<Edited>> = Mutex::new(None);

fn ends(script: &Script) -> Arc<Ends> {
    let mut edited = lock(&EDITED);
    let edited = edited.get_or_insert_default();
    let key = (script.hello.run, script.hello.connection);
    if let Some(ends) = edited.get(&key).and_then(Weak::upgrade) {
        return ends;
    }
    edited.retain(|_, ends| ends.strong_count() > 0);
    let ends = Arc::default();
    edited.insert(key, Arc::downgrade(&ends));
    ends
}

impl Watch {
    pub(super) fn new(script: &Script, side: Side, notes: &Notes) -> Self {
        let (sends, receives) = (side.sends(), side.receives());
        let totals = (script.total(sends), script.arrives(receives).bytes);
        Self {
            connection: script.hello.connection,
            shape: script.shape.name(),
            side,
            totals,
            limit: script.hello.hang_limit,
            excuse: script.excuse(),
            born: Instant::now(),
            sent: AtomicU64::new(0),
            received: AtomicU64::new(0),
            touched_us: AtomicU64::new(0),
            longest_us: AtomicU64::new(0),
            writer: AtomicU8::new(0),
            reader: AtomicU8::new(0),
            hung: AtomicBool::new(false),
            socket: Mutex::new(Weak::new()),
            notes: notes.clone(),
            ends: script.hello.is_edited.then(|| ends(script)),
        }
    }

    /// When the other end moved last, if that counts.
    fn other_touched_us(&self) -> u64 {
        let other = self.ends.as_ref().and_then(|ends| {
            let ends = lock(ends);
            ends.get(self.side.other() as usize)?.upgrade()
        });
        other.map_or(0, |other| other.touched_us.load(Relaxed))
    }

    /// The socket to shut down if this hangs. The watch does not keep it open.
    pub(super) fn holds(&self, socket: &Arc<TcpStream>) {
        *lock(&self.socket) = Arc::downgrade(socket);
    }

    pub(super) fn sent(&self, bytes: u64) {
        self.sent.fetch_add(bytes, Relaxed);
        self.touch();
    }

    pub(super) fn received(&self, bytes: u64) {
        self.received.fetch_add(bytes, Relaxed);
        self.touch();
    }

    /// Something went on.
    pub(super) fn touch(&self) {
        let now = self.born.elapsed().as_micros() as u64;
        let before = self.touched_us.swap(now, Relaxed);
        self.longest_us
            .fetch_max(now.saturating_sub(before), Relaxed);
    }

    pub(super) fn writer(&self, doing: Doing) {
        self.writer.store(doing as u8, Relaxed);
    }

    pub(super) fn reader(&self, doing: Doing) {
        self.reader.store(doing as u8, Relaxed);
    }

    pub(super) fn hung(&self) -> bool {
        self.hung.load(Relaxed)
    }

    pub(super) fn age(&self) -> Duration {
        self.born.elapsed()
    }

    /// The connection, its shape and the end, for people.
    pub(super) fn name(&self) -> String {
        format!(
            "connection {}, {}, {:?}",
            self.connection, self.shape, self.side
        )
    }

    /// The longest time without progress that the script does not explain.
    pub(super) fn longest_stall(&self) -> Duration {
        let longest = Duration::from_micros(self.longest_us.load(Relaxed));
        longest.saturating_sub(self.excuse)
    }

    /// Reports the end as hanging, and shuts its socket down.
    pub(super) fn hang(&self, stalled: Duration) {
        if self.hung.swap(true, Relaxed) {
            return;
        }
        let socket = lock(&self.socket).upgrade();
        let waiting = socket
            .as_ref()
            .and_then(|socket| rustix::io::ioctl_fionread(socket).ok());
        let doing = |half: &AtomicU8| {
            let number = usize::from(half.load(Relaxed));
            Doing::ALL.get(number).copied().unwrap_or(Doing::Working)
        };
        // For whoever looks for it in what ss(8) showed meanwhile.
        let ends = socket
            .as_ref()
            .and_then(|socket| Some((socket.local_addr().ok()?, socket.peer_addr().ok()?)));
        let state = format!(
            "sent {} of {} (writer {:?}), received {} of {} (reader {:?}); FIONREAD says {}; {}",
            self.sent.load(Relaxed),
            self.totals.0,
            doing(&self.writer),
            self.received.load(Relaxed),
            self.totals.1,
            doing(&self.reader),
            waiting.map_or("nothing".into(), |bytes| bytes.to_string()),
            ends.map_or("not connected".into(), |(own, peer)| format!(
                "{own} to {peer}"
            )),
        );
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        self.notes.hang(Hang {
            connection: self.connection,
            shape: self.shape.into(),
            side: self.side,
            at_ms: now.map_or(0, |now| now.as_millis() as u64),
            stalled_ms: stalled.as_millis() as u64,
            state,
        });
        if let Some(socket) = socket {
            // Already gone is as good.
            let _ = socket.shutdown(Shutdown::Both);
        }
    }
}

/// Looks after the ends of one process.
#[derive(Debug)]
pub(super) struct Watchdog {
    watched: Arc<Mutex<Vec<Watched>>>,
    stop: Arc<(Mutex<bool>, Condvar)>,
}

#[derive(Debug)]
struct Watched {
    watch: Weak<Watch>,
    /// When it moved last, and the other end, if that counts.
    touched_us: [u64; 2],
    /// Without progress: in all, and while the machine had time to spare.
    stalled: Duration,
    unexplained: Duration,
}

impl Watchdog {
    pub(super) fn start() -> Self {
        let watched: Arc<Mutex<Vec<Watched>>> = Arc::default();
        let stop: Arc<(Mutex<bool>, Condvar)> = Arc::default();
        let (all, ended) = (Arc::clone(&watched), Arc::clone(&stop));
        thread::spawn(move || {
            let mut before = (Instant::now(), idle_time());
            loop {
                let (flag, ring) = &*ended;
                let waited = ring.wait_timeout_while(lock(flag), LOOK_EVERY, |stop| !*stop);
                if *waited.unwrap_or_else(PoisonError::into_inner).0 {
                    return;
                }
                let now = (Instant::now(), idle_time());
                let passed = now.0 - before.0;
                let idle = now.1.saturating_sub(before.1);
                let busy = idle.as_secs_f64() < passed.as_secs_f64() * BUSY_BELOW;
                before = now;
                lock(&all).retain_mut(|watched| watched.look(passed, busy));
            }
        });
        Self { watched, stop }
    }

    pub(super) fn watch(&self, watch: &Arc<Watch>) {
        if let Some(ends) = &watch.ends
            && let Some(end) = lock(ends).get_mut(watch.side as usize)
        {
            *end = Arc::downgrade(watch);
        }
        lock(&self.watched).push(Watched::new(watch));
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        let (flag, ring) = &*self.stop;
        *lock(flag) = true;
        ring.notify_all();
    }
}

impl Watched {
    fn new(watch: &Arc<Watch>) -> Self {
        Self {
            watch: Arc::downgrade(watch),
            touched_us: [0; 2],
            stalled: Duration::ZERO,
            unexplained: Duration::ZERO,
        }
    }

    /// False when it is no longer to be watched.
    fn look(&mut self, passed: Duration, busy: bool) -> bool {
        let passed = passed.min(LOOK_LATE);
        let Some(watch) = self.watch.upgrade() else {
            return false;
        };
        let touched_us = [watch.touched_us.load(Relaxed), watch.other_touched_us()];
        if touched_us != self.touched_us {
            self.touched_us = touched_us;
            (self.stalled, self.unexplained) = (Duration::ZERO, Duration::ZERO);
            return true;
        }
        self.stalled += passed;
        if !busy {
            self.unexplained += passed;
        }
        let hangs = self.unexplained > watch.limit + watch.excuse
            || self.stalled > watch.limit * BUSY_TIMES + watch.excuse;
        if hangs {
            watch.hang(self.stalled);
        }
        !hangs
    }
}

/// For how long CPUs of this machine have been idle (proc_stat(5)); all the time, if unknown.
fn idle_time() -> Duration {
    /// USER_HZ, which is 100 on every architecture that matters here.
    const TICK: Duration = Duration::from_millis(10);
    let ticks = fs::read_to_string("/proc/stat").ok().and_then(|stat| {
        let idle = stat.lines().next()?.split_whitespace().nth(4)?;
        idle.parse::<u32>().ok()
    });
    ticks.map_or(Duration::MAX, |ticks| TICK * ticks)
}

/// Report of the longest stall of an end that is over.
pub(super) fn stall(watch: &Watch) -> Report {
    Report {
        longest_stall_ms: watch.longest_stall().as_millis() as u64,
        ..Report::default()
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hello::{Hello, Purpose};

    fn hello(is_edited: bool) -> Hello {
        Hello {
            purpose: Purpose::Streams,
            run: 1,
            seed: 1,
            connection: 1,
            chunk_max: 1,
            connection_max: 1,
            stop_max: Duration::ZERO,
            hang_limit: Duration::from_secs(1),
            choices: crate::Choices::default(),
            steady: true,
            may_be_cut: false,
            cql: false,
            is_edited,
        }
    }

    #[test]
    fn one_look_that_comes_late_is_no_hang_but_many_looks_are() {
        let notes = Notes::default();
        let watch = Watch::new(&Script::new(&hello(false)), Side::Client, &notes);
        let watch = Arc::new(watch);
        let mut watched = Watched::new(&watch);
        assert!(watched.look(Duration::from_secs(60), false));
        let mut looks = (0..1000).take_while(|_| watched.look(LOOK_EVERY, false));
        assert!(looks.by_ref().count() < 1000);
        assert_eq!(notes.report().hung, 1);
    }

    #[test]
    fn an_end_whose_peer_moves_hangs_unless_frames_are_edited() {
        for is_edited in [false, true] {
            let notes = Notes::default();
            let script = Script::new(&hello(is_edited));
            let watchdog = Watchdog::start();
            let ends = [Side::Client, Side::Server];
            let [client, server] = ends.map(|side| Arc::new(Watch::new(&script, side, &notes)));
            watchdog.watch(&client);
            watchdog.watch(&server);
            let mut watched = Watched::new(&server);
            let mut moving = 0..1000;
            let hung = moving.any(|n| {
                client.touched_us.store(n + 1, Relaxed);
                !watched.look(LOOK_EVERY, false)
            });
            assert_eq!(hung, !is_edited);
            // Neither moves.
            assert!(hung || (0..1000).any(|_| !watched.look(LOOK_EVERY, false)));
        }
    }
}
