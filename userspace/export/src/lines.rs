//! A file of lines: rotated by its size, made durable as wanted, opened again when it was moved
//! away.
//!
//! Only root can change the file, or put another one in its place: [`trusted`].
//!
//! The file has whole lines only: a line that a full disk has cut off is taken back, or else ended
//! by a line feed before the next one, as is one that a crash has cut off. A line is never in two files.

use std::{
    ffi::OsString,
    fs::{self, File, Metadata},
    io::{self, Write},
    os::unix::fs::{FileExt, MetadataExt},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

/// The file's mode. Lines may be about anybody, so only the owner, root, may read them.
const MODE: u32 = 0o600;

/// The time by which written lines have to be on the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fsync {
    /// The kernel decides: the agent's death loses nothing, the host's may.
    Never,
    /// Before the next batch is taken from the rings.
    Batch,
    /// At most this much later.
    Every(Duration),
}

/// The settings of a file of lines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinesSettings {
    /// The file's path.
    pub path: PathBuf,
    /// A file that would become larger is moved to `path.1`.
    pub max_bytes: u64,
    /// The number of moved files that are kept: `path.1` is the youngest. 0: the file is begun
    /// anew.
    pub keep: u32,
    /// The time by which written lines have to be on the disk.
    pub fsync: Fsync,
}

/// An open file of lines.
#[derive(Debug)]
pub struct Lines {
    settings: LinesSettings,
    open: Open,
    /// The time since when something is not durable.
    dirty_since: Option<Instant>,
}

/// The file that lines are written to now.
#[derive(Debug)]
struct Open {
    file: File,
    /// Whether the file can be cut, moved and made durable; a pipe cannot.
    is_regular: bool,
    bytes: u64,
    /// Whether the file ends with a part of a line that could not be taken back.
    is_torn: bool,
    /// Whether a crash of the host may leave a folder without the file's name.
    is_new: bool,
}

impl Lines {
    /// Opens the file, or makes it.
    ///
    /// # Errors
    /// It cannot be written to.
    pub fn open(settings: LinesSettings) -> io::Result<Self> {
        Ok(Self {
            open: Open::append(&settings.path)?,
            settings,
            dirty_since: None,
        })
    }

    /// Whether the file ends with a part of a line: behind [`Self::open`] and [`Self::reopen`], of whoever wrote last and
    /// was killed, or whose host has crashed.
    pub fn is_torn(&self) -> bool {
        self.open.is_torn
    }

    /// Takes over new settings, for the same path.
    pub fn apply_settings(&mut self, settings: LinesSettings) {
        self.settings = settings;
    }

    /// Opens the file that has this name now: the old one may have been moved away.
    ///
    /// # Errors
    /// The new file cannot be written to; the old one stays open.
    pub fn reopen(&mut self) -> io::Result<()> {
        self.make_durable()?;
        self.open = Open::append(&self.settings.path)?;
        Ok(())
    }

    /// Writes whole lines, or nothing of them. Whether the file was rotated before.
    ///
    /// # Errors
    /// The disk is full, or gone.
    pub fn write(&mut self, lines: &[u8]) -> io::Result<bool> {
        let len = lines.len() as u64;
        self.open.look()?;
        let open = &self.open;
        let rotates =
            open.is_regular && open.bytes > 0 && open.bytes + len > self.settings.max_bytes;
        if rotates && self.open.has_moved(&self.settings.path) {
            // Another agent has rotated, or whoever else moves files away.
            self.reopen()?;
        } else if rotates {
            self.rotate()?;
        }
        let open = &mut self.open;
        if open.is_torn {
            open.file.write_all(b"\n")?;
            open.is_torn = false;
            open.bytes += 1;
        }
        if let (written, Err(error)) = write_counted(&mut open.file, lines) {
            let is_alone =
                open.is_regular && open.len().is_ok_and(|len| len == open.bytes + written);
            let taken_back = is_alone && open.file.set_len(open.bytes).is_ok();
            open.is_torn = !taken_back && written > 0;
            return Err(error);
        }
        open.bytes += len;
        self.dirty_since.get_or_insert_with(Instant::now);
        Ok(rotates)
    }

