//! W3C trace context, as a client puts it into a request's custom payload (v4 and later): `traceparent`
//! (<https://www.w3.org/TR/trace-context/#traceparent-header>) and `tracestate`, by the names that HTTP has for them.

use crate::trace::state::{NoTraceState, trace_state};
use crate::wire::cursor::Cursor;

/// Keys in the custom payload.
const PARENT: &[u8] = b"traceparent";
const STATE: &[u8] = b"tracestate";

/// A version that no text may have.
const NO_VERSION: u8 = 0xFF;

/// The trace that a request is a part of, and the span that it is a child of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceContext {
    /// The trace's id, never all zero.
    pub trace_id: [u8; 16],
    /// The parent span's id, never all zero.
    pub parent_id: [u8; 8],
    /// The flags as sent; only [`Self::is_sampled`] means anything in every version.
    pub flags: u8,
}

/// A `traceparent` that is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoTraceContext;

impl TraceContext {
    /// Parses a `traceparent`. One of a later version is read as far as this version goes, as the
    /// standard asks.
    ///
    /// # Errors
    /// It is not as the standard says, to the letter.
    pub fn parse(text: &[u8]) -> Result<Self, NoTraceContext> {
        read(text).ok_or(NoTraceContext)
    }

    /// Whether the sender may have recorded its own part.
    pub const fn is_sampled(self) -> bool {
        self.flags & 1 != 0
    }
}

/// Trace headers in a custom payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Said {
    pub(crate) context: Result<TraceContext, NoTraceContext>,
    /// The trace state of a request that is sampled, if it has one with entries.
    pub(crate) state: Option<Result<Box<str>, NoTraceState>>,
}

impl Said {
    /// `None` if it has no `traceparent`, or ends before.
    pub(crate) fn of_payload(body: Cursor<'_>) -> Option<Self> {
        let (mut parent, mut state) = (None, None);
        _ = look(body, &mut parent, &mut state);
        let context = TraceContext::parse(parent?);
        let is_sampled = context.is_ok_and(TraceContext::is_sampled);
        let state = state.filter(|_| is_sampled).map(trace_state);
        Some(Self {
            context,
            state: state
                .filter(|state| *state != Ok(""))
                .map(|state| state.map(Into::into)),
        })
    }
}

/// Looks the entries up; the first of each name counts.
fn look<'b>(
    mut body: Cursor<'b>,
    parent: &mut Option<&'b [u8]>,
    state: &mut Option<&'b [u8]>,
) -> Option<()> {
    for _ in 0..body.short()? {
        let key = body.short_bytes()?;
        let value = body.bytes()?;
        match key {
            PARENT => drop(parent.get_or_insert(value)),
            STATE => drop(state.get_or_insert(value)),
            _ => {}
        }
        if parent.is_some() && state.is_some() {
            break;
        }
    }
    Some(())
}

fn read(mut rest: &[u8]) -> Option<TraceContext> {
    let [version] = hex(&mut rest)?;
    dash(&mut rest)?;
    let trace_id = hex(&mut rest)?;
    dash(&mut rest)?;
    let parent_id = hex(&mut rest)?;
    dash(&mut rest)?;
    let [flags] = hex(&mut rest)?;
    let ends = match version {
        0 => rest.is_empty(),
        NO_VERSION => false,
        _ => rest.is_empty() || rest.starts_with(b"-"),
    };
    let is_named = trace_id != [0; 16] && parent_id != [0; 8];
    (ends && is_named).then_some(TraceContext {
        trace_id,
        parent_id,
        flags,
    })
}

fn hex<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    for byte in &mut bytes {
        let [high, low, behind @ ..] = *rest else {
            return None;
        };
        *byte = digit(*high)? << 4 | digit(*low)?;
        *rest = behind;
    }
    Some(bytes)
}

/// In lower case: the standard has no other.
fn digit(byte: u8) -> Option<u8> {
    match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    }
}

