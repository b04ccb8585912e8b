//! Tries out a short leg: the sockets of a connection that is there already are entered, and leave.

use std::{
    io::{self, Write},
    net::Shutdown,
};

use socket2::SockRef;

use super::{Canary, FLOW_BYTES, bounded, level, read_all, same};
use crate::{
    counters::Turn,
    legs::{LegApplication, LongLeg},
    splice::cookie,
};

/// Bytes of the leg's trial, by the moment at which they are written.
const AHEAD: &[u8] = b"ahead";
const BEHIND: &[u8] = b"behind";
const AFTER: &[u8] = b"after";

impl Canary {
    /// An application's socket that blocks is not entered. One that does not is, behind what waits in TCP, until it is
    /// asked to leave.
    pub(super) fn short_leg(&mut self) -> io::Result<()> {
        // Whoever has looked after readers has set those of the host, of whose memory others may have more than is left
        // for a trial.
        let limits = bounded(FLOW_BYTES, u32::MAX);
        self.shortcut.set_limits(limits).map_err(io::Error::other)?;
        let (mut app, mut own) = self.connect(None)?;
        let legs = self.shortcut.legs().clone();
        let client = LegApplication::Client(cookie(&SockRef::from(&app))?);
        match legs.enter(SockRef::from(&own), client) {
            Err(LongLeg::Blocks) => {}
            other => {
                let message = format!("a socket that blocks was asked in: {other:?}");
                return Err(io::Error::other(message));
            }
        }
        app.set_nonblocking(true)?;
        own.set_nonblocking(true)?;
        let (app_reads, own_reads) = (level(&app)?, level(&own)?);
        app.write_all(AHEAD)?;
        let leg = legs.enter(SockRef::from(&own), client);
        let leg = leg.map_err(io::Error::other)?;
        app.write_all(BEHIND)?;
        let mut received = [0; AHEAD.len() + BEHIND.len()];
        read_all(&mut own, &own_reads, &mut received)?;
        same(&[AHEAD, BEHIND].concat(), &received)?;
        let before = self.bytes(Turn::Shortcut)?;
        app.write_all(BEHIND)?;
        own.write_all(AFTER)?;
        let mut request = [0; BEHIND.len()];
        read_all(&mut own, &own_reads, &mut request)?;
        same(BEHIND, &request)?;
        let mut answer = [0; AFTER.len()];
        read_all(&mut app, &app_reads, &mut answer)?;
        same(AFTER, &answer)?;
        let past = self.bytes(Turn::Shortcut)?;
        if past - before != (BEHIND.len() + AFTER.len()) as u64 {
            let message = format!("{} bytes were past TCP", past - before);
            return Err(io::Error::other(message));
        }
        leg.leave();
        own.write_all(AFTER)?;
        own.shutdown(Shutdown::Write)?;
        read_all(&mut app, &app_reads, &mut answer)?;
        same(AFTER, &answer)?;
        if self.bytes(Turn::Shortcut)? != past {
            return Err(io::Error::other("it did not leave"));
        }
        drop(own);
        drop(leg);
        Ok(())
    }
}
