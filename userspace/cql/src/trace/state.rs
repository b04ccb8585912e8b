//! W3C's `tracestate` (<https://www.w3.org/TR/trace-context/#tracestate-header>): what tracing systems have to tell each other
//! of a trace, as a list of keys and values.

/// The longest that is passed on, in bytes: as much as the standard asks of everybody.
pub const MAX_TRACE_STATE_BYTES: usize = 512;

/// Members of the list that the standard allows.
const MAX_MEMBERS: usize = 32;

/// The longest key without `@`, and the longest value.
const MAX_BYTES: usize = 256;

/// The longest part of a key before `@`; the part behind it is shorter.
const MAX_TENANT_BYTES: usize = 241;
const MAX_SYSTEM_BYTES: usize = 14;

/// A `tracestate` that is none, or is too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoTraceState;

/// A `tracestate`, without blanks around it; an empty one says nothing.
///
/// # Errors
/// It is not as the standard says, to the letter, or longer than [`MAX_TRACE_STATE_BYTES`].
pub fn trace_state(text: &[u8]) -> Result<&str, NoTraceState> {
    if text.len() > MAX_TRACE_STATE_BYTES {
        return Err(NoTraceState);
    }
    let whole = std::str::from_utf8(text).map_err(|_| NoTraceState)?;
    let whole = whole.trim_matches(BLANKS);
    let mut keys: Vec<&str> = Vec::new();
    for (number, member) in whole.split(',').enumerate() {
        let member = member.trim_matches(BLANKS);
        if number >= MAX_MEMBERS {
            return Err(NoTraceState);
        }
        if member.is_empty() {
            continue;
        }
        let (key, value) = member.split_once('=').ok_or(NoTraceState)?;
        if !is_key(key) || !is_value(value) || keys.contains(&key) {
            return Err(NoTraceState);
        }
        keys.push(key);
    }
    Ok(match keys.is_empty() {
        true => "",
        false => whole,
    })
}

/// Between members.
const BLANKS: [char; 2] = [' ', '\t'];

fn is_key(key: &str) -> bool {
    let is_name = |name: &str, most, may_begin: fn(u8) -> bool| {
        let mut bytes = name.bytes();
        name.len() <= most && bytes.next().is_some_and(may_begin) && bytes.all(is_of_key)
    };
    let is_letter = |byte: u8| byte.is_ascii_lowercase();
    match key.split_once('@') {
        None => is_name(key, MAX_BYTES, is_letter),
        Some((tenant, system)) => {
            is_name(tenant, MAX_TENANT_BYTES, |byte| {
                byte.is_ascii_lowercase() || byte.is_ascii_digit()
            }) && is_name(system, MAX_SYSTEM_BYTES, is_letter)
        }
    }
}

fn is_of_key(byte: u8) -> bool {
    byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_-*/".contains(&byte)
}

/// Whether `value` is one. A blank at its end has been taken away.
fn is_value(value: &str) -> bool {
    let is_plain = |byte: u8| (b' '..=b'~').contains(&byte) && byte != b'=';
    (1..=MAX_BYTES).contains(&value.len()) && !value.ends_with(' ') && value.bytes().all(is_plain)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_is_to_the_letter_is_passed_on() {
        let many: Vec<String> = (0..MAX_MEMBERS).map(|n| format!("k{n}=v")).collect();
        let long = format!("{}={}", "k".repeat(200), "v".repeat(256));
        for text in [
            "congo=t61rcWkgMzE",
            "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE",
            "a=1 , b=2,\t,c= 3",
            "fw529a3039@dt=FfAAEAAA!~ x",
            "0tenant@system=x",
            "a_-*/0=x",
            &many.join(","),
            &long,
        ] {
            assert_eq!(trace_state(text.as_bytes()), Ok(text));
        }
        assert_eq!(trace_state(b" a=1\t"), Ok("a=1"));
        for nothing in ["", " ", ",", " ,\t"] {
            assert_eq!(trace_state(nothing.as_bytes()), Ok(""));
        }
    }

    #[test]
    fn what_is_not_is_none() {
        let many: Vec<String> = (0..=MAX_MEMBERS).map(|n| format!("k{n}=v")).collect();
        for text in [
            "a",
            "=1",
            "a=",
            "a=1=2",
            "A=1",
            "0a=1",
            "a b=1",
            "a =1",
            "a=1;b=2\u{e9}",
            "a=\u{7f}",
            "a=1\n",
            "a=1,a=2",
            "@a=1",
            "a@=1",
            "a@0b=1",
            "a@b@c=1",
            "a@systemsystemxxx=1",
            &many.join(","),
            &format!("a={}", "v".repeat(MAX_BYTES + 1)),
            &format!("{}=v", "k".repeat(MAX_BYTES + 1)),
            &format!("a={},b={}", "v".repeat(255), "v".repeat(253)),
        ] {
            assert_eq!(trace_state(text.as_bytes()), Err(NoTraceState), "{text}");
        }
        assert!(trace_state(&[b'a', b'=', 0xFF]).is_err());
        let most = format!("a={},b={}", "v".repeat(255), "v".repeat(252));
        assert_eq!(most.len(), MAX_TRACE_STATE_BYTES);
        assert!(trace_state(most.as_bytes()).is_ok());
    }

    proptest! {
        #[test]
        fn nothing_makes_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
            let _ = trace_state(&bytes);
        }

        #[test]
        fn what_is_passed_on_is_one_again(text in "[a-c@=, \t0]{0,40}") {
            if let Ok(state) = trace_state(text.as_bytes()) {
                prop_assert_eq!(trace_state(state.as_bytes()), Ok(state));
            }
        }
    }
}
