//! The picture of an experiment: each path's latency by percentile, of all rounds together.

use anyhow::{Context, anyhow};
use hdrhistogram::Histogram;
use plotters::prelude::*;

use crate::{number, schema::Experiment};

const SIZE: (u32, u32) = (860, 420);
/// The percentiles of the x axis, evenly spaced: each nine takes as much room as the one before.
const SHOWN: [f64; 7] = [0.5, 0.9, 0.95, 0.99, 0.995, 0.999, 0.9999];
/// Text and grid, seen on white as on black: a file cannot know which page it is in.
const INK: RGBColor = RGBColor(128, 128, 128);
/// Lines, likewise. Paths beyond these take them again, dashed by their markers' place in the legend.
const COLORS: [RGBColor; 9] = [
    RGBColor(128, 128, 128),
    RGBColor(170, 170, 170),
    RGBColor(40, 160, 80),
    RGBColor(0, 150, 136),
    RGBColor(30, 130, 210),
    RGBColor(230, 100, 30),
    RGBColor(200, 60, 150),
    RGBColor(200, 50, 60),
    RGBColor(110, 100, 220),
];

/// Draws an experiment's latencies as SVG. `None`: no path has a histogram.
///
/// # Errors
/// The picture cannot be drawn.
pub fn percentiles(experiment: &Experiment, title: &str) -> anyhow::Result<Option<String>> {
    let lines: Vec<(&str, Vec<(f64, f64)>)> = experiment
        .series
        .iter()
        .filter_map(|series| Some((&*series.path, line(&series.latencies()?))))
        .collect();
    let all = || {
        lines
            .iter()
            .flat_map(|(_, points)| points)
            .map(|(_, us)| *us)
    };
    let (low, high) = (all().fold(f64::MAX, f64::min), all().fold(0.0, f64::max));
    if high <= 0.0 {
        return Ok(None);
    }
    let mut svg = String::new();
    draw(&mut svg, title, &lines, low.max(1.0) * 0.8..high * 1.25)
        .map_err(|why| anyhow!("{why}"))?;
    Ok(Some(svg))
}

fn line(latencies: &Histogram<u64>) -> Vec<(f64, f64)> {
    // An operation in ten thousand is only known of where there were so many.
    let known = SHOWN
        .iter()
        .filter(|share| latencies.len() as f64 * (1.0 - **share) >= 1.0);
    known
        .map(|share| {
            let us = latencies.value_at_quantile(*share) as f64 / 1e3;
            (nines(*share), us)
        })
        .collect()
}

/// How many nines a share has: 0.9 one, 0.99 two.
fn nines(share: f64) -> f64 {
    -(1.0 - share).log10()
}

fn draw(
    svg: &mut String,
    title: &str,
    lines: &[(&str, Vec<(f64, f64)>)],
    us: std::ops::Range<f64>,
) -> anyhow::Result<()> {
    let area = SVGBackend::with_string(svg, SIZE).into_drawing_area();
    let text = ("sans-serif", 13).into_font().color(&INK);
    let ends = SHOWN.first().zip(SHOWN.last()).context("no percentiles")?;
    let mut chart = ChartBuilder::on(&area)
        .caption(title, ("sans-serif", 15).into_font().color(&INK))
        .margin(12)
        .x_label_area_size(36)
        .y_label_area_size(64)
        .build_cartesian_2d(nines(*ends.0)..nines(*ends.1), us.log_scale())?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(INK.mix(0.3))
        .axis_style(INK)
        .label_style(text.clone())
        .x_desc("percentile")
        .x_label_formatter(&|nines| {
            format!("{} %", number::plain(100.0 * (1.0 - 10_f64.powf(-nines))))
        })
        .y_label_formatter(&|us| number::duration(*us))
        .draw()?;
    for ((path, points), color) in lines.iter().zip(COLORS.iter().cycle()) {
        let color = *color;
        chart
            .draw_series(LineSeries::new(
                points.iter().copied(),
                color.stroke_width(2),
            ))?
            .label(*path)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], color.stroke_width(2)));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .label_font(text)
        .draw()?;
    area.present()?;
    Ok(())
}
