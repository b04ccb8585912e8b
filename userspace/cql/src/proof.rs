//! [`Proof`]: whether the id of a prepared statement follows from its text.
//!
//! Cassandra's id is the MD5 of keyspace and text, or of the text alone if its names are qualified
//! (`QueryProcessor.computeId`); ScyllaDB's and YugabyteDB's are made so, too. Nobody can find another text to an id that
//! somebody else's text has. But keyspace and text stand in it without anything between them, so that whoever may choose
//! both could cut elsewhere: keyspace `shopSELECT`, and the rest for a text. So a cut is believed only if it is the only one
//! that leaves a statement behind a name.

use md5::{Digest, Md5};

use crate::text::lex::MAX_NAME_BYTES;
use crate::text::parse::parse;
use crate::text::statement::StatementKind;

/// The longest text whose ids are made, in bytes: what takes a tenth of a millisecond. Statements with markers have some
/// hundred bytes.
pub const MAX_PROVEN_TEXT_BYTES: usize = 64 << 10;

/// The bytes of an MD5.
const DIGEST_BYTES: usize = 16;

/// The ids that a statement has at every database which makes them of its text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Proof {
    in_keyspace: Option<[u8; DIGEST_BYTES]>,
    alone: Option<[u8; DIGEST_BYTES]>,
}

impl Proof {
    /// The proof of an id that nothing proves.
    pub const NONE: Self = Self {
        in_keyspace: None,
        alone: None,
    };

    /// Makes the ids of a text that is prepared in this keyspace, if it is known.
    pub fn of(text: &[u8], keyspace: Option<&str>) -> Self {
        if text.len() > MAX_PROVEN_TEXT_BYTES {
            return Self::NONE;
        }
        let statement = parse(text, text.len()).statement;
        // The names in a batch may be some qualified and some not.
        let is_qualified = statement.keyspace.is_some() && statement.kind != StatementKind::Batch;
        let keyspace = keyspace.filter(|keyspace| !keyspace.is_empty());
        let depends_on_keyspace = keyspace.is_some() && !is_qualified;
        Self {
            in_keyspace: keyspace
                .filter(|keyspace| is_the_only_cut(keyspace, text))
                .map(|keyspace| digest(keyspace, text)),
            alone: (!depends_on_keyspace && is_the_only_cut("", text)).then(|| digest("", text)),
        }
    }

    /// Whether this id follows from the text.
    pub fn holds(&self, id: &[u8]) -> bool {
        let makes =
            |made: &Option<[u8; DIGEST_BYTES]>| made.as_ref().is_some_and(|made| made == id);
        makes(&self.in_keyspace) || makes(&self.alone)
    }
}

/// Returns the keyspace in which a text was prepared, if the id depends on it, as the database tells. None: the text does
/// not make the id, and is not believed.
pub fn prepared_in<'k>(
    id: &[u8],
    keyspace: Option<&'k str>,
    text: &[u8],
) -> Option<Option<&'k str>> {
    let makes = |name: &str| digest(name, text) == id && is_the_only_cut(name, text);
    let named = keyspace.filter(|name| !name.is_empty());
    match named {
        Some(name) if makes(name) => Some(Some(name)),
        // It does not depend on a keyspace, so none is believed.
        _ if makes("") => Some(None),
        _ => None,
    }
}

fn digest(keyspace: &str, text: &[u8]) -> [u8; DIGEST_BYTES] {
    let mut digest = Md5::new();
    digest.update(keyspace);
    digest.update(text);
    digest.finalize().into()
}

/// Whether the two, one behind the other, are a name and a statement if they are cut here, and nowhere else.
fn is_the_only_cut(keyspace: &str, text: &[u8]) -> bool {
    let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
    let is_name = keyspace.len() <= MAX_NAME_BYTES && keyspace.bytes().all(|byte| is_part(&byte));
    if !is_name || !begins_statement(text) {
        return false;
    }
    let word = text.iter().take_while(|byte| is_part(byte)).count();
    let (word, rest) = text.split_at_checked(word).unwrap_or((text, &[]));
    // Every name and statement that there could be begins in this, or right behind it.
    let run = [keyspace.as_bytes(), word].concat();
    let others = (0..run.len()).filter(|cut| *cut != keyspace.len());
    let mut others = others.filter_map(|cut| run.get(cut..));
    let is_behind = word.is_empty() || !begins_statement(rest);
    is_behind && !others.any(begins_statement)
}

