//! A peer that runs: started, ready, stopped.
//!
//! **Invariant**: whatever happens, no process of a peer outlives its [`Running`], and none its
//! starter for longer than the watchdog's pause.

use std::{
    fs::{self, File},
    io::{self, Read, Seek, SeekFrom},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, anyhow};
use nix::{
    sys::signal::{Signal, killpg},
    unistd::Pid,
};

use crate::{
    find::LOOK_EVERY,
    peer::{Launch, Setup},
    proc,
    watchdog::Watchdog,
};

/// The time limit from the start to the last front: a Go or Rust proxy first logs in to the
/// database, and a binary of 100 MB may come from a cold disk.
const READY_LIMIT: Duration = Duration::from_secs(30);
/// The time limit for one connection to a front on the loopback.
const CONNECT_LIMIT: Duration = Duration::from_millis(500);
/// The time limit to end after SIGTERM, before SIGKILL.
const END_LIMIT: Duration = Duration::from_secs(5);
/// The time limit after SIGKILL: a process that is left then sleeps in the kernel and cannot be
/// waited for.
const KILL_LIMIT: Duration = Duration::from_secs(2);
/// The number of tries. A port may be taken between our giving it back and the peer's binding it.
/// Each time is rare enough that a fifth in a row means something else.
const TRIES: u32 = 5;
/// The message that every peer prints in that case, in some spelling.
const PORT_TAKEN: &str = "address already in use";
/// The most lines that are quoted of a log.
const QUOTED_LINES: usize = 20;
/// The most bytes that are read for that.
const QUOTED_BYTES: u64 = 8 << 10;

/// A peer that runs. Dropping it ends all of its processes.
#[derive(Debug)]
pub struct Running {
    /// The addresses to which clients connect; one for each backend, in the same order.
    pub fronts: Vec<SocketAddr>,
    /// The process that we started, which leads a process group of its own.
    child: Child,
    log: PathBuf,
    ended: Option<ExitStatus>,
    watchdog: Option<Watchdog>,
}

/// Starts what is planned for some fronts and waits until it is ready.
pub(crate) fn start(
    name: &str,
    program: &Path,
    setup: &Setup,
    launch: &dyn Fn(&[SocketAddr]) -> anyhow::Result<Launch>,
) -> anyhow::Result<Running> {
    fs::create_dir_all(&setup.folder)
        .with_context(|| format!("cannot make {}", setup.folder.display()))?;
    let folder = setup.folder.canonicalize()?;
    let mut tries = 1;
    loop {
        let fronts = free_ports(setup.host, setup.backends.len())?;
        let launch = launch(&fronts)?;
        match Running::start(name, program, &folder, fronts, &launch) {
            Err(failure) if failure.port_taken && tries < TRIES => tries += 1,
            result => return result.map_err(|failure| failure.error),
        }
    }
}

/// Different ports that nobody uses now. Somebody may be quicker than the peer: then the start is repeated with others.
fn free_ports(host: Ipv4Addr, count: usize) -> io::Result<Vec<SocketAddr>> {
    let held = (0..count).map(|_| TcpListener::bind((host, 0)));
    let held: Vec<TcpListener> = held.collect::<io::Result<_>>()?;
    held.iter().map(TcpListener::local_addr).collect()
}

/// The reason why a peer is not ready.
struct Failure {
    error: anyhow::Error,
    port_taken: bool,
}

impl<E: Into<anyhow::Error>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self {
            error: error.into(),
            port_taken: false,
        }
    }
}

impl Running {
    /// Every process of it, workers too, in the order of their ids.
    #[must_use]
    pub fn pids(&self) -> Vec<u32> {
        proc::group_members(self.child.id()).unwrap_or_default()
    }

    fn start(
        name: &str,
        program: &Path,
        folder: &Path,
        fronts: Vec<SocketAddr>,
        launch: &Launch,
    ) -> Result<Self, Failure> {
        for (path, text) in &launch.files {
            fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
        }
        let log = folder.join(format!("{name}.log"));
        let output =
            File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
        let child = Command::new(program)
            .args(&launch.args)
            .current_dir(folder)
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot run {}", program.display()))?;
        // From here on dropping ends what has been started.
        let mut running = Self {
            fronts,
            child,
            log,
            ended: None,
            watchdog: None,
        };
        let watchdog = Watchdog::over(running.child.id());
        running.watchdog = Some(watchdog.context("cannot start the watchdog")?);
        running.await_ready(name)?;
        Ok(running)
    }

    fn await_ready(&mut self, name: &str) -> Result<(), Failure> {
        let deadline = Instant::now() + READY_LIMIT;
        let mut waiting = self.fronts.clone();
        loop {
            if let Some(status) = self.poll_ended()? {
                let said = self.said();
                return Err(Failure {
                    port_taken: said.to_lowercase().contains(PORT_TAKEN),
                    error: anyhow!("{name} did not start: it ended ({status}); it said:\n{said}"),
                });
            }
            let pids = self.pids();
            waiting.retain(|front| !accepts(&pids, *front));
            let Some(front) = waiting.first() else {
                return Ok(());
            };
            if Instant::now() > deadline {
                return Err(anyhow!(
                    "{name} does not listen on {front} after {} s; it said:\n{}",
                    READY_LIMIT.as_secs(),
                    self.said()
                )
                .into());
            }
            thread::sleep(LOOK_EVERY);
        }
    }

