//! Charts of lines: panels side by side, each with a line for every path, which its name labels
//! where it ends.

use maud::{Markup, html};

use super::{
    axis::{self, Kind, Scale},
    svg::{self, HEAD, WIDTH},
    theme,
};
use crate::number;

/// Room for the vertical axis, and for labels at lines' ends.
const LEFT: f64 = 62.0;
const RIGHT: f64 = 92.0;
/// Room for a panel's head, and for the horizontal axis.
const TOP: f64 = HEAD + 32.0;
const BOTTOM: f64 = 44.0;
/// Labels at lines' ends keep this apart.
const APART: f64 = 14.0;
/// From the end of the axis to a label.
const LEAD: f64 = 17.0;

/// The horizontal axis.
pub struct Across {
    /// The title of the axis.
    pub title: &'static str,
    /// The scale of the axis.
    pub kind: Kind,
    /// The first and the last value of the axis.
    pub range: (f64, f64),
    /// The marks of the axis, with their labels.
    pub ticks: Vec<(f64, String)>,
}

/// One path.
pub struct Line {
    /// The path's name.
    pub path: String,
    /// The points of the line; the vertical is latency in µs.
    pub points: Vec<(f64, f64)>,
    /// The points that are marked.
    pub marked: Vec<(f64, f64)>,
}

/// One panel.
pub struct Panel {
    /// The panel's heading; empty: none.
    pub title: &'static str,
    /// The panel's lines.
    pub lines: Vec<Line>,
}

/// Panels over the same horizontal axis; None where no line has a point.
pub fn chart(panels: &[Panel], across: &Across, height: f64) -> Option<(f64, Markup)> {
    if panels.iter().all(|panel| panel.range().is_none()) {
        return None;
    }
    let each = WIDTH / panels.len().max(1) as f64;
    let body = html! {
        @for (n, panel) in panels.iter().enumerate() {
            (panel.drawn(across, n as f64 * each, each, height))
        }
    };
    Some((height, body))
}

impl Panel {
    /// The range of its latencies; a logarithmic axis has no place for zero.
    fn range(&self) -> Option<(f64, f64)> {
        let all = self.lines.iter().flat_map(|line| &line.points);
        axis::range(all.map(|(_, us)| *us).filter(|us| *us > 0.0))
    }

    fn drawn(&self, across: &Across, left: f64, width: f64, height: f64) -> Markup {
        let (low, high) = self.range().unwrap_or((1.0, 1.0));
        let ticks = axis::log(low, high);
        let range = axis::range(ticks.iter().copied()).unwrap_or((low, high));
        let edge = left + width - RIGHT;
        let x = Scale::new(across.kind, across.range, (left + LEFT, edge));
        let y = Scale::new(Kind::Log, range, (height - BOTTOM, TOP));
        html! {
            (grid(&x, &y, across, &ticks, height))
            @if !self.title.is_empty() {
                (svg::text("panel", "start", (left + LEFT, TOP - 11.0), self.title))
            }
            @for line in &self.lines { (drawn(line, &x, &y)) }
            (labels(&self.lines, &x, &y, height, edge))
        }
    }
}

fn grid(x: &Scale, y: &Scale, across: &Across, ticks: &[f64], height: f64) -> Markup {
    let (left, right) = (x.at(across.range.0), x.at(across.range.1));
    let bottom = height - BOTTOM;
    html! {
        @for tick in ticks {
            @let place = y.at(*tick);
            (svg::line("grid", (left, place), (right, place)))
            (svg::text("tick", "end", (left - 6.0, place + 4.0), &number::duration(*tick)))
        }
        @for (tick, name) in &across.ticks {
            @let place = x.at(*tick);
            (svg::line("grid", (place, bottom), (place, TOP)))
            (svg::text("tick", "middle", (place, bottom + 16.0), name))
        }
        (svg::text("axis", "middle", ((left + right) / 2.0, bottom + 34.0), across.title))
    }
}

fn drawn(line: &Line, x: &Scale, y: &Scale) -> Markup {
    let place = |(a, b): &(f64, f64)| (x.at(*a), y.at(*b));
    let points: Vec<_> = line.points.iter().map(place).collect();
    let style = format!("stroke:{}", theme::color(&line.path));
    html! {
        path class="line" d=(svg::path_data(&points)) style=(style)
            stroke-dasharray=(theme::dash(&line.path)) {}
        @for marked in &line.marked { (svg::marker(&line.path, place(marked))) }
    }
}

/// Names at the ends of lines, moved apart where they would meet.
fn labels(lines: &[Line], x: &Scale, y: &Scale, height: f64, edge: f64) -> Markup {
    let ends = lines.iter().filter_map(|line| {
        let (a, b) = line.points.last()?;
        Some((line.path.as_str(), (x.at(*a), y.at(*b))))
    });
    let mut ends: Vec<_> = ends.collect();
    ends.sort_by(|a, b| a.1.1.total_cmp(&b.1.1));
    let wanted: Vec<f64> = ends.iter().map(|(_, (_, y))| *y).collect();
    let places = spread(&wanted, TOP, height - BOTTOM);
    html! {
        @for ((path, (from, end)), place) in ends.into_iter().zip(places) {
            @let lead = [(from + 5.0, end), (edge + 6.0, end), (edge + 14.0, place)];
            @let style = format!("stroke:{}", theme::color(path));
            path class="lead" d=(svg::path_data(&lead)) style=(style) {}
            (svg::name(path, (edge + LEAD, place + 4.0), RIGHT - LEAD - 3.0))
        }
    }
}

/// Places in order, at least [`APART`], as near to where they are wanted as room allows.
fn spread(wanted: &[f64], top: f64, bottom: f64) -> Vec<f64> {
    let mut places = wanted.to_vec();
    let mut next = top;
    for place in &mut places {
        *place = place.max(next);
        next = *place + APART;
    }
    let mut last = bottom;
    for place in places.iter_mut().rev() {
        *place = place.min(last);
        last = *place - APART;
    }
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_do_not_meet() {
        let places = spread(&[100.0, 101.0, 102.0, 195.0], 0.0, 200.0);
        assert!(places.windows(2).all(|w| w[1] - w[0] >= APART - 1e-9));
        assert_eq!(places[0], 100.0);
        let low = spread(&[199.0, 199.5, 200.0], 0.0, 200.0);
        assert_eq!(low, [172.0, 186.0, 200.0]);
    }
}
