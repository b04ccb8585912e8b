//! Flows on the shortcut: kept there while the agent lives, their readers nudged after a spill,
//! and counted.

mod view;

use std::{
    os::fd::OwnedFd,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use dataplane::{Dataplane, readers::LOOK_EVERY, shortcut::ShortcutCounts};
use prometheus::{
    IntCounter, IntCounterVec, IntGauge, Opts,
    core::{Collector, Desc},
    proto::MetricFamily,
};
use proxy::paths::PathsAvailable;
use telemetry::Rarely;
use tokio::time::{self, Instant};

use crate::seconds;
pub use view::{ShortcutView, flows, views};

type Shared = Arc<Mutex<Option<Dataplane>>>;

/// Flows return to TCP five seconds after the last time.
const TEND_EVERY: Duration = Duration::from_secs(1);
/// A reader that missed an edge waits for this long; a look over the host's sockets takes a
/// millisecond or two.
const FIRST_LOOK_AFTER: Duration = Duration::from_millis(10);
/// The longest interval of looks, for readers that have stopped.
const LOOK_AT_LEAST_EVERY: Duration = Duration::from_millis(500);
/// The time for which to look: a sender reports a spill before its bytes are there.
const LOOK_FOR: Duration = Duration::from_secs(1);

/// Lines about looks and upkeep that fail: without descriptors all of them do, up to a hundred in a second.
static FAILED: Rarely = Rarely::failing();
static NOT_KEPT: Rarely = Rarely::failing();

/// Keeps flows on the shortcut. Runs for ever. `keep` gets the descriptors with which the keeper looks after readers
/// when this process is dead.
///
/// # Errors
/// Spills cannot be waited for.
pub async fn tend(
    dataplane: Shared,
    available: PathsAvailable,
    keep: impl FnOnce(Vec<OwnedFd>),
) -> anyhow::Result<()> {
    let mut keep = Some(keep);
    let taken = with(&dataplane, Dataplane::spills).transpose()?.flatten();
    let Some(mut spills) = taken else {
        return std::future::pending().await;
    };
    let mut tending = seconds::every(TEND_EVERY);
    let mut next_reading = Instant::now() + LOOK_EVERY;
    let mut looks: Option<Looks> = None;
    loop {
        let is_open = with(&dataplane, |d| d.has_shortcut()).unwrap_or_default();
        let next = looks.as_ref().map(|l| l.next);
        tokio::select! {
            _ = tending.tick() => {
                if is_open {
                    blocking(&dataplane, Dataplane::tend_shortcuts).await;
                }
                let tried = with(&dataplane, Dataplane::tried).unwrap_or_default();
                tried.iter().for_each(|tried| available.note(tried));
                if keep.is_some()
                    && let Some(descriptors) = descriptors(&dataplane)
                    && let Some(keep) = keep.take()
                {
                    keep(descriptors);
                }
            }
            () = time::sleep_until(next_reading), if is_open => {
                let pause = blocking(&dataplane, Dataplane::look_after_readers).await;
                next_reading = Instant::now() + pause.unwrap_or(TEND_EVERY);
            }
            spilled = spills.next() => {
                spilled?;
                looks = Some(Looks::new(looks.as_ref()));
            }
            () = at(next) => {
                let again = blocking(&dataplane, Dataplane::nudge_readers).await;
                // One that has failed is due still.
                looks = looks.and_then(|l| l.after(again.unwrap_or(is_open)));
            }
        }
    }
}

/// The times of looks after a spill.
struct Looks {
    next: Instant,
    pause: Duration,
    until: Instant,
}

impl Looks {
    /// Begins anew, with a further spill. A look that is due earlier stays so: where spills come all the time, there would be none.
    fn new(before: Option<&Self>) -> Self {
        let now = Instant::now();
        let next = now + FIRST_LOOK_AFTER;
        Self {
            next: before.map_or(next, |before| before.next.min(next)),
            pause: FIRST_LOOK_AFTER,
            until: now + LOOK_FOR,
        }
    }

    fn after(self, again: bool) -> Option<Self> {
        let now = Instant::now();
        let pause = (self.pause * 3 / 2).min(LOOK_AT_LEAST_EVERY);
        (again || now < self.until).then(|| Self {
            next: now + pause,
            pause,
            until: self.until,
        })
    }
}

/// The shortcut's descriptors, once it is open.
fn descriptors(dataplane: &Shared) -> Option<Vec<OwnedFd>> {
    let descriptors = with(dataplane, |d| d.shortcut_descriptors())??;
    descriptors
        .inspect_err(|error| {
            NOT_KEPT.say(|not_said_before| {
                tracing::warn!(%error, not_said_before, "nobody looks after readers on the shortcut if this agent dies");
            });
        })
        .ok()
}

async fn at(when: Option<Instant>) {
    match when {
        Some(when) => time::sleep_until(when).await,
        None => std::future::pending().await,
    }
}

fn with<T>(dataplane: &Shared, f: impl FnOnce(&mut Dataplane) -> T) -> Option<T> {
    let mut dataplane = dataplane.lock().unwrap_or_else(PoisonError::into_inner);
    dataplane.as_mut().map(f)
}

/// Calls the data plane on a thread that may block. None where nothing is attached, or it failed,
/// which is logged.
async fn blocking<T, E>(
    dataplane: &Shared,
    f: impl FnOnce(&mut Dataplane) -> Result<T, E> + Send + 'static,
) -> Option<T>
where
    T: Send + 'static,
    E: std::fmt::Display + Send + 'static,
{
    let dataplane = dataplane.clone();
    let done = tokio::task::spawn_blocking(move || with(&dataplane, f)).await;
    let error = match done {
        Ok(Some(Ok(answer))) => return Some(answer),
        Ok(None) => return None,
        Ok(Some(Err(error))) => error.to_string(),
        Err(error) => error.to_string(),
    };
    FAILED.say(|not_said_before| {
        tracing::error!(
            error,
            not_said_before,
            "the upkeep of the shortcut fails, and is tried again"
        );
    });
    None
}

/// The BPF programs' counts of the shortcut, read when they are asked for.
pub struct ShortcutCounters {
    dataplane: Shared,
    described: Described,
}

struct Described {
    flows: IntGauge,
    legs: IntGauge,
    without_memory: IntCounter,
    messages: IntCounterVec,
    bytes: IntCounterVec,
    nudges: IntCounter,
}

impl Described {
    fn empty() -> prometheus::Result<Self> {
        Ok(Self {
            flows: IntGauge::new(
                "underpass_shortcut_flows",
                "Flows of which both ends are on the shortcut.",
            )?,
            legs: IntGauge::new(
                "underpass_short_legs",
                "Connections between an application and the agent that skip TCP.",
            )?,
            without_memory: IntCounter::new(
                "underpass_legs_out_of_memory_total",
                "Connections between an application and the agent that skipped TCP and take it since, because the memory cgroup of \
                 the application's socket had no room.",
            )?,
            messages: IntCounterVec::new(
                Opts::new(
                    "underpass_shortcut_messages_total",
                    "Messages of sockets on the shortcut, by the way that they took: `shortcut`, \
                     or TCP and why.",
                ),
                &["way"],
            )?,
            bytes: IntCounterVec::new(
                Opts::new(
                    "underpass_shortcut_bytes_total",
                    "Bytes of messages of sockets on the shortcut, by the way that they took: `shortcut`, or TCP and why.",
                ),
                &["way"],
            )?,
            nudges: IntCounter::new(
                "underpass_shortcut_nudges_total",
                "Wake-ups repeated for readers that may have missed one.",
            )?,
        })
    }

    fn of(counts: &ShortcutCounts) -> prometheus::Result<Self> {
        let read = Self::empty()?;
        read.flows.set(counts.flows.cast_signed());
        read.legs.set(counts.legs.cast_signed());
        read.without_memory.inc_by(counts.legs_without_memory);
        for (turn, messages, bytes) in &counts.by_turn {
            let way = [turn.as_str()];
            read.messages.with_label_values(&way).inc_by(*messages);
            read.bytes.with_label_values(&way).inc_by(*bytes);
        }
        read.nudges.inc_by(counts.nudges);
        Ok(read)
    }

    fn collectors(&self) -> [&dyn Collector; 6] {
        [
            &self.flows,
            &self.legs,
            &self.without_memory,
            &self.messages,
            &self.bytes,
            &self.nudges,
        ]
    }

    fn families(&self) -> Vec<MetricFamily> {
        let collectors = self.collectors();
        collectors.iter().flat_map(|c| c.collect()).collect()
    }
}

impl ShortcutCounters {
    /// Makes the metrics over the data plane, which may have been detached.
    ///
    /// # Errors
    /// Two metrics of one name: a mistake in this file.
    pub fn new(dataplane: Shared) -> prometheus::Result<Self> {
        Ok(Self {
            dataplane,
            described: Described::empty()?,
        })
    }

    /// Returns what [`Collector::collect`] gives, with one sample each that says zero: for
    /// documentation.
    pub fn declared(&self) -> Vec<MetricFamily> {
        self.described.messages.with_label_values(&[""]);
        self.described.bytes.with_label_values(&[""]);
        self.described.families()
    }
}

impl Collector for ShortcutCounters {
    fn desc(&self) -> Vec<&Desc> {
        let collectors = self.described.collectors();
        collectors.iter().flat_map(|c| c.desc()).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let counts = with(&self.dataplane, |d| d.shortcut_counts());
        let counts = counts.and_then(|read| {
            read.inspect_err(|e| tracing::error!("cannot read the shortcut's counters: {e}"))
                .ok()
        });
        let read = counts.and_then(|counts| Described::of(&counts).ok());
        read.map(|r| r.families()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_further_spill_puts_no_look_off() {
        let first = Looks::new(None);
        std::thread::sleep(Duration::from_millis(1));
        let further = Looks::new(Some(&first));
        assert_eq!(further.next, first.next);
        assert!(further.until > first.until);
        // Looks that have become rare are soon again.
        let rare = Looks {
            next: first.next + LOOK_AT_LEAST_EVERY,
            pause: LOOK_AT_LEAST_EVERY,
            ..first
        };
        assert!(Looks::new(Some(&rare)).next < rare.next);
    }
}
