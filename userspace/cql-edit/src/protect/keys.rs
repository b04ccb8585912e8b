//! Keys, and who has them.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use aes_gcm::aead::{Aead, Payload};
use aes_gcm::{Aes256Gcm, KeyInit};
use zeroize::Zeroizing;

/// Bytes of a key: AES-256.
pub const KEY_BYTES: usize = 32;

/// Bytes of a nonce (NIST SP 800-38D, §8.2.2: 96 bits).
pub const NONCE_BYTES: usize = 12;

/// The longest id of a key; it stands in every envelope.
pub const MAX_ID_BYTES: usize = 64;

/// Keys at once. One a month are 21 years of rotation.
pub const MAX_KEYS: usize = 256;

/// Keys by their ids, of which one encrypts. They are wiped when the set is let go.
pub struct KeySet {
    active: Box<str>,
    ciphers: HashMap<Box<str>, Aes256Gcm>,
    /// Each one's tag of the same: it tells keys apart, and nothing of them.
    checks: HashMap<Box<str>, Vec<u8>>,
}

/// The text of which a key's check is the tag. No value is bound to it.
const CHECK: &[u8] = b"underpass protect check";

impl KeySet {
    /// `active` is the one that encrypts.
    ///
    /// # Errors
    /// What cannot be, without a byte of a key.
    pub fn new(
        active: &str,
        keys: impl IntoIterator<Item = (String, Zeroizing<[u8; KEY_BYTES]>)>,
    ) -> Result<Self, String> {
        let mut ciphers = HashMap::new();
        let mut checks = HashMap::new();
        for (id, key) in keys {
            if !is_id(&id) {
                return Err(format!(
                    "expected ids of keys of 1 to {MAX_ID_BYTES} letters, digits, `-` and `_`; found {id:?}"
                ));
            }
            if *key == [0; KEY_BYTES] {
                return Err(format!(
                    "key {id}: expected random bytes; all of them are 0"
                ));
            }
            let cipher = Aes256Gcm::new_from_slice(&*key)
                .map_err(|_| format!("key {id}: expected {KEY_BYTES} bytes"))?;
            let nothing = Payload {
                msg: &[],
                aad: CHECK,
            };
            let check = cipher.encrypt(&[0; NONCE_BYTES].into(), nothing);
            checks.insert(id.as_str().into(), check.unwrap_or_default());
            ciphers.insert(id.into(), cipher);
            if ciphers.len() > MAX_KEYS {
                return Err(format!("expected at most {MAX_KEYS} keys"));
            }
        }
        if !ciphers.contains_key(active) {
            return Err(format!(
                "active: expected the id of one of the keys, found {active:?}"
            ));
        }
        Ok(Self {
            active: active.into(),
            ciphers,
            checks,
        })
    }

    /// The first id by which another set has another key.
    pub fn differs_from(&self, other: &Self) -> Option<&str> {
        self.checks.iter().find_map(|(id, check)| {
            let others = other.checks.get(id)?;
            (others != check).then_some(&**id)
        })
    }

    pub(super) fn active(&self) -> Option<(&str, &Aes256Gcm)> {
        Some((&self.active, self.ciphers.get(&self.active)?))
    }

    pub(super) fn get(&self, id: &str) -> Option<&Aes256Gcm> {
        self.ciphers.get(id)
    }
}

/// Ids only.
impl fmt::Debug for KeySet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut ids: Vec<_> = self.ciphers.keys().collect();
        ids.sort_unstable();
        f.debug_struct("KeySet")
            .field("active", &self.active)
            .field("ids", &ids)
            .finish()
    }
}

/// Whether a key may be called so.
pub fn is_id(id: &str) -> bool {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
    !id.is_empty() && id.len() <= MAX_ID_BYTES && id.bytes().all(allowed)
}

/// The owner of the keys. Its functions return at once: bytes of flows wait for them.
pub trait Vault: fmt::Debug + Send + Sync {
    /// The keys that are in force. `None`: there are none, or they are older than they may be.
    fn keys(&self) -> Option<Arc<KeySet>>;

    /// Random bytes that were never given before. `None`: there are none.
    fn nonce(&self) -> Option<[u8; NONCE_BYTES]>;

    /// A value was met whose key is not among them.
    fn misses(&self, id: &str);

    /// So many values had this fate.
    fn count(&self, fate: Fate, values: u64);
}

/// The outcome for a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fate {
    /// The value was encrypted.
    Encrypted,
    /// The value was decrypted.
    Decrypted,
    /// The value was stored as it is, and goes on so.
    Unencrypted,
    /// The value was stored as it is, and its result was refused for that.
    UnencryptedRefused,
    /// The value's key is not there.
    UnknownKey,
    /// There are no keys at all.
    NoKeys,
    /// The value is not what was encrypted for this column.
    Tampered,
    /// The column's type cannot hold an envelope.
    Type,
}

cql::labelled!(Fate {
    Encrypted => "encrypted",
    Decrypted => "decrypted",
    Unencrypted => "unencrypted",
    UnencryptedRefused => "unencrypted_refused",
    UnknownKey => "unknown_key",
    NoKeys => "no_keys",
    Tampered => "tampered",
    Type => "type",
});

#[cfg(test)]
mod tests {
    use super::*;

    fn key(byte: u8) -> Zeroizing<[u8; KEY_BYTES]> {
        Zeroizing::new([byte; KEY_BYTES])
    }

    #[test]
    fn what_cannot_be_is_named_and_no_key_is_shown() {
        let set = |active: &str, ids: &[&str]| {
            KeySet::new(active, ids.iter().map(|id| ((*id).to_owned(), key(0xAB))))
        };
        let long = "x".repeat(MAX_ID_BYTES + 1);
        for (active, ids, expected) in [
            ("a", &["b"][..], "active: expected the id of one"),
            ("a", &[], "active: expected the id of one"),
            ("a", &["a", "b.c"], "found \"b.c\""),
            ("a", &["a", ""], "found \"\""),
            ("a", &["a", &long], "letters, digits"),
        ] {
            let error = set(active, ids).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
        let zero = KeySet::new("a", [("a".to_owned(), key(0))]).unwrap_err();
        assert_eq!(zero, "key a: expected random bytes; all of them are 0");
        let many = (0..=MAX_KEYS).map(|n| (n.to_string(), key(1)));
        assert!(KeySet::new("0", many).unwrap_err().contains("at most"));
        let (one, two) = (
            set("a", &["a", "b"]).unwrap(),
            set("c", &["b", "c"]).unwrap(),
        );
        assert_eq!(one.differs_from(&two), None);
        let other = [("b".to_owned(), key(1))];
        let other = KeySet::new("b", other).unwrap();
        assert_eq!(one.differs_from(&other), Some("b"));
        let shown = format!("{:?}", set("b", &["b", "a"]).unwrap());
        assert_eq!(shown, "KeySet { active: \"b\", ids: [\"a\", \"b\"] }");
    }
}
