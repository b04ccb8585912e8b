//! The form in which a value is stored: `up1.<key>.<nonce, ciphertext and tag>`, the last in base64url
//! without padding.
//!
//! It is ASCII whatever the value, so that a column of type `text`, `varchar`, `ascii` or `blob` can hold
//! it, and nobody has to know which of them it is. Which column it was made for, and by which key, is bound
//! to it: elsewhere it cannot be read.

use aes_gcm::aead::{Aead, Payload};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use super::keys::{KeySet, NONCE_BYTES, is_id};

/// The beginning of every envelope: the mark of underpass, and the version.
pub const PREFIX: &str = "up1.";

/// Bytes of the tag (SP 800-38D, §5.2.1.2: the longest).
const TAG_BYTES: usize = 16;

/// The prefix of everything that a value is bound to: nothing that was encrypted for another purpose can be
/// taken for a value.
const DOMAIN: &[u8] = b"underpass protect 1";

/// Why something cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Closed {
    /// The value is no envelope.
    Plain,
    /// The key with this id is not there.
    UnknownKey(String),
    /// The envelope was not made for this column, or was changed since.
    Tampered,
}

/// The data that a value is bound to: its column, with the lengths of names before them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Binding(Vec<u8>);

impl Binding {
    pub(super) fn new(keyspace: &str, table: &str, column: &str) -> Self {
        let mut bytes = DOMAIN.to_vec();
        for name in [keyspace, table, column] {
            put(&mut bytes, name);
        }
        Self(bytes)
    }

    fn with(&self, key: &str) -> Vec<u8> {
        let mut bytes = self.0.clone();
        put(&mut bytes, key);
        bytes
    }
}

fn put(to: &mut Vec<u8>, name: &str) {
    to.extend((name.len() as u64).to_be_bytes());
    to.extend_from_slice(name.as_bytes());
}

/// Encrypts a value. None: it is larger than the cipher can take (64 GiB).
pub(super) fn seal(
    keys: &KeySet,
    nonce: [u8; NONCE_BYTES],
    binding: &Binding,
    plain: &[u8],
) -> Option<Vec<u8>> {
    let (id, cipher) = keys.active()?;
    let payload = Payload {
        msg: plain,
        aad: &binding.with(id),
    };
    let sealed = cipher.encrypt(&nonce.into(), payload).ok()?;
    let coded = URL_SAFE_NO_PAD.encode([&nonce[..], &sealed].concat());
    Some([PREFIX, id, ".", &coded].concat().into_bytes())
}

/// The value that was encrypted.
pub(super) fn open(keys: &KeySet, binding: &Binding, sealed: &[u8]) -> Result<Vec<u8>, Closed> {
    let rest = sealed
        .strip_prefix(PREFIX.as_bytes())
        .ok_or(Closed::Plain)?;
    let dot = rest.iter().position(|byte| *byte == b'.');
    let (id, coded) = dot
        .and_then(|at| Some((rest.get(..at)?, rest.get(at + 1..)?)))
        .ok_or(Closed::Tampered)?;
    let id = std::str::from_utf8(id).ok().filter(|id| is_id(id));
    let id = id.ok_or(Closed::Tampered)?;
    // One way to write each: what is not that is refused by the decoder.
    let bytes = URL_SAFE_NO_PAD
        .decode(coded)
        .map_err(|_| Closed::Tampered)?;
    let (nonce, sealed) = bytes
        .split_first_chunk::<NONCE_BYTES>()
        .filter(|(_, sealed)| sealed.len() >= TAG_BYTES)
        .ok_or(Closed::Tampered)?;
    let cipher = keys
        .get(id)
        .ok_or_else(|| Closed::UnknownKey(id.to_owned()))?;
    let payload = Payload {
        msg: sealed,
        aad: &binding.with(id),
    };
    let plain = cipher.decrypt(&(*nonce).into(), payload);
    plain.map_err(|_| Closed::Tampered)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use zeroize::Zeroizing;

    fn keys(active: &str) -> KeySet {
        let key = |id: &str, byte: u8| (id.to_owned(), Zeroizing::new([byte; 32]));
        KeySet::new(active, [key("old", 1), key("new", 2)]).unwrap()
    }

    fn iban() -> Binding {
        Binding::new("shop", "customers", "iban")
    }

    /// The form of an envelope is stable: somebody who reads what was stored years ago has only this to
    /// go by.
    #[test]
    fn the_form_is_stable() {
        let sealed = seal(&keys("old"), [7; NONCE_BYTES], &iban(), b"DE89").unwrap();
        assert_eq!(
            std::str::from_utf8(&sealed).unwrap(),
            "up1.old.BwcHBwcHBwcHBwcHybbSnW_d9Qmp6cj-0ar_AIHYEZc"
        );
    }

    #[test]
    fn every_byte_counts() {
        let keys = keys("old");
        let sealed = seal(&keys, [9; NONCE_BYTES], &iban(), b"DE89 3704").unwrap();
        for at in 0..sealed.len() {
            for bit in 0..8 {
                let mut other = sealed.clone();
                other[at] ^= 1 << bit;
                let found = open(&keys, &iban(), &other).unwrap_err();
                let expected = match at {
                    0..4 => matches!(found, Closed::Plain),
                    4..7 => matches!(found, Closed::UnknownKey(_) | Closed::Tampered),
                    _ => found == Closed::Tampered,
                };
                assert!(expected, "byte {at}, bit {bit}: {found:?}");
            }
        }
        for end in 0..sealed.len() {
            assert!(open(&keys, &iban(), &sealed[..end]).is_err(), "{end} bytes");
        }
        let longer = [&sealed[..], b"A"].concat();
        assert_eq!(open(&keys, &iban(), &longer), Err(Closed::Tampered));
    }

    #[test]
    fn a_value_is_of_its_column_and_of_its_key() {
        let sealed = seal(&keys("old"), [0; NONCE_BYTES], &iban(), b"x").unwrap();
        assert_eq!(open(&keys("new"), &iban(), &sealed).unwrap(), b"x");
        for other in [
            Binding::new("shop", "customers", "email"),
            Binding::new("shop", "customersi", "ban"),
            Binding::new("sho", "pcustomers", "iban"),
        ] {
            assert_eq!(open(&keys("old"), &other, &sealed), Err(Closed::Tampered));
        }
        let text = String::from_utf8(sealed).unwrap();
        let renamed = text.replace("up1.old.", "up1.new.");
        let found = open(&keys("old"), &iban(), renamed.as_bytes());
        assert_eq!(found, Err(Closed::Tampered));
        let gone = text.replace("up1.old.", "up1.gone.");
        let found = open(&keys("old"), &iban(), gone.as_bytes());
        assert_eq!(found, Err(Closed::UnknownKey("gone".to_owned())));
    }

    proptest! {
        #[test]
        fn what_is_sealed_is_opened(plain: Vec<u8>, nonce: [u8; NONCE_BYTES]) {
            let sealed = seal(&keys("new"), nonce, &iban(), &plain).unwrap();
            prop_assert!(sealed.is_ascii() && !sealed.contains(&b'\''));
            prop_assert_eq!(open(&keys("old"), &iban(), &sealed).unwrap(), plain);
        }

        #[test]
        fn noise_is_nothing(noise: Vec<u8>) {
            prop_assert!(open(&keys("old"), &iban(), &noise).is_err());
            let noise = [&b"up1.old."[..], &noise].concat();
            prop_assert!(open(&keys("old"), &iban(), &noise).is_err());
        }
    }
}
