//! `underpass-bench client`: one path's client, a process of its own because a cgroup is
//! what makes it a path's. Does what standard input says, until that ends.

mod connects;
pub mod driver;
mod raw;
pub mod rows;
mod stress;

use std::io::{BufRead, Write, stdin, stdout};

use anyhow::{Context, bail};

use crate::order::{Answer, Hello, Job, Load, Order, Reply};

/// A connected client.
enum Client {
    Driver(driver::Client),
    Raw(raw::Client),
    Stress(Box<stress::Client>),
    Connects(connects::Client),
}

/// Serves the parent. An error has been told to it.
pub fn run() -> anyhow::Result<()> {
    let served = serve();
    if let Err(error) = &served {
        answer(&Reply::Failed(format!("{error:#}")))?;
    }
    served
}

fn serve() -> anyhow::Result<()> {
    let mut lines = stdin().lock().lines();
    let Some(hello) = lines.next() else {
        return Ok(());
    };
    let mut client = Client::new(&serde_json::from_str(&hello?)?)?;
    answer(&Reply::Done(Answer::empty()?))?;
    for line in lines {
        let order = serde_json::from_str(&line?)?;
        answer(&Reply::Done(client.obey(order)?))?;
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

impl Client {
    fn new(hello: &Hello) -> anyhow::Result<Self> {
        let (target, credentials) = (hello.target, hello.credentials.as_ref());
        Ok(match hello.job {
            Job::Driver { tasks } => {
                Self::Driver(driver::Client::connect(target, credentials, tasks)?)
            }
            Job::Raw { threads } => Self::Raw(raw::Client::connect(target, credentials, threads)?),
            Job::Stress { threads } => Self::Stress(Box::new(stress::Client::connect(
                target,
                credentials,
                threads,
            )?)),
            Job::Connects => Self::Connects(connects::Client::new(target)),
        })
    }

    fn obey(&mut self, order: Order) -> anyhow::Result<Answer> {
        match (self, order) {
            (
                Self::Driver(client),
                Order::Work {
                    load: Load::Mixed,
                    seconds,
                },
            ) => client.work(seconds),
            (Self::Raw(client), Order::Work { load, seconds }) => client.work(load, seconds),
            (Self::Stress(client), Order::Work { load, seconds }) => client.work(load, seconds),
            (Self::Connects(client), Order::Connect { count }) => client.connect(count),
            (_, order) => bail!("an order for another client: {order:?}"),
        }
    }
}
