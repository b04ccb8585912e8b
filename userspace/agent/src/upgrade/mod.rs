//! An agent takes over from one that runs, and that one drains: it takes no new connections, and keeps the flows that it has
//! until they end, or for `drain`.
//!
//! - `protocol.rs`: what the two say to each other, by a socket beside the control socket.
//! - `successor.rs`: the agent that runs, and what may come after it.
//! - `predecessor.rs`: the agent that takes over, and what was before it.
//! - `drain.rs`: the time between; `calls.rs`: which flow is to come when.
//!
//! ```text
//! new                                        old
//! ───                                        ───
//! reads its file, connects        Hello ──▶  nobody else is taking over, nobody drains?
//!                               ◀── Welcome  the lock, the listeners of control and admin sockets, the marks
//! loads, opens listeners, attaches  Ready ▶  has it died? then all stays
//!                                   ◀── Go
//! has the connect hooks' links run its own programs: new connections are its own, and taken at once
//!                                 Taken ──▶  gives up pins, policy, sockets
//!                                ◀── Drains  flows that are left; again and again, until there are none
//!                                  ◀── Flow  one that is read, with its sockets
//!                                  Took ──▶  it is the new one's
//! ```
//!
//! **Invariant**: at each moment the connect hooks send connections to one agent, which is there. Whichever process dies, the
//! other one has them: until `Taken` the old one, which takes them back; from then on the new one. Whichever is told to stop leaves them
//! to the other one likewise: the old one stops when it is known whether the new one has taken over, and the new one does not take
//! over. But a stop of a service manager's process is one of the service: both stop.

mod calls;
mod drain;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzed;
mod predecessor;
mod protocol;
mod successor;

use nix::sys::signal::{Signal, raise};

pub use self::{
    drain::{DrainEnd, drain},
    predecessor::{Draining, Given, Predecessor, is_nobody, tell_failure},
    protocol::{Link, Listener, Message, State, socket_of},
    successor::{Offered, Successor, Taken},
};

/// Sends this process a signal at a step of a take-over, where a test wants it so.
pub(crate) fn reached(step: &str) {
    let hooks = test_hooks::get();
    for (at, signal, what) in [
        (&hooks.dies_at, Signal::SIGKILL, "killed"),
        (&hooks.told_at, Signal::SIGTERM, "told to stop"),
        (&hooks.hangs_at, Signal::SIGSTOP, "hangs"),
    ] {
        if at.as_deref() == Some(step) {
            tracing::warn!(step, "{what}, for a test");
            let _ = raise(signal);
        }
    }
}
