//! [`Export`]: a ring for each thread that writes, and the thread that reads them all.

use std::{
    cell::RefCell,
    io,
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{
            AtomicBool, AtomicU64, AtomicUsize,
            Ordering::{Acquire, Relaxed, Release},
        },
    },
    thread,
    time::{Duration, Instant},
};

use crate::{
    bell::Bell,
    ring::{self, Full, Reader, Writer},
};

/// The most bytes of a thread that were not read yet. Some thousand records: tens of milliseconds
/// of what one thread can carry.
pub const RING_BYTES: usize = 1 << 20;

/// The most threads that write to one export. The agent has one for each core; more are refused.
pub const MAX_RINGS: usize = 256;

/// The pause between two batches. A record is late by at most this, and a ring takes longer to
/// fill.
const DOZE: Duration = Duration::from_millis(2);

/// The size from which on a batch says that more is on its way: the consumer looks again at once.
const MUCH_BYTES: usize = RING_BYTES / 16;

/// The number of pauses in a row without anything new after which the consumer sleeps.
const DOZES_BEFORE_SLEEP: u32 = 50;

/// The receiver of records. All of it runs on the export's own thread, which may wait.
pub trait Sink: Send + 'static {
    /// Takes a record, as it was written.
    fn record(&mut self, record: &[u8]);

    /// Ends a batch: there are no more records for now.
    fn batch_ends(&mut self);

    /// Returns the time when [`Self::on_due`] is to be called even if nothing is written.
    fn due(&self) -> Option<Instant> {
        None
    }

    /// Handles the time that [`Self::due`] has named.
    fn on_due(&mut self) {}

    /// Ends the sink: there will be no more records.
    fn end(&mut self) {}
}

/// The handle of a ring for each writing thread, and of the thread that reads them. When the last
/// handle is dropped, the written records are still read, and then the thread ends.
#[derive(Debug)]
pub struct Export {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    /// The number of this export, unique in the process.
    number: u64,
    ring_bytes: usize,
    bell: Bell,
    /// The rings of threads that have begun to write, and that the consumer does not know yet.
    arrivals: Mutex<Vec<Reader>>,
    has_arrivals: AtomicBool,
    rings: AtomicUsize,
    /// Set when nobody writes any more.
    ended: AtomicBool,
    /// Set when the sink is wanted to be [due](Sink::on_due) now.
    is_called: AtomicBool,
}

struct Mine {
    number: u64,
    export: Weak<Shared>,
    writer: Writer,
}

thread_local! {
    /// The rings of this thread, one for each export.
    static MINE: RefCell<Vec<Mine>> = const { RefCell::new(Vec::new()) };
}

static NUMBERS: AtomicU64 = AtomicU64::new(0);

impl Export {
    /// Starts the export's thread.
    ///
    /// # Errors
    /// No more threads can be started.
    pub fn start(name: &str, sink: impl Sink) -> io::Result<Self> {
        Self::with_rings_of(RING_BYTES, name, sink)
    }

    /// Starts the export's thread, with rings of another size.
    ///
    /// # Errors
    /// No more threads can be started.
    pub fn with_rings_of(ring_bytes: usize, name: &str, sink: impl Sink) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            number: NUMBERS.fetch_add(1, Relaxed),
            ring_bytes,
            bell: Bell::default(),
            arrivals: Mutex::default(),
            has_arrivals: AtomicBool::new(false),
            rings: AtomicUsize::new(0),
            ended: AtomicBool::new(false),
            is_called: AtomicBool::new(false),
        });
        let consumer = Consumer {
            shared: shared.clone(),
            rings: Vec::new(),
            sink,
        };
        thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || consumer.run())?;
        Ok(Self { shared })
    }

    /// Writes a record into this thread's ring. It never waits.
    ///
    /// # Errors
    /// There is no room, and nothing of it was written.
    pub fn push(&self, record: &[u8]) -> Result<(), Full> {
        let shared = &self.shared;
        MINE.with_borrow_mut(|mine| {
            let known = mine.iter_mut().find(|mine| mine.number == shared.number);
            let writer = match known {
                Some(mine) => &mut mine.writer,
                None => begin(shared, mine).ok_or(Full::Now)?,
            };
            let pushed = writer.push(record);
            // A full ring stays full if the reader is not woken.
            shared.bell.ring(pushed.is_err() || writer.is_half_full());
            pushed
        })
    }

    /// Calls the sink as if it were [due](Sink::on_due), after everything that this thread has
    /// written, because something changed that the sink has to look at.
    pub fn call(&self) {
        self.shared.is_called.store(true, Release);
        self.shared.bell.wake();
    }
}

