//! Everything `unsafe`: socket options and questions to bpf(2) that no crate wraps, and the promise
//! that the shared layout is plain bytes.

pub(crate) mod bytes;
mod ring;
mod rings;
mod send_ring;

use std::{
    ffi::CString,
    fs::File,
    io,
    mem::size_of,
    os::{
        fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd},
        unix::ffi::OsStrExt,
    },
    path::Path,
};

use aya::maps::{MapData, RingBuf};
use nix::libc;
use tokio::io::{Interest, unix::AsyncFd};

pub(crate) use bytes::PodOf;
pub(crate) use rings::Rings;
pub use send_ring::{SendRing, Sending};

/// Makes a ring buffer of so many bytes: a power of two, and whole pages.
pub(crate) fn make_ring(bytes: u32) -> io::Result<OwnedFd> {
    /// `union bpf_attr` of BPF_MAP_CREATE (uapi/linux/bpf.h), as far as a ring needs it.
    #[repr(C)]
    struct Attr {
        map_type: u32,
        key_size: u32,
        value_size: u32,
        max_entries: u32,
        map_flags: u32,
        inner_map_fd: u32,
        numa_node: u32,
        map_name: [u8; 16],
    }
    const BPF_MAP_CREATE: libc::c_int = 0;
    const BPF_MAP_TYPE_RINGBUF: u32 = 27;
    let mut attr = Attr {
        map_type: BPF_MAP_TYPE_RINGBUF,
        key_size: 0,
        value_size: 0,
        max_entries: bytes,
        map_flags: 0,
        inner_map_fd: 0,
        numa_node: 0,
        map_name: *b"tap_ring\0\0\0\0\0\0\0\0",
    };
    // SAFETY: there are no pointers in it, and the kernel has just made the descriptor for us.
    unsafe { Ok(OwnedFd::from_raw_fd(bpf(BPF_MAP_CREATE, &mut attr)?)) }
}

/// Registers the ring with the runtime.
pub(crate) fn watch(ring: RingBuf<MapData>) -> io::Result<AsyncFd<RingBuf<MapData>>> {
    // SAFETY: the ring owns its descriptor and keeps it open until it is dropped, which is
    // when the AsyncFd that owns the ring deregisters it.
    Ok(unsafe { AsyncFd::register(ring) }?)
}

/// Registers a socket with the runtime so that only the end of its connection wakes: writable is
/// the one interest that packets which arrive do not meet.
pub(crate) fn watch_quietly(socket: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: the descriptor is owned and stays open until the AsyncFd that owns it is dropped or
    // gives it back, which is when it is deregistered.
    Ok(unsafe { AsyncFd::register_with_interest(socket, Interest::WRITABLE) }?)
}

/// Whether the peer has ended its side of a connection, or the connection is gone.
pub(crate) fn has_ended(socket: &impl AsRawFd) -> io::Result<bool> {
    let mut fd = libc::pollfd {
        fd: socket.as_raw_fd(),
        events: libc::POLLRDHUP,
        revents: 0,
    };
    // SAFETY: the pointer is to one local, and one is what is said to be there.
    match unsafe { libc::poll(&raw mut fd, 1, 0) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(fd.revents != 0),
    }
}

/// Switches TCP_REPAIR. While it is on, `bind()` takes an address and port without asking
/// who else has them; `connect()` still insists that the four-tuple is free.
pub(crate) fn set_tcp_repair(socket: &impl AsRawFd, on: bool) -> io::Result<()> {
    set_int(socket, libc::IPPROTO_TCP, libc::TCP_REPAIR, on.into())
}

/// Has connect() choose this very port, from a range that holds nothing else (Linux 6.3).
/// Unlike a bind it shares the port with connections to elsewhere.
pub(crate) fn set_port_range(socket: &impl AsRawFd, port: u16) -> io::Result<()> {
    /// `linux/in.h`; libc does not have it. Low half: the first port, high half: the last.
    const IP_LOCAL_PORT_RANGE: libc::c_int = 51;
    let range = u32::from(port) << 16 | u32::from(port);
    set_int(
        socket,
        libc::IPPROTO_IP,
        IP_LOCAL_PORT_RANGE,
        range.cast_signed(),
    )
}

/// Lets bind() take an address and leave the port to connect().
pub(crate) fn set_bind_without_port(socket: &impl AsRawFd) -> io::Result<()> {
    set_int(socket, libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT, 1)
}

