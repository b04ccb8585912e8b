//! Columns for people; `--json` is for programs.

use std::fmt::Write;

/// Rows under headings, each column as wide as its widest cell.
pub(super) fn render<const N: usize>(headings: [&str; N], rows: &[[String; N]]) -> String {
    let mut widths = headings.map(|h| h.chars().count());
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut text = String::new();
    let mut line = |cells: [&str; N]| {
        let mut out = String::new();
        for (cell, width) in cells.iter().zip(widths) {
            // Writing to a String cannot fail.
            let _ = write!(out, "{cell:width$}  ");
        }
        text.push_str(out.trim_end());
        text.push('\n');
    };
    line(headings);
    for row in rows {
        line(row.each_ref().map(String::as_str));
    }
    text
}
