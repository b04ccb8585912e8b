//! The command line. Exit codes: 0 done; 1 it could not be done, and one line on standard
//! error says why and what to do; 2 the command line itself is wrong.

pub(crate) mod values;

use std::{
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    process::ExitCode,
};

use clap::{Parser, Subcommand};

use policy::{Filter, NetnsPattern, Timestamp};

use crate::{
    commands::{
        self, filter,
        whereabouts::{AdminArg, ControlArg},
    },
    config::DEFAULT_FILE,
    log::{LogFormat, LogLevel},
};

const EXIT_CODES: &str = "Exit codes: 0 done; 1 failed, one line on standard error says why and what to \
                          do; 2 wrong usage.";

const CHECK_EXIT_CODES: &str = "Exit codes: 0 the file is good (with --statement: and the statement passes, or may); 1 the \
                                file is wrong; 2 wrong usage; 3 the statement is refused.";

/// A transparent database proxy that costs next to nothing where it has nothing to do.
#[derive(Debug, Parser)]
#[command(name = "underpass", version, after_help = EXIT_CODES)]
pub struct Cli {
    /// Command to run.
    #[command(subcommand)]
    pub command: Command,
}

/// Commands of the program.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the agent in the foreground: attach to the kernel and carry flows, until SIGTERM or ctrl-C
    Run {
        /// Policy file
        #[arg(long, value_name = "FILE", default_value = DEFAULT_FILE)]
        config: PathBuf,
        /// Format of the log, whatever the file says
        #[arg(long, value_name = "FORMAT", value_enum)]
        log_format: Option<LogFormat>,
        /// Match and count only: what a rule would not leave alone is observed, or read from copies where it names users,
        /// keyspaces or drivers, and nothing is refused or changed. Clients on other hosts are not looked at
        #[arg(long)]
        dry_run: bool,
        /// Take over from the agent that runs, if there is one: new connections are this agent's, and the other one keeps its
        /// flows until they end or its `drain` is over. `underpass upgrade` starts an agent like this
        #[arg(long)]
        take_over: bool,
    },
    /// Have another agent, of the binary that is installed now, take over from the one that runs. Nothing is refused; flows that
    /// go through the agent are handed over, and those that cannot be stay with the old one, which drains
    Upgrade(commands::upgrade::UpgradeArgs),
    /// Write a first policy, made of what this host does: it reads and counts who asks what, and changes nothing
    Init(commands::init::InitArgs),
    /// Check a policy file. With --to: show which rule a connection would meet, and why. Details of the
    /// session that you do not give count as not yet known
    Check(Box<CheckArgs>),
    /// Print the policy in force, its files as one and every default filled in, as a file that `check` accepts. Log-ins and queries
    /// of URLs are masked
    Config {
        /// Policy file to print. Without it, the running agent is asked
        #[arg(long, short, value_name = "FILE")]
        config: Option<PathBuf>,
        /// Print JSON
        #[arg(long)]
        json: bool,
        /// The agent that is asked
        #[command(flatten)]
        admin: AdminArg,
    },
    /// Lay policy files out: spaces, blank lines and commas. Neither what they mean changes, nor a comment
    Fmt {
        /// Files, of which each is replaced at once; `-`: standard input, to standard output
        #[arg(value_name = "FILE", required = true)]
        files: Vec<PathBuf>,
        /// Change nothing, and name the files that would change. Exit code 1: there are some
        #[arg(long)]
        check: bool,
    },
    /// Change the rules of a fleet, which its hosts follow in etcd, and see what they made of them
    Policy(commands::policy::PolicyArgs),
    /// Print the JSON Schema of the policy file, for editors
    Schema,
    /// Check this host: what underpass needs of it, and what is missing
    Doctor {
        /// Print JSON
        #[arg(long)]
        json: bool,
        /// Policy file that names the cgroup, the pins and the container runtimes to check, and whose rules running connections are held against
        #[arg(long, value_name = "FILE")]
        config: Option<PathBuf>,
    },
    /// Gather what a report of a fault needs into one file that only you can read: doctor's findings, the policy without
    /// secrets, metrics, flows, statements without values, kernel, map sizes, the log's last lines
    DebugBundle(commands::debug_bundle::DebugBundleArgs),
    /// List flows: those that the agent carries or observes, and those that a rule wants on the shortcut
    Flows {
        /// Only this flow: a number, as the list has it
        #[arg(value_name = "FLOW", value_parser = values::flow)]
        flow: Option<String>,
        /// Print JSON
        #[arg(long)]
        json: bool,
        /// Show why each flow is not on a faster path
        #[arg(long)]
        why: bool,
        /// Show only flows that these conditions hold for: `process=web*,not user=etl`. Keys: process, pid, uid, client, to, rule,
        /// user, keyspace, action, path, driver, application, netns
        #[arg(long, value_name = "FILTER", default_value = "", value_parser = filter::of_flows)]
        filter: Filter,
        /// The agent that is asked
        #[command(flatten)]
        admin: AdminArg,
    },
    /// Explain a flow: all that is known of it, each rule and why it holds or not, its path, and what would change it
    Explain(commands::explain::ExplainArgs),
    /// Count statements on the flows that the agent decodes, by rule, table and kind
    Statements {
        /// Print JSON
        #[arg(long)]
        json: bool,
        /// List the most frequent statements instead, without their values. Needs the step `stats` in the rule
        #[arg(long)]
        top: bool,
        /// Show only statements that these conditions hold for: `table=shop.*,not kind=select`. Keys: rule, keyspace, table, kind;
        /// with --top also process, client, path
        #[arg(long, value_name = "FILTER", default_value = "", value_parser = filter::of_top)]
        filter: String,
        /// The agent that is asked
        #[command(flatten)]
        admin: AdminArg,
    },
    /// Watch who asks what, how often and how slowly, live. Needs the step `stats` in the rule
    Top(Box<commands::top::TopArgs>),
    /// Show statements as they pass, without their values: who asks what, how long it took, how many rows came, which errors
    Tail(Box<commands::tail::TailArgs>),
    /// Capture the requests of a flow, or of a rule's flows, into a file: statements, what was asked of them, outcome, rows and
    /// latency. Literals and values are replaced by others of their types and lengths, unless --with-values is given
    Capture(Box<commands::capture::CaptureArgs>),
    /// Ask another database the requests of a capture, in the application's own rhythm, and compare what comes of it
    Replay(Box<commands::replay::ReplayArgs>),
    /// Override the rules for some flows: for running ones, where they can be changed, and for new connections
    /// while the mark is active. Changed flows stay changed when the mark ends
    Mark(MarkArgs),
    /// List active marks
    Marks {
        /// Print JSON
        #[arg(long)]
        json: bool,
        /// The agent that is told
        #[command(flatten)]
        control: ControlArg,
    },
    /// Remove a mark
    Unmark {
        /// Number of the mark, as `marks` lists it
        #[arg(value_parser = values::mark)]
        number: u64,
        /// The agent that is told
        #[command(flatten)]
        control: ControlArg,
    },
    /// Show or change how much a running agent logs. Holds until the file says another level, or the agent ends
    Log {
        /// off, error, warn, info, debug or trace; for parts of the program another: info,proxy=debug
        level: Option<LogLevel>,
        /// The agent that is told
        #[command(flatten)]
        control: ControlArg,
    },
    /// List the names that rules have (`to`), the addresses that they stand for, and when they are looked up again
    Names {
        /// Print JSON
        #[arg(long)]
        json: bool,
        /// The agent that is asked
        #[command(flatten)]
        admin: AdminArg,
    },
    /// List the network namespaces (containers, pods) that the agent serves beside its own
    Namespaces {
        /// Print JSON
        #[arg(long)]
        json: bool,
        /// The agent that is asked
        #[command(flatten)]
        admin: AdminArg,
    },
    /// List the latest connections and requests that a rule refused: who, where to, and why. At most 10 a second are
    /// listed, further ones are counted. What the edge drops is only counted
    Denied {
        /// Print JSON
        #[arg(long)]
        json: bool,
        /// Show only refusals that these conditions hold for: `process=web*,not user=etl`. Keys: process, pid, uid, client, to,
        /// rule, user
        #[arg(long, value_name = "FILTER", default_value = "", value_parser = filter::of_denials)]
        filter: Filter,
        /// The agent that is asked
        #[command(flatten)]
        admin: AdminArg,
    },
    /// Show what underpass costs: latency and errors of connections that a rule treats, compared with those that it leaves alone for
    /// this (`holdout`)
    Overhead {
        /// Print JSON
        #[arg(long)]
        json: bool,
        /// The agent that is asked
        #[command(flatten)]
        admin: AdminArg,
    },
    /// List the databases behind virtual addresses, with their health
    Backends {
        /// Print JSON
        #[arg(long)]
        json: bool,
        /// The agent that is asked
        #[command(flatten)]
        admin: AdminArg,
    },
    /// Drain a backend, take it down, or let its health checks decide again. Holds until the agent is restarted, also while another one takes over
    Backend {
        /// Address of the backend, as `backends` lists it
        #[arg(value_name = "ADDR:PORT", value_parser = values::address)]
        backend: SocketAddr,
        /// drain: no new connections, established ones stay; down: treat it as dead; up: its health checks
        /// decide
        #[arg(value_parser = ["drain", "up", "down"])]
        order: String,
        /// The agent that is told
        #[command(flatten)]
        control: ControlArg,
    },
    /// Keep spliced flows alive while no agent runs. The agent starts this itself
    #[command(hide = true)]
    Keep {
        /// Control socket of the agent
        #[arg(long, value_name = "SOCKET")]
        control: PathBuf,
        /// Format of the log
        #[arg(long, value_name = "FORMAT", value_enum, default_value_t)]
        log_format: LogFormat,
    },
    /// Write man pages and shell completions, for packages
    #[command(hide = true)]
    Pages {
        /// Folder that gets `man` and `completions`
        folder: PathBuf,
    },
    /// Clean up after an agent that is gone: remove its hooks, and end its keeper with the flows that it keeps
    /// alive
    Detach {
        /// Policy file that names the pins and the control socket, where these options do not. Without it the usual one, if it is there
        #[arg(long, value_name = "FILE")]
        config: Option<PathBuf>,
        /// Folder of the agent's pins
        #[arg(long, value_name = "DIR")]
        pins: Option<PathBuf>,
        /// The agent that is told
        #[command(flatten)]
        control: ControlArg,
    },
}

