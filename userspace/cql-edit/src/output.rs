//! [`Output`]: the bytes that go on in place of a piece: the piece itself, as long as nothing of it is
//! changed.

/// A piece, and what has become of it so far.
#[derive(Debug)]
pub(crate) struct Output<'a> {
    input: &'a [u8],
    at: usize,
    /// From the first change on: everything that goes on.
    instead: Option<Vec<u8>>,
}

impl<'a> Output<'a> {
    pub(crate) fn new(input: &'a [u8]) -> Self {
        Self {
            input,
            at: 0,
            instead: None,
        }
    }

    /// The bytes on which nothing was decided yet.
    #[inline]
    pub(crate) fn rest(&self) -> &'a [u8] {
        self.input.get(self.at..).unwrap_or_default()
    }

    /// The next `n` bytes go on as they are.
    #[inline]
    pub(crate) fn keep(&mut self, n: usize) {
        let kept = self.rest();
        let kept = kept.get(..n).unwrap_or(kept);
        if let Some(instead) = &mut self.instead {
            instead.extend_from_slice(kept);
        }
        self.at += kept.len();
    }

    /// The next `n` bytes do not.
    #[inline]
    pub(crate) fn skip(&mut self, n: usize) {
        if n > 0 {
            self.changes();
            self.at += n.min(self.rest().len());
        }
    }

    /// The bytes on which nothing was decided do not go on here.
    pub(crate) fn skip_rest(&mut self) -> &'a [u8] {
        let rest = self.rest();
        self.skip(rest.len());
        rest
    }

    /// Puts bytes that go on here.
    pub(crate) fn put(&mut self, bytes: &[u8]) {
        if !bytes.is_empty() {
            self.changes().extend_from_slice(bytes);
        }
    }

    /// The bytes that go on. `None`: the piece as it is.
    pub(crate) fn finish(self) -> Option<Vec<u8>> {
        self.instead
    }

    fn changes(&mut self) -> &mut Vec<u8> {
        let (input, at) = (self.input, self.at);
        self.instead
            .get_or_insert_with(|| input.get(..at).unwrap_or_default().to_vec())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_not_copied() {
        let mut output = Output::new(b"abcdef");
        output.keep(4);
        assert_eq!(output.rest(), b"ef");
        output.keep(9);
        assert_eq!(output.finish(), None);
    }

    #[test]
    fn changes_keep_their_place() {
        let mut output = Output::new(b"abcdef");
        output.keep(2);
        output.put(b"--");
        output.skip(1);
        output.keep(1);
        output.skip(9);
        output.put(b"!");
        assert_eq!(output.finish().unwrap(), b"ab--d!");
    }
}
