//! Holds what arrives against what was sent, and says what is wrong with it.
//!
//! After a wrong byte the checker looks for its own stream again and goes on from there; in the
//! end it knows which bytes were lost, came twice, came late, or never were of this stream.

use super::{
    frames::Content,
    ranges::Ranges,
    stream::{Direction, Stream, WORD, origin},
};

/// Breaks that are described; of more, only the bytes are counted.
const DESCRIBED: usize = 8;
/// After so many breaks nothing more is learnt.
const BREAKS: u64 = 1000;
/// Stray bytes that are kept, so that their origin can be told.
const KEPT: usize = 4096;
/// Wrong bytes that are looked at to tell where they come from.
const LOOKED_AT: usize = 256;
/// Connections with numbers this near are asked whether a wrong byte is theirs.
const NEIGHBOURS: u64 = 256;

/// Stream whose bytes are expected.
#[derive(Debug, Clone, Copy)]
pub(super) struct Owner {
    pub(super) seed: u64,
    pub(super) connection: u64,
    pub(super) direction: Direction,
}

/// Faults of one direction of one connection, in bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Wrong {
    /// Bytes that never came, although later ones or the end did.
    pub lost: u64,
    /// Bytes that came again.
    pub duplicated: u64,
    /// Bytes that came after later ones.
    pub reordered: u64,
    /// Bytes that belong to another connection, or to the other direction.
    pub foreign: u64,
    /// Bytes that belong to no stream near this one.
    pub garbled: u64,
    /// The first breaks, in words.
    pub breaks: Vec<String>,
}

/// The receiving side of one direction.
#[derive(Debug)]
pub(super) struct Checker {
    owner: Owner,
    content: Content,
    total: u64,
    at: u64,
    /// Positions that have come; only kept from the first break on.
    seen: Option<Ranges>,
    /// Bytes that came since the stream was lost, as far as they may still be of use.
    astray: Vec<u8>,
    /// How much of it was looked through, how much of no use lay before it, how that began, and
    /// whose it is.
    searched: usize,
    dropped: u64,
    began: Vec<u8>,
    source: Option<String>,
    wrong: Wrong,
    breaks: u64,
}

impl Checker {
    pub(super) fn new(owner: Owner, content: Content, total: u64) -> Self {
        Self {
            owner,
            content,
            total,
            at: 0,
            seen: None,
            astray: Vec::new(),
            searched: 0,
            dropped: 0,
            began: Vec::new(),
            source: None,
            wrong: Wrong::default(),
            breaks: 0,
        }
    }

    /// The next bytes. False once there is no sense in going on.
    pub(super) fn feed(&mut self, got: &[u8]) -> bool {
        if self.astray.is_empty() {
            if let Some(rest) = self.follow(got) {
                self.lose(rest.to_vec());
            }
        } else {
            self.astray.extend_from_slice(got);
            self.find();
        }
        self.breaks < BREAKS
    }

    /// Whether nothing was wrong so far.
    pub(super) fn clean(&self) -> bool {
        self.breaks == 0
    }

    /// The end came. `whole`: all bytes should have come by now.
    pub(super) fn finish(mut self, whole: bool) -> Option<Wrong> {
        self.drop_strangers(self.astray.len());
        self.resume(None);
        let begun = Ranges::up_to(self.at);
        let seen = self.seen.take().unwrap_or(begun);
        let end = if whole { self.total } else { seen.end() };
        self.wrong.lost = end - seen.covered();
        if whole && seen.end() < self.total {
            let text = format!("the end came at {} of {}", seen.end(), self.total);
            self.describe(text);
        }
        (self.wrong != Wrong::default()).then_some(self.wrong)
    }

