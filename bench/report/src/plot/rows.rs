//! Charts of horizontal bars: a row for each path, panels side by side with a scale each.

use maud::{Markup, html};

use super::{
    axis::{self, Kind, Scale},
    svg::{self, HEAD, WIDTH},
};
use crate::number;

/// Room for paths' names, and between panels.
const LEFT: f64 = 110.0;
const BETWEEN: f64 = 34.0;
/// Room for the figure after the longest bar.
const FIGURE: f64 = 114.0;
const TOP: f64 = HEAD + 34.0;
const ROW: f64 = 30.0;
const BAR: f64 = 16.0;
const BOTTOM: f64 = 40.0;
/// Where names begin.
const NAME: f64 = 29.0;
/// A piece narrower than this has no room for its figure.
const ROOM: f64 = 34.0;
const TICKS: usize = 4;

/// A piece of a bar.
pub struct Piece {
    /// The length of the piece, in the axis' unit.
    pub value: f64,
    /// The colour, in CSS.
    pub color: String,
    /// Whether the figure is written into the piece.
    pub is_labelled: bool,
}

/// A bar.
pub struct Bar {
    /// Pieces, one after the other.
    pub pieces: Vec<Piece>,
    /// The range in which the bar's end may be.
    pub whisker: Option<(f64, f64)>,
    /// The figure behind the bar.
    pub figure: String,
}

/// A panel: a bar (or nothing to show) for each row.
pub struct Panel {
    /// The plot's heading.
    pub title: String,
    /// The unit of the axis.
    pub unit: &'static str,
    /// In the order of rows.
    pub bars: Vec<Option<Bar>>,
}

/// The rows' names are paths; None where there is no bar.
pub fn chart(paths: &[&str], panels: &[Panel]) -> Option<(f64, Markup)> {
    let height = TOP + ROW * paths.len() as f64 + BOTTOM;
    if panels.iter().all(|p| p.bars.iter().all(Option::is_none)) {
        return None;
    }
    let count = panels.len().max(1) as f64;
    let each = (WIDTH - LEFT - BETWEEN * (count - 1.0)) / count;
    let body = html! {
        @for (n, path) in paths.iter().enumerate() {
            (svg::marker(path, (18.0, middle(n))))
            (svg::name(path, (NAME, middle(n) + 4.0), LEFT - NAME - 6.0))
        }
        @for (n, panel) in panels.iter().enumerate() {
            @let left = LEFT + n as f64 * (each + BETWEEN);
            (drawn(panel, left, left + each - FIGURE, height))
        }
    };
    Some((height, body))
}

fn middle(row: usize) -> f64 {
    TOP + ROW * (row as f64 + 0.5)
}

fn drawn(panel: &Panel, left: f64, right: f64, height: f64) -> Markup {
    let bars = || panel.bars.iter().flatten();
    let ends = bars().flat_map(|bar| {
        let whisker = bar.whisker.map(|(low, high)| [low, high]);
        whisker.into_iter().flatten().chain([0.0, end(bar)])
    });
    let (low, high) = axis::range(ends).unwrap_or((0.0, 1.0));
    let ticks = axis::linear(low, high, TICKS);
    let (low, high) = axis::range(ticks.iter().copied()).unwrap_or((0.0, 1.0));
    let x = Scale::new(Kind::Linear, (low, high), (left, right));
    let bottom = height - BOTTOM;
    html! {
        (svg::text("panel", "start", (left, TOP - 10.0), &panel.title))
        @for tick in &ticks {
            @let class = if *tick == 0.0 { "zero" } else { "grid" };
            (svg::line(class, (x.at(*tick), TOP), (x.at(*tick), bottom)))
            (svg::text("tick", "middle", (x.at(*tick), bottom + 15.0), &tick_text(*tick)))
        }
        (svg::text("axis", "middle", ((left + right) / 2.0, bottom + 31.0), panel.unit))
        @for (row, one) in panel.bars.iter().enumerate() {
            @match one {
                Some(one) => (bar(one, &x, middle(row))),
                None => (svg::text("note", "start", (x.at(0.0) + 6.0, middle(row) + 4.0), number::NONE)),
            }
        }
    }
}

fn tick_text(tick: f64) -> String {
    match tick.abs() >= 1000.0 {
        true => number::grouped(tick),
        false => number::plain(tick).replace('-', "−"),
    }
}

fn end(bar: &Bar) -> f64 {
    bar.pieces.iter().map(|piece| piece.value).sum()
}

fn bar(bar: &Bar, x: &Scale, middle: f64) -> Markup {
    let mut from = 0.0;
    let pieces = bar.pieces.iter().map(|piece| {
        let (a, b) = (x.at(from), x.at(from + piece.value));
        from += piece.value;
        (piece, a.min(b), (a - b).abs())
    });
    let pieces: Vec<_> = pieces.collect();
    let reach = bar
        .whisker
        .map_or(from, |(low, high)| high.max(low).max(from));
    html! {
        @for (piece, start, width) in pieces {
            @let style = format!("fill:{}", piece.color);
            rect x=(svg::px(start)) y=(svg::px(middle - BAR / 2.0)) width=(svg::px(width))
                height=(svg::px(BAR)) style=(style) {}
            @if piece.is_labelled && width >= ROOM {
                (svg::text("inside", "middle", (start + width / 2.0, middle + 4.0), &number::short(piece.value)))
            }
        }
        @if let Some((low, high)) = bar.whisker {
            @let (low, high) = (x.at(low), x.at(high));
            (svg::line("whisker", (low, middle), (high, middle)))
            (svg::line("whisker", (low, middle - 4.0), (low, middle + 4.0)))
            (svg::line("whisker", (high, middle - 4.0), (high, middle + 4.0)))
        }
        (svg::text("figure", "start", (x.at(reach.max(0.0)) + 7.0, middle + 4.0), &bar.figure))
    }
}
