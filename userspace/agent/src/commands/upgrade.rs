//! `underpass upgrade`: starts another agent as the one that runs was started, and waits until it has taken over.

use std::{
    ffi::{OsStr, OsString},
    fs::{self, File},
    io,
    os::unix::{
        ffi::{OsStrExt, OsStringExt},
        fs::MetadataExt,
        process::CommandExt,
    },
    path::{Path, PathBuf},
    process::{Child, Command, ExitCode, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, anyhow, bail, ensure};
use nix::{
    sys::signal::{Signal, kill},
    unistd::geteuid,
};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use tokio::{runtime, time};

use super::whereabouts::{Control, ControlArg};
use crate::{
    config::DEFAULT_FILE,
    upgrade::{Link, Message, State, is_nobody, socket_of},
};

/// The time that the agent that runs has for an answer. While another one takes over it answers nobody.
const PATIENCE: Duration = Duration::from_secs(1);

/// The time that the other agent has: what the one that runs gives it, and a little for its end.
const LIMIT: Duration = Duration::from_secs(70);

/// The time within which the agent that runs answers again once the other one has ended: it may wait for that, and undo what was
/// done.
const UNDONE_WITHIN: Duration = Duration::from_secs(15);

/// The interval at which it is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// The paths of flows that a process carries, and that are handed over where that can be.
const CARRIED: [&str; 2] = ["enrich", "relay"];

/// Arguments of `upgrade`.
#[derive(Debug, clap::Args)]
pub struct UpgradeArgs {
    /// Binary of the other agent. Without it the file that the one that runs was started from, as it is now
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,
    /// Say what would become of the flows, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Where the file is still the one that the agent was started from, have it read its policy again instead: for service managers
    #[arg(long, conflicts_with = "binary")]
    or_reload: bool,
    /// The agent that runs
    #[command(flatten)]
    control: ControlArg,
}

/// The whole path of a binary that is there.
fn file_of(binary: &Path) -> anyhow::Result<PathBuf> {
    fs::canonicalize(binary).with_context(|| format!("--binary {}", binary.display()))
}

/// Has another agent take over, or says what would become of the flows.
///
/// # Errors
/// No agent runs, or none can take over. The one that runs goes on.
pub fn run(args: &UpgradeArgs) -> anyhow::Result<ExitCode> {
    ensure!(
        geteuid().is_root(),
        "starting an agent needs root: run as root"
    );
    let binary = args.binary.as_deref().map(file_of).transpose()?;
    let control = args.control.find();
    let runtime = runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let ask = || runtime.block_on(ask(&control));
    let state = ask();
    // An agent of before there was this.
    if let (true, Err(_), Some(pid)) = (args.or_reload, &state, main_process()) {
        kill(pid, Signal::SIGHUP)?;
        say!("process {pid} reads its policy again: no other agent can take over from it");
        return Ok(ExitCode::SUCCESS);
    }
    let state = state.with_context(|| {
        format!(
            "no agent that another one can take over from answers at {}{}: start one by `underpass run`, or name its socket by --control",
            control.at.display(),
            control.named
        )
    })?;
    if args.dry_run {
        return Ok(tell(&state));
    }
    let agent = Agent::of(state.pid)?;
    let binary = match binary {
        Some(binary) => binary,
        None => agent.file()?,
    };
    if args.or_reload && agent.is_of(&binary)? {
        kill(
            nix::unistd::Pid::from_raw(state.pid.cast_signed()),
            Signal::SIGHUP,
        )?;
        say!(
            "process {} reads its policy again: it is of {}",
            state.pid,
            binary.display()
        );
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(unit) = agent.unit_of_its_own() {
        ensure!(
            args.binary.is_none(),
            "the agent is {unit} of the service manager: install the other binary, and run `systemctl reload {unit}`"
        );
        let done = Command::new("systemctl").arg("reload").arg(&unit).status();
        let done = done.with_context(|| {
            format!("the agent is {unit} of a service manager, and systemctl cannot be run")
        })?;
        ensure!(
            done.success(),
            "`systemctl reload {unit}` has failed: see `journalctl -u {unit}`"
        );
        say!("{unit} was reloaded: `underpass flows` says what the agent before still carries");
        return Ok(ExitCode::SUCCESS);
    }
    if let Some((pid, flows)) = state.before {
        bail!(
            "the agent before the one that runs, process {pid}, still carries {flows} flows: wait until it has ended, or end it with them (kill {pid})"
        );
    }
    agent.check(&binary)?;
    let mut other = agent.start(&binary)?;
    let state = wait(&mut other, ask)?;
    say!(
        "process {} ({}, version {}) has taken over from process {}",
        state.pid,
        binary.display(),
        state.version,
        agent.pid
    );
    if let Some((pid, flows)) = state.before {
        say!(
            "process {pid} hands its {flows} flows over; those that cannot go stay with it until they end, {} s at most",
            state.drain_s
        );
    }
    Ok(ExitCode::SUCCESS)
}

/// The process that the service manager says is the service.
fn main_process() -> Option<nix::unistd::Pid> {
    let pid = std::env::var("MAINPID").ok()?.parse().ok()?;
    Some(nix::unistd::Pid::from_raw(pid))
}

fn tell(state: &State) -> ExitCode {
    let State {
        version,
        pid,
        drain_s,
        stay,
        ..
    } = state;
    say!("process {pid}, version {version}, carries these flows:");
    for (path, flows) in &state.flows {
        let fate = match CARRIED.contains(&path.as_str()) {
            true => "are handed over",
            false => "go on",
        };
        say!("  {flows} {path}: {fate}");
    }
    for (why, flows) in stay {
        say!("of these {flows} stay with it until they end, {drain_s} s at most: {why}");
    }
    if state.flows.is_empty() {
        say!("  none");
    }
    if let Some((pid, flows)) = state.before {
        say!("not yet: the agent before it, process {pid}, still carries {flows} flows");
    }
    ExitCode::SUCCESS
}

/// Asks the agent to describe itself.
async fn ask(control: &Control) -> anyhow::Result<State> {
    let asked = async {
        let link = Link::to(&socket_of(&control.at))?;
        link.send(&(Message::Ask, Vec::new())).await?;
        link.receive().await
    };
    match time::timeout(PATIENCE, asked).await?? {
        Some((Message::State(state), _)) => Ok(state),
        other => bail!("it answers {other:?}"),
    }
}

/// Waits until the other agent has taken over, and returns its description.
fn wait(other: &mut Child, ask: impl Fn() -> anyhow::Result<State>) -> anyhow::Result<State> {
    let deadline = Instant::now() + LIMIT;
    while Instant::now() < deadline {
        let state = ask();
        if let Some(status) = other.try_wait()? {
            return Err(failure(&format!("{status}, see its log"), ask));
        }
        if let Ok(state) = state
            && state.pid == other.id()
        {
            return Ok(state);
        }
        thread::sleep(LOOK_EVERY);
    }
    other.kill()?;
    other.wait()?;
    let late = format!("it was ended after {} s", LIMIT.as_secs());
    Err(failure(&late, ask))
}

/// The error where the other agent has ended, for this reason unless an agent knows a better one. Says who goes on.
fn failure(why: &str, ask: impl Fn() -> anyhow::Result<State>) -> anyhow::Error {
    let deadline = Instant::now() + UNDONE_WITHIN;
    let answer = loop {
        match ask() {
            Ok(state) => break Ok(state),
            Err(error) if Instant::now() >= deadline || says_nobody(&error) => break Err(error),
            Err(_) => thread::sleep(LOOK_EVERY),
        }
    };
    match answer {
        Ok(state) => {
            let why = state.failed.as_deref().unwrap_or(why);
            anyhow!("the other agent does not take over, and the one that runs goes on: {why}")
        }
        Err(error) if says_nobody(&error) => anyhow!(
            "the other agent does not take over, and the one that ran has ended, too: start one by `underpass run` ({why})"
        ),
        Err(error) => anyhow!(
            "the other agent does not take over ({why}), and the one that runs does not answer ({error:#}): look at its log"
        ),
    }
}

fn says_nobody(error: &anyhow::Error) -> bool {
    error.downcast_ref().is_some_and(is_nobody)
}

/// The process of the agent that runs.
struct Agent {
    pid: u32,
    proc: PathBuf,
}

impl Agent {
    fn of(pid: u32) -> anyhow::Result<Self> {
        let proc = PathBuf::from(format!("/proc/{pid}"));
        let agent = Self { pid, proc };
        let netns = |proc: &Path| fs::metadata(proc.join("ns/net")).map(|found| found.ino());
        ensure!(
            netns(&agent.proc)
                .with_context(|| format!("process {pid} is not to be seen from here"))?
                == netns(Path::new("/proc/self"))?,
            "the agent is in another network namespace: run this there (nsenter --target {pid} --net -- underpass upgrade)"
        );
        Ok(agent)
    }

    /// The file that it was started from, as it is named now.
    fn file(&self) -> anyhow::Result<PathBuf> {
        const GONE: &[u8] = b" (deleted)";
        let file = fs::read_link(self.proc.join("exe"))?;
        let name = file.as_os_str().as_bytes();
        let name = name.strip_suffix(GONE).unwrap_or(name);
        let file = PathBuf::from(OsStr::from_bytes(name));
        ensure!(
            file.is_file(),
            "{}, which the agent was started from, is gone: name another by --binary",
            file.display()
        );
        Ok(file)
    }

    /// Whether it was started from this very file.
    fn is_of(&self, binary: &Path) -> io::Result<bool> {
        let (own, there) = (fs::metadata(self.proc.join("exe"))?, fs::metadata(binary)?);
        Ok((own.dev(), own.ino()) == (there.dev(), there.ino()))
    }

    /// The unit of the service manager that it is, unless this process is started by it, too.
    fn unit_of_its_own(&self) -> Option<String> {
        let groups = |proc: &Path| fs::read_to_string(proc.join("cgroup")).ok();
        let own = groups(&self.proc)?;
        let is_a_service = self
            .environment()
            .is_ok_and(|all| all.iter().any(|(key, _)| key == "NOTIFY_SOCKET"));
        if !is_a_service || Some(&own) == groups(Path::new("/proc/self")).as_ref() {
            return None;
        }
        let names = own.lines().filter_map(|line| line.rsplit('/').next());
        names
            .filter(|name| name.ends_with(".service"))
            .map(str::to_owned)
            .next()
    }

    fn environment(&self) -> io::Result<Vec<(OsString, OsString)>> {
        let text = fs::read(self.proc.join("environ"))?;
        let pairs = text.split(|byte| *byte == 0).filter_map(|pair| {
            let at = pair.iter().position(|byte| *byte == b'=')?;
            let (key, value) = pair.split_at(at);
            Some((
                OsString::from_vec(key.to_vec()),
                OsString::from_vec(value.get(1..)?.to_vec()),
            ))
        });
        Ok(pairs.collect())
    }

    fn arguments(&self) -> anyhow::Result<Vec<OsString>> {
        let text = fs::read(self.proc.join("cmdline"))?;
        let text = text.strip_suffix(&[0]).unwrap_or(&text);
        let all = text.split(|byte| *byte == 0).skip(1);
        let all: Vec<OsString> = all.map(|one| OsString::from_vec(one.to_vec())).collect();
        ensure!(
            all.first().is_some_and(|first| first == "run"),
            "process {} was not started by `underpass run`",
            self.pid
        );
        Ok(all)
    }

    /// A command in the agent's folder, with its environment.
    fn command(&self, binary: &Path) -> anyhow::Result<Command> {
        let mut command = Command::new(binary);
        command
            .env_clear()
            .current_dir(self.proc.join("cwd"))
            .stdin(Stdio::null());
        let environment = self.environment()?;
        // The watchdog waits for whoever is the service's main process.
        command.envs(
            environment
                .into_iter()
                .filter(|(key, _)| key != "WATCHDOG_PID"),
        );
        Ok(command)
    }

    /// Has the binary check the policy file.
    fn check(&self, binary: &Path) -> anyhow::Result<()> {
        let arguments = self.arguments()?;
        let mut rest = arguments.iter();
        let mut file = OsString::from(DEFAULT_FILE);
        while let Some(argument) = rest.next() {
            if argument == "--config" {
                file = rest.next().context("--config names no file")?.clone();
            } else if let Some(named) = argument.as_bytes().strip_prefix(b"--config=") {
                file = OsStr::from_bytes(named).to_owned();
            }
        }
        let checked = self.command(binary)?.arg("check").arg(&file).output();
        let checked = checked.with_context(|| format!("cannot run {}", binary.display()))?;
        if !checked.status.success() {
            let said = String::from_utf8_lossy(&checked.stderr);
            bail!(
                "the other agent refuses the policy file, and the one that runs goes on: {}",
                said.trim()
            );
        }
        Ok(())
    }

    /// Starts another agent, with the standard error of this one: its log.
    fn start(&self, binary: &Path) -> anyhow::Result<Child> {
        const TAKE_OVER: &str = "--take-over";
        let mut command = self.command(binary)?;
        let arguments = self.arguments()?;
        command.args(&arguments);
        if !arguments.iter().any(|argument| argument == TAKE_OVER) {
            command.arg(TAKE_OVER);
        }
        let pid = Pid::from_raw(self.pid.cast_signed()).context("the agent has gone")?;
        let process = pidfd_open(pid, PidfdFlags::empty())?;
        let log = pidfd_getfd(&process, 2, PidfdGetfdFlags::empty())
            .context("the agent's log cannot be opened")?;
        // A ctrl-C here is not meant for it.
        command
            .stdout(Stdio::null())
            .stderr(File::from(log))
            .process_group(0);
        command
            .spawn()
            .with_context(|| format!("cannot start {}", binary.display()))
    }
}
