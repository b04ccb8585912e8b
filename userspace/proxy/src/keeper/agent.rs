//! The agent's side of the keeper: has it hold flows, and adopts the flows that it has.

use std::{
    collections::{HashMap, HashSet},
    io,
    os::fd::{BorrowedFd, OwnedFd},
    path::Path,
    sync::{
        Arc,
        atomic::{
            AtomicBool, AtomicU32, AtomicUsize,
            Ordering::{Relaxed, SeqCst},
        },
    },
    thread,
    time::Duration,
};

use dataplane::Splicer;
use parking_lot::{Mutex, MutexGuard};
use telemetry::{Metrics, Rarely};
use tokio::{runtime, sync::mpsc, task::AbortHandle, time};

use super::{
    meet::{Met, Wanted, meet},
    protocol::{Link, Message, Parcel, cloned},
    snapshot::FlowSnapshot,
};

/// The most flows that wait to be sent to the keeper, each with two descriptors more. Sending one
/// takes microseconds; further flows are kept later.
pub const WAITING: usize = 128;

/// The time limit, when the agent ends, for the keeper to get what it is to have: many times what a process takes to
/// begin, and less than service managers wait.
const SETTLE_LIMIT: Duration = Duration::from_secs(5);
/// The interval at which that is looked at.
const SETTLE_LOOK: Duration = Duration::from_millis(2);

/// The pause after a keeper could not be heard or told.
const BUSY_PAUSE: Duration = Duration::from_millis(100);

/// The pause after no keeper could be had, as for want of descriptors, or one has ended.
const MEET_AGAIN_AFTER: Duration = Duration::from_secs(1);

/// Lines about that, and about messages of a keeper that cannot be received.
static NOT_MET: Rarely = Rarely::failing();
static UNHEARD: Rarely = Rarely::failing();

/// A flow that the keeper gives to this agent.
pub struct Adopted {
    /// The flow's state when it was enrolled.
    pub snapshot: FlowSnapshot,
    /// The engine that carries the flow.
    pub splices: Splicer,
    /// The agent's end of the client's connection.
    pub accepted: OwnedFd,
    /// The agent's end of the database's connection.
    pub dialled: OwnedFd,
    /// The hold on the keeper, which has the sockets, too.
    pub kept: Kept,
}

/// The keeper that this agent uses. Cloned freely.
#[derive(Clone)]
pub struct Keeper(Arc<Inner>);

struct Inner {
    /// The messages to the keeper. Bounded: a flow is sent once, if few are waiting, and dropped
    /// once.
    queue: mpsc::UnboundedSender<Parcel>,
    waiting: AtomicUsize,
    /// Set while no keeper can be had, or one has died.
    gone: AtomicBool,
    /// The keepers that this agent has lost so far.
    lost: AtomicU32,
    /// Set when the agent ends: its flows are the keeper's from then on.
    left: AtomicBool,
    kept: Mutex<HashSet<u64>>,
    /// The engines: this agent's own, and those of flows that it has adopted.
    engines: Mutex<HashMap<u32, Engine>>,
    /// The shortcut's descriptors, once it is open.
    shortcut: Mutex<Option<Vec<OwnedFd>>>,
    metrics: Metrics,
}

struct Engine {
    splices: Splicer,
    /// The task that reads the calls of an adopted engine.
    reader: Option<AbortHandle>,
}

impl Engine {
    /// Returns the message to a keeper that is to know this engine.
    fn told(&self, engine: u32) -> io::Result<Parcel> {
        let descriptors = self.splices.descriptors();
        let descriptors = descriptors.map(|fd| fd.try_clone_to_owned());
        Ok((
            Message::Engine { engine },
            descriptors.collect::<io::Result<_>>()?,
        ))
    }
}

/// The hold on a flow: the keeper has the flow's sockets until this is dropped.
pub struct Kept {
    id: u64,
    keeper: Keeper,
    returned: bool,
}

/// The reason why a flow is not kept: whether it is worth asking again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotKept {
    /// Worth asking again, when other flows have been sent.
    ForNow,
    /// Not worth asking before there is another keeper.
    NoKeeper,
}

impl Kept {
    /// Returns the number of the keeper that holds it, if that one lives.
    pub fn by(&self) -> Option<u32> {
        self.keeper.number()
    }

