//! The side that accepts.

use std::{
    collections::BTreeMap,
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Condvar, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::Context;
use socket2::SockRef;

use super::{
    behaviour::Shape,
    child::killed_server,
    end::{failed, play, prepare},
    handshake::{send_findings, welcome},
    hello::{Hello, Purpose},
    notes::Notes,
    plan::Helper,
    report::{Report, Side},
    script::Script,
    watch::{Watch, Watchdog, lock},
};

/// A client that says nothing is given up after this.
const HELLO_WITHIN: Duration = Duration::from_secs(10);
/// Runs whose findings nobody has fetched yet; of more, the oldest are only in the total.
const RUNS: usize = 64;

/// How a server is to be.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// The program that plays the server which is killed.
    pub helper: Option<Helper>,
    /// Asks CQL clients for this user and password.
    pub credentials: Option<(String, String)>,
    /// Whether the server's sockets do not block from the first byte on, as those of databases. For
    /// plans whose ends never block.
    pub never_blocks: bool,
}

/// A running server; dropped, it accepts no more.
#[derive(Debug)]
pub struct Server {
    listener: Arc<TcpListener>,
    address: SocketAddr,
    acceptor: Option<JoinHandle<()>>,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    options: Options,
    stopped: AtomicBool,
    runs: Mutex<BTreeMap<u64, Run>>,
    /// An end is over.
    ended: Condvar,
    watchdog: Watchdog,
    /// Findings of runs that are no longer kept apart, and of nobody's.
    rest: Notes,
}

#[derive(Debug)]
struct Run {
    begun: Instant,
    active: usize,
    notes: Notes,
}

impl Server {
    /// Starts one, its threads in the caller's namespace and cgroup.
    ///
    /// # Errors
    /// The listener has no address.
    pub fn start(listener: TcpListener) -> anyhow::Result<Self> {
        Self::start_with(listener, Options::default())
    }

    /// Starts one, with options.
    ///
    /// # Errors
    /// As [`Server::start`].
    pub fn start_with(listener: TcpListener, options: Options) -> anyhow::Result<Self> {
        let address = listener.local_addr()?;
        let listener = Arc::new(listener);
        let shared = Arc::new(Shared {
            options,
            stopped: AtomicBool::new(false),
            runs: Mutex::default(),
            ended: Condvar::new(),
            watchdog: Watchdog::start(),
            rest: Notes::default(),
        });
        let (own, accepts) = (Arc::clone(&shared), Arc::clone(&listener));
        let acceptor = thread::spawn(move || accept(&accepts, &own));
        Ok(Self {
            listener,
            address,
            acceptor: Some(acceptor),
            shared,
        })
    }

    /// Address that the server listens on.
    pub fn addr(&self) -> SocketAddr {
        self.address
    }

    /// Accepts no more; what was found, except in runs that have fetched it.
    pub fn stop(mut self) -> Report {
        self.close();
        let mut report = self.shared.rest.report();
        for run in lock(&self.shared.runs).values() {
            report.merge(run.notes.report());
        }
        report
    }

    /// Takes what was found in runs that nobody has fetched, once their ends are over. Those that do not end are left for the
    /// next time.
    pub fn take(&self) -> Report {
        let runs = lock(&self.shared.runs);
        let active = |runs: &mut BTreeMap<u64, Run>| runs.values().any(|run| run.active > 0);
        let waited = self
            .shared
            .ended
            .wait_timeout_while(runs, HELLO_WITHIN, active);
        let (mut runs, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let mut report = Report::default();
        runs.retain(|_, run| {
            let goes_on = run.active > 0;
            if !goes_on {
                report.merge(run.notes.report());
            }
            goes_on
        });
        report
    }

    fn close(&mut self) {
        self.shared.stopped.store(true, Relaxed);
        // Wakes the one that accepts.
        let _ = SockRef::from(&*self.listener).shutdown(Shutdown::Both);
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.close();
    }
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    while !shared.stopped.load(Relaxed) {
        match listener.accept() {
            Ok((socket, _)) => {
                let shared = Arc::clone(shared);
                thread::spawn(move || shared.serve(socket));
            }
            // Of one that is gone already, or there are no descriptors: others will come.
            Err(_) => thread::sleep(Duration::from_millis(1)),
        }
    }
}

impl Shared {
    fn serve(&self, socket: TcpStream) {
        // Whoever says nothing sensible is nobody of ours, or was reset or killed at once; its
        // client, if it lives, tells that it went wrong.
        let Ok(hello) = self.welcome(&socket) else {
            return;
        };
        match hello.purpose {
            Purpose::Streams => {
                let notes = self.enter(hello.run);
                self.play(&hello, socket, &notes);
                self.leave(hello.run);
            }
            Purpose::Findings => {
                let report = self.findings(&hello);
                let text = serde_json::to_vec(&report).unwrap_or_default();
                // A client that does not get it says so.
                let _ = send_findings(&socket, hello.cql, &text);
            }
        }
    }

