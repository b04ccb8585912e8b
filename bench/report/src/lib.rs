//! Result files and what is made of them. Everything here is a function of files: it measures
//! nothing and asks nobody.
//!
//! A file ([`schema`]) is read by [`read()`]; [`stats`] and [`metric`] turn its rounds into
//! figures, [`overview`], [`summary`], [`paths`], [`bars`] and [`experiment`] those into a
//! [`model::Document`], which [`markdown`] renders; [`pages`] are the committed Markdown
//! pages, [`plot`] draws. [`pace`] tells who kept up with a schedule,
//! and [`constant`] chooses by it what the summary compares paths by. [`compare()`] holds two
//! runs against each other, [`gate`] two agents.

pub mod bars;
pub mod compare;
pub mod constant;
pub mod document;
pub mod experiment;
pub mod file;
pub mod gate;
pub mod headline;
pub mod histogram;
pub mod intervals;
pub mod legend;
pub mod markdown;
pub mod metric;
pub mod model;
pub mod number;
pub mod others;
pub mod overview;
pub mod pace;
pub mod page;
pub mod pages;
pub mod paths;
pub mod plot;
pub mod programs;
pub mod schema;
pub mod sequential;
mod spectrum;
pub mod stats;
pub mod summary;
pub mod view;

pub use compare::{Comparison, compare};
pub use file::{read, write};
pub use schema::Run;