    /// A batch ends with what was written.
    ///
    /// # Errors
    /// It may not be on the disk.
    pub fn batch_ends(&mut self) -> io::Result<()> {
        match self.settings.fsync {
            Fsync::Batch => self.make_durable(),
            Fsync::Never | Fsync::Every(_) => self.make_durable_if_due(),
        }
    }

    /// Returns the time when [`Self::make_durable_if_due`] is to be called.
    pub fn due(&self) -> Option<Instant> {
        match self.settings.fsync {
            Fsync::Every(time) => self.dirty_since.map(|since| since + time),
            Fsync::Never | Fsync::Batch => None,
        }
    }

    /// Makes written lines durable, if it is time.
    ///
    /// # Errors
    /// It may not be on the disk.
    pub fn make_durable_if_due(&mut self) -> io::Result<()> {
        match self.due() {
            Some(due) if due <= Instant::now() => self.make_durable(),
            _ => Ok(()),
        }
    }

    /// Puts what was written on the disk, unless nobody wants that.
    ///
    /// # Errors
    /// It may not be there.
    pub fn make_durable(&mut self) -> io::Result<()> {
        let is_dirty = self.dirty_since.take().is_some();
        if !is_dirty || !self.open.is_regular || self.settings.fsync == Fsync::Never {
            return Ok(());
        }
        self.open.file.sync_data()?;
        if self.open.is_new {
            let folder = self.settings.path.parent().unwrap_or(Path::new("/"));
            File::open(folder)?.sync_all()?;
            self.open.is_new = false;
        }
        Ok(())
    }

    fn rotate(&mut self) -> io::Result<()> {
        let LinesSettings { path, keep, .. } = &self.settings;
        if *keep == 0 {
            self.open.file.set_len(0)?;
            self.open.bytes = 0;
            self.open.is_torn = false;
            return Ok(());
        }
        // A move that was cut short is gone on with: what has its place already is not moved again.
        if path.exists() {
            let old = |n| numbered(path, n);
            let free = (1..*keep).find(|n| !old(*n).exists()).unwrap_or(*keep);
            for n in (1..free).rev() {
                fs::rename(old(n), old(n + 1))?;
            }
            fs::rename(path, old(1))?;
        }
        self.reopen()
    }
}

/// Writes all of it, and counts what was written also where that fails.
fn write_counted(file: &mut File, mut rest: &[u8]) -> (u64, io::Result<()>) {
    let mut written = 0;
    while !rest.is_empty() {
        match file.write(rest) {
            Ok(0) => return (written, Err(io::ErrorKind::WriteZero.into())),
            Ok(n) => {
                written += n as u64;
                rest = rest.get(n..).unwrap_or_default();
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return (written, Err(error)),
        }
    }
    (written, Ok(()))
}

/// The `n`th that was moved away.
fn numbered(path: &Path, n: u32) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(format!(".{n}"));
    name.into()
}

