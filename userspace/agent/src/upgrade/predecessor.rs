//! The agent that takes over, and the one before it.

use std::{
    collections::BTreeMap,
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
use flow::Stays;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use policy::Action;
use proxy::{FLOW_FORMAT, Handed, NotTaken, ProxyContext, SealedFlow};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tokio::{
    sync::{mpsc, oneshot, watch},
    time,
};

use super::{
    protocol::{FLOW, FORMAT, Link, Listener, Message, Welcome, socket_of},
    reached,
};
use crate::{
    backends::Order,
    marks::{LONGEST, Target, Wanted},
    observed::SharedDataplane,
    socket_file::{Door, SocketError, SocketFile},
};

/// The time that the agent that runs has for an answer: it may be busy reading a large file again.
const PATIENCE: Duration = Duration::from_secs(10);

/// The interval at which it is looked whether the agent before has ended, once it says nothing more.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// The time after the end of a connection within which a process that has died is gone.
const DEATH_SEEN: Duration = Duration::from_secs(2);

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
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Draining {
    /// The process of that agent.
    pub pid: u32,
    /// Flows that it still carries.
    pub flows: usize,
    /// Flows among them that it cannot hand over, by reason.
    pub stay: BTreeMap<String, usize>,
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
        let hooks = test_hooks::get();
        let hello = Message::Hello {
            format: hooks.upgrade_format.unwrap_or(FORMAT),
            version: env!("CARGO_PKG_VERSION").into(),
            pid: std::process::id(),
            takes: hooks.flow_format.unwrap_or(FLOW_FORMAT),
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

    /// The view of that agent as long as it has not said what it still has.
    pub fn draining(&self) -> Draining {
        Draining {
            pid: self.welcome.pid,
            ..Draining::default()
        }
    }

    /// The marks that hold at that agent.
    pub fn marks(&self) -> &[Wanted] {
        &self.marks
    }

    /// The orders that backends have from that agent.
    pub fn orders(&self) -> Vec<(SocketAddr, Order)> {
        self.welcome.orders.clone()
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
            self.has_died().await,
            "the agent that runs goes on without this one: its log says why"
        );
        Ok(())
    }

    /// Tells it that connections are this agent's now. From here on it has the flows that it has, and nothing else.
    pub async fn tell_taken(&mut self) -> Draining {
        let pid = self.welcome.pid;
        let said = self.link.send(&(Message::Taken, Vec::new())).await;
        reached("said");
        let answer = match said {
            Ok(()) => hear(&self.link).await,
            Err(error) => Err(error.into()),
        };
        self.given.remove_files();
        self.given = Given::default();
        match answer {
            Ok((Message::Drains { flows, stay }, _)) => Draining { pid, flows, stay },
            other => {
                tracing::warn!(pid, ?other, "the agent before does not say that it drains");
                self.draining()
            }
        }
    }

    /// Follows it until it has ended, and takes its flows. Then for ever does nothing.
    pub async fn follow(
        self,
        first: Draining,
        draining: watch::Sender<Option<Draining>>,
        hands: mpsc::Sender<Handed>,
        dataplane: SharedDataplane,
        shared: Arc<ProxyContext>,
    ) -> Infallible {
        let pid = first.pid;
        let metrics = &shared.metrics.upgrade;
        let note = |now: Draining| {
            metrics.draining.set(now.flows as i64);
            for why in Stays::ALL {
                let flows = now.stay.get(why.as_str()).copied().unwrap_or_default();
                metrics
                    .staying
                    .with_label_values(&[why.as_str()])
                    .set(flows as i64);
            }
            draining.send_replace(Some(now));
        };
        note(first);
        loop {
            match self.link.receive().await {
                Ok(Some((Message::Drains { flows, stay }, _))) => {
                    note(Draining { pid, flows, stay });
                }
                Ok(Some((Message::Inherit(inherited), _))) => proxy::inherit(&shared, inherited),
                Ok(Some((Message::Flow(flow), descriptors))) => {
                    self.take(flow, descriptors, &hands).await;
                }
                // That agent waits until it is answered.
                Ok(Some((Message::Unknown(kind), _))) if kind == FLOW => {
                    tracing::warn!(
                        "the agent before hands a flow over that cannot be understood: it keeps its flows"
                    );
                    break;
                }
                Ok(Some((Message::Unknown(kind), _))) => {
                    tracing::debug!(
                        kind,
                        "the agent before says what this version does not know"
                    );
                }
                Ok(Some((other, _))) => {
                    tracing::warn!(?other, "the agent before says what it is not to say");
                }
                Ok(None) => break,
                Err(error) => {
                    tracing::warn!(%error, "the agent before cannot be understood: it keeps its flows");
                    break;
                }
            }
        }
        // That agent may wait for an answer: it sees that there is none.
        let Self { link, process, .. } = self;
        link.end();
        while !has_ended(&process) {
            time::sleep(LOOK_EVERY).await;
        }
        note(Draining::default());
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
        tracing::info!(pid, "the agent before has ended");
        std::future::pending().await
    }

    /// Takes a flow, or says why not.
    async fn take(
        &self,
        flow: SealedFlow,
        descriptors: Vec<OwnedFd>,
        hands: &mpsc::Sender<Handed>,
    ) {
        let taken = match <[OwnedFd; 2]>::try_from(descriptors) {
            Ok([accepted, dialled]) => {
                let (answer, answered) = oneshot::channel();
                let handed = Handed {
                    flow,
                    accepted,
                    dialled,
                    answer,
                };
                // Who does not answer any more is about to end.
                let said = match hands.send(handed).await {
                    Ok(()) => answered.await.ok(),
                    Err(_) => None,
                };
                said.unwrap_or(Err(NotTaken::Gone))
            }
            Err(_) => Err(NotTaken::NotNow("it has too few descriptors".into())),
        };
        reached("takes");
        let declined = |why, for_now| (Message::Declined { why, for_now }, None);
        let (answer, go) = match taken {
            Ok(go) => (Message::Took, Some(go)),
            Err(NotTaken::Declined(why)) => declined(why, false),
            Err(NotTaken::NotNow(why)) => declined(why, true),
            Err(NotTaken::Gone) => declined("it ends".into(), true),
        };
        let is_its_own = match self.link.send(&(answer, Vec::new())).await {
            Ok(()) => true,
            // That agent has died, or it keeps the flow: it hears that there is no answer.
            Err(error) => {
                self.link.end();
                let has_died = self.has_died().await;
                if !has_died {
                    tracing::warn!(%error, "the agent before cannot be answered: it keeps its flows");
                }
                has_died
            }
        };
        if let Some(go) = go.filter(|_| is_its_own) {
            let _ = go.send(());
        }
        reached("took");
    }

    /// Whether the process has died, now or in a moment.
    async fn has_died(&self) -> bool {
        let ends = async {
            while !has_ended(&self.process) {
                time::sleep(LOOK_EVERY).await;
            }
        };
        time::timeout(DEATH_SEEN, ends).await.is_ok()
    }
}

fn has_ended(process: &OwnedFd) -> bool {
    let mut ended = [PollFd::new(process.as_fd(), PollFlags::POLLIN)];
    poll(&mut ended, PollTimeout::ZERO).is_ok_and(|ended| ended > 0)
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

/// Whether an error of connecting says that nobody listens.
pub fn is_nobody(error: &io::Error) -> bool {
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