fn dash(rest: &mut &[u8]) -> Option<()> {
    *rest = rest.strip_prefix(b"-")?;
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const GOOD: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[test]
    fn a_context_is_read() {
        let context = TraceContext::parse(GOOD.as_bytes()).unwrap();
        let id = 0x0AF7_6519_16CD_43DD_8448_EB21_1C80_319C_u128;
        assert_eq!(context.trace_id, id.to_be_bytes());
        assert_eq!(context.parent_id, 0xB7AD_6B71_6920_3331_u64.to_be_bytes());
        assert!(context.is_sampled());
        for (flags, sampled) in [("00", false), ("02", false), ("03", true), ("ff", true)] {
            let text = GOOD.replace("-01", &format!("-{flags}"));
            let context = TraceContext::parse(text.as_bytes()).unwrap();
            assert_eq!(context.is_sampled(), sampled, "{text}");
        }
    }

    #[test]
    fn later_versions_are_read_as_far_as_this_one_goes() {
        for (version, behind, is_read) in [
            ("00", "", true),
            ("00", "-", false),
            ("00", "-more", false),
            ("01", "", true),
            ("01", "-more", true),
            ("cc", "-", true),
            ("cc", "more", false),
            ("ff", "", false),
        ] {
            let text = format!("{version}{}{behind}", &GOOD[2..]);
            let read = TraceContext::parse(text.as_bytes());
            assert_eq!(read.is_ok(), is_read, "{text}");
        }
    }

    #[test]
    fn what_is_not_to_the_letter_is_none() {
        for end in 0..GOOD.len() {
            assert!(TraceContext::parse(&GOOD.as_bytes()[..end]).is_err());
        }
        for text in [
            GOOD.to_uppercase(),
            format!(" {GOOD}"),
            format!("{GOOD} "),
            GOOD.replace('-', "_"),
            GOOD.replace("0af7", "0ag7"),
            GOOD.replace("0af7651916cd43dd8448eb211c80319c", &"0".repeat(32)),
            GOOD.replace("b7ad6b7169203331", &"0".repeat(16)),
            "\u{e9}".repeat(28),
        ] {
            assert!(TraceContext::parse(text.as_bytes()).is_err(), "{text}");
        }
    }

    #[test]
    fn it_is_found_among_other_keys() {
        let entry = |key: &str, value: &str| {
            let mut entry = (key.len() as u16).to_be_bytes().to_vec();
            entry.extend(key.as_bytes());
            entry.extend((value.len() as u32).to_be_bytes());
            entry.extend(value.as_bytes());
            entry
        };
        let null = [&[0, 1, b'n'][..], &[255; 4]].concat();
        let payload = |entries: &[Vec<u8>]| {
            let mut payload = (entries.len() as u16).to_be_bytes().to_vec();
            payload.extend(entries.concat());
            payload
        };
        let found = |entries: &[Vec<u8>]| Said::of_payload(Cursor::new(&payload(entries)));
        let context = TraceContext::parse(GOOD.as_bytes());
        let said = |state: Option<Result<&str, _>>| {
            let state = state.map(|state| state.map(Into::into));
            Some(Said { context, state })
        };
        let (parent, state) = (entry("traceparent", GOOD), entry("tracestate", "a=b"));
        for entries in [
            [null.clone(), state.clone(), parent.clone()],
            [parent.clone(), null.clone(), state.clone()],
        ] {
            assert_eq!(found(&entries), said(Some(Ok("a=b"))));
        }
        assert_eq!(found(&[parent.clone(), null.clone()]), said(None));
        for (state, expected) in [("x", Some(Err(NoTraceState))), (" ", None)] {
            let entries = [parent.clone(), entry("tracestate", state)];
            assert_eq!(found(&entries), said(expected));
        }
        // What is cut off behind it does not count.
        let cut = payload(&[parent.clone(), state.clone()]);
        for end in payload(std::slice::from_ref(&parent)).len()..cut.len() {
            let read = Said::of_payload(Cursor::new(&cut[..end]));
            assert_eq!(read, said(None));
        }
        let unsampled = GOOD.replace("-01", "-00");
        let read = found(&[entry("traceparent", &unsampled), entry("tracestate", "x")]);
        assert_eq!(read.unwrap().state, None);
        assert_eq!(found(&[null, entry("Traceparent", GOOD), state]), None);
        let bad = [entry("traceparent", "00-1")];
        assert_eq!(found(&bad).unwrap().context, Err(NoTraceContext));
        assert_eq!(Said::of_payload(Cursor::new(&[0, 9, 0, 1])), None);
    }

    proptest! {
        #[test]
        fn nothing_makes_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            let _ = TraceContext::parse(&bytes);
            let _ = Said::of_payload(Cursor::new(&bytes));
        }

        /// A byte that is wrong gives either another context, or none.
        #[test]
        fn a_byte_that_is_wrong_is_noticed(at in 0..55_usize, byte in any::<u8>()) {
            let mut text = GOOD.as_bytes().to_vec();
            text[at] = byte;
            if let Ok(read) = TraceContext::parse(&text) {
                let same = TraceContext::parse(GOOD.as_bytes()) == Ok(read);
                prop_assert_eq!(same, byte == GOOD.as_bytes()[at] || at < 2);
            }
        }
    }
}