impl Drop for Export {
    fn drop(&mut self) {
        self.shared.ended.store(true, Release);
        self.shared.bell.wake();
    }
}

/// Begins this thread's ring for an export that it has not written to yet. None: the export has too
/// many rings.
#[cold]
fn begin<'m>(shared: &Arc<Shared>, mine: &'m mut Vec<Mine>) -> Option<&'m mut Writer> {
    mine.retain(|mine| {
        mine.export
            .upgrade()
            .is_some_and(|e| !e.ended.load(Relaxed))
    });
    if shared.rings.fetch_add(1, Relaxed) >= MAX_RINGS {
        shared.rings.fetch_sub(1, Relaxed);
        return None;
    }
    let (writer, reader) = ring::ring(shared.ring_bytes);
    let mut arrivals = shared
        .arrivals
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    arrivals.push(reader);
    drop(arrivals);
    shared.has_arrivals.store(true, Release);
    mine.push(Mine {
        number: shared.number,
        export: Arc::downgrade(shared),
        writer,
    });
    mine.last_mut().map(|mine| &mut mine.writer)
}

struct Consumer<S> {
    shared: Arc<Shared>,
    rings: Vec<Reader>,
    sink: S,
}

impl<S: Sink> Consumer<S> {
    fn run(mut self) {
        self.shared.bell.set_sleeper();
        let mut quiet = 0;
        loop {
            // A thread that has ended has written everything before.
            let ended = self.shared.ended.load(Acquire);
            // A thread that calls has, too.
            let is_called = self.shared.is_called.swap(false, Acquire);
            let found = self.batch();
            if ended && found.is_none() {
                return self.sink.end();
            }
            if is_called || self.sink.due().is_some_and(|due| due <= Instant::now()) {
                self.sink.on_due();
            }
            quiet = if found.is_some() { 0 } else { quiet + 1 };
            match quiet < DOZES_BEFORE_SLEEP {
                _ if ended => {}
                _ if found.is_some_and(|bytes| bytes >= MUCH_BYTES) => thread::yield_now(),
                true => self.shared.bell.doze(DOZE),
                false => self.sleep(),
            }
        }
    }

    /// Reads a batch. Returns its bytes; None: there was no record.
    fn batch(&mut self) -> Option<usize> {
        if self.shared.has_arrivals.swap(false, Acquire) {
            let mut arrivals = self
                .shared
                .arrivals
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            self.rings.append(&mut arrivals);
        }
        let (mut records, mut bytes) = (0, 0);
        for ring in &mut self.rings {
            records += ring.drain(|record| {
                bytes += record.len();
                self.sink.record(record);
            });
        }
        if records > 0 {
            self.sink.batch_ends();
        }
        let before = self.rings.len();
        // A thread that is gone wrote nothing behind that.
        self.rings
            .retain(|ring| !ring.is_ended() || !ring.is_empty());
        self.shared
            .rings
            .fetch_sub(before - self.rings.len(), Relaxed);
        (records > 0).then_some(bytes)
    }

    fn sleep(&self) {
        let Self { shared, rings, .. } = self;
        let time = self.sink.due();
        let time = time.map(|due| due.saturating_duration_since(Instant::now()));
        shared.bell.sleep(time, || {
            rings.iter().all(|ring| ring.is_empty() && !ring.is_ended())
                && !shared.has_arrivals.load(Acquire)
                && !shared.is_called.load(Acquire)
                && !shared.ended.load(Acquire)
        });
    }
}