    /// Gives the flow back to the keeper: this agent does not carry it.
    pub fn give_back(mut self) {
        self.returned = true;
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        let id = self.id;
        let inner = &self.keeper.0;
        if inner.left.load(SeqCst) {
            return;
        }
        inner.forget(id);
        let message = match self.returned {
            true => Message::Return { id },
            false => Message::Drop { id },
        };
        // An error means that nobody is there to be told.
        let _ = inner.queue.send((message, Vec::new()));
    }
}

impl Keeper {
    /// Finds a keeper next to the control socket within `limit`, or starts one, with the format of this agent's log.
    /// `adopted` gets the flows that it has.
    ///
    /// # Errors
    /// No thread can be started for it.
    pub fn start(
        control: &Path,
        limit: Duration,
        log_format: &'static str,
        metrics: &Metrics,
        adopted: mpsc::UnboundedSender<Adopted>,
    ) -> io::Result<Self> {
        let (queue, queued) = mpsc::unbounded_channel();
        let keeper = Self(Arc::new(Inner {
            queue,
            waiting: AtomicUsize::new(0),
            gone: AtomicBool::new(false),
            lost: AtomicU32::new(0),
            left: AtomicBool::new(false),
            kept: Mutex::default(),
            engines: Mutex::default(),
            shortcut: Mutex::default(),
            metrics: metrics.clone(),
        }));
        let runtime = runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let (wanted, task) = (
            Wanted {
                control: control.to_owned(),
                limit,
                log_format,
            },
            keeper.clone(),
        );
        thread::Builder::new()
            .name("keeper".into())
            .spawn(move || {
                runtime.block_on(talk(&task, &wanted, queued, &adopted));
                // Adopted flows need a task that reads their engine's calls.
                runtime.block_on(std::future::pending::<()>());
            })?;
        Ok(keeper)
    }

    /// Gives the keeper this agent's own engine.
    pub fn has(&self, splices: &Splicer) {
        let own = Engine {
            splices: splices.clone(),
            reader: None,
        };
        let told = own.told(splices.number());
        self.0.engines().insert(splices.number(), own);
        self.tell(told);
    }

    /// Gives the keeper the shortcut: the descriptors of [`ShortcutReaders`](dataplane::shortcut::ShortcutReaders).
    pub fn keep_shortcut(&self, descriptors: Vec<OwnedFd>) {
        let told = cloned(&descriptors).map(|fds| (Message::Shortcut, fds));
        *self.0.shortcut.lock() = Some(descriptors);
        self.tell(told);
    }

    fn tell(&self, parcel: io::Result<Parcel>) {
        match parcel {
            // An error means that nobody is there to be told.
            Ok(parcel) => drop(self.0.queue.send(parcel)),
            Err(error) => tracing::warn!(%error, "flows cannot be kept"),
        }
    }

    /// Returns the number of the keeper that there is. None without one.
    pub fn number(&self) -> Option<u32> {
        let lost = self.0.lost.load(SeqCst);
        (!self.0.gone.load(SeqCst)).then_some(lost)
    }

    /// Gives a flow to the keeper, so that it outlives this agent. Must not be called while the
    /// kernel carries it.
    ///
    /// # Errors
    /// The flow cannot be kept; that is counted.
    pub fn keep(
        &self,
        snapshot: FlowSnapshot,
        accepted: BorrowedFd<'_>,
        dialled: BorrowedFd<'_>,
    ) -> Result<Kept, NotKept> {
        let inner = &self.0;
        let id = snapshot.id;
        if inner.gone.load(Relaxed) {
            inner.not_kept("no_keeper");
            return Err(NotKept::NoKeeper);
        }
        if inner.waiting.fetch_add(1, SeqCst) >= WAITING {
            inner.waiting.fetch_sub(1, SeqCst);
            inner.not_kept("busy");
            return Err(NotKept::ForNow);
        }
        let Ok(sockets) = cloned(&[accepted, dialled]) else {
            inner.waiting.fetch_sub(1, SeqCst);
            inner.not_kept("descriptors");
            return Err(NotKept::ForNow);
        };
        let kept = self.kept(id);
        let parcel = (Message::Keep(Box::new(snapshot)), sockets);
        // An error means that nobody is there to be told.
        let _ = inner.queue.send(parcel);
        Ok(kept)
    }

