//! `underpass init`: a first policy, made of what this host does.
//!
//! The policy reads and counts: its rules are read from copies of packets, so no connection changes because of it. What
//! init itself sends is one OPTIONS request to each server that it takes for a database.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    fs::{self, OpenOptions},
    io::{ErrorKind, Write as _},
    net::{IpAddr, SocketAddr},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use anyhow::{Context, bail};
use dataplane::{Around, OpenedHere, host};
use tokio::{net::TcpStream, runtime, task::JoinSet, time};

use crate::{
    cli::values,
    config::{CONF_D, Config},
};

/// Ports at which Cassandra, ScyllaDB and YugabyteDB speak CQL unless they are told otherwise: plain, with TLS, and
/// ScyllaDB's by shard.
const PORTS: [u16; 4] = [9042, 9142, 19042, 19142];

/// The time in which a server has to answer.
const PATIENCE: Duration = Duration::from_secs(1);

/// Servers that are asked, at most: a cluster has fewer nodes, or its nodes have one port.
const MAX_ASKED: usize = 256;

/// Processes with a rule of their own, those with most connections; the last rule holds for the others.
const MAX_RULES: usize = 20;

/// The mode of the file: only root may change what decides for all, and everybody may read it.
const MODE: u32 = 0o644;

/// Arguments of `init`.
#[derive(Debug, clap::Args)]
pub struct InitArgs {
    /// File to write, which must not exist. Without it the policy is printed
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Further ports of databases; may be repeated
    #[arg(long, value_name = "PORT", value_parser = values::port)]
    port: Vec<u16>,
    /// Look at processes beneath this cgroup alone: an absolute path, as in the setting `agent.cgroup`. Without it, at all of this
    /// host's, also in containers
    #[arg(long, value_name = "PATH")]
    cgroup: Option<PathBuf>,
}

