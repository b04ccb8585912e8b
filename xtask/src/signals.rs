//! SIGINT and SIGTERM as a flag, so that every chore can end what it started.
//!
//! Children inherit nothing of this: `execve` resets a handler to the default, which a
//! blocked signal would not be.

use std::{
    process::ExitCode,
    sync::atomic::{AtomicI32, Ordering},
};

use anyhow::{Context, Result, bail};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

/// The last signal that arrived; 0 when none has.
static RECEIVED: AtomicI32 = AtomicI32::new(0);

/// Makes SIGINT and SIGTERM set the flag, and end nothing by themselves, from here on.
pub fn install() -> Result<()> {
    let action = SigAction::new(
        SigHandler::Handler(remember),
        SaFlags::SA_RESTART,
        SigSet::empty(),
    );
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        // SAFETY: the handler only stores to an atomic, which is async-signal-safe.
        unsafe { sigaction(signal, &action) }.with_context(|| format!("cannot handle {signal}"))?;
    }
    Ok(())
}

extern "C" fn remember(number: i32) {
    RECEIVED.store(number, Ordering::Relaxed);
}

/// The signal that asked us to end, if one has.
pub fn received() -> Option<Signal> {
    Signal::try_from(RECEIVED.load(Ordering::Relaxed)).ok()
}

/// An error once a signal has asked us to end: for loops that wait.
pub fn check() -> Result<()> {
    match received() {
        Some(signal) => bail!("interrupted by {signal}"),
        None => Ok(()),
    }
}

/// Returns the exit code that a shell reports for a process that this signal ended: 128 + its
/// number.
pub fn exit_code(signal: Signal) -> ExitCode {
    u8::try_from(signal as i32).map_or(ExitCode::FAILURE, |n| ExitCode::from(128 + n))
}
