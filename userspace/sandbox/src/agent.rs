//! An agent under test, as an operator has it: a process, a file, signals, HTTP.

use std::{
    collections::BTreeMap,
    fs,
    io::{BufRead, BufReader},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::Value;

use super::{Cgroup, Netns, run_in};

/// Loading nine programs takes a quarter of a second; this is for a machine under load.
const START_LIMIT: Duration = Duration::from_secs(30);
const STOP_LIMIT: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// Lines of a log that are shown whole.
const LOG_LINES: usize = 40;

/// The control socket, in the agent's own folder.
const CONTROL: &str = "control.sock";

/// The admin socket, likewise.
const ADMIN: &str = "admin.sock";

/// Policies that were written so far.
static WRITTEN: AtomicU32 = AtomicU32::new(0);

/// In a policy that an agent starts with, this stands for that folder, which goes with the agent.
const FOLDER: &str = "$FOLDER";

/// The samples of one metric: values by their labels, as `/metrics` writes them.
pub type Metric = BTreeMap<String, f64>;

/// A running agent. Dropped, it is killed and its pins are removed; a test that leaves any fails.
#[derive(Debug)]
pub struct Agent<'a> {
    binary: PathBuf,
    netns: Option<&'a Netns>,
    cgroup: &'a Cgroup,
    child: Child,
    admin: SocketAddr,
    log: Arc<Mutex<Vec<String>>>,
    folder: tempfile::TempDir,
    pins: PathBuf,
}

