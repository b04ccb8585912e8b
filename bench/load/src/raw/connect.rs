//! The client that only connects: each thread makes one connection after the other, or on a
//! schedule.

use std::{net::SocketAddr, time::Duration};

use anyhow::{Context, ensure};
use socket2::{Domain, Protocol, Socket, Type};

use crate::{
    order::Answer,
    pace::Pace,
    tally::Tally,
    threads::{Run, on_threads},
    workload::Job,
};

/// Threads that dial.
pub struct Connects {
    lanes: Vec<Lane>,
}

struct Lane {
    targets: Vec<SocketAddr>,
    /// The target whose turn it is.
    turn: usize,
    pace: Pace,
}

impl Connects {
    /// Makes the threads of this job, which dial all of these in turn.
    ///
    /// # Errors
    /// There is nothing to dial.
    pub fn new(job: &Job, targets: &[SocketAddr]) -> anyhow::Result<Self> {
        ensure!(!targets.is_empty(), "no targets");
        let lane = |thread| Lane {
            targets: targets.to_vec(),
            turn: thread,
            pace: Pace::new(job.rate, thread, job.threads),
        };
        Ok(Self {
            lanes: (0..job.threads).map(lane).collect(),
        })
    }

    /// Connects for so long.
    ///
    /// # Errors
    /// When there are no sockets. A connection that fails is counted.
    pub fn work(&mut self, seconds: f64) -> anyhow::Result<Answer> {
        on_threads(&mut self.lanes, seconds, |lane, run| lane.work(run))
    }
}

impl Lane {
    fn work(&mut self, run: &Run) -> anyhow::Result<Tally> {
        let mut tally = Tally::new(run.end_ns)?;
        self.pace.restart(run, &mut tally);
        loop {
            let target = self.targets.get(self.turn % self.targets.len());
            let target = *target.context("no target")?;
            self.turn += 1;
            // Made before its time comes: what is timed is the call alone.
            let socket = Socket::new(
                Domain::for_address(target),
                Type::STREAM,
                Some(Protocol::TCP),
            )?;
            // Closed with RST: thousands of sockets in TIME_WAIT would use up the ports.
            socket.set_linger(Some(Duration::ZERO))?;
            let target = target.into();
            let Some(intended_ns) = self.pace.next(run, &mut tally) else {
                return Ok(tally);
            };
            let connected = socket.connect(&target);
            let now_ns = run.now_ns();
            match connected {
                Ok(()) => tally.done(intended_ns, now_ns),
                Err(error) => tally.fail(error.to_string()),
            }
            drop(socket);
            self.pace.end(run);
        }
    }
}
