//! The edge: rules that are applied to packets as they arrive on an interface, before the stack
//! sees them (`docs/decisions/0008-edge.md`). Its programs and maps are
//! pinned and outlive the agent; the next one takes them over without a packet being dropped.
//!
//! - [`Edge`]: loads or takes over; puts policies into force; counts. `guard.rs`: attaches; `modes.rs`:
//!   how. `examine.rs`: for `doctor`.
//! - `classes.rs`: a policy as tables of classes, `blocks.rs`, `prefixes.rs`: networks of
//!   IPv4 and IPv6 for a quick look-up; `tables.rs`: those, in the kernel.
//! - [`maglev`], `backends.rs`: which backend gets a new connection.
//! - `interface.rs`: which programs are on an interface. `pins.rs`: what outlives the agent.

mod backends;
mod blocks;
mod classes;
mod counts;
mod error;
mod examine;
mod guard;
mod interface;
pub mod maglev;
mod maps;
mod modes;
mod pins;
mod prefixes;
mod reset;
mod tables;

use std::{
    fs,
    net::{SocketAddr, UdpSocket},
    path::Path,
    time::Duration,
};

use aya::{
    Ebpf, EbpfError, EbpfLoader,
    programs::{TestRun, TestRunOptions, Xdp},
    util::nr_cpus,
};
use ebpf::abi;
use nix::net::if_::if_nametoindex;

pub use backends::Weighted;
pub use counts::{EdgeCounters, EdgeOutcome, EdgeRuleCount, EdgeVerdict};
pub use error::EdgeError;
pub use examine::examine;
pub use guard::Guarded;
pub use interface::{Forward, Interface, Mode, OnInterface, SynRate, WantedMode};
pub use modes::alike;

use self::{backends::Backends, guard::programs_on, maps::Maps, pins::EdgePins, tables::Tables};
use crate::{attach::reasons, load, pins::PinsError};
use policy::{Policy, RuleName};

/// Connections that are forwarded at the same time, unless the file says otherwise.
pub const DEFAULT_CONNECTIONS: u32 = abi::EDGE_CONNECTIONS;

/// Connections that can be forwarded at the same time at most: 272 bytes each.
pub const MAX_CONNECTIONS: u32 = 1 << 22;

/// Interfaces that can be guarded.
pub const MAX_INTERFACES: usize = abi::MAX_EDGE_INTERFACES as usize;

const PROGRAM: &str = "edge";

/// The result of running the program on a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrameRun {
    /// `XDP_DROP` and so on (uapi/linux/bpf.h).
    pub action: u32,
    /// The frame afterwards.
    pub frame: Vec<u8>,
    /// How long one run took, on average.
    pub took: Duration,
}

/// The edge of this network namespace. Dropped, it stays attached.
pub struct Edge {
    ebpf: Ebpf,
    maps: Maps,
    tables: Tables,
    backends: Backends,
    pins: EdgePins,
    guarded: Vec<(u32, Guarded)>,
    connections: u32,
    unresolved: u64,
}

impl Edge {
    /// Loads the program, with the maps beneath the agent's pins if they are there.
    /// `connections`: so many can be forwarded at the same time; tables of another size are not
    /// taken over.
    ///
    /// # Errors
    /// Not root, no bpffs, an old kernel; nothing is attached then.
    pub fn open(pins: &Path, connections: u32) -> Result<Self, EdgeError> {
        let pins = EdgePins::open(pins, connections)?;
        let mut loader = EbpfLoader::new();
        for name in maps::NAMES {
            loader.map_pin_path(name, pins.map(name));
        }
        loader.map_max_entries(maps::FLOWS, connections.max(1).saturating_mul(2));
        let cpus = nr_cpus().map_err(|(_, e)| EdgeError::Load(e.to_string()))?;
        loader.map_max_entries(maps::ROUTES, abi::EDGE_ROUTES.saturating_mul(cpus as u32));
        let failed = |e: &EbpfError| EdgeError::Load(reasons(e));
        let mut ebpf = loader.load(ebpf::EDGE_OBJECT).map_err(|e| failed(&e))?;
        let edge = program(&mut ebpf)?;
        load::retry_load(|| edge.load()).map_err(|e| EdgeError::Load(reasons(&e)))?;
        let maps = Maps::take(&mut ebpf)?;
        let tables = Tables::read(&maps, own_ports())?;
        let backends = Backends::beside(tables.tables_in_force(&maps)?);
        Ok(Self {
            ebpf,
            maps,
            tables,
            backends,
            pins,
            guarded: Vec::new(),
            connections,
            unresolved: 0,
        })
    }

    /// Puts the policy's rules of the edge into force. Connections that are forwarded go on, unless
    /// it denies them.
    ///
    /// # Errors
    /// The old policy is still in force then.
    pub fn install(&mut self, policy: &Policy) -> Result<(), EdgeError> {
        let classes = classes::compile(policy)?;
        let mut backends = self.backends.prepare(&mut self.maps, policy)?;
        let table = |rule: &RuleName| backends.table(rule);
        self.tables.install(&mut self.maps, &classes, table)?;
        backends.settle();
        self.backends = backends;
        Ok(())
    }

    /// Says which backends of a rule get new connections, and how many of them: in proportion to
    /// their weights, none for weight 0. Those that are not named keep theirs; no connection that
    /// is established moves.
    ///
    /// # Errors
    /// What was in force still is.
    pub fn set_backends(
        &mut self,
        rule: &RuleName,
        backends: &[Weighted],
    ) -> Result<(), EdgeError> {
        match self.backends.set(&mut self.maps, rule, backends)? {
            Some(table) => self.tables.set_table(&mut self.maps, rule, table),
            None => Ok(()),
        }
    }

