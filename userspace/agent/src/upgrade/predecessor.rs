//! The agent that takes over, and the one before it.

use std::{
    convert::Infallible,
    fs, io,
    net::SocketAddr,
    os::fd::{AsFd, OwnedFd},
    path::{Path, PathBuf},
    sync::{Arc, PoisonError},
    time::Duration,
};

use anyhow::{Context as _, anyhow, bail, ensure};
use dataplane::{Before, Options};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use policy::Action;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use telemetry::Metrics;
use tokio::{sync::watch, time};

use super::protocol::{FORMAT, Link, Listener, Message, Welcome, socket_of};
use crate::{
    marks::{LONGEST, Target, Wanted},
    observed::SharedDataplane,
    socket_file::{Door, SocketError, SocketFile},
};

/// The time that the agent that runs has for an answer: it may be busy reading a large file again.
const PATIENCE: Duration = Duration::from_secs(10);

/// The time after the end of a connection within which a process that has died is gone.
const DEATH_SEEN: u16 = 2000;

/// The agent that runs.
pub struct Predecessor {
    link: Arc<Link>,
    process: OwnedFd,
    welcome: Welcome,
    lock: Option<OwnedFd>,
    marks: Vec<Wanted>,
    /// The listeners that it gives.
    pub given: Given,
}

/// Listeners of another agent.
#[derive(Debug, Default)]
pub struct Given {
    /// Sockets' files.
    files: Vec<(PathBuf, OwnedFd)>,
    /// The listener of `agent.admin`.
    pub tcp: Option<(SocketAddr, OwnedFd)>,
    /// The listener of `agent.metrics`.
    pub metrics: Option<(SocketAddr, OwnedFd)>,
}

/// The agent before this one, while it drains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Draining {
    /// The process of that agent.
    pub pid: u32,
    /// Flows that it still carries.
    pub flows: usize,
}

impl Given {
    /// The socket at this path: the one that was given, or a new one.
    ///
    /// # Errors
    /// Those of [`SocketFile::bind`].
    pub fn socket(&mut self, door: Door, path: &Path) -> Result<SocketFile, SocketError> {
        match self.files.iter().position(|(given, _)| given == path) {
            Some(at) => SocketFile::given(door, path, self.files.swap_remove(at).1),
            None => SocketFile::bind(door, path),
        }
    }

    /// Removes the files of sockets that this agent has elsewhere.
    fn remove_files(&mut self) {
        for (path, _) in self.files.drain(..) {
            let _ = fs::remove_file(path);
        }
    }
}

impl Predecessor {
    /// Asks the agent that runs for its terms. None: there is none.
    ///
    /// # Errors
    /// The agent that runs refuses, or does not answer.
    pub async fn meet(control: &Path) -> anyhow::Result<Option<Self>> {
        let link = match Link::to(&socket_of(control)) {
            Ok(link) => Arc::new(link),
            Err(error) if is_nobody(&error) => return Ok(None),
            Err(error) => return Err(error).context("the agent that runs cannot be asked"),
        };
        let hello = Message::Hello {
            format: FORMAT,
            version: env!("CARGO_PKG_VERSION").into(),
            pid: std::process::id(),
        };
        link.send(&(hello, Vec::new()))
            .await
            .context("the agent that runs does not hear")?;
        let (welcome, mut descriptors) = match hear(&link).await? {
            (Message::Welcome(welcome), descriptors) => (welcome, descriptors.into_iter()),
            (Message::Refused { why }, _) => bail!("{why}"),
            (other, _) => {
                bail!("the agent that runs answers {other:?}: stop it, and start this one")
            }
        };
        let lock = descriptors
            .next()
            .context("the agent that runs gives no lock")?;
        let mut given = Given::default();
        for (listener, descriptor) in welcome.listeners.iter().zip(descriptors) {
            match listener.clone() {
                Listener::Control(path) | Listener::Admin(path) => {
                    given.files.push((path, descriptor))
                }
                Listener::Tcp(at) => given.tcp = Some((at, descriptor)),
                Listener::Metrics(at) => given.metrics = Some((at, descriptor)),
            }
        }
        let mut marks = Vec::new();
        while marks.len() < welcome.marks.min(crate::marks::MAX_MARKS) {
            match hear(&link).await? {
                (
                    Message::Mark {
                        target,
                        action,
                        lasts_s,
                    },
                    _,
                ) => {
                    marks.push(
                        wanted(&target, &action, lasts_s)
                            .map_err(|why| anyhow!("a mark: {why}"))?,
                    );
                }
                (other, _) => bail!("the agent that runs says {other:?} where a mark is due"),
            }
        }
        let pid = Pid::from_raw(welcome.pid.cast_signed())
            .context("the agent that runs has no process")?;
        let process =
            pidfd_open(pid, PidfdFlags::empty()).context("the agent that runs has gone")?;
        tracing::info!(
            pid = welcome.pid,
            version = welcome.version,
            "takes over from the agent that runs"
        );
        Ok(Some(Self {
            link,
            process,
            welcome,
            lock: Some(lock),
            marks,
            given,
        }))
    }

