//! Flows that the kernel carries past the agent: `ebpf/src/splice.h` tells how.
//!
//! A [`Splice`] is one flow's. Its owner tells how many bytes it has read and written itself
//! ([`AgentMoved`]), which is all that the kernel needs to know when the fast road is free; what
//! must wait for the kernel before the owner may write is [`Splice::is_drained`]. `near.rs`: which side
//! is which.

pub(crate) mod adopt;
mod carrier;
mod near;
pub(crate) mod position;
pub(crate) mod refusal;

pub use carrier::Calls;
pub(crate) use carrier::SpliceMaps;
use carrier::{Caller, Carrier, IN_PLACE, NO_QUESTION, kernel};
pub use near::{Application, Near};

use std::{
    io,
    os::fd::AsFd,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use aya::{
    Ebpf,
    programs::{SchedClassifier, SkMsg, SkSkb},
};
use ebpf::abi;
use nix::sys::socket::{setsockopt, sockopt};
use policy::Shortcut;
use socket2::SockRef;

use crate::{
    address::{self, SockCookie},
    attach::{AttachError, program, refused},
    causes::causes,
    listeners::Mark,
    load,
    maps::MapsError,
    readers,
    splice::position::FlowPosition,
    splice::refusal::SpliceRefusal,
    sys::PodOf,
};

const LOOK: &str = "splice_look";

/// The dialled socket's send buffer, of which the kernel makes twice as much: twice what may be
/// queued there by redirection, so that an application's message never finds it full.
const SEND_BUFFER_BYTES: usize = abi::SPLICE_BYTES as usize;

/// Bytes that the agent itself has moved. Everything that it has read is written on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AgentMoved {
    /// Bytes read from the near application since the flow began.
    pub from_near: u64,
    /// Bytes read from the far one since the flow was enrolled.
    pub from_far: u64,
    /// Bytes written to the near one since the flow was enrolled.
    pub to_near: u64,
}

/// Bytes that the kernel has moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KernelMoved {
    /// Bytes to the far application.
    pub up: u64,
    /// Bytes to the near one.
    pub down: u64,
    /// Bytes from the far one that a verdict passed up to the agent; none by [`Engine::Sender`].
    pub passed: u64,
    /// Times that bytes had to go through the agent because the far one did not take them.
    pub up_spills: u64,
    /// And because the near one did not.
    pub down_spills: u64,
    /// Bytes of the far one's were lost on the way, and none passes any more.
    pub corrupted: bool,
}

impl KernelMoved {
    fn of(s: &abi::Splice) -> Self {
        Self {
            up: s.up_redirected,
            down: s.down_redirected,
            passed: s.down_passed,
            up_spills: s.up_spills,
            down_spills: s.down_spills,
            corrupted: s.corrupted != 0,
        }
    }
}

/// The engine that carries bytes from the far application: it decides where they enter the stream of
/// the agent's socket that leads to the near one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// In the sender's own `send()`: of a database on this host.
    Sender,
    /// The bytes leave through the agent's other socket.
    Egress,
}

impl Engine {
    /// The engines, in the order in which they are tried for a flow.
    pub const ALL: [Self; 2] = [Self::Sender, Self::Egress];

    fn number(self) -> u32 {
        match self {
            Self::Sender => abi::SPLICE_ENGINE_SENDER,
            Self::Egress => abi::SPLICE_ENGINE_EGRESS,
        }
    }

    fn of(number: u32) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|engine| engine.number() == number)
    }
}

/// Why a flow does not go by [`Engine::Sender`]; empty where it does.
fn why_not_by_sender(answer: &abi::SpliceAnswer, near: Near, opted_in: Shortcut) -> &'static str {
    match (near, answer.sender) {
        (Near::Database, _) => "the client is on another host",
        _ if !opted_in.takes_database() => {
            "its rule lets the database's socket into no sockmap (`shortcut`)"
        }
        (_, abi::SPLICE_SENDER_IN) => "",
        (_, abi::SPLICE_SENDER_OFF) => "engine sender is off",
        (_, abi::SPLICE_SENDER_BLOCKS) => "the database's socket blocks (it is not O_NONBLOCK)",
        (_, abi::SPLICE_SENDER_TAKEN) => {
            "the kernel does not take the database's socket (another program's sockmap, or too many)"
        }
        _ => "the database is on another host, or in another network namespace",
    }
}

/// The kernel's way to carry flows. Cloned freely.
#[derive(Clone)]
pub struct Splicer {
    carrier: Arc<Carrier>,
    /// Bits by the ways' numbers.
    engines: u64,
}

const EVERY_ENGINE: u64 = 1 << abi::SPLICE_ENGINE_SENDER | 1 << abi::SPLICE_ENGINE_EGRESS;