    fn poll_ended(&mut self) -> io::Result<Option<ExitStatus>> {
        if self.ended.is_none() {
            self.ended = self.child.try_wait()?;
        }
        Ok(self.ended)
    }

    /// The last lines of its log.
    fn said(&self) -> String {
        let tail = tail(&self.log).unwrap_or_default();
        let lines: Vec<_> = tail.lines().collect();
        let from = lines.len().saturating_sub(QUOTED_LINES);
        match lines.get(from..) {
            None | Some([]) => "(nothing)".to_owned(),
            Some(last) => last.join("\n"),
        }
    }

    fn signal(&self, signal: Signal) {
        // The group's number is not given to anyone else while the leader is not reaped or a
        // member is left; when both are gone there is nobody to signal.
        let group = self.child.id();
        let reaped = self.ended.is_some();
        let gone = reaped && proc::group_members(group).is_ok_and(|pids| pids.is_empty());
        if let (false, Ok(group)) = (gone, i32::try_from(group)) {
            let _ = killpg(Pid::from_raw(group), signal);
        }
    }

    /// Whether the process, which is reaped, and all of its group have ended by then.
    fn await_end(&mut self, deadline: Instant) -> bool {
        loop {
            let is_reaped = self.poll_ended().is_ok_and(|ended| ended.is_some());
            let left = proc::group_members(self.child.id());
            if is_reaped && left.is_ok_and(|pids| pids.is_empty()) {
                return true;
            }
            if Instant::now() > deadline {
                return false;
            }
            thread::sleep(LOOK_EVERY);
        }
    }
}

/// Whether one of `pids` listens there, and takes a connection. To connect would not be enough:
/// somebody else may have the port.
fn accepts(pids: &[u32], front: SocketAddr) -> bool {
    proc::listening(pids, front).is_ok_and(|pids| !pids.is_empty())
        && TcpStream::connect_timeout(&front, CONNECT_LIMIT).is_ok()
}

impl Drop for Running {
    fn drop(&mut self) {
        // First, or it might end a group whose number has been given to somebody else.
        self.watchdog = None;
        self.signal(Signal::SIGTERM);
        if !self.await_end(Instant::now() + END_LIMIT) {
            self.signal(Signal::SIGKILL);
            self.await_end(Instant::now() + KILL_LIMIT);
        }
    }
}

fn tail(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(QUOTED_BYTES)))?;
    let mut bytes = Vec::new();
    file.take(QUOTED_BYTES).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// Starts a process without a front, which is ready at once.
    fn running(folder: &Path, script: &str) -> Running {
        let launch = Launch {
            args: vec!["-c".into(), script.into()],
            files: Vec::new(),
        };
        Running::start("shell", Path::new("/bin/sh"), folder, Vec::new(), &launch)
            .map_err(|failure| failure.error)
            .unwrap()
    }

    /// A zombie that init has not reaped yet has ended.
    fn runs(pid: u32) -> bool {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        !stat.is_empty() && !stat.contains(") Z ")
    }

    fn await_log(running: &Running, text: &str) {
        let deadline = Instant::now() + Duration::from_secs(10);
        while !running.said().contains(text) {
            assert!(Instant::now() < deadline, "{}", running.said());
            thread::sleep(LOOK_EVERY);
        }
    }

    #[test]
    fn children_end_with_their_leader() {
        let folder = tempfile::tempdir().unwrap();
        let running = running(folder.path(), "sleep 60 & echo up; wait");
        await_log(&running, "up");
        let pids = running.pids();
        assert_eq!(pids.len(), 2, "{pids:?}");
        let started = Instant::now();
        drop(running);
        assert!(started.elapsed() < END_LIMIT);
        for pid in pids {
            assert!(!runs(pid), "{pid} is left");
        }
    }

    #[test]
    fn a_child_is_ended_when_its_leader_has_left_it() {
        let folder = tempfile::tempdir().unwrap();
        let mut running = running(folder.path(), "sleep 60 & echo up; wait");
        await_log(&running, "up");
        running.child.kill().unwrap();
        running.child.wait().unwrap();
        assert!(running.poll_ended().unwrap().is_some());
        let pids = running.pids();
        assert_eq!(pids.len(), 1, "{pids:?}");
        let group = running.child.id();
        drop(running);
        assert!(proc::group_members(group).unwrap().is_empty());
    }

    #[test]
    fn who_does_not_heed_is_killed() {
        let folder = tempfile::tempdir().unwrap();
        let running = running(
            folder.path(),
            "trap '' TERM; echo deaf; while :; do sleep 60; done",
        );
        await_log(&running, "deaf");
        let pids = running.pids();
        let started = Instant::now();
        drop(running);
        assert!(started.elapsed() >= END_LIMIT);
        assert!(started.elapsed() < END_LIMIT + KILL_LIMIT);
        for pid in pids {
            assert!(!runs(pid), "{pid} is left");
        }
    }

    #[test]
    fn anothers_listener_is_no_front() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let front = listener.local_addr().unwrap();
        assert!(accepts(&[std::process::id()], front));
        assert!(!accepts(&[1], front));
        assert!(!accepts(&[], front));
    }
}