/// Looks around, and writes the policy.
///
/// # Errors
/// The file is there already, there is no such cgroup, or the kernel does not list connections.
pub fn run(args: &InitArgs) -> anyhow::Result<ExitCode> {
    let cgroup = args.cgroup.as_deref();
    if let Some(missing) = cgroup.filter(|cgroup| !host::is_cgroup2(cgroup)) {
        bail!("{} is no cgroup of version 2", missing.display());
    }
    let around = Around::look(cgroup).context("cannot list this host's connections")?;
    let ports: BTreeSet<u16> = PORTS.into_iter().chain(args.port.iter().copied()).collect();
    let found = Found::of(&around, &ports);
    let runtime = runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let speak = runtime.block_on(ask(found.servers()));
    let policy = found.policy(&speak);
    let place = args.output.as_deref().unwrap_or(Path::new("policy.toml"));
    Config::parse(place, &policy).context("the policy that was made of it is wrong")?;
    if nix::unistd::geteuid().as_raw() != 0 {
        eprintln!("warning: only root sees which process has a connection open");
    }
    if found.databases.is_empty() && found.here.is_empty() {
        eprintln!(
            "warning: nobody here is connected to a database, or is one, at ports {}: with --port N others are looked for, too",
            listed(&found.ports)
        );
    }
    match &args.output {
        None => say_text!("{policy}"),
        Some(file) => {
            write(file, &policy)?;
            let is_part = file.parent().and_then(Path::file_name) == Some(CONF_D.as_ref());
            let file = file.display();
            say!("written: {file}");
            match is_part {
                true => say!(
                    "next: underpass top (a running agent whose policy file is beside {CONF_D} reads it by itself)"
                ),
                false => say!(
                    "next: underpass check {file}; underpass run --config {file}; underpass top"
                ),
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn write(file: &Path, policy: &str) -> anyhow::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(MODE);
    let written = options.open(file).and_then(|mut open| {
        let written = open.write_all(policy.as_bytes());
        // Half a policy would be taken for a whole one, and be in the way of the next attempt.
        written.inspect_err(|_| drop(fs::remove_file(file)))
    });
    written.map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists => anyhow::anyhow!(
            "{} is there already: name another file, or move that one away",
            file.display()
        ),
        _ => anyhow::Error::new(error).context(format!("cannot write {}", file.display())),
    })
}

/// Asks servers whether they speak CQL. Returns those that do.
async fn ask(servers: BTreeSet<SocketAddr>) -> BTreeSet<SocketAddr> {
    let mut asked = JoinSet::new();
    for server in servers.into_iter().take(MAX_ASKED) {
        asked.spawn(async move {
            let answer = async { cql_client::probe(TcpStream::connect(server).await?).await };
            let speaks = time::timeout(PATIENCE, answer).await;
            matches!(speaks, Ok(Ok(()))).then_some(server)
        });
    }
    let answers = asked.join_all().await;
    answers.into_iter().flatten().collect()
}

/// Connections to databases, and places where databases listen.
#[derive(Debug, Default)]
struct Found {
    ports: BTreeSet<u16>,
    /// Connections by database, and by process and user.
    databases: BTreeMap<SocketAddr, BTreeMap<(Option<String>, u32), usize>>,
    /// Databases that can be reached from here: not the loopback of another network namespace.
    reachable: BTreeSet<SocketAddr>,
    /// Addresses of this host at which a database may listen, with the clients on other hosts.
    here: BTreeMap<SocketAddr, BTreeSet<IpAddr>>,
}

impl Found {
    fn of(around: &Around, ports: &BTreeSet<u16>) -> Self {
        let mut found = Self {
            ports: ports.clone(),
            ..Self::default()
        };
        for OpenedHere {
            to,
            is_own,
            uid,
            process,
        } in &around.opened
        {
            if ports.contains(&to.port()) {
                if *is_own || !to.ip().is_loopback() {
                    found.reachable.insert(*to);
                }
                let by_client = found.databases.entry(*to).or_default();
                *by_client.entry((process.clone(), *uid)).or_default() += 1;
            }
        }
        for at in around
            .listening
            .iter()
            .filter(|at| ports.contains(&at.port()))
        {
            found.here.entry(*at).or_default();
        }
        for (at, client) in &around.accepted {
            let listens = |own: &SocketAddr| {
                own.port() == at.port() && (own.ip() == at.ip() || own.ip().is_unspecified())
            };
            let own = found.here.keys().copied().find(listens);
            if let Some(clients) = own.and_then(|own| found.here.get_mut(&own)) {
                clients.insert(*client);
            }
        }
        found
    }

    /// The servers to be asked.
    fn servers(&self) -> BTreeSet<SocketAddr> {
        let here = self.here.keys().map(|at| reachable(*at));
        self.reachable.iter().copied().chain(here).collect()
    }

    /// The processes by their number of connections, the most first; those that a rule can name.
    fn processes(&self) -> Vec<String> {
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        let clients = self.databases.values().flatten();
        for ((process, _), count) in clients {
            let process = process.as_deref().filter(|name| is_plain(name));
            *counts.entry(process.unwrap_or_default()).or_default() += count;
        }
        counts.remove("");
        let mut processes: Vec<_> = counts.into_iter().collect();
        processes.sort_by_key(|(name, count)| (std::cmp::Reverse(*count), *name));
        let names = processes.into_iter().take(MAX_RULES);
        names.map(|(name, _)| name.to_owned()).collect()
    }

    /// The ports of databases that this process is connected to. None: those of everybody.
    fn ports_of(&self, process: Option<&str>) -> BTreeSet<u16> {
        let is_meant = |clients: &BTreeMap<(Option<String>, u32), usize>| {
            process.is_none() || clients.keys().any(|(name, _)| name.as_deref() == process)
        };
        let databases = self
            .databases
            .iter()
            .filter(|(_, clients)| is_meant(clients));
        databases.map(|(to, _)| to.port()).collect()
    }

    fn policy(&self, speak: &BTreeSet<SocketAddr>) -> String {
        let mut text = String::from(
            "# A first policy, by `underpass init`. It reads and counts: every connection stays the application's own, and\n\
             # nothing is refused or changed. `underpass check FILE` explains it, `underpass run --config FILE` starts the agent,\n\
             # and `underpass top` shows who asks what.\n#\n",
        );
        self.describe(speak, &mut text);
        for process in self.processes() {
            rule(
                &mut text,
                &process,
                Some(&process),
                &self.ports_of(Some(&process)),
            );
        }
        let ports = match self.ports_of(None) {
            found if found.is_empty() => self.ports.clone(),
            found => found,
        };
        text.push_str("\n# Whoever else asks, or will.");
        rule(&mut text, "others", None, &ports);
        let from_elsewhere = self.here.values().any(|clients| !clients.is_empty());
        if from_elsewhere {
            text.push_str(
                "\n# Clients on other hosts: with this, connections that come to this host meet the rules, too\n\
                 # (docs/topologies.md says what it changes in this host's routing).\n# [[incoming]]\n",
            );
        }
        text
    }

    /// Says in comments what was found.
    fn describe(&self, speak: &BTreeSet<SocketAddr>, text: &mut String) {
        let says = |at: &SocketAddr| match speak.contains(&reachable(*at)) {
            true => "speaks CQL",
            false => {
                "does not answer CQL in the clear: with TLS only connections and bytes are counted"
            }
        };
        for (at, clients) in &self.here {
            let _ = writeln!(text, "# This host listens at {at}, and {}.", says(at));
            if !clients.is_empty() {
                let _ = writeln!(text, "#   clients on other hosts: {}", listed(clients));
            }
        }
        for (to, clients) in &self.databases {
            let is_here = self.reachable.contains(to);
            let elsewhere = "is in another network namespace, and was not asked";
            let said = if is_here { says(to) } else { elsewhere };
            let _ = writeln!(text, "# {to} {said}.");
            for ((process, uid), count) in clients {
                let process = process.as_deref().unwrap_or("a process that is not known");
                let _ = writeln!(text, "#   {count} of {}, uid {uid}", printable(process));
            }
        }
        if self.here.is_empty() && self.databases.is_empty() {
            let ports = listed(&self.ports);
            let _ = writeln!(
                text,
                "# Nobody here is connected to a database at ports {ports}."
            );
        }
    }
}

/// An address by which this host itself reaches a socket that listens.
fn reachable(at: SocketAddr) -> SocketAddr {
    match at.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => (std::net::Ipv4Addr::LOCALHOST, at.port()).into(),
        IpAddr::V6(ip) if ip.is_unspecified() => (std::net::Ipv6Addr::LOCALHOST, at.port()).into(),
        _ => at,
    }
}