/// Lets a socket be bound to an address that is not this host's.
pub(crate) fn set_transparent(socket: &impl AsRawFd, ipv6: bool) -> io::Result<()> {
    match ipv6 {
        false => set_int(socket, libc::IPPROTO_IP, libc::IP_TRANSPARENT, 1),
        true => set_int(socket, libc::IPPROTO_IPV6, libc::IPV6_TRANSPARENT, 1),
    }
}

/// Lets an IPv6 raw socket send whole packets; IPv4's does with IPPROTO_RAW alone.
pub(crate) fn set_ipv6_header_included(socket: &impl AsRawFd) -> io::Result<()> {
    /// `linux/in6.h`; libc does not have it.
    const IPV6_HDRINCL: libc::c_int = 36;
    set_int(socket, libc::IPPROTO_IPV6, IPV6_HDRINCL, 1)
}

/// The kernel's number for the network namespace of `socket` (Linux 5.14).
pub(crate) fn netns_cookie(socket: &impl AsRawFd) -> io::Result<u64> {
    /// `asm-generic/socket.h`; libc does not have it.
    const SO_NETNS_COOKIE: libc::c_int = 71;
    get_number(socket, SO_NETNS_COOKIE)
}

/// The kernel's number for `socket`.
pub(crate) fn socket_cookie(socket: &impl AsRawFd) -> io::Result<u64> {
    get_number(socket, libc::SO_COOKIE)
}

/// The network namespace of `socket`, open.
pub(crate) fn netns_of(socket: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    /// `linux/sockios.h`; libc does not have it.
    const SIOCGSKNS: libc::Ioctl = 0x894C;
    // SAFETY: the call takes no argument.
    match unsafe { libc::ioctl(socket.as_raw_fd(), SIOCGSKNS) } {
        -1 => Err(io::Error::last_os_error()),
        // SAFETY: the kernel has just made it, for nobody else.
        fd => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
    }
}

/// Has a socket's packets pass this program first.
pub(crate) fn attach_filter(socket: &impl AsRawFd, program: BorrowedFd<'_>) -> io::Result<()> {
    set_int(
        socket,
        libc::SOL_SOCKET,
        libc::SO_ATTACH_BPF,
        program.as_raw_fd(),
    )
}

fn get_number(socket: &impl AsRawFd, option: libc::c_int) -> io::Result<u64> {
    let mut number = 0_u64;
    let mut bytes = size_of::<u64>() as libc::socklen_t;
    // SAFETY: the pointers are to locals of the sizes given.
    let answer = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            option,
            (&raw mut number).cast(),
            &raw mut bytes,
        )
    };
    if answer == 0 {
        Ok(number)
    } else {
        Err(io::Error::last_os_error())
    }
}

const BPF_LINK_CREATE: libc::c_int = 28;

/// `union bpf_attr` of BPF_OBJ_PIN and BPF_OBJ_GET (uapi/linux/bpf.h).
#[repr(C)]
struct PinAttr {
    pathname: u64,
    bpf_fd: u32,
    file_flags: u32,
}

/// Runs a program here and now on these bytes (BPF_PROG_TEST_RUN); what it made of them is in
/// `output`. Returns what it returned.
pub(crate) fn run_program(
    program: BorrowedFd<'_>,
    input: &[u8],
    output: &mut [u8],
) -> io::Result<u32> {
    /// `union bpf_attr` of BPF_PROG_TEST_RUN (uapi/linux/bpf.h), up to `batch_size`.
    #[repr(C)]
    struct Attr {
        prog_fd: u32,
        retval: u32,
        data_size_in: u32,
        data_size_out: u32,
        data_in: u64,
        data_out: u64,
        repeat: u32,
        duration: u32,
        ctx_size_in: u32,
        ctx_size_out: u32,
        ctx_in: u64,
        ctx_out: u64,
        flags: u32,
        cpu: u32,
        batch_size: u32,
        pad: u32,
    }
    const BPF_PROG_TEST_RUN: libc::c_int = 10;
    let mut attr = Attr {
        prog_fd: program.as_raw_fd().cast_unsigned(),
        retval: 0,
        data_size_in: input.len() as u32,
        data_size_out: output.len() as u32,
        data_in: input.as_ptr() as u64,
        data_out: output.as_mut_ptr() as u64,
        repeat: 1,
        duration: 0,
        ctx_size_in: 0,
        ctx_size_out: 0,
        ctx_in: 0,
        ctx_out: 0,
        flags: 0,
        cpu: 0,
        batch_size: 0,
        pad: 0,
    };
    // SAFETY: the pointers are to slices of the sizes given; the kernel reads one, writes at most
    // its size to the other, and keeps neither.
    unsafe { bpf(BPF_PROG_TEST_RUN, &mut attr) }?;
    Ok(attr.retval)
}

