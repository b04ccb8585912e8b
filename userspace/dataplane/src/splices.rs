//! Flows that the kernel carries past the agent: `ebpf/src/splice.bpf.c` tells how.
//!
//! A [`Splice`] is one flow's. Its owner tells how many bytes it has read and written itself
//! ([`Position`]), which is all that the kernel needs to know when the fast road is free; what
//! must wait for the kernel before the owner may write is [`Splice::is_drained`].

pub(crate) mod adopt;

use std::{
    collections::{HashMap, VecDeque},
    io,
    os::fd::{AsFd, OwnedFd},
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, atomic::AtomicBool},
    time::{Duration, Instant},
};

use aya::{
    Ebpf,
    maps::{HashMap as BpfHashMap, MapData, MapError, RingBuf, SockHash},
    programs::{SchedClassifier, SkMsg, SkSkb},
};
use ebpf::abi;
use nix::sys::socket::{setsockopt, sockopt};
use socket2::SockRef;
use tokio::{io::unix::AsyncFd, sync::Notify};

use crate::{
    address::{self, SockCookie},
    attach::{AttachError, program, refused},
    listeners::Mark,
    load,
    maps::MapsError,
    places::Places,
    splice_refusal::SpliceRefusal,
    sys::{self, Shared},
};

/// The dialled socket's send buffer, of which the kernel makes twice as much: twice what may be
/// queued there by redirection, so that an application's message never finds it full.
const SEND_BUFFER_BYTES: usize = abi::SPLICE_BYTES as usize;

/// What the agent itself has moved, all of it written on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Position {
    /// Bytes read from the client since the flow began.
    pub from_client: u64,
    /// Bytes read from the database since the flow was enrolled.
    pub from_database: u64,
    /// Bytes written to the client since the flow was enrolled.
    pub to_client: u64,
}

/// What the kernel has moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// Bytes to the database.
    pub up: u64,
    /// Bytes to the client.
    pub down: u64,
    /// Bytes from the database that were passed up to the agent.
    pub passed: u64,
    /// Times that bytes had to go through the agent because the database did not take them.
    pub up_spills: u64,
    /// And because the client did not.
    pub down_spills: u64,
    /// Bytes of the database's were lost on the way, and none passes any more.
    pub torn: bool,
}

impl Moved {
    fn of(s: &abi::Splice) -> Self {
        Self {
            up: s.up_redirected,
            down: s.down_redirected,
            passed: s.down_passed,
            up_spills: s.up_spills,
            down_spills: s.down_spills,
            torn: s.torn != 0,
        }
    }
}

/// The way from the database to the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Down {
    /// Into the client's own socket, past TCP. Faster, and needs a kernel that tells what the
    /// client has not read.
    Ingress,
    /// Into the stream of the agent's accepted socket, whose acknowledgements tell it.
    Egress,
}

/// The kernel's way to carry flows. Cloned freely.
#[derive(Clone)]
pub struct Splices {
    engine: Arc<Engine>,
    down: Down,
}

struct Engine {
    /// No other has it.
    number: u32,
    /// `splice_look`, by a descriptor of its own: who works on the other programs does not hold up
    /// flows.
    look: OwnedFd,
    /// Of the agent whose hooks leave its own sockets alone.
    mark: Option<Mark>,
    maps: Mutex<Maps>,
    callers: Mutex<HashMap<u64, Arc<Notify>>>,
    /// The programs, where nobody else keeps them: dropped, they would leave the maps.
    programs: OnceLock<Ebpf>,
    /// With which another process can go on (`adopt.rs`).
    descriptors: Vec<OwnedFd>,
    hooks: OnceLock<Vec<OwnedFd>>,
    left: AtomicBool,
    /// Dropped, sockets would leave the maps.
    _sockets: [SockHash<MapData, u64>; 3],
}

struct Maps {
    orders: BpfHashMap<MapData, u64, Shared<abi::SpliceSlot>>,
    splices: BpfHashMap<MapData, u64, Shared<abi::Splice>>,
    /// Entries of `splices` that are forgotten, the oldest first.
    fallow: VecDeque<(Instant, u64)>,
}

/// The kernel gives a removed entry to the next flow at once, though a program may still write to it:
/// longer than any program runs, also one that has to wait for a processor.
const FALLOW: Duration = Duration::from_secs(1);

impl Maps {
    /// Removes what has lain for long enough.
    fn clear(&mut self) {
        while let Some((since, id)) = self.fallow.front().copied() {
            if since.elapsed() < FALLOW {
                return;
            }
            self.fallow.pop_front();
            forgotten(self.splices.remove(&id));
        }
    }
}

