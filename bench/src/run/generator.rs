//! A generator's process, seen from the parent.

use std::time::Duration;

use anyhow::bail;
use load::order::{Answer, Hello, Order, Reply};
use sandbox::{Cgroup, Netns};

use crate::worker::Worker;

/// The subcommand that is one.
pub const SUBCOMMAND: &str = "generator";

/// The time limit to connect: a driver gives up after five seconds, and a JVM may just have woken
/// up.
const CONNECT_LIMIT: Duration = Duration::from_secs(60);
/// The time limit for an answer beyond the order's time: more than the generator itself waits for
/// one response.
const ANSWER_LIMIT: Duration = Duration::from_secs(60);

/// A connected generator, which ends when this is dropped.
pub struct Generator(Worker);

impl Generator {
    /// Starts one in a network and a cgroup, and waits until it is connected. `path` is for messages.
    pub fn start(
        path: &str,
        netns: Option<&Netns>,
        cgroup: Option<&Cgroup>,
        hello: &Hello,
    ) -> anyhow::Result<Self> {
        let mut generator = Self(Worker::start(SUBCOMMAND, path, netns, cgroup)?);
        generator.0.say(hello)?;
        generator.answer(CONNECT_LIMIT)?;
        Ok(generator)
    }

    /// Makes the generator work for this long.
    pub fn work(&mut self, seconds: f64) -> anyhow::Result<Answer> {
        self.begin(seconds)?;
        self.end(seconds)
    }

    /// Makes the generator begin to work for this long.
    pub fn begin(&mut self, seconds: f64) -> anyhow::Result<()> {
        self.0.say(&Order::Work { seconds })
    }

    /// Waits for the end of what has begun.
    pub fn end(&mut self, seconds: f64) -> anyhow::Result<Answer> {
        self.answer(Duration::from_secs_f64(seconds) + ANSWER_LIMIT)
    }

    /// Returns the generator's process id.
    pub fn pid(&self) -> u32 {
        self.0.pid()
    }

    fn answer(&mut self, limit: Duration) -> anyhow::Result<Answer> {
        match self.0.hear(limit)? {
            Reply::Done(answer) => Ok(*answer),
            Reply::Failed(why) => bail!("the generator failed: {why}"),
        }
    }
}