impl Splicer {
    /// Loads the programs and binds them to their maps, before any socket is in those.
    pub(crate) fn load(
        ebpf: &mut Ebpf,
        maps: SpliceMaps,
        mark: Option<Mark>,
    ) -> Result<(Self, Calls), AttachError> {
        let look = {
            let name = "splice_up";
            let up: &mut SkMsg = program(ebpf, name)?;
            load::retry_load(|| up.load()).map_err(refused(name))?;
            up.attach(maps.near_apps.fd()).map_err(refused(name))?;
            let name = "splice_back";
            let back: &mut SkMsg = program(ebpf, name)?;
            load::retry_load(|| back.load()).map_err(refused(name))?;
            back.attach(maps.far_apps.fd()).map_err(refused(name))?;
            let name = "splice_down";
            let verdict: &mut SkSkb = program(ebpf, name)?;
            load::retry_load(|| verdict.load()).map_err(refused(name))?;
            verdict.attach(maps.far_legs.fd()).map_err(refused(name))?;
            let look: &mut SchedClassifier = program(ebpf, LOOK)?;
            load::retry_load(|| look.load()).map_err(refused(LOOK))?;
            let fd = look.fd().map_err(refused(LOOK))?.as_fd();
            fd.try_clone_to_owned().map_err(AttachError::Sockets)?
        };
        let readers = readers::load::readers(ebpf)?;
        let (carrier, calls) = Carrier::new(look, readers, maps, mark, OnceLock::new())
            .map_err(|e| MapsError::Layout("near_apps", e))?;
        let engines = EVERY_ENGINE;
        Ok((Self { carrier, engines }, calls))
    }

    /// An engine of its own, beside any agent's: for trying out what the kernel can do. Must run
    /// within a tokio runtime.
    ///
    /// # Errors
    /// The kernel does not take it.
    pub fn open() -> Result<(Self, Calls), AttachError> {
        let mut ebpf = load::load()?;
        let maps = SpliceMaps::take(&mut ebpf)?;
        let (splicer, calls) = Self::load(&mut ebpf, maps, None)?;
        splicer.carrier.keep(ebpf);
        Ok((splicer, calls))
    }

    /// Makes a socket one of the agent's own, which its hooks leave alone; to be done before it
    /// connects. An engine of its own ([`Self::open`]) has no hooks, and no mark.
    pub fn mark(&self, socket: SockRef<'_>) -> io::Result<()> {
        match self.carrier.mark {
            Some(mark) => socket.set_mark(mark.0),
            None => Ok(()),
        }
    }

    /// A splicer for flows that go by these engines only.
    pub fn by(&self, engines: &[Engine]) -> Self {
        Self {
            carrier: self.carrier.clone(),
            engines: engines
                .iter()
                .fold(0, |bits, engine| bits | 1 << engine.number()),
        }
    }

    /// Enters the sockets of a flow, of which `from_near` bytes were read and every byte
    /// read was written on: the agent's two, by which application they lead to, the near
    /// application's own, and for [`Engine::Sender`] the far one's. Of the applications' only those that
    /// `opted_in`, without which nothing is entered. Nothing is redirected yet.
    ///
    /// # Errors
    /// The flow stays with the agent then, and nothing is lost.
    pub fn enrol(
        &self,
        near: SockRef<'_>,
        far: SockRef<'_>,
        application: &Application,
        opted_in: Shortcut,
        from_near: u64,
    ) -> Result<Splice, SpliceRefusal> {
        if !application.near().is_opted_in(opted_in) {
            return Err(SpliceRefusal::NotOptedIn(application.near()));
        }
        let mut question = question(&near, &far)?;
        question.enrol = match (application.near(), opted_in.takes_database()) {
            (Near::Client, true) => self.engines,
            // The far one's socket stays out, or is a client's on another host.
            _ => self.engines & !(1 << abi::SPLICE_ENGINE_SENDER),
        };
        let id = question.id;
        if question.enrol == 0 {
            return Err(SpliceRefusal::NoEngine);
        }
        self.carrier.maps().clear();
        let look = |question: &abi::SpliceQuestion| {
            self.carrier
                .look(question, application.near(), application.netns())
        };
        let answer = application.look(question, look)?;
        let engine = Engine::of(answer.engine).ok_or_else(|| kernel("enrolled by no engine"))?;
        let to_near = (engine == Engine::Sender).then_some(&*near);
        for socket in to_near.into_iter().chain([&*far]) {
            // Best effort: with less, more bytes spill.
            if let Err(error) = setsockopt(socket, sockopt::SndBufForce, &SEND_BUFFER_BYTES) {
                tracing::debug!(%error, "a socket keeps its send buffer");
            }
        }
        let caller = Caller::new(application.netns().cloned(), false);
        self.carrier.wait_for_calls(id, caller.clone());
        Ok(Splice {
            carrier: self.carrier.clone(),
            engine,
            why_not_by_sender: why_not_by_sender(&answer, application.near(), opted_in),
            near: application.near(),
            id,
            base_up: answer.near_leg_copied_seq.wrapping_sub(from_near as u32),
            base_far: answer.far_leg_copied_seq,
            base_down: answer.near_leg_write_seq,
            caller,
            left: AtomicBool::new(false),
        })
    }
}

