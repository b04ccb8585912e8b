//! Notices to the service manager that started the agent (`sd_notify(3)`): ready, reloading, stopping, still alive.
//!
//! An agent that no service manager started has no `NOTIFY_SOCKET`, and nothing here does anything.
//!
//! The keeper inherits the socket's name and never uses it. It could not speak for the agent either: a service manager
//! listens to the main process alone, unless its unit says otherwise.

use std::{convert::Infallible, env, fs, time::Duration};

use proxy::ProxyContext;
use sd_notify::NotifyState;
use tokio::{sync::watch, time};

use crate::{seconds, upgrade::Draining};

/// The interval of notices where the service manager waits for none: a status that is older than this misleads.
const STATUS_EVERY: Duration = Duration::from_secs(10);

/// Notices within the time after which the service manager takes the agent for stuck. One may come late.
const NOTICES_WITHIN_PATIENCE: u32 = 3;

/// Says that the agent is attached, and has all of its sockets.
pub fn ready() {
    tell(&[NotifyState::Ready]);
}

/// Says that the agent reads its file again, for as long as `reload` takes.
pub fn while_reloading(reload: impl FnOnce()) {
    let mut states = vec![NotifyState::Reloading];
    // systemd 253 and newer wait for a READY that is later than this.
    states.extend(NotifyState::monotonic_usec_now());
    tell(&states);
    reload();
    ready();
}

/// Says that the agent ends because it was told to.
pub fn stopping() {
    tell(&[NotifyState::Stopping, NotifyState::Status("detaching")]);
}

/// The time that whoever has started an agent which takes over has to end. The service manager waits at a stop only for
/// processes that were its own children when it was told of them.
const ADOPTED_WITHIN: Duration = Duration::from_secs(2);

/// The interval at which that is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Whether a service manager has started the agent.
pub fn is_there() -> bool {
    env::var_os("NOTIFY_SOCKET").is_some()
}

/// Says that another process is the service from now on, once it is a child of the service manager.
pub async fn follows(pid: u32) {
    if !is_there() {
        return;
    }
    let first = parent_of(pid);
    let is_adopted = async {
        while parent_of(pid) == first {
            time::sleep(LOOK_EVERY).await;
        }
    };
    // One that a service manager has started itself has its parent for good.
    let _ = time::timeout(ADOPTED_WITHIN, is_adopted).await;
    tell(&[NotifyState::MainPid(pid)]);
}

fn parent_of(pid: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // Behind the name, which is in parentheses and may hold any.
    let (_, rest) = stat.rsplit_once(") ")?;
    rest.split(' ').nth(1)?.parse().ok()
}

/// Says for ever that the main thread is alive, and how much the agent has to do. The main thread owns the policy, the
/// admin interface and the checks of backends.
pub async fn tend(shared: &ProxyContext, before: watch::Receiver<Option<Draining>>) -> Infallible {
    if !is_there() {
        return std::future::pending().await;
    }
    let patience = sd_notify::watchdog_enabled();
    let period = patience.map_or(STATUS_EVERY, |patience| patience / NOTICES_WITHIN_PATIENCE);
    let mut ticks = seconds::every(period.clamp(Duration::from_millis(1), STATUS_EVERY));
    loop {
        ticks.tick().await;
        let (rules, flows) = (shared.policy.borrow().rules.len(), shared.flows.len());
        let mut status = format!("{rules} rules in force, {flows} flows go through the agent");
        if let Some(Draining { flows, .. }) = &*before.borrow() {
            status.push_str(&format!(
                ", and {flows} through the one before, which drains"
            ));
        }
        tell(&[NotifyState::Watchdog, NotifyState::Status(&status)]);
    }
}

/// A notice that cannot be sent is one that nobody waits for, or the service manager acts as its unit says.
fn tell(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::debug!(%error, "the service manager cannot be told");
    }
}
