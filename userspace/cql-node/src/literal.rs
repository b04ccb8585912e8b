//! Constants in a statement's text to values of a column's type.

use std::net::IpAddr;

use super::ast::{Function, Term};
use super::body::{put_bytes, put_count};
use super::failure::{Failure, Result};
use super::lexer::parse_uuid;
use super::moment::{date, now_ms, random_uuid, time_ns, time_uuid, timestamp_ms};
use super::types::{CqlType, Native};

/// Digits of a varint or decimal constant: reading them takes quadratic time.
const MAX_DIGITS: usize = 1000;

/// Appends the value of a constant term. Null and markers are the caller's to handle; inside
/// a collection they are refused.
pub(super) fn encode(term: &Term, cql_type: &CqlType, out: &mut Vec<u8>) -> Result<()> {
    match (cql_type, term) {
        (CqlType::Frozen(inner), _) => encode(term, inner, out),
        (CqlType::Native(native), _) => encode_native(term, *native, out),
        (CqlType::List(e), Term::List(items)) => {
            put_count(out, items.len());
            items.iter().try_for_each(|item| element(item, e, out))
        }
        (CqlType::Set(e), Term::Set(items)) => {
            sorted(items.iter().map(|i| (i, None)), e, None, out)
        }
        (CqlType::Map(k, v), Term::Map(pairs)) => {
            sorted(pairs.iter().map(|(k, v)| (k, Some(v))), k, Some(v), out)
        }
        (CqlType::Map(..), Term::Set(items)) if items.is_empty() => {
            put_count(out, 0);
            Ok(())
        }
        (CqlType::Tuple(types), Term::Tuple(items)) if items.len() <= types.len() => types
            .iter()
            .zip(items)
            .try_for_each(|(t, item)| match item {
                Term::Null => {
                    put_bytes(out, None);
                    Ok(())
                }
                item => element(item, t, out),
            }),
        _ => Err(mismatch(cql_type)),
    }
}

fn mismatch(cql_type: &CqlType) -> Failure {
    Failure::invalid(format!("Invalid constant for a value of type {cql_type}"))
}

fn element(term: &Term, cql_type: &CqlType, out: &mut Vec<u8>) -> Result<()> {
    let mut value = Vec::new();
    match term {
        Term::Null => return Err(Failure::invalid("null is not supported inside collections")),
        Term::Marker(..) => {
            return Err(Failure::invalid(
                "bind markers inside collections are not supported",
            ));
        }
        _ => encode(term, cql_type, &mut value)?,
    }
    put_bytes(out, Some(&value));
    Ok(())
}

/// Sets and maps: each key once, in the order of the keys' type, as the server sends them.
fn sorted<'t>(
    items: impl Iterator<Item = (&'t Term, Option<&'t Term>)>,
    key_type: &CqlType,
    value_type: Option<&CqlType>,
    out: &mut Vec<u8>,
) -> Result<()> {
    let mut entries = std::collections::BTreeMap::new();
    for (key, value) in items {
        let (mut raw, mut order, mut entry) = (Vec::new(), Vec::new(), Vec::new());
        element(key, key_type, &mut entry)?;
        encode(key, key_type, &mut raw)?;
        super::ordered::put(key_type, &raw, false, &mut order);
        if let (Some(value), Some(value_type)) = (value, value_type) {
            element(value, value_type, &mut entry)?;
        }
        entries.insert(order, entry);
    }
    put_count(out, entries.len());
    entries
        .values()
        .for_each(|entry| out.extend_from_slice(entry));
    Ok(())
}

