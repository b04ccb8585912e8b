//! Journals: JSON lines that reporters write to a file, or to the agent's log, off the threads on
//! which bytes move.
//!
//! There is one journal for each path, however many rules name it, and it outlives a reload that
//! still names it. A flow's thread hands a record to its [ring](export::Export); the journal's own
//! thread makes a line of it and writes it. A record that does not fit is dropped and counted, or
//! its flow is held, as the configuration says.

mod metrics;
mod place;
mod writing;

use std::{
    collections::HashMap,
    path::PathBuf,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use export::{Export, Full};
pub use metrics::JournalMetrics;
use parking_lot::{Condvar, Mutex, MutexGuard};
pub use place::{LEAST_BYTES, MOST_KEPT, Place, fsync, keep, max_bytes};
use writing::Writing;

/// The most bytes of a thread that a journal's own has not read yet: a second at 50,000 records of 300 bytes. A page of them
/// is there once it was written to.
pub(crate) const RING_BYTES: usize = 16 << 20;

/// The most bytes that flows which have ended leave to a journal that has no room. Beyond it,
/// records are lost.
const MAX_LEFT_BYTES: usize = 16 << 20;

/// Treatment of a record for which there is no room.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    serde::Deserialize,
    serde::Serialize,
    schemars::JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum WhenFull {
    /// The record is lost, and counted.
    #[default]
    Drop,
    /// The flow waits: nothing more is read from its client before there is room.
    Hold,
}

/// The settings of a journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalSettings {
    /// The place where the lines go.
    pub to: Place,
    /// The treatment of a record for which there is no room.
    pub when_full: WhenFull,
}

/// A function that makes a line of a record, with the line's end. It makes nothing of a record that
/// it does not understand.
pub type Format = fn(&[u8], &mut Vec<u8>);

/// The identity of a journal: its path, or in the agent's log its name.
#[derive(Debug, PartialEq, Eq, Hash)]
enum At {
    Log(&'static str),
    File(PathBuf),
}

/// The open journals.
#[derive(Debug)]
pub struct Journals {
    open: Mutex<HashMap<At, Weak<Journal>>>,
    pub(super) metrics: JournalMetrics,
}

/// An open journal.
#[derive(Debug)]
pub struct Journal {
    export: Export,
    kept: Arc<Kept>,
    when_full: AtomicBool,
}

/// The state that a journal's thread shares with all others.
#[derive(Debug)]
struct Kept {
    /// The label `journal` of the metrics.
    name: &'static str,
    /// The place as it was opened.
    to: Place,
    metrics: JournalMetrics,
    asked: Mutex<Asked>,
    /// The number of times that the thread has done what was asked.
    done: Mutex<u64>,
    is_done: Condvar,
}

/// The requests to a journal's thread.
#[derive(Debug, Default)]
struct Asked {
    /// New settings, with which the file is to be opened again.
    settings: Option<JournalSettings>,
    /// Records that flows which have ended could not write.
    left: Vec<Box<[u8]>>,
    left_bytes: usize,
    /// Set when the thread is not to wait for a disk any more.
    ends: bool,
}

impl Journals {
    /// Makes the register; no journal is open yet.
    pub fn new(metrics: JournalMetrics) -> Self {
        Self {
            open: Mutex::default(),
            metrics,
        }
    }

    /// Opens the journal at this path. One that is open already is opened again, with these
    /// settings from here on.
    ///
    /// # Errors
    /// The place cannot be written to.
    pub fn open(
        &self,
        name: &'static str,
        settings: &JournalSettings,
        format: Format,
    ) -> Result<Arc<Journal>, String> {
        let to = &settings.to;
        let cannot = |error| format!("cannot write to {to}: {error}");
        // Opened even if one is open, so that a reload learns of an error.
        let target = to.open().map_err(cannot)?;
        let at = match to.path() {
            None => At::Log(name),
            Some(path) => At::File(path.to_owned()),
        };
        let mut open = self.open.lock();
        open.retain(|_, journal| journal.strong_count() > 0);
        if let Some(journal) = open.get(&at).and_then(Weak::upgrade) {
            journal.apply_settings(settings.clone());
            return Ok(journal);
        }
        let kept = Arc::new(Kept {
            name,
            to: to.clone(),
            metrics: self.metrics.clone(),
            asked: Mutex::default(),
            done: Mutex::default(),
            is_done: Condvar::new(),
        });
        let writing = Writing::new(target, kept.clone(), settings.when_full, format);
        let journal = Arc::new(Journal {
            export: Export::with_rings_of(RING_BYTES, name, writing).map_err(cannot)?,
            kept,
            when_full: AtomicBool::new(settings.when_full == WhenFull::Hold),
        });
        open.insert(at, Arc::downgrade(&journal));
        Ok(journal)
    }

    /// Writes all records before the agent ends, unless that takes longer than `patience` for one
    /// journal.
    pub fn finish(&self, patience: Duration) {
        let open = self.open.lock();
        for journal in open.values().filter_map(Weak::upgrade) {
            journal.finish(patience);
        }
    }
}

impl Journal {
    /// Hands a record over. Never waits.
    ///
    /// # Errors
    /// There is no room. The record is not counted.
    pub fn push(&self, record: &[u8]) -> Result<(), Full> {
        self.export.push(record)
    }

    /// Whether a flow is held when there is no room.
    pub fn holds(&self) -> bool {
        self.when_full.load(Relaxed)
    }

    /// Counts a record that is not written because there is no room.
    pub fn drops(&self, why: Full) {
        self.kept.metrics.dropped(self.kept.name, why);
    }

    /// Counts a flow that is held.
    pub fn count_held(&self) {
        self.kept.metrics.held(self.kept.name);
    }

