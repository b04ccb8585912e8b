//! Clients on one side, a database on the other, a gateway in between: network namespaces joined by
//! veth. Each way has clients and a gateway of its own, because every packet through a gateway pays
//! for the gateway's set-up (a program on its interfaces, connection tracking).
//!
//! **Invariant**: all devices of all ways are set up alike. GRO is on at each, without which a veth
//! takes no frames that an XDP program sends. Each sender makes its checksums, as wherever packets
//! leave a host without a card that does: veths that leave them out for each other save work that
//! no wire can save.

pub mod nftables;

use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpStream},
    process::Command,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use sandbox::{Cgroup, Netns, run_in};

use crate::interrupt;

/// The address of the database, which is behind all gateways.
pub const DATABASE: Ipv4Addr = Ipv4Addr::new(10, 87, 0, 1);
/// The address that clients dial where the gateway is to find the database.
const VIRTUAL: Ipv4Addr = Ipv4Addr::new(10, 88, 0, 1);
/// The gateway's device towards its clients; `DATABASES` is the one towards the database.
const CLIENTS: &str = "clients";
const DATABASES: &str = "veth";

/// The time limit until a way takes connections.
const READY_LIMIT: Duration = Duration::from_secs(10);
const CONNECT_LIMIT: Duration = Duration::from_millis(500);

/// The clients and the gateway of one way.
pub struct Line {
    pub client: Netns,
    pub gateway: Netns,
    /// The cgroup for an agent at the gateway. No process is in it.
    pub cgroup: Cgroup,
    /// The gateway's address on the clients' side.
    pub front: Ipv4Addr,
}

/// Makes the network of the database.
pub fn database_host() -> anyhow::Result<Netns> {
    let host = Netns::new()?;
    host.ip(&["addr", "add", &format!("{DATABASE}/32"), "dev", "lo"])?;
    Ok(host)
}

/// The database's address as clients dial it where it is virtual.
pub fn virtual_of(database: SocketAddr) -> SocketAddr {
    SocketAddrV4::new(VIRTUAL, database.port()).into()
}

/// Makes a line for each way, in the order of their names.
pub fn lines(
    ways: &[&'static str],
    database: &Netns,
) -> anyhow::Result<BTreeMap<&'static str, Line>> {
    let numbered = ways.iter().zip(0_u8..);
    numbered
        .map(|(way, n)| Ok((*way, Line::new(n, database)?)))
        .collect()
}

impl Line {
    fn new(n: u8, database: &Netns) -> anyhow::Result<Self> {
        let (client, gateway) = (Netns::new()?, Netns::new()?);
        let (out, back) = (format!("10.85.{n}"), format!("10.86.{n}"));
        let (to, at) = ([&*format!("{out}.1/24")], [&*format!("{out}.254/24")]);
        client.join_as(&to, (&gateway, CLIENTS), &at)?;
        let (to, at) = ([&*format!("{back}.254/24")], [&*format!("{back}.1/24")]);
        let name = format!("line{n}");
        gateway.join_as(&to, (database, &name), &at)?;
        client.ip(&["route", "add", "default", "via", &format!("{out}.254")])?;
        let route = |host: &Netns, to: &str, via: &str| host.ip(&["route", "add", to, "via", via]);
        route(&gateway, &DATABASE.to_string(), &format!("{back}.1"))?;
        route(database, &format!("{out}.0/24"), &format!("{back}.254"))?;
        gateway.sysctl("net.ipv4.ip_forward", "1")?;
        set_up(&client, "veth")?;
        set_up(&gateway, CLIENTS)?;
        set_up(&gateway, DATABASES)?;
        set_up(database, &name)?;
        Ok(Self {
            client,
            gateway,
            cgroup: Cgroup::new()?,
            front: Ipv4Addr::new(10, 85, n, 254),
        })
    }

    /// The `[[xdp]]` and the rule of an agent that forwards. Generic, because a veth has no frames of its
    /// own: in the driver, each packet would be copied into one, and out of it again behind the next veth.
    pub fn policy(name: &str, lines: &str, database: SocketAddr, speaks_cql: bool) -> String {
        let edge = |interface| {
            format!(
                "[[xdp]]\ninterface = \"{interface}\"\nforward = \"snat\"\nmode = \"generic\"\n"
            )
        };
        let (clients, databases) = (edge(CLIENTS), edge(DATABASES));
        let to = virtual_of(database);
        format!(
            "{clients}{databases}[health]\ncql = {speaks_cql}\nslow_start = \"0s\"\n\
             [[rule]]\nname = \"{name}\"\nto = [\"{to}\"]\nbackends = [\"{database}\"]\n{lines}\n"
        )
    }

    /// Waits until clients reach the database by this address.
    pub fn wait_until_open(&self, to: SocketAddr) -> anyhow::Result<()> {
        let deadline = Instant::now() + READY_LIMIT;
        let connects = || TcpStream::connect_timeout(&to, CONNECT_LIMIT).is_ok();
        while !run_in(Some(&self.client), None, connects)? {
            interrupt::check()?;
            ensure!(Instant::now() < deadline, "nobody answers at {to}");
            thread::sleep(interrupt::LOOK_EVERY);
        }
        Ok(())
    }
}

fn set_up(host: &Netns, device: &str) -> anyhow::Result<()> {
    let set = || {
        Command::new("ethtool")
            .args(["-K", device, "gro", "on"])
            .output()
    };
    let set = run_in(Some(host), None, set)?.context("cannot run ethtool (Debian's ethtool)")?;
    let complaint = String::from_utf8_lossy(&set.stderr);
    ensure!(set.status.success(), "ethtool: {}", complaint.trim());
    Ok(())
}