impl Open {
    /// Looks how long the file is: an agent that drains writes to it, too.
    fn look(&mut self) -> io::Result<()> {
        if self.is_regular {
            self.bytes = self.len()?;
        }
        Ok(())
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    /// Whether another file has the name by now.
    fn has_moved(&self, path: &Path) -> bool {
        let named = |found: Metadata| (found.dev(), found.ino());
        let (own, there) = (self.file.metadata(), fs::metadata(path));
        own.is_ok_and(|own| there.is_ok_and(|there| named(own) != named(there)))
    }

    fn append(path: &Path) -> io::Result<Self> {
        let file = trusted::open_to_append(path, MODE).map_err(io::Error::other)?;
        let found = file.metadata()?;
        let (is_regular, bytes) = (found.is_file(), found.len());
        let mut last = *b"\n";
        if is_regular && bytes > 0 {
            file.read_exact_at(&mut last, bytes - 1)?;
        }
        Ok(Self {
            file,
            is_regular,
            bytes,
            is_torn: last != *b"\n",
            is_new: bytes == 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use test_hooks::TestHooks;

    use super::*;

    fn settings(path: &Path) -> LinesSettings {
        LinesSettings {
            path: path.to_owned(),
            max_bytes: 10,
            keep: 2,
            fsync: Fsync::Every(Duration::ZERO),
        }
    }

    fn read(path: &Path) -> String {
        fs::read_to_string(path).unwrap_or_else(|e| e.kind().to_string())
    }

    #[test]
    fn of_two_who_write_to_a_file_neither_cuts_the_others_lines() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.log");
        // One drains, and the other has taken over.
        let mut both = [(); 2].map(|()| Lines::open(settings(&path)).unwrap());
        for (who, line) in [
            (0, "1\n"),
            (1, "22\n"),
            (0, "333\n"),
            (1, "4444\n"),
            (0, "55\n"),
            (1, "6\n"),
            (0, "7\n"),
        ] {
            both[who].write(line.as_bytes()).unwrap();
        }
        // The file that the one moved away is not moved on by the other, which finds the new one when its own is full.
        let kept = [numbered(&path, 2), numbered(&path, 1), path].map(|path| read(&path));
        let mut lines: Vec<_> = kept.concat().lines().map(str::to_owned).collect();
        lines.sort();
        assert_eq!(
            lines,
            ["1", "22", "333", "4444", "55", "6", "7"],
            "{kept:?}"
        );
    }

    #[test]
    fn files_are_moved_and_the_oldest_goes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.log");
        fs::write(&path, "old\n").unwrap();
        let mut lines = Lines::open(settings(&path)).unwrap();
        for (line, rotated) in [
            ("1\n", false),
            ("22\n", false),
            ("333333333\n", true),
            ("4\n", true),
            ("a line longer than a file\n", true),
            ("5\n", true),
        ] {
            assert_eq!(lines.write(line.as_bytes()).unwrap(), rotated, "{line}");
            lines.batch_ends().unwrap();
            assert_eq!(lines.due(), None);
        }
        assert_eq!(read(&path), "5\n");
        assert_eq!(read(&numbered(&path, 1)), "a line longer than a file\n");
        assert_eq!(read(&numbered(&path, 2)), "4\n");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 3);
    }

    #[test]
    fn without_old_files_it_begins_anew() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.log");
        let mut lines = Lines::open(LinesSettings {
            keep: 0,
            ..settings(&path)
        })
        .unwrap();
        lines.write(b"12345678\n").unwrap();
        assert!(lines.write(b"9\n0\n").unwrap());
        assert_eq!(read(&path), "9\n0\n");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn what_was_moved_away_is_left_when_it_is_opened_anew() {
        let folder = tempfile::tempdir().unwrap();
        let (path, moved) = (folder.path().join("a.log"), folder.path().join("a.old"));
        let mut lines = Lines::open(settings(&path)).unwrap();
        lines.write(b"1\n").unwrap();
        fs::rename(&path, &moved).unwrap();
        lines.write(b"2\n").unwrap();
        lines.reopen().unwrap();
        lines.write(b"3\n").unwrap();
        assert_eq!((read(&moved), read(&path)), ("1\n2\n".into(), "3\n".into()));
        // A file that cannot be opened leaves the old one open.
        fs::rename(&path, &moved).unwrap();
        fs::create_dir(&path).unwrap();
        lines.reopen().unwrap_err();
        lines.write(b"4\n").unwrap();
        assert_eq!(read(&moved), "3\n4\n");
    }

    /// A crash of the host leaves a part of a line, or a block of zeros; a kill leaves a part of a line.
    #[test]
    fn a_line_that_was_cut_off_is_ended_before_the_next() {
        let folder = tempfile::tempdir().unwrap();
        for (found, is_torn, left) in [
            ("", false, "2\n"),
            ("1\n", false, "1\n2\n"),
            ("1", true, "1\n2\n"),
            ("1\n\0\0", true, "1\n\0\0\n2\n"),
        ] {
            let path = folder.path().join("a.log");
            fs::write(&path, found).unwrap();
            let mut lines = Lines::open(settings(&path)).unwrap();
            assert_eq!(lines.is_torn(), is_torn, "{found:?}");
            lines.write(b"2\n").unwrap();
            assert!(!lines.is_torn());
            assert_eq!(read(&path), left, "{found:?}");
        }
    }

    /// A file's name is on the disk once its lines are, and those of files that were moved.
    #[test]
    fn a_new_file_is_in_its_folder_for_good() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.log");
        let mut lines = Lines::open(settings(&path)).unwrap();
        for line in ["12345678\n", "90123456\n"] {
            lines.write(line.as_bytes()).unwrap();
            assert!(lines.open.is_new, "{line}");
            lines.batch_ends().unwrap();
            assert!(!lines.open.is_new, "{line}");
        }
        // One that is not asked for costs nothing; one that fails is an error.
        let never = LinesSettings {
            fsync: Fsync::Never,
            ..settings(&folder.path().join("b.log"))
        };
        let mut lines = Lines::open(never).unwrap();
        lines.write(b"1\n").unwrap();
        fs::remove_dir_all(folder.path()).unwrap();
        lines.batch_ends().unwrap();
        lines.settings.fsync = Fsync::Batch;
        lines.write(b"2\n").unwrap();
        assert!(lines.batch_ends().is_err());
    }