fn forgotten(removed: Result<(), MapError>) {
    match removed {
        Ok(()) | Err(MapError::KeyNotFound) => {}
        Err(error) => tracing::debug!(%error, "a splice that was forgotten already"),
    }
}

/// What the object has for it.
pub(crate) struct SpliceMaps {
    pub clients: SockHash<MapData, u64>,
    pub accepteds: SockHash<MapData, u64>,
    pub upstreams: SockHash<MapData, u64>,
    pub orders: BpfHashMap<MapData, u64, Shared<abi::SpliceSlot>>,
    pub splices: BpfHashMap<MapData, u64, Shared<abi::Splice>>,
    pub calls: RingBuf<MapData>,
    /// Of all of them.
    pub descriptors: Vec<OwnedFd>,
}

/// Calls from the kernel: a flow has bytes for the agent.
pub struct Calls {
    ring: RingBuf<MapData>,
    engine: Arc<Engine>,
}

impl Splices {
    /// Loads the programs and binds them to their maps, before any socket is in those.
    pub(crate) fn load(
        ebpf: &mut Ebpf,
        maps: SpliceMaps,
        mark: Option<Mark>,
    ) -> Result<(Self, Calls), AttachError> {
        let look = {
            let name = "splice_up";
            let up: &mut SkMsg = program(ebpf, name)?;
            up.load().map_err(refused(name))?;
            up.attach(maps.clients.fd()).map_err(refused(name))?;
            let name = "splice_down";
            let verdict: &mut SkSkb = program(ebpf, name)?;
            verdict.load().map_err(refused(name))?;
            verdict.attach(maps.upstreams.fd()).map_err(refused(name))?;
            let look: &mut SchedClassifier = program(ebpf, LOOK)?;
            look.load().map_err(refused(LOOK))?;
            let fd = look.fd().map_err(refused(LOOK))?.as_fd();
            fd.try_clone_to_owned().map_err(AttachError::Sockets)?
        };
        let number = adopt::number(&maps).map_err(|e| MapsError::Layout("clients", e))?;
        let mut descriptors = vec![look.try_clone().map_err(AttachError::Sockets)?];
        descriptors.extend(maps.descriptors);
        let engine = Arc::new(Engine {
            number,
            look,
            mark,
            maps: Mutex::new(Maps {
                orders: maps.orders,
                splices: maps.splices,
                fallow: VecDeque::new(),
            }),
            callers: Mutex::default(),
            programs: OnceLock::new(),
            descriptors,
            hooks: OnceLock::new(),
            left: AtomicBool::new(false),
            _sockets: [maps.clients, maps.accepteds, maps.upstreams],
        });
        let calls = Calls {
            ring: maps.calls,
            engine: engine.clone(),
        };
        let down = Down::Ingress;
        Ok((Self { engine, down }, calls))
    }

    /// An engine of its own, beside any agent's: for trying out what the kernel can do. Must run
    /// within a tokio runtime.
    ///
    /// # Errors
    /// The kernel does not take it.
    pub fn open() -> Result<(Self, Calls), AttachError> {
        let mut ebpf = load::load()?;
        let maps = SpliceMaps::take(&mut ebpf)?;
        let (splices, calls) = Self::load(&mut ebpf, maps, None)?;
        splices.engine.keep(ebpf);
        Ok((splices, calls))
    }

    /// Makes a socket one of the agent's own, which its hooks leave alone; to be done before it
    /// connects. An engine of its own ([`Self::open`]) has no hooks, and no mark.
    pub fn mark(&self, socket: SockRef<'_>) -> io::Result<()> {
        match self.engine.mark {
            Some(mark) => socket.set_mark(mark.0),
            None => Ok(()),
        }
    }

    /// The same, for flows that go this way.
    pub fn by(&self, down: Down) -> Self {
        Self {
            engine: self.engine.clone(),
            down,
        }
    }

