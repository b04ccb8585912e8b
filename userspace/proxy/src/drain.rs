//! The wait before the agent writes to the near application again: bytes that the kernel has
//! redirected to it must arrive first.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use dataplane::{Drained, Engine, Near, Splice};
use flow::CloseReason;
use tokio::time::{self, Instant, Sleep};

use super::close::failed;

/// The first pause between looks whether the kernel has delivered what it redirected. Delivery
/// takes microseconds, unless the application does not read. An application that has stopped is
/// looked at less and less often.
const FIRST_LOOK: Duration = Duration::from_millis(1);
const LONGEST_LOOK: Duration = Duration::from_millis(250);
/// The number of failed looks in a row, for want of memory, after which the wait gives up.
const FAILED_LOOKS: u32 = 100;

/// The time after which bytes that the sender redirects must be in the stream. They are there
/// before its `send()` returns. If they never are, there was no memory for a part of them, and
/// nobody knows where in the stream that was.
const NOT_TAKEN: Duration = Duration::from_secs(5);

/// The wait for the kernel to deliver what it has redirected to the near application.
pub(super) struct Drain {
    to_near: u64,
    since: Instant,
    failed: u32,
    sleep: Option<Pin<Box<Sleep>>>,
}

impl Drain {
    /// Starts the wait. `to_near` counts the bytes that the agent itself has written to the near
    /// application.
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
    ) -> Poll<Result<(), CloseReason>> {
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
                        Near::Client => CloseReason::ClientReset,
                        Near::Database => CloseReason::DatabaseReset,
                    }));
                }
                Ok(Drained::NotYet)
                    if splice.engine() == Engine::Sender && self.since.elapsed() > NOT_TAKEN =>
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
