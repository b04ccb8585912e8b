//! LZ4 and Snappy: bodies (v3 and v4) and the payloads of segments (v5), as a flow has negotiated.
//!
//! What something is declared to become is a limit, checked before anything is made of it. The decoder
//! makes no more of a body than it reads: [`beginning`], over `prefix`. Whatever is needed whole is left
//! to the crates, which cannot stop on the way.

mod prefix;
mod recognised;

pub(crate) use recognised::Recognised;

use std::borrow::Cow;

use crate::fact::Fact;
use crate::wire::compression::Compression;
use crate::wire::header::MAX_BODY_BYTES;

/// The largest body that is made of a compressed one, and the largest that is kept back to be seen: twice
/// what Cassandra takes by default (`native_transport_max_frame_size`).
pub const MAX_SEEN_BYTES: usize = 32 << 20;

/// LZ4 in bodies: four bytes of length, big endian, and a block.
const LZ4_LENGTH_BYTES: usize = 4;

/// The most bytes that a byte of an LZ4 block can become: a length goes on with a byte for each 255.
const LZ4_MOST: usize = 255;

/// The most bytes that a byte of a Snappy block can become: 64 bytes that were there before take three.
const SNAPPY_MOST: usize = 22;

/// A body as it was before compression. `None`: it is none, or too large. What cannot become as much as it says is not a
/// reason to make room for that.
pub fn expand(compression: Compression, body: &[u8]) -> Option<Cow<'_, [u8]>> {
    expand_to(compression, body, MAX_SEEN_BYTES)
}

/// Expands a body to at most `most` bytes; a longer one is too large.
pub fn expand_to(compression: Compression, body: &[u8], most: usize) -> Option<Cow<'_, [u8]>> {
    let mut expanded = Vec::new();
    expand_into(compression, body, most, &mut expanded)?;
    Some(Cow::Owned(expanded))
}

/// Expands a body into a buffer that may have been used before.
pub fn expand_into(
    compression: Compression,
    body: &[u8],
    most: usize,
    to: &mut Vec<u8>,
) -> Option<()> {
    match compression {
        Compression::None => None,
        Compression::Lz4 => {
            let (length, block) = lz4_length(body)?;
            if length > most.min(block.len().saturating_mul(LZ4_MOST)) {
                return None;
            }
            make_zeros(to, length);
            expand_block(block, to)
        }
        Compression::Snappy => {
            let length = snap::raw::decompress_len(body).ok()?;
            if length > most.min(body.len().saturating_mul(SNAPPY_MOST)) {
                return None;
            }
            make_zeros(to, length);
            let written = snap::raw::Decoder::new().decompress(body, to).ok()?;
            (written == length).then_some(())
        }
    }
}

/// A new buffer has them from the system, without their being written.
fn make_zeros(buffer: &mut Vec<u8>, length: usize) {
    if buffer.capacity() < length {
        *buffer = vec![0; length];
        return;
    }
    buffer.clear();
    buffer.resize(length, 0);
}

/// A body as it is sent where that was agreed on. `None`: it cannot be compressed.
pub fn shrink(compression: Compression, body: &[u8]) -> Option<Vec<u8>> {
    match compression {
        Compression::None => None,
        Compression::Lz4 => {
            let length = u32::try_from(body.len()).ok()?;
            Some([&length.to_be_bytes()[..], &shrink_to_block(body)].concat())
        }
        Compression::Snappy => snap::raw::Encoder::new().compress_vec(body).ok(),
    }
}

/// An LZ4 block that has to fill `expanded`.
pub(crate) fn expand_block(block: &[u8], expanded: &mut [u8]) -> Option<()> {
    let written = lz4_flex::block::decompress_into(block, expanded).ok()?;
    (written == expanded.len()).then_some(())
}

/// Compresses `plain` to an LZ4 block.
pub(crate) fn shrink_to_block(plain: &[u8]) -> Vec<u8> {
    lz4_flex::block::compress(plain)
}

/// How much of a compressed body of `length` bytes is enough for `wanted` bytes of it, if it was
/// compressed by one who meant to make it smaller.
///
/// What Snappy's worst is (`snap::raw::max_compress_len`), LZ4's being a 255th; and in front of literals that
/// cannot be made smaller, LZ4 says how many there are, with a byte for each 255 of them. Of bodies larger
/// than [`MAX_SEEN_BYTES`] not all of that is collected.
pub(crate) const fn enough_for(wanted: usize, length: usize) -> usize {
    let seen = match length < MAX_SEEN_BYTES {
        true => length,
        false => MAX_SEEN_BYTES,
    };
    match wanted {
        0 => 0,
        _ => wanted + wanted / 6 + 32 + seen / 255,
    }
}

