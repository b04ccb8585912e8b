//! Short legs: the connection between an application on this host and the agent skips TCP, as one on the
//! shortcut does. `ebpf/src/legs.h` is the kernel's half; [`crate::shortcut`] has the bounds and looks after
//! readers.

use std::{
    collections::HashMap,
    fmt, io,
    os::fd::{AsFd, OwnedFd},
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering::Relaxed},
    },
    task::{Context, Poll, Waker},
};

use ebpf::abi;
use socket2::SockRef;
use thiserror::Error;

use crate::{
    address::{self, SockCookie},
    sock_diag,
    splice::cookie,
    sys,
};

/// The side of a flow that a leg leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LegSide {
    /// The client's.
    Client,
    /// The database's.
    Database,
}

impl fmt::Display for LegSide {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Client => "client",
            Self::Database => "database",
        })
    }
}

/// Why a leg stays long.
#[derive(Debug, Error)]
pub enum LongLeg {
    /// The shortcut has not passed its canary, or is not open yet.
    #[error("the shortcut is off")]
    Off,
    /// The application is on another host, or in another network namespace than the agent.
    #[error("its application is not in the agent's network namespace")]
    Elsewhere,
    /// The application's socket blocks. In a sockmap a `recv()` that waits may wait for ever, or return EAGAIN.
    #[error("its application's socket blocks (it is not O_NONBLOCK)")]
    Blocks,
    /// The connection speaks TLS, which its socket may be told to do in the kernel at any time.
    #[error("it speaks TLS")]
    Tls,
    /// One of the sockets is closing, or is another connection's.
    #[error("its sockets are closing")]
    Gone,
    /// One of the sockets is in a sockmap already, or speaks kernel TLS.
    #[error("a socket of its is in a sockmap already, or speaks kernel TLS: {0}")]
    Taken(io::Error),
    /// The table of sockets on the shortcut is full.
    #[error("as many sockets are on the shortcut as can be")]
    Full,
    /// The kernel.
    #[error("the kernel refuses: {0}")]
    Kernel(io::Error),
}

impl LongLeg {
    /// The reason as a metric's label.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Elsewhere => "elsewhere",
            Self::Blocks => "blocks",
            Self::Tls => "tls",
            Self::Gone => "gone",
            Self::Taken(_) => "taken",
            Self::Full => "full",
            Self::Kernel(_) => "kernel",
        }
    }

    /// Every label.
    pub const LABELS: [&'static str; 8] = [
        "off",
        "elsewhere",
        "blocks",
        "tls",
        "gone",
        "taken",
        "full",
        "kernel",
    ];

    fn of(answer: abi::LegAnswer) -> Option<Self> {
        let error = || io::Error::from_raw_os_error(answer.error.cast_signed());
        match answer.refusal {
            abi::LEG_IN => None,
            abi::LEG_GONE => Some(Self::Gone),
            abi::LEG_BLOCKS => Some(Self::Blocks),
            abi::LEG_TAKEN => Some(Self::Taken(error())),
            abi::LEG_FULL => Some(Self::Full),
            other => Some(Self::Kernel(io::Error::other(format!("answer {other}")))),
        }
    }
}

/// The agent's way to shorten legs. Cloned freely.
#[derive(Clone, Default)]
pub struct Legs(Arc<Shared>);

#[derive(Default)]
struct Shared {
    /// `leg_look`, once the shortcut is open.
    look: OnceLock<OwnedFd>,
    /// Whether legs may be shortened. False: the shortcut is not open yet, or was closed.
    is_open: AtomicBool,
    /// Legs that are in, by the cookies of both their sockets.
    states: Mutex<HashMap<u64, Arc<State>>>,
    /// Legs that have ended, and whose applications had something to read then, or did not know of the end. As many as sockets of applications
    /// fit into the kernel's table.
    lingering: Mutex<Vec<abi::LegQuestion>>,
    /// How many legs have left the sockmap for want of memory.
    without_memory: AtomicU64,
}

/// The state of a leg that is in, or was.
#[derive(Debug, Default)]
struct State {
    /// The ends that have left the sockmap.
    left: AtomicU8,
    /// Why the agent has had them leave, if it has.
    asked: OnceLock<LegLeft>,
    /// The task that waits for both ends to have left.
    waits: Mutex<Option<Waker>>,
}

