//! The committed page says what the committed file says.

#![expect(
    clippy::unwrap_used,
    reason = "tests say what they expect by failing, and so do their helpers"
)]
#![allow(
    dead_code,
    clippy::allow_attributes,
    reason = "what it shares with the benchmark has more than it needs"
)]

#[path = "../benches/ring/results.rs"]
mod results;

use results::{Results, SCHEMA};
use sandbox::measured::file;

#[test]
fn the_page_is_rendered_from_the_file() {
    let json = std::fs::read_to_string(file("exports.json")).unwrap();
    let results: Results = serde_json::from_str(&json).unwrap();
    assert_eq!(results.schema, SCHEMA);
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(file("exports.md"), results.page()).unwrap();
    }
    let page = std::fs::read_to_string(file("exports.md")).unwrap();
    assert_eq!(page, results.page());
}
