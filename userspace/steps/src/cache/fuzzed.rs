//! Any bytes as replies of Redis, and as what was kept there.

use super::{
    envelope::{GENERATION_BYTES, Opened, opened, sealed},
    resp::{Reply, next},
};

/// Bytes at both ends of a reply, at which it is cut.
const CUTS: usize = 24;

/// Replies are the same however they are cut, and no longer than was asked for. Only what was sealed is given.
pub fn resp(data: &[u8]) {
    let Some((first, said)) = data.split_first() else {
        return;
    };
    let longest = usize::from(*first) * 16;
    let mut rest = said;
    while let Ok(Some((reply, length))) = next(rest, longest) {
        if let Reply::Bytes(bytes) = reply {
            assert!(bytes.len() <= longest);
            kept(bytes);
        }
        assert!(length > 0);
        let (whole, behind) = rest.split_at(length);
        assert_eq!(next(whole, longest), Ok(Some((reply, length))));
        let ends = (0..CUTS.min(length)).chain(length.saturating_sub(CUTS)..length);
        for end in ends {
            let (cut, _) = whole.split_at(end);
            assert_eq!(next(cut, longest), Ok(None));
        }
        rest = behind;
    }
    kept(said);
}

fn kept(bytes: &[u8]) {
    let (generation, key) = ([1; GENERATION_BYTES], [2; 32]);
    assert_eq!(opened(bytes, &generation, &key), Opened::Bad);
    let whole = sealed(&generation, &key, bytes);
    assert_eq!(opened(&whole, &generation, &key), Opened::Is(bytes));
    for at in [bytes.len() % whole.len(), whole.len() - 1] {
        let mut other = whole.clone();
        if let Some(byte) = other.get_mut(at) {
            *byte ^= 1 << (bytes.len() % 8);
        }
        assert_eq!(opened(&other, &generation, &key), Opened::Bad);
    }
}
