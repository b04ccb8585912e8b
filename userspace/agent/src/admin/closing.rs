//! [`Closing`]: the end of the interface, for answers that go on. They outlive the doors by which they were asked for, and have
//! nothing more to tell once another agent carries the flows.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering::Relaxed},
};

use ::capture::Ended;
use tokio::sync::watch;

/// The end of the interface.
#[derive(Clone, Debug)]
pub(super) struct Closing {
    open: watch::Receiver<()>,
    is_given: Arc<AtomicBool>,
}

impl Closing {
    /// Makes an end that comes when the sender is dropped. `is_given`: whether another agent has the socket by then.
    pub(super) fn new(is_given: Arc<AtomicBool>) -> (watch::Sender<()>, Self) {
        let (opened, open) = watch::channel(());
        (opened, Self { open, is_given })
    }

    /// Waits for the end, and returns the reason: another agent has taken over, or this one stops.
    pub(super) async fn comes(mut self) -> Ended {
        // Nothing is ever sent.
        while self.open.changed().await.is_ok() {}
        match self.is_given.load(Relaxed) {
            true => Ended::TakenOver,
            false => Ended::Agent,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        pin::pin,
        task::{Context, Waker},
    };

    use super::*;

    #[test]
    fn it_comes_with_the_doors_and_says_why() {
        for (is_given, why) in [(true, Ended::TakenOver), (false, Ended::Agent)] {
            let (opened, closing) = Closing::new(Arc::new(AtomicBool::new(is_given)));
            let mut comes = pin!(closing.comes());
            let mut cx = Context::from_waker(Waker::noop());
            assert!(comes.as_mut().poll(&mut cx).is_pending());
            drop(opened);
            assert_eq!(comes.as_mut().poll(&mut cx), std::task::Poll::Ready(why));
        }
    }
}