    fn kept(&self, id: u64) -> Kept {
        self.0.note(|kept| {
            kept.insert(id);
        });
        Kept {
            id,
            keeper: self.clone(),
            returned: false,
        }
    }

    /// Counts the flows that the keeper has, and those that wait to be sent to it.
    pub fn kept_flows(&self) -> usize {
        self.0.kept.lock().len()
    }

    /// Leaves the flows that the kernel carries to the keeper, because this agent ends.
    pub fn leave(&self) {
        if self.0.gone.load(SeqCst) {
            return;
        }
        self.0.left.store(true, SeqCst);
        for engine in self.0.engines().values() {
            engine.splices.leave();
        }
    }

    /// Waits until the keeper has every flow that was given to it: it may not have begun yet. To be called after
    /// [`Self::leave`], before this process ends. Flows that it does not get in time end with this agent.
    pub async fn settle(&self) {
        let inner = &self.0;
        let got_all = async {
            while inner.waiting.load(SeqCst) > 0 && !inner.gone.load(SeqCst) {
                time::sleep(SETTLE_LOOK).await;
            }
        };
        if time::timeout(SETTLE_LIMIT, got_all).await.is_err() {
            let flows = inner.waiting.load(SeqCst);
            tracing::warn!(
                flows,
                "the keeper does not take flows in time: they end with this agent"
            );
        }
    }
}

impl Inner {
    fn note(&self, change: impl FnOnce(&mut HashSet<u64>)) {
        let mut kept = self.kept.lock();
        change(&mut kept);
        self.metrics.keeper.kept.set(kept.len() as i64);
    }

    fn forget(&self, id: u64) {
        self.note(|kept| {
            kept.remove(&id);
        });
    }

    fn not_kept(&self, reason: &'static str) {
        let counter = &self.metrics.keeper.not_kept;
        counter.with_label_values(&[reason]).inc();
    }

    /// Notes that there is no keeper.
    fn note_gone(&self) {
        if !self.gone.swap(true, SeqCst) {
            self.lost.fetch_add(1, SeqCst);
        }
        self.note(HashSet::clear);
    }

    /// Lists all that a keeper is to know before it gets flows.
    fn all_told(&self) -> io::Result<Vec<Parcel>> {
        let engines = self.engines();
        let engines = engines.iter().map(|(number, engine)| engine.told(*number));
        let mut told: Vec<Parcel> = engines.collect::<io::Result<_>>()?;
        if let Some(descriptors) = &*self.shortcut.lock() {
            told.push((Message::Shortcut, cloned(descriptors)?));
        }
        Ok(told)
    }

    fn engines(&self) -> MutexGuard<'_, HashMap<u32, Engine>> {
        self.engines.lock()
    }
}

/// Talks with one keeper after the other, until this agent ends.
async fn talk(
    keeper: &Keeper,
    wanted: &Wanted,
    mut queued: mpsc::UnboundedReceiver<Parcel>,
    adopted: &mpsc::UnboundedSender<Adopted>,
) {
    let mut next: Option<Parcel> = None;
    loop {
        let mut met = meet_at_last(keeper, wanted).await;
        talk_with(keeper, &met.link, (&mut queued, &mut next), adopted).await;
        keeper.0.note_gone();
        if let Some(child) = &mut met.child {
            // The keeper has closed its end of the link: it ends, or has ended.
            let _ = child.wait();
        }
        met.open.close();
        if keeper.0.left.load(SeqCst) {
            return;
        }
        keeper.0.metrics.keeper.ended.inc();
        tracing::warn!(
            "the keeper has ended: another one is asked for, and spliced flows end with this agent until it has them"
        );
        time::sleep(MEET_AGAIN_AFTER).await;
    }
}

