//! A plot as a file or as a part of a page, and the marks that charts are made of. Text goes
//! through the template engine, which escapes it.

use maud::{Markup, PreEscaped, html};

use super::theme;

/// Width of every plot; heights differ.
pub const WIDTH: f64 = 800.0;
/// The height of the title and the line under it.
pub const HEAD: f64 = 50.0;

/// A plot.
#[derive(Clone, Debug)]
pub struct Plot {
    /// The name of the plot's file, without its ending.
    pub name: &'static str,
    /// The plot's heading.
    pub title: String,
    /// One line under it.
    pub about: String,
    /// In pixels at full width.
    pub height: f64,
    body: Markup,
}

impl Plot {
    /// A plot of these marks; None: there is nothing to draw, and `about` says why.
    pub fn new(
        name: &'static str,
        title: &str,
        about: String,
        drawn: Option<(f64, Markup)>,
    ) -> Self {
        let (height, body) = drawn.unwrap_or_else(|| (HEAD + 14.0, html! {}));
        Self {
            name,
            title: printable(title),
            about: printable(&about),
            height,
            body,
        }
    }

    /// The name of the plot's file.
    pub fn file_name(&self) -> String {
        format!("{}.svg", self.name)
    }

    /// A file of its own.
    pub fn file(&self) -> String {
        format!("{}\n", self.svg(Some(&theme::of_file())).into_string())
    }

    /// A part of a page.
    pub fn inline(&self) -> Markup {
        self.svg(None)
    }

    fn svg(&self, style: Option<&str>) -> Markup {
        let size = format!("0 0 {WIDTH} {}", px(self.height));
        let label = format!("{}. {}", self.title, self.about);
        html! {
            svg xmlns="http://www.w3.org/2000/svg" class="plot" viewBox=(size) width=(WIDTH)
                height=(px(self.height)) role="img" aria-label=(label) {
                @if let Some(style) = style {
                    // Ours alone: no text of a run is in it.
                    style { (PreEscaped(style)) }
                    rect class="ground" width="100%" height="100%" {}
                }
                text class="title" x="12" y="22" { (self.title) }
                text class="sub" x="12" y="40" { (self.about) }
                (self.body)
            }
        }
    }
}

/// Without what XML cannot hold.
pub fn printable(text: &str) -> String {
    let is_odd = |c: char| c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}');
    text.replace(is_odd, " ")
}

/// Cut to so many characters: a label has only so much room.
pub fn cut(text: &str, most: usize) -> String {
    let text = printable(text);
    match text.chars().count() > most {
        true => {
            let kept: String = text.chars().take(most.saturating_sub(1)).collect();
            format!("{kept}…")
        }
        false => text,
    }
}

/// A coordinate, to a tenth of a pixel.
pub fn px(number: f64) -> String {
    let number = if number.is_finite() { number } else { 0.0 };
    let text = format!("{number:.1}");
    match text.strip_suffix(".0") {
        Some(whole) => whole.to_owned(),
        None => text,
    }
}

/// A line from point to point.
pub fn path_data(points: &[(f64, f64)]) -> String {
    let pieces = points.iter().enumerate().map(|(n, (x, y))| {
        let command = if n == 0 { 'M' } else { 'L' };
        format!("{command}{} {}", px(*x), px(*y))
    });
    pieces.collect()
}

/// A straight line.
pub fn line(class: &str, (x1, y1): (f64, f64), (x2, y2): (f64, f64)) -> Markup {
    html! { line class=(class) x1=(px(x1)) y1=(px(y1)) x2=(px(x2)) y2=(px(y2)) {} }
}

/// Text; `anchor` is SVG's: `start`, `middle`, `end`.
pub fn text(class: &str, anchor: &str, (x, y): (f64, f64), what: &str) -> Markup {
    html! { text class=(class) text-anchor=(anchor) x=(px(x)) y=(px(y)) { (printable(what)) } }
}

/// Characters of a path's name that a plot shows.
const NAME: usize = 12;

/// A path's name in its colour, no wider than this.
pub fn name(path: &str, (x, y): (f64, f64), room: f64) -> Markup {
    let style = format!("fill:{}", theme::color(path));
    let name = cut(path, NAME);
    let squeezed = (width(&name) > room).then(|| px(room));
    html! {
        text class="panel" style=(style) x=(px(x)) y=(px(y)) textLength=[squeezed.as_deref()]
            lengthAdjust=[squeezed.as_ref().map(|_| "spacingAndGlyphs")] {
            (name)
        }
    }
}

/// How wide text is at most, in bold of 12 pixels: as in DejaVu Sans, the widest of the fonts
/// that plots ask for.
fn width(text: &str) -> f64 {
    let each = text.chars().map(|c| match c {
        'i' | 'j' | 'l' | '.' | ',' | ' ' => 4.7,
        'f' | 'r' | 't' | '-' => 6.3,
        'a'..='z' if c != 'm' && c != 'w' => 8.7,
        '0'..='9' => 8.7,
        'm' | 'w' | 'M' | 'W' | '…' => 13.5,
        // Capitals, and scripts of which nothing is known.
        c if c.is_ascii() => 10.5,
        _ => 14.0,
    });
    each.sum()
}

/// A path's marker: of seven shapes, filled or hollow.
pub fn marker(path: &str, (x, y): (f64, f64)) -> Markup {
    let (shape, is_hollow) = theme::marker(path);
    let color = theme::color(path);
    let style = match is_hollow {
        true => format!("fill:var(--bg);stroke:{color};stroke-width:1.6"),
        false => format!("fill:{color}"),
    };
    let corners: &[(f64, f64)] = match shape {
        0 => return html! { circle cx=(px(x)) cy=(px(y)) r="3.6" style=(style) {} },
        1 => &[(-3.3, -3.3), (3.3, -3.3), (3.3, 3.3), (-3.3, 3.3)],
        2 => &[(0.0, -4.4), (4.2, 3.2), (-4.2, 3.2)],
        3 => &[(0.0, -4.8), (4.8, 0.0), (0.0, 4.8), (-4.8, 0.0)],
        4 => &[(0.0, 4.4), (4.2, -3.2), (-4.2, -3.2)],
        5 => &CROSS,
        _ => &PLUS,
    };
    let places: Vec<_> = corners.iter().map(|(dx, dy)| (x + dx, y + dy)).collect();
    html! { path d=(format!("{}Z", path_data(&places))) style=(style) {} }
}

const PLUS: [(f64, f64); 12] = [
    (-1.4, -4.6),
    (1.4, -4.6),
    (1.4, -1.4),
    (4.6, -1.4),
    (4.6, 1.4),
    (1.4, 1.4),
    (1.4, 4.6),
    (-1.4, 4.6),
    (-1.4, 1.4),
    (-4.6, 1.4),
    (-4.6, -1.4),
    (-1.4, -1.4),
];
const CROSS: [(f64, f64); 12] = [
    (-4.2, -2.3),
    (-2.3, -4.2),
    (0.0, -1.9),
    (2.3, -4.2),
    (4.2, -2.3),
    (1.9, 0.0),
    (4.2, 2.3),
    (2.3, 4.2),
    (0.0, 1.9),
    (-2.3, 4.2),
    (-4.2, 2.3),
    (-1.9, 0.0),
];
