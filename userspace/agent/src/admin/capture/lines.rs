//! [`CaptureLines`]: the lines of one capture, up to the last one, which says why it ended and what is missing.
//!
//! **Invariant**: a capture ends with its time, or when another agent takes over, however slowly it is read: what then waits is
//! told for [`LAST_WORDS`] at most, and the rest of it is counted as dropped.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::{Duration, Instant},
};

use ::capture::{End, Ended, Missed};
use cql::PreparedStatements;
use steps::capture::{Captured, Capturing};
use tokio::time::{self, Sleep};

use super::{
    super::{closing::Closing, lines::LineSource},
    record::record,
};

/// Bytes of lines that are handed over together.
const PIECE_BYTES: usize = 64 << 10;

/// The time in which what waits at the end is told. Whoever reads as fast as requests come needs some hundredths of it.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// The lines of one capture.
pub(super) struct CaptureLines {
    values: bool,
    began: Instant,
    capturing: Capturing,
    prepared: Arc<PreparedStatements>,
    /// The end of its time; then, of the time for what waits.
    until: Pin<Box<Sleep>>,
    /// The end of the interface.
    closing: Pin<Box<dyn Future<Output = Ended> + Send>>,
    /// Requests that are not told yet to be missing.
    missed: Missed,
    /// The last line.
    end: End,
    /// Whether it takes no further requests.
    has_ended: bool,
}

impl CaptureLines {
    pub(super) fn new(
        values: bool,
        (time, closing): (Duration, Closing),
        capturing: Capturing,
        prepared: Arc<PreparedStatements>,
    ) -> Self {
        Self {
            values,
            began: Instant::now(),
            capturing,
            prepared,
            until: Box::pin(time::sleep(time)),
            closing: Box::pin(closing.comes()),
            missed: Missed::default(),
            end: End {
                end: Ended::Time,
                requests: 0,
                dropped: 0,
                gaps: 0,
            },
            has_ended: false,
        }
    }

    /// Ends the capture once its time is over, or the interface is closed. What waits is dropped where nobody has taken it by then.
    fn poll_end(&mut self, cx: &mut Context<'_>) {
        if !self.has_ended {
            self.end.end = match self.closing.as_mut().poll(cx) {
                Poll::Ready(why) => why,
                Poll::Pending if self.until.as_mut().poll(cx).is_ready() => Ended::Time,
                Poll::Pending => return,
            };
            self.has_ended = true;
            self.capturing.end();
            let until = time::Instant::now() + LAST_WORDS;
            self.until.as_mut().reset(until);
        }
        if self.until.as_mut().poll(cx).is_ready() {
            self.missed.dropped += self.capturing.discard();
        }
    }

    fn put(&mut self, captured: &Captured, to: &mut String) {
        let record = record(
            captured,
            self.began,
            &self.prepared.at(captured.database),
            self.values,
        );
        match ::capture::line(&record) {
            Ok(line) => {
                self.end.requests += 1;
                to.push_str(&line);
                to.push('\n');
            }
            Err(_) => self.missed.dropped += 1,
        }
    }

    /// Tells what is missing at this place, if something is.
    fn tell_missed(&mut self, to: &mut String) {
        let new = self.capturing.take_missed();
        self.missed.dropped += new.dropped;
        self.missed.gaps += new.gaps;
        let missed = std::mem::take(&mut self.missed);
        if missed != Missed::default() {
            self.end.dropped += missed.dropped;
            self.end.gaps += missed.gaps;
            to.push_str(&(::capture::line(&missed).unwrap_or_default() + "\n"));
        }
    }

    fn tell_end(&self, to: &mut String) {
        to.push_str(&(::capture::line(&self.end).unwrap_or_default() + "\n"));
    }
}

impl LineSource for CaptureLines {
    fn poll_lines(&mut self, cx: &mut Context<'_>, to: &mut String) -> bool {
        self.poll_end(cx);
        while to.len() < PIECE_BYTES {
            let next = self.capturing.poll_next(cx);
            if let Poll::Ready(Some(captured)) = &next {
                self.put(captured, to);
                continue;
            }
            // What had no room came behind all that had.
            self.tell_missed(to);
            if next.is_ready() {
                self.tell_end(to);
            }
            return next.is_ready();
        }
        false
    }
}
