//! The envelope: the keys under which answers are kept, and the layout of what is kept there.

use cql_edit::{Caller, Request};
use sha2::{Digest, Sha256};

/// The bytes of a digest.
const DIGEST_BYTES: usize = 32;

/// The digest of everything that an answer depends on.
pub(super) type Key = [u8; DIGEST_BYTES];

/// The bytes of a generation: enough that one chosen at random differs from all others.
pub(super) const GENERATION_BYTES: usize = 16;

/// A table's state, by the writes that were seen: an answer of another generation is not given.
pub(super) type Generation = [u8; GENERATION_BYTES];

/// The number of this layout. A change to it, or to what a key is made of, needs a new number.
const MAGIC: [u8; 4] = *b"UPC1";

/// The bytes before a body: the magic, the generation, the key, the body's length and a digest of
/// all.
pub(super) const ENVELOPE_BYTES: usize =
    MAGIC.len() + GENERATION_BYTES + DIGEST_BYTES + 4 + DIGEST_BYTES;

/// Digests these parts, each with its length.
pub(super) fn digest<'p>(parts: impl IntoIterator<Item = &'p [u8]>) -> Key {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    hash.finalize().into()
}

/// Encodes an optional part such that None differs from an empty part.
fn optional(part: Option<&str>) -> [&[u8]; 2] {
    match part {
        Some(part) => [b"is", part.as_bytes()],
        None => [b"not", b""],
    }
}

/// Makes the key of a request. `database`: the database that answers; `statement`: the digest of
/// its prepared statement's text.
pub(super) fn key(
    database: &str,
    caller: &Caller,
    request: &Request<'_>,
    statement: Option<&Key>,
) -> Key {
    let [user, user_name] = optional(caller.user.as_deref());
    let given = request.sure_keyspace(caller);
    let [keyspace, keyspace_name] = optional(given);
    let [before, behind] = request.question();
    digest([
        &MAGIC[..],
        database.as_bytes(),
        user,
        user_name,
        &[
            request.version() | u8::from(request.has_metadata_id()) << 7,
            request.opcode() as u8,
        ],
        keyspace,
        keyspace_name,
        statement.map_or(&[][..], |statement| statement),
        before,
        behind,
    ])
}

/// Seals a body for keeping.
pub(super) fn sealed(generation: &Generation, key: &Key, body: &[u8]) -> Vec<u8> {
    let length = (body.len() as u32).to_be_bytes();
    let seal = digest([&MAGIC[..], generation, key, body]);
    [&MAGIC[..], generation, key, &length, &seal, body].concat()
}

/// The outcome of opening what was kept.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Opened<'b> {
    /// A body that is still valid.
    Is(&'b [u8]),
    /// A body that a write has made old.
    Old,
    /// Nothing that was sealed for this key.
    Bad,
}

/// Opens what was kept.
pub(super) fn opened<'b>(kept: &'b [u8], generation: &Generation, key: &Key) -> Opened<'b> {
    let read = || {
        let (magic, rest) = kept.split_first_chunk::<4>()?;
        let (of, rest) = rest.split_first_chunk::<GENERATION_BYTES>()?;
        let (by, rest) = rest.split_first_chunk::<DIGEST_BYTES>()?;
        let (length, rest) = rest.split_first_chunk::<4>()?;
        let (seal, body) = rest.split_first_chunk::<DIGEST_BYTES>()?;
        let fits = u32::from_be_bytes(*length) as usize == body.len();
        let is_sealed = fits && *magic == MAGIC && by == key;
        (is_sealed && *seal == digest([&MAGIC[..], of, by, body])).then_some((of, body))
    };
    match read() {
        Some((of, body)) if of == generation => Opened::Is(body),
        Some(_) => Opened::Old,
        None => Opened::Bad,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_sealed_comes_out() {
        let (generation, key) = ([1; GENERATION_BYTES], [2; DIGEST_BYTES]);
        let whole = sealed(&generation, &key, b"rows");
        assert_eq!(whole.len(), ENVELOPE_BYTES + 4);
        assert_eq!(opened(&whole, &generation, &key), Opened::Is(b"rows"));
        assert_eq!(opened(&whole, &[3; 16], &key), Opened::Old);
        assert_eq!(opened(&whole, &generation, &[3; 32]), Opened::Bad);
        for at in 0..whole.len() {
            let mut other = whole.clone();
            other[at] ^= 1;
            assert_eq!(opened(&other, &generation, &key), Opened::Bad, "{at}");
            assert_eq!(opened(&whole[..at], &generation, &key), Opened::Bad, "{at}");
        }
        let longer = [&whole[..], b"x"].concat();
        assert_eq!(opened(&longer, &generation, &key), Opened::Bad);
    }

    #[test]
    fn parts_do_not_run_into_each_other() {
        let ab = digest([&b"a"[..], b"b"]);
        assert_ne!(ab, digest([&b"ab"[..]]));
        assert_ne!(ab, digest([&b"ab"[..], b""]));
        assert_ne!(digest(optional(None)), digest(optional(Some(""))));
    }
}
