//! Lines for files and for the agent's log, written by a thread of their own.
//!
//! Whoever has one never waits: what does not fit into the queue is dropped, and counted. A file is
//! opened when something is written to it, and again when it was moved away or removed, as log rotation
//! does.

use std::{
    collections::HashMap,
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::{Arc, OnceLock, mpsc as std_mpsc},
    thread,
    time::{Duration, Instant},
};

use prometheus::{IntCounterVec, Opts, Registry};
use tokio::sync::mpsc;

/// Lines that wait to be written. At most 4 KiB each, usually 600 bytes: what a disk that hangs for a
/// moment makes wait, and 16 MiB at worst.
const MAX_WAITING: usize = 4_096;

/// Files that are open at the same time. When one more is wanted, all are closed first.
const MAX_OPEN: usize = 32;

/// A file that was moved away is written to for as long as this.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Lines that are written in one go.
const MAX_BATCH: usize = 256;

/// How long an agent that ends waits for its last lines.
const PATIENCE: Duration = Duration::from_secs(2);

/// Only for who runs the agent and their group.
const MODE: u32 = 0o640;

/// Where lines go.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// The agent's own log.
    Log,
    /// This file, at its end.
    File(PathBuf),
}

/// The way to the thread.
#[derive(Debug)]
pub struct Lines {
    queue: OnceLock<mpsc::Sender<Task>>,
    counted: IntCounterVec,
}

#[derive(Debug)]
enum Task {
    Write(Line),
    /// Says when everything before it is done.
    Tell(std_mpsc::SyncSender<()>),
}

#[derive(Debug)]
struct Line {
    of: &'static str,
    to: Arc<Place>,
    text: String,
}

impl Lines {
    /// Declares and registers their metric.
    ///
    /// # Errors
    /// Another metric of that name.
    pub fn register(registry: &Registry) -> prometheus::Result<Self> {
        let opts = Opts::new(
            "underpass_reporter_lines_total",
            "Lines of reporters that were `written`, `dropped` because too many waited, or `failed` to \
             be written.",
        );
        let counted = IntCounterVec::new(opts, &["reporter", "outcome"])?;
        registry.register(Box::new(counted.clone()))?;
        Ok(Self {
            queue: OnceLock::new(),
            counted,
        })
    }

    /// Gives the metric a first sample, so that the documentation sees it.
    pub fn declare_for_docs(&self) {
        self.counted.with_label_values(&["", ""]);
    }

    /// Writes a line, without the end of it, for a reporter. Does not wait; `text` is only made if it fits.
    pub fn write(&self, of: &'static str, to: &Arc<Place>, text: impl FnOnce() -> String) {
        let queue = self.queue.get_or_init(|| start(self.counted.clone()));
        match queue.try_reserve() {
            Ok(permit) => permit.send(Task::Write(Line {
                of,
                to: to.clone(),
                text: text(),
            })),
            Err(_) => self.counted.with_label_values(&[of, "dropped"]).inc(),
        }
    }

    /// Waits for a while until what has been said so far is written.
    pub fn finish(&self) {
        let Some(queue) = self.queue.get() else {
            return;
        };
        let (tell, told) = std_mpsc::sync_channel(1);
        if queue.try_send(Task::Tell(tell)).is_ok() {
            // What is not written by then is lost.
            let _ = told.recv_timeout(PATIENCE);
        }
    }
}

/// Without a thread, everything is dropped.
fn start(counted: IntCounterVec) -> mpsc::Sender<Task> {
    let (queue, tasks) = mpsc::channel(MAX_WAITING);
    let writer = Writer {
        open: HashMap::new(),
        looked: Instant::now(),
        failing: None,
        counted,
    };
    let thread = thread::Builder::new().name("lines".into());
    if let Err(error) = thread.spawn(|| writer.run(tasks)) {
        tracing::error!(%error, "nothing that reporters say is written");
    }
    queue
}

struct Writer {
    open: HashMap<PathBuf, Open>,
    /// When files were last looked for under their names.
    looked: Instant,
    /// What was last complained about.
    failing: Option<PathBuf>,
    counted: IntCounterVec,
}

struct Open {
    file: File,
    /// Device and inode.
    id: (u64, u64),
    /// What goes there with the next write.
    text: String,
    /// Lines in it, by reporter.
    lines: HashMap<&'static str, u64>,
}

impl Writer {
    fn run(mut self, mut tasks: mpsc::Receiver<Task>) {
        let mut batch = Vec::with_capacity(MAX_BATCH);
        while tasks.blocking_recv_many(&mut batch, MAX_BATCH) > 0 {
            if self.looked.elapsed() >= LOOK_EVERY {
                self.looked = Instant::now();
                self.open.retain(|path, open| open.is_at(path));
            }
            let mut done = Vec::new();
            for task in batch.drain(..) {
                match task {
                    Task::Write(line) => self.take(line),
                    Task::Tell(whom) => done.push(whom),
                }
            }
            self.write_all();
            for whom in done {
                // It may have waited long enough.
                let _ = whom.try_send(());
            }
        }
    }