    #[test]
    fn what_is_made_durable_and_when() {
        const HOUR: Duration = Duration::from_secs(3600);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.log");
        for (fsync, is_durable, is_due_later) in [
            (Fsync::Never, false, false),
            (Fsync::Batch, true, false),
            (Fsync::Every(HOUR), false, true),
            (Fsync::Every(Duration::ZERO), true, false),
        ] {
            let settings = LinesSettings {
                fsync,
                ..settings(&path)
            };
            let mut lines = Lines::open(settings).unwrap();
            lines.write(b"1\n").unwrap();
            lines.batch_ends().unwrap();
            assert_eq!(lines.dirty_since.is_none(), is_durable, "{fsync:?}");
            let due = lines.due();
            assert_eq!(due.is_some(), is_due_later, "{fsync:?}");
            assert!(due.is_none_or(|due| due > Instant::now()));
            lines.make_durable().unwrap();
            assert_eq!((lines.dirty_since, lines.due()), (None, None));
        }
    }

    /// A regular file that takes every write, and that the kernel does not make durable, but says so.
    #[test]
    fn the_kernel_is_asked_when_it_has_to_be() {
        let name = Path::new("/proc/thread-self/comm");
        for (fsync, is_asked) in [
            (Fsync::Never, false),
            (Fsync::Batch, true),
            (Fsync::Every(Duration::from_secs(3600)), false),
            (Fsync::Every(Duration::ZERO), true),
        ] {
            let mut lines = Lines::open(LinesSettings {
                fsync,
                max_bytes: u64::MAX,
                ..settings(name)
            })
            .unwrap();
            lines.write(b"a line\n").unwrap();
            let refused = lines.batch_ends().map_err(|error| error.kind());
            let expected = match is_asked {
                true => Err(io::ErrorKind::InvalidInput),
                false => Ok(()),
            };
            assert_eq!(refused, expected, "{fsync:?}");
        }
    }

    #[test]
    fn nobody_else_may_read_it() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.log");
        Lines::open(settings(&path)).unwrap();
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, MODE);
        assert!(Lines::open(settings(&folder.path().join("no/a.log"))).is_err());
    }

    #[test]
    fn a_full_disk_is_an_error() {
        test_hooks::set(TestHooks {
            any_journal: true,
            ..TestHooks::default()
        });
        let mut lines = Lines::open(settings(Path::new("/dev/full"))).unwrap();
        let error = lines.write(b"1\n").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    }
}
