//! The command line. Exit codes: 0 done; 1 it could not be done, and one line on standard
//! error says why and what to do; 2 the command line itself is wrong.

use std::{
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    process::ExitCode,
};

use clap::{Parser, Subcommand};

use policy::NetnsPattern;

use crate::{
    commands,
    config::{DEFAULT_ADMIN, DEFAULT_CONTROL, DEFAULT_FILE},
};

const EXIT_CODES: &str = "Exit codes: 0 done; 1 it could not be done, one line says why; 2 wrong \
                          usage.";

/// A transparent database proxy that costs next to nothing where it has nothing to do.
#[derive(Debug, Parser)]
#[command(name = "underpass", version, after_help = EXIT_CODES)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Attach the hooks and carry flows, until SIGTERM or ctrl-C
    Run {
        /// The policy file
        #[arg(long, value_name = "FILE", default_value = DEFAULT_FILE)]
        config: PathBuf,
    },
    /// Validate a policy file; with --to, say which rule a connection would meet and why. What of
    /// its session is not given is not known yet
    Check(Box<CheckArgs>),
    /// Print the JSON Schema of the policy file, for editors
    Schema,
    /// Say what this host has and what it lacks
    Doctor {
        /// As JSON
        #[arg(long)]
        json: bool,
        /// The policy file whose cgroup and pins to look at, if there is one
        #[arg(long, value_name = "FILE")]
        config: Option<PathBuf>,
    },
    /// List the flows that the running agent carries or observes, or that a rule wants on the shortcut
    Flows {
        /// As JSON
        #[arg(long)]
        json: bool,
        /// Say why each is on its path and not on a faster one
        #[arg(long)]
        why: bool,
        /// The admin interface of the agent
        #[arg(long, value_name = "ADDR:PORT", default_value = DEFAULT_ADMIN)]
        admin: SocketAddr,
    },
    /// List what was asked on the flows that the agent decodes: by rule, table and kind
    Statements {
        /// As JSON
        #[arg(long)]
        json: bool,
        /// The most frequent statements instead, without their values, of rules with the step `stats`
        #[arg(long)]
        top: bool,
        /// The admin interface of the agent
        #[arg(long, value_name = "ADDR:PORT", default_value = DEFAULT_ADMIN)]
        admin: SocketAddr,
    },
    /// Change what happens to flows: to those that run, where it can be changed, and to connections
    /// that are made while the mark holds. What it has changed stays when it ends
    Mark(MarkArgs),
    /// List the marks that hold
    Marks {
        /// As JSON
        #[arg(long)]
        json: bool,
        /// The agent's control socket
        #[arg(long, value_name = "SOCKET", default_value = DEFAULT_CONTROL)]
        control: PathBuf,
    },
    /// Take a mark back
    Unmark {
        /// Its number
        number: u64,
        /// The agent's control socket
        #[arg(long, value_name = "SOCKET", default_value = DEFAULT_CONTROL)]
        control: PathBuf,
    },
    /// List the other network namespaces of this host whose processes are served from inside
    Namespaces {
        /// As JSON
        #[arg(long)]
        json: bool,
        /// The admin interface of the agent
        #[arg(long, value_name = "ADDR:PORT", default_value = DEFAULT_ADMIN)]
        admin: SocketAddr,
    },
    /// List the databases behind virtual addresses, and which of them get new connections
    Backends {
        /// As JSON
        #[arg(long)]
        json: bool,
        /// The admin interface of the agent
        #[arg(long, value_name = "ADDR:PORT", default_value = DEFAULT_ADMIN)]
        admin: SocketAddr,
    },
    /// Have a backend get no new connections, or let its checks decide again. Holds until the agent is
    /// started again
    Backend {
        /// Its address, as `backends` lists it
        #[arg(value_name = "ADDR:PORT")]
        backend: SocketAddr,
        /// drain: no new connections, established ones stay; down: as if it were found dead; up: what
        /// its checks say
        #[arg(value_parser = ["drain", "up", "down"])]
        order: String,
        /// The agent's control socket
        #[arg(long, value_name = "SOCKET", default_value = DEFAULT_CONTROL)]
        control: PathBuf,
    },
    /// Hold spliced flows, so that they outlive the agent, which starts this itself
    #[command(hide = true)]
    Keep {
        /// The agent's control socket
        #[arg(long, value_name = "SOCKET")]
        control: PathBuf,
    },
    /// Remove what an agent left behind: the hooks, if it was killed; the keeper, unless an agent has
    /// it, and with it the flows that went on without one
    Detach {
        /// Where its links are pinned
        #[arg(long, value_name = "DIR", default_value = dataplane::DEFAULT_PINS)]
        pins: PathBuf,
        /// Its control socket, next to which its keeper is found
        #[arg(long, value_name = "SOCKET", default_value = DEFAULT_CONTROL)]
        control: PathBuf,
    },
}

