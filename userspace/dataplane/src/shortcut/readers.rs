//! The look over sockets on the shortcut, by descriptors: when the agent is dead or does not run, the keeper goes on
//! with it.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    time::Duration,
};

use aya::maps::{Array, MapData, SockHash};
use ebpf::abi;
use nix::time::{ClockId, clock_gettime};

use crate::{
    causes::other,
    maps,
    readers::{Looker, Nudged, Pace, Readers, ToNudge},
    sys::{self, PodOf},
};

/// The sockets on the shortcut. Those leave it whose readers do not read on, and all of them once nobody keeps the
/// shortcut open.
pub struct ShortcutReaders {
    readers: Readers,
    socks: SockHash<MapData, u64>,
    limits: Array<MapData, PodOf<abi::ShortcutLimits>>,
    /// Another descriptor of `limits`, for another process.
    limits_descriptor: OwnedFd,
    /// The looker at the last look that did not fail to begin.
    looker: Option<Looker>,
    /// Ends were told at the last look to leave.
    are_leaving: bool,
    /// Ends have left whose readers are to be nudged, or were not told of a reset.
    to_nudge: ToNudge,
    pace: Pace,
}

impl ShortcutReaders {
    /// `socks`: the map of sockets on the shortcut. `limits`: the map of its limits.
    pub(super) fn new(readers: Readers, socks: OwnedFd, limits: OwnedFd) -> io::Result<Self> {
        let socks = maps::map(socks).and_then(SockHash::try_from);
        let map = maps::map(limits.try_clone()?).and_then(Array::try_from);
        Ok(Self {
            readers,
            socks: socks.map_err(other)?,
            limits: map.map_err(other)?,
            limits_descriptor: limits,
            looker: None,
            are_leaving: false,
            to_nudge: ToNudge::Nobody,
            pace: Pace::default(),
        })
    }

    /// Returns the descriptors with which another process can look, too.
    ///
    /// # Errors
    /// For want of descriptors.
    pub fn descriptors(&self) -> io::Result<Vec<OwnedFd>> {
        let socks = self.socks.fd().as_fd().try_clone_to_owned()?;
        let limits = self.limits_descriptor.try_clone()?;
        let readers = self.readers.descriptors()?;
        Ok([socks, limits].into_iter().chain(readers).collect())
    }

    /// Takes the descriptors of [`Self::descriptors`] of an agent with the same BPF object.
    ///
    /// # Errors
    /// They are something else.
    pub fn adopt(descriptors: Vec<OwnedFd>) -> io::Result<Self> {
        let [socks, limits, find, find_beside, nudge] = descriptors
            .try_into()
            .map_err(|_| io::Error::other("not the descriptors of a shortcut"))?;
        Self::new(Readers::of([find, find_beside, nudge]), socks, limits)
    }

    /// Whether no socket is on the shortcut, and nobody who has left it waits for a nudge.
    pub fn is_idle(&self) -> bool {
        self.to_nudge == ToNudge::Nobody && self.socks.keys().next().is_none()
    }

    /// Returns the time for which the agent has said that it lives, zero if that is over: it is dead, does not run, or
    /// has closed the shortcut.
    ///
    /// # Errors
    /// The kernel does not read its limits.
    pub fn stays_open(&self) -> io::Result<Duration> {
        let PodOf(limits) = self.limits.get(&0, 0).map_err(other)?;
        let now = clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(Duration::ZERO, Duration::from);
        Ok(Duration::from_nanos(limits.until_ns).saturating_sub(now))
    }

    /// Has ends leave the shortcut that are to, and nudges their readers, each when its time has come. Must run in the
    /// namespace of the sockets. Returns the pause until this is to be called again. `left` is told the cookies of those
    /// that have left.
    ///
    /// # Errors
    /// The kernel does not run the iterators.
    pub fn look(&mut self, left: impl FnMut(u64)) -> io::Result<Duration> {
        self.look_as(Looker::Agent, left)
    }

    /// Does the same beside an agent that lives and does not run: only ends of applications that do not read on leave.
    ///
    /// # Errors
    /// As [`Self::look`].
    pub fn look_beside(&mut self) -> io::Result<Duration> {
        self.look_as(Looker::Beside, |_| ())
    }

    /// Takes the place of an agent that is dead: it may have let readers out and not have nudged them.
    pub fn take_over(&mut self) {
        self.looker = None;
        self.to_nudge = ToNudge::Left;
    }

    /// Nudges those whom this process has let out, if it is time, beside an agent that runs again and looks itself.
    /// Returns the pause until this is to be called again, or none.
    ///
    /// # Errors
    /// The kernel does not run the iterator.
    pub fn nudge_beside(&mut self) -> io::Result<Option<Duration>> {
        // What the agent has done by the next look, nobody knows here.
        self.looker = None;
        self.nudge()?;
        Ok(self.pace.pause_of_nudges(self.to_nudge))
    }

    fn look_as(&mut self, looker: Looker, left: impl FnMut(u64)) -> io::Result<Duration> {
        let mut looked = Ok(());
        if let Some(begun) = self.pace.begin_look() {
            looked = self.look_now(looker, left);
            self.pace.end_look(begun);
        }
        // Whatever the look has found: somebody waits for the nudge.
        self.nudge()?;
        looked?;
        Ok(self.pace.pause(self.to_nudge))
    }

    fn nudge(&mut self) -> io::Result<()> {
        if let Some(begun) = self.pace.begin_nudge(self.to_nudge) {
            let nudged = self.readers.nudge();
            self.pace.end_nudge(begun);
            self.to_nudge = match nudged? {
                Nudged::All => ToNudge::Nobody,
                Nudged::NotAll => ToNudge::Again,
            };
        }
        Ok(())
    }

    fn look_now(&mut self, looker: Looker, mut left: impl FnMut(u64)) -> io::Result<()> {
        let is_first = self.looker != Some(looker);
        if is_first {
            // As one that is dead may have, another process that was stopped.
            self.to_nudge = ToNudge::Left;
        }
        // It may have told ends to leave, too.
        if is_first || self.are_leaving {
            // Whoever did not see yet that an end is to leave has found his target by then, and holds it.
            sys::wait_for_running_programs()?;
        }
        self.looker = Some(looker);
        let stalled = self.readers.stalled(self.socks.fd().as_fd(), looker)?;
        self.are_leaving = stalled.are_leaving;
        if stalled.are_orphans {
            self.to_nudge = ToNudge::Left;
        }
        for cookie in &stalled.leave_now {
            if self.socks.remove(cookie).is_ok() {
                self.to_nudge = ToNudge::Left;
                left(*cookie);
            }
        }
        Ok(())
    }
}
