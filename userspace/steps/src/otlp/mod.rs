//! OTLP: spans, log records and metrics for collectors of OpenTelemetry's, off the threads on which bytes move.
//!
//! - `settings`: which collector; `sends`: a step's.
//! - `telling`: a flow's part: it hands a record over, put together from parts that are there already (`parts`).
//! - `record`: that record, and the span or log record that is made of it.
//! - `collectors`: the open collectors, a thread for each signal (`shared` is what it and others have in common); `exporting` is the thread of spans and log records, `pushing`
//!   that of metrics, and `delivery` what both do: send a message, count and log what became of it.
//! - `snapshot`: metrics as OTLP has them; `messages`: its messages; `client`: the call.
//! - `counters`: what was sent, and what was not.
//!
//! **Invariant**: no flow waits for a collector. What does not fit into a ring is dropped and counted.

mod client;
mod collectors;
mod counters;
mod delivery;
mod exporting;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzed;
mod messages;
mod parts;
mod pushing;
mod record;
mod sends;
mod settings;
mod shared;
mod signal;
mod snapshot;
mod telling;

pub use collectors::Collectors;
pub use counters::OtlpMetrics;
pub(crate) use record::{Identity, Kind};
pub(crate) use sends::Sends;
pub(crate) use settings::wanted;
pub use settings::{CollectorSettings, MAX_SERVICE_BYTES, MetricsPush, SERVICE};
pub(crate) use signal::Signal;
pub(crate) use telling::{Telling, Told};
