//! Columns for people; `--json` is for programs.

use std::{
    fmt::Write,
    time::{SystemTime, UNIX_EPOCH},
};

/// Rows under headings, each column as wide as its widest cell.
pub(super) fn render(headings: &[&str], rows: &[Vec<String>]) -> String {
    let mut widths: Vec<usize> = headings.iter().map(|h| h.chars().count()).collect();
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut text = String::new();
    let mut line = |cells: &[&str]| {
        let mut out = String::new();
        for (cell, width) in cells.iter().zip(&widths) {
            // Writing to a String cannot fail.
            let _ = write!(out, "{cell:width$}  ");
        }
        text.push_str(out.trim_end());
        text.push('\n');
    };
    line(headings);
    for row in rows {
        line(&row.iter().map(String::as_str).collect::<Vec<_>>());
    }
    text
}

/// The time of day in UTC, to the millisecond.
pub(super) fn time_of_day(at: SystemTime) -> String {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    let (seconds, ms) = (since.as_secs() % (24 * 3600), since.subsec_millis());
    let (hour, minute, second) = (seconds / 3600, seconds % 3600 / 60, seconds % 60);
    format!("{hour:02}:{minute:02}:{second:02}.{ms:03}")
}
