//! Statements, and what is known of them.

mod fingerprints;
mod properties;
mod shapes;
mod time;

use super::*;

fn analyse(text: &str) -> Analysis {
    Analysis::of(text.as_bytes(), text.len())
}

fn fingerprint(text: &str) -> String {
    analyse(text).fingerprint.text().to_string()
}

fn shape(text: &str) -> Shape {
    analyse(text)
        .shape
        .unwrap_or_else(|| panic!("unknown: {text}"))
}
