//! Confinement of the agent: capabilities that it has no use for, privileges that a program of another user would bring,
//! and, once it is attached, system calls that it never makes.
//!
//! [`cut_capabilities`] runs before there is a second thread, so it holds in each. [`filter_calls`] runs when hooks are
//! attached and holds in all threads, those to come and the keeper.
//!
//! A call outside of the list fails with EPERM. Killing the agent for it would be worse: its flows are everybody's, and
//! whoever can make it do something unusual could end them all.

use std::io;

use nix::libc;
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, remove_capability_from_bounding_set,
    set_capabilities, set_no_new_privs,
};
use seccompiler::{SeccompAction, SeccompFilter, TargetArch};

/// Capabilities without which nothing is intercepted: programs and maps, hooks, answers to held SYNs, listeners below 1024.
/// `docs/running.md` names the same.
const NEEDED: [(&str, CapabilitySet); 5] = [
    ("CAP_BPF", CapabilitySet::BPF),
    ("CAP_NET_ADMIN", CapabilitySet::NET_ADMIN),
    ("CAP_NET_BIND_SERVICE", CapabilitySet::NET_BIND_SERVICE),
    ("CAP_NET_RAW", CapabilitySet::NET_RAW),
    ("CAP_PERFMON", CapabilitySet::PERFMON),
];

/// Capabilities that make more possible: other network namespaces and a bpffs to mount; which process is in which namespace; more
/// descriptors than the hard limit; the admin socket's group; files of whoever called sudo.
const USEFUL: [(&str, CapabilitySet); 5] = [
    ("CAP_SYS_ADMIN", CapabilitySet::SYS_ADMIN),
    ("CAP_SYS_PTRACE", CapabilitySet::SYS_PTRACE),
    ("CAP_SYS_RESOURCE", CapabilitySet::SYS_RESOURCE),
    ("CAP_CHOWN", CapabilitySet::CHOWN),
    ("CAP_DAC_READ_SEARCH", CapabilitySet::DAC_READ_SEARCH),
];

/// Cuts the capabilities of this thread, and of all that it starts, and rules out that they gain any.
///
/// # Errors
/// The kernel refuses.
pub fn cut_capabilities() -> io::Result<()> {
    set_no_new_privs(true)?;
    let kept = kept();
    let old = capabilities(None)?;
    // Without CAP_SETPCAP the bounding set stays, and bounds only what a program would gain, which is nothing now.
    for capability in CapabilitySet::all().iter() {
        if !kept.contains(capability) {
            let _ = remove_capability_from_bounding_set(capability);
        }
    }
    set_capabilities(
        None,
        CapabilitySets {
            effective: old.effective & kept,
            permitted: old.permitted & kept,
            inheritable: CapabilitySet::empty(),
        },
    )?;
    Ok(())
}

fn kept() -> CapabilitySet {
    let all = NEEDED.iter().chain(&USEFUL);
    all.fold(CapabilitySet::empty(), |kept, (_, one)| kept | *one)
}

/// Rules out system calls that the agent never makes, in all its threads.
///
/// # Errors
/// The kernel has no such filters, or this processor is not known.
pub fn filter_calls() -> anyhow::Result<()> {
    let arch: TargetArch = std::env::consts::ARCH.try_into()?;
    let rules = CALLS
        .iter()
        .chain(OLD_CALLS)
        .map(|call| (*call, Vec::new()));
    let unlisted = match test_hooks::get().strict_calls {
        true => SeccompAction::KillProcess,
        false => SeccompAction::Errno(libc::EPERM as u32),
    };
    let filter = SeccompFilter::new(rules.collect(), unlisted, SeccompAction::Allow, arch)?;
    let program: seccompiler::BpfProgram = filter.try_into()?;
    seccompiler::apply_filter_all_threads(&program)?;
    Ok(())
}

