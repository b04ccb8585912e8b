//! Other network namespaces of this host whose processes are served: set up when a process there
//! connects, or a rule names its container; given up when nobody is there any more.

use std::{
    collections::HashMap,
    convert::Infallible,
    io,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use dataplane::{
    NetnsAgentView, NetnsAgents, NewNetnsListeners, NotServed, ServeRequest, ServeRequests, host,
};
use flow::Flows;
use policy::{Container, Policy};
use prometheus::{
    IntGauge,
    core::{Collector, Desc},
    proto::MetricFamily,
};
use serde::Serialize;
use telemetry::Metrics;
use tokio::sync::{mpsc, watch};

use crate::{containers::Book, seconds};

/// The agent keeps a namespace alive for up to two of these after its last process.
const TEND_EVERY: Duration = Duration::from_secs(1);

/// Runs until the calls cannot be read any more. `settled` takes the listeners.
///
/// # Errors
/// The ring of calls cannot be waited for.
pub async fn serve(
    netns_agents: Arc<NetnsAgents>,
    mut calling: ServeRequests,
    settled: mpsc::Sender<NewNetnsListeners>,
    metrics: Metrics,
) -> io::Result<Infallible> {
    let mut tending = seconds::every(TEND_EVERY);
    loop {
        tokio::select! {
            caller = calling.next() => {
                settle(&netns_agents, caller?, &settled, &metrics).await?;
            }
            _ = tending.tick() => {
                if netns_agents.count() == 0 {
                    continue;
                }
                let netns_agents = netns_agents.clone();
                let tended = tokio::task::spawn_blocking(move || netns_agents.tend()).await;
                if let Err(error) = tended {
                    tracing::error!(%error, "cannot maintain other network namespaces");
                }
            }
        }
    }
}

async fn settle(
    netns_agents: &Arc<NetnsAgents>,
    caller: ServeRequest,
    listeners: &mpsc::Sender<NewNetnsListeners>,
    metrics: &Metrics,
) -> io::Result<()> {
    let netns_agents = netns_agents.clone();
    let settling = tokio::task::spawn_blocking(move || netns_agents.serve(&caller));
    let settled = settling.await.map_err(io::Error::other)?;
    note(settled, listeners, metrics).await;
    Ok(())
}

/// Serves containers that rules name before they connect for the first time: a named container is
/// to be served, and no others are intruded on. Runs until the agent ends.
///
/// # Errors
/// A thread has panicked.
pub async fn serve_named(
    netns_agents: Arc<NetnsAgents>,
    containers: watch::Receiver<Book>,
    mut policy: watch::Receiver<Arc<Policy>>,
    settled: mpsc::Sender<NewNetnsListeners>,
    metrics: Metrics,
) -> io::Result<Infallible> {
    loop {
        let named: Vec<Container> = {
            let (book, policy) = (containers.borrow(), policy.borrow_and_update());
            let running = book.running().filter(|c| policy.asks_for(c));
            running.cloned().collect()
        };
        for Container { pid, cgroup, .. } in named {
            let netns_agents = netns_agents.clone();
            let settling = tokio::task::spawn_blocking(move || {
                // Another process may have its number by now.
                match host::is_in_cgroup(pid, &cgroup) {
                    true => netns_agents.serve_process(pid),
                    false => Err(NotServed::Gone),
                }
            });
            let settling = settling.await.map_err(io::Error::other)?;
            note(settling, &settled, &metrics).await;
        }
        // The set changes with the containers that its rules match.
        if policy.changed().await.is_err() {
            std::future::pending().await
        }
    }
}

async fn note(
    settled: Result<Option<NewNetnsListeners>, NotServed>,
    listeners: &mpsc::Sender<NewNetnsListeners>,
    metrics: &Metrics,
) {
    match settled {
        Ok(None) => {}
        Ok(Some(settled)) => {
            let netns = settled.netns.clone();
            tracing::info!(%netns, inode = netns.inode, "a network namespace is served");
            // The proxy has ended, and the agent is about to.
            drop(listeners.send(settled).await);
        }
        Err(error) => {
            let reason = [error.as_str()];
            metrics
                .intake
                .namespaces_not_served
                .with_label_values(&reason)
                .inc();
            match error {
                NotServed::Gone | NotServed::JustTried => {
                    tracing::debug!(%error, "a network namespace is not served");
                }
                _ => tracing::warn!(%error, "a network namespace is not served"),
            }
        }
    }
}

/// A namespace as `/namespaces` and `underpass namespaces --json` give it.
#[derive(Debug, Serialize)]
pub struct NamespaceView {
    name: Option<String>,
    inode: u32,
    cookie: u64,
    /// Somebody there.
    pid: u32,
    process: String,
    /// The flows that the agent carries now.
    flows: usize,
    since_unix_ms: u64,
    since_ms: u64,
}

/// Returns all namespaces that are served.
pub fn views(netns_agents: &NetnsAgents, flows: &Flows) -> Vec<NamespaceView> {
    let mut by_cookie: HashMap<u64, usize> = HashMap::new();
    for flow in flows.all() {
        if let Some(netns) = &flow.netns {
            *by_cookie.entry(netns.cookie).or_default() += 1;
        }
    }
    let views = netns_agents.views().into_iter();
    views
        .map(
            |NetnsAgentView {
                 netns,
                 pid,
                 process,
                 since,
             }| NamespaceView {
                name: netns.name.clone(),
                inode: netns.inode,
                cookie: netns.cookie,
                pid,
                process,
                flows: by_cookie.get(&netns.cookie).copied().unwrap_or(0),
                since_unix_ms: ms(since.duration_since(UNIX_EPOCH)),
                since_ms: ms(SystemTime::now().duration_since(since)),
            },
        )
        .collect()
}

/// A clock may be set back.
fn ms(since: Result<Duration, std::time::SystemTimeError>) -> u64 {
    since.unwrap_or_default().as_millis() as u64
}

/// `underpass_namespaces`, counted when it is asked for.
pub struct NamespacesGauge {
    netns_agents: Option<Arc<NetnsAgents>>,
    gauge: IntGauge,
}

impl NamespacesGauge {
    /// Makes the metrics over the agents of network namespaces. None: for documentation.
    ///
    /// # Errors
    /// None in practice: the name is a constant.
    pub fn new(netns_agents: Option<Arc<NetnsAgents>>) -> prometheus::Result<Self> {
        let gauge = IntGauge::new(
            "underpass_namespaces",
            "Network namespaces besides the agent's own whose processes are served.",
        )?;
        Ok(Self {
            netns_agents,
            gauge,
        })
    }
}

impl Collector for NamespacesGauge {
    fn desc(&self) -> Vec<&Desc> {
        self.gauge.desc()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let count = self
            .netns_agents
            .as_ref()
            .map_or(0, |netns_agents| netns_agents.count());
        self.gauge.set(count as i64);
        self.gauge.collect()
    }
}