    /// Enters the three sockets of a flow, of which `from_client` bytes were read and every byte
    /// read was written on. Nothing is redirected yet.
    ///
    /// # Errors
    /// The flow stays with the agent then, and nothing is lost.
    pub fn enrol(
        &self,
        accepted: SockRef<'_>,
        dialled: SockRef<'_>,
        client: SockCookie,
        from_client: u64,
    ) -> Result<Splice, SpliceRefusal> {
        let id = cookie(&dialled).map_err(kernel)?;
        let address = |a: io::Result<socket2::SockAddr>| {
            let a = a.map_err(|_| SpliceRefusal::SocketGone)?.as_socket();
            a.map(address::to_abi).ok_or(SpliceRefusal::SocketGone)
        };
        let question = abi::SpliceQuestion {
            id: id.0,
            enrol: 1,
            client_cookie: client.0,
            client: address(accepted.peer_addr())?,
            accepted: address(accepted.local_addr())?,
            local: address(dialled.local_addr())?,
            upstream: address(dialled.peer_addr())?,
        };
        self.engine.maps().clear();
        let answer = self.engine.look(&question)?;
        // Best effort: with less, more bytes spill.
        if let Err(error) = setsockopt(&*dialled, sockopt::SndBufForce, &SEND_BUFFER_BYTES) {
            tracing::debug!(%error, "the dialled socket keeps its send buffer");
        }
        let called = Arc::new(Notify::new());
        self.engine.callers().insert(id.0, called.clone());
        Ok(Splice {
            engine: self.engine.clone(),
            down: self.down,
            id: id.0,
            base_up: answer.accepted_copied_seq.wrapping_sub(from_client as u32),
            base_down: answer.accepted_write_seq,
            called,
            left: AtomicBool::new(false),
        })
    }
}

/// One flow in the kernel's hands. Dropped, it is forgotten; its sockets leave as they close.
pub struct Splice {
    engine: Arc<Engine>,
    down: Down,
    id: u64,
    /// Sequence numbers of the accepted socket's two streams where the agent's counts are zero.
    base_up: u32,
    base_down: u32,
    called: Arc<Notify>,
    /// Another process goes on with it.
    left: AtomicBool,
}

impl Splice {
    /// From now on bytes may be redirected, once none is on its way through the agent, which has
    /// read and written on what `position` says, and is at `places` behind that.
    pub fn engage(&self, position: Position, places: Places) -> Result<(), SpliceRefusal> {
        let down = match self.down {
            Down::Egress => abi::SPLICE_DOWN_EGRESS,
            Down::Ingress => abi::SPLICE_DOWN_INGRESS,
        };
        self.order(position, places, true, down)
    }

    /// From now on no byte is redirected. `dialled` is the flow's own: a verdict that is under
    /// way has ended when this returns. Before the agent writes to the client, it waits until
    /// [`Splice::is_drained`].
    pub fn withdraw(&self, dialled: SockRef<'_>, position: Position) -> Result<(), SpliceRefusal> {
        self.order(position, Places::UNKNOWN, false, abi::SPLICE_DOWN_OFF)?;
        // Verdicts run under the socket's lock, which this takes.
        dialled.set_tcp_nodelay(true).map_err(kernel)
    }

    fn order(
        &self,
        position: Position,
        places: Places,
        up: bool,
        down: u32,
    ) -> Result<(), SpliceRefusal> {
        let order = abi::SpliceOrder {
            up_seq: self.base_up.wrapping_add(position.from_client as u32),
            up: up.into(),
            down: down as u8,
            pad: [0; 2],
            down_passed: position.from_database,
            down_written: position.to_client,
            up_read: position.from_client,
            up_place: places.to_database,
            down_place: places.to_client,
        };
        let slot = abi::SpliceSlot {
            lock: 0,
            pad: 0,
            order,
        };
        let mut maps = self.engine.maps();
        let written = maps.orders.insert(self.id, Shared(slot), IN_PLACE);
        written.map_err(|e| SpliceRefusal::Kernel(e.to_string()))
    }

    /// What the kernel has moved so far.
    pub fn moved(&self) -> Result<Moved, SpliceRefusal> {
        let Shared(s) = self.kernels()?;
        Ok(Moved::of(&s))
    }

    pub(crate) fn kernels(&self) -> Result<Shared<abi::Splice>, SpliceRefusal> {
        let read = self.engine.maps().splices.get(&self.id, 0);
        read.map_err(|e| SpliceRefusal::Kernel(e.to_string()))
    }

    /// Whether what was redirected to the client is all in its stream, so that what the agent
    /// writes now comes after it. `to_client`: see [`Position`].
    ///
    /// Redirected into the client's own socket, it must have been read, too: a reader which was
    /// given less than it asked for believes that there is nothing more, and would leave what is
    /// in TCP's queue to the next edge.
    pub fn is_drained(&self, to_client: u64) -> Result<bool, SpliceRefusal> {
        let answer = self.engine.look(&abi::SpliceQuestion {
            id: self.id,
            ..NO_QUESTION
        })?;
        if self.down == Down::Ingress {
            return Ok(answer.client_packets == 0 && answer.client_bytes == 0);
        }
        let Shared(kernels) = self.kernels()?;
        let sent = (kernels.down_redirected as u32).wrapping_add(to_client as u32);
        Ok(answer.accepted_write_seq == self.base_down.wrapping_add(sent))
    }

