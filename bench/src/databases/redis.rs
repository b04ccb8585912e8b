//! A real redis-server, in memory only.

use std::{
    net::{SocketAddr, TcpListener, TcpStream},
    process::Command,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, bail, ensure};

use crate::{
    interrupt,
    server::{Home, Server},
};

const PROGRAM: &str = "redis-server";
const MISSING: &str = "redis-server is not installed (Debian: apt-get install redis-server)";

/// The time limit to listen; the server has nothing to load.
const START_LIMIT: Duration = Duration::from_secs(10);

/// Starts a server on a port that was free a moment ago: it cannot choose one itself.
pub fn start(home: Home<'_>) -> anyhow::Result<Server> {
    let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    let mut command = Command::new(PROGRAM);
    command
        .args(["--bind", "127.0.0.1", "--port", &address.port().to_string()])
        .args(["--save", "", "--appendonly", "no", "--daemonize", "no"])
        .args(["--dir", "/tmp", "--loglevel", "warning"]);
    let mut server = Server::spawn(&command, home, address).context(MISSING)?;
    wait_for(&mut server, address)?;
    Ok(server)
}

fn wait_for(server: &mut Server, address: SocketAddr) -> anyhow::Result<()> {
    let deadline = Instant::now() + START_LIMIT;
    while TcpStream::connect(address).is_err() {
        interrupt::check()?;
        ensure!(
            !server.poll_ended(),
            "{PROGRAM} ended; is {address} in use?"
        );
        if Instant::now() > deadline {
            bail!("{PROGRAM} does not listen on {address}");
        }
        thread::sleep(interrupt::LOOK_EVERY);
    }
    Ok(())
}

/// `v=7.0.15` of `redis-server --version`.
pub fn version() -> anyhow::Result<String> {
    let output = Command::new(PROGRAM)
        .arg("--version")
        .output()
        .context(MISSING)?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let version = text.split(' ').find_map(|word| word.strip_prefix("v="));
    Ok(version.unwrap_or("unknown").trim().to_owned())
}
