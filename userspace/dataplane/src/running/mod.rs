//! Running connections: those that were there before the policy that observes them.
//!
//! The application's connection is not touched. The kernel is told by the socket's cookie that its packets are to be
//! read (`adopt.h`), and reads on from the next packet that begins with a header.
//!
//! 1. `namespaces.rs`: the network namespaces of this host.
//! 2. `connections.rs`: the connections of each.
//! 3. `owners.rs`: their processes.
//! 4. `survey.rs`: which of them the policy has read, and why others cannot be.
//! 5. [`Adopter`]: has the kernel mark their sockets.
//!
//! `around.rs` lists them for whoever has no policy yet.

mod around;
mod connections;
mod namespaces;
mod owners;
mod survey;

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{self, Read as _},
    net::{Ipv4Addr, TcpListener, TcpStream},
    os::fd::AsFd as _,
};

use aya::{
    Btf, Ebpf,
    maps::{HashMap, MapData, MapError},
    programs::Iter,
};
use ebpf::abi;

use crate::{
    attach::{AttachError, program, refused},
    load,
    maps::{self, MapsError},
    sys::{self, PodOf},
};
use policy::{Policy, RuleName};

pub use around::{Around, OpenedHere};
use namespaces::Place;
use survey::Wanted;
pub use survey::{Scope, Survey};

const MAP: &str = "adoptions";
const ADOPTS: &str = "adopt_connections";

/// Why a running connection that a rule has read is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NotAdopted {
    /// The rule needs the bytes: the flow comes to the agent when it connects again.
    NeedsAgent,
    /// The process that has it open could not be found, so no rule is known to hold.
    NoProcess,
    /// The socket is not beneath the agent's cgroup, whose packets are read.
    OutsideCgroup,
    /// The kernel cannot be asked to tell when it ends: Linux 6.12 is the first that can.
    NoEnd,
    /// The table of observed flows is full, or there is no memory.
    NoRoom,
    /// Nobody knows: their network namespace cannot be entered, or there are too many. Each counts as one.
    UnseenNamespace,
}

impl NotAdopted {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::NeedsAgent,
        Self::NoProcess,
        Self::OutsideCgroup,
        Self::NoEnd,
        Self::NoRoom,
        Self::UnseenNamespace,
    ];

    /// The reason's name in metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NeedsAgent => "needs_agent",
            Self::NoProcess => "no_process",
            Self::OutsideCgroup => "outside_cgroup",
            Self::NoEnd => "no_end",
            Self::NoRoom => "no_room",
            Self::UnseenNamespace => "unseen_namespace",
        }
    }

    /// The reason for people, and what can be done.
    pub const fn explained(self) -> &'static str {
        match self {
            Self::NeedsAgent => "their rule needs the bytes, so they have to connect again",
            Self::NoProcess => "their process was not found",
            Self::OutsideCgroup => "they are not beneath the agent's cgroup",
            Self::NoEnd => "this kernel does not tell of their end (Linux 6.12 does)",
            Self::NoRoom => "there is no room for more observed flows",
            Self::UnseenNamespace => {
                "their network namespaces, each of which counts as one, cannot be looked into"
            }
        }
    }
}

/// The result of a look at the running connections.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Adopted {
    /// Connections that are read from now on, by rule.
    pub by_rule: BTreeMap<RuleName, u64>,
    /// Connections that should be read and are not.
    pub not: BTreeMap<NotAdopted, u64>,
}

impl Adopted {
    /// How many are read from now on.
    pub fn count(&self) -> u64 {
        self.by_rule.values().sum()
    }
}

impl Scope {
    /// Looks for the connections that `policy`, which is in force, has read. That takes long where there are many processes.
    ///
    /// # Errors
    /// They cannot be listed.
    pub fn survey(&self, policy: &Policy) -> Result<Survey, AttachError> {
        Survey::take(policy, self).map_err(AttachError::Connections)
    }
}

/// The map in which the kernel is told of them.
pub(crate) struct Adopter(HashMap<MapData, u64, PodOf<abi::Adoption>>);

impl Adopter {
    pub(crate) fn take(ebpf: &mut Ebpf) -> Result<Self, MapsError> {
        maps::take(ebpf, MAP).map(Self)
    }

