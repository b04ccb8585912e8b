//! The end of a flow: the reason that is reported, and the way in which its two sockets are closed.

use std::{io::ErrorKind, net::Shutdown, sync::atomic::Ordering::Relaxed, time::Duration};

use dataplane::Near;
use flow::{Flow, Flows, Path, orders::Order};
use socket2::SockRef;
use telemetry::Metrics;
use tokio::{net::TcpStream, time};

use super::read::CHUNK_BYTES;

/// Both sides have ended, each in its time.
pub(super) const BOTH_ENDED: &str = "both_ended";
pub(super) const CLIENT_RESET: &str = "client_reset";
pub(super) const DATABASE_RESET: &str = "database_reset";
pub(super) const CLIENT_ERROR: &str = "client_error";
pub(super) const DATABASE_ERROR: &str = "database_error";
/// The kernel failed in the middle of a spliced flow: nobody knows where its bytes are.
pub(super) const SPLICE_FAILED: &str = "splice_failed";
/// A session rule denies the flow.
pub(super) const DENIED: &str = "denied";
/// The pipeline cannot tell where frames begin any more.
pub(super) const FRAMING: &str = "framing";

/// A side sends no TLS, or TLS that is not accepted.
pub(super) const CLIENT_TLS: &str = "client_tls";
pub(super) const DATABASE_TLS: &str = "database_tls";

/// A TLS side has ended without a close_notify: nobody knows how much is missing.
pub(super) const CLIENT_TRUNCATED: &str = "client_truncated";
pub(super) const DATABASE_TRUNCATED: &str = "database_truncated";

/// The flow's rule wants TLS, which the client does not speak.
pub(super) const TLS_REQUIRED: &str = "tls_required";

/// A mark denies the flow, or closes it because it could not become what the mark says.
pub(super) const MARKED: &str = "marked";

/// The flow's backend was found dead, and the policy file says to reset.
pub const BACKEND_DOWN: &str = "backend_down";

/// A shared connection to the database was lost while this flow had a request out on it.
pub(super) const SHARED_LOST: &str = "shared_lost";

/// The agent ends, and the flow with it.
const AGENT_ENDED: &str = "agent_ended";

/// The reasons for which flows end, apart from the decoder's.
pub const CLOSE_REASONS: &[&str] = &[
    BOTH_ENDED,
    CLIENT_RESET,
    DATABASE_RESET,
    CLIENT_ERROR,
    DATABASE_ERROR,
    SPLICE_FAILED,
    DENIED,
    FRAMING,
    CLIENT_TLS,
    DATABASE_TLS,
    CLIENT_TRUNCATED,
    DATABASE_TRUNCATED,
    TLS_REQUIRED,
    MARKED,
    BACKEND_DOWN,
    SHARED_LOST,
    AGENT_ENDED,
];

/// The interval at which [`end_all`] looks whether flows have ended.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// Ends all flows that are read, so that reporters hear of the requests that were not answered.
/// Waits for the flows to end, but no longer than `patience`.
pub async fn end_all(flows: &Flows, patience: Duration) {
    let mut read = flows.all();
    read.retain(|flow| flow.path() == Path::Enrich);
    for flow in &read {
        drop(flow.mailbox.post(Order::close(AGENT_ENDED)));
    }
    let ended = async {
        while read.iter().any(|flow| flows.has(flow.id)) {
            time::sleep(LOOK_EVERY).await;
        }
    };
    if time::timeout(patience, ended).await.is_err() {
        tracing::warn!("some flows have not ended before the agent did");
    }
}

/// The limits on reading and throwing away what a peer still sends after framing is lost or the
/// flow is denied. The peer then sees an end, and not a reset, which could overtake good bytes.
const DISCARD_LIMIT: Duration = Duration::from_secs(1);
const DISCARD_BYTES: usize = 16 * CHUNK_BYTES;

/// Counts the end of the flow and writes its one log line.
pub(super) fn flow(flow: &Flow, metrics: &Metrics, reason: &'static str) {
    metrics.flows_closed.with_label_values(&[reason]).inc();
    tracing::info!(
        flow = ?flow.id,
        client = %flow.client,
        pid = flow.process.pid,
        process = %flow.process.name,
        orig_dst = %flow.orig_dst,
        rule = %flow.rule(),
        action = flow.action(),
        path = flow.path().as_str(),
        to_database = flow.to_database.load(Relaxed),
        to_client = flow.to_client.load(Relaxed),
        duration_ms = flow.opened.elapsed().as_millis() as u64,
        reason,
        "flow closed"
    );
}

/// Ends both sides as they would end without us: a reset on one side becomes a reset on the other.
/// Lost framing and a denied flow end both sides with FIN, because the bytes that were forwarded
/// were good.
pub(super) async fn sides(near: Near, reason: &str, leads_near: TcpStream, far: Option<TcpStream>) {
    let Some(far) = far else {
        return reset(&leads_near);
    };
    let (client, database) = near.sides(leads_near, far);
    match reason {
        // The same as when the agent dies.
        BOTH_ENDED | AGENT_ENDED => {}
        CLIENT_RESET => reset(&database),
        DATABASE_RESET => reset(&client),
        // After an error nobody knows in what state its socket is.
        CLIENT_ERROR | DATABASE_ERROR | SPLICE_FAILED | MARKED | BACKEND_DOWN | SHARED_LOST => {
            reset(&database);
            reset(&client);
        }
        _ => {
            let both = async { tokio::join!(discard(&client), discard(&database)) };
            if time::timeout(DISCARD_LIMIT, both).await.is_err() {
                // Closing a socket with unread bytes does the same, but the keeper may hold these
                // sockets, too.
                reset(&database);
                reset(&client);
            }
        }
    }
}

/// Ends a connection with RST instead of FIN. The reset is sent now and not when the socket is
/// closed, because the keeper may hold the socket, too.
pub(super) fn reset(stream: &TcpStream) {
    if let Err(error) = SockRef::from(stream).set_linger(Some(Duration::ZERO)) {
        tracing::debug!(%error, "a connection is closed with FIN instead of RST");
    }
    if let Err(error) = rustix::net::connect_unspec(stream) {
        tracing::debug!(%error, "a connection is reset as it is closed");
    }
}

async fn discard(stream: &TcpStream) {
    // The socket may be gone already: then there is nothing to read either.
    let _ = SockRef::from(stream).shutdown(Shutdown::Write);
    let mut buffer = vec![0; CHUNK_BYTES];
    let mut left = DISCARD_BYTES;
    while left > 0 && stream.readable().await.is_ok() {
        match stream.try_read(&mut buffer) {
            Ok(0) => return,
            Ok(n) => left = left.saturating_sub(n),
            Err(e) if e.kind() == ErrorKind::WouldBlock => {}
            Err(_) => return,
        }
    }
}

/// Logs why a spliced flow has to be closed. Returns its close reason.
pub(super) fn failed(error: &dyn std::fmt::Display) -> &'static str {
    tracing::error!(%error, "a spliced flow has to be closed");
    SPLICE_FAILED
}