/// Whether what was redirected to the near application is in its stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drained {
    /// All of it.
    Yes,
    /// Some may be on its way.
    NotYet,
    /// The near application has reset its connection.
    Never,
}

/// A flow in the kernel's hands. Dropped, it is forgotten; its sockets leave the maps as they close.
pub struct Splice {
    carrier: Arc<Carrier>,
    engine: Engine,
    why_not_by_sender: &'static str,
    near: Near,
    id: u64,
    /// Sequence numbers of the two streams of the agent's socket that leads to the near application where the agent's counts are zero.
    base_up: u32,
    base_down: u32,
    /// Sequence number at which the far leg's stream from the far application begins.
    base_far: u32,
    caller: Arc<Caller>,
    /// Another process goes on with it.
    left: AtomicBool,
}

impl Splice {
    /// From now on bytes may be redirected, once none is on its way through the agent, which has
    /// read and written on what `position` says, and is at `frame_positions` behind that. `far` is the flow's own. When this returns,
    /// a verdict that still went by the order before has ended: it calls nobody for what it has passed up, which [`Splice::moved`] tells then.
    pub fn engage(
        &self,
        far: SockRef<'_>,
        position: AgentMoved,
        frame_positions: FlowPosition,
    ) -> Result<(), SpliceRefusal> {
        self.order(position, frame_positions, true, self.engine.number())?;
        match self.engine {
            Engine::Sender => Ok(()),
            Engine::Egress => wait_for_verdict(far),
        }
    }

    /// By which way it was enrolled.
    pub fn engine(&self) -> Engine {
        self.engine
    }

    /// Why not by [`Engine::Sender`]; empty where it was.
    pub fn why_not_by_sender(&self) -> &'static str {
        self.why_not_by_sender
    }

    /// Whether there is something for the agent to read of the far application's, of which it has read so
    /// much, that its socket does not tell it of.
    pub fn has_come(&self, from_far: u64) -> bool {
        match self.engine {
            Engine::Sender => false,
            Engine::Egress => !self
                .moved()
                .is_ok_and(|m| m.passed == from_far && !m.corrupted),
        }
    }

    /// From now on no byte is redirected. `far` is the flow's own: a verdict that is under
    /// way has ended when this returns. Before the agent writes to the near application, it waits
    /// until [`Splice::is_drained`].
    pub fn withdraw(&self, far: SockRef<'_>, position: AgentMoved) -> Result<(), SpliceRefusal> {
        self.order(
            position,
            FlowPosition::UNKNOWN,
            false,
            abi::SPLICE_ENGINE_OFF,
        )?;
        wait_for_verdict(far)
    }

    fn order(
        &self,
        position: AgentMoved,
        frame_positions: FlowPosition,
        up: bool,
        engine: u32,
    ) -> Result<(), SpliceRefusal> {
        let [up_position, down_position] = self
            .near
            .directions(frame_positions.to_database, frame_positions.to_client);
        let order = abi::SpliceOrder {
            up_seq: self.base_up.wrapping_add(position.from_near as u32),
            up: up.into(),
            engine: engine as u8,
            pad: [0; 2],
            down_seq: self.base_far.wrapping_add(position.from_far as u32),
            pad2: 0,
            down_passed: position.from_far,
            down_written: position.to_near,
            up_read: position.from_near,
            up_position,
            down_position,
        };
        let slot = abi::SpliceSlot {
            lock: 0,
            pad: 0,
            order,
        };
        let mut maps = self.carrier.maps();
        let written = maps.orders.insert(self.id, PodOf(slot), IN_PLACE);
        written.map_err(|e| kernel(causes(&e)))
    }

    /// Bytes that the kernel has moved so far.
    pub fn moved(&self) -> Result<KernelMoved, SpliceRefusal> {
        let PodOf(s) = self.kernels()?;
        Ok(KernelMoved::of(&s))
    }

    pub(crate) fn kernels(&self) -> Result<PodOf<abi::Splice>, SpliceRefusal> {
        let read = self.carrier.maps().splices.get(&self.id, 0);
        read.map_err(|e| kernel(causes(&e)))
    }

    /// Whether what was redirected to the near application is all in its stream, so that what the
    /// agent writes now comes after it. `to_near`: see [`AgentMoved`].
    pub fn is_drained(&self, to_near: u64) -> Result<Drained, SpliceRefusal> {
        let PodOf(before) = self.kernels()?;
        // A run that has read the order may redirect yet; one that begins now does not.
        if before.back_begun != before.back_done {
            return Ok(Drained::NotYet);
        }
        let PodOf(kernels) = self.kernels()?;
        let question = abi::SpliceQuestion {
            id: self.id,
            ..NO_QUESTION
        };
        let answer = self.carrier.look(&question, self.near, None)?;
        let sent = (kernels.down_redirected as u32).wrapping_add(to_near as u32);
        Ok(match answer.near_leg_write_seq {
            end if end == self.base_down.wrapping_add(sent) => Drained::Yes,
            _ if answer.is_reset != 0 => Drained::Never,
            _ => Drained::NotYet,
        })
    }

    /// Waits until the kernel has passed bytes of the far application up to the agent, which is not
    /// woken by the socket itself.
    pub async fn called(&self) {
        self.caller.called.notified().await;
    }

    /// Has the applications' sockets leave the sockmaps. To be done before the agent passes an end on: the kernel
    /// lets nobody wake the reader of a connection that is over.
    pub fn let_out(&self) {
        self.carrier.let_out(self.id, &self.caller);
    }

    /// Whether the applications' sockets have left the sockmaps, because one of them did not read on: the
    /// kernel carries the flow no more.
    pub fn is_out(&self) -> bool {
        self.caller.is_out.load(Relaxed)
    }
}