/// Attaches a program to a cgroup's hook (`BPF_CGROUP_*`), with flags (`BPF_F_*`). Dropped, it is detached.
///
/// # Errors
/// The kernel does not take it; EINVAL where it does not know a flag.
pub fn link_to_cgroup(
    program: BorrowedFd<'_>,
    cgroup: BorrowedFd<'_>,
    hook: u32,
    flags: u32,
) -> io::Result<OwnedFd> {
    /// `union bpf_attr` of BPF_LINK_CREATE with `cgroup` (uapi/linux/bpf.h).
    #[repr(C)]
    struct Attr {
        prog_fd: u32,
        target_fd: u32,
        attach_type: u32,
        flags: u32,
        relative_fd: u32,
        pad: u32,
        expected_revision: u64,
    }
    let mut attr = Attr {
        prog_fd: program.as_raw_fd().cast_unsigned(),
        target_fd: cgroup.as_raw_fd().cast_unsigned(),
        attach_type: hook,
        flags,
        relative_fd: 0,
        pad: 0,
        expected_revision: 0,
    };
    // SAFETY: there is no pointer in it, and the kernel has just made the descriptor for us.
    unsafe { Ok(OwnedFd::from_raw_fd(bpf(BPF_LINK_CREATE, &mut attr)?)) }
}

