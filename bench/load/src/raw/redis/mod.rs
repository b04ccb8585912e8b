//! Redis: RESP2. Replies come in the order of the requests.

pub mod command;
pub mod reply;

use std::{
    collections::VecDeque,
    io::{Read, Write},
};

use anyhow::{Context, bail, ensure};

use super::{
    patient::Patient,
    protocol::{Answered, At, Draw, Protocol, Taken},
};
use crate::{order::Credentials, workload::Job};
use command::Commands;

/// The reply to AUTH is a line.
const MAX_AUTH_BYTES: usize = 4 << 10;

/// A connection's requests.
pub struct Redis {
    operations: Vec<Vec<Commands>>,
    waiting: VecDeque<Waiting>,
    /// A word under way; kept for its memory.
    word: Vec<u8>,
}

/// A request in flight.
struct Waiting {
    slot: u16,
    /// Replies that are still to come.
    replies: usize,
    error: Option<String>,
}

impl Protocol for Redis {
    fn open(
        stream: &mut Patient<'_>,
        job: &Job,
        credentials: Option<&Credentials>,
    ) -> anyhow::Result<Self> {
        if let Some(credentials) = credentials {
            log_in(stream, credentials)?;
        }
        let operations = job.operations.iter();
        let operations = operations.map(|o| o.steps.iter().map(Commands::new).collect());
        Ok(Self {
            operations: operations.collect::<anyhow::Result<_>>()?,
            waiting: VecDeque::with_capacity(job.depth),
            word: Vec::new(),
        })
    }

    fn put(&mut self, at: At, draw: &mut Draw<'_>, out: &mut Vec<u8>) -> anyhow::Result<()> {
        let steps = self.operations.get(at.operation);
        let commands = steps.and_then(|steps| steps.get(at.step));
        let commands = commands.context("no such step")?;
        commands.put(at, draw, &mut self.word, out);
        self.waiting.push_back(Waiting {
            slot: at.slot,
            replies: commands.count,
            error: None,
        });
        Ok(())
    }

    fn take(&mut self, bytes: &[u8]) -> anyhow::Result<Option<Taken>> {
        let Some(reply) = reply::first(bytes)? else {
            return Ok(None);
        };
        let waiting = self.waiting.front_mut();
        let waiting = waiting.context("a reply to no request: framing is lost")?;
        if let Some(error) = reply.error {
            let text = || String::from_utf8_lossy(error).into_owned();
            waiting.error.get_or_insert_with(text);
        }
        waiting.replies -= 1;
        let is_last = waiting.replies == 0;
        let done = is_last.then(|| self.waiting.pop_front()).flatten();
        Ok(Some(Taken {
            bytes: reply.bytes,
            answered: done.map(|waiting| Answered {
                slot: waiting.slot,
                error: waiting.error,
            }),
        }))
    }
}

fn log_in(stream: &mut Patient<'_>, credentials: &Credentials) -> anyhow::Result<()> {
    let words = ["AUTH", &credentials.user, &credentials.password];
    let mut request = format!("*{}\r\n", words.len());
    for word in words {
        request.push_str(&format!("${}\r\n{word}\r\n", word.len()));
    }
    stream.write_all(request.as_bytes())?;
    let mut answer = Vec::new();
    let mut piece = [0; 256];
    loop {
        if let Some(reply) = reply::first(&answer)? {
            if let Some(error) = reply.error {
                bail!("logging in: {}", String::from_utf8_lossy(error));
            }
            return Ok(());
        }
        ensure!(answer.len() <= MAX_AUTH_BYTES, "AUTH was not answered");
        let read = stream.read(&mut piece).context("AUTH was not answered")?;
        ensure!(read > 0, "AUTH was answered by closing");
        answer.extend_from_slice(piece.get(..read).unwrap_or_default());
    }
}
