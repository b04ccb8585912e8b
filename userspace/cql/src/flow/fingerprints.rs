//! Fingerprints of what one flow asks, for a sink that asks for details.
//!
//! A text is analysed when it is first sent; then it is at hand, by a hash of it. The text itself is not
//! kept: it has values in it.

use crate::flow::prepared::PreparedCache;
use crate::hash::BuildSpread;
use crate::text::analysis::{Analysis, Fingerprint};
use crate::text::statement::Statements;
use crate::wire::cursor::Cursor;
use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;

/// Texts that a flow has at hand; beyond it, it starts over. What an application sends as text often
/// is a few different ones, and where each has other values, none is ever at hand. At most 140 KiB.
const MAX_TEXTS: usize = 64;

/// Different statements in a row that are shown of a batch; one of more has no fingerprint.
const MAX_IN_BATCH: usize = 64;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Fingerprints {
    /// By a hash of the text, which nobody can choose: two of a flow's texts have the same one once in
    /// 10^18 times, and are then taken for one another. `None`: it has none.
    by_text: HashMap<u64, Option<Arc<Fingerprint>>, BuildSpread>,
    hashing: RandomState,
    /// Fingerprints in the batch that is being read. The buffer is kept from batch to batch.
    batch: Vec<Arc<Fingerprint>>,
}

impl Fingerprints {
    /// The fingerprint of a text; `None` if the text is not understood, or not whole.
    pub(crate) fn of_text(&mut self, text: &[u8], declared: usize) -> Option<Arc<Fingerprint>> {
        if text.len() < declared {
            return None;
        }
        let mut hasher = self.hashing.build_hasher();
        hasher.write_u8(0);
        hasher.write(text);
        self.get_or(hasher.finish(), |_| {
            let fingerprint = Analysis::of(text, declared).fingerprint;
            fingerprint.is_known().then(|| Arc::new(fingerprint))
        })
    }

    /// The fingerprint of a BATCH (`native_protocol_v5.spec` §4.1.7), by the beginning of its body: as
    /// if it were one text. `None` if the beginning does not hold all its statements, or one of them
    /// has no fingerprint.
    pub(crate) fn of_batch(
        &mut self,
        mut body: Cursor<'_>,
        prepared: &mut PreparedCache,
        statements: &mut Statements,
    ) -> Option<Arc<Fingerprint>> {
        let kind = match body.byte()? {
            0 => "",
            1 => "UNLOGGED",
            2 => "COUNTER",
            _ => return None,
        };
        self.batch.clear();
        let mut last_id = None;
        for _ in 0..body.short()? {
            let child = match body.byte()? {
                0 => {
                    last_id = None;
                    let declared = body.long_string_len()?;
                    self.of_text(body.take(declared)?, declared)?
                }
                1 => {
                    let id = body.short_bytes()?;
                    if last_id.replace(id) == Some(id) {
                        body.skip_values()?;
                        continue;
                    }
                    prepared.get(id, statements)?.fingerprint()?
                }
                _ => return None,
            };
            body.skip_values()?;
            if self.batch.last().is_none_or(|last| *last != child) {
                if self.batch.len() >= MAX_IN_BATCH {
                    return None;
                }
                self.batch.push(child);
            }
        }
        let mut hasher = self.hashing.build_hasher();
        hasher.write_u8(1);
        hasher.write(kind.as_bytes());
        for child in &self.batch {
            hasher.write_u64(child.hash());
        }
        self.get_or(hasher.finish(), |batch| {
            Some(Arc::new(Fingerprint::of_batch(kind, batch)))
        })
    }

    fn get_or(
        &mut self,
        hash: u64,
        make: impl FnOnce(&[Arc<Fingerprint>]) -> Option<Arc<Fingerprint>>,
    ) -> Option<Arc<Fingerprint>> {
        if let Some(known) = self.by_text.get(&hash) {
            return known.clone();
        }
        let made = make(&self.batch);
        if self.by_text.len() >= MAX_TEXTS {
            self.by_text.clear();
        }
        self.by_text.insert(hash, made.clone());
        made
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flow::prepared::PreparedAt;

    fn of(fingerprints: &mut Fingerprints, text: &str) -> Option<Arc<Fingerprint>> {
        fingerprints.of_text(text.as_bytes(), text.len())
    }

    #[test]
    fn a_text_is_analysed_once() {
        let mut fingerprints = Fingerprints::default();
        let first = of(&mut fingerprints, "SELECT a FROM t WHERE k = 1").unwrap();
        let again = of(&mut fingerprints, "SELECT a FROM t WHERE k = 1").unwrap();
        let other = of(&mut fingerprints, "select a from T where k = 2").unwrap();
        assert!(Arc::ptr_eq(&first, &again));
        assert_eq!(first, other);
        assert_eq!(first.text(), "SELECT a FROM t WHERE k = ?");
        assert_eq!(of(&mut fingerprints, "SELECT SELECT"), None);
        assert_eq!(fingerprints.of_text(b"SELECT a FROM t", 16), None);
    }

    #[test]
    fn memory_is_bounded() {
        let mut fingerprints = Fingerprints::default();
        for n in 0..3 * MAX_TEXTS {
            of(&mut fingerprints, &format!("SELECT a FROM t{n}")).unwrap();
            assert!(fingerprints.by_text.len() <= MAX_TEXTS);
        }
    }

    #[test]
    fn a_batch_is_as_its_text() {
        let mut fingerprints = Fingerprints::default();
        let texts = [
            "INSERT INTO t (a) VALUES (1)",
            "INSERT INTO t (a) VALUES (2)",
            "DELETE FROM u WHERE k = ?",
        ];
        let mut body = vec![1, 0, 3];
        for text in texts {
            body.push(0);
            body.extend((text.len() as u32).to_be_bytes());
            body.extend(text.as_bytes());
            body.extend([0, 0]);
        }
        let mut prepared = PreparedCache::new(PreparedAt::default());
        let mut statements = Statements::default();
        let mut read =
            |body: &[u8]| fingerprints.of_batch(Cursor::new(body), &mut prepared, &mut statements);
        let read_whole = read(&body).unwrap();
        let text = format!("BEGIN UNLOGGED BATCH {}; APPLY BATCH", texts.join("; "));
        let expected = Analysis::of(text.as_bytes(), text.len()).fingerprint;
        assert_eq!(*read_whole, expected);
        assert!(Arc::ptr_eq(&read_whole, &read(&body).unwrap()));
        assert_eq!(read(&body[..body.len() - 1]), None);
        body[0] = 3;
        assert_eq!(read(&body), None);
    }
}
