//! Result files and what is made of them. Everything here is a function of files: it measures
//! nothing and asks nobody.
//!
//! A file ([`schema`]) is read by [`read()`]; [`stats`] and [`metric`] turn its rounds into
//! figures, `cell` those into cells of tables, which `summary`, [`experiment`], [`bars`], [`headline`], [`others`] and
//! [`overview`] put on pages ([`pages`]), as [`markdown`]. `plot` draws. [`pace`] tells who kept up with a schedule. [`compare()`] holds two
//! runs against each other, [`gate`] two agents.

pub mod bars;
mod cell;
pub mod columns;
pub mod compare;
pub mod experiment;
pub mod file;
pub mod gate;
pub mod headline;
pub mod markdown;
pub mod metric;
pub mod number;
pub mod others;
pub mod overview;
pub mod pace;
pub mod pages;
mod plot;
pub mod schema;
pub mod sequential;
pub mod stats;
mod summary;
pub mod view;

pub use compare::{Comparison, compare};
pub use file::{read, write};
pub use schema::Run;
