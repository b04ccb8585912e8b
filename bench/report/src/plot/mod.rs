//! Plots, as SVG: a module each, over two kinds of chart ([`lines`], [`rows`]).
//!
//! A plot stands alone as a file that follows the reader's light or dark, or in a page that
//! brings [`theme`]'s colours itself. It says what it lacks instead of being empty.

pub mod added;
pub mod axis;
pub mod cpu;
pub mod lines;
pub mod nodes;
pub mod percentiles;
pub mod rates;
pub mod rows;
pub mod svg;
pub mod theme;

pub use svg::Plot;

use crate::{constant, schema::Run};

/// The plots of README and summary.
pub fn shown(run: &Run) -> Vec<Plot> {
    vec![
        added::plot(run),
        percentiles::plot(run, constant::choose(run).map(|c| c.experiment)),
        cpu::plot(run),
        rates::plot(run),
        nodes::plot(run),
    ]
}

/// The files that the README shows: their names and what is in them.
pub fn artifacts(run: &Run) -> Vec<(String, String)> {
    let plots = shown(run);
    plots.iter().map(|p| (p.file_name(), p.file())).collect()
}