/// Arguments of `check`.
#[derive(Debug, clap::Args)]
pub struct CheckArgs {
    /// The policy file
    pub file: PathBuf,
    /// A connection to this address
    #[arg(long, value_name = "ADDR:PORT")]
    pub to: Option<SocketAddr>,
    /// from a client on another host, at this address; of its process nothing is known
    #[arg(long, value_name = "ADDR", requires = "to", conflicts_with_all = ["uid", "process", "cgroup", "netns", "container", "label"])]
    pub from: Option<IpAddr>,
    /// by a process of this user id
    #[arg(long, value_name = "UID", requires = "to", default_value_t = 0)]
    pub uid: u32,
    /// by a process of this name
    #[arg(long, value_name = "NAME", requires = "to", default_value = "")]
    pub process: String,
    /// in this cgroup
    #[arg(long, value_name = "PATH", requires = "to", default_value = "/")]
    pub cgroup: PathBuf,
    /// in this network namespace: a name in /run/netns, an inode's number, or a path
    #[arg(long, value_name = "NETNS", requires = "to", value_parser = netns)]
    pub netns: Option<NetnsPattern>,
    /// in a container of this name, and not in one that runs here
    #[arg(long, value_name = "NAME", requires = "to")]
    pub container: Option<String>,
    /// with this label, or with each of these
    #[arg(long, value_name = "KEY=VALUE", requires = "to", value_parser = label)]
    pub label: Vec<(String, String)>,
    /// whose handshake tells this user
    #[arg(long, value_name = "NAME", requires = "to")]
    pub user: Option<String>,
    /// this keyspace
    #[arg(long, value_name = "NAME", requires = "to")]
    pub keyspace: Option<String>,
    /// this driver
    #[arg(long, value_name = "NAME", requires = "to")]
    pub driver: Option<String>,
    /// this version of it
    #[arg(long, value_name = "VERSION", requires = "to")]
    pub driver_version: Option<String>,
    /// this application
    #[arg(long, value_name = "NAME", requires = "to")]
    pub application: Option<String>,
    /// this version of the protocol
    #[arg(long, value_name = "VERSION", requires = "to", value_parser = ["v3", "v4", "v5"])]
    pub protocol: Option<String>,
    /// this compression
    #[arg(long, value_name = "NAME", requires = "to", value_parser = ["none", "lz4", "snappy"])]
    pub compression: Option<String>,
    /// or nothing, because it is encrypted (unless TLS ends in the agent)
    #[arg(long, requires = "to", conflicts_with_all = TOLD)]
    pub tls: bool,
    /// As JSON
    #[arg(long)]
    pub json: bool,
}

fn netns(text: &str) -> Result<NetnsPattern, String> {
    let netns = NetnsPattern::parse(text).ok_or("expected a name, a number or an absolute path")?;
    match netns.inode() {
        Some(_) => Ok(netns),
        None => Err(format!("there is no network namespace {netns}")),
    }
}

fn label(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("expected KEY=VALUE")?;
    Ok((key.into(), value.into()))
}

/// Arguments of `mark`.
#[derive(Debug, clap::Args)]
pub struct MarkArgs {
    /// A flow's number, as `flows` lists it; or `key=value,...`, all of which must hold, of process,
    /// uid, to, cgroup, user, keyspace, driver, application as in rules, and rule, which only
    /// running flows have; or `all`
    #[arg(value_name = "FLOW | SELECTOR")]
    pub target: String,
    /// What they are to be
    #[arg(value_parser = ["bypass", "observe", "enrich", "deny"])]
    pub action: String,
    /// For so long: 30s, 10m, 2h, 1d; 7d at most. Until `unmark`, if left out
    #[arg(long = "for", value_name = "TIME")]
    pub lasts: Option<String>,
    /// Close those that cannot be changed, so that they are opened again under the mark
    #[arg(long)]
    pub reset: bool,
    /// As JSON
    #[arg(long)]
    pub json: bool,
    /// The agent's control socket
    #[arg(long, value_name = "SOCKET", default_value = DEFAULT_CONTROL)]
    pub control: PathBuf,
}

/// What an encrypted handshake does not tell.
const TOLD: [&str; 7] = [
    "user",
    "keyspace",
    "driver",
    "driver_version",
    "application",
    "protocol",
    "compression",
];

/// Parses the command line and does what it says.
pub fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Run { config } => commands::run::run(&config),
        Command::Check(args) => commands::check::run(&args),
        Command::Schema => commands::schema::run(),
        Command::Doctor { json, config } => commands::doctor::run(json, config.as_deref()),
        Command::Flows { json, why, admin } => commands::flows::run(json, why, admin),
        Command::Statements { json, top, admin } => commands::statements::run(json, top, admin),
        Command::Namespaces { json, admin } => commands::namespaces::run(json, admin),
        Command::Backends { json, admin } => commands::backends::list(json, admin),
        Command::Backend {
            backend,
            order,
            control,
        } => commands::backends::order(backend, &order, &control),
        Command::Mark(args) => commands::marks::mark(&args),
        Command::Marks { json, control } => commands::marks::list(json, &control),
        Command::Unmark { number, control } => commands::marks::unmark(number, &control),
        Command::Keep { control } => commands::keep::run(&control),
        Command::Detach { pins, control } => commands::detach::run(&pins, &control),
    };
    match done {
        Ok(code) => code,
        Err(error) => {
            eprintln!("underpass: {error:#}");
            ExitCode::FAILURE
        }
    }
}
