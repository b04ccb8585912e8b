//! The shape of cassandra-stress: threads that share one session of a driver, and wait for
//! each answer. The driver puts their requests on its own few connections.

use std::{
    net::SocketAddr,
    thread::{self, JoinHandle},
    time::Instant,
};

use anyhow::Context;
use scylla::{client::session::Session, statement::prepared::PreparedStatement};
use tokio::{runtime::Handle, sync::oneshot};

use super::{
    driver,
    rows::{self, Keys},
};
use crate::order::{Answer, Credentials, Load};

/// Threads around a session.
pub struct Client {
    stress: Stress,
    lanes: Vec<Keys>,
    runtime: Handle,
    /// Dropped, it ends the thread below.
    _stop: oneshot::Sender<()>,
    /// What the driver's own tasks run on.
    _driver: JoinHandle<()>,
}

struct Stress {
    session: Session,
    read: PreparedStatement,
    write: PreparedStatement,
}

impl Client {
    /// Connects and prepares.
    pub fn connect(
        to: SocketAddr,
        credentials: Option<&Credentials>,
        threads: usize,
    ) -> anyhow::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let stress = runtime.block_on(async {
            let session = driver::session(to, credentials).await?;
            Stress::open(session).await
        })?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel();
        let driver = thread::Builder::new()
            .name("driver".into())
            .spawn(move || drop(runtime.block_on(stopped)))?;
        Ok(Self {
            stress,
            lanes: (1..=threads as u64).map(Keys::new).collect(),
            runtime: handle,
            _stop: stop,
            _driver: driver,
        })
    }

    /// Works for so long on every thread.
    pub fn work(&mut self, load: Load, seconds: f64) -> anyhow::Result<Answer> {
        let (stress, runtime) = (&self.stress, &self.runtime);
        rows::on_threads(&mut self.lanes, seconds, |keys, end| {
            let mut answer = Answer::empty()?;
            let mut before = Instant::now();
            while before < end {
                let is_read = match load {
                    Load::Read => true,
                    Load::Write => false,
                    Load::Mixed => keys.toss(),
                };
                runtime.block_on(stress.request(keys.next(), is_read))?;
                let now = Instant::now();
                answer.latencies.record((now - before).as_nanos());
                before = now;
            }
            Ok(answer)
        })
    }
}

impl Stress {
    async fn open(session: Session) -> anyhow::Result<Self> {
        let prepare = async |text: String| session.prepare(text.as_str()).await.context(text);
        Ok(Self {
            read: prepare(rows::read()).await?,
            write: prepare(rows::write()).await?,
            session,
        })
    }

    async fn request(&self, row: u64, is_read: bool) -> anyhow::Result<()> {
        let key = rows::key(row).into_bytes();
        let done = if is_read {
            self.session.execute_unpaged(&self.read, (key,)).await
        } else {
            let c = rows::column(row).to_vec();
            let values = (key, c.clone(), c.clone(), c.clone(), c.clone(), c);
            self.session.execute_unpaged(&self.write, values).await
        };
        done.map(drop).context("a request failed")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use testkit::node::{Node, NodeOptions};

    #[test]
    fn threads_share_the_drivers_connections() {
        let node = Node::start(NodeOptions::default()).unwrap();
        rows::fill(node.addr(), None).unwrap();
        let before = node.connections_total();
        let mut client = Client::connect(node.addr(), None, 8).unwrap();
        for load in [Load::Read, Load::Write, Load::Mixed] {
            let answer = client.work(load, 0.1).unwrap();
            assert!(answer.ops() > 8, "{load:?}: {}", answer.ops());
        }
        let opened = node.connections_total() - before;
        assert!(opened < 8, "{opened}");
    }
}
