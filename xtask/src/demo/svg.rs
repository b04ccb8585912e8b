//! A recorded session as a picture that moves: lines appear when they were printed, and the terminal scrolls. It needs no
//! script, so it plays where pictures are shown, and who wants no motion sees the end.

use std::fmt::Write;

use super::cast::{COLUMNS, Line, ROWS};

/// A cell of the terminal, and what is around them, in pixels.
const CELL: [f64; 2] = [7.22, 17.0];
const MARGIN: f64 = 12.0;
const BAR: f64 = 26.0;

/// Seconds for which the end is shown before the session begins again.
const END: f64 = 20.0;

/// Draws a session. The picture is a function of its lines.
pub fn draw(title: &str, lines: &[Line]) -> String {
    let rows: Vec<Line> = lines.iter().flat_map(wrapped).collect();
    let lasts = rows.last().map_or(0.0, |row| row.at) + END;
    let width = CELL[0] * COLUMNS as f64 + 2.0 * MARGIN;
    let inside = CELL[1] * ROWS as f64;
    let height = BAR + inside + 2.0 * MARGIN;
    let (left, top) = (MARGIN, BAR + MARGIN);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{height:.0}\" viewBox=\"0 0 {width:.0} {height:.0}\" \
         role=\"img\">\n<title>{}</title>\n<style>\n{}</style>\n\
         <rect width=\"100%\" height=\"100%\" rx=\"8\" class=\"back\"/>\n\
         <circle cx=\"18\" cy=\"14\" r=\"5\" fill=\"#ff5f57\"/><circle cx=\"36\" cy=\"14\" r=\"5\" fill=\"#febc2e\"/>\
         <circle cx=\"54\" cy=\"14\" r=\"5\" fill=\"#28c840\"/>\n\
         <text x=\"{:.0}\" y=\"18\" class=\"dim\" text-anchor=\"middle\">{}</text>\n\
         <svg x=\"{left}\" y=\"{top}\" width=\"{:.0}\" height=\"{inside}\"><g class=\"all\">\n",
        escaped(title),
        style(&rows, lasts),
        width / 2.0,
        escaped(title),
        width - 2.0 * MARGIN,
    );
    for (n, row) in rows
        .iter()
        .enumerate()
        .filter(|(_, row)| !row.text.trim().is_empty())
    {
        let y = CELL[1] * (n as f64 + 0.75);
        let kind = kind(&row.text);
        // Writing to a String cannot fail.
        let _ = writeln!(
            svg,
            "<text y=\"{y:.1}\" class=\"{kind}\" style=\"animation-name:a{}\" xml:space=\"preserve\">{}</text>",
            stamp(row.at),
            escaped(&row.text)
        );
    }
    svg.push_str("</g></svg>\n</svg>\n");
    svg
}

/// A time in hundredths of a second: lines that are printed together share an animation.
fn stamp(at: f64) -> u64 {
    (at * 100.0).round() as u64
}

fn style(rows: &[Line], lasts: f64) -> String {
    let mut style = format!(
        ".back{{fill:#15181e}}text{{font:12px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;fill:#d5d9e0;\
         animation:{lasts:.2}s step-end infinite}}.all{{animation:scroll {lasts:.2}s step-end infinite}}\
         .asked{{fill:#8ec5ff;font-weight:bold}}.step{{fill:#9aa4b2}}.good{{fill:#7ee0a1}}.bad{{fill:#ff8a80}}.dim{{fill:#9aa4b2;animation:none}}\n"
    );
    let part = |at: f64| format!("{:.3}%", 100.0 * at / lasts);
    let mut stamps: Vec<f64> = rows.iter().map(|row| row.at).collect();
    stamps.dedup_by_key(|at| stamp(*at));
    for at in &stamps {
        let _ = writeln!(
            style,
            "@keyframes a{}{{0%{{visibility:hidden}}{},100%{{visibility:visible}}}}",
            stamp(*at),
            part(*at)
        );
    }
    let end = rows.len().saturating_sub(ROWS);
    style.push_str("@keyframes scroll{0%{transform:translateY(0)}");
    for at in stamps {
        let shown = rows.iter().filter(|row| stamp(row.at) <= stamp(at)).count();
        if let Some(above) = shown.checked_sub(ROWS).filter(|above| *above > 0) {
            let _ = write!(
                style,
                "{}{{transform:translateY({:.0}px)}}",
                part(at),
                shift(above)
            );
        }
    }
    let _ = writeln!(
        style,
        "}}\n@media (prefers-reduced-motion:reduce){{text,.all{{animation:none!important}}\
         .all{{transform:translateY({:.0}px)}}}}",
        shift(end)
    );
    style
}

/// How far the terminal is scrolled when so many rows are above it, in pixels.
fn shift(above: usize) -> f64 {
    0.0 - above as f64 * CELL[1]
}

/// The rows of a line: a long one goes on in the next row, as in a terminal.
fn wrapped(line: &Line) -> Vec<Line> {
    let text: Vec<char> = line.text.chars().filter(|c| !c.is_control()).collect();
    if text.is_empty() {
        return vec![Line {
            text: String::new(),
            ..line.clone()
        }];
    }
    let rows = text.chunks(COLUMNS).map(|row| Line {
        at: line.at,
        text: row.iter().collect(),
    });
    rows.collect()
}

/// The class of a line, by how the demo begins it.
fn kind(text: &str) -> &'static str {
    match text.split(' ').next() {
        Some("$" | "#") => "asked",
        Some("·") => "step",
        Some("ok") => "good",
        Some("FAIL" | "refused:") => "bad",
        _ => "said",
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(n: usize) -> Vec<Line> {
        let line = |n: usize| Line {
            at: n as f64 * 0.5,
            text: format!("line {n} <of> many & more"),
        };
        (0..n).map(line).collect()
    }

    #[test]
    fn each_line_appears_at_its_time_and_what_is_too_much_scrolls() {
        let few = draw("a & b", &lines(3));
        assert!(
            few.contains("<title>a &amp; b</title>")
                && few.contains("line 2 &lt;of&gt; many &amp; more")
        );
        assert_eq!(few.matches("@keyframes a").count(), 3);
        assert!(!few.contains("translateY(-"), "nothing scrolls");
        let many = draw("t", &lines(ROWS + 2));
        assert!(
            many.contains("{transform:translateY(-34px)}"),
            "two rows are above"
        );
        assert!(
            many.contains(".all{transform:translateY(-34px)}"),
            "and without motion"
        );
        // Half of a second in a session that lasts 37 × 0.5 s and the end's.
        let part = 100.0 * 0.5 / ((ROWS + 1) as f64 * 0.5 + END);
        assert!(
            many.contains(&format!(
                "@keyframes a50{{0%{{visibility:hidden}}{part:.3}%,100%"
            )),
            "{many}"
        );
    }

    #[test]
    fn long_lines_are_wrapped_and_control_characters_left_out() {
        let long = Line {
            at: 1.0,
            text: "x".repeat(COLUMNS) + "\u{1b}y",
        };
        let rows = wrapped(&long);
        assert_eq!((rows.len(), rows[1].text.as_str()), (2, "y"));
        assert_eq!(
            ["$ a", "· a", "ok   a", "refused: a", "a"].map(kind),
            ["asked", "step", "good", "bad", "said"]
        );
    }
}
