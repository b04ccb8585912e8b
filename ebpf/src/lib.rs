//! The BPF programs, compiled from the C files beside this one, and [`abi`], the layout that they share
//! with the agent.
//!
//! A file that ends in `.bpf.c` is a compilation unit and becomes an object; a file that ends in `.h` is
//! included. `underpass.bpf.c` is the object of this host's connections: its head lists every hook with
//! its file and function. One object holds all of them, so that one BTF and one set of maps serve them
//! all. `edge.bpf.c` is loaded only where an interface is named, and `idle.bpf.c` only by measurements.
//!
//! Start reading at `connect.h`; then `socket_events.h`, `hold.h` and `names.h`, in the order in which a
//! connection meets them; the edge at `edge.bpf.c`. `abi.h` is the only header that both sides see;
//! `abi.rs` is generated from its BTF (`cargo xtask generate`), and `tests/layout.rs` holds the objects'
//! own BTF against it. `maps.h` says of each map who writes, who reads, and how an entry dies. A packet at
//! the edge goes through `edge/parse.h`, `filter.h`, `rate.h`, `connections.h`, `route_cache.h`, and then
//! `forward.h`, `reset.h` or `too_big.h`; `abi_edge.h` is what both sides see of that.
//!
//! **Invariant**: no hook changes anything for a socket that no rule marks. Bypass is the absence of
//! everything.
//!
//! **Invariant**: a malformed or unknown thing passes; only policy refuses.
//!
//! **Invariant**: the kernel's words and the agent's are in separate maps (`pending_connects` and
//! `releases`), so that no update is lost between them.
//!
//! **Invariant**: the meter (`meter.h`) writes to no packet and drops none, and is attached only while a
//! rule observes.
//!
//! **Invariant**: a socket enters the shortcut's sockhash when it becomes established, or never; only the
//! shortcut's `sk_msg` is in it, and a message whose look-up fails takes TCP.
//!
//! **Invariant**: to change which backends get new connections, only slots are written, a byte each, so
//! that no connection finds half a table.
//!
//! **Invariant**: bytes take a fast road only when none are on the slow one; both conditions are read from
//! the sockets' own sequence numbers (`splice.h`). Redirected bytes that are not taken are bounded; past
//! the bound, bytes take TCP.
//!
//! **Invariant**: a walk over frames (`frame_position.h`) changes no verdict and no byte; bytes that it
//! cannot make out cost a flow its position, and nothing else.
//!
//! **Invariant**: which side of a spliced flow is near is said once, as it is enrolled; no program knows
//! whether that is the client or the database.
//!
//! **Invariant**: an incoming connection reaches the agent only while the database that was dialled listens
//! (`incoming.h`); one to a virtual address only while some backend takes new connections (`virtual.h`):
//! otherwise it is refused, never lost.
//!
//! **Invariant**: every packet at the edge has one verdict, and is counted once. A packet that cannot be
//! forwarded is found out before a byte of it is changed.
//!
//! **Boundary**: the hooks know rules by number. Names, files and reasons are the agent's.

pub mod abi;

/// The compiled object (ELF, with BTF), for the loader.
pub static OBJECT: &[u8] = &ALIGNED.bytes;

/// The edge's object.
pub static EDGE_OBJECT: &[u8] = &EDGE_ALIGNED.bytes;

/// The object of programs that only measurements load; no agent has them.
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