impl Legs {
    /// Opens the way, with `leg_look`.
    pub(crate) fn open(&self, look: OwnedFd) {
        // Nobody else sets it.
        let _ = self.0.look.set(look);
        self.0.is_open.store(true, Relaxed);
    }

    /// Closes the way, with the shortcut: nobody would look after a leg. It can be opened again.
    pub(crate) fn close(&self) {
        self.0.is_open.store(false, Relaxed);
    }

    /// The number of legs that are short.
    pub(crate) fn count(&self) -> usize {
        self.states().len() / 2
    }

    /// The number of legs that have left the sockmap for want of memory, since the agent began.
    pub(crate) fn without_memory(&self) -> u64 {
        self.0.without_memory.load(Relaxed)
    }

    /// Notes that the socket with this cookie has left the sockmap.
    pub(crate) fn note_left(&self, cookie: u64) {
        let Some(state) = self.states().remove(&cookie) else {
            return;
        };
        state.left.fetch_add(1, Relaxed);
        let waits = state
            .waits
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(waits) = waits {
            waits.wake();
        }
    }

    /// Shortens the leg between the agent's socket `own` and its application, whose socket has to be in this
    /// network namespace. Bytes that are under way in TCP come first, as ever.
    ///
    /// # Errors
    /// The leg stays as it is.
    pub fn enter(&self, own: SockRef<'_>, application: LegApplication) -> Result<Leg, LongLeg> {
        let is_open = self.0.is_open.load(Relaxed);
        let look = self.0.look.get().filter(|_| is_open).ok_or(LongLeg::Off)?;
        let address = |a: io::Result<socket2::SockAddr>| {
            a.map_err(|_| LongLeg::Gone)?
                .as_socket()
                .ok_or(LongLeg::Gone)
        };
        let (peer, local) = (address(own.peer_addr())?, address(own.local_addr())?);
        let app_cookie = match application {
            LegApplication::Client(cookie) => cookie.number(),
            LegApplication::Database => match sock_diag::cookie(peer, local) {
                Ok(Some(cookie)) => cookie,
                Ok(None) => return Err(LongLeg::Gone),
                Err(e) if e.kind() == io::ErrorKind::NotFound => return Err(LongLeg::Elsewhere),
                Err(e) => return Err(LongLeg::Kernel(e)),
            },
        };
        let question = abi::LegQuestion {
            app_cookie,
            own_cookie: cookie(&own).map_err(LongLeg::Kernel)?.number(),
            app: address::to_abi(peer),
            own: address::to_abi(local),
            ask: abi::LEG_ENTER,
            pad: 0,
        };
        let state = Arc::<State>::default();
        let keys = [question.app_cookie, question.own_cookie];
        // Before the sockets can leave.
        self.states().extend(keys.map(|key| (key, state.clone())));
        let leg = Leg {
            legs: self.clone(),
            question,
            state,
        };
        match ask(look, &question) {
            Ok(answer) => LongLeg::of(answer).map_or(Ok(leg), Err),
            Err(error) => Err(LongLeg::Kernel(error)),
        }
    }

    /// Forgets legs that have ended and whose applications had something to read then, or did not know of the end. To be called now and then.
    pub(crate) fn end_lingering(&self) {
        let lingering = std::mem::take(&mut *self.lingering());
        for question in &lingering {
            self.end(question);
        }
    }

    /// Forgets a leg whose socket of the agent's is closed.
    fn end(&self, question: &abi::LegQuestion) {
        let question = abi::LegQuestion {
            ask: abi::LEG_END,
            ..*question
        };
        let answer = self.ask(&question);
        if answer.is_some_and(|answer| answer.refusal == abi::LEG_LINGERS) {
            self.lingering().push(question);
        }
    }

    fn ask(&self, question: &abi::LegQuestion) -> Option<abi::LegAnswer> {
        let answer = ask(self.0.look.get()?, question);
        answer
            .inspect_err(|error| tracing::debug!(%error, "the kernel does not answer about a leg"))
            .ok()
    }

