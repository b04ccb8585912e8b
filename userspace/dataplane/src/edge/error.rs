//! Why the edge is not guarded as it should be.

use std::io;

use aya::maps::MapError;
use ebpf::abi;
use thiserror::Error;

use super::Mode;
use crate::{causes::causes, compile::CompileError, maps::MapsError, pins::PinsError};

/// Why the edge is not guarded as it should be.
#[derive(Debug, Error)]
pub enum EdgeError {
    /// bpffs.
    #[error(transparent)]
    Pins(#[from] PinsError),
    /// The kernel refuses the object.
    #[error("cannot load the edge's program: {0}")]
    Load(String),
    /// The maps.
    #[error(transparent)]
    Maps(#[from] MapsError),
    /// A map of the edge cannot be used.
    #[error("cannot use the edge's {map}: {}", causes(.source))]
    Map {
        /// Name of the map.
        map: &'static str,
        /// Why.
        source: MapError,
    },
    /// The policy has more than fits.
    #[error(transparent)]
    Compile(#[from] CompileError),
    /// Rules with backends.
    #[error(
        "at most {most} rules can have backends at the edge",
        most = abi::MAX_EDGE_TABLES / 2
    )]
    TooManyTables,
    /// No such interface.
    #[error("there is no interface {0}")]
    NoInterface(String),
    /// The kernel does not list the programs on an interface.
    #[error("cannot ask for the programs on {interface}: {source}")]
    Programs {
        /// Name of the interface.
        interface: String,
        /// Why.
        source: io::Error,
    },
    /// Somebody else's.
    #[error(
        "{interface} has an XDP program that is not underpass's (id {program}, {mode}): remove it \
         (`ip link set {interface} xdp off`) or leave the interface out of [[xdp]]",
        mode = mode.as_str()
    )]
    Foreign {
        /// Name of the interface.
        interface: String,
        /// The kernel's number of it; `bpftool prog show id` tells more.
        program: u32,
        /// The mode in which the program runs.
        mode: Mode,
    },
    /// The kernel.
    #[error("cannot attach to {interface} in {mode} mode: {reason}")]
    Attach {
        /// Name of the interface.
        interface: String,
        /// How.
        mode: &'static str,
        /// Why.
        reason: String,
    },
    /// Frames that are sent from one to the other would be lost.
    #[error(
        "{native} is to be guarded in native mode and {generic} in generic mode, and both forward: \
         what one sends on, the other's driver may drop; give them the same `mode`"
    )]
    Unlike {
        /// An interface in native mode.
        native: String,
        /// An interface in generic mode.
        generic: String,
    },
    /// A frame could not be run.
    #[error("cannot run the edge's program: {0}")]
    Run(String),
}
