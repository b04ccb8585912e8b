//! The agent that runs, and another one that takes over from it.

use std::{
    collections::BTreeMap,
    fs, io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::fs::MetadataExt,
    },
    path::{Path, PathBuf},
    sync::{
        Arc, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, SystemTime},
};

use anyhow::{Context as _, anyhow, bail};
use dataplane::NetnsAgents;
use proxy::{ProxyContext, link};
use tokio::{net::UnixListener, sync::watch, task, time};

use super::{
    Draining,
    protocol::{FORMAT, Link, Listener, Message, State, Welcome, socket_of},
    reached,
};
use crate::{
    backends::Backends,
    config::InForce,
    marks::{MarkReader, Still},
    observed::SharedDataplane,
};

/// The time for a visitor's first message, and for reading an answer.
const PATIENCE: Duration = Duration::from_secs(1);

/// The time that another agent has from the terms until it is ready: programs are verified, containers and names are asked for.
const READY_LIMIT: Duration = Duration::from_secs(60);

/// The time that an agent which could not take over has to end.
const END_LIMIT: Duration = Duration::from_secs(5);

/// The pause after accept(2) failed.
const PAUSE: Duration = Duration::from_millis(50);

/// The most processes whose namespaces are told: their numbers have to fit into a message, and namespaces that are left out
/// are served when somebody connects there.
const MAX_TOLD_NAMESPACES: usize = 1024;

/// The most orders to backends that are told, which have to fit into a message, too.
const MAX_TOLD_ORDERS: usize = 64;

/// The sockets that are given to another agent.
pub struct Offered {
    /// Listeners, and what they are.
    pub listeners: Vec<(Listener, OwnedFd)>,
    /// Switches with which the files of sockets are left to it.
    pub files: Vec<Arc<AtomicBool>>,
}

/// Another agent that has taken over.
pub struct Taken {
    /// The connection to it.
    pub link: Link,
    /// The process of that agent.
    pub pid: u32,
    /// The format of the flows that it takes.
    pub takes: u32,
    /// Marks are set and ended there.
    _still: Still,
}

/// Waits for another agent.
pub struct Successor {
    /// The sockets that it gets.
    pub offered: Offered,
    /// The programs whose place its own take.
    pub dataplane: SharedDataplane,
    /// The namespaces that it serves, too.
    pub netns_agents: Arc<NetnsAgents>,
    /// The backends that it gives orders, too.
    pub backends: Backends,
    /// The marks that it sets, too.
    pub marks: MarkReader,
    /// The flows that this agent keeps.
    pub shared: Arc<ProxyContext>,
    /// The settings of this agent.
    pub in_force: watch::Receiver<Arc<InForce>>,
    /// The agent before this one.
    pub before: watch::Receiver<Option<Draining>>,
    /// The folder of this agent's pins.
    pub pins: PathBuf,
    /// The process that is taking over, until it has, or has failed.
    pub leads: watch::Sender<Option<u32>>,
    /// Why the last one could not take over.
    pub failed: Option<String>,
}

/// The socket at which this agent waits. Dropped, its file goes unless another agent has put its own there.
struct Socket {
    path: PathBuf,
    inode: u64,
    listener: UnixListener,
    /// Set once another agent puts its own there.
    is_left: bool,
}

impl Socket {
    fn bind(path: PathBuf) -> io::Result<Self> {
        let listener = link::bind_at(&path)?;
        Ok(Self {
            inode: fs::metadata(&path)?.ino(),
            listener: UnixListener::from_std(listener.into())?,
            is_left: false,
            path,
        })
    }

