//! Bytes that are known by their place. Tests send and compare gigabytes of them, and this crate is built with
//! optimisation.

/// Bytes of a word.
const WORD: usize = 8;

/// Returns `bytes` bytes of a stream, from its byte `from` on. Any eight in a row are elsewhere others.
pub fn pattern(from: usize, bytes: usize) -> Vec<u8> {
    let ahead = from % WORD;
    let mut pattern = Vec::with_capacity(ahead + bytes + WORD);
    let mut at = from / WORD;
    while pattern.len() < ahead + bytes {
        let word = (at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        pattern.extend_from_slice(&word.to_le_bytes());
        at += 1;
    }
    pattern.drain(..ahead);
    pattern.truncate(bytes);
    pattern
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_that_of_the_whole() {
        let whole = pattern(0, 100);
        for from in 0..20 {
            assert_eq!(pattern(from, 70), whole[from..from + 70]);
        }
        assert!(pattern(3, 0).is_empty());
    }
}
