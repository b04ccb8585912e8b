//! A process of ours that does work on a path, seen from the parent: a line of JSON each way. It is
//! a process of its own because a cgroup puts it on a path, and because its CPU is accounted apart.

use std::{
    env,
    io::{BufRead, BufReader, Read, Write},
    os::unix::process::CommandExt,
    process::{Child, ChildStdin, Command, Stdio},
    sync::mpsc::{self, Receiver, RecvTimeoutError},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use sandbox::{Cgroup, Netns, run_in};
use serde::{Serialize, de::DeserializeOwned};

use crate::interrupt;

/// The time limit to end after the end of its standard input.
const END_LIMIT: Duration = Duration::from_secs(2);

/// A running worker, which ends when this is dropped.
pub struct Worker {
    name: String,
    child: Child,
    orders: Option<ChildStdin>,
    replies: Receiver<String>,
    complaints: Option<JoinHandle<String>>,
}

impl Worker {
    /// Starts this executable with a subcommand, in a network and a cgroup. `name` is for messages.
    pub fn start(
        subcommand: &str,
        name: &str,
        netns: Option<&Netns>,
        cgroup: Option<&Cgroup>,
    ) -> anyhow::Result<Self> {
        let mut command = Command::new(env::current_exe()?);
        command
            .arg(subcommand)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // A Ctrl-C at the terminal is for us; the workers end with us.
            .process_group(0);
        let spawned = run_in(netns, cgroup, || command.spawn())?;
        let mut child = spawned.with_context(|| format!("cannot start the {name} {subcommand}"))?;
        let orders = child.stdin.take();
        let stdout = child.stdout.take().context("no stdout")?;
        let mut stderr = child.stderr.take().context("no stderr")?;
        let (sender, replies) = mpsc::channel();
        // Both threads end with the process that they listen to.
        thread::spawn(move || {
            let lines = BufReader::new(stdout).lines().map_while(Result::ok);
            lines
                .map(|line| sender.send(line))
                .take_while(Result::is_ok)
                .for_each(drop);
        });
        let complaints = thread::spawn(move || {
            let mut said = String::new();
            let _ = stderr.read_to_string(&mut said);
            said
        });
        Ok(Self {
            name: format!("{name} {subcommand}"),
            child,
            orders,
            replies,
            complaints: Some(complaints),
        })
    }

    /// Returns the worker's process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends the worker a line.
    pub fn say(&mut self, what: &impl Serialize) -> anyhow::Result<()> {
        let mut line = serde_json::to_string(what)?;
        line.push('\n');
        let orders = self.orders.as_mut().context("it was told to end")?;
        match orders.write_all(line.as_bytes()) {
            Ok(()) => Ok(()),
            Err(_) => bail!(self.death()),
        }
    }

    /// Waits for what it says.
    pub fn hear<R: DeserializeOwned>(&mut self, limit: Duration) -> anyhow::Result<R> {
        let deadline = Instant::now() + limit;
        let line = loop {
            match self.replies.recv_timeout(interrupt::LOOK_EVERY) {
                Ok(line) => break line,
                Err(RecvTimeoutError::Disconnected) => bail!(self.death()),
                Err(RecvTimeoutError::Timeout) => {
                    interrupt::check()?;
                    if Instant::now() > deadline {
                        bail!("the {} does not answer for {limit:?}", self.name);
                    }
                }
            }
        };
        serde_json::from_str(&line).with_context(|| format!("the {} said {line:?}", self.name))
    }

    /// Explains why the worker is gone.
    fn death(&mut self) -> String {
        self.orders = None;
        let status = match self.child.wait() {
            Ok(status) => status.to_string(),
            Err(error) => error.to_string(),
        };
        let complaints = self.complaints.take().and_then(|c| c.join().ok());
        format!(
            "the {} is gone ({status}); it said: {}",
            self.name,
            complaints.unwrap_or_default().trim()
        )
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.orders = None;
        let deadline = Instant::now() + END_LIMIT;
        while matches!(self.child.try_wait(), Ok(None)) {
            if Instant::now() > deadline {
                let _ = self.child.kill();
                let _ = self.child.wait();
                return;
            }
            thread::sleep(Duration::from_millis(2));
        }
    }
}
