//! The control socket's file: only root can open it, and only one agent has it.

use std::{
    fs::{self, DirBuilder, File},
    io::{self, ErrorKind},
    os::unix::{
        fs::{DirBuilderExt, FileTypeExt, MetadataExt},
        net::UnixListener,
    },
    path::{Path, PathBuf},
};

use nix::{
    fcntl::{Flock, FlockArg},
    sys::stat::{Mode, umask},
};
use socket2::{Domain, SockAddr, Socket, Type};
use thiserror::Error;

/// The reason why there is no control socket.
#[derive(Debug, Error)]
pub enum ControlError {
    /// Another agent has the socket.
    #[error("another agent answers at {0}: stop it first, or give this one a `control` of its own")]
    Taken(PathBuf),
    /// The path is some other file.
    #[error("{0} is no socket: choose another `control`")]
    NoSocket(PathBuf),
    /// The file system refuses.
    #[error("cannot make the control socket {path}: {source}")]
    Io {
        /// The path of the socket.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
}

/// A listening socket, whose file is removed when this is dropped.
#[derive(Debug)]
pub struct ControlSocket {
    path: PathBuf,
    /// The file's inode: the file may be another agent's by the time that this one goes.
    inode: u64,
    listener: Option<UnixListener>,
}

impl ControlSocket {
    /// Makes the socket, in place of what a dead agent left, and the folder that it is in.
    ///
    /// # Errors
    /// Another agent has it, or the file system refuses.
    pub fn bind(path: &Path) -> Result<Self, ControlError> {
        let failed = |source| ControlError::Io {
            path: path.to_owned(),
            source,
        };
        if let Some(folder) = path.parent() {
            let mut builder = DirBuilder::new();
            let made = builder.recursive(true).mode(0o700).create(folder);
            made.map_err(failed)?;
        }
        let _turn = turn(path).map_err(failed)?;
        let listener = match listen(path) {
            Err(error) if error.kind() == ErrorKind::AddrInUse => {
                remove_stale(path)?;
                listen(path)
            }
            listening => listening,
        };
        let listener = listener.map_err(failed)?;
        Ok(Self {
            inode: fs::metadata(path).map_err(failed)?.ino(),
            path: path.to_owned(),
            listener: Some(listener),
        })
    }

    /// Takes the listener, once, within a runtime.
    pub(super) fn listener(&mut self) -> io::Result<tokio::net::UnixListener> {
        let listener = self.listener.take().ok_or(ErrorKind::AlreadyExists)?;
        listener.set_nonblocking(true)?;
        tokio::net::UnixListener::from_std(listener)
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        if fs::metadata(&self.path).is_ok_and(|file| file.ino() == self.inode) {
            // Left, it is replaced by the next agent.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Two agents that find what a dead one left must not each take it away from the other: for as long
/// as this is held, nobody else makes a socket in the folder. Agents that end do not wait for it.
fn turn(path: &Path) -> io::Result<Flock<File>> {
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty());
    let folder = File::open(folder.unwrap_or(Path::new(".")))?;
    Flock::lock(folder, FlockArg::LockExclusive).map_err(|(_, errno)| errno.into())
}

/// Listens at a path that at no moment anybody else can open.
fn listen(path: &Path) -> io::Result<UnixListener> {
    let before = umask(Mode::S_IXUSR | Mode::S_IRWXG | Mode::S_IRWXO);
    let listening = UnixListener::bind(path);
    umask(before);
    listening
}

fn remove_stale(path: &Path) -> Result<(), ControlError> {
    let failed = |source| ControlError::Io {
        path: path.to_owned(),
        source,
    };
    let file = fs::symlink_metadata(path).map_err(failed)?;
    if !file.file_type().is_socket() {
        return Err(ControlError::NoSocket(path.to_owned()));
    }
    if answers(path).map_err(failed)? {
        return Err(ControlError::Taken(path.to_owned()));
    }
    fs::remove_file(path).map_err(failed)
}

/// Whether somebody listens, who may be too busy to accept.
fn answers(path: &Path) -> io::Result<bool> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM.nonblocking(), None)?;
    match socket.connect(&SockAddr::unix(path)?) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(true),
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn of_two_agents_one_takes_over() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("control");
        for _ in 0..200 {
            // The file is as an agent leaves it that was killed.
            drop(UnixListener::bind(&path).unwrap());
            let both = thread::scope(|scope| {
                let agents = [(); 2].map(|()| scope.spawn(|| ControlSocket::bind(&path)));
                agents.map(|agent| agent.join().unwrap())
            });
            assert!(answers(&path).unwrap(), "{both:?}");
            let taken = |made: &Result<_, _>| matches!(made, Err(ControlError::Taken(_)));
            assert_eq!(
                both.iter().filter(|made| taken(made)).count(),
                1,
                "{both:?}"
            );
            drop(both);
            assert!(!path.exists());
        }
    }
}
