//! The work of a journal's own thread: records become lines in its file.

use std::{
    io,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use export::Sink;

use super::{Format, Kept, WhenFull, metrics::Failed, place::Target};

/// The bytes of lines that are written at once.
const WRITE_BYTES: usize = 64 << 10;

/// The pause before a file that cannot be written to is tried again, where flows are held for it.
const TRY_AGAIN: Duration = Duration::from_millis(100);

pub(super) struct Writing {
    target: Target,
    kept: Arc<Kept>,
    when_full: WhenFull,
    format: Format,
    text: Vec<u8>,
    /// The number of records in `text`.
    records: u64,
    /// Set while the file fails, so that this is logged once, and again when it works.
    fails: bool,
}

impl Writing {
    pub(super) fn new(
        target: Target,
        kept: Arc<Kept>,
        when_full: WhenFull,
        format: Format,
    ) -> Self {
        let writing = Self {
            target,
            kept,
            when_full,
            format,
            text: Vec::new(),
            records: 0,
            fails: false,
        };
        writing.tell_if_torn();
        writing
    }

    /// Tells of a part of a line at the end of the file that was opened. The next line begins behind it.
    fn tell_if_torn(&self) {
        if self.target.is_torn() {
            let (journal, to) = (self.kept.name, &self.kept.to);
            self.kept.metrics.failed(journal, Failed::Torn);
            tracing::warn!(journal, %to, "the journal's file ends in the middle of a line, of a host that crashed or an agent that was killed: the line is ended there");
        }
    }

    /// Writes the lines. Returns whether that worked.
    fn write(&mut self) -> bool {
        let mut is_written = true;
        while !self.text.is_empty() {
            let Err(error) = self.target.write(self.kept.name, &self.text) else {
                self.kept.metrics.written(self.kept.name, self.records);
                is_written = true;
                break;
            };
            is_written = false;
            self.failed(Failed::Write, &error);
            if self.when_full == WhenFull::Drop || self.kept.asked().ends {
                self.kept.metrics.lost(self.kept.name, self.records);
                break;
            }
            thread::sleep(TRY_AGAIN);
            // Somebody may have made room, and have moved the file.
            self.obey();
        }
        // The memory of a burst is not kept.
        self.text.clear();
        self.text.shrink_to(2 * WRITE_BYTES);
        self.records = 0;
        is_written
    }

    fn failed(&mut self, what: Failed, error: &io::Error) {
        self.kept.metrics.failed(self.kept.name, what);
        if !std::mem::replace(&mut self.fails, true) {
            let (journal, to) = (self.kept.name, &self.kept.to);
            tracing::warn!(journal, %to, ?what, %error, "a journal's file");
        }
    }

    fn works(&mut self) {
        if std::mem::take(&mut self.fails) {
            let (journal, to) = (self.kept.name, &self.kept.to);
            tracing::info!(journal, %to, "a journal's file works again");
        }
    }

    fn make_durable(&mut self, now: bool) {
        if let Err(error) = self.target.make_durable(now) {
            self.failed(Failed::Sync, &error);
        }
    }

    /// Opens the file again, if that is asked.
    fn obey(&mut self) {
        let Some(settings) = self.kept.asked().settings.take() else {
            return;
        };
        self.when_full = settings.when_full;
        match self.target.apply_settings(settings.to) {
            Ok(()) => self.tell_if_torn(),
            Err(error) => self.failed(Failed::Reopen, &error),
        }
    }
}

impl Sink for Writing {
    fn record(&mut self, record: &[u8]) {
        (self.format)(record, &mut self.text);
        self.records += 1;
        if self.text.len() >= WRITE_BYTES {
            self.write();
        }
    }

    fn batch_ends(&mut self) {
        if self.write() {
            match self.target.batch_ends() {
                Ok(()) => self.works(),
                Err(error) => self.failed(Failed::Sync, &error),
            }
        }
    }

    fn due(&self) -> Option<Instant> {
        self.target.due()
    }

    fn on_due(&mut self) {
        self.obey();
        let left = {
            let mut asked = self.kept.asked();
            asked.left_bytes = 0;
            std::mem::take(&mut asked.left)
        };
        if !left.is_empty() {
            left.iter().for_each(|record| self.record(record));
            self.batch_ends();
        }
        let ends = self.kept.asked().ends;
        self.make_durable(ends);
        let mut done = self.kept.done.lock();
        *done += 1;
        self.kept.is_done.notify_all();
    }

    fn end(&mut self) {
        self.on_due();
        self.make_durable(true);
    }
}
