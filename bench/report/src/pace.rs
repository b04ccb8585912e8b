//! Whether a path kept up with the schedule of an open loop.
//!
//! Requests that waited are sent and counted, late as they are: a path that falls behind has
//! the latencies of a queue, which say how long it was made to grow, not what the path costs.

use crate::{
    markdown::Text,
    number,
    schema::{Experiment, Round, Series},
};

/// The share of the schedule that must end in time: the requests that are on their way as it ends are less than the rest.
pub const KEPT_UP: f64 = 0.99;

/// The share of rounds that may be late: a moment in which the machine was elsewhere is not a queue that grows.
const MAY_BE_LATE: f64 = 0.25;

/// A path that did not keep up.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Behind {
    /// In so many rounds.
    pub rounds: usize,
    /// In the worst of them: operations that ended in time.
    pub in_time: u64,
    /// And what the schedule called for.
    pub scheduled: f64,
}

impl Experiment {
    /// How far the path fell behind; None: there is no schedule, or it kept up in nearly every round.
    pub fn behind(&self, series: &Series) -> Option<Behind> {
        let rate = self.rate?;
        // A generator that kept no count was still asked for its rate.
        let scheduled = |r: &Round| r.scheduled.map_or(rate * r.seconds, |n| n as f64);
        let share = |r: &Round| r.in_time as f64 / scheduled(r);
        let is_late = |r: &&Round| (r.in_time as f64) < KEPT_UP * scheduled(r);
        let late: Vec<&Round> = series.rounds.iter().filter(is_late).collect();
        if late.len() as f64 <= MAY_BE_LATE * series.rounds.len() as f64 {
            return None;
        }
        let worst = late.iter().min_by(|a, b| share(a).total_cmp(&share(b)))?;
        Some(Behind {
            rounds: late.len(),
            in_time: worst.in_time,
            scheduled: scheduled(worst),
        })
    }
}

/// The warning that a path did not keep up; None: it did.
pub fn warning(experiment: &Experiment, series: &Series) -> Option<Text> {
    let behind = experiment.behind(series)?;
    let text = Text::new().strong(format!("{} did not keep up", series.path));
    Some(text.plain(format!(
        ": in {} of {} rounds less than {} % of the schedule ended in time (at worst {} of {} \
         operations); its latencies are those of a queue that grows.",
        behind.rounds,
        series.rounds.len(),
        number::plain(KEPT_UP * 100.0),
        number::grouped(behind.in_time as f64),
        number::grouped(behind.scheduled),
    )))
}
