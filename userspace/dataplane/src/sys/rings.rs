//! [`Rings`]: BPF rings whose records are read as if they were one ring's.

use std::{
    io,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
};

use super::ring::{Next, Ring};

/// Rings of which each processor has some to write to, and one thread reads all.
///
/// A record's second word is the time, read by a clock that all processors share before the record was begun. Records are
/// shown in its order. So whatever was finished before the time of another record was read is shown before that one: a
/// request before its response, wherever each of them passed.
pub(crate) struct Rings {
    rings: Vec<Ring>,
    /// The rings' heads, during a look.
    heads: Vec<Head>,
}

/// A ring during a look.
#[derive(Clone, Copy)]
struct Head {
    next: Next,
    /// All that is before this is to be shown.
    due: u64,
    /// The end of what may be shown before that.
    end: u64,
}

impl Rings {
    /// Maps these rings, of so many bytes each.
    ///
    /// # Errors
    /// The kernel's; a descriptor is no ring's, or of another size.
    pub(crate) fn new(rings: Vec<(OwnedFd, u32)>) -> io::Result<Self> {
        let rings = rings.into_iter().map(|(fd, bytes)| Ring::new(fd, bytes));
        Ok(Self {
            rings: rings.collect::<io::Result<_>>()?,
            heads: Vec::new(),
        })
    }

    /// The bytes that producers have begun, and that were not shown.
    pub(crate) fn waiting(&self) -> u64 {
        let waiting = |ring: &Ring| ring.end() - ring.shown();
        self.rings.iter().map(waiting).sum()
    }

    /// The descriptors, to wait for something that was not shown.
    pub(crate) fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.rings.iter().map(Ring::as_fd)
    }

    /// Shows the records that are there now, until `most` bytes have been shown, or one is not finished: nobody knows when it was
    /// begun. Gives their room back. Returns how many bytes were shown. Producers that are as fast as this thread do not keep it
    /// here.
    pub(crate) fn drain(&mut self, most: u64, mut show: impl FnMut(&[u8])) -> u64 {
        self.heads.clear();
        let due = self.rings.iter().map(|ring| Head {
            next: Next::Nothing,
            due: ring.end(),
            end: 0,
        });
        self.heads.extend(due);
        // Only now: what led to a record that is due, in whichever ring, is there by now.
        for (ring, head) in self.rings.iter_mut().zip(&mut self.heads) {
            head.end = ring.end();
            head.next = ring.next(head.end);
        }
        let mut shown = 0;
        while shown < most
            && let Some((ring, head, bytes)) = self.earliest()
        {
            let before = ring.shown();
            ring.show(bytes, &mut show);
            head.next = ring.next(head.end);
            shown += ring.shown() - before;
        }
        self.rings.iter().for_each(Ring::give_back);
        shown
    }

    /// The ring whose next record is to be shown next. None: nothing is due, or nobody knows.
    fn earliest(&mut self) -> Option<(&mut Ring, &mut Head, usize)> {
        let (mut is_due, mut earliest) = (false, None);
        for (number, (ring, head)) in self.rings.iter().zip(&self.heads).enumerate() {
            is_due |= ring.shown() < head.due;
            match (head.next, earliest) {
                (Next::Unfinished, _) => return None,
                (Next::Nothing, _) => {}
                (Next::Record { at_ns, .. }, Some((_, _, before))) if at_ns >= before => {}
                (Next::Record { bytes, at_ns }, _) => earliest = Some((number, bytes, at_ns)),
            }
        }
        let (number, bytes, _) = earliest.filter(|_| is_due)?;
        let (ring, head) = (self.rings.get_mut(number)?, self.heads.get_mut(number)?);
        Some((ring, head, bytes))
    }
}

#[cfg(test)]
#[path = "rings_tests.rs"]
mod tests;
