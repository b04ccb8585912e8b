//! Before the agent writes to the near application again, what the kernel has redirected to it arrives.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use dataplane::{Down, Drained, Near, Splice};
use tokio::time::{self, Instant, Sleep};

use super::{
    close::{CLIENT_RESET, DATABASE_RESET},
    splice::failed,
};

/// How often it is looked whether the kernel has delivered what it redirected: it takes
/// microseconds, unless the application does not read.
/// One that has stopped is looked at ever less often.
const FIRST_LOOK: Duration = Duration::from_millis(1);
const LONGEST_LOOK: Duration = Duration::from_millis(250);
/// A look fails for want of memory: as often as this, in a row, it is tried again.
const FAILED_LOOKS: u32 = 100;

/// What its sender redirects is in the stream before its `send()` returns. If it never is, there was no memory for a
/// part of it, and nobody knows where in the stream that was.
const NOT_TAKEN: Duration = Duration::from_secs(5);

/// The wait for the kernel to deliver what it has redirected to the near application.
pub(super) struct Drain {
    to_near: u64,
    since: Instant,
    failed: u32,
    sleep: Option<Pin<Box<Sleep>>>,
}

impl Drain {
    /// `to_near`: what the agent has written to it itself.
    pub(super) fn new(to_near: u64) -> Self {
        Self {
            to_near,
            since: Instant::now(),
            failed: 0,
            sleep: None,
        }
    }

    pub(super) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        splice: Option<&Splice>,
    ) -> Poll<Result<(), &'static str>> {
        loop {
            if let Some(sleep) = &mut self.sleep {
                ready!(sleep.as_mut().poll(cx));
                self.sleep = None;
            }
            let Some(splice) = splice else {
                return Poll::Ready(Ok(()));
            };
            match splice.is_drained(self.to_near) {
                Ok(Drained::Yes) => return Poll::Ready(Ok(())),
                Ok(Drained::Never) => {
                    return Poll::Ready(Err(match splice.near() {
                        Near::Client => CLIENT_RESET,
                        Near::Database => DATABASE_RESET,
                    }));
                }
                Ok(Drained::NotYet)
                    if splice.down() == Down::Sender && self.since.elapsed() > NOT_TAKEN =>
                {
                    let lost = "what its sender redirected was not taken whole";
                    return Poll::Ready(Err(failed(&lost)));
                }
                Ok(Drained::NotYet) => self.failed = 0,
                Err(error) if self.failed >= FAILED_LOOKS => {
                    return Poll::Ready(Err(failed(&error)));
                }
                Err(_) => self.failed += 1,
            }
            let wait = (self.since.elapsed() / 8).clamp(FIRST_LOOK, LONGEST_LOOK);
            self.sleep = Some(Box::pin(time::sleep(wait)));
        }
    }
}