    /// Has the kernel mark the sockets, in each namespace that has some.
    pub(crate) fn adopt(
        &mut self,
        ebpf: &mut Ebpf,
        survey: Survey,
    ) -> Result<Adopted, AttachError> {
        let mut adopted = Adopted {
            by_rule: BTreeMap::new(),
            not: survey
                .not
                .iter()
                .map(|(reason, missed)| (*reason, missed.count))
                .collect(),
        };
        if survey.wanted.is_empty() {
            return Ok(adopted);
        }
        let layout = |e| AttachError::Maps(MapsError::Layout(MAP, e));
        let cookies: Vec<u64> = survey.wanted.iter().map(|w| w.cookie.0).collect();
        let told = survey.wanted.iter().try_for_each(|wanted| {
            let entry = PodOf(wanted.adoption);
            self.0.insert(wanted.cookie.0, entry, 0).map_err(layout)
        });
        let of: BTreeSet<usize> = survey.wanted.iter().map(|wanted| wanted.place).collect();
        let ran = told.and_then(|()| run(ebpf, &survey.places, of));
        let unseen = ran.as_ref().cloned().unwrap_or_default();
        for wanted in &survey.wanted {
            let outcome = self.0.get(&wanted.cookie.0, 0).map(|PodOf(a)| a.outcome);
            let reason = match outcome {
                Ok(abi::ADOPTED_YES) => {
                    *adopted.by_rule.entry(wanted.rule.clone()).or_default() += 1;
                    continue;
                }
                Ok(abi::ADOPTED_NO_END) => NotAdopted::NoEnd,
                Ok(abi::ADOPTED_NO_ROOM) => NotAdopted::NoRoom,
                Ok(abi::ADOPTED_GONE) if unseen.contains(&wanted.place) => {
                    NotAdopted::UnseenNamespace
                }
                // It has ended meanwhile, or is read already.
                _ => continue,
            };
            *adopted.not.entry(reason).or_default() += 1;
        }
        for cookie in cookies {
            match self.0.remove(&cookie) {
                Ok(()) | Err(MapError::KeyNotFound) => {}
                Err(error) => return Err(layout(error)),
            }
        }
        ran.map(|_| adopted)
    }
}

/// Has the kernel mark a connection of this process's own, with maps of its own. Returns why it does not; None: it does. Needs
/// root.
pub(crate) fn try_out() -> Result<Option<NotAdopted>, AttachError> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(AttachError::Sockets)?;
    let address = listener.local_addr().map_err(AttachError::Sockets)?;
    let opened = TcpStream::connect(address).map_err(AttachError::Sockets)?;
    let wanted = Wanted::own(&opened).map_err(AttachError::Sockets)?;
    let mut ebpf = load::load()?;
    let mut adopter = Adopter::take(&mut ebpf)?;
    let survey = Survey {
        wanted: vec![wanted],
        places: vec![Place::own()],
        not: BTreeMap::new(),
    };
    let adopted = adopter.adopt(&mut ebpf, survey)?;
    match (adopted.count(), adopted.not.into_keys().next()) {
        (0, None) => Err(AttachError::Program {
            name: ADOPTS,
            reason: "it has not come by a connection of this process's own".to_owned(),
        }),
        (_, reason) => Ok(reason),
    }
}

/// Runs over the sockets of these places. Returns those, other than the calling thread's, of which the kernel did not let it.
fn run(
    ebpf: &mut Ebpf,
    places: &[Place],
    of: BTreeSet<usize>,
) -> Result<BTreeSet<usize>, AttachError> {
    let failed = |reason: String| AttachError::Program {
        name: ADOPTS,
        reason,
    };
    let btf = Btf::from_sys_fs().map_err(|e| AttachError::Load(e.into()))?;
    let adopts: &mut Iter = program(ebpf, ADOPTS)?;
    if adopts.fd().is_err() {
        load::retry_load(|| adopts.load("tcp", &btf)).map_err(refused(ADOPTS))?;
    }
    let adopts = adopts.fd().map_err(refused(ADOPTS))?.as_fd();
    let look = || -> io::Result<()> {
        let mut look = sys::iterate_over(adopts, None)?;
        look.read_to_end(&mut Vec::new()).map(drop)
    };
    let mut unseen = BTreeSet::new();
    for number in of {
        let Some(place) = places.get(number) else {
            continue;
        };
        match place.within(look) {
            Ok(()) => {}
            Err(error) if place.is_own() => return Err(failed(error.to_string())),
            // Nobody is there any more.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => {
                tracing::warn!(%error, netns = place.inode, "running connections of a network namespace cannot be read");
                unseen.insert(number);
            }
        }
    }
    Ok(unseen)
}
