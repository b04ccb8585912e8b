//! Findings about this host: what it has and what it lacks, each with its reason.

pub(crate) mod neighbours;
mod sizes;

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use aya::{maps::MapType, programs::ProgramType};
use nix::sys::utsname::uname;

use crate::{
    IncomingOptions,
    hooks::{self, Place},
    host, incoming, meter_hooks,
    running::{self, NotAdopted, Scope, Survey},
    shortcut,
};
use policy::Policy;
pub use sizes::{MapSize, map_sizes};

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// There.
    Ok,
    /// Something is off, or worth knowing; flows are carried all the same.
    Notice,
    /// No flow can be intercepted.
    Missing,
}

impl State {
    /// The grade as text.
    pub fn as_str(self) -> &'static str {
        match self {
            State::Ok => "ok",
            State::Notice => "notice",
            State::Missing => "missing",
        }
    }
}

/// A finding about one thing.
#[derive(Clone, Debug)]
pub struct Finding {
    /// The thing that was looked at.
    pub what: String,
    /// How it is.
    pub state: State,
    /// Why, and what to do.
    pub detail: String,
}

/// The oldest kernel on which every hook that is attached exists: SO_NETNS_COOKIE.
const OLDEST_KERNEL: (u32, u32) = (5, 14);

/// Looks at everything. Changes nothing.
pub fn examine(cgroup: Option<&Path>, pins: &Path) -> Vec<Finding> {
    let mut findings = vec![
        kernel(),
        btf(),
        capabilities(),
        cgroup2(cgroup),
        bpffs(),
        left(pins),
    ];
    findings.extend(programs());
    findings.extend(maps());
    findings.extend([netns(), ipv6()]);
    // Before anything is tried out: the kernel takes a moment to forget that.
    findings.extend(neighbours::look(pins));
    findings.push(names(cgroup));
    findings.push(observe());
    findings.push(shortcut());
    findings.extend(incoming());
    findings
}

const RUNNING: &str = "running connections";

/// Says how many running connections a policy has read where they are, and why others are not. `cgroup`: the agent's;
/// None: the root. `adopts`: the agent is to read any.
pub fn running(
    policy: &Policy,
    cgroup: Option<&Path>,
    incoming: &[IncomingOptions],
    adopts: bool,
) -> Vec<Finding> {
    let root = || host::cgroup2_root().ok().flatten();
    let Some(cgroup) = cgroup.map(Path::to_owned).or_else(root) else {
        return Vec::new();
    };
    let scope = Scope {
        cgroup,
        generation: 0,
        forgets: 0,
        incoming: incoming.iter().filter_map(IncomingOptions::inode).collect(),
    };
    let survey = match Survey::take(policy, &scope) {
        Ok(survey) => survey,
        Err(error) => return vec![finding(RUNNING, State::Notice, error.to_string())],
    };
    let count = survey.wanted.len();
    let read = match (count, adopts) {
        (0, _) | (_, false) => readable(count, adopts, Ok(None)),
        _ => readable(count, adopts, running::try_out().map_err(|e| e.to_string())),
    };
    let not = survey.not.into_iter().map(|(reason, missed)| {
        let mut named = missed.named;
        match missed.count.saturating_sub(named.len() as u64) {
            0 => {}
            // Of namespaces no connection is known.
            _ if named.is_empty() => {}
            others => named.push(format!("and {others} more")),
        }
        let mut detail = format!("{} cannot be read: {}", missed.count, reason.explained());
        if !named.is_empty() {
            detail += &format!(" ({})", named.join(", "));
        }
        finding(RUNNING, State::Notice, detail)
    });
    [read].into_iter().chain(not).collect()
}

/// Says what becomes of so many running connections that could be read. `tried`: why this kernel does not let them.
fn readable(count: usize, adopts: bool, tried: Result<Option<NotAdopted>, String>) -> Finding {
    let (state, detail) = match tried {
        _ if !adopts => (
            State::Ok,
            format!("{count} are left alone until they connect again: `adopt = false`"),
        ),
        Ok(None) => (State::Ok, format!("{count} can be read where they are")),
        Ok(Some(reason)) => (
            State::Notice,
            format!("{count} cannot be read: {}", reason.explained()),
        ),
        Err(error) => (
            State::Notice,
            format!(
                "{count} are to be read where they are, and whether this kernel lets them could not be tried: {error}"
            ),
        ),
    };
    finding(RUNNING, state, detail)
}

fn finding(what: &str, state: State, detail: impl Into<String>) -> Finding {
    Finding {
        what: what.to_owned(),
        state,
        detail: detail.into(),
    }
}

