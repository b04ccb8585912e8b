//! Files and folders that the agent trusts: what it reads from them decides for everybody on the host, and what it
//! writes to them others must not redirect.
//!
//! - A file that is read ([`read`], [`File`]): a regular one, which belongs to a trusted user and which nobody else
//!   can write to, in a folder ([`folder`]) where nobody else can put another one in its place.
//! - A file that is written ([`open_to_append`]): the same, and no symbolic link.
//! - A file with a secret: the same as one that is read, and its path may have variables ([`secret_path`]).
//!
//! Trusted are root, the agent's own user, and whoever became root by sudo(8): he could do it anyway.
//!
//! **Invariant**: nothing here waits. A pipe or a device in place of a file is refused before it is opened, and opened
//! without waiting if it takes that place in between.

#![forbid(unsafe_code)]

mod secret;

use std::{
    env,
    fs::{self, File, Metadata, OpenOptions},
    io::{self, ErrorKind, Read},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use nix::{
    fcntl::OFlag,
    sys::{
        statfs::{
            BPF_FS_MAGIC, CGROUP_SUPER_MAGIC, CGROUP2_SUPER_MAGIC, DEBUGFS_MAGIC, FsType,
            PROC_SUPER_MAGIC, SECURITYFS_MAGIC, SYSFS_MAGIC, TRACEFS_MAGIC, statfs,
        },
        statvfs::{FsFlags, statvfs},
    },
    unistd::geteuid,
};
use thiserror::Error;

pub use secret::secret_path;

/// The write bits of a mode, for the group and for everybody.
const GROUP_WRITES: u32 = 0o020;
const OTHERS_WRITE: u32 = 0o002;
/// In a folder with this bit, only its owner may remove a file.
const STICKY: u32 = 0o1000;

/// File systems whose files are the kernel's: some act on whatever is written to them.
const KERNELS: [FsType; 8] = [
    BPF_FS_MAGIC,
    CGROUP_SUPER_MAGIC,
    CGROUP2_SUPER_MAGIC,
    DEBUGFS_MAGIC,
    PROC_SUPER_MAGIC,
    SECURITYFS_MAGIC,
    SYSFS_MAGIC,
    TRACEFS_MAGIC,
];

/// The reason why a path is not trusted. Each message says what to do.
#[derive(Debug, Error)]
pub enum Untrusted {
    /// The file system refuses.
    #[error("{path} cannot be opened: {source}")]
    Io {
        /// The path.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
    /// A pipe, a device, a socket, a folder, or a symbolic link.
    #[error("{path} is {found}: expected a file")]
    NoFile {
        /// The path.
        path: PathBuf,
        /// The kind of file that it is.
        found: &'static str,
    },
    /// Another user owns it.
    #[error("{path} belongs to uid {uid}, who can change it: chown root {path}")]
    Owner {
        /// The path.
        path: PathBuf,
        /// The owner.
        uid: u32,
    },
    /// Others can write to it.
    #[error("others can write to {path} (mode {mode:03o}): chmod go-w {path}")]
    Writable {
        /// The path.
        path: PathBuf,
        /// The mode, in octal digits.
        mode: u32,
    },
    /// The kernel owns it, and takes what is written there for orders.
    #[error("{} is a file of the kernel's: choose one on a disk", .0.display())]
    Kernels(PathBuf),
    /// The file is longer than the reader takes.
    #[error("{path} has more than {most} bytes")]
    TooLong {
        /// The path.
        path: PathBuf,
        /// The limit.
        most: u64,
    },
}

impl Untrusted {
    /// Whether there is no such file.
    pub fn is_absent(&self) -> bool {
        matches!(self, Self::Io { source, .. } if source.kind() == ErrorKind::NotFound)
    }
}

/// Users whose files are trusted.
struct Users {
    own: u32,
    /// The user and the group who called sudo(8), if the agent is root by that.
    caller: Option<(u32, u32)>,
}

impl Users {
    fn here() -> Self {
        let number = |name| env::var(name).ok()?.parse::<u32>().ok();
        let own = geteuid().as_raw();
        let caller = number("SUDO_UID").zip(number("SUDO_GID"));
        Self {
            own,
            caller: caller.filter(|_| own == 0),
        }
    }

    fn trusts(&self, uid: u32) -> bool {
        uid == 0 || uid == self.own || self.caller.is_some_and(|(caller, _)| caller == uid)
    }

    fn trusts_group(&self, gid: u32) -> bool {
        gid == 0 || self.caller.is_some_and(|(_, group)| group == gid)
    }

    fn may_change(&self, path: &Path, found: &Metadata) -> Result<(), Untrusted> {
        let path = path.to_owned();
        if !self.trusts(found.uid()) {
            let uid = found.uid();
            return Err(Untrusted::Owner { path, uid });
        }
        let mode = found.mode() & 0o7777;
        let group_writes = mode & GROUP_WRITES != 0 && !self.trusts_group(found.gid());
        match mode & OTHERS_WRITE != 0 || group_writes {
            true => Err(Untrusted::Writable { path, mode }),
            false => Ok(()),
        }
    }
}

/// Checks that nobody but trusted users can put a file into a folder, or another folder in its place.
///
/// Folders above it may be open to a group, as `/var/log` is on some hosts, and to everybody where only the owner of a
/// file can remove it, as `/tmp` is. Anything on a read-only mount cannot be changed here.
///
/// # Errors
/// Another user can.
pub fn folder(path: &Path) -> Result<(), Untrusted> {
    let io = |path: &Path| {
        let path = path.to_owned();
        move |source| Untrusted::Io { path, source }
    };
    let real = fs::canonicalize(path).map_err(io(path))?;
    let users = Users::here();
    for (depth, folder) in real.ancestors().enumerate() {
        let found = fs::metadata(folder).map_err(io(folder))?;
        if is_read_only(folder) {
            continue;
        }
        let is_shared = found.mode() & STICKY != 0 && users.trusts(found.uid());
        match users.may_change(folder, &found) {
            Ok(()) => {}
            // Nobody can take away there what is another's.
            Err(Untrusted::Writable { .. }) if is_shared && depth > 0 => {}
            Err(Untrusted::Writable { mode, .. }) if depth > 0 && mode & OTHERS_WRITE == 0 => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn is_read_only(folder: &Path) -> bool {
    statvfs(folder).is_ok_and(|found| found.flags().contains(FsFlags::ST_RDONLY))
}

/// Checks the folder that a file is in. A file directly in a folder like `/tmp` is its owner's.
fn folder_of(path: &Path, found: Option<&Metadata>) -> Result<(), Untrusted> {
    let parent = path.parent().filter(|p| !p.as_os_str().is_empty());
    let parent = parent.unwrap_or(Path::new("."));
    match (folder(parent), found) {
        (Err(Untrusted::Writable { mode, .. }), Some(_)) if mode & STICKY != 0 => Ok(()),
        (checked, _) => checked,
    }
}

/// Opens a file to read it, if it is trusted.
///
/// # Errors
/// The file is not trusted, or cannot be read.
pub fn open(path: &Path) -> Result<File, Untrusted> {
    let io = |source| Untrusted::Io {
        path: path.to_owned(),
        source,
    };
    regular(path, &fs::metadata(path).map_err(io)?)?;
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(OFlag::O_NONBLOCK.bits());
    let file = options.open(path).map_err(io)?;
    let found = file.metadata().map_err(io)?;
    regular(path, &found)?;
    let real = fs::canonicalize(path).map_err(io)?;
    if !is_read_only(&real) {
        Users::here().may_change(path, &found)?;
    }
    folder_of(&real, Some(&found))?;
    // Links on the way to it may be changed by whoever can write to their folders.
    folder_of(path, Some(&found))?;
    Ok(file)
}

/// Reads a file of at most `most` bytes, if it is trusted.
///
/// # Errors
/// The file is not trusted, is longer, or cannot be read.
pub fn read(path: &Path, most: u64) -> Result<Vec<u8>, Untrusted> {
    let mut bytes = Vec::new();
    let read = open(path)?.take(most + 1).read_to_end(&mut bytes);
    let path = path.to_owned();
    match read {
        Err(source) => Err(Untrusted::Io { path, source }),
        Ok(read) if read as u64 > most => Err(Untrusted::TooLong { path, most }),
        Ok(_) => Ok(bytes),
    }
}

/// Reads a file of text, as [`read`].
///
/// # Errors
/// [`read`] fails, or the file is not UTF-8.
pub fn read_text(path: &Path, most: u64) -> Result<String, Untrusted> {
    String::from_utf8(read(path, most)?).map_err(|_| Untrusted::Io {
        path: path.to_owned(),
        source: io::Error::new(ErrorKind::InvalidData, "it is not UTF-8"),
    })
}

/// Opens a file to read, and to write at its end, or makes it with this mode.
///
/// # Errors
/// The file is a link, a pipe or a device, or belongs to another user; or others can write to it, or put another file in
/// its place.
pub fn open_to_append(path: &Path, mode: u32) -> Result<File, Untrusted> {
    let io = |source| Untrusted::Io {
        path: path.to_owned(),
        source,
    };
    let mut options = OpenOptions::new();
    options.read(true).append(true).create(true).mode(mode);
    if test_hooks::get().any_journal {
        return options.open(path).map_err(io);
    }
    may_append(path)?;
    let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
    let file = options.custom_flags(flags.bits()).open(path).map_err(io)?;
    let found = file.metadata().map_err(io)?;
    regular(path, &found)?;
    Users::here().may_change(path, &found)?;
    Ok(file)
}

/// Checks a file as [`open_to_append`] does, and neither makes nor opens it.
///
/// # Errors
/// [`open_to_append`] would refuse the file.
pub fn may_append(path: &Path) -> Result<(), Untrusted> {
    let found = match fs::symlink_metadata(path) {
        Ok(found) => Some(found),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(source) => {
            let path = path.to_owned();
            return Err(Untrusted::Io { path, source });
        }
    };
    if let Some(found) = &found {
        regular(path, found)?;
        Users::here().may_change(path, found)?;
    }
    folder_of(path, found.as_ref())?;
    let parent = path.parent().unwrap_or(path);
    let file_system = statfs(path).or_else(|_| statfs(parent));
    match file_system.is_ok_and(|found| KERNELS.contains(&found.filesystem_type())) {
        true => Err(Untrusted::Kernels(path.to_owned())),
        false => Ok(()),
    }
}

fn regular(path: &Path, found: &Metadata) -> Result<(), Untrusted> {
    use std::os::unix::fs::FileTypeExt;
    let kind = found.file_type();
    let found = match kind {
        _ if kind.is_file() => return Ok(()),
        _ if kind.is_symlink() => "a symbolic link",
        _ if kind.is_dir() => "a folder",
        _ if kind.is_fifo() => "a pipe",
        _ if kind.is_socket() => "a socket",
        _ => "a device",
    };
    let path = path.to_owned();
    Err(Untrusted::NoFile { path, found })
}

#[cfg(test)]
mod tests;
