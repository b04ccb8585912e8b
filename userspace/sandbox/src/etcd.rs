//! A real etcd of one or more members, for one test.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    path::PathBuf,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail, ensure};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use super::{Netns, run_in};

/// A cluster on a loaded machine has a leader within this time.
const START_LIMIT: Duration = Duration::from_secs(20);

/// Members at one loopback: heartbeats may be frequent, so that an election is short.
const HEARTBEAT_MS: &str = "50";
const ELECTION_MS: &str = "500";

/// A running cluster. Dropped, its members are killed.
#[derive(Debug)]
pub struct Etcd<'n> {
    netns: Option<&'n Netns>,
    members: Vec<Member>,
    certificates: Option<Certificates>,
    folder: tempfile::TempDir,
}

/// Files (PEM) with which a member and its clients know each other.
#[derive(Clone, Debug)]
pub struct Certificates {
    /// The authority that has signed both.
    pub ca: PathBuf,
    /// The certificate, of clients as well.
    pub cert: PathBuf,
    /// The key of that certificate.
    pub key: PathBuf,
}

#[derive(Debug)]
struct Member {
    /// The member's host, if it has one of its own.
    netns: Option<Netns>,
    client: SocketAddr,
    peer: SocketAddr,
    child: Option<Child>,
}

impl<'n> Etcd<'n> {
    /// Starts so many members, and waits until each answers.
    ///
    /// # Errors
    /// There is no etcd, or it does not get ready; with what it said.
    pub fn start(netns: Option<&'n Netns>, members: usize) -> anyhow::Result<Self> {
        Self::start_at(netns, &vec![0; members])
    }

