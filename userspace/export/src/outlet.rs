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

/// What a thread may have written that was not read yet. Some thousand records: tens of milliseconds of what
/// one thread can carry.
pub const RING_BYTES: usize = 1 << 20;

/// Threads that write to one export. The agent has one for each core; more are refused.
pub const MAX_RINGS: usize = 256;

/// Between two batches. What is exported is late by at most this, and a ring takes longer to fill.
const DOZE: Duration = Duration::from_millis(2);

/// A batch of so many bytes says that more is on its way: the consumer looks again at once.
const MUCH_BYTES: usize = RING_BYTES / 16;

/// So many times in a row without anything new, and the consumer sleeps.
const DOZES_BEFORE_SLEEP: u32 = 50;

/// What becomes of records. All of it happens on the export's own thread, which may wait.
pub trait Sink: Send + 'static {
    /// A record, as it was written.
    fn record(&mut self, record: &[u8]);

    /// Those were all for now.
    fn batch_ends(&mut self);

    /// When it is to be [called](Self::is_due) though nothing was written.
    fn due(&self) -> Option<Instant> {
        None
    }

    /// That moment has come.
    fn is_due(&mut self) {}

    /// Everything was written that ever will be.
    fn end(&mut self) {}
}

/// See the module. When the last of its handles is gone, what was written is still read, and then its thread ends.
#[derive(Debug)]
pub struct Export {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    /// No two in one process have the same.
    number: u64,
    ring_bytes: usize,
    bell: Bell,
    /// Of threads that have begun to write, and that the consumer does not know yet.
    arrivals: Mutex<Vec<Reader>>,
    has_arrivals: AtomicBool,
    rings: AtomicUsize,
    /// Nobody writes any more.
    ended: AtomicBool,
    /// Somebody wants the sink to be [due](Sink::is_due) now.
    is_called: AtomicBool,
}

struct Mine {
    number: u64,
    export: Weak<Shared>,
    writer: Writer,
}

thread_local! {
    /// This thread's rings: of one export each, and of a few.
    static MINE: RefCell<Vec<Mine>> = const { RefCell::new(Vec::new()) };
}

static NUMBERS: AtomicU64 = AtomicU64::new(0);

impl Export {
    /// Starts its thread.
    ///
    /// # Errors
    /// There can be no more threads.
    pub fn start(name: &str, sink: impl Sink) -> io::Result<Self> {
        Self::with_rings_of(RING_BYTES, name, sink)
    }

    /// The same, with rings of another size.
    ///
    /// # Errors
    /// There can be no more threads.
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
            // One that is full stays so if the reader is not woken.
            shared.bell.ring(pushed.is_err() || writer.is_half_full());
            pushed
        })
    }

    /// Has the sink called as if it were [due](Sink::is_due), behind everything that this thread has written:
    /// something changed that it has to look at.
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

/// This thread's ring of an export that it has not written to yet. None: it has too many.
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
        self.shared.bell.is_mine();
        let mut quiet = 0;
        loop {
            // Whoever has ended has written everything before.
            let ended = self.shared.ended.load(Acquire);
            // Likewise whoever calls.
            let is_called = self.shared.is_called.swap(false, Acquire);
            let found = self.batch();
            if ended && found.is_none() {
                return self.sink.end();
            }
            if is_called || self.sink.due().is_some_and(|due| due <= Instant::now()) {
                self.sink.is_due();
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

    /// How many bytes there were; None: no record.
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
