//! [`Recognised`]: the compression of a flow whose handshake nobody has heard.

use super::expand_into;
use crate::fact::Fact;
use crate::wire::compression::Compression;

/// The longest body, expanded, by which a compression is recognised. A peer can have no more made of what it sends.
const MOST_BYTES: usize = 64 << 10;

/// The number of bodies by which it is tried, at most.
const MOST_TRIES: u8 = 64;

/// See the module. It is a guess by what peers send, and nothing that they have agreed on: so it is given up when a body is not what it
/// says, and nobody is told of it.
#[derive(Debug, Default)]
pub(crate) struct Recognised {
    how: Option<Compression>,
    tries: u8,
}

impl Recognised {
    /// Returns the compression, by this body or an earlier one. `is_whole`: `carried` is all of it.
    pub(crate) fn by(&mut self, carried: &[u8], is_whole: bool) -> Fact<Compression> {
        if self.how.is_none() && is_whole && self.tries < MOST_TRIES {
            self.tries += 1;
            self.how = recognise(carried);
        }
        self.how.map_or(Fact::Open, Fact::Is)
    }

    /// Gives it up: a body was not compressed so.
    pub(crate) fn give_up(&mut self) {
        self.how = None;
    }
}

/// Recognises how a whole body is compressed. LZ4's begins with a length in four bytes, Snappy's with one that does not begin with a zero
/// byte; and what is expanded must have that length. `None`: it is neither, or could be both, or is too long.
fn recognise(body: &[u8]) -> Option<Compression> {
    let mut plain = Vec::new();
    let mut fits = |how: &Compression| expand_into(*how, body, MOST_BYTES, &mut plain).is_some();
    let both = [Compression::Lz4, Compression::Snappy];
    let mut fitting = both.into_iter().filter(|how| fits(how));
    let first = fitting.next()?;
    fitting.next().is_none().then_some(first)
}

#[cfg(test)]
mod tests {
    use super::super::shrink;
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn each_is_told_from_the_other(
            body in prop_oneof![
                prop::collection::vec(any::<u8>(), 0..2000),
                prop::collection::vec(0..4_u8, 0..5000),
            ],
        ) {
            for how in [Compression::Lz4, Compression::Snappy] {
                let shrunk = shrink(how, &body).unwrap();
                prop_assert_eq!(recognise(&shrunk), Some(how));
            }
        }
    }

    #[test]
    fn a_guess_is_given_up_and_tried_again_so_often() {
        let both = [Compression::Lz4, Compression::Snappy];
        let [one, other] = both.map(|how| shrink(how, b"SELECT a FROM t").unwrap());
        let mut recognised = Recognised::default();
        assert_eq!(recognised.by(&one[..9], false), Fact::Open);
        assert_eq!(recognised.by(&one, true), Fact::Is(Compression::Lz4));
        assert_eq!(recognised.by(&other, true), Fact::Is(Compression::Lz4));
        recognised.give_up();
        assert_eq!(recognised.by(&other, true), Fact::Is(Compression::Snappy));
        recognised.give_up();
        for _ in 2..MOST_TRIES {
            assert_eq!(recognised.by(b"\x05neither", true), Fact::Open);
        }
        assert_eq!(recognised.by(&one, true), Fact::Open);
    }

    #[test]
    fn too_long_a_body_is_not_expanded() {
        let long = shrink(Compression::Lz4, &vec![0; MOST_BYTES + 1]).unwrap();
        assert_eq!(recognise(&long), None);
    }
}