/// Talks with a keeper until it has gone. `next` has been taken from the queue, and is not sent yet.
async fn talk_with(
    keeper: &Keeper,
    link: &Link,
    (queued, next): (&mut mpsc::UnboundedReceiver<Parcel>, &mut Option<Parcel>),
    adopted: &mpsc::UnboundedSender<Adopted>,
) {
    // Sends and receives at the same time: two processes that wait for each other to read would
    // wait for ever.
    loop {
        tokio::select! {
            received = link.receive() => match received {
                Ok(Some(parcel)) => hear(keeper, parcel, adopted),
                Ok(None) => return,
                // The keeper lives, and gives flows.
                Err(error) => {
                    UNHEARD.say(|not_said_before| {
                        tracing::error!(%error, not_said_before, "the keeper cannot be heard");
                    });
                    time::sleep(BUSY_PAUSE).await;
                }
            },
            Some(parcel) = queued.recv(), if next.is_none() => *next = Some(parcel),
            sent = send(link, next), if next.is_some() => match sent {
                Ok(()) => match next.take() {
                    Some((Message::Keep(_), _)) => {
                        keeper.0.waiting.fetch_sub(1, SeqCst);
                    }
                    Some((Message::Shortcut, _)) => {
                        tracing::info!("the keeper has the shortcut's sockets");
                    }
                    _ => {}
                },
                // A keeper that is gone shows as the end of the link. For want of memory, sending
                // is tried again.
                Err(error) => {
                    tracing::debug!(%error, "the keeper cannot be told");
                    time::sleep(BUSY_PAUSE).await;
                }
            }
        }
    }
}

async fn send(link: &Link, parcel: &Option<Parcel>) -> io::Result<()> {
    match parcel {
        Some(parcel) => link.send(parcel).await,
        None => Ok(()),
    }
}

fn hear(keeper: &Keeper, (message, fds): Parcel, adopted: &mpsc::UnboundedSender<Adopted>) {
    match message {
        Message::Engine { engine } => match Splicer::adopt(fds) {
            Ok((splices, calls)) => {
                let reader = tokio::spawn(async move {
                    if let Err(error) = calls.run().await {
                        tracing::error!(engine, %error, "adopted flows are not called any more");
                    }
                });
                let reader = Some(reader.abort_handle());
                keeper
                    .0
                    .engines()
                    .insert(engine, Engine { splices, reader });
            }
            Err(error) => tracing::error!(engine, %error, "an engine cannot be adopted"),
        },
        Message::Gone { engine } => {
            let gone = keeper.0.engines().remove(&engine);
            if let Some(reader) = gone.and_then(|engine| engine.reader) {
                reader.abort();
            }
        }
        Message::Keep(snapshot) => {
            let kept = keeper.kept(snapshot.id);
            let engines = keeper.0.engines();
            let splices = engines.get(&snapshot.engine).map(|e| e.splices.clone());
            drop(engines);
            let mut fds = fds.into_iter();
            match (splices, fds.next(), fds.next()) {
                (Some(splices), Some(accepted), Some(dialled)) => {
                    let flow = Adopted {
                        snapshot: *snapshot,
                        splices,
                        accepted,
                        dialled,
                        kept,
                    };
                    if let Err(unheard) = adopted.send(flow) {
                        unheard.0.kept.give_back();
                    }
                }
                // This process has too few descriptors.
                _ => kept.give_back(),
            }
        }
        Message::Refused { id, why } => {
            keeper.0.forget(id);
            keeper.0.not_kept("refused");
            tracing::warn!(why, "the keeper does not hold a flow");
        }
        other => tracing::warn!(?other, "the keeper says what an agent does not know"),
    }
}

/// Meets a keeper, however often that fails. Flows are not kept meanwhile.
async fn meet_at_last(keeper: &Keeper, wanted: &Wanted) -> Met {
    loop {
        match meet_and_tell(keeper, wanted).await {
            Ok(met) => {
                keeper.0.gone.store(false, SeqCst);
                return met;
            }
            Err(error) => NOT_MET.say(|not_said_before| {
                tracing::warn!(
                    error = format!("{error:#}"),
                    not_said_before,
                    "no keeper can be had, and is asked for every second: flows that are spliced until then end with this agent"
                );
            }),
        }
        keeper.0.note_gone();
        time::sleep(MEET_AGAIN_AFTER).await;
    }
}

/// Meets a keeper. A further one is told what the one before knew, but for flows, which come by themselves.
async fn meet_and_tell(keeper: &Keeper, wanted: &Wanted) -> anyhow::Result<Met> {
    let told = match keeper.0.lost.load(SeqCst) {
        0 => Vec::new(),
        _ => keeper.0.all_told()?,
    };
    let met = meet(wanted).await?;
    for parcel in &told {
        // An error means that it is gone again, which the end of the link tells.
        let _ = met.link.send(parcel).await;
    }
    Ok(met)
}
