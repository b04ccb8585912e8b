//! W3C trace context, as a client puts it into a request's custom payload (v4 and later): `traceparent`
//! (<https://www.w3.org/TR/trace-context/#traceparent-header>), by the name that HTTP has for it.

use crate::wire::Cursor;

/// Its key in the custom payload.
const KEY: &[u8] = b"traceparent";

/// A version that no text may have.
const NO_VERSION: u8 = 0xFF;

/// Of which trace a request is a part, and of which span a child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceContext {
    /// Never all zero.
    pub trace_id: [u8; 16],
    /// Never all zero.
    pub parent_id: [u8; 8],
    /// As sent; only [`Self::is_sampled`] means anything in every version.
    pub flags: u8,
}

/// A `traceparent` that is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoTraceContext;

impl TraceContext {
    /// Of a `traceparent`. One of a later version is read as far as this one goes, as the standard asks.
    ///
    /// # Errors
    /// It is not as the standard says, to the letter.
    pub fn parse(text: &[u8]) -> Result<Self, NoTraceContext> {
        read(text).ok_or(NoTraceContext)
    }

    /// Whoever sent it may have recorded its own part.
    pub const fn is_sampled(self) -> bool {
        self.flags & 1 != 0
    }

    /// That of a custom payload; `None` if it has none, or ends before.
    pub(crate) fn of_payload(mut body: Cursor<'_>) -> Option<Result<Self, NoTraceContext>> {
        for _ in 0..body.short()? {
            let is_it = body.short_bytes()? == KEY;
            let value = body.bytes()?;
            if is_it {
                return Some(Self::parse(value));
            }
        }
        None
    }
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
        let found = |entries: &[Vec<u8>]| {
            let mut payload = (entries.len() as u16).to_be_bytes().to_vec();
            payload.extend(entries.concat());
            TraceContext::of_payload(Cursor::new(&payload))
        };
        let good = TraceContext::parse(GOOD.as_bytes());
        let entries = [
            null.clone(),
            entry("tracestate", "x"),
            entry("traceparent", GOOD),
        ];
        assert_eq!(found(&entries), Some(good));
        assert_eq!(found(&[null, entry("Traceparent", GOOD)]), None);
        let bad = [entry("traceparent", "00-1")];
        assert_eq!(found(&bad), Some(Err(NoTraceContext)));
        assert_eq!(TraceContext::of_payload(Cursor::new(&[0, 9, 0, 1])), None);
    }

    proptest! {
        #[test]
        fn nothing_makes_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            let _ = TraceContext::parse(&bytes);
            let _ = TraceContext::of_payload(Cursor::new(&bytes));
        }

        /// One byte wrong is either another context, or none.
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