    /// Waits until the kernel has passed bytes of the database up to the agent, which is not
    /// woken by the socket itself.
    pub async fn called(&self) {
        self.called.notified().await;
    }
}

impl Drop for Splice {
    fn drop(&mut self) {
        self.engine.callers().remove(&self.id);
        if !self.is_left() {
            self.engine.forget(self.id);
        }
    }
}

/// `BPF_F_LOCK` (linux/bpf.h): an entry is replaced, or read, where it lies and as a whole. Without it
/// the kernel makes a new one, and the old one may be another flow's while a program still reads it.
const IN_PLACE: u64 = 4;

const LOOK: &str = "splice_look";
const QUESTION_BYTES: usize = size_of::<abi::SpliceQuestion>();

const NOBODY: abi::Endpoint = abi::Endpoint {
    addr: [0; 16],
    port_be: 0,
    family: 0,
    pad: 0,
};

const NO_QUESTION: abi::SpliceQuestion = abi::SpliceQuestion {
    id: 0,
    enrol: 0,
    client_cookie: 0,
    client: NOBODY,
    accepted: NOBODY,
    local: NOBODY,
    upstream: NOBODY,
};

impl Engine {
    /// Runs `splice_look` here and now.
    fn look(&self, question: &abi::SpliceQuestion) -> Result<abi::SpliceAnswer, SpliceRefusal> {
        let mut out = [0; QUESTION_BYTES];
        let input = sys::question_to_bytes(question);
        let ran = sys::run_program(self.look.as_fd(), &input, &mut out).map_err(kernel)?;
        if ran != 0 {
            return Err(SpliceRefusal::Kernel("splice_look failed".into()));
        }
        let answer = sys::answer_from_bytes(&out)
            .ok_or_else(|| SpliceRefusal::Kernel("a short answer".into()))?;
        SpliceRefusal::of(&answer).map_or(Ok(answer), Err)
    }

    /// Without an order no program redirects any more; the kernel's words go when none can write
    /// them any more.
    fn forget(&self, id: u64) {
        let mut maps = self.maps();
        forgotten(maps.orders.remove(&id));
        maps.fallow.push_back((Instant::now(), id));
        maps.clear();
    }

    fn keep(&self, programs: Ebpf) {
        // Nobody else sets it.
        let _ = self.programs.set(programs);
    }

    fn maps(&self) -> MutexGuard<'_, Maps> {
        self.maps.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn callers(&self) -> MutexGuard<'_, HashMap<u64, Arc<Notify>>> {
        self.callers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Calls {
    /// Passes calls on to their flows, for ever. To be run where nothing else can be in the way: a
    /// flow that has called waits.
    ///
    /// # Errors
    /// The ring cannot be waited for.
    pub async fn run(self) -> io::Result<()> {
        let mut ring: AsyncFd<RingBuf<MapData>> = sys::watch(self.ring)?;
        loop {
            let mut ready = ring.readable_mut().await?;
            let mut called = 0;
            while let Some(record) = ready.get_inner_mut().next() {
                called += 1;
                let id = record.first_chunk().map(|id| u64::from_ne_bytes(*id));
                let callers = self.engine.callers();
                if let Some(caller) = id.and_then(|id| callers.get(&id)) {
                    caller.notify_one();
                }
            }
            // The kernel may have found it full: then nobody knows who was not called.
            if called >= RING_RECORDS {
                for caller in self.engine.callers().values() {
                    caller.notify_one();
                }
            }
            ready.clear_ready();
        }
    }
}

/// So many calls fit: each has a header of 8 bytes. A reading that found half of them may have
/// come after a time at which there was no room.
const RING_RECORDS: usize = abi::SPLICE_RING_BYTES as usize / 16 / 2;

/// The kernel's number for a socket.
pub fn cookie(socket: &SockRef<'_>) -> io::Result<SockCookie> {
    socket.cookie().map(SockCookie)
}

fn kernel(error: impl std::fmt::Display) -> SpliceRefusal {
    SpliceRefusal::Kernel(error.to_string())
}
