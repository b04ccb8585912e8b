//! The step without sockets and without threads: whoever has made it is given the database's ends of shared connections,
//! carries the bytes between them and a database, and says when the connections' tasks run.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use cql::Database;
use cql_edit::{Caller, Transform};
use dataplane::{ClientAddr, OrigDst, Process};
use flow::Flow;
use policy::RuleName;
use prometheus::Registry;
use telemetry::Metrics;
use tls::Towards;
use tokio::{
    io::{AsyncRead as _, AsyncWrite as _, DuplexStream, ReadBuf},
    runtime::{Builder, Runtime},
    sync::mpsc::{self, UnboundedReceiver},
    task::yield_now,
};

use super::{Fold, FoldMetrics, FoldSettings, begin::Connects, pools::Shared, room::Room};

/// The address of the database, and the clients'. Nobody connects to either.
const DATABASE: ([u8; 4], u16) = ([192, 0, 2, 1], 9042);
const CLIENT: ([u8; 4], u16) = ([192, 0, 2, 2], 49_152);

/// The clients' process: one on this host.
const PID: u32 = 1;

/// The most bytes that are taken at once.
const READ_BYTES: usize = 1 << 10;

/// Times that the tasks have their turn. All that can run do at the first; at the second, what those have woken.
const TURNS: usize = 2;

/// The way between a step and its database.
#[derive(Debug)]
pub struct ByHand {
    rule: RuleName,
    runtime: Runtime,
    begun: UnboundedReceiver<DuplexStream>,
}

/// The database's end of a shared connection. Dropping it ends the connection.
#[derive(Debug)]
pub struct DatabaseEnd(DuplexStream);

impl FoldSettings {
    /// Makes the step of a rule, and the way between it and a database.
    ///
    /// # Errors
    /// Names the bad setting, and what it should be; or there can be no runtime.
    pub fn by_hand(self, rule: &RuleName) -> Result<(Arc<dyn Transform>, ByHand), String> {
        let settings = self.checked()?;
        let registry = Registry::new();
        let metrics = Metrics::register(&registry, &[])
            .and_then(|agents| FoldMetrics::register(&registry, &agents));
        let metrics = metrics.map_err(|error| error.to_string())?;
        let runtime = Builder::new_current_thread().enable_time().build();
        let runtime = runtime.map_err(|error| error.to_string())?;
        let (ends, begun) = mpsc::unbounded_channel();
        let counters = metrics.of(rule.as_str());
        let connects = Connects::ByHand(ends);
        let shared = Shared::new(rule, &settings, counters, connects, Room::new());
        let step = Fold {
            settings,
            shared: Arc::new(shared).into(),
        };
        let by_hand = ByHand {
            rule: rule.clone(),
            runtime,
            begun,
        };
        Ok((Arc::new(step), by_hand))
    }
}

impl ByHand {
    /// Describes the client of a flow with this number, as the flow's carrier does.
    pub fn caller(&self, number: u64) -> Caller {
        let process = Process {
            pid: PID,
            ..Process::elsewhere()
        };
        let client = ClientAddr::new(CLIENT.into());
        let dialled = OrigDst::new(DATABASE.into());
        let flow = Flow::begin(number, client, process, dialled, self.rule.clone());
        flow.speaks(Towards::Plain);
        Caller {
            rule: self.rule.as_str().to_owned(),
            client: client.socket_addr().ip().to_string(),
            dialled: Some(dialled.socket_addr()),
            database: Database::new(dialled.socket_addr(), 0),
            flow: Some(Arc::new(flow)),
            ..Caller::default()
        }
    }

    /// Does what a flow's task does: a request that passes may begin a shared connection.
    pub fn within<T>(&self, act: impl FnOnce() -> T) -> T {
        let _entered = self.runtime.enter();
        act()
    }

    /// Lets the task of each shared connection do what it can.
    pub fn turn(&self) {
        self.runtime.block_on(async {
            for _ in 0..TURNS {
                yield_now().await;
            }
        });
    }

    /// Takes the database's end of a connection that has begun since.
    pub fn take_begun(&mut self) -> Option<DatabaseEnd> {
        self.begun.try_recv().ok().map(DatabaseEnd)
    }
}

impl DatabaseEnd {
    /// Takes bytes that have come. None: there are no more for now, or the step has ended the connection.
    pub fn take_requests(&mut self) -> Option<Vec<u8>> {
        let mut bytes = [0; READ_BYTES];
        let mut read = ReadBuf::new(&mut bytes);
        let mut context = Context::from_waker(Waker::noop());
        match Pin::new(&mut self.0).poll_read(&mut context, &mut read) {
            Poll::Ready(Ok(())) if !read.filled().is_empty() => Some(read.filled().to_vec()),
            _ => None,
        }
    }

    /// Gives the step as many of these bytes as the connection holds. If the step has ended it, all are thrown away.
    pub fn give_answers(&mut self, answers: &mut Vec<u8>) {
        let mut context = Context::from_waker(Waker::noop());
        while !answers.is_empty() {
            match Pin::new(&mut self.0).poll_write(&mut context, answers) {
                Poll::Ready(Ok(taken)) => drop(answers.drain(..taken)),
                Poll::Ready(Err(_)) => answers.clear(),
                Poll::Pending => return,
            }
        }
    }
}