impl<'a> Agent<'a> {
    /// Starts `binary` with this policy (without an `[agent]` section: that is made here;
    /// `settings` are further lines of it; flows are spliced only if they say how, and then by every rule
    /// that has them in the agent) in `netns`, attached to `cgroup`; waits until it is ready.
    ///
    /// # Errors
    /// It does not get ready; with what it said.
    pub fn start(
        binary: &Path,
        netns: Option<&'a Netns>,
        cgroup: &'a Cgroup,
        settings: &str,
        policy: &str,
    ) -> anyhow::Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let unique = format!("{}-{}", std::process::id(), NEXT.fetch_add(1, Relaxed));
        let pins = PathBuf::from(format!("/sys/fs/bpf/underpass-test-{unique}"));
        let folder = tempfile::tempdir()?;
        // Trying the splice out takes processor time and memory that other tests measure.
        let splice = match settings.contains("splice") {
            true => "",
            false => "splice = \"off\"",
        };
        let control = match settings.contains("control") {
            true => String::new(),
            false => format!("control = {:?}", folder.path().join(CONTROL)),
        };
        // Every connection of a test is treated as its rule says.
        let holdout = match settings.contains("holdout") {
            true => "",
            false => "holdout = \"0%\"",
        };
        // A build that is not optimised reads copies for more time than the default allows, and would leave flows out.
        let tap_cpu = match settings.contains("tap_cpu") || !cfg!(debug_assertions) {
            true => "",
            false => "tap_cpu = \"100%\"",
        };
        let header = format!(
            "[agent]\nadmin = \"127.0.0.1:0\"\nadmin_socket = {:?}\n{control}\ncgroup = {:?}\npins = {pins:?}\n{splice}\n\
             {holdout}\n{tap_cpu}\n{settings}\n",
            folder.path().join(ADMIN),
            cgroup.path(),
        );
        fs::write(folder.path().join("header.toml"), &header)?;
        let policy = policy.replace(FOLDER, &folder.path().display().to_string());
        let policy = with_fail(&with_shortcut(&header, &policy));
        fs::write(folder.path().join("policy.toml"), header + &policy)?;
        let file = folder.path().join("policy.toml");
        let log = Arc::default();
        let (child, admin) = launch(binary, netns, cgroup, &file, &log, &Beginning::default())?;
        Ok(Self {
            binary: binary.to_owned(),
            netns,
            cgroup,
            child,
            admin,
            log,
            folder,
            pins,
        })
    }

    /// Starts it again after [`Agent::kill`], over what the dead one left.
    ///
    /// # Errors
    /// As [`Agent::start`].
    pub fn restart(&mut self) -> anyhow::Result<()> {
        (self.child, self.admin) = launch(
            &self.binary,
            self.netns,
            self.cgroup,
            &self.file(),
            &self.log,
            &Beginning::default(),
        )?;
        Ok(())
    }

    /// Starts another agent, which takes over from this one and stands in its place from then on. Returns the one before,
    /// which drains. `hooks`: test hooks of the other one.
    ///
    /// # Errors
    /// The other agent does not take over; with what it said. This one stays as it is.
    pub fn take_over(&mut self, hooks: &str) -> anyhow::Result<Former> {
        let log = Arc::default();
        let beginning = Beginning {
            takes_over: true,
            hooks,
        };
        let launched = launch(
            &self.binary,
            self.netns,
            self.cgroup,
            &self.file(),
            &log,
            &beginning,
        );
        let (child, admin) = launched?;
        let child = std::mem::replace(&mut self.child, child);
        let log = std::mem::replace(&mut self.log, log);
        self.admin = admin;
        Ok(Former { child, log })
    }

    /// Kills the agent by SIGKILL, as a crash would.
    ///
    /// # Errors
    /// It cannot be waited for.
    pub fn kill(&mut self) -> anyhow::Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// SIGTERM, and waits for the end.
    ///
    /// # Errors
    /// It does not end in time.
    pub fn stop(&mut self) -> anyhow::Result<ExitStatus> {
        self.signal(Signal::SIGTERM)?;
        let deadline = Instant::now() + STOP_LIMIT;
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            if Instant::now() > deadline {
                bail!("the agent does not stop; it said:\n{}", self.log());
            }
            thread::sleep(LOOK_EVERY);
        }
    }

    /// Sends the agent a signal. After SIGSTOP none of its threads runs when this returns: each stops when it is on a
    /// processor next.
    ///
    /// # Errors
    /// It has ended, or does not stop.
    pub fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        kill(Pid::from_raw(self.pid() as i32), signal)?;
        let deadline = Instant::now() + STOP_LIMIT;
        while signal == Signal::SIGSTOP && !self.is_stopped()? {
            anyhow::ensure!(Instant::now() < deadline, "the agent runs on after SIGSTOP");
            thread::sleep(LOOK_EVERY);
        }
        Ok(())
    }

    /// Whether each thread of the agent is stopped.
    fn is_stopped(&self) -> anyhow::Result<bool> {
        let threads = fs::read_dir(format!("/proc/{}/task", self.pid()))?;
        let states = threads.flatten().map(|thread| {
            let stat = fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
            // Behind the name, which is in parentheses and may hold any.
            let (_, rest) = stat.rsplit_once(") ").unwrap_or_default();
            rest.starts_with('T')
        });
        Ok(states.into_iter().all(|is_stopped| is_stopped))
    }

    /// Process id of the agent.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Address of the agent's admin interface.
    pub fn admin(&self) -> SocketAddr {
        self.admin
    }

    /// The agent's admin socket.
    pub fn admin_socket(&self) -> PathBuf {
        self.folder.path().join(ADMIN)
    }

    /// The agent's control socket, unless its settings named another.
    pub fn control(&self) -> PathBuf {
        self.folder.path().join(CONTROL)
    }

    /// Folder in which the agent's links are pinned.
    pub fn pins(&self) -> &Path {
        &self.pins
    }

    /// The agent's policy file.
    pub fn file(&self) -> PathBuf {
        self.folder.path().join("policy.toml")
    }

    /// Writes another policy (again without `[agent]`), which it reads on SIGHUP or by itself.
    ///
    /// # Errors
    /// The file system's.
    pub fn write_policy(&self, policy: &str) -> anyhow::Result<()> {
        let header = fs::read_to_string(self.folder.path().join("header.toml"))?;
        let new = self.folder.path().join("new.toml");
        // No two are the same: a file that has not changed is no reload.
        let unique = format!("\n# {}\n", WRITTEN.fetch_add(1, Relaxed));
        let policy = with_fail(&with_shortcut(&header, policy));
        fs::write(&new, header + &policy + &unique)?;
        Ok(fs::rename(new, self.file())?)
    }

    /// All that the agent has logged so far.
    pub fn log(&self) -> String {
        self.log
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .join("\n")
    }

    /// Waits until a log line holds `text`.
    ///
    /// # Errors
    /// None does within ten seconds; with what it said.
    pub fn wait_for_log(&self, text: &str) -> anyhow::Result<String> {
        wait(&self.log, text, Duration::from_secs(10))
    }

    /// GET from the admin interface.
    ///
    /// # Errors
    /// It does not answer.
    pub fn get(&self, path: &str) -> anyhow::Result<String> {
        let url = format!("http://{}{path}", self.admin);
        run_in(self.netns, None, || {
            Ok(ureq::get(&url).call()?.body_mut().read_to_string()?)
        })?
    }

    /// GET, as JSON.
    ///
    /// # Errors
    /// It does not answer, or not with JSON.
    pub fn json(&self, path: &str) -> anyhow::Result<Value> {
        Ok(serde_json::from_str(&self.get(path)?)?)
    }

    /// All samples of `/metrics`.
    ///
    /// # Errors
    /// It does not answer.
    pub fn metrics(&self) -> anyhow::Result<Metric> {
        let text = self.get("/metrics")?;
        let samples = text.lines().filter(|l| !l.starts_with('#'));
        Ok(samples
            .filter_map(|line| {
                let (name, value) = line.rsplit_once(' ')?;
                Some((name.to_owned(), value.parse().ok()?))
            })
            .collect())
    }

    /// Returns one sample of `/metrics`, or 0 when it is not there.
    ///
    /// # Errors
    /// It does not answer.
    pub fn metric(&self, name: &str) -> anyhow::Result<f64> {
        Ok(self.metrics()?.get(name).copied().unwrap_or(0.0))
    }
}

