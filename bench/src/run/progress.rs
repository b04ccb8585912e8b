//! The progress that a run prints while it goes on: on standard error, with the time that is left.

use std::time::{Duration, Instant};

use super::{round::Done, stage::Lane};

/// The position in a run.
pub struct Progress {
    began: Instant,
    /// The estimated time of the whole run.
    whole: Duration,
    /// The estimated time of the experiments that are done.
    done: Duration,
    experiments: usize,
    number: usize,
    /// The estimated time of the present experiment.
    present: Duration,
    /// The moment at which the run ends, whatever is left.
    until: Option<Instant>,
}

impl Progress {
    /// A run of experiments that will take so long each, and which ends at some moment.
    pub fn new(estimates: &[Duration], until: Option<Instant>) -> Self {
        Self {
            began: Instant::now(),
            whole: estimates.iter().sum(),
            done: Duration::ZERO,
            experiments: estimates.len(),
            number: 0,
            present: Duration::ZERO,
            until,
        }
    }

    /// The next experiment begins.
    pub fn experiment(&mut self, id: &str, about: &str, estimate: Duration) {
        self.done += self.present;
        self.present = estimate;
        self.number += 1;
        eprintln!(
            "[{}/{}] {id}: {about} ({})",
            self.number,
            self.experiments,
            self.left(0.0)
        );
    }

    /// A round is over.
    pub fn round(
        &mut self,
        number: u32,
        of: u32,
        lanes: &[Lane<'_>],
        done: &[Option<Done>],
        took: Duration,
    ) {
        let played = lanes.iter().zip(done).filter(|(lane, _)| !lane.rests);
        let each = played.map(|(lane, done)| match done {
            None => format!("{} failed", lane.path),
            Some(done) => format!(
                "{} {:.0} op/s p50 {:.0} µs{}",
                lane.path,
                done.answer.op_s(),
                done.round.latency.p50_us,
                if done.round.errors == 0 {
                    String::new()
                } else {
                    format!(" {} ERRORS", done.round.errors)
                },
            ),
        });
        let each: Vec<String> = each.collect();
        eprintln!(
            "  round {number}/{of}, {:.1} s ({}): {}",
            took.as_secs_f64(),
            self.left(f64::from(number) / f64::from(of.max(1))),
            each.join(", ")
        );
    }

    /// The time that is left, corrected by how the estimates have held so far, when this share of the present experiment is over.
    fn left(&self, share: f64) -> String {
        let done = self.done + self.present.mul_f64(share);
        let mut left = self.whole.saturating_sub(done);
        if !self.done.is_zero() {
            left = left.mul_f64(self.began.elapsed().as_secs_f64() / done.as_secs_f64());
        }
        match self.until {
            None => format!("{} left", shown(left)),
            Some(until) => {
                let most = until.saturating_duration_since(Instant::now());
                format!("at most {} left", shown(left.min(most)))
            }
        }
    }
}

fn shown(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0..=99 => format!("{seconds} s"),
        _ => format!("{} min", seconds.div_ceil(60)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_shown_in_what_one_would_say() {
        assert_eq!(shown(Duration::from_secs(99)), "99 s");
        assert_eq!(shown(Duration::from_secs(121)), "3 min");
    }

    #[test]
    fn what_is_done_is_not_left() {
        let each = [Duration::from_secs(100); 3];
        let mut progress = Progress::new(&each, None);
        assert_eq!(progress.left(0.0), "5 min left");
        progress.experiment("a", "", each[0]);
        assert_eq!(progress.left(0.5), "5 min left", "of 250 s");
        progress.experiment("b", "", each[1]);
        // A hundred seconds' worth took none: the rest will not take long either.
        assert_eq!(progress.left(0.0), "0 s left");
        let mut progress = Progress::new(&each, Some(Instant::now() + Duration::from_secs(90)));
        progress.experiment("a", "", each[0]);
        assert!(["at most 90 s left", "at most 89 s left"].contains(&&*progress.left(0.0)));
    }
}