impl Drop for Splice {
    fn drop(&mut self) {
        if !self.is_left() {
            self.let_out();
            self.carrier.forget(self.id);
        }
        self.carrier.callers().remove(&self.id);
    }
}

/// Waits until a verdict on this socket has ended that is under way: verdicts run under the socket's lock, which this takes.
fn wait_for_verdict(far: SockRef<'_>) -> Result<(), SpliceRefusal> {
    far.set_tcp_nodelay(true).map_err(kernel)
}

/// The agent's two sockets of a flow to be entered: by their addresses, as the kernel finds them, and
/// by their numbers, because an address may be another's by then.
fn question(near: &SockRef<'_>, far: &SockRef<'_>) -> Result<abi::SpliceQuestion, SpliceRefusal> {
    let number = |socket| cookie(socket).map(SockCookie::number).map_err(kernel);
    let address = |a: io::Result<socket2::SockAddr>| {
        let a = a.map_err(|_| SpliceRefusal::SocketGone)?.as_socket();
        a.map(address::to_abi).ok_or(SpliceRefusal::SocketGone)
    };
    Ok(abi::SpliceQuestion {
        id: number(far)?,
        enrol: EVERY_ENGINE,
        near_app_cookie: 0,
        near_leg_cookie: number(near)?,
        near_app: address(near.peer_addr())?,
        near_leg: address(near.local_addr())?,
        far_leg: address(far.local_addr())?,
        far_app: address(far.peer_addr())?,
    })
}

/// The kernel's number for a socket.
pub fn cookie(socket: &SockRef<'_>) -> io::Result<SockCookie> {
    socket.cookie().map(SockCookie)
}

#[cfg(test)]
mod tests {
    use std::{
        net::{TcpListener, TcpStream},
        thread,
        time::{Duration, Instant},
    };

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(5);

    fn pair(listener: &TcpListener) -> (TcpStream, TcpStream) {
        let connected = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        connected.set_nonblocking(true).unwrap();
        (connected, listener.accept().unwrap().0)
    }

    /// A regression: for a client on another host the agent's socket has the database's own address.
    /// When that socket is gone, the database's listener is what is found there. In a map it would
    /// never wake its owner again.
    #[test]
    fn a_listener_is_not_taken_for_a_connection_that_is_gone() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let _within = runtime.enter();
        let (splicer, _calls) = Splicer::open().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (client, accepted) = pair(&listener);
        let (peer, far) = pair(&listener);
        let near = SockRef::from(&accepted);
        let mut question = question(&near, &SockRef::from(&far)).unwrap();
        question.near_app_cookie = cookie(&SockRef::from(&client)).unwrap().number();
        SockRef::from(&peer)
            .set_linger(Some(Duration::ZERO))
            .unwrap();
        drop(peer);
        let answer = splicer.carrier.look(&question, Near::Client, None);
        assert!(
            matches!(answer, Err(SpliceRefusal::SocketGone)),
            "{answer:?}"
        );

        let at = listener.local_addr().unwrap();
        let accepting = thread::spawn(move || listener.accept().map(drop));
        thread::sleep(Duration::from_millis(200));
        let _later = TcpStream::connect(at).unwrap();
        let until = Instant::now() + PATIENCE;
        while !accepting.is_finished() {
            assert!(Instant::now() < until, "the listener is not woken");
            thread::sleep(Duration::from_millis(10));
        }
    }
}