fn rule(text: &mut String, name: &str, process: Option<&str>, ports: &BTreeSet<u16>) {
    let to: Vec<String> = ports.iter().map(|port| format!("\":{port}\"")).collect();
    let _ = write!(
        text,
        "\n[[rule]]\nname = \"{name}\"\nto = [{}]\n",
        to.join(", ")
    );
    if let Some(process) = process {
        let _ = writeln!(text, "process = [\"{process}\"]");
    }
    text.push_str("action = \"enrich\"\npipeline = [{ transform = \"stats\" }]\n");
}

/// Whether a process's name can be a rule's, and stand in a policy as it is. Whoever starts a process may call it
/// what he likes.
fn is_plain(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    !name.is_empty() && name != "others" && name != "default" && name.bytes().all(plain)
}

/// A name without control characters, which would end a comment.
fn printable(name: &str) -> String {
    let shown = |c: char| if c.is_control() { '?' } else { c };
    name.chars().map(shown).collect()
}

fn listed<T: ToString>(all: &BTreeSet<T>) -> String {
    let all: Vec<String> = all.iter().map(T::to_string).collect();
    all.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn opened(to: &str, process: &str) -> OpenedHere {
        OpenedHere {
            to: to.parse().unwrap(),
            is_own: true,
            uid: 1000,
            process: Some(process.to_owned()).filter(|name| !name.is_empty()),
        }
    }

    fn made(around: &Around) -> (Config, String) {
        let ports = PORTS.into_iter().collect();
        let text = Found::of(around, &ports).policy(&BTreeSet::new());
        let config = Config::parse(Path::new("p"), &text);
        (config.unwrap_or_else(|e| panic!("{e}\n{text}")), text)
    }

    #[test]
    fn whatever_processes_are_called_the_policy_is_right() {
        let odd = [
            "a\"b",
            "x\n[[rule]]",
            "*",
            "others",
            "default",
            "",
            "ä",
            "]]#",
            "\u{7f}",
        ];
        let around = Around {
            opened: odd.map(|name| opened("10.0.0.5:9042", name)).into(),
            ..Around::default()
        };
        let (config, text) = made(&around);
        assert_eq!(config.policy.rules.len(), 1, "{text}");
        assert!(
            text.contains("1 of a\"b, uid 1000") && text.contains("x?[[rule]]"),
            "{text}"
        );
    }

    #[test]
    fn each_process_has_a_rule_and_all_only_read() {
        let around = Around {
            opened: vec![
                opened("10.0.0.5:9042", "web"),
                opened("10.0.0.6:9042", "web"),
                opened("10.0.0.6:19042", "web"),
                opened("[fd00::1]:9142", "nightly"),
                opened("10.0.0.7:443", "curl"),
            ],
            accepted: vec![(
                "10.0.0.1:9042".parse().unwrap(),
                "10.0.0.99".parse().unwrap(),
            )],
            listening: vec![
                "0.0.0.0:9042".parse().unwrap(),
                "0.0.0.0:22".parse().unwrap(),
            ],
        };
        let (config, text) = made(&around);
        let names: Vec<_> = config
            .policy
            .rules
            .iter()
            .map(|r| r.name.as_str())
            .collect();
        assert_eq!(names, ["web", "nightly", "others"], "{text}");
        assert!(
            text.contains("to = [\":9042\", \":19042\"]\nprocess = [\"web\"]"),
            "{text}"
        );
        assert!(
            text.contains("clients on other hosts: 10.0.0.99") && !text.contains("curl"),
            "{text}"
        );
        assert!(text.contains("\n# [[incoming]]"), "{text}");
        for rule in &config.policy.rules {
            assert!(config.paths[&rule.name].is_tap, "{text}");
        }
        assert_eq!(config.warnings, Vec::<String>::new());
    }

    #[test]
    fn many_processes_share_the_last_rule() {
        let names = (0..50).map(|n| opened("10.0.0.5:9042", &format!("app-{n}")));
        let around = Around {
            opened: names.collect(),
            ..Around::default()
        };
        assert_eq!(made(&around).0.policy.rules.len(), MAX_RULES + 1);
        let nobody = made(&Around::default()).0;
        assert_eq!(nobody.policy.rules.len(), 1);
    }
}
