//! The look over sockets on the shortcut, by descriptors: when the agent is dead, the keeper goes on with it.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    time::Duration,
};

use aya::maps::{MapData, SockHash};

use crate::{
    maps,
    readers::{self, Nudged, Readers},
    sys,
};

/// The sockets on the shortcut. Those leave it whose readers do not read on, and all of them once nobody keeps the
/// shortcut open.
pub struct ShortcutReaders {
    readers: Readers,
    socks: SockHash<MapData, u64>,
    /// Ends were told at the last look to leave.
    are_leaving: bool,
    /// Ends have left whose readers are to be nudged.
    are_to_nudge: bool,
}

impl ShortcutReaders {
    /// `socks`: the map of sockets on the shortcut.
    pub(super) fn new(readers: Readers, socks: OwnedFd) -> io::Result<Self> {
        let socks = maps::map(socks).and_then(SockHash::try_from);
        Ok(Self {
            readers,
            socks: socks.map_err(io::Error::other)?,
            are_leaving: false,
            are_to_nudge: false,
        })
    }

    /// Returns the descriptors with which another process can look, too.
    ///
    /// # Errors
    /// For want of descriptors.
    pub fn descriptors(&self) -> io::Result<Vec<OwnedFd>> {
        let socks = self.socks.fd().as_fd().try_clone_to_owned()?;
        let readers = self.readers.descriptors()?;
        Ok([socks].into_iter().chain(readers).collect())
    }

    /// Takes the descriptors of [`Self::descriptors`] of an agent with the same BPF object.
    ///
    /// # Errors
    /// They are something else.
    pub fn adopt(descriptors: Vec<OwnedFd>) -> io::Result<Self> {
        let [socks, find, nudge] = descriptors
            .try_into()
            .map_err(|_| io::Error::other("not the descriptors of a shortcut"))?;
        Self::new(Readers::of(find, nudge), socks)
    }

    /// Whether no socket is on the shortcut.
    pub fn is_empty(&self) -> bool {
        self.socks.keys().next().is_none()
    }

    /// Has ends leave the shortcut that are to, and nudges their readers. Must run in the namespace of the sockets.
    /// Returns the pause until the next look. `left` is told the cookies of those that have left.
    ///
    /// # Errors
    /// The kernel does not run the iterators.
    pub fn look(&mut self, left: impl FnMut(u64)) -> io::Result<Duration> {
        let (looked, pause) = readers::paced(|| self.look_now(left));
        looked.map(|()| pause)
    }

    fn look_now(&mut self, mut left: impl FnMut(u64)) -> io::Result<()> {
        if self.are_leaving {
            // Whoever did not see yet that an end is to leave has found his target by then, and holds it.
            sys::wait_for_running_programs()?;
        }
        let stalled = self.readers.stalled(self.socks.fd().as_fd())?;
        self.are_leaving = stalled.are_leaving;
        for cookie in &stalled.leave_now {
            if self.socks.remove(cookie).is_ok() {
                self.are_to_nudge = true;
                left(*cookie);
            }
        }
        if self.are_to_nudge {
            self.are_to_nudge = self.readers.nudge()? == Nudged::NotAll;
        }
        Ok(())
    }
}
