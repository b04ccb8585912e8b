//! A server that we started: a database, or a stand-in.

use std::{
    env,
    io::{BufRead, BufReader},
    net::{Ipv4Addr, SocketAddr},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, bail, ensure};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use sandbox::{Cgroup, Netns};

use crate::interrupt;

/// The time limit to end after SIGTERM.
const END_LIMIT: Duration = Duration::from_secs(5);

/// The place in which a server runs.
#[derive(Clone, Copy)]
pub struct Home<'a> {
    /// The server's cgroup.
    pub cgroup: &'a Cgroup,
    /// The server's network; None: this host's.
    pub netns: Option<&'a Netns>,
    /// The server's address.
    pub ip: Ipv4Addr,
}

impl Home<'_> {
    /// Returns the address with a port of the kernel's choice.
    pub fn any_port(&self) -> String {
        SocketAddr::from((self.ip, 0)).to_string()
    }
}

/// A running server, which ends when this is dropped.
pub struct Server {
    /// The address at which it listens.
    pub address: SocketAddr,
    child: Child,
}

impl Server {
    /// Starts a command that prints `listening on ADDR:PORT` in its first line.
    pub fn that_says_where(command: &Command, home: Home<'_>) -> anyhow::Result<Self> {
        let shown = format!("{command:?}");
        let nowhere = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut server = Self::spawn_with(command, home, nowhere, Stdio::piped())?;
        let stdout = server.child.stdout.take().context("no stdout")?;
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line)?;
        let address = line.trim().strip_prefix("listening on ");
        match address.and_then(|address| address.parse().ok()) {
            Some(address) => server.address = address,
            None => bail!("{shown} did not start; it said {line:?}"),
        }
        Ok(server)
    }

    /// Starts a command that will listen there, and has nothing to say.
    pub fn spawn(command: &Command, home: Home<'_>, address: SocketAddr) -> anyhow::Result<Self> {
        Self::spawn_with(command, home, address, Stdio::null())
    }

    fn spawn_with(
        command: &Command,
        home: Home<'_>,
        address: SocketAddr,
        stdout: Stdio,
    ) -> anyhow::Result<Self> {
        let shown = format!("{command:?}");
        let child = ends_with_us(command, home)
            .stdin(Stdio::null())
            .stdout(stdout)
            .process_group(0)
            .spawn();
        let child = child.with_context(|| format!("cannot start {shown}"))?;
        Ok(Self { address, child })
    }

    /// Returns the server's process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Whether the server has ended by itself.
    pub fn poll_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }
}

/// Wraps the command so that it runs in this cgroup and network, and the kernel kills it when we
/// are killed: setpriv(1) asks for that, and becomes the program that it runs. A thread that had
/// joined the cgroup and network could not have started it: the program would be killed with that
/// thread.
fn ends_with_us(command: &Command, home: Home<'_>) -> Command {
    const JOIN: &str = "echo 0 > \"$0/cgroup.threads\" && exec \"$@\"";
    let mut wrapped = Command::new("sh");
    wrapped.args(["-c", JOIN]).arg(home.cgroup.path());
    if let Some(netns) = home.netns {
        wrapped
            .arg("nsenter")
            .arg(format!("--net={}", netns.path()));
    }
    wrapped.args(["setpriv", "--pdeathsig", "KILL", "--"]);
    wrapped.arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => wrapped.env(name, value),
            None => wrapped.env_remove(name),
        };
    }
    if let Some(folder) = command.get_current_dir() {
        wrapped.current_dir(folder);
    }
    wrapped
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Ok(pid) = i32::try_from(self.child.id()) {
            let _ = kill(Pid::from_raw(pid), Signal::SIGTERM);
        }
        let deadline = Instant::now() + END_LIMIT;
        while matches!(self.child.try_wait(), Ok(None)) {
            if Instant::now() > deadline {
                let _ = self.child.kill();
                let _ = self.child.wait();
                return;
            }
            thread::sleep(interrupt::LOOK_EVERY);
        }
    }
}

/// Finds one of the project's binaries beside our own.
pub fn binary(name: &str) -> anyhow::Result<PathBuf> {
    let own = env::current_exe().context("where is our own executable?")?;
    let beside = own.parent().unwrap_or(Path::new("."));
    // A test of ours is one folder deeper.
    let folders = [Some(beside), beside.parent()];
    let found = folders
        .into_iter()
        .flatten()
        .map(|folder| folder.join(name));
    let binary = found.into_iter().find(|file| file.is_file());
    let built_by = "`cargo xtask` builds it (`cargo xtask demo`, `cargo xtask bench`)";
    ensure!(
        binary.is_some(),
        "{} is not there: {built_by}",
        beside.join(name).display()
    );
    binary.context(built_by)
}