fn encode_native(term: &Term, native: Native, out: &mut Vec<u8>) -> Result<()> {
    let wrong = || mismatch(&CqlType::Native(native));
    match (native, term) {
        (Native::Text, Term::Text(s)) => out.extend_from_slice(s.as_bytes()),
        (Native::Ascii, Term::Text(s)) if s.is_ascii() => out.extend_from_slice(s.as_bytes()),
        (Native::Blob, Term::Blob(b)) => out.extend_from_slice(b),
        (Native::Boolean, Term::Bool(b)) => out.push((*b).into()),
        (Native::Bigint | Native::Counter, Term::Number(n)) => {
            put(out, &parse::<i64>(n, native)?.to_be_bytes())
        }
        (Native::Int, Term::Number(n)) => put(out, &parse::<i32>(n, native)?.to_be_bytes()),
        (Native::Smallint, Term::Number(n)) => put(out, &parse::<i16>(n, native)?.to_be_bytes()),
        (Native::Tinyint, Term::Number(n)) => put(out, &parse::<i8>(n, native)?.to_be_bytes()),
        (Native::Float, Term::Number(n)) => put(out, &parse::<f32>(n, native)?.to_be_bytes()),
        (Native::Double, Term::Number(n)) => put(out, &parse::<f64>(n, native)?.to_be_bytes()),
        (Native::Varint, Term::Number(n)) => put(out, &varint(n).ok_or_else(wrong)?),
        (Native::Decimal, Term::Number(n)) => put(out, &decimal(n).ok_or_else(wrong)?),
        (Native::Uuid | Native::Timeuuid, Term::Uuid(id)) => put(out, id),
        (Native::Uuid | Native::Timeuuid, Term::Text(s)) => {
            put(out, &parse_uuid(s).ok_or_else(wrong)?)
        }
        (Native::Uuid, Term::Function(Function::Uuid)) => put(out, &random_uuid()),
        (Native::Uuid | Native::Timeuuid, Term::Function(Function::Now)) => put(out, &time_uuid()),
        (Native::Timestamp, Term::Function(Function::Timestamp)) => {
            put(out, &now_ms().to_be_bytes())
        }
        (Native::Timestamp, Term::Number(n)) => put(out, &parse::<i64>(n, native)?.to_be_bytes()),
        (Native::Timestamp, Term::Text(s)) => {
            put(out, &timestamp_ms(s).ok_or_else(wrong)?.to_be_bytes())
        }
        (Native::Date, Term::Number(n)) => put(out, &parse::<u32>(n, native)?.to_be_bytes()),
        (Native::Date, Term::Text(s)) => put(out, &date(s).ok_or_else(wrong)?.to_be_bytes()),
        (Native::Time, Term::Number(n)) => put(out, &parse::<i64>(n, native)?.to_be_bytes()),
        (Native::Time, Term::Text(s)) => put(out, &time_ns(s).ok_or_else(wrong)?.to_be_bytes()),
        (Native::Inet, Term::Text(s)) => put_ip(out, s.parse().map_err(|_| wrong())?),
        _ => return Err(wrong()),
    }
    Ok(())
}

fn put(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(bytes);
}

/// An address as the inet type stores it.
pub(super) fn put_ip(out: &mut Vec<u8>, ip: IpAddr) {
    match ip {
        IpAddr::V4(ip) => put(out, &ip.octets()),
        IpAddr::V6(ip) => put(out, &ip.octets()),
    }
}

fn parse<T: std::str::FromStr>(number: &str, native: Native) -> Result<T> {
    number.parse().map_err(|_| {
        Failure::invalid(format!(
            "Unable to make {} from '{number}'",
            CqlType::Native(native)
        ))
    })
}

/// The shortest two's complement, big-endian form of a decimal integer.
fn varint(digits: &str) -> Option<Vec<u8>> {
    let (negative, digits) = match digits.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, digits),
    };
    if digits.is_empty() || digits.len() > MAX_DIGITS {
        return None;
    }
    // Magnitude, lowest byte first.
    let mut bytes: Vec<u8> = vec![0];
    for c in digits.chars() {
        let mut carry = c.to_digit(10)?;
        for b in &mut bytes {
            carry += u32::from(*b) * 10;
            *b = carry.to_le_bytes()[0];
            carry >>= 8;
        }
        if carry > 0 {
            bytes.push(carry.to_le_bytes()[0]);
        }
    }
    bytes.push(0);
    if negative {
        let mut carry = true;
        for b in &mut bytes {
            (*b, carry) = (!*b).overflowing_add(carry.into());
        }
    }
    let redundant = |b: &[u8]| {
        matches!(b, [.., next, 0] if next & 0x80 == 0)
            || matches!(b, [.., next, 0xff] if next & 0x80 != 0)
    };
    while redundant(&bytes) {
        bytes.pop();
    }
    bytes.reverse();
    Some(bytes)
}

/// `[int]` scale, then the unscaled varint.
fn decimal(number: &str) -> Option<Vec<u8>> {
    let (mantissa, exponent) = number.split_once(['e', 'E']).unwrap_or((number, "0"));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let exponent: i32 = exponent.parse().ok()?;
    let scale = i32::try_from(fraction.len()).ok()?.checked_sub(exponent)?;
    let mut out = scale.to_be_bytes().to_vec();
    out.extend(varint(&format!("{whole}{fraction}"))?);
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn varints_are_the_shortest() {
        for (text, bytes) in [
            ("0", &[0][..]),
            ("127", &[127]),
            ("128", &[0, 128]),
            ("-1", &[255]),
            ("-128", &[128]),
            ("-129", &[255, 127]),
            ("65536", &[1, 0, 0]),
            ("18446744073709551616", &[1, 0, 0, 0, 0, 0, 0, 0, 0]),
        ] {
            assert_eq!(varint(text).unwrap(), bytes, "{text}");
        }
        assert_eq!(decimal("-1.50").unwrap(), [0, 0, 0, 2, 0xff, 0x6a]);
        assert_eq!(decimal("1e3").unwrap(), [0xff, 0xff, 0xff, 0xfd, 1]);
    }
}