    fn take(&mut self, line: Line) {
        match &*line.to {
            Place::Log => {
                tracing::info!(target: "underpass", "{}: {}", line.of, line.text);
                self.count(line.of, "written", 1);
            }
            Place::File(path) => match self.open(path) {
                Ok(open) => {
                    open.text.push_str(&line.text);
                    open.text.push('\n');
                    *open.lines.entry(line.of).or_default() += 1;
                }
                Err(error) => {
                    self.count(line.of, "failed", 1);
                    self.complain(path, &error);
                }
            },
        }
    }

    fn open(&mut self, path: &Path) -> io::Result<&mut Open> {
        if !self.open.contains_key(path) {
            if self.open.len() >= MAX_OPEN {
                self.write_all();
                self.open.clear();
            }
            let open = Open::at(path)?;
            self.open.insert(path.to_owned(), open);
        }
        self.open
            .get_mut(path)
            .ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn write_all(&mut self) {
        let mut failed = None;
        for (path, open) in &mut self.open {
            if open.text.is_empty() {
                continue;
            }
            let written = open.file.write_all(open.text.as_bytes());
            open.text.clear();
            let outcome = match &written {
                Ok(()) => "written",
                Err(_) => "failed",
            };
            for (of, lines) in open.lines.drain() {
                self.counted.with_label_values(&[of, outcome]).inc_by(lines);
            }
            match written {
                Ok(()) if self.failing.as_ref() == Some(path) => self.failing = None,
                Ok(()) => {}
                Err(error) => failed = Some((path.clone(), error)),
            }
        }
        if let Some((path, error)) = failed {
            self.open.remove(&path);
            self.complain(&path, &error);
        }
    }

    fn count(&self, of: &str, outcome: &str, lines: u64) {
        self.counted.with_label_values(&[of, outcome]).inc_by(lines);
    }

    /// Once, until it is written to again.
    fn complain(&mut self, path: &Path, error: &io::Error) {
        if self.failing.as_deref() != Some(path) {
            tracing::warn!(%error, path = %path.display(), "lines of reporters are lost");
            self.failing = Some(path.to_owned());
        }
    }
}

impl Open {
    fn at(path: &Path) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        let file = options.append(true).create(true).mode(MODE).open(path)?;
        let found = file.metadata()?;
        Ok(Self {
            file,
            id: (found.dev(), found.ino()),
            text: String::new(),
            lines: HashMap::new(),
        })
    }

    fn is_at(&self, path: &Path) -> bool {
        fs::metadata(path).is_ok_and(|found| (found.dev(), found.ino()) == self.id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines() -> Lines {
        Lines::register(&Registry::new()).unwrap()
    }

    fn counted(lines: &Lines, outcome: &str) -> u64 {
        lines.counted.with_label_values(&["r", outcome]).get()
    }

    #[test]
    fn lines_are_appended_in_order_also_after_a_rotation() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("slow");
        let to = Arc::new(Place::File(path.clone()));
        let lines = lines();
        for n in 0..1000 {
            lines.write("r", &to, || n.to_string());
        }
        lines.finish();
        let expected: String = (0..1000).map(|n| format!("{n}\n")).collect();
        assert_eq!(fs::read_to_string(&path).unwrap(), expected);
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o007, 0);
        fs::rename(&path, folder.path().join("slow.1")).unwrap();
        let patience = Instant::now();
        while !path.exists() {
            assert!(patience.elapsed() < Duration::from_secs(20));
            lines.write("r", &to, || "later".to_owned());
            lines.finish();
            thread::sleep(Duration::from_millis(20));
        }
        assert_eq!(fs::read_to_string(&path).unwrap(), "later\n");
        assert_eq!(counted(&lines, "failed") + counted(&lines, "dropped"), 0);
    }

    #[test]
    fn what_does_not_fit_is_dropped_and_nobody_waits() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pipe");
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let to = Arc::new(Place::File(path.clone()));
        let lines = lines();
        // Nobody reads the pipe, so that its writer cannot even open it.
        let all = MAX_WAITING + MAX_BATCH + 100;
        for n in 0..all {
            lines.write("r", &to, || n.to_string());
        }
        assert!(counted(&lines, "dropped") >= 100);
        let mut reader = File::open(&path).unwrap();
        let copied = thread::spawn(move || {
            let mut text = Vec::new();
            let mut piece = [0; 4096];
            // Until the first and some of the others have come.
            while !text.ends_with(b"\n") || text.is_empty() {
                let got = io::Read::read(&mut reader, &mut piece).unwrap();
                text.extend_from_slice(&piece[..got]);
            }
            (reader, text)
        });
        let (_reader, text) = copied.join().unwrap();
        assert!(text.starts_with(b"0\n1\n"));
    }

    #[test]
    fn a_file_that_cannot_be_written_is_counted() {
        let lines = lines();
        let to = Arc::new(Place::File("/proc/nowhere/slow".into()));
        lines.write("r", &to, || "x".to_owned());
        lines.finish();
        assert_eq!(counted(&lines, "failed"), 1);
        assert_eq!(counted(&lines, "written"), 0);
    }
}