/// Locks a file for as long as any descriptor of this opening of it is there, in whichever process.
///
/// # Errors
/// Somebody else has locked it.
pub(crate) fn lock(file: &impl AsRawFd) -> io::Result<()> {
    // SAFETY: no pointer is passed.
    match unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Has a link run another program from now on: whoever comes meets the one or the other, never both and never none.
///
/// # Errors
/// The link is of a kind, or the program of a type, that the kernel does not exchange.
pub(crate) fn update_link(link: BorrowedFd<'_>, program: BorrowedFd<'_>) -> io::Result<()> {
    /// `union bpf_attr` of BPF_LINK_UPDATE (uapi/linux/bpf.h).
    #[repr(C)]
    struct Attr {
        link_fd: u32,
        new_prog_fd: u32,
        flags: u32,
        old_prog_fd: u32,
    }
    const BPF_LINK_UPDATE: libc::c_int = 29;
    let mut attr = Attr {
        link_fd: link.as_raw_fd().cast_unsigned(),
        new_prog_fd: program.as_raw_fd().cast_unsigned(),
        flags: 0,
        old_prog_fd: 0,
    };
    // SAFETY: there is no pointer in it.
    unsafe { bpf(BPF_LINK_UPDATE, &mut attr) }.map(drop)
}

/// Pins an object at a path of bpffs.
pub(crate) fn pin(object: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    const BPF_OBJ_PIN: libc::c_int = 6;
    let path = CString::new(path.as_os_str().as_bytes())?;
    let mut attr = PinAttr {
        pathname: path.as_ptr() as u64,
        bpf_fd: object.as_raw_fd().cast_unsigned(),
        file_flags: 0,
    };
    // SAFETY: the path is a local, ended by a zero; the kernel keeps no pointer.
    unsafe { bpf(BPF_OBJ_PIN, &mut attr) }.map(drop)
}

/// Opens what is pinned at a path of bpffs, whatever it is.
pub(crate) fn open_pin(path: &Path) -> io::Result<OwnedFd> {
    const BPF_OBJ_GET: libc::c_int = 7;
    let path = CString::new(path.as_os_str().as_bytes())?;
    let mut attr = PinAttr {
        pathname: path.as_ptr() as u64,
        bpf_fd: 0,
        file_flags: 0,
    };
    // SAFETY: the path is a local, ended by a zero; the kernel keeps no pointer, and has just made
    // the descriptor for us.
    unsafe { Ok(OwnedFd::from_raw_fd(bpf(BPF_OBJ_GET, &mut attr)?)) }
}

/// An iterator's output, which can be read once, to its end: about a map's entries, or without a map about
/// what the namespace of this thread has.
pub(crate) fn iterate_over(
    program: BorrowedFd<'_>,
    map: Option<BorrowedFd<'_>>,
) -> io::Result<File> {
    /// `union bpf_attr` of BPF_LINK_CREATE with `iter_info` (uapi/linux/bpf.h).
    #[repr(C)]
    struct LinkAttr {
        prog_fd: u32,
        target_fd: u32,
        attach_type: u32,
        flags: u32,
        /// `union bpf_iter_link_info`: the map's descriptor.
        iter_info: u64,
        iter_info_len: u32,
        pad: u32,
    }
    /// Argument of BPF_ITER_CREATE.
    #[repr(C)]
    struct IterAttr {
        link_fd: u32,
        flags: u32,
    }
    const BPF_ITER_CREATE: libc::c_int = 33;
    const BPF_TRACE_ITER: u32 = 28;
    let target = map.map_or(0, |map| map.as_raw_fd().cast_unsigned());
    let info = map.map_or((0, 0), |_| {
        ((&raw const target) as u64, size_of_val(&target) as u32)
    });
    let mut attr = LinkAttr {
        prog_fd: program.as_raw_fd().cast_unsigned(),
        target_fd: 0,
        attach_type: BPF_TRACE_ITER,
        flags: 0,
        iter_info: info.0,
        iter_info_len: info.1,
        pad: 0,
    };
    // SAFETY: the pointer is to a local of the size given, which the kernel reads and does not keep;
    // it has just made the descriptor for us.
    let link = unsafe { OwnedFd::from_raw_fd(bpf(BPF_LINK_CREATE, &mut attr)?) };
    let mut attr = IterAttr {
        link_fd: link.as_raw_fd().cast_unsigned(),
        flags: 0,
    };
    // SAFETY: no pointer is in it; and as above.
    unsafe { Ok(File::from_raw_fd(bpf(BPF_ITER_CREATE, &mut attr)?)) }
}

/// How many bytes FIONREAD says that a socket has.
pub(crate) fn readable_bytes(socket: BorrowedFd<'_>) -> io::Result<u64> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the kernel writes an int, which this is.
    match unsafe { libc::ioctl(socket.as_raw_fd(), libc::FIONREAD, &raw mut bytes) } {
        0 => Ok(u64::from(bytes.unsigned_abs())),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Waits until every BPF program that runs now has ended, on all processors.
pub(crate) fn wait_for_running_programs() -> io::Result<()> {
    const MEMBARRIER_CMD_GLOBAL: libc::c_int = 1;
    // SAFETY: no pointer is in it.
    match unsafe { libc::syscall(libc::SYS_membarrier, MEMBARRIER_CMD_GLOBAL, 0, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The programs that are attached to a cgroup or a sockmap at one of its hooks
/// (`BPF_CGROUP_*`, `BPF_SK_*`), at most 64: the kernel allows no more on a cgroup.
pub(crate) fn attached_programs(target: BorrowedFd<'_>, hook: u32) -> io::Result<Vec<u32>> {
    /// `union bpf_attr` of BPF_PROG_QUERY (uapi/linux/bpf.h).
    #[repr(C)]
    struct Attr {
        target_fd: u32,
        attach_type: u32,
        query_flags: u32,
        attach_flags: u32,
        prog_ids: u64,
        prog_cnt: u32,
        pad: u32,
    }
    const BPF_PROG_QUERY: libc::c_int = 16;
    let mut programs = vec![0_u32; 64];
    let mut attr = Attr {
        target_fd: target.as_raw_fd().cast_unsigned(),
        attach_type: hook,
        query_flags: 0,
        attach_flags: 0,
        prog_ids: programs.as_mut_ptr() as u64,
        prog_cnt: programs.len() as u32,
        pad: 0,
    };
    // SAFETY: the pointer is to a local of the size given; the kernel writes at most `prog_cnt`
    // numbers, and how many there are, and does not keep it.
    unsafe { bpf(BPF_PROG_QUERY, &mut attr) }?;
    programs.truncate(attr.prog_cnt as usize);
    Ok(programs)
}

/// bpf(2): 0, or the descriptor that it has made.
///
/// # Safety
/// `attr` is what `command` takes, from its beginning on, and its pointers are good for that.
unsafe fn bpf<T>(command: libc::c_int, attr: &mut T) -> io::Result<RawFd> {
    // SAFETY: the kernel reads and writes as many bytes of the local as it is told; the rest is the
    // caller's promise.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command,
            std::ptr::from_mut(attr),
            size_of::<T>(),
        )
    };
    match RawFd::try_from(answer) {
        Ok(answer) if answer >= 0 => Ok(answer),
        _ => Err(io::Error::last_os_error()),
    }
}

fn set_int(
    socket: &impl AsRawFd,
    level: libc::c_int,
    name: libc::c_int,
    value: libc::c_int,
) -> io::Result<()> {
    // SAFETY: the pointer is to a local of the size given.
    let answer = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            name,
            (&raw const value).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    if answer == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
