//! The upkeep of incoming interception: tells the kernel which addresses clients on other hosts
//! connect to, that is databases, and the virtual addresses of this host.

use std::{
    convert::Infallible,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use dataplane::Dataplane;
use telemetry::Rarely;

use crate::seconds;

/// The interval of the upkeep: a database that begins to listen where the agent's hooks do not see
/// it is known after this time.
const TEND_EVERY: Duration = Duration::from_secs(1);

/// Lines about an upkeep that fails.
static FAILED: Rarely = Rarely::failing();

/// Keeps the kernel up to date. Runs for ever.
pub async fn tend(dataplane: Arc<Mutex<Option<Dataplane>>>) -> Infallible {
    let mut tending = seconds::every(TEND_EVERY);
    loop {
        tending.tick().await;
        if !has_incoming(&dataplane) {
            continue;
        }
        let dataplane = dataplane.clone();
        let tended = tokio::task::spawn_blocking(move || {
            let mut dataplane = dataplane.lock().unwrap_or_else(PoisonError::into_inner);
            dataplane.as_mut().map(Dataplane::tend_incoming)
        });
        let error = match tended.await {
            Ok(Some(Err(error))) => error.to_string(),
            Err(error) => error.to_string(),
            Ok(_) => continue,
        };
        FAILED.say(|not_said_before| {
            tracing::error!(
                error,
                not_said_before,
                "the upkeep of incoming connections fails, and is tried again"
            );
        });
    }
}

fn has_incoming(dataplane: &Mutex<Option<Dataplane>>) -> bool {
    let dataplane = dataplane.lock().unwrap_or_else(PoisonError::into_inner);
    dataplane.as_ref().is_some_and(Dataplane::has_incoming)
}