    fn lingering(&self) -> MutexGuard<'_, Vec<abi::LegQuestion>> {
        let lingering = self.0.lingering.lock();
        lingering.unwrap_or_else(PoisonError::into_inner)
    }

    fn states(&self) -> MutexGuard<'_, HashMap<u64, Arc<State>>> {
        self.0.states.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Legs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Legs").finish_non_exhaustive()
    }
}

/// The application at the other end of a leg, as its socket is found.
#[derive(Clone, Copy, Debug)]
pub enum LegApplication {
    /// A client, by its socket's number.
    Client(SockCookie),
    /// A database, by the addresses of its connection.
    Database,
}

/// A short leg. To be dropped when the agent's socket is closed: the application's leaves the sockmap then.
#[derive(Debug)]
pub struct Leg {
    legs: Legs,
    question: abi::LegQuestion,
    state: Arc<State>,
}

/// The state of a leg, for whoever tells of it.
#[derive(Clone, Debug)]
pub struct LegState(Arc<State>);

/// Why a leg that was short is long again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LegLeft {
    /// The agent took it back.
    TakenBack,
    /// The memory cgroup of the application's socket had no room for more bytes past TCP.
    NoMemory,
    /// A reader did not read on.
    Stalled,
}

impl LegState {
    /// Why the leg has left the sockmap, or is about to. None: it is short.
    pub fn left(&self) -> Option<LegLeft> {
        let stalled = || (self.0.left.load(Relaxed) > 0).then_some(LegLeft::Stalled);
        self.0.asked.get().copied().or_else(stalled)
    }
}

impl Leg {
    /// The leg's state.
    pub fn state(&self) -> LegState {
        LegState(self.state.clone())
    }

    /// Has both sockets leave the sockmap. From now on bytes take TCP.
    pub fn leave(&self) {
        self.leave_for(LegLeft::TakenBack);
    }

    /// Has both sockets leave the sockmap, unless they were asked to before. Returns whether they leave for this reason.
    fn leave_for(&self, why: LegLeft) -> bool {
        let is_first = self.state.asked.get().is_none();
        // A question that the kernel has not heard is asked again.
        is_first && self.ask(abi::LEG_LEAVE).is_some() && self.state.asked.set(why).is_ok()
    }

    /// Writes to the agent's socket by `write`. Where the memory cgroup of the application's socket has no room, TCP waits, and a
    /// sockmap refuses (ENOMEM): the leg takes TCP from then on, and so do these bytes.
    ///
    /// # Errors
    /// `write` fails, also by TCP.
    pub fn write(&self, mut write: impl FnMut() -> io::Result<usize>) -> io::Result<usize> {
        match write() {
            Err(error) if error.kind() == io::ErrorKind::OutOfMemory => {
                if self.leave_for(LegLeft::NoMemory) {
                    self.legs.0.without_memory.fetch_add(1, Relaxed);
                }
                write()
            }
            done => done,
        }
    }

    fn ask(&self, what: u32) -> Option<abi::LegAnswer> {
        let question = abi::LegQuestion {
            ask: what,
            ..self.question
        };
        self.legs.ask(&question)
    }

    /// Ready when both sockets have left the sockmap.
    pub fn poll_left(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut waits = self
            .state
            .waits
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if self.state.left.load(Relaxed) >= 2 {
            return Poll::Ready(());
        }
        *waits = Some(cx.waker().clone());
        Poll::Pending
    }
}

impl Drop for Leg {
    fn drop(&mut self) {
        self.legs.end(&self.question);
        let mut states = self.legs.states();
        states.remove(&self.question.app_cookie);
        states.remove(&self.question.own_cookie);
    }
}

fn ask(look: &OwnedFd, question: &abi::LegQuestion) -> io::Result<abi::LegAnswer> {
    let mut out = [0; size_of::<abi::LegQuestion>()];
    let ran = sys::run_program(look.as_fd(), sys::bytes::of(question), &mut out)?;
    let answer = sys::bytes::read::<abi::LegAnswer>(&out);
    answer
        .filter(|_| ran == 0)
        .ok_or_else(|| io::Error::other("leg_look failed"))
}