    /// Starts one member whose clients encrypt, and have a certificate.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub fn start_encrypted(certificates: Certificates) -> anyhow::Result<Self> {
        Self::launch_all(None, &[0], Some(certificates))
    }

    /// Starts members whose clients connect to these ports; 0: any.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub fn start_at(netns: Option<&'n Netns>, ports: &[u16]) -> anyhow::Result<Self> {
        Self::launch_all(netns, ports, None)
    }

    fn launch_all(
        netns: Option<&'n Netns>,
        ports: &[u16],
        certificates: Option<Certificates>,
    ) -> anyhow::Result<Self> {
        // Every write of a member waits for its disk.
        let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir())?;
        let members = run_in(netns, None, || {
            // Held until all are chosen, so that they differ.
            let listeners: Result<Vec<_>, _> = ports
                .iter()
                .flat_map(|port| [*port, 0])
                .map(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, port)))
                .collect();
            let listeners = listeners?;
            let mut addresses = listeners.iter().map(TcpListener::local_addr);
            let mut chosen = Vec::new();
            while let (Some(client), Some(peer)) = (addresses.next(), addresses.next()) {
                chosen.push(Member {
                    netns: None,
                    client: client?,
                    peer: peer?,
                    child: None,
                });
            }
            anyhow::Ok(chosen)
        })??;
        Self::begin(Self {
            netns,
            members,
            certificates,
            folder,
        })
    }

    /// Starts members on hosts of their own (at most 250), which reach each other through the one of their clients.
    ///
    /// # Errors
    /// As [`Self::start`]; or the hosts cannot be joined.
    pub fn start_apart(hub: &'n Netns, members: u8) -> anyhow::Result<Self> {
        hub.sysctl("net.ipv4.ip_forward", "1")?;
        let host = |number: u8| {
            let own = Netns::new()?;
            let (address, gateway) = ([10, 77, number, 1], format!("10.77.{number}.254"));
            let device = format!("m{number}");
            own.join_as(
                &[&format!("10.77.{number}.1/24")],
                (hub, &device),
                &[&format!("{gateway}/24")],
            )?;
            own.ip(&["route", "add", "default", "via", &gateway])?;
            anyhow::Ok(Member {
                netns: Some(own),
                client: (address, 2379).into(),
                peer: (address, 2380).into(),
                child: None,
            })
        };
        Self::begin(Self {
            netns: Some(hub),
            members: (0..members).map(host).collect::<Result<_, _>>()?,
            certificates: None,
            folder: tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir())?,
        })
    }

    /// Cuts a member that has a host of its own off from the other members, or joins them again. Clients reach all of them, and
    /// nobody is told.
    ///
    /// # Errors
    /// It has none; or with what `ip` says.
    pub fn part(&self, number: usize, is_apart: bool) -> anyhow::Result<()> {
        let todo = if is_apart { "add" } else { "del" };
        let route = |at: &Member, to: &Member| {
            let netns = at.netns.as_ref().context("it has no host of its own")?;
            netns.ip(&["route", todo, "blackhole", &to.peer.ip().to_string()])
        };
        let lonely = self.members.get(number).context("no such member")?;
        let others = self.members.iter().enumerate();
        for (_, other) in others.filter(|(n, _)| *n != number) {
            route(lonely, other)?;
            route(other, lonely)?;
        }
        Ok(())
    }

    /// Takes a member's host off the network, or puts it back: whatever is sent to it is lost.
    ///
    /// # Errors
    /// As [`Self::part`].
    pub fn unplug(&self, number: usize, is_off: bool) -> anyhow::Result<()> {
        let todo = if is_off { "down" } else { "up" };
        let hub = self.netns.context("it has no host of its own")?;
        hub.ip(&["link", "set", &format!("m{number}"), todo])
    }

    fn begin(mut self) -> anyhow::Result<Self> {
        for member in 0..self.members.len() {
            self.launch(member)?;
        }
        (0..self.members.len()).try_for_each(|member| self.wait_for(member))?;
        Ok(self)
    }

    fn launch(&mut self, number: usize) -> anyhow::Result<()> {
        let peers = self.members.iter().enumerate();
        let peers: Vec<_> = peers
            .map(|(n, member)| format!("m{n}=http://{}", member.peer))
            .collect();
        let log = fs::File::options()
            .create(true)
            .append(true)
            .open(self.log(number))?;
        let data = self.folder.path().join(format!("data{number}"));
        let client = self.url(number)?;
        let certificates = self.certificates.clone();
        let member = self.members.get_mut(number).context("no such member")?;
        let peer = format!("http://{}", member.peer);
        let mut command = Command::new("etcd");
        command
            .args(["--name", &format!("m{number}")])
            .args([
                "--listen-client-urls",
                &client,
                "--advertise-client-urls",
                &client,
            ])
            .args([
                "--listen-peer-urls",
                &peer,
                "--initial-advertise-peer-urls",
                &peer,
            ])
            .args(["--initial-cluster", &peers.join(",")])
            .args([
                "--heartbeat-interval",
                HEARTBEAT_MS,
                "--election-timeout",
                ELECTION_MS,
            ])
            .args(["--logger", "zap", "--log-level", "warn", "--data-dir"])
            .arg(data)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        if let Some(files) = certificates {
            command.arg("--client-cert-auth");
            command.arg("--trusted-ca-file").arg(files.ca);
            command
                .arg("--cert-file")
                .arg(files.cert)
                .arg("--key-file")
                .arg(files.key);
        }
        let netns = member.netns.as_ref().or(self.netns);
        let spawned = run_in(netns, None, move || command.spawn())?;
        member.child = Some(spawned.context("cannot start etcd: `cargo xtask setup` installs it")?);
        Ok(())
    }

    fn log(&self, number: usize) -> PathBuf {
        self.folder.path().join(format!("log{number}"))
    }

    /// Waits until a member answers and has a leader.
    ///
    /// # Errors
    /// It does not; with the end of its log.
    pub fn wait_for(&self, number: usize) -> anyhow::Result<()> {
        let client = self.address(number)?;
        let begun = Instant::now();
        loop {
            let is_ready = match self.certificates {
                None => run_in(self.netns, None, || health(client))?
                    .is_ok_and(|said| said.contains("\"health\":\"true\"")),
                Some(_) => self.ctl(number, &["endpoint", "health"]).is_ok(),
            };
            if is_ready {
                return Ok(());
            }
            if begun.elapsed() > START_LIMIT {
                let log = fs::read_to_string(self.log(number)).unwrap_or_default();
                bail!("etcd does not get ready: {log}");
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    fn address(&self, number: usize) -> anyhow::Result<SocketAddr> {
        Ok(self.members.get(number).context("no such member")?.client)
    }

    fn url(&self, number: usize) -> anyhow::Result<String> {
        let scheme = match self.certificates {
            None => "http",
            Some(_) => "https",
        };
        Ok(format!("{scheme}://{}", self.address(number)?))
    }

    /// Returns the members' URLs.
    pub fn endpoints(&self) -> Vec<String> {
        (0..self.members.len())
            .flat_map(|number| self.url(number))
            .collect()
    }

    /// Returns the number of the member that leads.
    ///
    /// # Errors
    /// None does.
    pub fn leader(&self) -> anyhow::Result<usize> {
        for number in 0..self.members.len() {
            let said = self.ctl(number, &["endpoint", "status", "-w", "json"])?;
            let status: serde_json::Value = serde_json::from_str(&said)?;
            let at = |path: &str| status.pointer(path).cloned();
            if at("/0/Status/leader") == at("/0/Status/header/member_id") {
                return Ok(number);
            }
        }
        bail!("no member leads")
    }

    /// Runs `etcdctl` at a member, and returns what it says.
    ///
    /// # Errors
    /// It fails; with what it said.
    pub fn ctl(&self, number: usize, args: &[&str]) -> anyhow::Result<String> {
        let mut command = Command::new("etcdctl");
        command.env("ETCDCTL_API", "3");
        command.args(["--endpoints", &self.url(number)?]).args(args);
        if let Some(files) = &self.certificates {
            command.arg("--cacert").arg(&files.ca);
            command
                .arg("--cert")
                .arg(&files.cert)
                .arg("--key")
                .arg(&files.key);
        }
        let output = run_in(self.netns, None, move || command.output())??;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(output.status.success(), "etcdctl {args:?}: {said}");
        Ok(String::from_utf8(output.stdout)?)
    }

    /// Sends a member a signal: SIGSTOP cuts it off from everybody, and nobody is told.
    ///
    /// # Errors
    /// It does not run.
    pub fn signal(&self, number: usize, signal: Signal) -> anyhow::Result<()> {
        let child = self
            .members
            .get(number)
            .and_then(|member| member.child.as_ref());
        let pid = child.context("the member does not run")?.id();
        Ok(kill(Pid::from_raw(i32::try_from(pid)?), signal)?)
    }

    /// Kills a member.
    ///
    /// # Errors
    /// It does not run.
    pub fn kill(&mut self, number: usize) -> anyhow::Result<()> {
        let child = self
            .members
            .get_mut(number)
            .and_then(|member| member.child.take());
        let mut child = child.context("the member does not run")?;
        child.kill()?;
        child.wait()?;
        Ok(())
    }

    /// Starts a member that was killed, with what it knew.
    ///
    /// # Errors
    /// It does not get ready.
    pub fn restart(&mut self, number: usize) -> anyhow::Result<()> {
        self.launch(number)?;
        self.wait_for(number)
    }
}

impl Drop for Etcd<'_> {
    fn drop(&mut self) {
        for child in self
            .members
            .iter_mut()
            .filter_map(|member| member.child.as_mut())
        {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn health(client: SocketAddr) -> std::io::Result<String> {
    let limit = Duration::from_secs(2);
    let mut stream = TcpStream::connect_timeout(&client, limit)?;
    stream.set_read_timeout(Some(limit))?;
    stream.write_all(b"GET /health HTTP/1.0\r\n\r\n")?;
    let mut said = String::new();
    stream.read_to_string(&mut said)?;
    Ok(said)
}
