//! The keeper's process: it holds the flows that the agent gives it, and carries flows that have no
//! agent.

use std::{
    collections::{HashMap, VecDeque},
    fs::{self, File},
    io,
    os::fd::{AsFd, OwnedFd},
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
    time::Duration,
};

use anyhow::Context;
use dataplane::{Splicer, shortcut::ShortcutReaders};
use flow::{Flow, commands::FlowCommand};
use policy::{Action, RuleName};
use prometheus::Registry;
use telemetry::Metrics;
use tokio::{
    net::UnixListener,
    runtime,
    sync::mpsc,
    task::AbortHandle,
    time::{self, MissedTickBehavior},
};

use super::{
    find,
    protocol::{Link, Message, Parcel},
    shortcuts::Shortcuts,
    snapshot::FlowSnapshot,
};
use crate::{CarriedOn, link};

/// The most engines whose flows are held, one for each agent that has ended and left some. Each has
/// hooks on the cgroup, of which the kernel allows 64. A flow of a further engine ends with its
/// agent.
const MAX_ENGINES: usize = 16;

/// The interval at which flows of an engine whose calls an agent reads are looked after as if they
/// had been called. They change hands as soon as the kernel carries them.
const CALL_EVERY: Duration = Duration::from_millis(20);

/// The time limit for a visitor's message, and for reading the answer.
const PATIENCE: Duration = Duration::from_secs(1);

/// The most visitors at the socket that have not sent a message yet.
const VISITORS: usize = 16;

/// The most changes of flows, a message each, that wait to be read; and the most flows that are
/// given away, with two descriptors more, before the agent has read of them.
const CHANGES: usize = 64;

/// A flow that is held.
pub(super) struct Held {
    pub(super) snapshot: FlowSnapshot,
    pub(super) hands: Hands,
}

/// The process that carries a flow.
pub(super) enum Hands {
    /// The agent, or the next agent.
    Agents { accepted: OwnedFd, dialled: OwnedFd },
    /// The keeper itself.
    Ours(Arc<Flow>),
}

pub(super) struct Engine {
    pub(super) descriptors: Vec<OwnedFd>,
    /// The engine's splices, once this process has carried a flow of it.
    pub(super) splices: Option<Splicer>,
    /// The task that reads the engine's calls, while no agent does.
    pub(super) reader: Option<AbortHandle>,
    /// Whether the agent knows the engine.
    pub(super) told: bool,
}

/// The outcome of carrying a flow in this process.
pub(super) type Change = (u64, io::Result<CarriedOn>);

/// A visitor at the socket, and its first message.
pub(super) type Visitor = (Link, Message);

pub(super) struct Keeping {
    pub(super) path: PathBuf,
    pub(super) version: String,
    pub(super) flows: HashMap<u64, Held>,
    pub(super) engines: HashMap<u32, Engine>,
    pub(super) agent: Option<Arc<Link>>,
    /// The agent's shortcut, and those of agents that are dead.
    pub(super) shortcuts: Shortcuts,
    /// The messages to the agent. The queue stays short: flows are given away only while it is, and
    /// each of the agent's own messages is answered by one.
    pub(super) to_tell: VecDeque<Parcel>,
    pub(super) next: u64,
    pub(super) metrics: Metrics,
    pub(super) changed: mpsc::Sender<Change>,
    /// The link of the visitor that has asked for the end of everything. The end of the link is the
    /// answer.
    pub(super) end: Option<Link>,
}

/// Runs until there is neither an agent nor a flow. The agent is at standard input.
///
/// # Errors
/// The keeper cannot begin.
pub fn run(control: &Path) -> anyhow::Result<ExitCode> {
    // A session of its own: Ctrl-C in the agent's terminal does not end the keeper. The call fails
    // only for a process that has a session of its own already.
    let _ = nix::unistd::setsid();
    // The name in `ps`; on a kernel without this file `ps` still has the command line.
    let _ = fs::write("/proc/self/comm", "underpass-keep");
    if let Some(late) = test_hooks::get().keeper_late {
        std::thread::sleep(late);
    }
    let agent = io::stdin().as_fd().try_clone_to_owned()?;
    nix::unistd::dup2_stdin(File::open("/dev/null")?)?;
    let path = find::path_of(control, std::process::id());
    std::env::set_current_dir("/")?;
    let runtime = runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let kept = runtime.block_on(async {
        let listener =
            link::bind_at(&path).with_context(|| format!("cannot listen at {}", path.display()))?;
        let listener = UnixListener::from_std(listener.into())?;
        let (changed, changes) = mpsc::channel(CHANGES);
        let keeping = Keeping {
            path: path.clone(),
            version: find::version(),
            flows: HashMap::new(),
            engines: HashMap::new(),
            agent: None,
            shortcuts: Shortcuts::default(),
            to_tell: VecDeque::new(),
            next: 0,
            metrics: Metrics::register(&Registry::new(), &flow::CloseReason::labels())?,
            changed,
            end: None,
        };
        keeping.keep(Link::new(agent)?, listener, changes).await
    });
    // Removed before the links are closed: a process that sees them close does not look for the
    // socket any more.
    let _ = fs::remove_file(&path);
    kept?;
    Ok(ExitCode::SUCCESS)
}

