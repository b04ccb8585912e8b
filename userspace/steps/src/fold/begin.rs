//! The opening of a shared connection: it begins as the first of its flows has begun, encrypted or
//! not, with that flow's STARTUP, its token, and a USE. It skips TCP if their rule lets the database's sockets
//! into a sockmap.

use std::{
    io,
    sync::{Arc, OnceLock},
    time::Duration,
};

use cql_client::{Client, Hello, NoAnswer, Version};
use cql_edit::Incoming;
use dataplane::{Legs, LongLeg};
use policy::RuleName;
use telemetry::Rarely;
use tls::{Failure, Handshakes, Side, Towards};
#[cfg(feature = "by-hand")]
use tokio::{io::DuplexStream, sync::mpsc::UnboundedSender};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    time::{Instant, error::Elapsed, timeout_at},
};

use super::{identity::Identity, metrics::Counters, plain_stream::PlainStream};
use crate::{register::Dials, stream::Stream};

/// The time limit for connecting, TLS, logging in and USE.
const OPENING: Duration = Duration::from_secs(5);

/// The bytes that a connection in memory holds in each direction: fewer than flows ask for at once, so that writing has
/// to wait.
#[cfg(feature = "by-hand")]
const IN_MEMORY_BYTES: usize = 1 << 10;

/// An application can connect as often as it likes.
static TAKES_TCP: Rarely = Rarely::new();

/// The way in which connections to databases are begun.
#[derive(Debug)]
pub(super) enum Connects {
    /// With a socket, which can be entered as a short leg. Both are set when the agent attaches to the host.
    ByProbe(Dials, Arc<OnceLock<Legs>>),
    /// In memory, and without TLS: whoever has made the step is sent the database's end.
    #[cfg(feature = "by-hand")]
    ByHand(UnboundedSender<DuplexStream>),
}

/// A connection that stands.
enum Connected {
    Plain(PlainStream),
    /// One whose bytes are not what the socket carries, or that has no socket.
    Other(Stream),
}

impl Connects {
    /// Connects, and encrypts if the flows' own connections are encrypted.
    async fn connect(
        &self,
        of: &Identity,
        until: Instant,
        handshakes: &Handshakes,
    ) -> io::Result<Connected> {
        match self {
            Self::ByProbe(dials, _) => {
                let dials = dials.get().ok_or(io::ErrorKind::NotConnected)?;
                let connected = timeout_at(until, dials.connect(of.database)).await;
                let stream = connected.unwrap_or_else(late)?;
                shakes_hands(stream, &of.towards, until, handshakes).await
            }
            #[cfg(feature = "by-hand")]
            Self::ByHand(ends) => {
                let (own, end) = tokio::io::duplex(IN_MEMORY_BYTES);
                ends.send(end).map_err(|_| io::ErrorKind::NotConnected)?;
                Ok(Connected::Other(Box::new(own)))
            }
        }
    }

    /// Returns the way to have a connection skip TCP.
    fn legs(&self) -> Option<&Legs> {
        match self {
            Self::ByProbe(_, legs) => legs.get(),
            #[cfg(feature = "by-hand")]
            Self::ByHand(_) => None,
        }
    }
}

/// Opens a connection that can be asked.
///
/// # Errors
/// Errors of connecting and of TLS, a database that does not let the connection in, or the time
/// limit.
pub(super) async fn open(
    connects: &Connects,
    rule: &RuleName,
    of: &Identity,
    counters: &Counters,
) -> io::Result<(Stream, Incoming)> {
    let until = Instant::now() + OPENING;
    let connected = connects.connect(of, until, &counters.handshakes).await?;
    let takes_tcp = |why: &LongLeg| {
        counters.long_legs.with_label_values(&[why.as_str()]).inc();
        TAKES_TCP.say(|not_said_before| {
            let database = of.database;
            tracing::info!(%rule, %database, not_said_before, "a shared connection takes TCP: {why}");
        });
    };
    match connected {
        Connected::Plain(stream) => {
            let (mut stream, incoming) = is_let_in(stream, of, until).await?;
            if of.skips_tcp {
                // The database has answered on it, so its socket is in the mode in which it stays.
                let entered = connects.legs().ok_or(LongLeg::Off);
                let entered = entered.and_then(|legs| stream.skip_tcp(legs));
                let _ = entered.inspect_err(takes_tcp);
            }
            Ok((Box::new(stream), incoming))
        }
        Connected::Other(stream) => {
            if of.skips_tcp {
                takes_tcp(&LongLeg::Tls);
            }
            is_let_in(stream, of, until).await
        }
    }
}

fn late<T>(_: Elapsed) -> io::Result<T> {
    Err(io::ErrorKind::TimedOut.into())
}

/// Does the TLS handshake, if the flows' own connections speak TLS.
async fn shakes_hands(
    stream: TcpStream,
    towards: &Towards,
    until: Instant,
    handshakes: &Handshakes,
) -> io::Result<Connected> {
    let Towards::Tls(named) = towards else {
        return Ok(Connected::Plain(PlainStream::new(stream)));
    };
    let side = Side::Database;
    let begun = timeout_at(until, named.begin(stream)).await;
    let begun = begun.unwrap_or_else(|_| {
        let late = Failure::Deadline;
        let error = io::Error::new(io::ErrorKind::TimedOut, late.advice(side));
        Err((late, error))
    });
    match begun {
        Ok(stream) => {
            handshakes.succeeded(side);
            Ok(Connected::Other(Box::new(stream)))
        }
        Err((failure, error)) => {
            handshakes.failed(side, failure);
            Err(error)
        }
    }
}

async fn is_let_in<S: AsyncRead + AsyncWrite + Unpin>(
    stream: S,
    of: &Identity,
    until: Instant,
) -> io::Result<(S, Incoming)> {
    let opening = &*of.opening;
    let version = Version::try_from(opening.version).map_err(io::Error::other)?;
    let hello = Hello {
        version,
        compression: opening.compression,
        startup: &opening.startup,
        auth_response: opening.token.as_ref().map(|token| &token[..]),
        keyspace: of.keyspace.as_deref(),
    };
    let client = Client::open(stream, &hello, until.into()).await;
    Ok(client.map_err(said)?.into_parts())
}

/// The reason why a database does not let the agent in, for the log.
fn said(why: NoAnswer) -> io::Error {
    match why {
        NoAnswer::Io(error) => error,
        NoAnswer::Late => io::ErrorKind::TimedOut.into(),
        NoAnswer::LoginWanted => io::Error::other("it wants a log-in, and flows have had none"),
        // The message may say more than a log should.
        NoAnswer::Refused { .. } => {
            io::Error::other("it refuses with an error what it has let a flow do")
        }
        why => io::Error::other(why),
    }
}
