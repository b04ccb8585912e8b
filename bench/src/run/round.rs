//! Interleaved rounds: everything else that the machine does, it does to every path.

use std::iter;

use anyhow::Context;
use load::{order::Answer, used::Used};
use report::schema::{Latency, Round, Usage};

use super::{shuffle::Shuffle, stage::Lane};
use crate::account::{Meter, Sockets, Spent, forget_rss_peak, rss_peak_kib};

/// The length of a round, and of its parts.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// The seconds of each path in a round.
    pub seconds: f64,
    /// The seconds of a path's turn, before the others have theirs. Few, because a shared machine
    /// changes its speed from second to second.
    pub turn_seconds: f64,
    /// The seconds of each path's new generator before its first turn: not counted.
    pub settle_seconds: f64,
}

/// The work of one lane in one round.
pub struct Done {
    /// The round, as in the result file.
    pub round: Round,
    /// The answer, with the histogram, which is kept for all rounds together.
    pub answer: Answer,
}

/// The sum of a lane's turns. The generator's usage is in its answers; the usage of proxy, database
/// and the kernel's threads is read from outside.
struct Account {
    answer: Answer,
    proxy: Meter,
    spent: [Spent; 3],
}

/// Plays one round: every lane that has not failed works, in turns. `None` for those that rest, or failed,
/// now or before; a lane's failure is noted in it and is no error here.
///
/// # Errors
/// A signal came, or the kernel cannot be asked.
pub fn play(
    lanes: &mut [Lane<'_>],
    database_pids: &[u32],
    timing: Timing,
    shuffle: &mut Shuffle,
) -> anyhow::Result<Vec<Option<Done>>> {
    for at in shuffle.order(lanes.len()) {
        if let Some(lane) = lanes.get_mut(at) {
            work(lane, timing.settle_seconds)?;
        }
    }
    let mut accounts = Vec::new();
    for lane in lanes.iter() {
        forget_rss_peak(&lane.proxy_pids);
        accounts.push(Account::new(lane)?);
    }
    forget_rss_peak(database_pids);
    let before = Sockets::now()?;
    let turns = (timing.seconds / timing.turn_seconds).round().max(1.0);
    // All lanes use these.
    let mut shared = [Meter::new(database_pids.to_vec()), Meter::of_kernel()];
    for _ in 0..turns as usize {
        for at in shuffle.order(lanes.len()) {
            let (Some(lane), Some(account)) = (lanes.get_mut(at), accounts.get_mut(at)) else {
                continue;
            };
            // What passes between turns is nobody's.
            account.proxy.begin();
            shared.iter_mut().for_each(Meter::begin);
            let answer = work(lane, timing.seconds / turns)?;
            let meters = iter::once(&mut account.proxy).chain(&mut shared);
            for (spent, meter) in account.spent.iter_mut().zip(meters) {
                spent.add(meter.lap());
            }
            if let Some(answer) = answer {
                account.answer.add(answer)?;
            }
        }
    }
    let after = Sockets::now()?;
    let done = lanes.iter_mut().zip(accounts).map(|(lane, account)| {
        if lane.rests {
            return None;
        }
        let pids = lane.generator.as_ref().map(|generator| generator.pid());
        let bytes = pids.map_or(0, |pid| after.since(&before, &[pid]));
        let through_proxy = after.since(&before, &lane.proxy_pids);
        let round = account.finish(lane, database_pids, bytes, through_proxy);
        // A process that is gone has failed its lane.
        let round = round.map_err(|error| lane.fail(&error)).ok();
        lane.generator = None;
        round.filter(|_| lane.failed.is_none())
    });
    Ok(done.collect())
}

/// A lane's generator works; what failed is noted, and the lane is out.
fn work(lane: &mut Lane<'_>, seconds: f64) -> anyhow::Result<Option<Answer>> {
    let Some(generator) = lane
        .generator
        .as_mut()
        .filter(|_| lane.failed.is_none() && !lane.rests)
    else {
        return Ok(None);
    };
    match generator.work(seconds) {
        Ok(answer) => Ok(Some(answer)),
        Err(error) => {
            crate::interrupt::check()?;
            lane.fail(&error);
            Ok(None)
        }
    }
}

impl Account {
    fn new(lane: &Lane<'_>) -> anyhow::Result<Self> {
        Ok(Self {
            answer: Answer::empty()?,
            proxy: Meter::new(lane.proxy_pids.clone()),
            spent: [Spent::default(); 3],
        })
    }

    fn finish(
        self,
        lane: &Lane<'_>,
        database_pids: &[u32],
        bytes: u64,
        through_proxy: u64,
    ) -> anyhow::Result<Done> {
        let answer = self.answer;
        let [proxy, database, kernel] = self.spent;
        let generator_pid = lane.generator.as_ref().context("no generator")?.pid();
        let round = Round {
            seconds: answer.seconds,
            ops: answer.ops(),
            in_time: answer.in_time,
            scheduled: answer.scheduled,
            errors: answer.errors,
            first_error: answer.first_error.clone(),
            latency: latency(&answer),
            lateness_p99_us: answer.lateness.quantile_us(0.99),
            generator: usage(&answer.used, rss_peak_kib(&[generator_pid])?),
            proxy: proxy.usage(rss_peak_kib(&lane.proxy_pids)?),
            database: database.usage(rss_peak_kib(database_pids)?),
            kernel: Some(kernel.usage(0)),
            bytes,
            copied_bytes: lane
                .is_copied
                .map(|copied| if copied { through_proxy } else { 0 }),
        };
        Ok(Done { round, answer })
    }
}

fn usage(used: &Used, rss_peak_kib: u64) -> Usage {
    Usage {
        user_us: used.user_us as f64,
        system_us: used.system_us as f64,
        voluntary_switches: used.voluntary_switches,
        involuntary_switches: used.involuntary_switches,
        rss_peak_kib,
    }
}

fn latency(answer: &Answer) -> Latency {
    let quantile = |q| answer.latencies.quantile_us(q);
    Latency {
        mean_us: answer.latencies.mean_us(),
        p50_us: quantile(0.5),
        p90_us: quantile(0.9),
        p95_us: quantile(0.95),
        p99_us: quantile(0.99),
        p999_us: quantile(0.999),
        max_us: answer.latencies.max_us(),
    }
}
