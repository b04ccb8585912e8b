//! A text, what is found in it, and changes within it.

use std::cell::OnceCell;
use std::ops::Range;

use crate::sites::{Sites, Spot, spots};

/// The text of a statement, which is followed when somebody asks, and once.
pub(super) struct Text<'t> {
    pub(super) bytes: &'t [u8],
    /// There are not too many of them.
    may_be_followed: bool,
    spots: OnceCell<Option<Vec<Spot<'t>>>>,
    sites: OnceCell<Option<Sites<'t>>>,
}

impl<'t> Text<'t> {
    pub(super) fn new(bytes: &'t [u8], may_be_followed: bool) -> Self {
        Self {
            bytes,
            may_be_followed,
            spots: OnceCell::new(),
            sites: OnceCell::new(),
        }
    }

    /// The text's tokens. `None`: something in it is no token, or it is too long.
    pub(super) fn spots(&self) -> Option<&[Spot<'t>]> {
        let find = || self.may_be_followed.then(|| spots(self.bytes)).flatten();
        self.spots.get_or_init(find).as_deref()
    }

    /// The tokens and the sites of a text that reads or changes data, and is understood.
    pub(super) fn sites(&self) -> Option<(&[Spot<'t>], &Sites<'t>)> {
        let spots = self.spots()?;
        let find = || Sites::of(self.bytes, spots);
        Some((spots, self.sites.get_or_init(find).as_ref()?))
    }
}

/// Replacements of ranges; none of them overlap.
pub(super) type Edits = Vec<(Range<usize>, String)>;

/// The text with these changes.
pub(super) fn edited(text: &[u8], mut edits: Edits) -> Vec<u8> {
    edits.sort_by_key(|(at, _)| at.start);
    let mut out = Vec::with_capacity(text.len() + 64);
    let mut done = 0;
    for (at, new) in edits {
        out.extend_from_slice(text.get(done..at.start).unwrap_or_default());
        out.extend(new.bytes());
        done = at.end;
    }
    out.extend_from_slice(text.get(done..).unwrap_or_default());
    out
}

/// Whether this stands anywhere in the text, in capital letters or not. `word` is in small ones.
pub(super) fn mentions(text: &[u8], word: &str) -> bool {
    let Some((first, rest)) = word.as_bytes().split_first() else {
        return true;
    };
    let is_first = |byte: &u8| byte.to_ascii_lowercase() == *first;
    let mut behind = text;
    while let Some(at) = behind.iter().position(is_first) {
        behind = behind.get(at + 1..).unwrap_or_default();
        let next = behind.get(..rest.len());
        if next.is_some_and(|next| next.eq_ignore_ascii_case(rest)) {
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_found_wherever_they_stand() {
        for (text, found) in [
            ("ttl", true),
            ("xTtLx", true),
            ("t tl", false),
            ("tt", false),
            ("ttttl", true),
            ("", false),
        ] {
            assert_eq!(mentions(text.as_bytes(), "ttl"), found, "{text}");
        }
    }

    #[test]
    fn edits_are_made_in_the_order_of_the_text() {
        let edits = vec![
            (4..5, "E".to_owned()),
            (0..1, String::new()),
            (2..2, "+".to_owned()),
        ];
        assert_eq!(edited(b"abcdef", edits), b"b+cdEf");
    }
}