    async fn visitor(&self) -> (Link, Message) {
        loop {
            let Ok((socket, _)) = self.listener.accept().await else {
                // Descriptors are missing; one may be free soon.
                time::sleep(PAUSE).await;
                continue;
            };
            let link = socket.into_std().map(OwnedFd::from).and_then(Link::new);
            let Ok(link) = link else {
                continue;
            };
            if let Ok(Ok(Some((message, _)))) = time::timeout(PATIENCE, link.receive()).await {
                return (link, message);
            }
        }
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if !self.is_left && fs::metadata(&self.path).is_ok_and(|file| file.ino() == self.inode) {
            // Left, it is replaced by the next agent.
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl Successor {
    /// Waits beside the control socket until another agent has taken over.
    pub async fn wait(mut self, control: &Path) -> Taken {
        let path = socket_of(control);
        let mut socket = match Socket::bind(path.clone()) {
            Ok(socket) => socket,
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "no other agent can take over: its flows will end with this one");
                return std::future::pending().await;
            }
        };
        loop {
            let (link, first) = socket.visitor().await;
            match first {
                // An agent that stops is no answer to who goes on.
                Message::Ask if !self.is_attached() => {}
                Message::Ask => {
                    // A visitor that does not read is not waited for.
                    let _ = say(&link, Message::State(self.state())).await;
                }
                Message::Hello {
                    format,
                    pid,
                    version,
                    takes,
                } => {
                    tracing::info!(pid, version, "another agent is to take over");
                    self.leads.send_replace(Some(pid));
                    match self.lead(&link, format).await {
                        Ok(still) => {
                            socket.is_left = true;
                            return Taken {
                                link,
                                pid,
                                takes,
                                _still: still,
                            };
                        }
                        Err(why) => {
                            self.note_failure(pid, &why);
                            self.leads.send_replace(None);
                            // A stop that has waited for this comes before the next visitor.
                            task::yield_now().await;
                        }
                    }
                }
                other => tracing::warn!(?other, "a visitor says what no agent says first"),
            }
        }
    }

    /// Leads another agent to where it has taken over. What an operator changes meanwhile, a mark or a backend's order, would be lost with
    /// this agent: he waits until it is known which of the two goes on.
    async fn lead(&self, link: &Link, format: u32) -> anyhow::Result<Still> {
        let still = self.marks.hold_still().await;
        let welcomed = match self.refusal(format) {
            Some(why) => Err(anyhow!(why)),
            None => self.welcome().await,
        };
        let (welcome, marks) = match welcomed {
            Ok(welcomed) => welcomed,
            Err(why) => {
                let refused = Message::Refused {
                    why: format!("{why:#}"),
                };
                let _ = say(link, refused).await;
                return Err(why);
            }
        };
        link.send(&welcome)
            .await
            .context("it does not hear the terms")?;
        for mark in marks {
            link.send(&(mark, Vec::new()))
                .await
                .context("it does not hear of the marks")?;
        }
        reached("welcomed");
        let led = self.until_taken(link).await;
        if led.is_err() {
            self.take_back(link).await;
        }
        led.map(|()| still)
    }

    async fn until_taken(&self, link: &Link) -> anyhow::Result<()> {
        match time::timeout(READY_LIMIT, link.receive()).await {
            Ok(Ok(Some((Message::Ready, _)))) => {}
            Ok(answer) => return Err(unlike("ready", answer)),
            Err(_) => bail!("it is not ready within {} s", READY_LIMIT.as_secs()),
        }
        link.send(&(Message::Go, Vec::new()))
            .await
            .context("it does not hear that it may go")?;
        reached("went");
        // From here on connections may be its own: there is no way back while it lives.
        match link.receive().await {
            Ok(Some((Message::Taken, _))) => {}
            answer => return Err(unlike("taken", answer)),
        }
        reached("told");
        for file in &self.offered.files {
            file.store(true, Relaxed);
        }
        Ok(())
    }

    /// Has connections come to this agent again, once the other one has gone.
    async fn take_back(&self, link: &Link) {
        let gone = async { while let Ok(Some(_)) = link.receive().await {} };
        if time::timeout(END_LIMIT, gone).await.is_err() {
            tracing::warn!("the agent that was to take over does not end: look for its process");
        }
        let mut dataplane = self
            .dataplane
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(Err(error)) = dataplane.as_mut().map(dataplane::Dataplane::take_back) {
            tracing::error!(%error, "cannot remove what an agent has left that was to take over");
        }
    }

    fn is_attached(&self) -> bool {
        let dataplane = self.dataplane.lock();
        dataplane.unwrap_or_else(PoisonError::into_inner).is_some()
    }

    fn note_failure(&mut self, pid: u32, why: &anyhow::Error) {
        self.shared.metrics.upgrade.failed.inc();
        tracing::error!(
            pid,
            "the other agent does not take over, and this one goes on: {why:#}"
        );
        self.failed = Some(format!("{why:#}"));
    }

    fn refusal(&self, format: u32) -> Option<String> {
        if format != FORMAT {
            return Some(format!(
                "the agent that runs speaks format {FORMAT}, and the other one {format}: stop the one, and start the other"
            ));
        }
        let Draining { pid, flows, .. } = self.before.borrow().clone()?;
        Some(format!(
            "the agent before the one that runs, process {pid}, still carries {flows} flows: wait until it has ended (its `drain` at \
             the latest), or end it with them (kill {pid})"
        ))
    }

    /// The terms, and the marks that hold.
    async fn welcome(&self) -> anyhow::Result<((Message, Vec<OwnedFd>), Vec<Message>)> {
        let marks = self.marks.views().await.context("the agent stops")?;
        let mut orders = self.backends.orders().await.context("the agent stops")?;
        orders.truncate(MAX_TOLD_ORDERS);
        let now = SystemTime::now();
        let marks: Vec<Message> = marks.iter().filter_map(|mark| mark.told(now)).collect();
        let mut descriptors = Vec::new();
        let (mark, cgroup) = {
            let dataplane = self
                .dataplane
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            let dataplane = dataplane.as_ref().context("the agent stops")?;
            let terms = dataplane.terms()?;
            descriptors.push(terms.lock);
            (terms.mark, dataplane.cgroup().to_owned())
        };
        let mut listeners = Vec::new();
        for (listener, descriptor) in &self.offered.listeners {
            listeners.push(listener.clone());
            descriptors.push(descriptor.as_fd().try_clone_to_owned()?);
        }
        let namespaces = self.netns_agents.views();
        let namespaces = namespaces.iter().map(|view| view.pid);
        let welcome = Welcome {
            version: env!("CARGO_PKG_VERSION").into(),
            pid: std::process::id(),
            mark,
            namespaces: namespaces.take(MAX_TOLD_NAMESPACES).collect(),
            cgroup,
            pins: self.pins.clone(),
            listeners,
            marks: marks.len(),
            orders,
        };
        Ok(((Message::Welcome(welcome), descriptors), marks))
    }

    fn state(&self) -> State {
        let mut flows: BTreeMap<String, usize> = BTreeMap::new();
        let mut stay: BTreeMap<String, usize> = BTreeMap::new();
        for flow in self.shared.flows.all() {
            *flows.entry(flow.path().as_str().into()).or_default() += 1;
            if let Some(why) = proxy::would_stay(&self.shared, &flow) {
                *stay.entry(why.as_str().into()).or_default() += 1;
            }
        }
        State {
            stay,
            version: env!("CARGO_PKG_VERSION").into(),
            pid: std::process::id(),
            flows,
            drain_s: self.in_force.borrow().config.drain.as_secs(),
            before: self
                .before
                .borrow()
                .as_ref()
                .map(|before| (before.pid, before.flows)),
            failed: self.failed.clone(),
        }
    }
}

async fn say(link: &Link, message: Message) -> io::Result<()> {
    let said = time::timeout(PATIENCE, async { link.send(&(message, Vec::new())).await });
    said.await.map_err(io::Error::from)?
}

/// The error for an answer that is another than the one that was due.
fn unlike(due: &str, answer: io::Result<Option<(Message, Vec<OwnedFd>)>>) -> anyhow::Error {
    match answer {
        Ok(Some((Message::Failed { why }, _))) => anyhow!(why),
        Ok(Some((other, _))) => anyhow!("it says {other:?} where it is to be {due}"),
        Ok(None) => anyhow!("it has ended before it was {due}: its log says why"),
        Err(error) => anyhow!("it cannot be heard: {error}"),
    }
}
