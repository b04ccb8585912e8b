//! A client's process, seen from the parent.

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
use serde::Serialize;
use testkit::sandbox::{Cgroup, run_in};

use crate::{
    interrupt,
    order::{Answer, Hello, Order, Reply},
    path::Path,
};

/// To connect: a driver gives up after five seconds, and a JVM may just have woken up.
const CONNECT_LIMIT: Duration = Duration::from_secs(60);
/// Beyond what an order takes: more than the client itself waits for one response.
const ANSWER_LIMIT: Duration = Duration::from_secs(60);
/// After the end of its standard input.
const END_LIMIT: Duration = Duration::from_secs(2);

/// A running client. Dropped, it ends.
pub struct Client {
    path: Path,
    child: Child,
    orders: Option<ChildStdin>,
    replies: Receiver<String>,
    complaints: Option<JoinHandle<String>>,
}

impl Client {
    /// Starts one in a cgroup, and waits until it is connected.
    pub fn start(path: Path, cgroup: Option<&Cgroup>, hello: &Hello) -> anyhow::Result<Self> {
        let mut command = Command::new(env::current_exe()?);
        command
            .arg("client")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // A Ctrl-C at the terminal is for us; the clients end with us.
            .process_group(0);
        let spawned = run_in(None, cgroup, || command.spawn())?;
        let mut child = spawned.context("cannot start a client")?;
        let orders = child.stdin.take();
        let stdout = child.stdout.take().context("no stdout")?;
        let mut stderr = child.stderr.take().context("no stderr")?;
        let (sender, replies) = mpsc::channel();
        // Both end with the process that they listen to.
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
        let mut client = Self {
            path,
            child,
            orders,
            replies,
            complaints: Some(complaints),
        };
        client.say(hello)?;
        client.answer(CONNECT_LIMIT)?;
        Ok(client)
    }

    /// Has an order carried out.
    pub fn order(&mut self, order: Order) -> anyhow::Result<Answer> {
        self.say(&order)?;
        let work = match order {
            Order::Work { seconds, .. } => Duration::from_secs_f64(seconds),
            Order::Connect { .. } => Duration::ZERO,
        };
        self.answer(work + ANSWER_LIMIT)
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    fn say(&mut self, what: &impl Serialize) -> anyhow::Result<()> {
        let mut line = serde_json::to_string(what)?;
        line.push('\n');
        let orders = self.orders.as_mut().context("the client was told to end")?;
        match orders.write_all(line.as_bytes()) {
            Ok(()) => Ok(()),
            Err(_) => bail!(self.death()),
        }
    }

    fn answer(&mut self, limit: Duration) -> anyhow::Result<Answer> {
        let deadline = Instant::now() + limit;
        let line = loop {
            match self.replies.recv_timeout(interrupt::LOOK_EVERY) {
                Ok(line) => break line,
                Err(RecvTimeoutError::Disconnected) => bail!(self.death()),
                Err(RecvTimeoutError::Timeout) => {
                    interrupt::check()?;
                    if Instant::now() > deadline {
                        bail!("the {} client does not answer for {limit:?}", self.path);
                    }
                }
            }
        };
        let reply = serde_json::from_str(&line);
        match reply.with_context(|| format!("the {} client said {line:?}", self.path))? {
            Reply::Done(answer) => Ok(answer),
            Reply::Failed(why) => bail!("the {} client failed: {why}", self.path),
        }
    }

    /// Why it is gone.
    fn death(&mut self) -> String {
        self.orders = None;
        let status = match self.child.wait() {
            Ok(status) => status.to_string(),
            Err(error) => error.to_string(),
        };
        let complaints = self.complaints.take().and_then(|c| c.join().ok());
        format!(
            "the {} client is gone ({status}); it said: {}",
            self.path,
            complaints.unwrap_or_default().trim()
        )
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.orders = None;
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
