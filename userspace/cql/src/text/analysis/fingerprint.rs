//! [`Fingerprint`]: a statement without its values.

use crate::hash::Fnv;
use crate::text::lex::Name;
use std::sync::Arc;

/// The longest text of a fingerprint, in bytes; what lies beyond is `...`. Long enough for an
/// INSERT into a hundred columns, and thousands of them are a few megabytes.
pub const MAX_FINGERPRINT_BYTES: usize = 2048;

/// The sign for the rest of a longer fingerprint.
const MORE: &str = " ...";

const UNKNOWN: &str = "unknown";

/// A statement without its values, in one spelling: `SELECT * FROM ks.t WHERE a = ? AND b IN (?)`.
///
/// Keywords are in upper case and unquoted names in lower case, quoted names as they were.
/// Comments, casts and signs of numbers are left out. Literals, markers, collections and tuples
/// are `?` each; of equal statements in a row within a batch, one is shown.
///
/// Of a text that is not wholly understood it shows nothing: it is `unknown`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Fingerprint {
    text: Box<str>,
    hash: u64,
}

impl Fingerprint {
    pub(super) fn unknown() -> Self {
        let mut writer = Writer::default();
        writer.piece(UNKNOWN);
        writer.finish()
    }

    /// The fingerprint of a batch: `kind` as in its text, or empty.
    pub(crate) fn of_batch(kind: &str, statements: &[Arc<Fingerprint>]) -> Self {
        let mut writer = Writer::default();
        writer.piece("BEGIN");
        if !kind.is_empty() {
            writer.piece(kind);
        }
        writer.piece("BATCH");
        for statement in statements {
            let mut one = Writer {
                text: statement.text.to_string(),
                hash: Fnv(statement.hash),
                full: false,
                spaced: true,
            };
            one.sign(b';');
            writer.append(one);
        }
        writer.piece("APPLY");
        writer.piece("BATCH");
        writer.finish()
    }

    /// The text; at most [`MAX_FINGERPRINT_BYTES`].
    pub fn text(&self) -> &str {
        &self.text
    }

    /// A hash of the whole, also of what the text leaves out. The same on every machine and in
    /// every version that writes fingerprints alike. No peer is kept from making two collide.
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// Whether the fingerprint tells something of its statement.
    pub fn is_known(&self) -> bool {
        &*self.text != UNKNOWN
    }
}

/// Writes one.
#[derive(Default)]
pub(super) struct Writer {
    text: String,
    hash: Fnv,
    full: bool,
    /// A blank stands before the next piece.
    spaced: bool,
}

impl Writer {
    /// A word, or an operator.
    pub(super) fn piece(&mut self, piece: &str) {
        self.space();
        self.put(piece);
        self.spaced = true;
    }

    /// A name, as the database stores it or as it was quoted.
    pub(super) fn name(&mut self, name: Name<'_>) {
        self.space();
        match name {
            Name::Quoted(inside) => {
                self.put("\"");
                self.put(inside);
                self.put("\"");
            }
            Name::Folded(word) | Name::Exact(word) => self.put_folded(word),
        }
        self.spaced = true;
    }

    /// Something that is not shown.
    pub(super) fn value(&mut self) {
        self.piece("?");
    }

    /// The parenthesis behind a function's name.
    pub(super) fn call(&mut self) {
        self.spaced = false;
        self.sign(b'(');
    }

    /// An index into something: `[?]`.
    pub(super) fn element(&mut self) {
        self.put("[?]");
        self.spaced = true;
    }

    /// A character of punctuation.
    pub(super) fn sign(&mut self, sign: u8) {
        if !b",).;".contains(&sign) {
            self.space();
        }
        let text = [sign];
        self.put(std::str::from_utf8(&text).unwrap_or_default());
        self.spaced = !b"(.".contains(&sign);
    }

    /// A whole other one.
    pub(super) fn append(&mut self, other: Writer) {
        self.space();
        self.show(&other.text);
        self.full |= other.full;
        for byte in other.hash.0.to_be_bytes() {
            self.hash = self.hash.with(byte);
        }
        self.spaced = true;
    }

    /// Tells two of them apart.
    pub(super) fn hash(&self) -> u64 {
        self.hash.0
    }

    pub(super) fn finish(mut self) -> Fingerprint {
        if self.full {
            self.text.push_str(MORE);
        }
        Fingerprint {
            text: self.text.into(),
            hash: self.hash.0,
        }
    }

    fn space(&mut self) {
        if self.spaced {
            self.spaced = false;
            self.put(" ");
        }
    }

    fn put(&mut self, piece: &str) {
        self.hash = piece.bytes().fold(self.hash, Fnv::with);
        self.show(piece);
    }

    fn put_folded(&mut self, word: &str) {
        let lower = word.bytes().map(|byte| byte.to_ascii_lowercase());
        self.hash = lower.fold(self.hash, Fnv::with);
        let from = self.text.len();
        self.show(word);
        if let Some(shown) = self.text.get_mut(from..) {
            shown.make_ascii_lowercase();
        }
    }

    /// Shows a piece. A piece that does not fit is left out whole, with everything behind it.
    fn show(&mut self, piece: &str) {
        self.full |= self.text.len() + piece.len() > MAX_FINGERPRINT_BYTES - MORE.len();
        if !self.full {
            self.text.push_str(piece);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_stand_apart_and_punctuation_close() {
        let mut writer = Writer::default();
        writer.piece("SELECT");
        writer.name(Name::Folded("F"));
        writer.call();
        writer.value();
        writer.sign(b',');
        writer.name(Name::Folded("m"));
        writer.element();
        writer.sign(b')');
        writer.piece("FROM");
        writer.name(Name::Quoted("K\"\"s"));
        writer.sign(b'.');
        writer.name(Name::Folded("T"));
        writer.sign(b'(');
        writer.value();
        writer.sign(b')');
        let fingerprint = writer.finish();
        assert_eq!(
            fingerprint.text(),
            "SELECT f(?, m[?]) FROM \"K\"\"s\".t (?)"
        );
        let hash = fingerprint.text().bytes().fold(Fnv::default(), Fnv::with);
        assert_eq!(fingerprint.hash(), hash.0);
    }

    #[test]
    fn what_is_too_long_to_show_is_hashed() {
        let long = |last: &str| {
            let mut writer = Writer::default();
            for _ in 0..MAX_FINGERPRINT_BYTES {
                writer.piece("word");
            }
            writer.piece(last);
            writer.finish()
        };
        let (a, b) = (long("a"), long("b"));
        assert!(a.text().len() <= MAX_FINGERPRINT_BYTES);
        assert!(a.text().ends_with("word ..."));
        assert_eq!(a.text(), b.text());
        assert_ne!(a.hash(), b.hash());
    }

    /// Dashboards keep hashes: another one for the same statement would be a break.
    #[test]
    fn the_hash_is_stable() {
        assert_eq!(Fingerprint::unknown().text(), "unknown");
        assert!(!Fingerprint::unknown().is_known());
        assert_eq!(
            Fingerprint::unknown().hash(),
            "unknown".bytes().fold(Fnv::default(), Fnv::with).0
        );
    }
}
