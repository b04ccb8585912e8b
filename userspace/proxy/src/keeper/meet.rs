//! The agent meets a keeper: one that exists and has lost its agent, or a new one.

use std::{
    fs::File,
    io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::fs::FileTypeExt,
    },
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use telemetry::Rarely;
use tokio::time;

use super::{
    find,
    protocol::{Link, Message},
};
use crate::link::HeldOpen;

/// The time limit from starting a keeper to its first message.
const START_LIMIT: Duration = Duration::from_secs(10);

/// The time within which a keeper that has flows is asked for them again, because it says nothing, or that its agent lives:
/// on a busy machine a death takes seconds to be seen. Then this agent starts a keeper of its own.
pub const ADOPTION_LIMIT: Duration = Duration::from_secs(15);
/// The time limit for that where the keeper's agent may well live: this agent takes over from it.
pub const ADOPTION_LIMIT_OF_UPGRADES: Duration = Duration::from_secs(2);

/// The pause between two questions to keepers that may take this agent.
const ASK_AGAIN_AFTER: Duration = Duration::from_millis(100);

/// Lines about keepers of another version.
static OTHER_VERSION: Rarely = Rarely::failing();

/// A keeper that is looked for, or started.
pub(super) struct Wanted {
    /// The agent's control socket, next to which keepers are.
    pub(super) control: PathBuf,
    pub(super) limit: Duration,
    pub(super) log_format: &'static str,
}

/// A keeper that has this agent.
pub(super) struct Met {
    pub(super) link: Link,
    /// The keeper, if this agent has started it.
    pub(super) child: Option<Child>,
    pub(super) open: HeldOpen,
}

/// Finds a keeper of this version that no agent uses, or starts one.
pub(super) async fn meet(wanted: &Wanted) -> anyhow::Result<Met> {
    let version = find::version();
    let begun = Instant::now();
    loop {
        match adopted(&wanted.control, &version).await {
            Theirs::Adopted(link) => {
                let open = link.hold_open()?;
                return Ok(Met {
                    link,
                    child: None,
                    open,
                });
            }
            Theirs::Nobodys => break,
            Theirs::NotYet(why) if begun.elapsed() >= wanted.limit => {
                tracing::warn!(why, "a keeper is left alone");
                break;
            }
            Theirs::NotYet(_) => time::sleep(ASK_AGAIN_AFTER).await,
        }
    }
    let (ours, theirs) = Link::pair()?;
    let link = Link::new(ours)?;
    let mut child = spawn(wanted, theirs).context("no keeper can be started")?;
    let hello = Message::Hello { version };
    let begun = async {
        link.send(&(hello, Vec::new())).await?;
        let answer = time::timeout(START_LIMIT, link.receive()).await;
        let has_begun = matches!(answer, Ok(Ok(Some((Message::Hello { .. }, _)))));
        ensure!(has_begun, "the keeper does not begin: {answer:?}");
        anyhow::Ok(link.hold_open()?)
    };
    match begun.await {
        Ok(open) => {
            tracing::info!(pid = child.id(), "keeper started");
            Ok(Met {
                link,
                child: Some(child),
                open,
            })
        }
        Err(error) => {
            // It has no flow.
            let _ = child.kill();
            let _ = child.wait();
            Err(error)
        }
    }
}

/// The outcome of asking the keepers that exist already.
enum Theirs {
    /// A keeper has taken this agent.
    Adopted(Link),
    /// A keeper may take this agent soon, and the reason why it has not.
    NotYet(&'static str),
    /// No keeper is for this agent.
    Nobodys,
}

async fn adopted(control: &Path, version: &str) -> Theirs {
    let mut theirs = Theirs::Nobodys;
    for link in find::links(control) {
        let hello = Message::Hello {
            version: version.to_owned(),
        };
        match find::ask(&link, hello).await {
            Some(Message::Hello { version: other }) if other == version => {
                tracing::info!("a keeper has flows of an agent before this one");
                return Theirs::Adopted(link);
            }
            Some(Message::Hello { version: other }) => OTHER_VERSION.say(|not_said_before| {
                tracing::warn!(
                    other,
                    not_said_before,
                    "a keeper of another version stays with its flows until they end"
                );
            }),
            Some(Message::Busy) => theirs = Theirs::NotYet("its agent lives"),
            Some(answer) => tracing::warn!(?answer, "a keeper is left alone"),
            // Who has ended is not found again.
            None => theirs = Theirs::NotYet("it does not answer"),
        }
    }
    theirs
}

/// Starts a keeper. The link is its standard input, so that no other process can be its agent
/// before this one.
fn spawn(wanted: &Wanted, link: OwnedFd) -> io::Result<Child> {
    let control = std::path::absolute(&wanted.control)?;
    let mut command = Command::new("/proc/self/exe");
    command.arg("keep").arg("--control").arg(control);
    command.arg("--log-format").arg(wanted.log_format);
    command.stdin(Stdio::from(link)).stdout(Stdio::null());
    command.stderr(log_of_its_own()?);
    command.spawn()
}

/// Opens the keeper's log. A pipe's reader or a terminal may end before the keeper does, so such a
/// standard error is not passed on.
fn log_of_its_own() -> io::Result<Stdio> {
    let own = io::stderr().as_fd().try_clone_to_owned()?;
    let file = File::from(own);
    let kind = file.metadata()?.file_type();
    match kind.is_socket() || kind.is_file() {
        true => Ok(Stdio::from(file)),
        false => match &test_hooks::get().keeper_log {
            Some(path) => Ok(Stdio::from(
                File::options().create(true).append(true).open(path)?,
            )),
            None => Ok(Stdio::null()),
        },
    }
}
