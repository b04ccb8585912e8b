//! The BPF programs, compiled from the C files beside this one, and [`abi`], the layout
//! that they share with the agent.
//!
//! One object holds every hook, so that one BTF and one set of maps serve them all. Start
//! reading at `connect.bpf.c`; then `legs.bpf.c`, `hold.bpf.c` and `names.bpf.c`, in the
//! order in which a connection meets them.

pub mod abi;

/// The compiled object (ELF, with BTF), for the loader.
pub static OBJECT: &[u8] = &ALIGNED.bytes;

/// ELF readers want the object aligned as its widest field, which `include_bytes!` alone
/// does not promise.
#[repr(C, align(32))]
struct Aligned<B: ?Sized> {
    bytes: B,
}

static ALIGNED: &Aligned<[u8]> = &Aligned {
    bytes: *include_bytes!(concat!(env!("OUT_DIR"), "/underpass.bpf.o")),
};
