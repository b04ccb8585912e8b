//! SIGINT and SIGTERM as a flag. Every wait looks at it, and fails; the guards on the way out then
//! take down what was set up.

use std::{
    fmt,
    process::ExitCode,
    sync::{
        atomic::{AtomicI32, Ordering::Relaxed},
        mpsc,
    },
    thread,
    time::Duration,
};

use anyhow::Context;
use nix::sys::signal::Signal;
use tokio::{
    runtime,
    signal::unix::{SignalKind, signal},
};

/// The interval at which a wait looks.
pub const LOOK_EVERY: Duration = Duration::from_millis(20);

/// The last signal that arrived; 0 when none has.
static RECEIVED: AtomicI32 = AtomicI32::new(0);

/// The error that a signal told us to end.
#[derive(Debug)]
pub struct Interrupted(Signal);

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "interrupted by {}", self.0)
    }
}

impl std::error::Error for Interrupted {}

impl Interrupted {
    /// Returns the exit code that a shell reports for a process that this signal ended.
    pub fn exit_code(&self) -> ExitCode {
        u8::try_from(self.0 as i32).map_or(ExitCode::FAILURE, |n| ExitCode::from(128 + n))
    }
}

/// Makes the two signals set the flag, and end nothing by themselves, from here on.
pub fn install() -> anyhow::Result<()> {
    let (told, installed) = mpsc::channel();
    let runtime = runtime::Builder::new_current_thread().enable_io().build()?;
    thread::Builder::new()
        .name("signals".into())
        .spawn(move || {
            runtime.block_on(async {
                let both = signal(SignalKind::interrupt())
                    .and_then(|i| Ok((i, signal(SignalKind::terminate())?)));
                let (mut interrupt, mut terminate) = match both {
                    Ok(both) => both,
                    Err(error) => return drop(told.send(Err(error))),
                };
                drop(told.send(Ok(())));
                loop {
                    let signal = tokio::select! {
                        _ = interrupt.recv() => Signal::SIGINT,
                        _ = terminate.recv() => Signal::SIGTERM,
                    };
                    RECEIVED.store(signal as i32, Relaxed);
                }
            });
        })?;
    let installed = installed.recv().context("the signals' thread ended")?;
    installed.context("cannot handle signals")
}

/// The signal that told us to end, if one has.
pub fn received() -> Option<Interrupted> {
    Signal::try_from(RECEIVED.load(Relaxed))
        .ok()
        .map(Interrupted)
}

/// Fails once a signal has told us to end.
pub fn check() -> anyhow::Result<()> {
    match received() {
        Some(interrupted) => Err(interrupted.into()),
        None => Ok(()),
    }
}