impl Keeping {
    async fn keep(
        mut self,
        first: Link,
        listener: UnixListener,
        mut changes: mpsc::Receiver<Change>,
    ) -> anyhow::Result<()> {
        let (came, mut visitors) = mpsc::channel(VISITORS);
        tokio::spawn(receive_visitors(listener, came));
        let hello = time::timeout(PATIENCE, first.receive()).await;
        if let Ok(Ok(None)) = hello {
            // The agent was stopped while it started this process: no flow was handed over yet, because the first
            // message on the link is Hello, and a flow comes behind it.
            tracing::debug!("the agent has gone before it said anything");
            let _ = fs::remove_file(&self.path);
            return Ok(());
        }
        anyhow::ensure!(
            matches!(hello, Ok(Ok(Some((Message::Hello { .. }, _))))),
            "this is the agent's to start: {hello:?}"
        );
        self.meet(first);
        let mut looking = time::interval(CALL_EVERY);
        // After days of sleep one tick is enough.
        looking.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while self.is_needed() {
            let agent = self.agent.clone();
            let calls = self.has_hands_full() && (self.agent.is_some() || self.is_deaf());
            tokio::select! {
                received = receive(agent.as_deref()) => match received {
                    Ok(Some(parcel)) => self.hear(parcel),
                    Ok(None) => self.agent_died(),
                    // The agent lives, and carries its flows.
                    Err(error) => {
                        tracing::error!(%error, "the agent cannot be heard");
                        time::sleep(CALL_EVERY).await;
                    }
                },
                sent = send(agent.as_deref(), self.to_tell.front()) => match sent {
                    Ok(()) => drop(self.to_tell.pop_front()),
                    // An agent that is gone shows as the end of the link. For want of memory,
                    // sending is tried again.
                    Err(error) => {
                        tracing::debug!(%error, "the agent cannot be told");
                        time::sleep(CALL_EVERY).await;
                    }
                },
                Some(change) = changes.recv(), if self.to_tell.len() < CHANGES => {
                    self.change(change);
                }
                Some(visitor) = visitors.recv() => self.welcome(visitor).await,
                _ = looking.tick(), if calls => self.call_all(),
                () = self.shortcuts.due() => self.shortcuts.look(),
            }
        }
        let _ = fs::remove_file(&self.path);
        Ok(())
    }

    /// Takes an agent, and gives it the flows that the kernel carries.
    fn meet(&mut self, link: Link) {
        self.agent = Some(Arc::new(link));
        let version = self.version.clone();
        self.tell(Message::Hello { version }, Vec::new());
        for engine in self.engines.values_mut() {
            engine.told = false;
            if let Some(reader) = engine.reader.take() {
                reader.abort();
            }
        }
        for held in self.flows.values_mut() {
            if let Hands::Ours(flow) = &held.hands {
                flow.give();
            }
        }
    }

    /// Whether there is an agent, or somebody who outlives it. Sockets on the shortcut go on when nobody looks after
    /// them: they do not keep a process that is told to end.
    fn is_needed(&self) -> bool {
        let has_orphans = !self.shortcuts.has_no_orphans() && self.end.is_none();
        self.agent.is_some() || !self.flows.is_empty() || has_orphans
    }

    pub(super) fn tell(&mut self, message: Message, fds: Vec<OwnedFd>) {
        if self.agent.is_some() {
            self.to_tell.push_back((message, fds));
        }
    }

    fn hear(&mut self, (message, fds): Parcel) {
        match message {
            Message::Engine { engine } => {
                if self.engines.len() < MAX_ENGINES || self.engines.contains_key(&engine) {
                    self.engines.insert(
                        engine,
                        Engine {
                            descriptors: fds,
                            splices: None,
                            reader: None,
                            told: true,
                        },
                    );
                } else {
                    tracing::warn!("{MAX_ENGINES} agents before have left flows");
                }
            }
            Message::Shortcut => match ShortcutReaders::adopt(fds) {
                Ok(shortcut) => self.shortcuts.take(shortcut),
                Err(error) => tracing::warn!(%error, "a shortcut cannot be looked after"),
            },
            Message::Keep(snapshot) => self.hold(*snapshot, fds),
            Message::Drop { id } => {
                self.flows.remove(&id);
                self.sweep();
            }
            // The flow stays with this process while this agent lives.
            Message::Return { id } => {
                self.take_up(id);
                self.sweep();
            }
            other => tracing::warn!(?other, "the agent says what a keeper does not know"),
        }
    }

