//! Network namespaces that live by a descriptor.

use std::{fs::File, os::fd::AsRawFd, process::Command, thread};

use anyhow::{Context, ensure};
use nix::sched::{CloneFlags, setns, unshare};

/// A network namespace; gone when this and everything in it is gone.
#[derive(Debug)]
pub struct Netns(File);

impl Netns {
    /// A new one, with its loopback up.
    ///
    /// # Errors
    /// Not root, or no `ip`.
    pub fn new() -> anyhow::Result<Self> {
        let made = thread::scope(|scope| scope.spawn(Self::make).join());
        made.map_err(|_| anyhow::anyhow!("the thread that makes a namespace panicked"))?
    }

    fn make() -> anyhow::Result<Self> {
        unshare(CloneFlags::CLONE_NEWNET).context("a network namespace needs root")?;
        let own = File::open("/proc/thread-self/ns/net")?;
        ip(&["link", "set", "lo", "up"])?;
        Ok(Self(own))
    }

    /// Path at which any process of this host can open the namespace, as long as this value lives.
    pub fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd())
    }

    /// Moves this thread into it, for good.
    pub(super) fn enter(&self) -> anyhow::Result<()> {
        Ok(setns(&self.0, CloneFlags::CLONE_NEWNET)?)
    }

    /// Runs `ip` in it.
    ///
    /// # Errors
    /// With what `ip` says.
    pub fn ip(&self, args: &[&str]) -> anyhow::Result<()> {
        super::run_in(Some(self), None, || ip(args))?
    }

    /// Joins this namespace and another by a veth pair named `veth` in both, with these
    /// addresses (`192.0.2.1/24`, any number, either family).
    ///
    /// # Errors
    /// With what `ip` says.
    pub fn join(&self, other: &Self, own: &[&str], others: &[&str]) -> anyhow::Result<()> {
        self.join_as(own, (other, "veth"), others)
    }

    /// Joins this namespace with another one as [`Self::join`] does. The other's end has a name of
    /// its own, because that namespace is joined with several.
    ///
    /// # Errors
    /// With what `ip` says.
    pub fn join_as(
        &self,
        own: &[&str],
        (other, name): (&Self, &str),
        others: &[&str],
    ) -> anyhow::Result<()> {
        self.plug(own, other, name)?;
        other.address(name, others)
    }

    /// Sets one of its settings: `net.ipv4.ip_forward`.
    ///
    /// # Errors
    /// There is none of this name, or it takes no such value.
    pub fn sysctl(&self, name: &str, value: &str) -> anyhow::Result<()> {
        let path = format!("/proc/sys/{}", name.replace('.', "/"));
        let written = super::run_in(Some(self), None, || std::fs::write(&path, value))?;
        written.with_context(|| format!("cannot write {path}"))
    }

    /// Makes a veth pair: `veth` with these addresses here, one of another name there. An IPv6 address
    /// that a device has before both ends are up cannot be reached for a second after that.
    pub(super) fn plug(&self, own: &[&str], other: &Self, name: &str) -> anyhow::Result<()> {
        let there = other.path();
        let peer = ["type", "veth", "peer", "name", name, "netns", &there];
        self.ip(&[["link", "add", "veth"].as_slice(), &peer].concat())?;
        self.ip(&["link", "set", "veth", "up"])?;
        other.ip(&["link", "set", name, "up"])?;
        self.address("veth", own)
    }

    /// Gives a device addresses.
    fn address(&self, device: &str, addresses: &[&str]) -> anyhow::Result<()> {
        for address in addresses {
            // Without duplicate address detection an IPv6 address serves at once.
            let nodad = if address.contains(':') {
                &["nodad"][..]
            } else {
                &[]
            };
            let add = ["addr", "add", address, "dev", device];
            self.ip(&[add.as_slice(), nodad].concat())?;
        }
        Ok(())
    }
}

fn ip(args: &[&str]) -> anyhow::Result<()> {
    let output = Command::new("ip")
        .args(args)
        .output()
        .context("cannot run `ip`")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "ip {}: {}",
        args.join(" "),
        said.trim()
    );
    Ok(())
}