/// An agent from which another one has taken over. Dropped, it is killed.
#[derive(Debug)]
pub struct Former {
    child: Child,
    log: Arc<Mutex<Vec<String>>>,
}

impl Former {
    /// Process id of the agent.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits for its end, and returns its log.
    ///
    /// # Errors
    /// The process does not end within `limit`, or has failed.
    pub fn ends_within(&mut self, limit: Duration) -> anyhow::Result<String> {
        let deadline = Instant::now() + limit;
        loop {
            let status = self.child.try_wait()?;
            let log = self
                .log
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .join("\n");
            match status {
                Some(status) if status.success() => return Ok(log),
                Some(status) => bail!("it has ended by {status}; it said:\n{log}"),
                None if Instant::now() > deadline => bail!("it does not end; it said:\n{log}"),
                None => thread::sleep(LOOK_EVERY),
            }
        }
    }
}

impl Drop for Former {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[expect(
    clippy::panic,
    reason = "a test that leaves something behind has failed"
)]
impl Drop for Agent<'_> {
    fn drop(&mut self) {
        let _ = self.kill();
        let detached = Command::new(&self.binary)
            .arg("detach")
            .arg("--pins")
            .arg(&self.pins)
            .arg("--control")
            .arg(self.control())
            .output();
        if !detached.as_ref().is_ok_and(|o| o.status.success()) {
            let pins = self.pins.display();
            match thread::panicking() {
                true => eprintln!("cannot detach {pins}: {detached:?}"),
                false => panic!("what is pinned at {pins} stays: {detached:?}"),
            }
        }
        if thread::panicking() {
            eprintln!("--- the agent's log\n{}\n---", excerpt(&self.log()));
        }
    }
}

/// A policy in which rules that protect say `fail`, as they have to: `open`, where a test leaves it out.
fn with_fail(policy: &str) -> String {
    const PROTECT: [&str; 5] = [
        "\"guard\"",
        "\"audit\"",
        "\"protect\"",
        "\"throttle\"",
        "\"deny\"",
    ];
    with_key(policy, "fail = \"open\"", |rule| {
        PROTECT.iter().any(|step| rule.contains(step))
    })
}

/// A policy in which rules that have flows in the agent let them be spliced, where the agent is told how.
fn with_shortcut(header: &str, policy: &str) -> String {
    const SESSION: [&str; 8] = [
        "user =",
        "keyspace =",
        "driver =",
        "driver_version =",
        "application =",
        "protocol =",
        "compression =",
        "tls =",
    ];
    if !header.contains("splice =") || header.contains("splice = \"off\"") {
        return policy.to_owned();
    }
    with_key(policy, "shortcut = true", |rule| {
        let is_session = rule
            .lines()
            .any(|line| SESSION.iter().any(|key| line.starts_with(key)));
        let is_bypass = rule.contains("action = \"bypass\"");
        rule.contains("action = \"enrich\"") || (is_bypass && is_session)
    })
}