/// Whether a text begins as a statement does.
fn begins_statement(text: &[u8]) -> bool {
    parse(text, text.len()).statement.kind != StatementKind::Unknown
}

#[cfg(test)]
mod tests {
    use super::*;

    fn md5(text: &str) -> Vec<u8> {
        Md5::digest(text).to_vec()
    }

    #[test]
    fn an_id_is_proven_by_its_keyspace_and_text() {
        let text = "SELECT v FROM t WHERE k = ?";
        let proof = Proof::of(text.as_bytes(), Some("shop"));
        assert!(proof.holds(&md5(&format!("shop{text}"))));
        // Of another keyspace's table, and of none's.
        assert!(!proof.holds(&md5(&format!("logs{text}"))));
        assert!(!proof.holds(&md5(text)));
        assert!(!proof.holds(b"") && !proof.holds(&[0; 16]) && !Proof::NONE.holds(&[0; 16]));
        let proof = Proof::of(text.as_bytes(), None);
        assert!(proof.holds(&md5(text)));
        let text = "\n  /* all */ SELECT v FROM shop.t";
        for keyspace in [None, Some("shop"), Some("Logs_2")] {
            let proof = Proof::of(text.as_bytes(), keyspace);
            assert!(proof.holds(&md5(text)));
            let prefixed = md5(&format!("{}{text}", keyspace.unwrap_or("shop")));
            assert_eq!(proof.holds(&prefixed), keyspace.is_some());
        }
    }

    #[test]
    fn a_batch_of_which_not_all_may_be_qualified_is_of_its_keyspace() {
        let text =
            "BEGIN BATCH INSERT INTO a.b (c) VALUES (?); DELETE FROM d WHERE e = ? APPLY BATCH";
        let proof = Proof::of(text.as_bytes(), Some("shop"));
        assert!(!proof.holds(&md5(text)));
        assert!(proof.holds(&md5(&format!("shop{text}"))));
    }

    #[test]
    fn keyspace_and_text_cannot_be_cut_elsewhere() {
        let whole = "my_useSELECT v FROM shop.t";
        for cut in 0..=whole.len() {
            let (keyspace, text) = whole.split_at(cut);
            let is_right = cut == "my_use".len();
            let proof = Proof::of(text.as_bytes(), Some(keyspace));
            assert_eq!(proof.holds(&md5(whole)), is_right, "{keyspace} | {text}");
            let believed = prepared_in(&md5(whole), Some(keyspace), text.as_bytes());
            assert_eq!(
                believed,
                is_right.then_some(Some("my_use")),
                "{keyspace} | {text}"
            );
        }
        // Two cuts that could be: nobody is believed.
        let whole = "my_use SELECT v FROM t";
        for cut in ["my_use", "my_", ""] {
            let (keyspace, text) = whole.split_at(cut.len());
            assert!(!Proof::of(text.as_bytes(), Some(keyspace)).holds(&md5(whole)));
            assert_eq!(
                prepared_in(&md5(whole), Some(keyspace), text.as_bytes()),
                None
            );
        }
    }

    #[test]
    fn what_is_no_name_or_no_statement_proves_nothing() {
        for (keyspace, text) in [
            ("shop;", "SELECT v FROM t"),
            ("schön", "SELECT v FROM t"),
            ("shop", ""),
            ("shop", "EXPLAIN SELECT v FROM t"),
        ] {
            let id = md5(&format!("{keyspace}{text}"));
            assert!(!Proof::of(text.as_bytes(), Some(keyspace)).holds(&id));
            assert_eq!(prepared_in(&id, Some(keyspace), text.as_bytes()), None);
        }
        let mut long = String::from("SELECT v FROM shop.t WHERE k = ?");
        assert!(Proof::of(long.as_bytes(), None).holds(&md5(&long)));
        long.push_str(&" ".repeat(MAX_PROVEN_TEXT_BYTES));
        assert!(!Proof::of(long.as_bytes(), None).holds(&md5(&long)));
    }
}