/// The beginning of a body: as many bytes of it as are `wanted`, or as `carried` is enough for, in
/// `plain`. Gives how long it is as a whole. `is_whole`: `carried` is all of it.
///
/// `None`: it is not what it says, or nobody knows how it is compressed.
pub(crate) fn beginning(
    compression: &Fact<Compression>,
    carried: &[u8],
    is_whole: bool,
    wanted: usize,
    plain: &mut Vec<u8>,
) -> Option<u32> {
    plain.clear();
    let (length, rest) = match compression {
        Fact::Is(Compression::Lz4) => lz4_length(carried)?,
        Fact::Is(Compression::Snappy) => prefix::snappy_length(carried)?,
        _ => return None,
    };
    if length > MAX_BODY_BYTES as usize {
        return None;
    }
    let limit = wanted.min(length);
    plain.reserve_exact(limit);
    let left = match compression {
        Fact::Is(Compression::Lz4) => prefix::lz4(rest, limit, plain)?,
        _ => prefix::snappy(rest, limit, plain)?,
    };
    // LZ4 says with a byte that there is nothing.
    let has_ended = left <= usize::from(length == 0);
    let fits = match limit == length {
        true => plain.len() == limit && has_ended,
        false => plain.len() == limit,
    };
    (fits || !is_whole).then_some(length as u32)
}

