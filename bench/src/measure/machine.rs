//! What was measured, where, and with what.

use std::{fs, process::Command};

use anyhow::{Context, ensure};
use serde::{Deserialize, Serialize};

use crate::rig::binary;

/// What we were built with.
const LOCK: &str = include_str!("../../../Cargo.lock");

/// The code.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Source {
    /// The commit that was checked out.
    pub commit: String,
    /// There were changes that it does not hold.
    pub dirty: bool,
}

/// The host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// `uname -r`.
    pub kernel: String,
    /// As in /proc/cpuinfo.
    pub cpu: String,
    /// Logical.
    pub cores: usize,
    /// MemTotal.
    pub memory_mib: u64,
}

/// The programs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Versions {
    /// The compiler.
    pub rustc: String,
    /// The agent.
    pub agent: String,
    /// The `scylla` driver.
    pub driver: String,
}

impl Source {
    /// Of the checkout that this is run in.
    pub fn find() -> anyhow::Result<Self> {
        Ok(Self {
            commit: said(Command::new("git").args(["rev-parse", "HEAD"]))?,
            dirty: !said(Command::new("git").args(["status", "--porcelain"]))?.is_empty(),
        })
    }
}

impl Machine {
    /// This one.
    pub fn find() -> anyhow::Result<Self> {
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease")?;
        let cpus = fs::read_to_string("/proc/cpuinfo")?;
        let memory = fs::read_to_string("/proc/meminfo")?;
        let kib = field(&memory, "MemTotal").and_then(|m| m.split(' ').next()?.parse::<u64>().ok());
        Ok(Self {
            kernel: kernel.trim().to_owned(),
            // ARM's has no such line.
            cpu: field(&cpus, "model name").unwrap_or("unknown").to_owned(),
            cores: std::thread::available_parallelism()?.get(),
            memory_mib: kib.context("no MemTotal in /proc/meminfo")? / 1024,
        })
    }
}

impl Versions {
    /// Of what is used here.
    pub fn find() -> anyhow::Result<Self> {
        Ok(Self {
            rustc: said(Command::new("rustc").arg("--version"))?,
            agent: said(Command::new(binary("underpass")?).arg("--version"))?,
            driver: driver(LOCK)
                .context("Cargo.lock names no scylla")?
                .to_owned(),
        })
    }
}

/// Now, in UTC (ISO 8601).
pub fn date() -> anyhow::Result<String> {
    said(Command::new("date").args(["-u", "+%Y-%m-%dT%H:%M:%SZ"]))
}

/// From here on [`rss_peak_kib`] is of what is still to come: `5` into clear_refs
/// (proc_pid_clear_refs(5)).
pub fn forget_rss_peak(pid: u32) -> anyhow::Result<()> {
    fs::write(format!("/proc/{pid}/clear_refs"), "5").context("cannot reset a peak of memory")
}

/// The most memory that a process has had: VmHWM (proc_pid_status(5)).
pub fn rss_peak_kib(pid: u32) -> anyhow::Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let kib = field(&status, "VmHWM").and_then(|m| m.split(' ').next()?.parse().ok());
    kib.with_context(|| format!("no VmHWM of process {pid}"))
}

/// The driver's version.
fn driver(lock: &str) -> Option<&str> {
    let (_, rest) = lock.split_once("name = \"scylla\"\nversion = \"")?;
    rest.split('"').next()
}

/// The value of the first line `name: value`.
fn field<'t>(text: &'t str, name: &str) -> Option<&'t str> {
    let mut pairs = text.lines().filter_map(|line| line.split_once(':'));
    let (_, value) = pairs.find(|(key, _)| key.trim() == name)?;
    Some(value.trim())
}

fn said(command: &mut Command) -> anyhow::Result<String> {
    let output = command.output();
    let output = output.with_context(|| format!("cannot run {command:?}"))?;
    ensure!(output.status.success(), "{command:?}: {}", output.status);
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_is_found() {
        let machine = Machine::find().unwrap();
        assert!(machine.cores > 0 && machine.memory_mib > 0 && !machine.kernel.is_empty());
        assert!(rss_peak_kib(std::process::id()).unwrap() > 100);
        assert_eq!(date().unwrap().len(), "2025-01-01T00:00:00Z".len());
    }

    #[test]
    fn the_drivers_version_is_known() {
        let version = driver(LOCK).unwrap();
        assert!(version.starts_with("1."), "{version}");
    }

    #[test]
    fn fields() {
        let text = "model\t\t: 1\nmodel name\t: A CPU @ 2: fast\n";
        assert_eq!(field(text, "model name"), Some("A CPU @ 2: fast"));
        assert_eq!(field(text, "name"), None);
    }
}
