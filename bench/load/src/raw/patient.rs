//! A socket that need not block, used as if it did: until its connection is open.

use std::{
    io::{self, ErrorKind, Read, Write},
    net::TcpStream,
    time::Duration,
};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Longer than a database under load takes: its own limits are 20 s.
pub const ANSWER_LIMIT: Duration = Duration::from_secs(30);

/// Reads and writes, and waits where it has to; no longer than [`ANSWER_LIMIT`].
pub struct Patient<'a>(pub &'a TcpStream);

impl Patient<'_> {
    fn patiently<T>(
        &self,
        until: PollFlags,
        mut attempt: impl FnMut(&TcpStream) -> io::Result<T>,
    ) -> io::Result<T> {
        loop {
            match attempt(self.0) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.wait(until)?,
                done => return done,
            }
        }
    }

    fn wait(&self, until: PollFlags) -> io::Result<()> {
        let limit = Timespec {
            tv_sec: ANSWER_LIMIT.as_secs() as i64,
            tv_nsec: 0,
        };
        match poll(&mut [PollFd::new(self.0, until)], Some(&limit)) {
            Ok(0) => Err(ErrorKind::TimedOut.into()),
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

impl Read for Patient<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.patiently(PollFlags::IN, |mut stream| stream.read(into))
    }
}

impl Write for Patient<'_> {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        self.patiently(PollFlags::OUT, |mut stream| stream.write(from))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
