//! The compared ways out of a thread. Each has a writer for each thread, and one reader for all.

use std::{
    sync::{
        Arc,
        atomic::{
            AtomicBool, AtomicU64,
            Ordering::{Acquire, Release},
        },
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use export::{Export, RING_BYTES, Sink, ring};

use crate::words;

/// The names of the ways, in the order of the table.
pub const WAYS: [&str; 4] = ["export", "rtrb", "words", "mpsc"];

/// The counts of the readers.
#[derive(Clone, Default)]
pub struct Seen {
    records: Arc<AtomicU64>,
    over: Arc<AtomicBool>,
}

impl Seen {
    pub fn records(&self) -> u64 {
        self.records.load(Acquire)
    }

    fn is_over(&self) -> bool {
        self.over.load(Acquire)
    }
}

/// Writes a record, or says that there is no room.
pub type Write = Box<dyn FnMut(&[u8]) -> bool + Send>;

/// A way out of a thread, with its reader.
pub struct Way {
    pub writers: Vec<Write>,
    pub seen: Seen,
    reader: Option<JoinHandle<()>>,
}

impl Way {
    pub fn new(name: &str, writers: usize, record_bytes: usize) -> Self {
        let seen = Seen::default();
        match name {
            "export" => of_export(writers, seen),
            "rtrb" => of_rtrb(writers, seen),
            "words" => of_words(writers, seen),
            _ => of_mpsc(writers, record_bytes, seen),
        }
    }
}

impl Drop for Way {
    fn drop(&mut self) {
        self.seen.over.store(true, Release);
        self.writers.clear();
        if let Some(reader) = self.reader.take() {
            reader.join().unwrap();
        }
    }
}

/// The rings of `export` under what polls them and lets them sleep: what the agent uses.
fn of_export(writers: usize, seen: Seen) -> Way {
    struct Counts(Seen);
    impl Sink for Counts {
        fn record(&mut self, record: &[u8]) {
            std::hint::black_box(record);
            self.0.records.fetch_add(1, Release);
        }
        fn batch_ends(&mut self) {}
    }
    let export = Arc::new(Export::start("export", Counts(seen.clone())).unwrap());
    let writer = || {
        let export = export.clone();
        Box::new(move |record: &[u8]| export.push(record).is_ok()) as Write
    };
    Way {
        writers: (0..writers).map(|_| writer()).collect(),
        seen,
        reader: None,
    }
}

/// The rings of `export` alone, which are `rtrb`'s: nobody is woken.
fn of_rtrb(writers: usize, seen: Seen) -> Way {
    let (writers, mut readers): (Vec<_>, Vec<_>) = (0..writers)
        .map(|_| {
            let (mut writer, reader) = ring::ring(RING_BYTES);
            let write = Box::new(move |record: &[u8]| writer.push(record).is_ok()) as Write;
            (write, reader)
        })
        .unzip();
    let reader = poll(seen.clone(), move |seen| {
        let mut found = 0;
        for reader in &mut readers {
            reader.drain(|record| {
                found += record.len();
                std::hint::black_box(record);
                seen.records.fetch_add(1, Release);
            });
        }
        found
    });
    Way {
        writers,
        seen,
        reader: Some(reader),
    }
}

/// Rings of our own, polled likewise.
fn of_words(writers: usize, seen: Seen) -> Way {
    let (writers, mut readers): (Vec<_>, Vec<_>) = (0..writers)
        .map(|_| {
            let (mut writer, reader) = words::ring(RING_BYTES);
            let write = Box::new(move |record: &[u8]| writer.push(record)) as Write;
            (write, reader)
        })
        .unzip();
    let mut copy = Vec::new();
    let reader = poll(seen.clone(), move |seen| {
        let mut found = 0;
        for reader in &mut readers {
            reader.drain(&mut copy, |record| {
                found += record.len();
                std::hint::black_box(record);
                seen.records.fetch_add(1, Release);
            });
        }
        found
    });
    Way {
        writers,
        seen,
        reader: Some(reader),
    }
}

/// Makes the way with one channel for all writers, one send and one allocation for each record, and
/// as many bytes in all.
fn of_mpsc(writers: usize, record_bytes: usize, seen: Seen) -> Way {
    const AT_ONCE: usize = 1024;
    let records = writers * RING_BYTES / record_bytes;
    let (sender, mut receiver) = tokio::sync::mpsc::channel::<Box<[u8]>>(records);
    let writer = || {
        let sender = sender.clone();
        Box::new(move |record: &[u8]| sender.try_send(record.into()).is_ok()) as Write
    };
    let writers = (0..writers).map(|_| writer()).collect();
    let seen_here = seen.clone();
    let reader = thread::spawn(move || {
        let mut found = Vec::with_capacity(AT_ONCE);
        while receiver.blocking_recv_many(&mut found, AT_ONCE) > 0 {
            for record in found.drain(..) {
                std::hint::black_box(record);
                seen_here.records.fetch_add(1, Release);
            }
        }
    });
    Way {
        writers,
        seen,
        reader: Some(reader),
    }
}

/// Looks again as often as [`Export`] does while it dozes, and at once when there was much. `batch` says how many
/// bytes it found.
fn poll(seen: Seen, mut batch: impl FnMut(&Seen) -> usize + Send + 'static) -> JoinHandle<()> {
    const DOZE: Duration = Duration::from_millis(2);
    const MUCH: usize = RING_BYTES / 16;
    thread::spawn(move || {
        while !seen.is_over() {
            match batch(&seen) {
                MUCH.. => thread::yield_now(),
                _ => thread::sleep(DOZE),
            }
        }
    })
}
