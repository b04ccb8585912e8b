//! Drives any path with random streams, and tells whether every byte arrived.

use std::{
    io::Write,
    net::SocketAddr,
    process::ExitCode,
    time::{Duration, SystemTime},
};

use anyhow::Context;
use clap::{Args, Parser, Subcommand};
use integrity::{Choices, Cql, Helper, Options, Plan, Report, Server, child, drive, listen};
use tokio::signal::unix::{SignalKind, signal};

/// Proves that no byte is lost, duplicated, reordered or foreign, and that nothing hangs.
#[derive(Debug, Parser)]
#[command(name = "integrity", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Be the server, until SIGINT or SIGTERM.
    Serve(Serve),
    /// Be the clients; the report holds what the server has found, too.
    Drive(Drive),
    /// Be both, directly.
    Both(Load),
    /// Be an end that is killed: what this program starts by itself.
    #[command(hide = true)]
    Child,
}

#[derive(Debug, Args)]
struct Serve {
    /// Address and port to listen on; port 0 picks one.
    #[arg(long, default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// Ask CQL clients to log in as this user.
    #[arg(long, requires = "password")]
    user: Option<String>,
    /// The user's password.
    #[arg(long, requires = "user")]
    password: Option<String>,
    /// Accepted sockets do not block, as databases': for behaviours whose ends never block.
    #[arg(long)]
    never_blocks: bool,
}

#[derive(Debug, Args)]
struct Drive {
    /// The server's address, as it is to be dialled.
    #[arg(long)]
    to: SocketAddr,
    #[command(flatten)]
    load: Load,
}

#[derive(Debug, Args)]
struct Load {
    /// Bytes in all, both directions together; 0: until --seconds are over.
    #[arg(long, default_value = "64M", value_parser = size)]
    bytes: u64,
    /// Begin no more connections after so long.
    #[arg(long)]
    seconds: Option<u64>,
    /// Connections at a time: a number, or the lowest and highest of those that are drawn.
    #[arg(long, default_value = "1-64", value_parser = range)]
    connections: (u64, u64),
    /// Repeats a run; random if it is not given.
    #[arg(long)]
    seed: Option<u64>,
    /// The first connection's number: with --seed, --bytes 1 and the same limits it repeats one.
    #[arg(long, default_value_t = 0)]
    first: u64,
    /// The largest single read or write.
    #[arg(long, default_value = "1M", value_parser = size)]
    chunk_max: u64,
    /// The most bytes of one connection.
    #[arg(long, default_value = "64M", value_parser = size)]
    connection_max: u64,
    /// For throughput: large chunks, default buffers, no pauses but those of a shape.
    #[arg(long)]
    steady: bool,
    /// Only this behaviour of its kind; may be repeated. An unknown name lists them.
    #[arg(long, value_name = "NAME")]
    behaviour: Vec<String>,
    /// A connection without progress for so long hangs, beyond what its script explains.
    #[arg(long, default_value_t = 1000)]
    hang_limit_ms: u64,
    /// The machine is loaded: a hang limit of five seconds.
    #[arg(long, conflicts_with = "hang_limit_ms")]
    loaded: bool,
    /// A reader that stops does so for at most this long.
    #[arg(long, default_value_t = 300)]
    stop_max_ms: u64,
    /// The run has to be over by then, in seconds.
    #[arg(long, default_value_t = 3600)]
    deadline: u64,
    /// Violations that do not fail the run, separated by commas.
    #[arg(long, value_delimiter = ',')]
    allow: Vec<String>,
    /// Print the report as JSON.
    #[arg(long)]
    json: bool,
    /// Begin as a CQL driver does, and wrap everything into CQL frames.
    #[arg(long)]
    cql: bool,
    /// The driver's name in STARTUP; of several, each connection gives one.
    #[arg(long, default_value = "underpass-integrity", value_delimiter = ',')]
    driver: Vec<String>,
    /// The application's name in STARTUP.
    #[arg(long)]
    application: Option<String>,
    /// USE this keyspace.
    #[arg(long)]
    keyspace: Option<String>,
    /// Log in as this user, if the server asks.
    #[arg(long, requires = "password")]
    user: Option<String>,
    /// The user's password.
    #[arg(long, requires = "user")]
    password: Option<String>,
}

