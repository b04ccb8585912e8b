//! Steps of pipelines that need more than the bytes that pass: each is one folder here.
//!
//! - `reporter`: steps that are told what passes and tell others: `audit`, `count`, `debug`, `slowlog`, `stats`,
//!   `trace`. `journal` is the file that two of them write, `otlp` how three of them, and the
//!   agent's metrics, come to a collector.
//! - `effect`: steps that ask somebody outside: `cache`, `coalesce`, `fold`, `mirror`.
//! - `lookup`: texts of prepared statements, asked on connections of the agent's own; `login`: its credentials, and `mirror`'s.
//! - `protect`: the keys of the transform that encrypts columns.
//! - `http`: the one client of HTTP/1.1, for key servers and for the command line.
//! - `containers`: the containers and pods that records name.
//! - `tail`: who watches statements as they pass; `capture`: who is given requests of some flows.
//! - `pipelines`: the steps of each rule; `pipeline_metrics`: what they did.
//!
//! Transforms that need nothing but the bytes are in `cql`.
//!
//! **Boundary**: a step sees frames and a flow's description, never a socket of the flow.

#![forbid(unsafe_code)]

mod at_hand;
mod audit;
mod bounded;
pub mod cache;
pub mod capture;
pub mod coalesce;
pub mod containers;
mod count;
mod debug;
mod duration;
pub mod effect;
pub mod effects;
mod fenced;
mod fields;
pub mod fold;
mod followed;
mod frames;
#[cfg(any(test, fuzzing))]
pub mod fuzzed;
pub mod grpc;
pub mod http;
mod journal;
mod keeps;
mod latencies;
mod login;
pub mod lookup;
pub mod mirror;
pub mod otlp;
mod pipeline_metrics;
pub mod pipelines;
pub mod protect;
mod refusal;
mod register;
pub mod reporter;
pub mod reporters;
mod services;
mod slowlog;
pub mod statements;
pub mod stats;
mod stream;
pub mod tail;
mod trace;
mod tracing_id;
mod what;
mod whose;

pub use audit::may_be_shown;
pub use duration::duration;
pub use followed::Followed;
pub use frames::FrameMetrics;
pub use journal::{Journal, JournalMetrics, JournalSettings, Journals, WhenFull};
use keeps::{Keeps, Nobody};
pub use refusal::Refusal;
use reporter::asks_for_data;
pub use reporter::{Following, Reporter, Reporters};
pub use services::Services;
pub use what::What;
pub use whose::{Whose, WhoseFacts, database};
