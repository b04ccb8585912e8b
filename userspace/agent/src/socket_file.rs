//! The files of the agent's own sockets: the control socket, which only root can open, and the admin socket, which
//! a group may open, too. Only one agent has a file.

use std::{
    fs::{self, DirBuilder, File, Permissions},
    io::{self, ErrorKind},
    os::{
        fd::{AsFd, OwnedFd},
        unix::{
            fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt},
            net::UnixListener,
        },
    },
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use nix::{
    fcntl::{Flock, FlockArg},
    sys::stat::{Mode, umask},
    unistd::{Group, chown},
};
use socket2::{Domain, SockAddr, Socket, Type};
use thiserror::Error;
use trusted::Untrusted;

/// The group whose members may read the admin interface. Where there is none, only root may.
const GROUP: &str = "underpass";

/// A socket of the agent, by who may open it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Door {
    /// The control socket: root alone.
    Control,
    /// The admin socket: root, and the group `underpass` if there is one.
    Admin,
}

impl Door {
    /// The mode of folders that the agent makes for the socket. Members of the group pass through them, and see nothing.
    fn folder_mode(self) -> u32 {
        match self {
            Self::Control => 0o700,
            Self::Admin => 0o711,
        }
    }

    /// The key of `[agent]` that names the socket's path.
    fn key(self) -> &'static str {
        match self {
            Self::Control => "control",
            Self::Admin => "admin_socket",
        }
    }
}

/// The reason why there is no socket.
#[derive(Debug, Error)]
pub enum SocketError {
    /// Another agent has the socket.
    #[error(
        "another agent answers at {path}: stop it first, or give this one a `{key}` of its own"
    )]
    Taken {
        /// The path of the socket.
        path: PathBuf,
        /// The key that names it.
        key: &'static str,
    },
    /// The path is some other file.
    #[error("{path} is no socket: choose another `{key}`")]
    NoSocket {
        /// The path.
        path: PathBuf,
        /// The key that names it.
        key: &'static str,
    },
    /// Others could put a socket of their own in its place.
    #[error("{key}: {source}")]
    Untrusted {
        /// The key that names it.
        key: &'static str,
        /// The folder, and what is wrong with it.
        source: Untrusted,
    },
    /// The file system refuses.
    #[error("cannot make the socket {path} (`{key}`): {source}")]
    Io {
        /// The path of the socket.
        path: PathBuf,
        /// The key that names it.
        key: &'static str,
        /// The error.
        source: io::Error,
    },
}

/// A listening socket, whose file is removed when this is dropped.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    /// The file's inode: the file may be another agent's by the time that this one goes.
    inode: u64,
    listener: Option<UnixListener>,
    /// Set once the file is another agent's.
    is_given: Arc<AtomicBool>,
}

impl SocketFile {
    /// Makes the socket, in place of what a dead agent left, and the folder that it is in.
    ///
    /// # Errors
    /// Another agent has it, others can write to its folder, or the file system refuses.
    pub fn bind(door: Door, path: &Path) -> Result<Self, SocketError> {
        let failed = |source| SocketError::Io {
            path: path.to_owned(),
            key: door.key(),
            source,
        };
        if let Some(folder) = path.parent() {
            let mut builder = DirBuilder::new();
            let made = builder
                .recursive(true)
                .mode(door.folder_mode())
                .create(folder);
            made.map_err(failed)?;
            let key = door.key();
            trusted::folder(folder).map_err(|source| SocketError::Untrusted { key, source })?;
        }
        let _turn = turn(path).map_err(failed)?;
        let listener = match listen(path) {
            Err(error) if error.kind() == ErrorKind::AddrInUse => {
                remove_stale(door, path)?;
                listen(path)
            }
            listening => listening,
        };
        let listener = listener.map_err(failed)?;
        if door == Door::Admin {
            admit_group(path).map_err(failed)?;
        }
        Ok(Self {
            inode: fs::metadata(path).map_err(failed)?.ino(),
            path: path.to_owned(),
            listener: Some(listener),
            is_given: Arc::default(),
        })
    }

    /// Takes the socket over from an agent that gives it, with those that wait at it. The file stays that one's until
    /// [`Self::is_given`] is unset.
    ///
    /// # Errors
    /// The file has gone.
    pub fn given(door: Door, path: &Path, listener: OwnedFd) -> Result<Self, SocketError> {
        let found = fs::metadata(path).map_err(|source| SocketError::Io {
            path: path.to_owned(),
            key: door.key(),
            source,
        });
        Ok(Self {
            inode: found?.ino(),
            path: path.to_owned(),
            listener: Some(listener.into()),
            is_given: Arc::new(AtomicBool::new(true)),
        })
    }

    /// Another descriptor of the listener, before it is taken.
    pub(crate) fn descriptor(&self) -> io::Result<OwnedFd> {
        let listener = self.listener.as_ref().ok_or(ErrorKind::NotFound)?;
        listener.as_fd().try_clone_to_owned()
    }

    /// The switch with which the file is left to another agent.
    pub(crate) fn is_given(&self) -> Arc<AtomicBool> {
        self.is_given.clone()
    }

    /// Where the socket is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Takes the listener, once, within a runtime.
    pub(crate) fn listener(&mut self) -> io::Result<tokio::net::UnixListener> {
        let listener = self.listener.take().ok_or(ErrorKind::AlreadyExists)?;
        listener.set_nonblocking(true)?;
        tokio::net::UnixListener::from_std(listener)
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if !self.is_given.load(Relaxed)
            && fs::metadata(&self.path).is_ok_and(|file| file.ino() == self.inode)
        {
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

/// Lets the group's members open the socket, if there is such a group.
fn admit_group(path: &Path) -> io::Result<()> {
    let Some(group) = Group::from_name(GROUP)? else {
        return Ok(());
    };
    chown(path, None, Some(group.gid))?;
    fs::set_permissions(path, Permissions::from_mode(0o660))?;
    let passes = |folder: &Path| {
        fs::metadata(folder).is_ok_and(|found| {
            let mode = found.mode();
            mode & 0o001 != 0 || (mode & 0o010 != 0 && found.gid() == group.gid.as_raw())
        })
    };
    if let Some(shut) = path.ancestors().skip(1).find(|folder| !passes(folder)) {
        tracing::warn!(
            "the group {GROUP} cannot reach {}: let it pass through {} (chmod o+x)",
            path.display(),
            shut.display()
        );
    }
    Ok(())
}

fn remove_stale(door: Door, path: &Path) -> Result<(), SocketError> {
    let key = door.key();
    let failed = |source| SocketError::Io {
        path: path.to_owned(),
        key,
        source,
    };
    let file = fs::symlink_metadata(path).map_err(failed)?;
    if !file.file_type().is_socket() {
        let path = path.to_owned();
        return Err(SocketError::NoSocket { path, key });
    }
    if answers(path).map_err(failed)? {
        let path = path.to_owned();
        return Err(SocketError::Taken { path, key });
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
                let agents =
                    [(); 2].map(|()| scope.spawn(|| SocketFile::bind(Door::Control, &path)));
                agents.map(|agent| agent.join().unwrap())
            });
            assert!(answers(&path).unwrap(), "{both:?}");
            let taken = |made: &Result<_, _>| matches!(made, Err(SocketError::Taken { .. }));
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
