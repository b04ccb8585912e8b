//! [`Served`]: a server of a test, on a thread and a runtime of its own.

#![expect(
    clippy::expect_used,
    reason = "only tests call it, which fail by panicking"
)]

use std::thread::{self, JoinHandle};

use tokio::{runtime, sync::oneshot};

/// A server that ends when this is dropped; its connections are cut.
#[derive(Debug)]
pub struct Served {
    end: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Served {
    /// Starts in the calling thread's network namespace. `serve` is called on the server's thread, in its runtime.
    ///
    /// # Panics
    /// In the server's thread: there is no runtime. Dropped, where the server has panicked and the test has not.
    pub fn by<F: Future<Output = ()>>(serve: impl FnOnce() -> F + Send + 'static) -> Self {
        let (end, ended) = oneshot::channel();
        let thread = thread::spawn(move || {
            let runtime = runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(async {
                tokio::select! {
                    () = serve() => {}
                    _ = ended => {}
                }
            });
        });
        Self {
            end: Some(end),
            thread: Some(thread),
        }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            assert!(thread::panicking() || ended.is_ok(), "a server");
        }
    }
}
