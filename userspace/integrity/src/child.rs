//! Ends whose process is killed.

use std::{
    env,
    io::{BufRead, BufReader, Write},
    net::{SocketAddr, TcpStream},
    os::fd::{AsFd, OwnedFd},
    process::{Command, Stdio},
    sync::Arc,
    thread,
};

use anyhow::Context;
use serde::{Deserialize, Serialize};

use super::{
    drive::{connect, driver},
    end::{failed, play},
    hello::Hello,
    notes::Notes,
    plan::{Cql, Helper},
    report::{Report, Side},
    script::Script,
    watch::{Watch, Watchdog},
};

/// Holds the part that a process is to play.
const PART: &str = "UNDERPASS_INTEGRITY_PART";
/// Said when the stream begins; a test harness may have begun the line.
const BEGUN: &str = "begun";

#[derive(Debug, Serialize, Deserialize)]
struct Part {
    hello: Vec<u8>,
    side: Side,
    to: Option<SocketAddr>,
    cql: Option<Cql>,
}

/// Plays the end that this process was started to play: false if it was started for nothing of
/// the kind. A server's socket is its standard input.
///
/// # Errors
/// The part cannot be read.
pub fn child() -> anyhow::Result<bool> {
    let Ok(part) = env::var(PART) else {
        return Ok(false);
    };
    let part: Part = serde_json::from_str(&part)?;
    let hello = Hello::decode(&part.hello).context("a damaged hello")?;
    let script = Arc::new(Script::new(&hello));
    let notes = Notes::aloud();
    let watchdog = Watchdog::start();
    let watch = Arc::new(Watch::new(&script, part.side, &notes));
    let socket = match part.to {
        Some(to) => connect(to, &script, part.cql.as_ref()),
        None => own_socket(),
    };
    writeln!(std::io::stdout(), "{BEGUN}")?;
    match socket {
        Ok(socket) => {
            watchdog.watch(&watch);
            play(&script, part.side, socket, &watch, &notes);
        }
        Err(error) => notes.add(failed(&script, part.side, &format!("{error:#}"))),
    }
    Ok(true)
}

fn own_socket() -> anyhow::Result<TcpStream> {
    let socket = std::io::stdin().as_fd().try_clone_to_owned()?;
    Ok(TcpStream::from(socket))
}

/// Starts a process that plays the client, and kills it.
pub(super) fn killed_client(
    helper: &Helper,
    script: &Script,
    to: SocketAddr,
    cql: Option<&Cql>,
    notes: &Notes,
) -> anyhow::Result<()> {
    let mut cql = cql.cloned();
    if let Some(cql) = &mut cql {
        cql.drivers = vec![driver(cql, &script.hello)];
    }
    let part = Part {
        hello: script.hello.encode(),
        side: Side::Client,
        to: Some(to),
        cql,
    };
    let mut command = helper_command(helper, &part)?;
    kill_later(command.stdin(Stdio::null()), script, notes)
}

/// Starts a process that plays the server on this socket, and kills it.
pub(super) fn killed_server(
    helper: &Helper,
    script: &Script,
    socket: TcpStream,
    notes: &Notes,
) -> anyhow::Result<()> {
    let part = Part {
        hello: script.hello.encode(),
        side: Side::Server,
        to: None,
        cql: None,
    };
    let mut command = helper_command(helper, &part)?;
    command.stdin(OwnedFd::from(socket));
    kill_later(&mut command, script, notes)
}

fn helper_command(helper: &Helper, part: &Part) -> anyhow::Result<Command> {
    let mut command = Command::new(&helper.program);
    command
        .args(&helper.arguments)
        .env(PART, serde_json::to_string(part)?)
        .stdout(Stdio::piped());
    Ok(command)
}

fn kill_later(command: &mut Command, script: &Script, notes: &Notes) -> anyhow::Result<()> {
    let mut process = command.spawn().context("cannot start the helper")?;
    // What is meant for the helper alone must not stay open here.
    command.stdin(Stdio::null());
    let mut begun = false;
    if let Some(output) = process.stdout.take() {
        let mut lines = BufReader::new(output).lines().map_while(Result::ok);
        begun = lines.any(|line| line.ends_with(BEGUN));
        if begun {
            thread::sleep(script.killed_after);
        }
        process.kill()?;
        for line in lines {
            if let Ok(part) = serde_json::from_str::<Report>(&line) {
                notes.add(part);
            }
        }
    }
    process.wait()?;
    anyhow::ensure!(begun, "the helper did not call integrity::child");
    Ok(())
}
