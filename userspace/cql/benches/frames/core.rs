//! Time on a core, which does not pass while somebody else has it.

use criterion::measurement::{Measurement, ValueFormatter, WallTime};
use nix::time::{ClockId, clock_gettime};
use std::time::Duration;

/// The time that this thread has had on a processor.
pub struct CoreTime;

impl CoreTime {
    fn now() -> Duration {
        let now = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID);
        now.map_or(Duration::ZERO, Duration::from)
    }
}

impl Measurement for CoreTime {
    type Intermediate = Duration;
    type Value = Duration;

    fn start(&self) -> Duration {
        Self::now()
    }

    fn end(&self, start: Duration) -> Duration {
        Self::now().saturating_sub(start)
    }

    fn add(&self, one: &Duration, other: &Duration) -> Duration {
        *one + *other
    }

    fn zero(&self) -> Duration {
        Duration::ZERO
    }

    fn to_f64(&self, value: &Duration) -> f64 {
        value.as_nanos() as f64
    }

    fn formatter(&self) -> &dyn ValueFormatter {
        WallTime.formatter()
    }
}