/// Calls of the agent, its runtime, its allocator and its libraries, and what the C library uses in the place of one of
/// them on other kernels. Every test of the agent runs under this list, and a call that is not in it kills the agent there.
#[rustfmt::skip]
const CALLS: &[i64] = &[
    // Files and folders: the policy, keys, journals, /proc, sockets' files, pins.
    libc::SYS_read, libc::SYS_write, libc::SYS_readv, libc::SYS_writev, libc::SYS_pread64, libc::SYS_pwrite64,
    libc::SYS_preadv, libc::SYS_pwritev, libc::SYS_close, libc::SYS_close_range, libc::SYS_openat, libc::SYS_lseek,
    libc::SYS_fstat, libc::SYS_newfstatat, libc::SYS_statx, libc::SYS_statfs, libc::SYS_fstatfs, libc::SYS_faccessat,
    libc::SYS_faccessat2, libc::SYS_readlinkat, libc::SYS_getdents64, libc::SYS_mkdirat, libc::SYS_unlinkat,
    libc::SYS_renameat, libc::SYS_renameat2, libc::SYS_symlinkat, libc::SYS_fchmod, libc::SYS_fchmodat,
    libc::SYS_fchown, libc::SYS_fchownat, libc::SYS_ftruncate, libc::SYS_fsync, libc::SYS_fdatasync, libc::SYS_flock,
    libc::SYS_fcntl, libc::SYS_ioctl, libc::SYS_umask, libc::SYS_getcwd, libc::SYS_chdir, libc::SYS_dup, libc::SYS_dup3,
    libc::SYS_pipe2, libc::SYS_fallocate, libc::SYS_fadvise64, libc::SYS_memfd_create,
    // Waiting.
    libc::SYS_ppoll, libc::SYS_pselect6, libc::SYS_epoll_create1, libc::SYS_epoll_ctl, libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2, libc::SYS_eventfd2, libc::SYS_timerfd_create, libc::SYS_timerfd_settime,
    libc::SYS_timerfd_gettime, libc::SYS_signalfd4,
    // Sockets.
    libc::SYS_socket, libc::SYS_socketpair, libc::SYS_bind, libc::SYS_listen, libc::SYS_accept, libc::SYS_accept4,
    libc::SYS_connect, libc::SYS_shutdown, libc::SYS_getsockname, libc::SYS_getpeername, libc::SYS_sendto,
    libc::SYS_recvfrom, libc::SYS_sendmsg, libc::SYS_recvmsg, libc::SYS_sendmmsg, libc::SYS_recvmmsg, libc::SYS_io_uring_enter,
    libc::SYS_setsockopt, libc::SYS_getsockopt, libc::SYS_splice, libc::SYS_tee, libc::SYS_sendfile,
    // The kernel's half, and other namespaces.
    libc::SYS_bpf, libc::SYS_perf_event_open, libc::SYS_setns, libc::SYS_unshare,
    // Threads, and the keeper's process.
    libc::SYS_clone, libc::SYS_clone3, libc::SYS_execve, libc::SYS_wait4, libc::SYS_waitid, libc::SYS_exit,
    libc::SYS_exit_group, libc::SYS_futex, libc::SYS_set_robust_list, libc::SYS_get_robust_list, libc::SYS_rseq,
    libc::SYS_set_tid_address, libc::SYS_membarrier, libc::SYS_sched_yield, libc::SYS_sched_getaffinity,
    libc::SYS_sched_setaffinity, libc::SYS_getcpu, libc::SYS_setsid, libc::SYS_setpgid, libc::SYS_getpgid,
    libc::SYS_kill, libc::SYS_tgkill, libc::SYS_tkill, libc::SYS_pidfd_open, libc::SYS_pidfd_getfd,
    libc::SYS_pidfd_send_signal, libc::SYS_kcmp,
    // Memory.
    libc::SYS_mmap, libc::SYS_munmap, libc::SYS_mprotect, libc::SYS_mremap, libc::SYS_madvise, libc::SYS_brk,
    libc::SYS_mlock, libc::SYS_munlock,
    // Time, signals, who and where.
    libc::SYS_clock_gettime, libc::SYS_clock_getres, libc::SYS_clock_nanosleep, libc::SYS_nanosleep,
    libc::SYS_gettimeofday, libc::SYS_getrandom, libc::SYS_rt_sigaction, libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn, libc::SYS_rt_sigtimedwait, libc::SYS_sigaltstack, libc::SYS_restart_syscall,
    libc::SYS_getpid, libc::SYS_gettid, libc::SYS_getppid, libc::SYS_getuid, libc::SYS_geteuid, libc::SYS_getgid,
    libc::SYS_getegid, libc::SYS_getgroups, libc::SYS_prlimit64, libc::SYS_getrusage, libc::SYS_sysinfo,
    libc::SYS_uname, libc::SYS_prctl, libc::SYS_capget, libc::SYS_capset,
];

/// Calls that only this processor has.
#[cfg(target_arch = "x86_64")]
#[rustfmt::skip]
const OLD_CALLS: &[i64] = &[
    libc::SYS_open, libc::SYS_stat, libc::SYS_lstat, libc::SYS_access, libc::SYS_readlink, libc::SYS_mkdir,
    libc::SYS_rmdir, libc::SYS_unlink, libc::SYS_rename, libc::SYS_symlink, libc::SYS_chmod, libc::SYS_chown,
    libc::SYS_dup2, libc::SYS_pipe, libc::SYS_poll, libc::SYS_select, libc::SYS_epoll_wait, libc::SYS_epoll_create,
    libc::SYS_eventfd, libc::SYS_fork, libc::SYS_vfork, libc::SYS_arch_prctl, libc::SYS_time, libc::SYS_getrlimit,
    libc::SYS_setrlimit, libc::SYS_getpgrp, libc::SYS_getdents,
];
#[cfg(not(target_arch = "x86_64"))]
const OLD_CALLS: &[i64] = &[];

#[cfg(test)]
mod tests {
    use super::*;

    /// The page that tells operators which capabilities a unit has to give.
    #[test]
    fn documented_capabilities_are_those_that_are_kept() {
        let page = include_str!("../../../docs/running.md");
        let line = |begins: &str| {
            let line = page.lines().find(|line| line.starts_with(begins));
            line.unwrap_or_default().to_owned()
        };
        for (begins, set) in [("CapabilityBoundingSet=", &NEEDED), ("# and ", &USEFUL)] {
            let names: Vec<&str> = set.iter().map(|(name, _)| *name).collect();
            assert_eq!(line(begins), format!("{begins}{}", names.join(" ")));
        }
    }

    #[test]
    fn the_unit_gives_the_capabilities_that_are_kept() {
        let unit = include_str!("../../../packaging/underpass.service");
        let lines = unit
            .lines()
            .filter_map(|line| line.strip_prefix("CapabilityBoundingSet="));
        let given: Vec<&str> = lines.flat_map(str::split_whitespace).collect();
        let kept: Vec<&str> = NEEDED
            .iter()
            .chain(&USEFUL)
            .map(|(name, _)| *name)
            .collect();
        assert_eq!(given, kept);
    }

    #[test]
    fn a_call_is_listed_once() {
        let mut all = [CALLS, OLD_CALLS].concat();
        let n = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), n);
    }
}
