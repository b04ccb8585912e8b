//! [`Client`]: a conversation over a connection, with the clock. The only part that does I/O.

use std::{io, time::Instant};

use cassandra_protocol::frame::Opcode;
use cql_edit::Incoming;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    time::timeout_at,
};

use crate::{
    Answer, Conversation, Hello, MAX_ANSWER_BYTES, NoAnswer, Opening, Prepared, Request, Rows,
};

/// Read at most this much at a time.
const READ_BYTES: usize = 4 << 10;

/// A connection that is open, and can be asked one thing at a time. One on which something has failed is of no
/// further use.
pub struct Client<S> {
    stream: S,
    conversation: Conversation,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Client<S> {
    /// Opens the conversation on a connection that stands.
    ///
    /// # Errors
    /// The database does not let it in, says something else, or not everything by `until`.
    pub async fn open(stream: S, hello: &Hello<'_>, until: Instant) -> Result<Self, NoAnswer> {
        let (mut opening, conversation) = Opening::begin(hello, until);
        let mut client = Self {
            stream,
            conversation,
        };
        loop {
            let answer = client.answer().await?;
            if opening.answered(answer, &mut client.conversation, until)? {
                client.conversation.take_up_to(MAX_ANSWER_BYTES);
                return Ok(client);
            }
        }
    }

    /// Asks, and waits for the answer.
    ///
    /// # Errors
    /// There is none by `until`, or the conversation is over.
    pub async fn ask(&mut self, request: &Request<'_>, until: Instant) -> Result<Answer, NoAnswer> {
        self.conversation.ask(request, until);
        self.answer().await
    }

    /// The rows that a statement selects, at consistency ONE.
    ///
    /// # Errors
    /// Those of [`ask`](Self::ask) and of [`Answer::rows`].
    pub async fn query(&mut self, statement: &str, until: Instant) -> Result<Rows, NoAnswer> {
        self.ask(&Request::Query(statement), until).await?.rows()
    }

    /// Has a statement prepared.
    ///
    /// # Errors
    /// Those of [`ask`](Self::ask) and of [`Answer::prepared`].
    pub async fn prepare(&mut self, statement: &str, until: Instant) -> Result<Prepared, NoAnswer> {
        self.ask(&Request::Prepare(statement), until)
            .await?
            .prepared()
    }

    /// The rows that a prepared statement selects with these values, in their encoded form, at consistency ONE.
    ///
    /// # Errors
    /// Those of [`ask`](Self::ask) and of [`Answer::rows`].
    pub async fn execute(
        &mut self,
        prepared: &Prepared,
        values: &[Option<&[u8]>],
        until: Instant,
    ) -> Result<Rows, NoAnswer> {
        self.ask(&Request::Execute(prepared, values), until)
            .await?
            .rows()
    }

    /// Asks to be told of events of these types.
    ///
    /// # Errors
    /// The errors of [`ask`](Self::ask), or the database does not tell of such events.
    pub async fn register(&mut self, events: &[&str], until: Instant) -> Result<(), NoAnswer> {
        let answer = self.ask(&Request::Register(events), until).await?;
        answer.expect(Opcode::Ready).map(drop)
    }

    /// Waits for an event, for ever. May be dropped at any time, and asked again.
    ///
    /// # Errors
    /// The connection has ended, or something else has come.
    pub async fn event(&mut self) -> Result<(), NoAnswer> {
        let mut read = [0; READ_BYTES];
        let mut came = 0;
        loop {
            let bytes = read.get(..came).unwrap_or_default();
            if self.conversation.receive(bytes)?.is_some() {
                return Err(NoAnswer::NotAsked);
            }
            if self.conversation.take_event() {
                return Ok(());
            }
            came = self.stream.read(&mut read).await?;
            if came == 0 {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
            }
        }
    }

    /// Returns the connection, and the reader of what comes on it.
    pub fn into_parts(self) -> (S, Incoming) {
        (self.stream, self.conversation.into_incoming())
    }

    /// Sends the conversation's output, and waits for the answer.
    async fn answer(&mut self) -> Result<Answer, NoAnswer> {
        let deadline = self.conversation.deadline().ok_or(NoAnswer::NotAsked)?;
        let answer = timeout_at(deadline.into(), self.exchange()).await;
        answer.unwrap_or(Err(NoAnswer::Late))
    }

    async fn exchange(&mut self) -> Result<Answer, NoAnswer> {
        let output = self.conversation.take_output();
        self.stream.write_all(&output).await?;
        self.stream.flush().await?;
        drop(output);
        let mut read = [0; READ_BYTES];
        // The answer may be in what came with the last one.
        let mut came = 0;
        loop {
            let bytes = read.get(..came).unwrap_or_default();
            if let Some(answer) = self.conversation.receive(bytes)? {
                return Ok(answer);
            }
            came = self.stream.read(&mut read).await?;
            if came == 0 {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
            }
        }
    }
}
