//! A flow's two connections, and on which of them TLS is spoken.
//!
//! Where a rule has TLS end in the agent, nothing is read before the client's first byte is there:
//! that byte shows whether TLS begins on the client's side. On the database's side TLS begins once
//! the client's handshake is over, so that no client that is refused reaches the database, and the
//! name that the client has asked for is known. All of that happens as the directions read and
//! write ([`LegIo`]); no other flow waits.
//!
//! **Invariant**: where a rule has TLS begin on the database's side, not a byte is written to the
//! database before it has begun, whatever fails.
//!
//! A flow that meets no rule about TLS has nothing here.

use std::{
    future::Future,
    io::ErrorKind,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use flow::{CloseReason, Flow};
use rustls::{ClientConnection, ServerConnection, pki_types::ServerName};
use telemetry::Rarely;
use tls::{Failure, RuleTls, Side, Towards};
use tokio::{
    net::TcpStream,
    time::{self, Sleep},
};

use super::{
    context::ProxyContext,
    direction_pump::{Stop, TLS_HANDSHAKE},
    leg_io::{LegIo, peek},
    passing::Direction,
    terms::{Encrypted, Plain, Terms},
    tls_io::{News, Tls},
};

/// The limit on the time from the connection to the end of the client's handshake, and from there
/// to the end of the database's. Drivers wait for 5 to 12 s to be connected.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(10);

/// The size of a frame's header: a client that is refused is answered on its first frame's stream.
const HEADER_BYTES: usize = 9;

/// The reason, shown by `flows --why`, why a flow whose TLS ends here stays in the agent.
const KEYS: &str = "TLS ends in the agent, which has its keys";

/// Lines about TLS that fails, by the side on which it does: whoever connects decides how often that is.
static CLIENTS_TLS: Rarely = Rarely::new();
static DATABASES_TLS: Rarely = Rarely::new();

/// The TLS state of a flow's two connections. None: neither is encrypted or decrypted here.
#[derive(Default)]
pub(super) struct Legs(Option<Box<Ends>>);

struct Ends {
    shared: Arc<ProxyContext>,
    flow: Arc<Flow>,
    /// The rules' terms, until the client's first byte is there.
    terms: Option<Terms>,
    client: Option<Tls>,
    /// The rule with whose settings TLS is to begin on the database's side.
    dial: Option<Arc<RuleTls>>,
    database: Option<Tls>,
    /// The time limit of a handshake that is not over.
    deadline: Option<Pin<Box<Sleep>>>,
    /// The close reason of a flow on which TLS cannot begin.
    hopeless: Option<CloseReason>,
    /// Set when a direction that waits may go on.
    stirred: bool,
}

/// A client that is refused, with the bytes that it is told.
pub(super) struct Refused(pub Vec<u8>);

impl Legs {
    pub(super) fn new(terms: Option<Terms>, shared: &Arc<ProxyContext>, flow: &Arc<Flow>) -> Self {
        if terms.is_none() {
            flow.speaks(Towards::Plain);
        }
        Self(terms.map(|terms| {
            // A client that has to encrypt does so at once; other clients may be silent for as long
            // as they like.
            let has_to = matches!(terms.plain, Plain::Refused(_));
            Box::new(Ends {
                shared: shared.clone(),
                flow: flow.clone(),
                terms: Some(terms),
                client: None,
                dial: None,
                database: None,
                deadline: has_to.then(|| Box::pin(time::sleep(HANDSHAKE_LIMIT))),
                hopeless: None,
                stirred: false,
            })
        }))
    }

    /// Whether both connections carry on the wire what the agent reads and writes.
    pub(super) fn are_plain(&self) -> bool {
        self.0.is_none()
    }

    /// Whether the client has not said yet if it encrypts.
    pub(super) fn wait(&self) -> bool {
        self.0.as_ref().is_some_and(|ends| ends.terms.is_some())
    }

    /// Returns the client's leg and the database's.
    pub(super) fn both<'a>(
        &'a mut self,
        client: &'a TcpStream,
        database: &'a TcpStream,
    ) -> (LegIo<'a>, LegIo<'a>) {
        let Some(ends) = &mut self.0 else {
            return (LegIo::Plain(client), LegIo::Plain(database));
        };
        if ends.hopeless.is_some() {
            return (LegIo::Waits(client), LegIo::Waits(database));
        }
        let waits = ends.terms.is_some() || ends.dial.is_some();
        let client = match &mut ends.client {
            Some(tls) => LegIo::Tls(client, tls),
            None => LegIo::Plain(client),
        };
        let database = match &mut ends.database {
            Some(tls) => LegIo::Tls(database, tls),
            None if waits => LegIo::Waits(database),
            None => LegIo::Plain(database),
        };
        (client, database)
    }

    /// Waits for the client's first byte, which says whether it encrypts. Ready when that is known,
    /// or the client has ended.
    pub(super) fn poll_begin(
        &mut self,
        cx: &mut Context<'_>,
        client: &TcpStream,
    ) -> Poll<Option<Refused>> {
        let Some(ends) = &mut self.0 else {
            return Poll::Ready(None);
        };
        let refused = ready!(ends.poll_begin(cx, client));
        if ends.is_over() {
            self.0 = None;
        }
        Poll::Ready(refused)
    }

    /// Ready with the reason when the flow has to end: TLS cannot begin, or takes too long to.
    pub(super) fn poll_hopeless(&mut self, cx: &mut Context<'_>) -> Poll<CloseReason> {
        let Some(ends) = &mut self.0 else {
            return Poll::Pending;
        };
        if let Some(reason) = ends.hopeless {
            return Poll::Ready(reason);
        }
        let Some(deadline) = &mut ends.deadline else {
            return Poll::Pending;
        };
        ready!(deadline.as_mut().poll(cx));
        ends.deadline = None;
        let begins = |tls: &Tls| !tls.is_established();
        let side = match ends.wait() || ends.client.as_ref().is_some_and(begins) {
            true => Side::Client,
            false => Side::Database,
        };
        let text = format!("it took more than {} s", HANDSHAKE_LIMIT.as_secs());
        ends.report_failed_handshake(side, Failure::Deadline, &text);
        Poll::Ready(failed(side))
    }

    /// Takes note of handshakes that have succeeded or failed. True: both directions are to be
    /// polled again.
    pub(super) fn poll_events(&mut self) -> bool {
        let Some(ends) = &mut self.0 else {
            return false;
        };
        for side in Side::ALL {
            let tls = match side {
                Side::Client => &mut ends.client,
                Side::Database => &mut ends.database,
            };
            if let Some(news) = tls.as_mut().and_then(Tls::news) {
                ends.hear(side, news);
            }
        }
        std::mem::take(&mut ends.stirred)
    }

    /// Ends TLS on both sides, when the flow ends for this reason. A side that speaks TLS gets a
    /// close_notify, as far as it reads, unless bytes are missing from what it was sent.
    pub(super) fn end(&mut self, reason: CloseReason, client: &TcpStream, database: &TcpStream) {
        let Some(ends) = &mut self.0 else {
            return;
        };
        let is_cut = [
            CloseReason::ClientTls,
            CloseReason::DatabaseTls,
            CloseReason::ClientTruncated,
            CloseReason::DatabaseTruncated,
        ]
        .contains(&reason);
        for (tls, socket) in [(&mut ends.client, client), (&mut ends.database, database)] {
            let Some(tls) = tls else {
                continue;
            };
            if !is_cut && tls.is_established() {
                tls.say_end();
            }
            // An alert may not be in the socket yet.
            let _ = tls.try_flush(socket);
        }
    }
}