fn main() -> ExitCode {
    match run(Arguments::parse().command) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("integrity: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// Whether nothing was found.
fn run(command: Command) -> anyhow::Result<bool> {
    match command {
        Command::Serve(serve) => self::serve(serve),
        Command::Drive(Drive { to, load }) => report(&load, drive(&load.plan(to)?)),
        Command::Both(load) => {
            let options = Options {
                helper: Some(helper()?),
                credentials: load.user.clone().zip(load.password.clone()),
                ..Options::default()
            };
            let any = SocketAddr::from(([127, 0, 0, 1], 0));
            let server = Server::start_with(listen(any)?, options)?;
            report(&load, drive(&load.plan(server.addr())?))
        }
        Command::Child => {
            anyhow::ensure!(child()?, "this is what the program starts by itself");
            Ok(true)
        }
    }
}

fn serve(serve: Serve) -> anyhow::Result<bool> {
    let options = Options {
        helper: Some(helper()?),
        never_blocks: serve.never_blocks,
        credentials: serve.user.zip(serve.password),
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()?;
    runtime.block_on(async {
        // Before the line that says where, after which a signal may come.
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let server = Server::start_with(listen(serve.listen)?, options)?;
        let mut stdout = std::io::stdout();
        writeln!(stdout, "listening {}", server.addr())?;
        stdout.flush()?;
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
        let found = server.stop();
        let passed = found.passed(&[]);
        if !passed {
            eprint!("{found}");
        }
        Ok(passed)
    })
}

fn report(load: &Load, report: Report) -> anyhow::Result<bool> {
    let text = match load.json {
        true => serde_json::to_string_pretty(&report)? + "\n",
        false => report.to_string(),
    };
    std::io::stdout().write_all(text.as_bytes())?;
    Ok(report.passed(&load.allow))
}

impl Load {
    fn plan(&self, to: SocketAddr) -> anyhow::Result<Plan> {
        anyhow::ensure!(
            self.bytes > 0 || self.seconds.is_some(),
            "--bytes 0 needs --seconds"
        );
        let clock = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let random = clock.map_or(0, |now| now.as_micros() as u64);
        let cql = self.cql.then(|| Cql {
            drivers: self.driver.clone(),
            application: self.application.clone(),
            keyspace: self.keyspace.clone(),
            credentials: self.user.clone().zip(self.password.clone()),
            ..Cql::default()
        });
        let hang_limit_ms = if self.loaded {
            5000
        } else {
            self.hang_limit_ms
        };
        Ok(Plan {
            bytes: self.bytes,
            time: self.seconds.map(Duration::from_secs),
            connections: self.connections,
            seed: self.seed.unwrap_or(random),
            first: self.first,
            chunk_max: self.chunk_max,
            connection_max: self.connection_max,
            stop_max: Duration::from_millis(self.stop_max_ms),
            hang_limit: Duration::from_millis(hang_limit_ms),
            deadline: Duration::from_secs(self.deadline),
            steady: self.steady,
            may_be_cut: false,
            choices: Choices::named(&self.behaviour)?,
            cql,
            helper: Some(helper()?),
            ..Plan::new(to)
        })
    }
}

fn helper() -> anyhow::Result<Helper> {
    Ok(Helper {
        program: std::env::current_exe().context("where is this program?")?,
        arguments: vec!["child".into()],
    })
}

/// `2G`, `64M`, `4K` or a number.
fn size(text: &str) -> Result<u64, String> {
    let (number, shift) = match text.char_indices().last() {
        Some((at, 'K' | 'k')) => (text.get(..at), 10),
        Some((at, 'M' | 'm')) => (text.get(..at), 20),
        Some((at, 'G' | 'g')) => (text.get(..at), 30),
        _ => (Some(text), 0),
    };
    let number: u64 = number
        .unwrap_or_default()
        .parse()
        .map_err(|_| format!("{text} is not a number of bytes; 2G, 64M and 4K are"))?;
    number
        .checked_mul(1 << shift)
        .ok_or_else(|| format!("{text} is too much"))
}

/// `8` or `1-64`.
fn range(text: &str) -> Result<(u64, u64), String> {
    let (low, high) = text.split_once('-').unwrap_or((text, text));
    match (low.parse(), high.parse()) {
        (Ok(low), Ok(high)) if 1 <= low && low <= high => Ok((low, high)),
        _ => Err(format!(
            "{text} is neither a number nor two; 8 and 1-64 are"
        )),
    }
}