    /// The connection, to tell it of a failure.
    pub fn link(&self) -> Arc<Link> {
        self.link.clone()
    }

    /// The marks that hold at that agent.
    pub fn marks(&self) -> &[Wanted] {
        &self.marks
    }

    /// Facts about that agent for the data plane, once, if it is attached to the same as this agent is to be.
    ///
    /// # Errors
    /// The agent that runs is attached elsewhere.
    pub fn before(&mut self, options: &Options) -> anyhow::Result<Before> {
        let Welcome { cgroup, pins, .. } = &self.welcome;
        for (key, runs, wanted) in [
            ("cgroup", cgroup, &options.cgroup),
            ("pins", pins, &options.pins),
        ] {
            ensure!(
                runs == wanted,
                "`{key}` is {} here, and {} of the agent that runs: stop it, and start this one",
                wanted.display(),
                runs.display()
            );
        }
        Ok(Before {
            lock: self.lock.take().context("it was taken")?,
            mark: self.welcome.mark,
            pid: self.welcome.pid,
            namespaces: self.welcome.namespaces.clone(),
        })
    }

    /// Waits until connections may be taken: it says so, or has died.
    ///
    /// # Errors
    /// The agent that runs goes on without this one.
    pub async fn may_go(&self) -> anyhow::Result<()> {
        let said = self.link.send(&(Message::Ready, Vec::new())).await;
        if said.is_ok()
            && let Ok((Message::Go, _)) = hear(&self.link).await
        {
            return Ok(());
        }
        ensure!(
            self.has_died(),
            "the agent that runs goes on without this one: its log says why"
        );
        Ok(())
    }

    /// Tells it that connections are this agent's now. From here on it has the flows that it has, and nothing else.
    pub async fn tell_taken(&mut self) -> Draining {
        let pid = self.welcome.pid;
        let said = self.link.send(&(Message::Taken, Vec::new())).await;
        let answer = match said {
            Ok(()) => hear(&self.link).await,
            Err(error) => Err(error.into()),
        };
        self.given.remove_files();
        self.given = Given::default();
        match answer {
            Ok((Message::Drains { flows }, _)) => Draining { pid, flows },
            other => {
                tracing::warn!(pid, ?other, "the agent before does not say that it drains");
                Draining { pid, flows: 0 }
            }
        }
    }

    /// Follows it until it has ended, and then for ever does nothing.
    pub async fn follow(
        self,
        first: Draining,
        draining: watch::Sender<Option<Draining>>,
        dataplane: SharedDataplane,
        metrics: Metrics,
    ) -> Infallible {
        let gauge = &metrics.upgrade.draining;
        let mut now = first;
        loop {
            gauge.set(now.flows as i64);
            draining.send_replace(Some(now));
            match self.link.receive().await {
                Ok(Some((Message::Drains { flows }, _))) => now.flows = flows,
                Ok(Some(_)) => {}
                Ok(None) | Err(_) => break,
            }
        }
        gauge.set(0);
        draining.send_replace(None);
        {
            let mut dataplane = dataplane.lock().unwrap_or_else(PoisonError::into_inner);
            let forgotten = dataplane
                .as_mut()
                .map(dataplane::Dataplane::before_has_ended);
            if let Some(Err(error)) = forgotten {
                tracing::error!(%error, "cannot remove what the agent before has left");
            }
        }
        tracing::info!(pid = now.pid, "the agent before has ended");
        std::future::pending().await
    }

    /// Whether the process has died, now or in a moment.
    fn has_died(&self) -> bool {
        let mut ended = [PollFd::new(self.process.as_fd(), PollFlags::POLLIN)];
        poll(&mut ended, PollTimeout::from(DEATH_SEEN)).is_ok_and(|ended| ended > 0)
    }
}

/// Tells the agent that runs why this one does not take over. It may know already.
pub async fn tell_failure(link: &Link, error: &anyhow::Error) {
    let failed = Message::Failed {
        why: format!("{error:#}"),
    };
    let _ = time::timeout(PATIENCE, async { link.send(&(failed, Vec::new())).await }).await;
}

async fn hear(link: &Link) -> anyhow::Result<(Message, Vec<OwnedFd>)> {
    let heard = time::timeout(PATIENCE, link.receive()).await;
    let heard = heard.context("the agent that runs does not answer: look at its log")?;
    heard?.context("the agent that runs has ended, or goes on without this one: its log says why")
}

fn is_nobody(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionRefused, NotFound};
    matches!(error.kind(), NotFound | ConnectionRefused)
}

pub(super) fn wanted(target: &str, action: &str, lasts_s: Option<u64>) -> Result<Wanted, String> {
    let action = Action::parse(action).ok_or_else(|| format!("no action is {action:?}"))?;
    Ok(Wanted {
        target: Target::parse(target, action)?,
        action,
        // No time that an operator can write is longer.
        lasts: lasts_s.map(|seconds| Duration::from_secs(seconds).min(LONGEST)),
        reset: false,
    })
}