    /// Takes over the waiting records of a held flow that has ended.
    pub fn take_over_left(&self, records: impl IntoIterator<Item = Box<[u8]>>) {
        let mut asked = self.kept.asked();
        for record in records {
            match asked.left_bytes + record.len() > MAX_LEFT_BYTES {
                true => self.drops(Full::Now),
                false => {
                    asked.left_bytes += record.len();
                    asked.left.push(record);
                }
            }
        }
        drop(asked);
        self.export.call();
    }

    fn apply_settings(&self, settings: JournalSettings) {
        let holds = settings.when_full == WhenFull::Hold;
        self.when_full.store(holds, Relaxed);
        self.kept.asked().settings = Some(settings);
        self.export.call();
    }

    fn finish(&self, patience: Duration) {
        self.kept.asked().ends = true;
        // The first call may find the thread in work that it began before.
        for _ in 0..2 {
            let mut done = self.kept.done.lock();
            let before = *done;
            self.export.call();
            let is_done = &self.kept.is_done;
            let waited = is_done.wait_while_for(&mut done, |done| *done == before, patience);
            drop(done);
            if waited.timed_out() {
                let to = &self.kept.to;
                tracing::warn!(%to, "not everything could be written before the agent ended");
                return;
            }
        }
    }
}

impl Drop for Journal {
    /// Tells the thread that nobody waits for its disk any more.
    fn drop(&mut self) {
        self.kept.asked().ends = true;
    }
}

impl Kept {
    fn asked(&self) -> MutexGuard<'_, Asked> {
        self.asked.lock()
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, io::Read, os::unix::fs::OpenOptionsExt, path::Path, thread, time::Instant};

    use export::Fsync;
    use prometheus::Registry;
    use test_hooks::TestHooks;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(10);

    fn as_it_is(record: &[u8], to: &mut Vec<u8>) {
        to.extend_from_slice(record);
        to.push(b'\n');
    }

    fn settings(path: &Path, when_full: WhenFull) -> JournalSettings {
        JournalSettings {
            to: Place::file(path.to_owned(), 1 << 20, 1, Fsync::Batch).unwrap(),
            when_full,
        }
    }

    fn journals() -> Journals {
        Journals::new(JournalMetrics::register(&Registry::new()).unwrap())
    }

    fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !holds() {
            assert!(Instant::now() < deadline, "never: {what}");
            thread::sleep(Duration::from_millis(2));
        }
    }

    #[test]
    fn one_path_is_one_journal() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("j");
        let journals = journals();
        let open = |when| {
            journals
                .open("j", &settings(&path, when), as_it_is)
                .unwrap()
        };
        let first = open(WhenFull::Drop);
        assert!(!first.holds());
        let again = open(WhenFull::Hold);
        assert!(Arc::ptr_eq(&first, &again) && first.holds());
        first.push(b"{}").unwrap();
        drop((first, again));
        eventually("it is written", || fs::read(&path).unwrap() == b"{}\n");
        let anew = open(WhenFull::Drop);
        anew.push(b"{\"n\":2}").unwrap();
        journals.finish(PATIENCE);
        assert_eq!(fs::read(&path).unwrap(), b"{}\n{\"n\":2}\n");
        // What was never a journal is nobody's to write to.
        fs::write(folder.path().join("policy"), "[agent]\n").unwrap();
        let policy = settings(&folder.path().join("policy"), WhenFull::Drop);
        let refused = journals.open("j", &policy, as_it_is).unwrap_err();
        assert!(refused.contains("is no journal"), "{refused}");
    }

    /// Lets journals be a pipe or a device, which stand for slow and full disks.
    fn any_journal() {
        test_hooks::set(TestHooks {
            any_journal: true,
            ..TestHooks::default()
        });
    }

    #[test]
    fn what_ended_flows_leave_is_written() {
        any_journal();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pipe");
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let mut options = fs::OpenOptions::new();
        let options = options.read(true).write(true);
        let options = options.custom_flags(nix::libc::O_NONBLOCK);
        let mut reader = options.open(&path).unwrap();
        // As large as a pipe gets: the thread waits each time that it is full.
        let large = nix::fcntl::FcntlArg::F_SETPIPE_SZ(1 << 20);
        nix::fcntl::fcntl(&reader, large).unwrap();
        let journals = journals();
        let settings = settings(&path, WhenFull::Hold);
        let journal = journals.open("j", &settings, as_it_is).unwrap();
        let record = [b'x'; 999];
        let mut pushed = 0;
        // The thread takes some records out before the pipe is full.
        eventually("it is full", || {
            while journal.push(&record).is_ok() {
                pushed += 1;
            }
            // With the few bytes that a record has before it in the ring.
            pushed * (record.len() + 16) > RING_BYTES
        });
        journal.take_over_left([Box::from(&b"last"[..])]);
        let mut all = Vec::new();
        eventually("all is written", || {
            let _ = reader.read_to_end(&mut all);
            all.ends_with(b"last\n")
        });
        assert_eq!(all.len(), pushed * 1000 + 5);
    }

    #[test]
    fn nobody_waits_for_a_disk_when_the_agent_ends() {
        any_journal();
        let journals = journals();
        let settings = settings(Path::new("/dev/full"), WhenFull::Hold);
        let journal = journals.open("j", &settings, as_it_is).unwrap();
        journal.push(b"1").unwrap();
        let failures = || journal.kept.metrics.failures("j");
        eventually("it has tried twice", || failures() > 1);
        let began = Instant::now();
        journals.finish(PATIENCE);
        assert!(began.elapsed() < PATIENCE);
    }
}
