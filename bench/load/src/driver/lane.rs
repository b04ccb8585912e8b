//! A thread that asks the driver.

use std::{
    sync::{Arc, mpsc},
    time::Duration,
};

use anyhow::{Context, ensure};
use tokio::runtime::Handle;

use super::{requests::Requests, statements::Target};
use crate::{pace::Pace, raw::ANSWER_LIMIT, schedule::Schedule, tally::Tally, threads::Run};

/// A thread's own.
pub struct Lane {
    pub targets: Arc<[Target]>,
    pub runtime: Handle,
    pub requests: Requests,
    pub pace: Pace,
    /// The most requests under way on a schedule.
    pub in_flight: usize,
}

/// The end of one request.
struct Ended {
    intended_ns: u64,
    now_ns: u64,
    result: Result<(), String>,
}

impl Lane {
    pub fn work(&mut self, run: &Arc<Run>) -> anyhow::Result<Tally> {
        let mut tally = Tally::new(run.end_ns)?;
        self.pace.restart(run, &mut tally);
        if let Some(schedule) = self.pace.schedule() {
            self.work_on_schedule(schedule, run, tally)
        } else {
            self.work_in_turn(run, tally)
        }
    }

    fn work_in_turn(&mut self, run: &Run, mut tally: Tally) -> anyhow::Result<Tally> {
        while let Some(start_ns) = self.pace.next(run, &mut tally) {
            let (target, at, mut draw) = self.requests.next()?;
            let target = self.targets.get(target).context("no target")?;
            let values = target.values(at, &mut draw);
            let done = self.runtime.block_on(target.perform(at.operation, values));
            let now_ns = self.pace.end(run);
            count(&mut tally, start_ns, now_ns, done);
        }
        Ok(tally)
    }

    fn work_on_schedule(
        &mut self,
        mut schedule: Schedule,
        run: &Arc<Run>,
        mut tally: Tally,
    ) -> anyhow::Result<Tally> {
        let (ended, endings) = mpsc::channel();
        let mut under_way = 0;
        // The time of the last room for a request, after there was none.
        let mut room_ns = 0;
        loop {
            let now_ns = run.now_ns();
            let due_ns = schedule.next_ns();
            // A request that was due before the end leaves after it, if it had to wait.
            let has_next = due_ns < run.end_ns && !run.is_drained(now_ns) && !run.is_stopped();
            if has_next && under_way < self.in_flight && due_ns <= now_ns {
                schedule.advance();
                if room_ns <= due_ns {
                    tally.lateness.record(now_ns - due_ns);
                }
                self.send(due_ns, run, ended.clone())?;
                under_way += 1;
                continue;
            }
            if !has_next && under_way == 0 {
                return Ok(tally);
            }
            let has_room = under_way < self.in_flight;
            let wait_ns = if has_next && has_room {
                due_ns.saturating_sub(now_ns)
            } else {
                LIMIT_NS
            };
            match endings.recv_timeout(Duration::from_nanos(wait_ns)) {
                Ok(Ended {
                    intended_ns,
                    now_ns,
                    result,
                }) => {
                    if !has_room {
                        room_ns = now_ns;
                    }
                    under_way -= 1;
                    count(&mut tally, intended_ns, now_ns, result);
                }
                Err(_) => ensure!(
                    wait_ns < LIMIT_NS,
                    "{under_way} requests without an answer for {ANSWER_LIMIT:?}"
                ),
            }
        }
    }

    /// Hands the next request to the driver.
    fn send(
        &mut self,
        intended_ns: u64,
        run: &Arc<Run>,
        ended: mpsc::Sender<Ended>,
    ) -> anyhow::Result<()> {
        let (target, at, mut draw) = self.requests.next()?;
        let values = self
            .targets
            .get(target)
            .context("no target")?
            .values(at, &mut draw);
        let (targets, run) = (Arc::clone(&self.targets), Arc::clone(run));
        self.runtime.spawn(async move {
            let result = match targets.get(target) {
                Some(target) => target.perform(at.operation, values).await,
                None => Err("no target".into()),
            };
            let now_ns = run.now_ns();
            // The receiver is gone where another thread has failed.
            let _ = ended.send(Ended {
                intended_ns,
                now_ns,
                result,
            });
        });
        Ok(())
    }
}

/// The driver gives up on a request after 30 s; it needs a moment to say so.
const LIMIT_NS: u64 = 2 * ANSWER_LIMIT.as_nanos() as u64;

fn count(tally: &mut Tally, intended_ns: u64, now_ns: u64, result: Result<(), String>) {
    match result {
        Ok(()) => tally.done(intended_ns, now_ns),
        Err(why) => tally.fail(why),
    }
}
