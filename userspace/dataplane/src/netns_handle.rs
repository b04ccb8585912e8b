//! A network namespace, and how to do something there.

use std::{
    fs::{self, File},
    io,
    ops::RangeInclusive,
    os::{fd::BorrowedFd, unix::fs::MetadataExt},
    path::Path,
    sync::Arc,
    thread,
};

use nix::sched::{CloneFlags, setns};

use crate::sys;

/// `/proc` shows it as it is for the thread that asks.
const PORT_RANGE: &str = "/proc/sys/net/ipv4/ip_local_port_range";
const OWN: &str = "/proc/thread-self/ns/net";

/// A network namespace, held open: it lives as long as this handle, even when its last process has
/// gone.
#[derive(Debug)]
pub struct NetnsHandle {
    file: File,
    /// The agent's own.
    is_own: bool,
}

impl NetnsHandle {
    pub(crate) fn open(path: Option<&Path>) -> io::Result<Self> {
        Ok(Self {
            file: File::open(path.unwrap_or(Path::new(OWN)))?,
            is_own: path.is_none(),
        })
    }

    /// The namespace of a socket; none if it is the agent's own.
    pub(crate) fn of_socket(socket: BorrowedFd<'_>) -> io::Result<Option<Arc<Self>>> {
        let file = File::from(sys::netns_of(socket)?);
        if file.metadata()?.ino() == fs::metadata(OWN)?.ino() {
            return Ok(None);
        }
        Ok(Some(Arc::new(Self {
            file,
            is_own: false,
        })))
    }

    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// The number of the namespace's inode. None: the kernel does not say.
    pub(crate) fn inode(&self) -> Option<u32> {
        self.file.metadata().ok()?.ino().try_into().ok()
    }

    /// Does something there: in a thread that lives no longer, or here if here is there. What makes
    /// a socket, or opens a file of `/proc/sys/net`, makes that of its thread's namespace.
    pub(crate) fn within<T: Send>(
        &self,
        body: impl FnOnce() -> io::Result<T> + Send,
    ) -> io::Result<T> {
        if self.is_own {
            return body();
        }
        thread::scope(|scope| {
            let there = thread::Builder::new()
                .name("netns".into())
                .spawn_scoped(scope, || {
                    setns(&self.file, CloneFlags::CLONE_NEWNET)?;
                    body()
                })?;
            let ended = there.join();
            ended.unwrap_or_else(|_| Err(io::Error::other("a thread panicked in a namespace")))
        })
    }
}

/// The ports that connect() chooses from in the calling thread's namespace.
pub(crate) fn port_range() -> io::Result<RangeInclusive<u16>> {
    let text = fs::read_to_string(PORT_RANGE)?;
    range_in(&text).ok_or_else(|| io::Error::other(format!("{PORT_RANGE} says {text:?}")))
}

fn range_in(text: &str) -> Option<RangeInclusive<u16>> {
    let mut words = text.split_whitespace();
    let (first, last) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    Some(first..=last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_range_of_ports_is_read() {
        assert_eq!(range_in("32768\t60999\n"), Some(32768..=60999));
        assert_eq!(range_in("32768"), None);
        assert!(port_range().is_ok());
    }
}