    /// A reading of the edge's counters.
    pub fn counters(&self) -> Result<EdgeCounters, EdgeError> {
        let packets = EdgeVerdict::ALL.into_iter().map(|verdict| {
            let per_cpu = self.maps.packets.get(&(verdict as u32), 0);
            let per_cpu = per_cpu.map_err(tables::of("packets"))?;
            Ok((verdict, per_cpu.iter().sum()))
        });
        Ok(EdgeCounters {
            packets: packets.collect::<Result<_, EdgeError>>()?,
            by_rule: self.tables.counts(&self.maps)?,
        })
    }

    /// To be called every second: has the host ask for the MACs of backends whose packets could not
    /// be sent, and follows the gateway's addresses.
    pub fn tend(&mut self) -> Result<(), EdgeError> {
        let verdict = EdgeVerdict::NoNeighbour as u32;
        let per_cpu = self
            .maps
            .packets
            .get(&verdict, 0)
            .map_err(tables::of("packets"))?;
        let unresolved = per_cpu.iter().sum();
        if unresolved != self.unresolved {
            self.unresolved = unresolved;
            self.backends.all().into_iter().for_each(resolve);
        }
        for (rule, backends) in self.backends.moved() {
            self.set_backends(&rule, &backends)?;
        }
        Ok(())
    }

    /// The folder in which the edge's maps are pinned, for tests.
    pub fn pins(&self) -> &Path {
        &self.pins.own
    }

    /// Runs the program on a frame as if it had arrived on `interface` of this thread's namespace;
    /// nothing is sent. It counts, and remembers connections, as if it had been. For tests, and
    /// for measuring.
    ///
    /// # Errors
    /// The frame is shorter than Ethernet's header or longer than a page, or the kernel's.
    pub fn try_out(
        &mut self,
        interface: &str,
        frame: &[u8],
        times: u32,
    ) -> Result<FrameRun, EdgeError> {
        let ifindex =
            if_nametoindex(interface).map_err(|_| EdgeError::NoInterface(interface.to_owned()))?;
        // struct xdp_md: data, data_end, data_meta, ingress_ifindex, rx_queue_index, egress_ifindex.
        let length = frame.len() as u32;
        let context: Vec<u8> = [0, length, 0, ifindex, 0, 0]
            .iter()
            .flat_map(|word: &u32| word.to_ne_bytes())
            .collect();
        let mut output = vec![0; frame.len() + 256];
        let options = TestRunOptions {
            data_in: Some(frame),
            data_out: Some(&mut output),
            ctx_in: Some(&context),
            repeat: times,
            ..TestRunOptions::new()
        };
        let run = program(&mut self.ebpf)?
            .test_run(options)
            .map_err(|e| EdgeError::Run(reasons(&e)))?;
        output.truncate(run.data_size_out as usize);
        Ok(FrameRun {
            action: run.return_value,
            frame: output,
            took: run.duration,
        })
    }
}

/// Whether this thread's network namespace has no interface of this name.
pub fn is_absent(interface: &str) -> bool {
    if_nametoindex(interface).is_err()
}

/// The programs on an interface of this thread's network namespace.
///
/// # Errors
/// There is no such interface, or the kernel's.
pub fn programs_of(interface: &str) -> Result<Vec<OnInterface>, EdgeError> {
    let ifindex =
        if_nametoindex(interface).map_err(|_| EdgeError::NoInterface(interface.to_owned()))?;
    programs_on(ifindex, interface)
}

/// Removes the edge that an agent has left beneath its pins: nothing is forwarded or dropped any
/// more. Returns whether there was any.
///
/// # Errors
/// The file system's.
pub fn remove(pins: &Path) -> Result<bool, PinsError> {
    if !pins.exists() {
        return Ok(false);
    }
    pins::remove(pins)
}

/// Removes the edge as [`remove`] does, unless an interface is guarded: for use after a failed attempt
/// to guard one.
///
/// # Errors
/// The file system's.
pub fn remove_unless_guarding(pins: &Path) -> Result<bool, PinsError> {
    if !pins.exists() || !EdgePins::links_beneath(pins)?.is_empty() {
        return Ok(false);
    }
    pins::remove(pins)
}

fn program(ebpf: &mut Ebpf) -> Result<&mut Xdp, EdgeError> {
    let missing = || EdgeError::Load(format!("the object has no program `{PROGRAM}`"));
    let program = ebpf.program_mut(PROGRAM).ok_or_else(missing)?;
    program.try_into().map_err(|_| missing())
}

/// From a named bound up to where the kernel's own begin; as many as there are.
fn own_ports() -> (u16, u16) {
    const DEFAULT_FIRST_OF_THE_KERNELS: u16 = 32_768;
    let range = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range");
    let first = range
        .ok()
        .and_then(|text| text.split_whitespace().next()?.parse().ok());
    let kernels = first.unwrap_or(DEFAULT_FIRST_OF_THE_KERNELS);
    let own = abi::EDGE_FIRST_PORT as u16;
    (own, kernels.saturating_sub(own))
}

/// Any packet from the stack has it ask for the MAC.
fn resolve(backend: SocketAddr) {
    let any: SocketAddr = match backend {
        SocketAddr::V4(_) => ([0, 0, 0, 0], 0).into(),
        SocketAddr::V6(_) => ([0_u16; 8], 0).into(),
    };
    if let Ok(socket) = UdpSocket::bind(any) {
        let _ = socket.send_to(&[], backend);
    }
}
