//! Facts about the host and the agent's process.

use std::{fs, process::Command};

use anyhow::Context as _;
use nix::sys::{
    socket::{getsockopt, sockopt::PeerCredentials},
    utsname::uname,
};
use serde_json::json;

use crate::commands::{endpoint::connect, whereabouts::Control};

/// Lines of the log.
const LOG_LINES: &str = "2000";

/// Seconds for the journal to give them: it may be on a slow disk.
const LOG_SECONDS: &str = "20";

/// Files that say how the kernel's network and BPF are set.
const SETTINGS: [&str; 12] = [
    "/etc/os-release",
    "/proc/meminfo",
    "/proc/loadavg",
    "/proc/sys/kernel/unprivileged_bpf_disabled",
    "/proc/sys/net/core/bpf_jit_enable",
    "/proc/sys/net/core/bpf_jit_harden",
    "/proc/sys/net/core/somaxconn",
    "/proc/sys/net/ipv4/ip_local_port_range",
    "/proc/sys/net/ipv4/tcp_congestion_control",
    "/proc/sys/net/ipv4/tcp_mem",
    "/proc/sys/net/ipv4/tcp_rmem",
    "/proc/sys/net/ipv4/tcp_wmem",
];

/// Files that say how the agent is.
const STATE: [&str; 4] = ["status", "limits", "cgroup", "net/sockstat"];

pub(super) fn version() -> String {
    let name = env!("CARGO_PKG_VERSION");
    let build = if cfg!(debug_assertions) {
        "debug"
    } else {
        "release"
    };
    format!(
        "underpass {name}, {build} build, {}\n",
        std::env::consts::ARCH
    )
}

/// The process that listens at the control socket.
pub(super) fn agent(control: &Control) -> anyhow::Result<u32> {
    let stream = connect(&control.at, &control.named)?;
    Ok(getsockopt(&stream, PeerCredentials)?.pid().try_into()?)
}

pub(super) fn kernel() -> String {
    let mut text = match uname() {
        Ok(name) => format!(
            "{} {} {}\n",
            name.release().display(),
            name.version().display(),
            name.machine().display()
        ),
        Err(error) => format!("uname: {error}\n"),
    };
    text.push_str(&files(SETTINGS.map(str::to_owned)));
    text
}

pub(super) fn process(pid: u32) -> anyhow::Result<String> {
    fs::metadata(format!("/proc/{pid}")).context("the agent has ended")?;
    Ok(format!(
        "process {pid}\n{}",
        files(STATE.map(|name| format!("/proc/{pid}/{name}")))
    ))
}

/// The texts of files, each beneath its name.
fn files<const N: usize>(paths: [String; N]) -> String {
    let texts = paths.map(|path| match fs::read_to_string(&path) {
        Ok(text) => format!("\n{path}\n{}\n", text.trim_end()),
        Err(error) => format!("\n{path}: {error}\n"),
    });
    texts.concat()
}

pub(super) fn maps(pid: u32) -> anyhow::Result<String> {
    let sizes = dataplane::doctor::map_sizes(pid)
        .context("the agent's descriptors cannot be read: run as root")?;
    let rows = sizes.into_iter().map(|map| {
        json!({
            "id": map.id,
            "name": map.name,
            "key_size": map.key_size,
            "value_size": map.value_size,
            "max_entries": map.max_entries,
            "bytes": map.bytes,
        })
    });
    Ok(serde_json::Value::from(rows.collect::<Vec<_>>()).to_string())
}

/// The journal's lines, where systemd runs the agent.
pub(super) fn log() -> anyhow::Result<String> {
    let mut journal = Command::new("timeout");
    journal.args([
        LOG_SECONDS,
        "journalctl",
        "--unit=underpass",
        "--lines",
        LOG_LINES,
        "--no-pager",
        "--output=short-iso",
    ]);
    let said = journal
        .output()
        .context("there is no journalctl: add the log by hand")?;
    let text = String::from_utf8_lossy(&said.stdout);
    // The journal's own remarks begin with dashes: that it has no entries, or where it begins.
    let has_lines = text.lines().any(|line| !line.starts_with("-- "));
    anyhow::ensure!(
        said.status.success() && has_lines,
        "the journal has no lines of the unit `underpass`: add the agent's standard error by hand"
    );
    Ok(text.into_owned())
}
