//! An in-memory CQL database for demos, benchmarks and tests by hand.

use std::io::Write;
use std::net::SocketAddr;
use std::process::ExitCode;

use clap::Parser;
use cql_node::{Credentials, Node, NodeOptions};
use tokio::signal::unix::{SignalKind, signal};

/// Runs an in-memory CQL database of one node until SIGINT or SIGTERM.
#[derive(Debug, Parser)]
#[command(name = "cql-node", version)]
struct Arguments {
    /// Address and port to listen on; port 0 picks one.
    #[arg(long, default_value = "127.0.0.1:9042")]
    listen: SocketAddr,
    /// Ask clients to log in as this user.
    #[arg(long, requires = "password")]
    user: Option<String>,
    /// The user's password.
    #[arg(long, requires = "user")]
    password: Option<String>,
    /// Highest protocol version to speak.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u8).range(3..=5))]
    max_version: u8,
}

fn main() -> ExitCode {
    match run(Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("cql-node: {error:#}{}", advice(&error));
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: Arguments) -> anyhow::Result<()> {
    let credentials = arguments
        .user
        .zip(arguments.password)
        .map(|(user, password)| Credentials { user, password });
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()?;
    runtime.block_on(async {
        // Before the line that says "ready", after which a signal may come.
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let node = Node::start(NodeOptions {
            listen: arguments.listen,
            credentials,
            max_version: arguments.max_version,
            ..NodeOptions::default()
        })?;
        let mut stdout = std::io::stdout();
        writeln!(stdout, "listening on {}", node.addr())?;
        stdout.flush()?;
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
        Ok(())
    })
}

/// Advice about an error of `bind`.
fn advice(error: &anyhow::Error) -> &'static str {
    use std::io::ErrorKind;
    match error
        .root_cause()
        .downcast_ref::<std::io::Error>()
        .map(std::io::Error::kind)
    {
        Some(ErrorKind::AddrInUse) => {
            "; stop what uses the port (`ss -ltnp` tells), or choose another with --listen"
        }
        Some(ErrorKind::PermissionDenied) => "; choose a port above 1023 with --listen",
        Some(ErrorKind::AddrNotAvailable) => {
            "; choose an address of this host with --listen (`ip addr` tells)"
        }
        _ => "",
    }
}