/// Adds a key to the rules of a policy that want it and do not have it.
fn with_key(policy: &str, line: &str, wants: impl Fn(&str) -> bool) -> String {
    let name = line.split(' ').next().unwrap_or_default();

    let is_key = |line: &str| line.split('=').next().is_some_and(|key| key.trim() == name);
    let mut rules = policy.split("[[rule]]\n");
    let mut whole = rules.next().unwrap_or_default().to_owned();
    for rule in rules {
        whole.push_str("[[rule]]\n");
        let end = rule.find("\n[").map_or(rule.len(), |at| at + 1);
        let (own, rest) = rule.split_at(end);
        whole.push_str(own);
        if wants(own) && !own.lines().any(is_key) {
            whole.push_str(&format!("\n{line}\n"));
        }
        whole.push_str(rest);
    }
    whole
}

/// A log as a failure shows it: its last lines, and of those before only what is no INFO. A line for
/// each of hundreds of flows would hide what failed.
fn excerpt(log: &str) -> String {
    let lines: Vec<_> = log.lines().collect();
    let (before, last) = lines.split_at(lines.len().saturating_sub(LOG_LINES));
    let grave = before.iter().filter(|line| !line.contains(" INFO "));
    let shown: Vec<_> = grave.chain(last).copied().collect();
    let left_out = lines.len() - shown.len();
    format!(
        "({left_out} lines of INFO are left out)\n{}",
        shown.join("\n")
    )
}

/// How an agent begins.
#[derive(Default)]
struct Beginning<'a> {
    /// Whether the agent takes over from one that runs.
    takes_over: bool,
    /// Further test hooks.
    hooks: &'a str,
}

fn launch(
    binary: &Path,
    netns: Option<&Netns>,
    cgroup: &Cgroup,
    file: &Path,
    log: &Arc<Mutex<Vec<String>>>,
    beginning: &Beginning<'_>,
) -> anyhow::Result<(Child, SocketAddr)> {
    log.lock().unwrap_or_else(PoisonError::into_inner).clear();
    let mut command = Command::new(binary);
    command
        .arg("run")
        .arg("--config")
        .arg(file)
        .env(
            "UNDERPASS_TEST_HOOKS",
            format!("strict_calls=true,{}", beginning.hooks),
        )
        .stderr(Stdio::piped())
        .stdin(Stdio::null());
    if beginning.takes_over {
        command.arg("--take-over");
    }
    let mut child = run_in(netns, Some(cgroup), || command.spawn())?
        .with_context(|| format!("cannot start {}", binary.display()))?;
    let stderr = child.stderr.take().context("no stderr")?;
    let sink = log.clone();
    thread::spawn(move || {
        for line in BufReader::new(stderr).lines().map_while(Result::ok) {
            sink.lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(line);
        }
    });
    let is_told = |line: &str| line.contains("detached: flows");
    match wait_unless(log, " ready ", START_LIMIT, is_told) {
        Ok(line) => {
            let admin = line
                .split("admin=")
                .nth(1)
                .and_then(|rest| rest.split(' ').next());
            let admin = admin
                .and_then(|a| a.parse().ok())
                .context("no admin address")?;
            Ok((child, admin))
        }
        Err(error) => {
            let _ = child.kill();
            let _ = child.wait();
            Err(error.context("the agent does not get ready"))
        }
    }
}

fn wait(log: &Mutex<Vec<String>>, text: &str, limit: Duration) -> anyhow::Result<String> {
    wait_unless(log, text, limit, |_| false)
}

/// Waits for a line with this text, unless one says that it will not come.
fn wait_unless(
    log: &Mutex<Vec<String>>,
    text: &str,
    limit: Duration,
    is_over: impl Fn(&str) -> bool,
) -> anyhow::Result<String> {
    let deadline = Instant::now() + limit;
    loop {
        let lines = log.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(line) = lines.iter().find(|l| l.contains(text)) {
            return Ok(line.clone());
        }
        // One line that says why is all that a failed start leaves; a test hook says that it kills.
        let has_ended = |l: &String| {
            l.starts_with("underpass: ") || l.contains("killed, for a test") || is_over(l)
        };
        if Instant::now() > deadline || lines.iter().any(has_ended) {
            bail!("it did not log {text:?}; it said:\n{}", lines.join("\n"));
        }
        thread::sleep(LOOK_EVERY);
    }
}
