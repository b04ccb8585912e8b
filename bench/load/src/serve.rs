//! The work of a generator: it carries out the orders on its standard input.

use std::io::{BufRead, Write, stdin, stdout};

use anyhow::{Context, bail};

use crate::{
    driver::Driver,
    order::{Answer, Hello, Order, Reply},
    raw::{
        Engine, Purpose,
        connect::Connects,
        cql::{Cql, session::Session},
        redis::Redis,
    },
    used::Used,
    workload::{Client, Protocol},
};

/// A generator that is connected.
pub enum Generator {
    /// CQL over sockets.
    Cql(Engine<Cql>),
    /// RESP2 over sockets.
    Redis(Engine<Redis>),
    /// `connect()`.
    Connects(Connects),
    /// The driver of CQL.
    Driver(Driver),
}

/// Serves the parent until standard input ends. An error has been told to it.
///
/// # Errors
/// When the generator cannot go on.
pub fn serve() -> anyhow::Result<()> {
    let served = obey_all();
    if let Err(error) = &served {
        answer(&Reply::Failed(format!("{error:#}")))?;
    }
    served
}

fn obey_all() -> anyhow::Result<()> {
    let mut lines = stdin().lock().lines();
    let Some(hello) = lines.next() else {
        return Ok(());
    };
    let hello: Hello = serde_json::from_str(&hello?).context("no hello")?;
    let mut generator = Generator::new(&hello)?;
    answer(&Reply::Done(Box::new(Answer::empty()?)))?;
    for line in lines {
        let order: Order = serde_json::from_str(&line?).context("no order")?;
        answer(&Reply::Done(Box::new(generator.obey(order)?)))?;
    }
    Ok(())
}

fn answer(reply: &Reply) -> anyhow::Result<()> {
    let mut line = serde_json::to_string(reply)?;
    line.push('\n');
    let mut stdout = stdout().lock();
    stdout.write_all(line.as_bytes())?;
    stdout.flush().context("nobody reads our answers")
}

impl Generator {
    /// Connects and prepares.
    ///
    /// # Errors
    /// When a target refuses, or the job does not fit the targets.
    pub fn new(hello: &Hello) -> anyhow::Result<Self> {
        let Hello {
            job,
            targets,
            credentials,
            seed,
            introduce,
        } = hello;
        let (credentials, seed) = (credentials.as_ref(), *seed);
        if *introduce {
            for target in targets {
                Session::open(*target, credentials).context("no introduction")?;
            }
        }
        let purpose = Purpose::Measure;
        Ok(match (job.protocol, job.client) {
            (Protocol::Connect, _) => Self::Connects(Connects::new(job, targets)?),
            (Protocol::Cql, Client::Raw) => {
                Self::Cql(Engine::connect(job, targets, credentials, seed, purpose)?)
            }
            (Protocol::Redis, Client::Raw) => {
                Self::Redis(Engine::connect(job, targets, credentials, seed, purpose)?)
            }
            (Protocol::Cql, Client::Driver) => {
                Self::Driver(Driver::connect(job, targets, credentials, seed)?)
            }
            (Protocol::Redis, Client::Driver) => bail!("no driver of Redis is measured"),
        })
    }

    /// Does what it is told.
    ///
    /// # Errors
    /// When it cannot go on. Requests that the database refuses are counted.
    pub fn obey(&mut self, order: Order) -> anyhow::Result<Answer> {
        let Order::Work { seconds } = order;
        let before = Used::so_far()?;
        let mut answer = self.work(seconds)?;
        answer.used = Used::so_far()?.since(&before);
        Ok(answer)
    }

    fn work(&mut self, seconds: f64) -> anyhow::Result<Answer> {
        match self {
            Self::Cql(engine) => engine.work(seconds),
            Self::Redis(engine) => engine.work(seconds),
            Self::Connects(connects) => connects.work(seconds),
            Self::Driver(driver) => driver.work(seconds),
        }
    }
}