    fn welcome(&self, socket: &TcpStream) -> anyhow::Result<Hello> {
        socket.set_nonblocking(self.options.never_blocks)?;
        socket.set_read_timeout(Some(HELLO_WITHIN))?;
        let hello = welcome(socket, self.options.credentials.as_ref())?;
        socket.set_read_timeout(None)?;
        Ok(hello)
    }

    fn play(&self, hello: &Hello, socket: TcpStream, notes: &Notes) {
        let script = Arc::new(Script::new(hello));
        let fail = |what: &str| notes.add(failed(&script, Side::Server, what));
        if let Err(error) = prepare(SockRef::from(&socket), &script, Side::Server) {
            return fail(&error.to_string());
        }
        if script.shape == Shape::ServerKilled {
            let killed = match &self.options.helper {
                Some(helper) => killed_server(helper, &script, socket, notes),
                None => Err(anyhow::anyhow!("this server has no helper to be killed")),
            };
            if let Err(error) = killed {
                fail(&format!("{error:#}"));
            }
            return;
        }
        let watch = Arc::new(Watch::new(&script, Side::Server, notes));
        self.watchdog.watch(&watch);
        play(&script, Side::Server, socket, &watch, notes);
    }

    fn enter(&self, run: u64) -> Notes {
        let mut runs = lock(&self.runs);
        if runs.len() >= RUNS && !runs.contains_key(&run) {
            let idle = runs.iter().filter(|(_, run)| run.active == 0);
            let oldest = idle.min_by_key(|(_, run)| run.begun).map(|(&id, _)| id);
            if let Some(run) = oldest.and_then(|id| runs.remove(&id)) {
                self.rest.add(run.notes.report());
            }
        }
        let run = runs.entry(run).or_insert_with(|| Run {
            begun: Instant::now(),
            active: 0,
            notes: Notes::default(),
        });
        run.active += 1;
        run.notes.clone()
    }

    fn leave(&self, run: u64) {
        if let Some(run) = lock(&self.runs).get_mut(&run) {
            run.active -= 1;
        }
        self.ended.notify_all();
    }

    /// Findings of a run, once all its ends are over.
    fn findings(&self, hello: &Hello) -> Report {
        let runs = lock(&self.runs);
        let active =
            |runs: &mut BTreeMap<u64, Run>| runs.get(&hello.run).is_some_and(|run| run.active > 0);
        let waited = self.ended.wait_timeout_while(runs, patience(hello), active);
        let (mut runs, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
        let Some(run) = runs.remove(&hello.run) else {
            return Report::default();
        };
        let mut report = run.notes.report();
        if timeout.timed_out() {
            let text = format!("{} ends of the server are not over", run.active);
            report.merge(failed(&Script::new(hello), Side::Server, &text));
        }
        report
    }
}

/// Ends that hang are over by then.
pub(super) fn patience(hello: &Hello) -> Duration {
    hello.hang_limit * 12 + hello.stop_max + Duration::from_secs(5)
}

/// Listens on `address`.
///
/// # Errors
/// The address is taken, or not this host's.
pub fn listen(address: SocketAddr) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address).with_context(|| format!("cannot listen on {address}"))
}