impl Ends {
    fn wait(&self) -> bool {
        self.terms.is_some()
    }

    /// Whether nothing is to be encrypted.
    fn is_over(&self) -> bool {
        let nobody = self.client.is_none() && self.database.is_none();
        nobody && self.dial.is_none() && self.terms.is_none() && self.hopeless.is_none()
    }

    fn poll_begin(&mut self, cx: &mut Context<'_>, client: &TcpStream) -> Poll<Option<Refused>> {
        let mut header = [0; HEADER_BYTES];
        let mut least = 0;
        let first = loop {
            let ready = ready!(client.poll_read_ready(cx));
            match ready.and_then(|()| peek(client, &mut header, least)) {
                Ok(0) => break None,
                Ok(n) if n < HEADER_BYTES && self.is_refused() && !is_tls(header) => {
                    least = HEADER_BYTES;
                }
                Ok(_) => break Some(header),
                Err(e) if e.kind() == ErrorKind::WouldBlock => {}
                // The error is taken by this call: the next read would not see it any more.
                Err(e) => {
                    self.hopeless = Some(Stop::From(e).reason(Direction::ToDatabase));
                    break None;
                }
            }
        };
        let Some(Terms { encrypted, plain }) = self.terms.take() else {
            return Poll::Ready(None);
        };
        self.stirred = true;
        Poll::Ready(match first {
            None => {
                self.deadline = None;
                None
            }
            Some(header) if is_tls(header) => {
                self.begins_encrypted(encrypted);
                None
            }
            Some(header) => self.begins_plain(plain, header),
        })
    }

    /// Whether the client is refused if it does not encrypt.
    fn is_refused(&self) -> bool {
        matches!(&self.terms, Some(terms) if matches!(terms.plain, Plain::Refused(_)))
    }

