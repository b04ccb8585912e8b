//! A thread that asks a key server, for as long as its keys are needed.
//!
//! `GET` of the URL is answered by 200 and the document of all keys in JSON. No flow waits for it:
//! a value that needs keys before there are any, or when they are too old, is treated as the step's
//! settings say.

use std::{
    io,
    sync::{
        Weak,
        mpsc::{Receiver, RecvTimeoutError},
    },
    thread,
    time::{Duration, Instant},
};

use cql_edit::protect::KeySet;
use ureq::http::StatusCode;
use zeroize::Zeroizing;

use super::{
    Server,
    document::{MAX_BYTES, of_json},
    metrics::Fetched,
    ring::Ring,
};

/// The least time between two requests, however many keys are missing, and however often requests
/// fail.
const LEAST_BETWEEN: Duration = Duration::from_secs(1);

/// Starts the thread, which ends once the ring is gone.
pub(super) fn ask(server: Server, ring: Weak<Ring>, hurried: Receiver<()>) -> io::Result<()> {
    let asking = move || asks(&server, &ring, &hurried);
    let thread = thread::Builder::new().name("underpass-keys".to_owned());
    thread.spawn(asking).map(drop)
}

fn asks(server: &Server, ring: &Weak<Ring>, hurried: &Receiver<()>) {
    let agent: ureq::Agent = ureq::Agent::config_builder()
        .timeout_global(Some(server.timeout))
        // A proxy that the environment names is on another host.
        .proxy(None)
        .max_redirects(0)
        .http_status_as_error(false)
        .build()
        .into();
    let mut was_good = None;
    loop {
        let asked = Instant::now();
        let answer = fetched(&agent, server);
        {
            let Some(ring) = ring.upgrade() else { return };
            let (good, outcome) = match answer {
                Ok(keys) => match ring.put(keys, asked) {
                    Ok(()) => (Ok(()), Fetched::Keys),
                    Err(why) => (Err(why), Fetched::Changed),
                },
                Err((outcome, why)) => (Err(why), outcome),
            };
            ring.metrics().fetched(outcome);
            ring.forget_old();
            tell(server, was_good, &good);
            was_good = Some(good.is_ok());
        }
        let next = match was_good {
            Some(true) => server.refresh,
            _ => server.refresh.min(LEAST_BETWEEN),
        };
        match hurried.recv_timeout(next) {
            Ok(()) => thread::sleep(LEAST_BETWEEN.saturating_sub(asked.elapsed())),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

/// Logs a line when the outcome changes.
fn tell(server: &Server, was_good: Option<bool>, good: &Result<(), String>) {
    match good {
        Ok(()) if was_good == Some(false) => {
            tracing::info!(kms = server.url, "the key server gives keys again");
        }
        Err(why) if was_good != Some(false) => {
            tracing::warn!(
                kms = server.url,
                "the key server gives no keys: {why}; those that there are are good for {:?}",
                server.max_age
            );
        }
        _ => {}
    }
}

fn fetched(agent: &ureq::Agent, server: &Server) -> Result<KeySet, (Fetched, String)> {
    let unanswered = |why: ureq::Error| (Fetched::Nothing, why.to_string());
    let mut answer = agent.get(&server.url).call().map_err(unanswered)?;
    if answer.status() != StatusCode::OK {
        return Err((Fetched::Nothing, format!("it answers {}", answer.status())));
    }
    let body = answer.body_mut().with_config().limit(MAX_BYTES as u64);
    let bytes = body.read_to_vec().map_err(unanswered)?;
    of_json(&Zeroizing::new(bytes)).map_err(|why| (Fetched::Malformed, why))
}
