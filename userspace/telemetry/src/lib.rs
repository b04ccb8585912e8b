//! The agent's counters and gauges: declared, registered and labelled in one place.
//!
//! - `metrics`: every counter of the agent's own, with its help text, a file for each part.
//! - `denials`: flows and requests that rules refused, counted, and the latest kept.
//! - `rarely`: a limit on log lines that strangers can cause.
//! - `registered`: a metric is made and registered in one call.
//! - `labels`: the labels that rules give.
//!
//! **Invariant**: nothing here knows who counts. Labels come from the crates whose values they are.

#![forbid(unsafe_code)]

mod denials;
mod labels;
mod metrics;
mod rarely;
mod registered;

pub use denials::{Denial, Denials, MAX_KEPT};
pub use labels::{is_marks, series_of};
pub use metrics::{
    BusyPollMetrics, FlowMetrics, IntakeMetrics, KeeperMetrics, MARKED_RESULTS, MarkMetrics,
    Metrics, NOT_RELOADED, RELOADED, SPLICE_OFF, SendMetrics, SessionMetrics, SpliceMetrics,
    TlsMetrics, UpgradeMetrics,
};
pub use rarely::Rarely;
pub use registered::{counter, counters, counters_by, histogram};