fn kernel() -> Finding {
    let release = match uname() {
        Ok(name) => name.release().to_string_lossy().into_owned(),
        Err(error) => return finding("kernel", State::Notice, error.to_string()),
    };
    let mut numbers = release
        .split(|c: char| !c.is_ascii_digit())
        .map(|n| n.parse().unwrap_or(0));
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    let (major, minor) = OLDEST_KERNEL;
    if version >= OLDEST_KERNEL {
        finding("kernel", State::Ok, release)
    } else {
        finding(
            "kernel",
            State::Missing,
            format!("{release}: {major}.{minor} is the oldest"),
        )
    }
}

fn btf() -> Finding {
    let path = Path::new("/sys/kernel/btf/vmlinux");
    if path.exists() {
        finding("BTF", State::Ok, path.display().to_string())
    } else {
        finding(
            "BTF",
            State::Missing,
            "no /sys/kernel/btf/vmlinux: CONFIG_DEBUG_INFO_BTF is off",
        )
    }
}

/// The capabilities, by their bits in `CapEff` (capability.h).
const CAPABILITIES: [(&str, u32); 5] = [
    ("CAP_NET_BIND_SERVICE", 10),
    ("CAP_NET_ADMIN", 12),
    ("CAP_NET_RAW", 13),
    ("CAP_PERFMON", 38),
    ("CAP_BPF", 39),
];

fn capabilities() -> Finding {
    let lacking: Vec<&str> = CAPABILITIES
        .into_iter()
        .filter(|(_, bit)| !host::is_capable(*bit))
        .map(|c| c.0)
        .collect();
    if lacking.is_empty() {
        finding(
            "capabilities",
            State::Ok,
            CAPABILITIES.map(|c| c.0).join(" "),
        )
    } else {
        let detail = format!("without {}: run as root", lacking.join(" "));
        finding("capabilities", State::Missing, detail)
    }
}

fn cgroup2(configured: Option<&Path>) -> Finding {
    let what = "cgroup2";
    let path: PathBuf = match (configured, host::cgroup2_root()) {
        (Some(path), _) => path.to_owned(),
        (None, Ok(Some(root))) => root,
        (None, Ok(None)) => {
            let detail = host::no_cgroup2().unwrap_or("not found");
            return finding(what, State::Missing, detail);
        }
        (None, Err(error)) => return finding(what, State::Missing, error.to_string()),
    };
    if host::is_cgroup2(&path) {
        finding(what, State::Ok, path.display().to_string())
    } else {
        finding(
            what,
            State::Missing,
            format!("{} is not in a cgroup2", path.display()),
        )
    }
}

fn bpffs() -> Finding {
    let at = Path::new(host::BPFFS);
    if host::is_bpffs(at) {
        finding("bpffs", State::Ok, host::BPFFS)
    } else if at.exists() {
        finding(
            "bpffs",
            State::Notice,
            "not mounted; `underpass run` mounts it",
        )
    } else {
        let detail = format!("there is no {}: is sysfs mounted?", host::BPFFS);
        finding("bpffs", State::Missing, detail)
    }
}

