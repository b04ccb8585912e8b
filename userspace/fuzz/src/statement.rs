//! Any text as a statement.
//!
//! For any input: nothing that could be a value is in its fingerprint, which is itself a statement
//! with the same fingerprint; what is kept is bounded.

use super::memory::most_held;
use cql::{Analysis, MAX_FINGERPRINT_BYTES, MAX_RESTRICTIONS};

/// More than an analysis of a short text takes, its result included.
const MAX_HELD_BYTES: usize = 256 << 10;

/// A statement's text.
pub fn statement(data: &[u8]) {
    let Some((first, text)) = data.split_first() else {
        return;
    };
    let missing = usize::from(first & 0x01);
    let mut analysis = None;
    let held = most_held(|| analysis = Some(Analysis::of(text, text.len() + missing)));
    assert!(held < MAX_HELD_BYTES + text.len(), "{held} bytes");
    let Some(analysis) = analysis else { return };

    let fingerprint = analysis.fingerprint.text();
    assert!(fingerprint.len() <= MAX_FINGERPRINT_BYTES);
    assert_eq!(analysis.shape.is_some(), analysis.fingerprint.is_known());
    let Some(shape) = analysis.shape else {
        assert_eq!(fingerprint, "unknown");
        return;
    };
    assert_eq!(missing, 0);
    assert!(shape.restrictions.len() <= MAX_RESTRICTIONS);
    shows_no_value(fingerprint);
    if !fingerprint.ends_with("...") {
        let again = Analysis::of(fingerprint.as_bytes(), fingerprint.len());
        assert_eq!(again.fingerprint, analysis.fingerprint);
        assert_eq!(again.statement, analysis.statement);
    }
}

/// Outside quoted names there is no quote, no dollar, and no word that begins with a digit.
fn shows_no_value(fingerprint: &str) {
    for (at, part) in fingerprint.split('"').enumerate() {
        if at % 2 == 0 {
            assert!(!part.contains(['\'', '$', ':', '{']), "{fingerprint}");
            let mut words = part.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            assert!(
                words.all(|word| !word.starts_with(|c: char| c.is_ascii_digit())),
                "{fingerprint}"
            );
        }
    }
}