/// Arguments of `check`.
#[derive(Debug, clap::Args)]
#[command(after_help = CHECK_EXIT_CODES, group = clap::ArgGroup::new("asked").args(["to", "statement"]).multiple(true))]
pub struct CheckArgs {
    /// Policy file
    pub file: PathBuf,
    /// Check the file for another host: not whether `run` would start with it here
    #[arg(long)]
    pub file_only: bool,
    /// List the file's rules, with how often each was met since the agent that runs here began
    #[arg(long)]
    pub live: bool,
    /// The agent that is asked
    #[command(flatten)]
    pub admin: AdminArg,
    /// Explain a connection to this address
    #[arg(long, value_name = "ADDR:PORT", value_parser = values::address)]
    pub to: Option<SocketAddr>,
    /// ... from a client on another host, at this address. Its process is not known
    #[arg(long, value_name = "ADDR", value_parser = values::ip, requires = "to", conflicts_with_all = ["uid", "gid", "process", "cgroup", "netns", "container", "label"])]
    pub from: Option<IpAddr>,
    /// ... by a process of this user, by id or by name
    #[arg(long, value_name = "USER", requires = "to", default_value = "0", value_parser = values::uid)]
    pub uid: u32,
    /// ... and this group, by id or by name
    #[arg(long, value_name = "GROUP", requires = "to", default_value = "0", value_parser = values::gid)]
    pub gid: u32,
    /// ... by a process of this name
    #[arg(long, value_name = "NAME", requires = "to", default_value = "")]
    pub process: String,
    /// ... in this cgroup
    #[arg(long, value_name = "PATH", requires = "to", default_value = "/")]
    pub cgroup: PathBuf,
    /// ... in this network namespace: a name in /run/netns, an inode's number, or a path
    #[arg(long, value_name = "NETNS", requires = "to", value_parser = values::netns)]
    pub netns: Option<NetnsPattern>,
    /// ... in a container of this name, which need not run here
    #[arg(long, value_name = "NAME", requires = "to")]
    pub container: Option<String>,
    /// ... in a container with this label; may be repeated
    #[arg(long, value_name = "KEY=VALUE", requires = "to", value_parser = values::label)]
    pub label: Vec<(String, String)>,
    /// Check it as at another time, such as 2026-11-27T22:00:00+01:00: which rules' windows are open then
    #[arg(long, value_name = "TIME", value_parser = values::moment)]
    pub at: Option<Timestamp>,
    /// Say what the pipeline of the rule does with this statement; without --to, what each rule's pipeline does. Exit
    /// code 3: it is refused, whichever of the rules the connection meets
    #[arg(long, value_name = "CQL")]
    pub statement: Option<String>,
    /// ... whose handshake names this user
    #[arg(long, value_name = "NAME", requires = "asked")]
    pub user: Option<String>,
    /// ... this keyspace
    #[arg(long, value_name = "NAME", requires = "asked")]
    pub keyspace: Option<String>,
    /// ... this driver
    #[arg(long, value_name = "NAME", requires = "asked")]
    pub driver: Option<String>,
    /// ... this version of the driver
    #[arg(long, value_name = "VERSION", requires = "to")]
    pub driver_version: Option<String>,
    /// ... this application
    #[arg(long, value_name = "NAME", requires = "to")]
    pub application: Option<String>,
    /// ... this version of the protocol
    #[arg(long, value_name = "VERSION", requires = "to", value_parser = ["v3", "v4", "v5"])]
    pub protocol: Option<String>,
    /// ... this compression
    #[arg(long, value_name = "NAME", requires = "to", value_parser = ["none", "lz4", "snappy"])]
    pub compression: Option<String>,
    /// ... or that encrypts, and so tells nothing (unless TLS ends in the agent)
    #[arg(long, requires = "to", conflicts_with_all = TOLD)]
    pub tls: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `mark`.
#[derive(Debug, clap::Args)]
pub struct MarkArgs {
    /// Flows to mark: a number, as `flows` lists it; or `key=value,...`, which all have to hold; or `all`. Keys:
    /// process, uid, gid, to, cgroup, user, keyspace, driver, application, as in rules; and rule, for running flows
    /// only
    #[arg(value_name = "FLOW | SELECTOR", value_parser = values::target)]
    pub target: String,
    /// Action for these flows
    #[arg(value_parser = ["bypass", "observe", "enrich", "deny"])]
    pub action: String,
    /// How long: 30s, 10m, 2h, 1d; 7d at most. Without it: until `unmark`
    #[arg(long = "for", value_name = "TIME", value_parser = values::lasting)]
    pub lasts: Option<String>,
    /// Close flows that cannot be changed, so that clients open them again under the mark
    #[arg(long)]
    pub reset: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// The agent that is told
    #[command(flatten)]
    pub control: ControlArg,
}

/// Arguments of `check` about facts that an encrypted handshake does not tell.
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
    let command = Cli::parse().command;
    if let Err(error) = test_hooks::install() {
        eprintln!("underpass: {error}");
        return ExitCode::FAILURE;
    }
    // A command that cannot do without says what is missing.
    let _ = dataplane::host::join_cgroup_namespace();
    let done = match command {
        Command::Run {
            config,
            log_format,
            dry_run,
            take_over,
        } => commands::run::run(&config, log_format, dry_run, take_over),
        Command::Upgrade(args) => commands::upgrade::run(&args),
        Command::Init(args) => commands::init::run(&args),
        Command::Check(args) => commands::check::run(&args),
        Command::Config {
            config,
            json,
            admin,
        } => commands::config::run(config.as_deref(), json, &admin),
        Command::Fmt { files, check } => commands::fmt::run(&files, check),
        Command::Policy(args) => commands::policy::run(&args),
        Command::Schema => commands::schema::run(),
        Command::Doctor { json, config } => commands::doctor::run(json, config.as_deref()),
        Command::DebugBundle(args) => commands::debug_bundle::run(&args),
        Command::Flows {
            flow,
            json,
            why,
            filter,
            admin,
        } => admin
            .find()
            .and_then(|admin| commands::flows::run(flow.as_deref(), json, why, &filter, &admin)),
        Command::Statements {
            json,
            top,
            filter,
            admin,
        } => admin
            .find()
            .and_then(|admin| commands::statements::run(json, top, &filter, &admin)),
        Command::Explain(args) => commands::explain::run(&args),
        Command::Top(args) => commands::top::run(&args),
        Command::Tail(args) => commands::tail::run(&args),
        Command::Capture(args) => commands::capture::run(&args),
        Command::Replay(args) => commands::replay::run(&args),
        Command::Names { json, admin } => admin
            .find()
            .and_then(|admin| commands::names::run(json, &admin)),
        Command::Namespaces { json, admin } => admin
            .find()
            .and_then(|admin| commands::namespaces::run(json, &admin)),
        Command::Denied {
            json,
            filter,
            admin,
        } => admin
            .find()
            .and_then(|admin| commands::denied::run(json, &filter, &admin)),
        Command::Overhead { json, admin } => admin
            .find()
            .and_then(|admin| commands::overhead::run(json, &admin)),
        Command::Backends { json, admin } => admin
            .find()
            .and_then(|admin| commands::backends::list(json, &admin)),
        Command::Backend {
            backend,
            order,
            control,
        } => commands::backends::order(backend, &order, &control.find()),
        Command::Mark(args) => commands::marks::mark(&args),
        Command::Marks { json, control } => commands::marks::list(json, &control.find()),
        Command::Log { level, control } => commands::log::run(level.as_ref(), &control.find()),
        Command::Unmark { number, control } => commands::marks::unmark(number, &control.find()),
        Command::Keep {
            control,
            log_format,
        } => commands::keep::run(&control, log_format),
        Command::Pages { folder } => commands::pages::run(&folder),
        Command::Detach {
            config,
            pins,
            control,
        } => commands::detach::run(config.as_deref(), pins.as_deref(), &control),
    };
    match done {
        Ok(code) => code,
        Err(error) => {
            eprintln!("underpass: {error:#}");
            ExitCode::FAILURE
        }
    }
}