    /// Takes what is as expected; the rest, beginning with a wrong byte.
    fn follow<'a>(&mut self, got: &'a [u8]) -> Option<&'a [u8]> {
        let room = usize::try_from(self.total - self.at).unwrap_or(usize::MAX);
        let (possible, _) = got.split_at(room.min(got.len()));
        let right = self
            .content
            .mismatch(self.at, possible)
            .unwrap_or(possible.len());
        self.advance(right as u64);
        got.get(right..).filter(|rest| !rest.is_empty())
    }

    fn advance(&mut self, len: u64) {
        if let Some(seen) = &mut self.seen {
            let highest = seen.end();
            let new = seen.insert(self.at, self.at + len);
            self.wrong.duplicated += len - new;
            let beyond = (self.at + len).saturating_sub(highest.max(self.at));
            self.wrong.reordered += new - beyond;
        }
        self.at += len;
    }

    fn lose(&mut self, rest: Vec<u8>) {
        self.breaks += 1;
        let at = self.at;
        self.seen.get_or_insert_with(|| Ranges::up_to(at));
        self.astray = rest;
        self.find();
    }

    /// Looks for this stream in what is astray, and follows it as far as it goes.
    fn find(&mut self) {
        while !self.astray.is_empty() && self.breaks < BREAKS {
            let Some((skipped, position)) = self.own() else {
                if self.astray.len() > KEPT {
                    // A word that has only begun may still turn out to be the stream's.
                    self.drop_strangers(self.astray.len() - WORD * 2);
                }
                self.searched = self.astray.len().saturating_sub(WORD - 1);
                return;
            };
            self.drop_strangers(skipped);
            self.resume(Some(position));
            self.at = position;
            let found = std::mem::take(&mut self.astray);
            let Some(rest) = self.follow(&found) else {
                return;
            };
            self.astray = rest.to_vec();
            self.breaks += 1;
        }
        if self.breaks >= BREAKS {
            self.astray.clear();
        }
    }

    /// The first place in what is astray where this stream goes on: how many bytes are skipped,
    /// and the position there.
    fn own(&mut self) -> Option<(usize, u64)> {
        let (content, total) = (&mut self.content, self.total);
        let unsearched = self.astray.get(self.searched..).unwrap_or_default();
        let (further, mut position) = words(unsearched).find_map(|(further, origin)| {
            let position = content.place(origin)?;
            (position + WORD as u64 <= total).then_some((further, position))
        })?;
        let mut skipped = self.searched + further;
        // The word is found; bytes before it may be of the stream as well.
        while let Some(before) = skipped.checked_sub(1)
            && let Some(earlier) = position.checked_sub(1)
            && let Some(&byte) = self.astray.get(before)
            && self.content.mismatch(earlier, &[byte]).is_none()
        {
            (skipped, position) = (before, earlier);
        }
        Some((skipped, position))
    }

    /// The first `count` bytes of what is astray are not of this stream.
    fn drop_strangers(&mut self, count: usize) {
        let bytes: Vec<u8> = self.astray.drain(..count).collect();
        self.searched = 0;
        if self.dropped == 0 {
            self.began = bytes.get(..WORD.min(count)).unwrap_or_default().to_vec();
        }
        if self.source.is_none() {
            self.source = self.source(&bytes);
        }
        self.dropped += count as u64;
    }

    /// The stream goes on at `position`, or not at all; what was wrong in between is put down.
    fn resume(&mut self, position: Option<u64>) {
        let dropped = std::mem::take(&mut self.dropped);
        let began = std::mem::take(&mut self.began);
        let source = self.source.take();
        match &source {
            Some(_) => self.wrong.foreign += dropped,
            None => self.wrong.garbled += dropped,
        }
        if dropped == 0 && position.is_none() {
            return;
        }
        let expected = self.at;
        let mut text = format!("at {expected}: ");
        if dropped > 0 {
            let whose = source.unwrap_or_else(|| "of no stream".into());
            let mut should = [0; WORD];
            let left = usize::try_from(self.total - expected).unwrap_or(WORD);
            let should = should.get_mut(..left.min(WORD)).unwrap_or_default();
            self.content.fill(expected, should);
            text +=
                &format!("{dropped} bytes {whose} (expected {should:02x?}, got {began:02x?}), ");
        }
        text += &match position {
            None => "and no more of this stream".into(),
            Some(position) if position < expected => {
                format!("back {} to {position}", expected - position)
            }
            Some(position) => format!("forward {} to {position}", position - expected),
        };
        self.describe(text);
    }

    /// Origin of these bytes, if they are of a stream near this one.
    fn source(&self, bytes: &[u8]) -> Option<String> {
        let Owner {
            seed,
            connection,
            direction,
        } = self.owner;
        let near = connection.saturating_sub(NEIGHBOURS)..=connection.saturating_add(NEIGHBOURS);
        let others: Vec<_> = near
            .flat_map(|id| [(id, Direction::Up), (id, Direction::Down)])
            .filter(|&other| other != (connection, direction))
            .map(|(id, way)| (id, way, Stream::new(seed, id, way)))
            .collect();
        let looked_at = bytes.get(..LOOKED_AT.min(bytes.len())).unwrap_or_default();
        words(looked_at).find_map(|(_, origin)| {
            others.iter().find_map(|&(id, way, stream)| {
                let position = stream.position(origin)?;
                Some(if id == connection {
                    format!("of the other direction, position {position}")
                } else {
                    format!("of connection {id}, {way:?}, position {position}")
                })
            })
        })
    }

    fn describe(&mut self, text: String) {
        if self.wrong.breaks.len() < DESCRIBED {
            self.wrong.breaks.push(text);
        }
    }
}

