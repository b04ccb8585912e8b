//! The beginning of what was compressed, from the beginning of what it became.
//!
//! Both formats copy from what they have made so far, so that as much can be made as there is, and no
//! more than is wanted. Each function appends to `plain` until that has `limit` bytes or the input has
//! ended, perhaps in the middle of a word, and gives how much of the input is left; `None`: no input goes
//! on like that.

use crate::wire::cursor::Cursor;

/// A block (`lz4_Block_format.md`): runs of a token, literals, and a copy.
pub(super) fn lz4(block: &[u8], limit: usize, plain: &mut Vec<u8>) -> Option<usize> {
    const SHORTEST_COPY: usize = 4;
    let mut input = Cursor::new(block);
    while plain.len() < limit {
        let Some(token) = input.byte() else { break };
        let Some(literals) = lz4_number(token >> 4, &mut input) else {
            break;
        };
        if !take(&mut input, literals, limit, plain) {
            break;
        }
        // The last run has no copy.
        let Some(offset) = little_endian(&mut input, 2) else {
            break;
        };
        let Some(length) = lz4_number(token & 0x0F, &mut input) else {
            break;
        };
        copy(offset, length.saturating_add(SHORTEST_COPY), limit, plain)?;
    }
    Some(input.rest().len())
}

/// Four bits; if they are full, bytes are added until one is not.
fn lz4_number(bits: u8, input: &mut Cursor<'_>) -> Option<usize> {
    let mut number = usize::from(bits);
    if bits < 0x0F {
        return Some(number);
    }
    loop {
        let byte = input.byte()?;
        number = number.saturating_add(byte.into());
        if byte < 0xFF {
            return Some(number);
        }
    }
}

/// How long it becomes, and what stands behind that (`format_description.txt` §1): seven bits to a
/// byte, the lowest first.
pub(super) fn snappy_length(body: &[u8]) -> Option<(usize, &[u8])> {
    let mut input = Cursor::new(body);
    let mut length = 0_u64;
    for shift in [0, 7, 14, 21, 28] {
        let byte = input.byte()?;
        length |= u64::from(byte & 0x7F) << shift;
        if byte & 0x80 == 0 {
            let length = u32::try_from(length).ok()?;
            return Some((length as usize, input.rest()));
        }
    }
    None
}

/// Expands the elements behind Snappy's length (§2): literals and copies, each with a tag.
pub(super) fn snappy(elements: &[u8], limit: usize, plain: &mut Vec<u8>) -> Option<usize> {
    let mut input = Cursor::new(elements);
    while plain.len() < limit {
        let Some(tag) = input.byte() else { break };
        let upper = usize::from(tag >> 2);
        let copied = match tag & 0x03 {
            0 => {
                let length = match upper {
                    0..60 => Some(upper),
                    _ => little_endian(&mut input, upper - 59),
                };
                match length {
                    Some(length) if take(&mut input, length.saturating_add(1), limit, plain) => {
                        continue;
                    }
                    _ => break,
                }
            }
            1 => little_endian(&mut input, 1)
                .map(|low| ((upper >> 3) << 8 | low, 4 + (upper & 0x07))),
            2 => little_endian(&mut input, 2).map(|offset| (offset, 1 + upper)),
            _ => little_endian(&mut input, 4).map(|offset| (offset, 1 + upper)),
        };
        let Some((offset, length)) = copied else {
            break;
        };
        copy(offset, length, limit, plain)?;
    }
    Some(input.rest().len())
}

/// A number of so many bytes, at most four.
fn little_endian(input: &mut Cursor<'_>, bytes: usize) -> Option<usize> {
    let bytes = input.take(bytes)?.iter().rev();
    Some(bytes.fold(0, |number, byte| number << 8 | usize::from(*byte)))
}

/// The next bytes of the input; false when they end it, or are more than that.
fn take(input: &mut Cursor<'_>, length: usize, limit: usize, plain: &mut Vec<u8>) -> bool {
    let there = input.rest().len().min(limit.saturating_sub(plain.len()));
    let Some(literals) = input.take(length.min(there)) else {
        return false;
    };
    plain.extend_from_slice(literals);
    literals.len() == length
}

/// Repeats bytes that were made `offset` bytes ago; the copy may reach into its own output.
fn copy(offset: usize, length: usize, limit: usize, plain: &mut Vec<u8>) -> Option<()> {
    if offset == 0 {
        return None;
    }
    let from = plain.len().checked_sub(offset)?;
    let mut left = length.min(limit.saturating_sub(plain.len()));
    while left > 0 {
        // What is there repeats itself: each turn has twice as much of it.
        let turn = left.min(plain.len() - from);
        plain.extend_from_within(from..from + turn);
        left -= turn;
    }
    Some(())
}
