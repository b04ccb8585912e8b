//! A conversation over a socket that blocks: logging in, preparing, making tables.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
};

use anyhow::{Context, bail, ensure};

use super::wire::{
    AUTH_RESPONSE, AUTH_SUCCESS, AUTHENTICATE, Body, ERROR, HEADER_BYTES, Header, ONE, PREPARE,
    PREPARED, QUERY, READY, RESULT, STARTUP, begin, describe_error, end, first_text, put_bytes,
};
use crate::{order::Credentials, raw::dial};

/// A connection with one request in flight.
pub struct Session<S> {
    stream: S,
    request: Vec<u8>,
    body: Vec<u8>,
}

/// A prepared statement's id.
pub type StatementId = Vec<u8>;

impl Session<TcpStream> {
    /// Connects, and logs in where the database asks.
    ///
    /// # Errors
    /// When the database is not there or refuses.
    pub fn open(to: SocketAddr, credentials: Option<&Credentials>) -> anyhow::Result<Self> {
        Self::over(dial(to)?, credentials)
    }
}

impl<S: Read + Write> Session<S> {
    /// Starts, and logs in where the database asks.
    ///
    /// # Errors
    /// When the database refuses.
    pub fn over(stream: S, credentials: Option<&Credentials>) -> anyhow::Result<Self> {
        let mut session = Self {
            stream,
            request: Vec::new(),
            body: Vec::new(),
        };
        session.ask(STARTUP, b"\0\x01\0\x0bCQL_VERSION\0\x053.0.0")?;
        match session.answer()? {
            READY => {}
            AUTHENTICATE => session.log_in(credentials.context("the database wants a user")?)?,
            other => bail!("STARTUP was answered with opcode {other:#04x}"),
        }
        Ok(session)
    }

    /// SASL PLAIN (RFC 4616), which PasswordAuthenticator speaks.
    fn log_in(&mut self, credentials: &Credentials) -> anyhow::Result<()> {
        let token = format!("\0{}\0{}", credentials.user, credentials.password);
        let mut body = Vec::new();
        put_bytes(token.as_bytes(), &mut body)?;
        self.ask(AUTH_RESPONSE, &body)?;
        let answer = self.answer()?;
        ensure!(answer == AUTH_SUCCESS, "logging in: opcode {answer:#04x}");
        Ok(())
    }

    /// A statement whose result does not matter.
    ///
    /// # Errors
    /// When the database refuses it.
    pub fn query(&mut self, text: &str) -> anyhow::Result<()> {
        let mut body = Vec::new();
        put_bytes(text.as_bytes(), &mut body)?;
        body.extend_from_slice(&ONE);
        body.push(0);
        self.ask(QUERY, &body)?;
        self.expect_result().with_context(|| text.to_owned())
    }

    /// The one text that a statement selects.
    ///
    /// # Errors
    /// When the database refuses it, or it selects something else.
    pub fn text(&mut self, query: &str) -> anyhow::Result<String> {
        self.query(query)?;
        first_text(&self.body).with_context(|| format!("{query}: not one text"))
    }

    /// Returns the number of rows that a statement selects, of one column of a native type.
    #[cfg(test)]
    pub fn rows(&mut self, query: &str) -> anyhow::Result<i32> {
        self.query(query)?;
        let mut body = super::wire::rows_of_one_column(&self.body);
        let rows = body.as_mut().and_then(Body::int);
        rows.with_context(|| format!("{query}: not one column"))
    }

    /// Prepares.
    ///
    /// # Errors
    /// When the database refuses it.
    pub fn prepare(&mut self, text: &str) -> anyhow::Result<StatementId> {
        let mut body = Vec::new();
        put_bytes(text.as_bytes(), &mut body)?;
        self.ask(PREPARE, &body)?;
        self.expect_result().with_context(|| text.to_owned())?;
        let mut body = Body(&self.body);
        let id = (body.int() == Some(PREPARED)).then(|| body.short_bytes());
        let id = id.flatten().with_context(|| format!("{text}: no id"))?;
        Ok(id.to_vec())
    }

    fn expect_result(&mut self) -> anyhow::Result<()> {
        let answer = self.answer()?;
        ensure!(answer == RESULT, "opcode {answer:#04x} instead of a result");
        Ok(())
    }

    fn ask(&mut self, opcode: u8, body: &[u8]) -> anyhow::Result<()> {
        self.request.clear();
        let start = begin(opcode, 0, &mut self.request);
        self.request.extend_from_slice(body);
        end(start, &mut self.request)?;
        let sent = self.stream.write_all(&self.request);
        sent.context("the request could not be sent")
    }

    /// Reads a response. Its opcode; an ERROR is an error.
    fn answer(&mut self) -> anyhow::Result<u8> {
        let mut header = [0; HEADER_BYTES];
        let read = self.stream.read_exact(&mut header);
        read.context("no response")?;
        let header = Header::of_response(&header)?.context("no header")?;
        self.body.resize(header.length, 0);
        let read = self.stream.read_exact(&mut self.body);
        read.context("half a response")?;
        ensure!(header.opcode != ERROR, "{}", describe_error(&self.body));
        Ok(header.opcode)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cql_node::{Node, NodeOptions};

    #[test]
    fn errors_say_what_is_wrong_and_the_connection_goes_on() {
        let node = Node::start(NodeOptions::default()).unwrap();
        let mut session = Session::open(node.addr(), None).unwrap();
        let error = format!("{:#}", session.query("SELECT * FROM ks.none").unwrap_err());
        assert!(error.contains("SELECT * FROM ks.none"), "{error}");
        assert!(error.contains("0x2"), "{error}");
        let version = session.text("SELECT release_version FROM system.local");
        assert!(version.unwrap().starts_with("5.0"));
        assert_eq!(node.clients().len(), 1);
    }
}