/// The origins of all eight bytes in a row, and how many bytes lie before each.
fn words(bytes: &[u8]) -> impl Iterator<Item = (usize, u64)> {
    bytes
        .windows(WORD)
        .enumerate()
        .filter_map(|(before, word)| {
            let word: [u8; WORD] = word.try_into().ok()?;
            Some((before, origin(word)))
        })
}

#[cfg(test)]
mod tests {
    use super::{
        super::frames::{Frames, Sizes},
        *,
    };

    const TOTAL: u64 = 100_000;

    fn content(connection: u64, direction: Direction, cql: bool) -> Content {
        let frames = cql.then(|| Frames::new(5, direction, Sizes::Random(3000), TOTAL));
        Content::new(Stream::new(5, connection, direction), frames)
    }

    fn bytes(connection: u64, direction: Direction, cql: bool) -> Vec<u8> {
        let mut bytes = vec![0; TOTAL as usize];
        content(connection, direction, cql).fill(0, &mut bytes);
        bytes
    }

    /// The checker's findings about connection 7's bytes after `harm`, however they are cut.
    fn judge(harm: impl Fn(&mut Vec<u8>)) -> Wrong {
        let mut verdicts = Vec::new();
        for cql in [false, true] {
            let mut harmed = bytes(7, Direction::Up, cql);
            harm(&mut harmed);
            for cut in [1, 5, 333, 4096, harmed.len()] {
                let owner = Owner {
                    seed: 5,
                    connection: 7,
                    direction: Direction::Up,
                };
                let mut checker = Checker::new(owner, content(7, Direction::Up, cql), TOTAL);
                for piece in harmed.chunks(cut) {
                    checker.feed(piece);
                }
                verdicts.push(checker.finish(true).unwrap_or_default());
            }
        }
        let bytes = |w: &Wrong| (w.lost, w.duplicated, w.reordered, w.foreign, w.garbled);
        for verdict in &verdicts {
            assert_eq!(bytes(verdict), bytes(&verdicts[0]), "{verdicts:#?}");
        }
        verdicts.remove(0)
    }

    #[test]
    fn nothing_wrong() {
        assert_eq!(judge(|_| ()), Wrong::default());
    }

    #[test]
    fn lost_bytes() {
        let wrong = judge(|bytes| drop(bytes.drain(5003..6100)));
        assert_eq!((wrong.lost, wrong.duplicated), (1097, 0));
        assert_eq!(wrong.breaks, ["at 5003: forward 1097 to 6100"]);
    }

    #[test]
    fn a_lost_end() {
        let wrong = judge(|bytes| bytes.truncate(99_990));
        assert_eq!(wrong.lost, 10);
        assert_eq!(wrong.breaks, ["the end came at 99990 of 100000"]);
    }

    #[test]
    fn bytes_that_come_twice() {
        let wrong = judge(|bytes| {
            let again = bytes[20_001..21_003].to_vec();
            bytes.splice(21_003..21_003, again);
        });
        let Wrong {
            lost,
            duplicated,
            reordered,
            foreign,
            garbled,
            ..
        } = wrong;
        assert_eq!((lost, duplicated, reordered), (0, 1002, 0));
        assert_eq!((foreign, garbled), (0, 0));
    }

    #[test]
    fn an_end_that_comes_twice() {
        let wrong = judge(|bytes| bytes.extend_from_within(99_000..));
        assert_eq!((wrong.lost, wrong.duplicated), (0, 1000));
    }

    #[test]
    fn two_pieces_in_the_wrong_order() {
        let wrong = judge(|bytes| bytes[30_000..34_000].rotate_left(1500));
        assert_eq!((wrong.lost, wrong.duplicated), (0, 0));
        assert_eq!(wrong.reordered, 1500);
    }

    #[test]
    fn bytes_of_another_connection() {
        let other = bytes(9, Direction::Down, false);
        let wrong = judge(|bytes| {
            bytes.splice(40_000..40_000, other[777..1777].iter().copied());
        });
        // By chance a foreign byte next to the own ones may look right.
        assert!((995..=1005).contains(&wrong.foreign), "{wrong:?}");
        assert_eq!(wrong.lost, 0);
        assert!(
            wrong.breaks[0].contains("of connection 9, Down, position 784"),
            "{wrong:?}"
        );
    }

    #[test]
    fn bytes_of_the_other_direction_in_place_of_its_own() {
        let other = bytes(7, Direction::Down, false);
        let wrong = judge(|bytes| bytes[50_000..51_000].copy_from_slice(&other[50_000..51_000]));
        assert!(
            wrong.breaks[0].contains("of the other direction"),
            "{wrong:?}"
        );
        assert!((980..=1000).contains(&wrong.foreign), "{wrong:?}");
    }

    #[test]
    fn a_flipped_bit() {
        let wrong = judge(|bytes| bytes[60_002] ^= 4);
        assert_eq!((wrong.garbled, wrong.lost), (1, 1));
    }
}
