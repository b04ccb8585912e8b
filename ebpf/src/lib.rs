//! The BPF programs, compiled from the C files beside this one, and [`abi`], the layout
//! that they share with the agent.
//!
//! One object holds every hook of this host's connections, so that one BTF and one set of maps
//! serve them all; the edge's, which is loaded only where an interface is named, is another. Start
//! reading at `connect.h`; then `socket_events.h`, `hold.h` and `names.h`, in the
//! order in which a connection meets them; the edge at `edge.bpf.c`.

pub mod abi;

/// The compiled object (ELF, with BTF), for the loader.
pub static OBJECT: &[u8] = &ALIGNED.bytes;

/// The edge's.
pub static EDGE_OBJECT: &[u8] = &EDGE_ALIGNED.bytes;

/// Programs that only measurements name, so no agent has them.
pub static IDLE_OBJECT: &[u8] = &IDLE_ALIGNED.bytes;

/// ELF readers want the object aligned as its widest field, which `include_bytes!` alone
/// does not promise.
#[repr(C, align(32))]
struct Aligned<B: ?Sized> {
    bytes: B,
}

static ALIGNED: &Aligned<[u8]> = &Aligned {
    bytes: *include_bytes!(concat!(env!("OUT_DIR"), "/underpass.bpf.o")),
};

static EDGE_ALIGNED: &Aligned<[u8]> = &Aligned {
    bytes: *include_bytes!(concat!(env!("OUT_DIR"), "/edge.bpf.o")),
};

static IDLE_ALIGNED: &Aligned<[u8]> = &Aligned {
    bytes: *include_bytes!(concat!(env!("OUT_DIR"), "/idle.bpf.o")),
};