fn lz4_length(body: &[u8]) -> Option<(usize, &[u8])> {
    let (length, block) = body.split_first_chunk::<LZ4_LENGTH_BYTES>()?;
    Some((u32::from_be_bytes(*length) as usize, block))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BOTH: [Compression; 2] = [Compression::Lz4, Compression::Snappy];

    /// Bodies of few values, so that there is something to compress.
    fn body() -> impl Strategy<Value = Vec<u8>> {
        let run = (
            any::<u8>(),
            prop_oneof![8 => 1..20_usize, 1 => 20..3000_usize],
        );
        prop_oneof![
            prop::collection::vec(any::<u8>(), 0..2000),
            prop::collection::vec(0..4_u8, 0..5000),
            prop::collection::vec(run, 0..60).prop_map(|runs| {
                let run = |(byte, n)| std::iter::repeat_n(byte, n);
                runs.into_iter().flat_map(run).collect()
            }),
        ]
    }

    proptest! {
        #[test]
        fn what_was_shrunk_comes_back(body in body()) {
            for compression in BOTH {
                let shrunk = shrink(compression, &body).unwrap();
                prop_assert_eq!(&*expand(compression, &shrunk).unwrap(), &body);
            }
        }

        #[test]
        fn noise_is_refused_or_expanded(noise: Vec<u8>) {
            for compression in [Compression::None, Compression::Lz4, Compression::Snappy] {
                let expanded = expand(compression, &noise);
                prop_assert!(expanded.is_none_or(|e| e.len() <= MAX_SEEN_BYTES));
            }
        }

        #[test]
        fn enough_of_what_was_shrunk_begins_as_it_did(body in body(), wanted in 0..4000_usize) {
            for compression in BOTH {
                let shrunk = shrink(compression, &body).unwrap();
                let carried = &shrunk[..enough_for(wanted.max(1), shrunk.len()).min(shrunk.len())];
                let is_whole = carried.len() == shrunk.len();
                let mut plain = vec![9; 9];
                let agreed = Fact::Is(compression);
                let length = beginning(&agreed, carried, is_whole, wanted, &mut plain);
                prop_assert_eq!(length, Some(body.len() as u32));
                prop_assert_eq!(&plain, &body[..wanted.min(body.len())]);
            }
        }

        /// Ours and the crates' take the same for a body, and make the same of it.
        #[test]
        fn what_was_damaged_is_refused_or_expanded_by_both(
            body in body(),
            damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        ) {
            for compression in BOTH {
                let mut shrunk = shrink(compression, &body).unwrap();
                for (at, byte) in &damage {
                    let at = at.index(shrunk.len());
                    shrunk[at] = *byte;
                }
                let mut plain = Vec::new();
                let length = beginning(&Fact::Is(compression), &shrunk, true, 1 << 20, &mut plain);
                if let Some(expanded) = expand(compression, &shrunk)
                    && expanded.len() <= 1 << 20
                {
                    prop_assert_eq!(length, Some(expanded.len() as u32));
                    prop_assert_eq!(&plain, &*expanded);
                }
                prop_assert!(plain.len() <= 1 << 20);
            }
        }

        #[test]
        fn noise_has_no_beginning_beyond_what_is_wanted(noise: Vec<u8>, wanted in 0..300_usize) {
            for compression in BOTH {
                for is_whole in [false, true] {
                    let mut plain = Vec::new();
                    let length =
                        beginning(&Fact::Is(compression), &noise, is_whole, wanted, &mut plain);
                    prop_assert!(plain.len() <= wanted);
                    prop_assert!(length.is_none_or(|length| plain.len() <= length as usize));
                }
            }
        }
    }

    #[test]
    fn a_bomb_is_refused_by_what_it_declares() {
        let mut bomb = vec![0x7F, 0xFF, 0xFF, 0xFF];
        bomb.extend(shrink_to_block(&[0; 1000]));
        // A varint: 4 GiB less one.
        let other = [0xFF, 0xFF, 0xFF, 0xFF, 0x0F, 0];
        for (compression, bomb) in [
            (Compression::Lz4, &bomb[..]),
            (Compression::Snappy, &other[..]),
        ] {
            assert!(expand(compression, bomb).is_none());
            let mut plain = Vec::new();
            let agreed = Fact::Is(compression);
            assert_eq!(beginning(&agreed, bomb, false, 512, &mut plain), None);
            assert_eq!(plain.capacity(), 0);
        }
    }

    /// 256 MiB of zeros in one MiB, of which nobody wants more than 64 KiB.
    #[test]
    fn of_a_bomb_no_more_is_made_than_is_wanted() {
        let mut bomb = MAX_BODY_BYTES.to_be_bytes().to_vec();
        bomb.extend([0x1F, 0, 1, 0]);
        bomb.extend(vec![0xFF; 1 << 20]);
        let mut plain = Vec::new();
        let carried = &bomb[..enough_for(64 << 10, bomb.len())];
        let length = beginning(
            &Fact::Is(Compression::Lz4),
            carried,
            false,
            64 << 10,
            &mut plain,
        );
        assert_eq!(length, Some(MAX_BODY_BYTES));
        // How long the run of zeros is, is not said in that part.
        assert_eq!(plain, [0]);
        bomb[4 + 100] = 0;
        let length = beginning(
            &Fact::Is(Compression::Lz4),
            &bomb,
            false,
            64 << 10,
            &mut plain,
        );
        assert_eq!(length, Some(MAX_BODY_BYTES));
        assert_eq!((plain.len(), plain.capacity()), (24_500, 64 << 10));
    }

    /// A body that cannot be made smaller is one run of literals, with its length in front.
    #[test]
    fn enough_of_a_large_body_is_enough() {
        let mut noise = 1_u64;
        let noise = std::iter::repeat_with(|| {
            noise = noise
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (noise >> 56) as u8
        });
        let body: Vec<u8> = noise.take(17 << 20).collect();
        for compression in BOTH {
            let shrunk = shrink(compression, &body).unwrap();
            let carried = &shrunk[..enough_for(512, shrunk.len())];
            let mut plain = Vec::new();
            let length = beginning(&Fact::Is(compression), carried, false, 512, &mut plain);
            assert_eq!(length, Some(17 << 20));
            assert_eq!(plain, &body[..512]);
        }
    }

    #[test]
    fn a_length_that_is_not_the_true_one_is_refused() {
        let mut shrunk = shrink(Compression::Lz4, b"some body").unwrap();
        shrunk[3] += 1;
        assert!(expand(Compression::Lz4, &shrunk).is_none());
        let begins = |shrunk: &[u8]| {
            let agreed = Fact::Is(Compression::Lz4);
            beginning(&agreed, shrunk, true, 512, &mut Vec::new())
        };
        assert_eq!(begins(&shrunk), None);
        shrunk[3] -= 2;
        assert!(expand(Compression::Lz4, &shrunk).is_none());
    }

    #[test]
    fn what_was_not_agreed_on_is_not_guessed() {
        let shrunk = shrink(Compression::Lz4, b"some body").unwrap();
        for agreed in [Fact::Open, Fact::Absent, Fact::Is(Compression::None)] {
            assert_eq!(
                beginning(&agreed, &shrunk, true, 512, &mut Vec::new()),
                None
            );
        }
    }
}
