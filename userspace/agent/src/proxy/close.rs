//! How a flow ends: what is said about it, and what its two sockets do.

use std::{io::ErrorKind, net::Shutdown, sync::atomic::Ordering::Relaxed, time::Duration};

use dataplane::Near;
use socket2::SockRef;
use tokio::{net::TcpStream, time};

use super::direction::CHUNK_BYTES;
use crate::{
    flows::{Flow, Flows, Path},
    metrics::Metrics,
    orders::Order,
};

/// Both sides have ended, each in its time.
pub(super) const BOTH_ENDED: &str = "both_ended";
pub(super) const CLIENT_RESET: &str = "client_reset";
pub(super) const DATABASE_RESET: &str = "database_reset";
pub(super) const CLIENT_ERROR: &str = "client_error";
pub(super) const DATABASE_ERROR: &str = "database_error";
/// The kernel failed in the middle of a spliced flow: nobody knows where its bytes are.
pub(super) const SPLICE_FAILED: &str = "splice_failed";
/// A session rule denies it.
pub(super) const DENIED: &str = "denied";
/// What a pipeline reads can be told apart no more.
pub(super) const FRAMING: &str = "framing";

/// What a side sends is no TLS, or none that is accepted.
pub(super) const CLIENT_TLS: &str = "client_tls";
pub(super) const DATABASE_TLS: &str = "database_tls";

/// A side that speaks TLS has ended without saying so: nobody knows what is missing.
pub(super) const CLIENT_TRUNCATED: &str = "client_truncated";
pub(super) const DATABASE_TRUNCATED: &str = "database_truncated";

/// Its rule wants TLS, which its client does not speak.
pub(super) const TLS_REQUIRED: &str = "tls_required";

/// A mark denies it, or closes it because it could not become what the mark says.
pub(super) const MARKED: &str = "marked";

/// Its backend was found dead, and the file says to reset.
pub const BACKEND_DOWN: &str = "backend_down";

/// A connection to the database that it shared, and had a request out on, was lost.
pub(super) const SHARED_LOST: &str = "shared_lost";

/// The agent ends, and it is the agent's.
const AGENT_ENDED: &str = "agent_ended";

/// Why a flow ended, apart from the decoder's reasons.
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

/// How often it is looked whether flows have ended.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// Ends the flows that are read, so that whoever is told of their requests hears of those that were not
/// answered; waits no longer than this for them.
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

/// When framing is lost, or the flow denied, what a peer still sends is read and thrown away, so that it sees an
/// end and not a reset which could overtake what was good: for this long, this much.
const DISCARD_LIMIT: Duration = Duration::from_secs(1);
const DISCARD_BYTES: usize = 16 * CHUNK_BYTES;

/// Counts it and writes its one line.
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

/// A reset on one side becomes a reset on the other, as it would without us. Framing that
/// was lost, and a flow that is denied, end both sides with FIN: what was forwarded was good.
pub(super) async fn sides(near: Near, reason: &str, leads_near: TcpStream, far: Option<TcpStream>) {
    let Some(far) = far else {
        return reset(&leads_near);
    };
    let (client, database) = near.sides(leads_near, far);
    match reason {
        // As when the agent dies.
        BOTH_ENDED | AGENT_ENDED => {}
        CLIENT_RESET => reset(&database),
        DATABASE_RESET => reset(&client),
        // Of an error nobody knows what became of its socket.
        CLIENT_ERROR | DATABASE_ERROR | SPLICE_FAILED | MARKED | BACKEND_DOWN | SHARED_LOST => {
            reset(&database);
            reset(&client);
        }
        _ => {
            let both = async { tokio::join!(discard(&client), discard(&database)) };
            if time::timeout(DISCARD_LIMIT, both).await.is_err() {
                // As closing them with bytes unread does. The keeper may hold them, too.
                reset(&database);
                reset(&client);
            }
        }
    }
}

/// Ends a connection with RST instead of FIN. Now, and not as it is closed: the keeper may hold
/// the socket, too.
pub(super) fn reset(stream: &TcpStream) {
    if let Err(error) = SockRef::from(stream).set_linger(Some(Duration::ZERO)) {
        tracing::debug!(%error, "a connection is closed with FIN instead of RST");
    }
    if let Err(error) = rustix::net::connect_unspec(stream) {
        tracing::debug!(%error, "a connection is reset as it is closed");
    }
}

async fn discard(stream: &TcpStream) {
    // It may be gone already: then there is nothing to read either.
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
