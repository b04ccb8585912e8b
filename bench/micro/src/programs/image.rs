//! A program's machine code, as the kernel shows it: everything `unsafe` of this crate.
//!
//! No crate wraps this part of BPF_OBJ_GET_INFO_BY_FD, and a bpftool that was built without a
//! disassembler, as Debian's is, refuses to write the code to a file, too.

#![expect(unsafe_code, reason = "a system call that no crate wraps")]

use std::{
    mem::size_of,
    os::fd::{AsFd, AsRawFd, BorrowedFd},
};

use aya::programs::ProgramInfo;
use nix::{errno::Errno, libc};

/// `enum bpf_cmd` in `linux/bpf.h`.
const BPF_OBJ_GET_INFO_BY_FD: libc::c_long = 15;

/// The part of `union bpf_attr` for that command.
#[repr(C)]
struct Attributes {
    fd: u32,
    info_len: u32,
    info: u64,
}

/// The beginning of `struct bpf_prog_info`; the kernel fills as much as `info_len` says.
#[repr(C)]
#[derive(Default)]
struct Info {
    kind: u32,
    id: u32,
    tag: [u8; 8],
    jited_len: u32,
    translated_len: u32,
    jited: u64,
    translated: u64,
}

/// The code of all its functions, one behind the other. None: the kernel does not show it, or the
/// program is not JIT-compiled.
pub(super) fn read(program: &ProgramInfo) -> Option<Vec<u8>> {
    let descriptor = program.fd().ok()?;
    let mut code = vec![0; program.size_jitted() as usize];
    let shown = fill(descriptor.as_fd(), &mut code).ok()?;
    (shown && !code.is_empty()).then_some(code)
}

/// False when the kernel keeps the code to itself, or has another size of it.
fn fill(descriptor: BorrowedFd<'_>, code: &mut [u8]) -> nix::Result<bool> {
    let len = u32::try_from(code.len()).map_err(|_| Errno::EOVERFLOW)?;
    let mut info = Info {
        jited_len: len,
        jited: code.as_mut_ptr() as u64,
        ..Info::default()
    };
    let mut attributes = Attributes {
        fd: descriptor.as_raw_fd().cast_unsigned(),
        info_len: size_of::<Info>() as u32,
        info: &raw mut info as u64,
    };
    // SAFETY: the kernel reads and writes `attributes` and `info` within the sizes that it is
    // told, and writes at most `jited_len` bytes to `code`; all three outlive the call, and
    // nothing else refers to them during it.
    let result = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            BPF_OBJ_GET_INFO_BY_FD,
            &raw mut attributes,
            size_of::<Attributes>(),
        )
    };
    Errno::result(result)?;
    Ok(info.jited != 0 && info.jited_len == len)
}
