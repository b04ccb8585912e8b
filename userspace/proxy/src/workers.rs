//! The worker threads on which bytes move. A flow stays on the worker that it was given to, so its
//! wake-ups never cross threads.

use std::{
    io,
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
    thread,
};

use telemetry::BusyPollMetrics;
use tokio::{net::TcpStream, runtime, sync::mpsc};

use super::{
    busy_poll,
    entered::Entered,
    outbox::{self, Outbox, SendRings},
    relay, resume,
};

/// The most flows that wait for a worker. A worker takes them as fast as it can start tasks; when
/// the queue is full, intake waits.
const QUEUE: usize = 256;

/// A flow's two sockets.
pub(super) struct Pair {
    pub client: TcpStream,
    pub database: TcpStream,
    pub entered: Entered,
}

/// The workers, to which flows are handed. They end when this is dropped and their flows have ended.
pub struct Workers {
    queues: Vec<mpsc::Sender<Pair>>,
    next: AtomicUsize,
}

impl Workers {
    /// Starts a worker for each of the rings, by which they send. Where `busy_poll` has counters, they look for what comes
    /// soon instead of sleeping.
    ///
    /// # Errors
    /// There is no thread or no descriptor for one of them.
    pub fn start(rings: SendRings, busy_poll: Option<&BusyPollMetrics>) -> io::Result<Self> {
        let queues = rings
            .each()
            .enumerate()
            .map(|(n, own)| start_one(n, own, busy_poll.cloned()))
            .collect::<io::Result<_>>()?;
        Ok(Self {
            queues,
            next: AtomicUsize::new(0),
        })
    }

    /// Hands a flow to the next worker in turn.
    pub(super) async fn carry(&self, pair: Pair) {
        let Entered { shared, flow, .. } = &pair.entered;
        shared.unsettled.enter(flow);
        let n = self.next.fetch_add(1, Relaxed) % self.queues.len().max(1);
        if let Some(queue) = self.queues.get(n)
            && queue.send(pair).await.is_err()
        {
            tracing::error!(worker = n, "a worker is gone; its flow is closed");
        }
    }
}

fn start_one(
    n: usize,
    own: Option<Outbox>,
    busy_poll: Option<BusyPollMetrics>,
) -> io::Result<mpsc::Sender<Pair>> {
    let runtime = runtime::Builder::new_current_thread()
        .enable_all()
        .on_thread_park(|| {
            outbox::flush();
            busy_poll::about_to_sleep();
        })
        .on_thread_unpark(busy_poll::woken)
        .build()?;
    let (queue, mut pairs) = mpsc::channel::<Pair>(QUEUE);
    thread::Builder::new()
        .name(format!("worker-{n}"))
        .spawn(move || {
            outbox::install(own);
            runtime.block_on(async move {
                if let Some(metrics) = busy_poll {
                    busy_poll::install(metrics);
                }
                while let Some(pair) = pairs.recv().await {
                    if let Err(error) = move_here(pair) {
                        tracing::error!(%error, "cannot move a flow to its worker; it is closed");
                    }
                }
            });
        })?;
    Ok(queue)
}

/// Moves a flow to this thread's runtime. A socket belongs to the runtime on which it was made
/// until it is taken out.
fn move_here(pair: Pair) -> io::Result<()> {
    let here = |stream: TcpStream| TcpStream::from_std(stream.into_std()?);
    let (client, database) = (here(pair.client)?, here(pair.database)?);
    client.set_nodelay(true)?;
    let mut entered = Box::new(pair.entered);
    match entered.adoption.take() {
        None => drop(tokio::spawn(relay::carry(client, database, entered))),
        Some(how) => drop(tokio::spawn(resume::carry(client, database, entered, *how))),
    }
    Ok(())
}