    fn begins_encrypted(&mut self, how: Encrypted) {
        let tls = match how {
            Encrypted::Ends(tls) => tls,
            Encrypted::Passes(why) => {
                self.deadline = None;
                let counter = &self.shared.metrics.tls.passed;
                return counter.with_label_values(&[why.as_str()]).inc();
            }
        };
        let Some(config) = tls.accept.as_ref().map(|made| made.config.clone()) else {
            return;
        };
        self.flow.set_relayed(KEYS);
        self.arm();
        match ServerConnection::new(config) {
            Ok(server) => self.client = Some(Tls::new(server).shown_by(&self.flow, Side::Client)),
            Err(error) => self.cannot_begin(Side::Client, &error),
        }
        match tls.dial {
            Some(_) => self.dial = Some(tls),
            None => self.flow.speaks(Towards::Plain),
        }
    }

    fn begins_plain(&mut self, how: Plain, header: [u8; HEADER_BYTES]) -> Option<Refused> {
        self.deadline = None;
        match how {
            Plain::Passes => {
                self.flow.speaks(Towards::Plain);
                None
            }
            Plain::Dials(tls) => {
                self.flow.set_relayed(KEYS);
                self.dials(&tls, None);
                None
            }
            Plain::Refused(message) => {
                self.report_failed_handshake(Side::Client, Failure::Plain, "it does not encrypt");
                let words = cql::refuse_first(header, &message);
                Some(Refused(words.unwrap_or_default()))
            }
        }
    }

    /// Begins TLS on the database's side.
    fn dials(&mut self, tls: &RuleTls, named: Option<&str>) {
        let (Some(made), Some(settings)) = (&tls.dial, &tls.settings.dial) else {
            return;
        };
        let config = &made.config;
        let dialled = || {
            let orig_dst = self.flow.orig_dst.socket_addr();
            let at = self.flow.backend().unwrap_or(orig_dst);
            ServerName::from(at.ip().to_canonical())
        };
        let named = || ServerName::try_from(named?.to_owned()).ok();
        let name = settings.server_name.clone().or_else(named);
        let name = name.unwrap_or_else(dialled);
        self.arm();
        self.flow.speaks(Towards::tls(config, &name));
        match ClientConnection::new(config.clone(), name) {
            Ok(client) => {
                self.database = Some(Tls::new(client).shown_by(&self.flow, Side::Database));
            }
            Err(error) => self.cannot_begin(Side::Database, &error),
        }
        self.stirred = true;
    }

    fn arm(&mut self) {
        let deadline = || Box::pin(time::sleep(HANDSHAKE_LIMIT));
        self.deadline.get_or_insert_with(deadline);
    }

    fn cannot_begin(&mut self, side: Side, error: &rustls::Error) {
        self.report_failed_handshake(side, Failure::of(error), &error.to_string());
        self.hopeless = Some(failed(side));
    }

    fn hear(&mut self, side: Side, news: News) {
        match news {
            News::Established => {
                self.shared.metrics.tls.handshakes.succeeded(side);
                self.deadline = None;
                self.stirred = true;
                if let (Side::Client, Some(tls)) = (side, self.dial.take()) {
                    let client = self.client.as_ref();
                    let named = client.and_then(Tls::server_name).map(str::to_owned);
                    self.dials(&tls, named.as_deref());
                }
            }
            News::NotEstablished(failure, text) => {
                self.report_failed_handshake(side, failure, &text)
            }
            News::Failed(failure, error) => {
                let advice = failure.advice(side);
                lines(side).say(|not_said_before| {
                    tracing::info!(
                        flow = ?self.flow.id,
                        side = side.as_str(),
                        orig_dst = %self.flow.orig_dst,
                        error,
                        advice,
                        not_said_before,
                        "TLS has failed"
                    );
                });
            }
        }
    }

    fn report_failed_handshake(&self, side: Side, failure: Failure, error: &str) {
        self.shared.metrics.tls.handshakes.failed(side, failure);
        let (flow, rule) = (self.flow.id, self.flow.rule());
        let (reason, advice) = (failure.as_str(), failure.advice(side));
        lines(side).say(|not_said_before| match side {
            // Anybody can cause this, so it is no warning.
            Side::Client => tracing::info!(
                ?flow,
                client = %self.flow.client,
                %rule,
                reason,
                error,
                advice,
                not_said_before,
                "no TLS handshake with a client"
            ),
            Side::Database => tracing::warn!(
                ?flow,
                orig_dst = %self.flow.orig_dst,
                backend = self.flow.backend().map(tracing::field::display),
                %rule,
                reason,
                error,
                advice,
                not_said_before,
                "no TLS handshake with a database"
            ),
        });
    }
}

fn lines(side: Side) -> &'static Rarely {
    match side {
        Side::Client => &CLIENTS_TLS,
        Side::Database => &DATABASES_TLS,
    }
}

/// Whether a client's first byte is that of TLS.
fn is_tls([first, ..]: [u8; HEADER_BYTES]) -> bool {
    first == TLS_HANDSHAKE
}

fn failed(side: Side) -> CloseReason {
    match side {
        Side::Client => CloseReason::ClientTls,
        Side::Database => CloseReason::DatabaseTls,
    }
}
