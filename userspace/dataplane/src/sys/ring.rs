//! [`Ring`]: a BPF ring, read by one thread.

use std::{
    io,
    os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd},
    ptr::{self, NonNull},
    sync::atomic::{AtomicU32, AtomicU64, Ordering},
};

use nix::libc;

/// Bytes of a record's header: its length with two flags, and the page that it is on.
const HEADER: usize = 8;
/// Where a record's time is, in its second word: see [`Next`].
const TIME_AT: usize = 8;
/// In the length: the producer has not finished.
const BUSY: u32 = 1 << 31;
/// In the length: the producer has changed its mind.
const DISCARDED: u32 = 1 << 30;
/// Room is given back in so many parts of the ring: producers look at the position for each record, and whenever it has
/// been written, it is not in their caches any more.
const PARTS: usize = 64;

/// The next thing that stands in a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    Nothing,
    /// A record whose producer is at work.
    Unfinished,
    Record {
        bytes: usize,
        /// The record's second word; of a shorter one 0.
        at_ns: u64,
    },
}

/// A ring whose data are mapped once. Libraries map them twice in a row, so that a record which goes over the ring's end
/// lies in one piece; but a process's memory is charged with each page as often as it is mapped, and of 100 ms of copies
/// that is a lot. Here such a record is put together.
pub(super) struct Ring {
    fd: OwnedFd,
    consumer: Mapping,
    /// The producer's position, and behind its page the data.
    producer: Mapping,
    page: usize,
    /// A power of two.
    bytes: usize,
    /// Up to here records were shown; the kernel knows it a little later.
    shown: u64,
    /// The last record that went over the end.
    joined: Vec<u8>,
}

/// A shared mapping, until it is dropped.
struct Mapping {
    at: NonNull<u8>,
    bytes: usize,
}

// SAFETY: it is memory that no thread owns; positions in it are read and written as atomics.
unsafe impl Send for Mapping {}

impl Mapping {
    fn new(
        fd: BorrowedFd<'_>,
        bytes: usize,
        protection: libc::c_int,
        offset: usize,
    ) -> io::Result<Self> {
        let offset = libc::off_t::try_from(offset).map_err(io::Error::other)?;
        // SAFETY: a new mapping at a place that the kernel chooses; nothing of ours is there.
        let at = unsafe {
            libc::mmap(
                ptr::null_mut(),
                bytes,
                protection,
                libc::MAP_SHARED,
                fd.as_raw_fd(),
                offset,
            )
        };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let at = NonNull::new(at.cast()).ok_or_else(|| io::Error::other("mapped at 0"))?;
        Ok(Self { at, bytes })
    }

    /// The position at its beginning.
    fn position(&self) -> &AtomicU64 {
        // SAFETY: a page begins with it, aligned, and stays mapped as long as `self`.
        unsafe { self.at.cast::<AtomicU64>().as_ref() }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, with this length, and nobody has a reference into it any more.
        unsafe { libc::munmap(self.at.as_ptr().cast(), self.bytes) };
    }
}

impl Ring {
    /// Maps a ring of so many bytes.
    ///
    /// # Errors
    /// The kernel's; the descriptor is no ring's, or of another size.
    pub(super) fn new(fd: OwnedFd, bytes: u32) -> io::Result<Self> {
        let page = nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE)?;
        let page = page.and_then(|page| usize::try_from(page).ok());
        let page = page.ok_or_else(|| io::Error::other("no page size"))?;
        let bytes = bytes as usize;
        let consumer = Mapping::new(fd.as_fd(), page, libc::PROT_READ | libc::PROT_WRITE, 0)?;
        let producer = Mapping::new(fd.as_fd(), page + bytes, libc::PROT_READ, page)?;
        if !bytes.is_power_of_two() {
            return Err(io::Error::other(format!("{bytes} is no power of two")));
        }
        let shown = consumer.position().load(Ordering::Relaxed);
        Ok(Self {
            fd,
            consumer,
            producer,
            page,
            bytes,
            shown,
            joined: Vec::new(),
        })
    }

    /// The position behind the last record that a producer has begun.
    pub(super) fn end(&self) -> u64 {
        self.producer.position().load(Ordering::Acquire)
    }

    /// The position up to which records were shown.
    pub(super) fn shown(&self) -> u64 {
        self.shown
    }

    /// Returns what stands next, before this position. Records that their producers have taken back are passed over.
    pub(super) fn next(&mut self, end: u64) -> Next {
        while self.shown < end {
            let at = self.shown;
            let length = self.length_at(at).load(Ordering::Acquire);
            if length & BUSY != 0 {
                return Next::Unfinished;
            }
            let bytes = (length & !DISCARDED) as usize;
            if length & DISCARDED == 0 {
                let at_ns = match bytes >= TIME_AT + size_of::<u64>() {
                    true => self.word_at(at + (HEADER + TIME_AT) as u64),
                    false => 0,
                };
                return Next::Record { bytes, at_ns };
            }
            self.pass(bytes);
        }
        Next::Nothing
    }

    /// Shows the record that [stands next](Self::next), which has so many bytes, and gives its room back with that of others.
    pub(super) fn show(&mut self, bytes: usize, shown: impl FnOnce(&[u8])) {
        let at = self.shown + HEADER as u64;
        shown(self.record(at, bytes));
        self.pass(bytes);
    }

    fn pass(&mut self, bytes: usize) {
        self.shown += (HEADER + bytes).next_multiple_of(HEADER) as u64;
        if self.shown - self.given_back() > (self.bytes / PARTS) as u64 {
            self.give_back();
        }
    }

    /// The position up to which room was given back. Written by this thread alone.
    fn given_back(&self) -> u64 {
        self.consumer.position().load(Ordering::Relaxed)
    }

    /// Gives back the room of all that was shown.
    pub(super) fn give_back(&self) {
        let position = self.consumer.position();
        position.store(self.shown, Ordering::Release);
    }

    /// Where a position is in the data.
    fn offset(&self, position: u64) -> usize {
        // A usize holds what is less than `bytes`.
        (position & (self.bytes as u64 - 1)) as usize
    }

    fn length_at(&self, position: u64) -> &AtomicU32 {
        // SAFETY: records begin at multiples of 8, so their headers are whole before the ring's end, which is mapped.
        unsafe {
            let data = self.producer.at.add(self.page);
            data.add(self.offset(position)).cast::<AtomicU32>().as_ref()
        }
    }

    /// A word of a record that is finished, at a multiple of 8.
    fn word_at(&self, position: u64) -> u64 {
        // SAFETY: the data's size is a multiple of 8, too, so a word never goes over their end. Nobody writes there until its
        // room is given back.
        unsafe {
            let data = self.producer.at.add(self.page);
            data.add(self.offset(position)).cast::<u64>().read()
        }
    }

    /// So many bytes from a position on, of a record that is finished: nobody writes there until its room is given back.
    fn record(&mut self, position: u64, bytes: usize) -> &[u8] {
        let from = self.offset(position);
        let first = bytes.min(self.bytes - from);
        // SAFETY: both pieces are within the data, for the kernel makes no record that is longer than the ring.
        let (head, rest) = unsafe {
            let data = self.producer.at.add(self.page);
            let head = std::slice::from_raw_parts(data.add(from).as_ptr(), first);
            let rest = (bytes - first).min(self.bytes);
            (head, std::slice::from_raw_parts(data.as_ptr(), rest))
        };
        if rest.is_empty() {
            return head;
        }
        self.joined.clear();
        self.joined.extend_from_slice(head);
        self.joined.extend_from_slice(rest);
        &self.joined
    }
}

impl AsFd for Ring {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
