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
use hyper::{StatusCode, Uri};
use zeroize::Zeroizing;

use crate::http::{self, HttpError};

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
    let mut was_good = None;
    loop {
        let asked = Instant::now();
        let answer = fetched(server);
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

fn fetched(server: &Server) -> Result<KeySet, (Fetched, String)> {
    let unanswered = |why: HttpError| (Fetched::Nothing, why.to_string());
    let url: Uri = server.url.parse().map_err(|_| unanswered(HttpError::Url))?;
    let (status, bytes) = http::get(&url, server.timeout, MAX_BYTES).map_err(unanswered)?;
    let bytes = Zeroizing::new(bytes);
    if status != StatusCode::OK {
        return Err((Fetched::Nothing, format!("it answers {status}")));
    }
    of_json(&bytes).map_err(|why| (Fetched::Malformed, why))
}
