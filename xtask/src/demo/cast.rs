//! A recorded terminal session: a file in the second version of asciinema's format (a header, then an event per line), of
//! which this reads and writes what a program without a cursor prints.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

/// Columns and rows of the terminal.
pub const COLUMNS: usize = 118;
/// See [`COLUMNS`].
pub const ROWS: usize = 36;

/// The longest that nothing happens; what took longer is shown as this, as asciinema's `idle_time_limit` does.
const LONGEST_PAUSE: f64 = 1.5;

/// A line, and when it was printed: seconds after the beginning.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// The time.
    pub at: f64,
    /// The text, without its end.
    pub text: String,
}

/// Writes a session.
pub fn write(title: &str, lines: &[Line]) -> String {
    let header = json!({
        "version": 2, "width": COLUMNS, "height": ROWS, "title": title, "idle_time_limit": LONGEST_PAUSE,
    });
    let events = lines.iter().map(|line| {
        let at = (line.at * 1e3).round() / 1e3;
        json!([at, "o", format!("{}\r\n", line.text)]).to_string()
    });
    let all: Vec<String> = std::iter::once(header.to_string()).chain(events).collect();
    all.join("\n") + "\n"
}

/// Reads a session that [`write()`] has written. Pauses are no longer than the header allows.
///
/// # Errors
/// The text is none.
pub fn read(text: &str) -> Result<Vec<Line>> {
    let mut lines = text.lines();
    let header: Value = serde_json::from_str(lines.next().context("an empty recording")?)?;
    ensure!(
        header.get("version") == Some(&json!(2)),
        "a recording of another version than 2"
    );
    let longest = header.get("idle_time_limit").and_then(Value::as_f64);
    let longest = longest.unwrap_or(f64::INFINITY);
    let (mut before, mut at) = (0.0, 0.0);
    let mut read = Vec::new();
    for event in lines {
        let event: (f64, String, String) =
            serde_json::from_str(event).context("an event of a recording")?;
        at += (event.0 - before).clamp(0.0, longest);
        before = event.0;
        for text in event.2.trim_end_matches("\r\n").split("\r\n") {
            read.push(Line {
                at,
                text: text.to_owned(),
            });
        }
    }
    Ok(read)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_with_shorter_pauses() {
        let line = |at, text: &str| Line {
            at,
            text: text.to_owned(),
        };
        let lines = [
            line(0.25, "$ one"),
            line(0.5, ""),
            line(60.5, "two \"é\"\u{1b}[0m"),
        ];
        let text = write("a title", &lines);
        assert!(
            text.starts_with("{\"") && text.lines().count() == 4,
            "{text}"
        );
        let read = read(&text).unwrap();
        assert_eq!(
            read,
            [
                line(0.25, "$ one"),
                line(0.5, ""),
                line(2.0, "two \"é\"\u{1b}[0m")
            ]
        );
        assert!(super::read("{\"version\": 1}\n").is_err() && super::read("").is_err());
    }
}
