//! The place where a journal's lines go.

use std::{
    fmt,
    fs::File,
    io::{self, Read},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use export::{Fsync, Lines, LinesSettings};

use crate::duration::duration;

/// The least `max_bytes`. Lines are written in blocks, and a file holds some of those.
pub const LEAST_BYTES: u64 = 256 << 10;

/// The greatest `keep`: moving each file takes a system call.
pub const MOST_KEPT: u32 = 1_000;

/// The longest interval of fsync: a longer one would surprise everybody.
const SELDOM: Duration = Duration::from_secs(60);

/// The default of `max_bytes`.
pub fn max_bytes() -> u64 {
    100 << 20
}

/// The default of `keep`.
pub fn keep() -> u32 {
    10
}

/// A journal's place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// The agent's own log.
    Log,
    /// A file.
    File(LinesSettings),
}

impl Place {
    /// Makes a file's place from the settings in the configuration.
    ///
    /// # Errors
    /// Names the bad setting, and what it should be.
    pub fn file(path: PathBuf, max_bytes: u64, keep: u32, fsync: Fsync) -> Result<Self, String> {
        if !path.is_absolute() {
            let found = path.display();
            return Err(format!("file: expected an absolute path, found {found}"));
        }
        if max_bytes < LEAST_BYTES {
            return Err(format!(
                "max_bytes: expected {LEAST_BYTES} or more, found {max_bytes}"
            ));
        }
        if keep > MOST_KEPT {
            return Err(format!("keep: expected at most {MOST_KEPT}, found {keep}"));
        }
        Ok(Self::File(LinesSettings {
            path,
            max_bytes,
            keep,
            fsync,
        }))
    }

    /// Returns the place's path, if it has one.
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::Log => None,
            Self::File(lines) => Some(&lines.path),
        }
    }

    /// Checks whether it can be written to, and neither makes nor opens it.
    ///
    /// # Errors
    /// The place cannot be written to, or is somebody else's file: of a policy, of keys.
    pub fn may_open(&self) -> io::Result<()> {
        let Some(path) = self.path() else {
            return Ok(());
        };
        trusted::may_append(path).map_err(io::Error::other)?;
        is_a_journal(path)
    }

    pub(super) fn open(&self) -> io::Result<Target> {
        match self {
            Self::Log => Ok(Target::Log),
            Self::File(lines) => {
                is_a_journal(&lines.path)?;
                Lines::open(lines.clone()).map(Target::File)
            }
        }
    }
}

/// Checks that a file is new, or begins as a journal does: with an object of JSON. Whatever is written behind
/// a policy, a key or a certificate would spoil it.
fn is_a_journal(path: &Path) -> io::Result<()> {
    // What is no file is for [`trusted`] to refuse.
    if !path.symlink_metadata().is_ok_and(|found| found.is_file()) {
        return Ok(());
    }
    let mut first = [b'{'];
    let _ = File::open(path)?.read(&mut first)?;
    match first {
        [b'{'] => Ok(()),
        _ => Err(io::Error::other(format!(
            "{} is no journal, whose lines are JSON: choose another file",
            path.display()
        ))),
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.path() {
            None => write!(f, "the agent's log"),
            Some(path) => write!(f, "{}", path.display()),
        }
    }
}

/// Reads `never`, `batch`, or an interval.
///
/// # Errors
/// Says what it should be.
pub fn fsync(text: &str) -> Result<Fsync, String> {
    match text {
        "never" => Ok(Fsync::Never),
        "batch" => Ok(Fsync::Batch),
        text => match duration(text) {
            Some(time) if !time.is_zero() && time <= SELDOM => Ok(Fsync::Every(time)),
            _ => Err(format!(
                "fsync: expected `never`, `batch`, or how often, up to `1m`; found {text:?}"
            )),
        },
    }
}

/// An open place.
#[derive(Debug)]
pub(super) enum Target {
    Log,
    File(Lines),
}

impl Target {
    /// Writes whole lines of this journal.
    pub(super) fn write(&mut self, name: &str, lines: &[u8]) -> io::Result<()> {
        match self {
            Self::File(file) => file.write(lines).map(|_| ()),
            Self::Log => {
                for line in String::from_utf8_lossy(lines).lines() {
                    tracing::info!(target: "underpass", "{name}: {line}");
                }
                Ok(())
            }
        }
    }

    /// Takes over new settings and opens the file again, which may have been moved away.
    pub(super) fn apply_settings(&mut self, place: Place) -> io::Result<()> {
        match (self, place) {
            (Self::File(file), Place::File(settings)) => {
                file.apply_settings(settings);
                file.reopen()
            }
            _ => Ok(()),
        }
    }

    /// Whether it was opened with a part of a line at its end.
    pub(super) fn is_torn(&self) -> bool {
        match self {
            Self::Log => false,
            Self::File(file) => file.is_torn(),
        }
    }

    /// Ends a batch as in [`Lines::batch_ends`]; the agent's log is never made durable.
    pub(super) fn batch_ends(&mut self) -> io::Result<()> {
        self.file().map_or(Ok(()), Lines::batch_ends)
    }

    pub(super) fn due(&self) -> Option<Instant> {
        match self {
            Self::Log => None,
            Self::File(file) => file.due(),
        }
    }

    /// Makes written lines durable: now, or if it is time.
    pub(super) fn make_durable(&mut self, now: bool) -> io::Result<()> {
        match (self.file(), now) {
            (None, _) => Ok(()),
            (Some(file), true) => file.make_durable(),
            (Some(file), false) => file.make_durable_if_due(),
        }
    }

    fn file(&mut self) -> Option<&mut Lines> {
        match self {
            Self::Log => None,
            Self::File(file) => Some(file),
        }
    }
}
