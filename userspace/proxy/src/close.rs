//! The end of a flow: the reason that is reported, and the way in which its two sockets are closed.

use std::{io::ErrorKind, net::Shutdown, sync::atomic::Ordering::Relaxed, time::Duration};

use dataplane::Near;
use flow::{CloseReason, Flow, Flows, Path, commands::FlowCommand};
use socket2::SockRef;
use telemetry::{Metrics, Rarely};
use tokio::{net::TcpStream, time};

use super::{denied, outbox, read::CHUNK_BYTES};

/// The end of a flow in this process.
pub(super) enum FlowEnd {
    /// The flow has ended. `far`: the socket that leads to the far application, unless the splice
    /// lost it.
    Closed {
        reason: CloseReason,
        far: Option<TcpStream>,
    },
    /// Another process goes on with the flow, and with this socket to the far application.
    GivenAway { far: TcpStream },
}

impl FlowEnd {
    pub(super) fn closed(reason: CloseReason, far: TcpStream) -> Self {
        let far = Some(far);
        Self::Closed { reason, far }
    }
}

/// The interval at which [`end_all`] looks whether flows have ended.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// Ends all flows that are read, so that reporters hear of the requests that were not answered.
/// Waits for the flows to end, but no longer than `patience`.
pub async fn end_all(flows: &Flows, patience: Duration) {
    let mut read = flows.all();
    read.retain(|flow| flow.path() == Path::Enrich);
    for flow in &read {
        drop(
            flow.commands
                .post(FlowCommand::close(CloseReason::AgentEnded)),
        );
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

/// Lines about flows that say nothing that is known, or whose end a client brought about. The metric has them all.
static BROUGHT_ABOUT: Rarely = Rarely::new();

/// Counts the end of the flow and writes its one log line.
pub(super) fn flow(flow: &Flow, metrics: &Metrics, reason: CloseReason) {
    match reason {
        CloseReason::Denied => denied::flow(flow, metrics, ""),
        CloseReason::AnotherUser => denied::flow(flow, metrics, "another user logs in"),
        _ => {}
    }
    let label = reason.as_str();
    metrics.flows.closed.with_label_values(&[label]).inc();
    match reason.is_brought_about() || flow.is_unknown_protocol() {
        true => BROUGHT_ABOUT.say(|not_said_before| report(flow, label, not_said_before)),
        false => report(flow, label, None),
    }
}

fn report(flow: &Flow, reason: &str, not_said_before: Option<u64>) {
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
        not_said_before,
        "flow closed"
    );
}

/// Ends both sides as they would end without us: a reset on one side becomes a reset on the other.
/// Lost framing and a denied flow end both sides with FIN, because the bytes that were forwarded
/// were good.
pub(super) async fn sides(
    near: Near,
    reason: CloseReason,
    leads_near: TcpStream,
    far: Option<TcpStream>,
) {
    let Some(far) = far else {
        return reset(&leads_near);
    };
    let (client, database) = near.sides(leads_near, far);
    use CloseReason as R;
    match reason {
        // The same as when the agent dies.
        R::BothEnded | R::AgentEnded => {}
        R::ClientReset => reset(&database),
        R::DatabaseReset => reset(&client),
        // After an error nobody knows in what state its socket is.
        R::ClientError
        | R::DatabaseError
        | R::SpliceFailed
        | R::Marked
        | R::BackendDown
        | R::SharedLost
        | R::HandshakeTimeout
        | R::MadeRoom
        | R::Panicked => {
            reset(&database);
            reset(&client);
        }
        // The bytes that were forwarded were good; those that a peer still sends are thrown away.
        R::Denied
        | R::AnotherUser
        | R::Framing
        | R::ClientTls
        | R::DatabaseTls
        | R::ClientTruncated
        | R::DatabaseTruncated
        | R::TlsRequired
        | R::Decoder(_) => {
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
/// closed, because the keeper may hold the socket, too. Answers that were posted go before it.
pub(super) fn reset(stream: &TcpStream) {
    outbox::flush();
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
pub(super) fn failed(error: &dyn std::fmt::Display) -> CloseReason {
    tracing::error!(%error, "a spliced flow has to be closed");
    CloseReason::SpliceFailed
}
