//! The raw client: threads with their own sockets, and nothing in between.
//!
//! The path of a request: [`lane`] takes a free slot and a key, [`protocol`]'s `put` writes the
//! request behind others of its connection, one `write` sends them; `take` finds the responses in
//! the bytes that one `read` brought.

pub mod connect;
pub mod cql;
mod input;
mod lane;
mod patient;
pub mod protocol;
pub mod redis;

mod waiter;

use std::net::{SocketAddr, TcpStream};

use anyhow::Context;

use crate::{
    keys::{Place, Source},
    order::{Answer, Credentials, Seed},
    plan::{self, Seat},
    threads::on_threads,
    values::Values,
    workload::Job,
};
use lane::{Lane, LineSetup};
pub use patient::ANSWER_LIMIT;
use patient::Patient;
use protocol::Protocol;

/// The purpose of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// The operations are those that the job mixes.
    Measure,
    /// Each key is used once at each target, then the run ends.
    Fill,
}

/// Connected threads.
pub struct Engine<P> {
    lanes: Vec<Lane<P>>,
}

impl<P: Protocol> Engine<P> {
    /// Opens all connections, logs in and prepares.
    ///
    /// # Errors
    /// When a target refuses, or the job does not fit the targets.
    pub fn connect(
        job: &Job,
        targets: &[SocketAddr],
        credentials: Option<&Credentials>,
        seed: Seed,
        purpose: Purpose,
    ) -> anyhow::Result<Self> {
        let groups = plan::groups(job)?;
        let seats = plan::seats(&groups, job.threads, targets.len())?;
        let lines = lines(&seats);
        let values = Values::new(job, seed.value);
        let mut lanes = Vec::new();
        for thread in 0..job.threads {
            lanes.push(Lane::new(
                job,
                values.for_thread(seed, thread as u64),
                seed.value,
                thread,
            )?);
        }
        for (number, line) in lines.iter().enumerate() {
            let group = groups.get(line.seat.group).context("a line of no group")?;
            let target = *targets
                .get(line.seat.target)
                .context("a line of no target")?;
            let source = match purpose {
                Purpose::Measure => Source::new(
                    &job.keys,
                    Place {
                        line: number,
                        lines: lines.len(),
                    },
                    line.connections * job.depth,
                    seed.number,
                ),
                Purpose::Fill => Source::each(job.keys.count, line.among_its_targets(&lines)),
            };
            let lane = lanes
                .get_mut(line.seat.thread)
                .context("a line of no thread")?;
            lane.add_line(LineSetup {
                source,
                mix: group.mix.clone(),
                rate: job
                    .rate
                    .map(|rate| rate * line.share(&lines, &groups, job, targets.len())),
                phase: number as f64 / lines.len() as f64,
            });
            for _ in 0..line.connections {
                let stream = dial(target)?;
                stream.set_nonblocking(!job.blocks())?;
                let protocol = P::open(&mut Patient(&stream), job, credentials)?;
                lane.add_connection(stream, protocol)?;
            }
        }
        for lane in &mut lanes {
            lane.finish()?;
        }
        Ok(Self { lanes })
    }

    /// Works for so long; [`Purpose::Fill`] ends earlier, when every key was used.
    ///
    /// # Errors
    /// When a connection ends or says what is no response.
    pub fn work(&mut self, seconds: f64) -> anyhow::Result<Answer> {
        on_threads(&mut self.lanes, seconds, |lane, run| lane.work(run))
    }

    /// Whether every key was used ([`Purpose::Fill`]).
    pub fn is_exhausted(&self) -> bool {
        self.lanes.iter().all(Lane::is_exhausted)
    }
}

/// Connects.
pub(crate) fn dial(target: SocketAddr) -> anyhow::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&target, ANSWER_LIMIT);
    let stream = stream.with_context(|| format!("cannot connect to {target}"))?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(ANSWER_LIMIT))?;
    stream.set_write_timeout(Some(ANSWER_LIMIT))?;
    Ok(stream)
}

/// A group's part on one thread towards one target.
struct LinePlan {
    seat: Seat,
    connections: usize,
}

impl LinePlan {
    /// Returns the line's share of the rate: a group's by its connections, equal for all targets,
    /// on each target by connections again.
    fn share(&self, lines: &[Self], groups: &[plan::Group], job: &Job, targets: usize) -> f64 {
        let own_group = groups.get(self.seat.group).map_or(0, |g| g.connections);
        let same = lines
            .iter()
            .filter(|l| (l.seat.group, l.seat.target) == (self.seat.group, self.seat.target));
        let beside: usize = same.map(|l| l.connections).sum();
        own_group as f64 / job.connections as f64 / targets as f64 * self.connections as f64
            / beside as f64
    }

    /// Returns the line's place among the lines of its target.
    fn among_its_targets(&self, lines: &[Self]) -> Place {
        let same = || lines.iter().filter(|l| l.seat.target == self.seat.target);
        Place {
            line: same().take_while(|l| l.seat != self.seat).count(),
            lines: same().count(),
        }
    }
}

fn lines(seats: &[Seat]) -> Vec<LinePlan> {
    let mut lines: Vec<LinePlan> = Vec::new();
    for seat in seats {
        match lines.iter_mut().find(|line| line.seat == *seat) {
            Some(line) => line.connections += 1,
            None => lines.push(LinePlan {
                seat: *seat,
                connections: 1,
            }),
        }
    }
    lines
}