fn left(pins: &Path) -> Finding {
    let what = "pins";
    match fs::read_dir(pins).map(Iterator::count) {
        Ok(0) => {}
        Ok(_) => {
            let detail = format!(
                "{}: an agent runs, or was killed; `underpass detach` removes a dead one's hooks",
                pins.display()
            );
            return finding(what, State::Notice, detail);
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return finding(what, State::Notice, format!("{}: {error}", pins.display())),
    }
    finding(
        what,
        State::Ok,
        format!("nothing is pinned at {}", pins.display()),
    )
}

fn programs() -> Vec<Finding> {
    [
        ("connect hooks", ProgramType::CgroupSockAddr),
        ("getsockopt hook", ProgramType::CgroupSockopt),
        ("sock_ops hook", ProgramType::SockOps),
        ("socket filter", ProgramType::SocketFilter),
    ]
    .map(|(what, kind)| {
        probed(
            what,
            aya::sys::is_program_supported(kind).map_err(|e| e.to_string()),
        )
    })
    .into()
}

fn maps() -> Vec<Finding> {
    [
        ("trie maps", MapType::LpmTrie),
        ("socket storage", MapType::SkStorage),
        ("ring buffer", MapType::RingBuf),
    ]
    .map(|(what, kind)| {
        probed(
            what,
            aya::sys::is_map_supported(kind).map_err(|e| e.to_string()),
        )
    })
    .into()
}

fn probed(what: &'static str, answer: Result<bool, String>) -> Finding {
    match answer {
        Ok(true) => finding(what, State::Ok, "the kernel has it"),
        Ok(false) => finding(what, State::Missing, "the kernel does not have it"),
        Err(error) => finding(what, State::Missing, format!("cannot be probed: {error}")),
    }
}

fn netns() -> Finding {
    match host::netns_cookie() {
        Ok(cookie) => finding(
            "network namespace",
            State::Ok,
            format!("cookie {cookie}; processes in others are served there (`max_namespaces`)"),
        ),
        Err(error) => finding(
            "network namespace",
            State::Missing,
            format!("SO_NETNS_COOKIE: {error}; it came with Linux 5.14"),
        ),
    }
}

fn ipv6() -> Finding {
    match std::net::TcpListener::bind("[::1]:0") {
        Ok(_) => finding("IPv6", State::Ok, "the loopback has it"),
        Err(error) => finding(
            "IPv6",
            State::Notice,
            format!("{error}: IPv6 flows follow their rule's `fail`"),
        ),
    }
}

/// Only `[[incoming]]` needs them. The routing is tried out in a namespace that is gone afterwards.
fn incoming() -> [Finding; 2] {
    let supported = aya::sys::is_program_supported(ProgramType::SkLookup);
    let steering = match supported {
        Ok(true) => finding("sk_lookup hook", State::Ok, "the kernel has it"),
        Ok(false) => finding(
            "sk_lookup hook",
            State::Notice,
            "the kernel does not have it: no `[[incoming]]`; it came with Linux 5.9",
        ),
        Err(error) => finding(
            "sk_lookup hook",
            State::Notice,
            format!("cannot be probed: {error}"),
        ),
    };
    let what = "incoming clients' addresses";
    let routing = match incoming::try_out() {
        Ok(()) => finding(what, State::Ok, "the routing rules can be had"),
        Err(reason) => finding(
            what,
            State::Notice,
            format!("{reason}: databases here see this host's address"),
        ),
    };
    [steering, routing]
}

/// Loaded, and attached to nothing.
fn observe() -> Finding {
    let what = "observe";
    match meter_hooks::try_out().failure {
        None => finding(what, State::Ok, "the kernel takes the meter"),
        Some(reason) => finding(
            what,
            State::Notice,
            format!("{reason}: flows whose rule asks for it are left alone unobserved"),
        ),
    }
}

/// Whether a client beside another program's connect hooks is told the name that it would have without us.
fn names(cgroup: Option<&Path>) -> Finding {
    let what = "names";
    let root = host::cgroup2_root().ok().flatten();
    let Some(cgroup) = cgroup.map(Path::to_owned).or(root) else {
        return finding(what, State::Notice, "no cgroup2");
    };
    match hooks::place_of_names(&cgroup) {
        Ok(Place::Ahead) => finding(
            what,
            State::Ok,
            "getpeername() beside another program's connect hooks shows what it shows without underpass",
        ),
        Ok(Place::InTurn) => finding(
            what,
            State::Notice,
            "this kernel does not order hooks (BPF_F_PREORDER for links, Linux 6.17): where another program's connect and \
             getpeername hooks (a Kubernetes service's, say) were attached first, getpeername() of an \
             intercepted connection shows the backend, and not the service",
        ),
        Err(reason) => finding(what, State::Notice, format!("could not be tried: {reason}")),
    }
}

/// Says what FIONREAD tells in a sockmap; nothing where that is not known.
fn fionread(says: Option<shortcut::Fionread>) -> String {
    let told = says.map(|says| format!("; in a sockmap FIONREAD tells {says}"));
    told.unwrap_or_default()
}

/// ProbeResult on sockets of this process's own.
fn shortcut() -> Finding {
    let what = "shortcut";
    let (tried, says) = shortcut::try_out();
    let ms = tried.took.as_millis();
    match tried.failure {
        None => finding(
            what,
            State::Ok,
            format!(
                "bytes arrive in order, bounded, and at once, tried in {ms} ms{}",
                fionread(says)
            ),
        ),
        Some(reason) => finding(
            what,
            State::Notice,
            format!("{reason}: flows whose rule asks for it stay on TCP (after {ms} ms)"),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn running_connections_can_be_read_only_if_the_kernel_and_the_agent_read_them() {
        let said = |adopts, tried| readable(2, adopts, tried).detail;
        assert_eq!(said(true, Ok(None)), "2 can be read where they are");
        assert_eq!(
            said(true, Ok(Some(NotAdopted::NoEnd))),
            "2 cannot be read: this kernel does not tell of their end (Linux 6.12 does)"
        );
        let failed = said(true, Err("no memory".to_owned()));
        assert!(
            failed.ends_with("could not be tried: no memory"),
            "{failed}"
        );
        assert_eq!(
            said(false, Ok(None)),
            "2 are left alone until they connect again: `adopt = false`"
        );
    }
}
