//! The search for keepers by their sockets, which are next to the agent's control socket.

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use tokio::time;

use super::protocol::{Link, Message};

/// The time limit for a keeper's answer. A keeper answers in microseconds, unless it is stopped, or
/// an agent with ten thousand flows has just died.
const PATIENCE: Duration = Duration::from_secs(5);

/// The time within which a keeper sees its agent's death.
const DEATH_SEEN: Duration = Duration::from_secs(1);

/// The time limit for a keeper to end. Closing flows takes milliseconds.
const END_PATIENCE: Duration = Duration::from_secs(5);

/// The version that must be equal for an agent to take a keeper's flows. It covers the protocol
/// between the two, and the kernel's interface to both.
pub(super) fn version() -> String {
    let of_a_test = test_hooks::get().version.clone();
    of_a_test.unwrap_or_else(|| {
        let package = env!("CARGO_PKG_VERSION");
        format!("{package} {:016x}", dataplane::fingerprint())
    })
}

/// A keeper that runs.
#[derive(Debug)]
pub struct Found {
    /// The keeper's process id.
    pub pid: u32,
    /// Whether an agent of this version can adopt the keeper's flows.
    pub is_ours: bool,
    /// The number of flows that the keeper holds.
    pub flows: usize,
    /// Whether an agent uses the keeper.
    pub has_agent: bool,
}

/// Returns the socket's path of the keeper with this process id, for agents with this control
/// socket.
pub(super) fn path_of(control: &Path, pid: u32) -> PathBuf {
    let mut name = prefix(control);
    name.push_str(&pid.to_string());
    control.with_file_name(name)
}

fn prefix(control: &Path) -> String {
    let name = control.file_name().unwrap_or_default();
    format!("{}.keep-", name.to_string_lossy())
}

/// Connects to every keeper there is. Each connection is made when it is asked for, because a
/// keeper does not wait long for the first message. Sockets of dead keepers are removed. Must run
/// within a runtime.
pub(super) fn links(control: &Path) -> impl Iterator<Item = Link> {
    let folder = control.parent().unwrap_or(Path::new("."));
    let prefix = prefix(control);
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let named = entries.filter(|e| e.file_name().to_string_lossy().starts_with(&prefix));
    // The list is complete before a keeper is asked, because a keeper may come meanwhile.
    let named: Vec<_> = named.map(|entry| entry.path()).collect();
    named.into_iter().filter_map(|path| link(&path))
}

fn link(path: &Path) -> Option<Link> {
    match Link::to(path) {
        Ok(link) => Some(link),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            // The next search looks again.
            let _ = fs::remove_file(path);
            None
        }
        Err(error) => {
            tracing::warn!(path = %path.display(), %error, "a keeper cannot be asked");
            None
        }
    }
}

/// Sends a message, and returns the keeper's answer, if there is one.
pub(super) async fn ask(link: &Link, message: Message) -> Option<Message> {
    let asked = async {
        link.send(&(message, Vec::new())).await?;
        link.receive().await
    };
    let answered = time::timeout(PATIENCE, asked).await.ok()?.ok()??;
    Some(answered.0)
}

/// Finds the keepers of agents with this control socket. Must run within a runtime.
pub async fn find(control: &Path) -> Vec<Found> {
    let mut found = Vec::new();
    for link in links(control) {
        if let Some(Message::State {
            version,
            pid,
            flows,
            has_agent,
        }) = ask(&link, Message::Ask).await
        {
            found.push(Found {
                pid,
                is_ours: version == self::version(),
                flows,
                has_agent,
            });
        }
    }
    found
}

/// Ends every keeper that no agent uses, and its flows. Returns the keepers that have ended. Must
/// run within a runtime.
///
/// # Errors
/// A keeper does not end.
pub async fn end_all(control: &Path) -> anyhow::Result<Vec<Found>> {
    let mut ended = find(control).await;
    let begun = Instant::now();
    while ended.iter().any(|found| found.has_agent) && begun.elapsed() < DEATH_SEEN {
        time::sleep(Duration::from_millis(100)).await;
        ended = find(control).await;
    }
    ended.retain(|found| !found.has_agent);
    for link in links(control) {
        if let Some(Message::Busy) = ask(&link, Message::End).await {
            continue;
        }
        let end = time::timeout(END_PATIENCE, link.receive()).await;
        anyhow::ensure!(
            matches!(end, Ok(Ok(None) | Err(_))),
            "a keeper at {} does not end",
            control.display()
        );
    }
    Ok(ended)
}
