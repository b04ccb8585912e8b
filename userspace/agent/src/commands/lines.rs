//! Lists of the admin socket that go on: a line each, for as long as somebody reads.

use std::time::Duration;

use anyhow::{Context as _, bail};
use http_body_util::BodyExt as _;
use hyper::{StatusCode, body::Incoming};
use steps::http;
use tokio::{net::UnixStream, time};

use super::{
    endpoint::{self, Endpoint},
    flows::no_agent,
    whereabouts::Admin,
};

/// The time in which the agent has to answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// The lines of a list.
pub(super) struct Lines<'a> {
    admin: &'a Admin,
    body: Incoming,
    /// Bytes that have come and are not given yet.
    came: Vec<u8>,
    /// How many of them were looked at.
    looked: usize,
    longest: usize,
}

/// The right to ask, by a socket on which root listens.
pub(super) struct Asking<'a> {
    admin: &'a Admin,
    stream: std::os::unix::net::UnixStream,
}

impl<'a> Asking<'a> {
    /// Connects.
    ///
    /// # Errors
    /// Nobody listens there, or it is no socket.
    pub(super) fn begin(admin: &'a Admin) -> anyhow::Result<Self> {
        let Endpoint::Socket(socket) = &admin.at else {
            bail!("statements are told at the admin socket alone: name its path by --admin");
        };
        let stream = endpoint::connect(socket, &admin.named)?;
        stream.set_nonblocking(true)?;
        Ok(Self { admin, stream })
    }

    /// Asks for a page. A line of more than `longest` bytes is none of an agent's.
    ///
    /// # Errors
    /// The agent refuses, or who answers is none.
    pub(super) async fn ask(self, path: &str, longest: usize) -> anyhow::Result<Lines<'a>> {
        let Self { admin, stream } = self;
        let asked = http::ask_for(UnixStream::from_std(stream)?, "localhost", path);
        let answer = time::timeout(PATIENCE, asked).await;
        let answer = answer.ok().and_then(Result::ok);
        let (head, body) = answer.ok_or_else(|| no_agent(admin))?.into_parts();
        if !head.status.is_success() {
            let said = time::timeout(PATIENCE, body.collect()).await;
            let said = said.ok().and_then(Result::ok).map(|said| said.to_bytes());
            let said = String::from_utf8_lossy(&said.unwrap_or_default()).into_owned();
            match head.status {
                StatusCode::NOT_FOUND => return Err(no_agent(admin)),
                _ => bail!("{}", said.trim_end()),
            }
        }
        Ok(Lines {
            admin,
            body,
            came: Vec::new(),
            looked: 0,
            longest,
        })
    }
}

impl Lines<'_> {
    /// Waits for the next line that is not empty. None: the list has ended. What was given to a call that is dropped is
    /// given to the next one.
    ///
    /// # Errors
    /// The agent has stopped, or who answers is none.
    pub(super) async fn next(&mut self) -> anyhow::Result<Option<Vec<u8>>> {
        loop {
            let unseen = self.came.get(self.looked..).unwrap_or_default();
            if let Some(at) = unseen.iter().position(|byte| *byte == b'\n') {
                let rest = self.came.split_off(self.looked + at + 1);
                let mut line = std::mem::replace(&mut self.came, rest);
                self.looked = 0;
                line.pop();
                match line.is_empty() {
                    // A sign of life.
                    true => continue,
                    false => return Ok(Some(line)),
                }
            }
            self.looked = self.came.len();
            if self.looked > self.longest {
                return Err(no_agent(self.admin));
            }
            let Some(frame) = self.body.frame().await else {
                return Ok(None);
            };
            let frame = frame.context(
                "the agent has stopped, or others needed the room at its admin socket: start it, or ask again",
            )?;
            self.came.extend(frame.into_data().unwrap_or_default());
        }
    }
}