    fn hold(&mut self, snapshot: FlowSnapshot, fds: Vec<OwnedFd>) {
        let id = snapshot.id;
        let known = self.engines.contains_key(&snapshot.engine);
        let mut fds = fds.into_iter();
        match (fds.next(), fds.next()) {
            (Some(accepted), Some(dialled)) if known => {
                let hands = Hands::Agents { accepted, dialled };
                self.flows.insert(id, Held { snapshot, hands });
            }
            (Some(_), Some(_)) => {
                let why = format!("flows of {MAX_ENGINES} agents before are held already");
                self.tell(Message::Refused { id, why }, Vec::new());
            }
            _ => {
                let why = "it has as many descriptors as it may".into();
                self.tell(Message::Refused { id, why }, Vec::new());
            }
        }
    }

    /// Goes on with the flows that the kernel carries. The others are closed, because bytes of
    /// theirs have died with the agent.
    fn agent_died(&mut self) {
        self.agent = None;
        self.to_tell.clear();
        self.shortcuts.agent_died();
        let held = self.flows.iter();
        let orphans: Vec<u64> = held
            .filter(|(_, held)| matches!(held.hands, Hands::Agents { .. }))
            .map(|(id, _)| *id)
            .collect();
        let before = orphans.len();
        for id in orphans {
            self.take_up(id);
        }
        for held in self.flows.values_mut() {
            if let Hands::Ours(flow) = &held.hands {
                flow.do_not_give();
            }
        }
        let numbers: Vec<u32> = self.engines.keys().copied().collect();
        for number in numbers {
            self.read_calls(number);
        }
        self.sweep();
        let flows = self.flows.len();
        tracing::info!(before, flows, "the agent has gone; what rode goes on");
    }

    /// Drops the engines whose last flow has ended, unless they are the agent's own.
    pub(super) fn sweep(&mut self) {
        let used = |number| {
            self.flows
                .values()
                .any(|held| held.snapshot.engine == number)
        };
        let (agent, mut gone) = (self.agent.is_some(), Vec::new());
        for (number, engine) in &self.engines {
            let own = agent && engine.splices.is_none();
            if !own && !used(*number) {
                gone.push(*number);
            }
        }
        for number in gone {
            let engine = self.engines.remove(&number);
            if let Some(engine) = engine {
                if let Some(reader) = engine.reader {
                    reader.abort();
                }
                if engine.told {
                    self.tell(Message::Gone { engine: number }, Vec::new());
                }
            }
        }
    }

    /// Whether nobody reads the calls of an engine of which this process carries flows.
    fn is_deaf(&self) -> bool {
        self.engines.values().any(|engine| {
            let is_read = engine.reader.as_ref().is_some_and(|r| !r.is_finished());
            engine.splices.is_some() && !is_read
        })
    }

    fn has_hands_full(&self) -> bool {
        let mut held = self.flows.values();
        held.any(|held| matches!(held.hands, Hands::Ours(_)))
    }

    fn call_all(&self) {
        for engine in self.engines.values() {
            if let Some(splices) = &engine.splices {
                splices.call_all();
            }
        }
    }

    async fn welcome(&mut self, (link, message): Visitor) {
        let answer = match message {
            Message::Hello { .. } if self.agent.is_some() => Message::Busy,
            Message::Hello { version } if version == self.version => return self.meet(link),
            Message::Hello { .. } => Message::Hello {
                version: self.version.clone(),
            },
            Message::End if self.agent.is_some() => Message::Busy,
            Message::End => {
                self.close_all();
                self.end = Some(link);
                return;
            }
            _ => Message::State {
                version: self.version.clone(),
                pid: std::process::id(),
                flows: self.flows.len(),
                has_agent: self.agent.is_some(),
            },
        };
        // A visitor that does not read is not waited for.
        let _ = time::timeout(PATIENCE, link.send(&(answer, Vec::new()))).await;
    }

    fn close_all(&self) {
        for held in self.flows.values() {
            if let Hands::Ours(flow) = &held.hands {
                // Nobody waits for the answer.
                drop(flow.commands.post(FlowCommand {
                    action: Action::Deny,
                    by: RuleName::new("detach"),
                    reset: true,
                    ask: None,
                    closing: None,
                }));
            }
        }
    }
}

/// Reads each visitor's first message, one visitor after the other.
async fn receive_visitors(listener: UnixListener, came: mpsc::Sender<Visitor>) {
    loop {
        let Ok((socket, _)) = listener.accept().await else {
            // Descriptors are missing; one may be free soon.
            time::sleep(CALL_EVERY).await;
            continue;
        };
        let link = socket.into_std().map(OwnedFd::from).and_then(Link::new);
        let Ok(link) = link else {
            continue;
        };
        if let Ok(Ok(Some((message, _)))) = time::timeout(PATIENCE, link.receive()).await
            && came.send((link, message)).await.is_err()
        {
            return;
        }
    }
}

async fn receive(agent: Option<&Link>) -> io::Result<Option<Parcel>> {
    match agent {
        Some(link) => link.receive().await,
        None => std::future::pending().await,
    }
}

async fn send(agent: Option<&Link>, parcel: Option<&Parcel>) -> io::Result<()> {
    match (agent, parcel) {
        (Some(link), Some(parcel)) => link.send(parcel).await,
        _ => std::future::pending().await,
    }
}
