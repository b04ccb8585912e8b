//! Key components to bytes whose order, byte by byte, is the order of the values.
//!
//! A row's key is its components one after the other; each is self-delimiting, so that a
//! partition is a range of keys and a point look-up one comparison of bytes.

use super::types::{CqlType, Native};

/// Appends the component, its order inverted when `descending`. The value has passed
/// [`CqlType::check`]; one that is empty sorts first.
pub(super) fn put(cql_type: &CqlType, value: &[u8], descending: bool, out: &mut Vec<u8>) {
    let at = out.len();
    match cql_type.native() {
        Some(
            Native::Int
            | Native::Bigint
            | Native::Smallint
            | Native::Tinyint
            | Native::Timestamp
            | Native::Counter,
        ) => put_fixed(value, flip_sign, out),
        Some(Native::Float | Native::Double) => put_fixed(value, order_float, out),
        Some(Native::Uuid | Native::Timeuuid) => put_fixed(value, order_uuid, out),
        Some(Native::Boolean | Native::Date | Native::Time) => put_fixed(value, |_| {}, out),
        Some(Native::Varint) => put_varint(value, out),
        // Decimals and inets in the order of their bytes, which is stable and enough here.
        _ => put_escaped(value, out),
    }
    if descending {
        out.iter_mut().skip(at).for_each(|b| *b = !*b);
    }
}

/// 1 and the transformed bytes, or 0 for an empty value.
fn put_fixed(value: &[u8], transform: impl Fn(&mut [u8]), out: &mut Vec<u8>) {
    out.push(u8::from(!value.is_empty()));
    let at = out.len();
    out.extend_from_slice(value);
    if let Some(copy) = out.get_mut(at..) {
        transform(copy);
    }
}

fn flip_sign(bytes: &mut [u8]) {
    if let Some(b) = bytes.first_mut() {
        *b ^= 0x80;
    }
}

/// Negative floats have all bits inverted, positive ones the sign.
fn order_float(bytes: &mut [u8]) {
    if bytes.first().is_some_and(|b| b & 0x80 != 0) {
        bytes.iter_mut().for_each(|b| *b = !*b);
    } else {
        flip_sign(bytes);
    }
}

/// By version; version 1 by time, which its bytes hold lowest part first.
fn order_uuid(bytes: &mut [u8]) {
    if let Some(head) = bytes.first_chunk_mut::<8>()
        && let &mut [l0, l1, l2, l3, m0, m1, h0, h1] = head
        && h0 >> 4 == 1
    {
        *head = [h0, h1, m0, m1, l0, l1, l2, l3];
    } else if let Some(id) = bytes.first_chunk_mut::<16>() {
        // The version first, so that versions do not interleave.
        let value = u128::from_be_bytes(*id);
        let version = (value >> 76) & 0xf;
        let above = (value >> 80) << 76;
        let below = value & ((1 << 76) - 1);
        *id = (version << 124 | above | below).to_be_bytes();
    }
}

/// A byte for sign and length, then the magnitude's bytes.
fn put_varint(value: &[u8], out: &mut Vec<u8>) {
    let negative = value.first().is_some_and(|b| b & 0x80 != 0);
    let sign = if negative { 0xff } else { 0 };
    let skipped = value.iter().take_while(|b| **b == sign).count();
    let significant = value.get(skipped..).unwrap_or_default();
    // Longer is further from zero. Past 65,535 bytes a value cannot be a key anyway.
    let len = u16::try_from(significant.len()).unwrap_or(u16::MAX);
    out.push(if value.is_empty() {
        0
    } else {
        2 - u8::from(negative)
    });
    out.extend_from_slice(&(if negative { !len } else { len }).to_be_bytes());
    out.extend_from_slice(significant);
}

/// Zero bytes become `00 ff`; `00 00` ends the value.
fn put_escaped(value: &[u8], out: &mut Vec<u8>) {
    for &b in value {
        out.push(b);
        if b == 0 {
            out.push(0xff);
        }
    }
    out.extend_from_slice(&[0, 0]);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(native: Native, value: &[u8], descending: bool) -> Vec<u8> {
        let mut out = Vec::new();
        put(&CqlType::Native(native), value, descending, &mut out);
        out
    }

    fn assert_ascending(native: Native, values: &[&[u8]]) {
        for pair in values.windows(2) {
            assert!(
                key(native, pair[0], false) < key(native, pair[1], false),
                "{pair:?}"
            );
            assert!(
                key(native, pair[0], true) > key(native, pair[1], true),
                "{pair:?}"
            );
        }
    }

    #[test]
    fn order_of_bytes_is_order_of_values() {
        let ints = [i32::MIN, -5, -1, 0, 1, 300, i32::MAX].map(i32::to_be_bytes);
        assert_ascending(Native::Int, &ints.each_ref().map(|v| &v[..]));
        let doubles =
            [f64::NEG_INFINITY, -2.5, -0.0, 0.0, 1e-9, 3.0, f64::INFINITY].map(f64::to_be_bytes);
        assert_ascending(Native::Double, &doubles.each_ref().map(|v| &v[..]));
        assert_ascending(
            Native::Text,
            &[b"", b"\0", b"\0a", b"a", b"a\0", b"a\0b", b"aa", b"b"],
        );
        assert_ascending(
            Native::Varint,
            &[
                &[0x80, 0],
                &[0xff, 0x7f],
                &[0x80],
                &[0xff],
                &[0],
                &[1],
                &[0x7f],
                &[0, 0x80],
                &[1, 0, 0],
            ],
        );
    }

    #[test]
    fn components_are_self_delimiting() {
        let join = |a: &[u8], b: &[u8]| {
            [key(Native::Text, a, false), key(Native::Text, b, false)].concat()
        };
        assert!(join(b"a", b"zz") < join(b"aa", b"b"));
        assert_ne!(join(b"ab", b"c"), join(b"a", b"bc"));
    }

    #[test]
    fn uuids_stay_distinct() {
        let a = 0x123e4567_e89b_42d3_a456_426614174000_u128;
        for bit in 0..128 {
            let b = (a ^ (1 << bit)).to_be_bytes();
            assert_ne!(
                key(Native::Uuid, &a.to_be_bytes(), false),
                key(Native::Uuid, &b, false),
                "bit {bit}"
            );
        }
    }
}
