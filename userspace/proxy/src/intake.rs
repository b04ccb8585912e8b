//! Intake: a held SYN becomes a pair of sockets. The agent dials the database, answers the client
//! as the database would have, and accepts the client's connection.

use std::{
    collections::{HashMap, HashSet},
    future::Future,
    io,
    net::SocketAddr,
    pin::pin,
    sync::Arc,
    time::Duration,
};

use dataplane::{
    ClientAddr, Dialled, Held, Holds, Listeners, NewNetnsListeners, Refusal, SockCookie,
};
use flow::{FlowId, Newcomer};
use parking_lot::{Mutex, MutexGuard};
use policy::Fail;
use telemetry::Rarely;
use tokio::{
    net::TcpStream,
    sync::{mpsc, oneshot},
    task::JoinSet,
    time,
};

use super::{
    admission::{ACCEPT_PAUSE, NotAdmitted},
    adopt, close,
    context::IncomingListeners,
    context::ProxyContext,
    denied,
    entered::Entered,
    handed, incoming,
    read_on::Handed,
    session,
    workers::{Pair, Workers},
};
use crate::keeper::Adopted;

/// The limit on the time from letting the SYN pass to the accepted connection. Both ends are this
/// host's kernel, so this is long past any hope.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(5);

/// Lines about connections for which there is no backend, or not their own port: whoever connects decides how often
/// that is.
static NO_BACKEND: Rarely = Rarely::new();
static PORT_TAKEN: Rarely = Rarely::new();

/// Lines about SYNs that the system does not let the agent answer.
static NOT_ANSWERED: Rarely = Rarely::failing();

/// Clients whose SYN was let pass and who have not been accepted yet, each with its flow. A
/// client's address may be another client's by the time that its flow gives up.
#[derive(Clone, Default)]
struct Expected(Arc<Mutex<Expecting>>);

type Expecting = HashMap<Client, (FlowId, oneshot::Sender<TcpStream>)>;

/// A client, by its network namespace and its address there.
type Client = (u64, ClientAddr);

fn client(held: &Held) -> Client {
    (held.netns_cookie(), held.client)
}

impl Expected {
    fn expect(&self, client: Client, flow: FlowId) -> oneshot::Receiver<TcpStream> {
        let (arrived, arrival) = oneshot::channel();
        self.lock().insert(client, (flow, arrived));
        arrival
    }

    fn arrived(&self, client: Client) -> Option<oneshot::Sender<TcpStream>> {
        self.lock().remove(&client).map(|(_, arrived)| arrived)
    }

    fn give_up(&self, client: Client, flow: FlowId) {
        let mut expected = self.lock();
        if expected
            .get(&client)
            .is_some_and(|(expecting, _)| *expecting == flow)
        {
            expected.remove(&client);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Expecting> {
        self.0.lock()
    }
}

/// Flows that begin: what is done for their SYNs goes on.
#[derive(Clone, Default)]
struct Beginning(Arc<Mutex<HashSet<SockCookie>>>);

/// A flow that begins, until this is dropped.
struct Begins(SockCookie, Beginning);

impl Beginning {
    /// None: it is there already.
    fn enter(&self, cookie: SockCookie) -> Option<Begins> {
        let is_new = self.0.lock().insert(cookie);
        is_new.then(|| Begins(cookie, self.clone()))
    }
}

impl Drop for Begins {
    fn drop(&mut self) {
        let Self(cookie, Beginning(all)) = self;
        all.lock().remove(cookie);
    }
}

/// Carries flows until the ring of held SYNs fails. Dropped, it stops taking flows in.
///
/// # Errors
/// The ring cannot be read.
pub async fn run(
    shared: Arc<ProxyContext>,
    IncomingListeners {
        listeners,
        mut incoming_listeners,
        mut settled,
    }: IncomingListeners,
    mut holds: Holds,
    mut adopted: mpsc::UnboundedReceiver<Adopted>,
    mut handed: mpsc::Receiver<Handed>,
    workers: Workers,
) -> anyhow::Result<()> {
    let expected = Expected::default();
    let beginning = Beginning::default();
    let workers = Arc::new(workers);
    // Declared behind the workers, it goes before them and the flows that are theirs.
    let _leaves = Leaves(shared.clone());
    // Dropped with this function, it ends the accept loops.
    let mut accepting_incoming = JoinSet::new();
    let mut accepting = pin!(accept(shared.clone(), listeners, expected.clone()));
    let mut netns_agents = JoinSet::new();
    let mut watching = pin!(shared.unsettled.watch(|| shared.admission.excess()));
    loop {
        let held = tokio::select! {
            held = holds.next() => held?,
            () = &mut accepting => return Ok(()),
            () = &mut watching => return Ok(()),
            Some(settled) = settled.recv() => {
                netns_agents.spawn(accept_there(shared.clone(), settled, expected.clone()));
                continue;
            }
            Some(_) = netns_agents.join_next() => continue,
            Some(listener) = incoming_listeners.recv() => {
                accepting_incoming.spawn(incoming::accept(shared.clone(), listener, workers.clone()));
                continue;
            }
            Some(adopted) = adopted.recv() => {
                adopt::adopt(&shared, adopted, &workers).await;
                continue;
            }
            Some(handed) = handed.recv() => {
                handed::take(&shared, handed, workers.clone());
                continue;
            }
        };
        // A SYN that comes again is for a flow that begins, or has begun meanwhile, or could not.
        let is_answered = || held.is_repeated && !shared.answers.waits(&held);
        let Some(begins) = beginning.enter(held.cookie).filter(|_| !is_answered()) else {
            continue;
        };
        let (shared, expected, workers) = (shared.clone(), expected.clone(), workers.clone());
        tokio::spawn(async move {
            begin(&shared, held, &expected, &workers).await;
            drop(begins);
        });
    }
}

/// Leaves the spliced flows to the keeper when the agent ends, whatever ends it.
struct Leaves(Arc<ProxyContext>);

impl Drop for Leaves {
    fn drop(&mut self) {
        if let Some(keeper) = self.0.keeper.get() {
            keeper.leave();
        }
    }
}

/// Accepts connections in another network namespace until the agent gives up serving it.
async fn accept_there(shared: Arc<ProxyContext>, settled: NewNetnsListeners, expected: Expected) {
    tokio::select! {
        _ = settled.until => {}
        () = accept(shared, settled.listeners, expected) => {}
    }
}

async fn accept(shared: Arc<ProxyContext>, listeners: Listeners, expected: Expected) {
    loop {
        match listeners.accept().await {
            Ok(accepted) => match expected.arrived((accepted.netns_cookie, accepted.client)) {
                // The receiver is gone when the handshake took too long.
                Some(arrived) => drop(arrived.send(accepted.stream)),
                None => {
                    shared.metrics.intake.strangers.inc();
                    tracing::debug!(client = %accepted.client, "a stranger at the listener");
                    close::reset(&accepted.stream);
                }
            },
            Err(error) => {
                shared.admission.accept_failed(&error);
                time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn begin(shared: &Arc<ProxyContext>, held: Held, expected: &Expected, workers: &Workers) {
    let permit = match shared.admission.enter(held.process.holder) {
        Ok(permit) => permit,
        Err(NotAdmitted::Full) => return answer(shared, &held, Refusal::Silence),
        Err(NotAdmitted::OverQuota(quota)) => {
            tracing::debug!(client = %held.client, ?quota, "over its quota");
            shared.metrics.intake.over_quota.inc();
            return answer(shared, &held, Refusal::Reset);
        }
    };
    let entered = Entered::new(shared, &Newcomer::from(&held), permit);
    let denied = session::denied_since(&held, &shared.policy.borrow());
    if let Some(mark) = denied {
        tracing::debug!(client = %held.client, %mark, "denied while it connected");
        denied::flow(&entered.flow, &shared.metrics, "");
        answer(shared, &held, Refusal::Reset);
        return;
    }
    let Ok(backend) = backend(shared, &held) else {
        NO_BACKEND.say(|not_said_before| {
            tracing::info!(
                client = %held.client,
                orig_dst = %held.orig_dst,
                not_said_before,
                "no backend is up"
            );
        });
        answer(shared, &held, Refusal::Reset);
        return;
    };
    if let Some(backend) = backend {
        entered.flow.goes_to(backend);
    }
    match while_client_waits(shared, &held, dataplane::dial(&held, backend)).await {
        None => gone(shared, &held),
        Some(Err(error)) => {
            let refusal = Refusal::of(&error);
            entered.report_failed_dial(backend, &error);
            answer(shared, &held, refusal);
        }
        Some(Ok(dialled)) => meet(shared, held, entered, dialled, expected, workers).await,
    }
}

/// No backend takes new connections, and the rule does not say to go on without.
struct NoBackend;

/// Chooses the address to dial for `held`. None: the address that the client dialled. The kernel
/// asks the same before it sends a flow here, so it is rare here that no backend is up.
fn backend(shared: &ProxyContext, held: &Held) -> Result<Option<SocketAddr>, NoBackend> {
    let policy = shared.policy.borrow().clone();
    let behind = session::backends_behind(held, &policy);
    if behind.is_empty() {
        return Ok(None);
    }
    let drawn = shared.backends.choice().borrow().draw(&behind);
    match (drawn, policy.fail_of(&held.rule)) {
        (None, Fail::Closed) => Err(NoBackend),
        (drawn, _) => Ok(drawn),
    }
}

async fn meet(
    shared: &Arc<ProxyContext>,
    held: Held,
    entered: Entered,
    dialled: Dialled,
    expected: &Expected,
    workers: &Workers,
) {
    if !dialled.kept_port {
        shared.metrics.intake.source_ports_changed.inc();
        PORT_TAKEN.say(|not_said_before| {
            tracing::warn!(
                client = %held.client,
                orig_dst = %held.orig_dst,
                not_said_before,
                "source port was taken"
            );
        });
    }
    let id = entered.flow.id;
    let arrival = expected.expect(client(&held), id);
    if let Err(error) = shared.answers.let_pass(&held, dialled.local) {
        tracing::error!(%error, client = %held.client, "cannot let a SYN pass");
        expected.give_up(client(&held), id);
        answer(shared, &held, Refusal::Reset);
        return;
    }
    match time::timeout(HANDSHAKE_LIMIT, arrival).await {
        Ok(Ok(stream)) => {
            shared.answers.note_accepted(&held);
            workers
                .carry(Pair {
                    client: stream,
                    database: dialled.stream,
                    entered,
                })
                .await
        }
        _ => {
            expected.give_up(client(&held), id);
            if shared.answers.waits(&held) {
                answer(shared, &held, Refusal::Reset);
            } else {
                gone(shared, &held);
            }
        }
    }
}

/// The interval at which a slow dial looks whether its client still waits.
const CLIENT_CHECK: Duration = Duration::from_secs(1);

/// Runs `dial` for as long as the client waits for it; None when the client has given up.
async fn while_client_waits(
    shared: &ProxyContext,
    held: &Held,
    dial: impl Future<Output = io::Result<Dialled>>,
) -> Option<io::Result<Dialled>> {
    let mut dial = pin!(dial);
    loop {
        let outcome = time::timeout(CLIENT_CHECK, &mut dial).await;
        if !shared.answers.waits(held) {
            return None;
        }
        if let Ok(outcome) = outcome {
            return Some(outcome);
        }
    }
}

fn gone(shared: &ProxyContext, held: &Held) {
    shared.metrics.intake.clients_gone.inc();
    tracing::debug!(client = %held.client, "the client gave up before the database answered");
}

fn answer(shared: &ProxyContext, held: &Held, refusal: Refusal) {
    shared
        .metrics
        .intake
        .dial_failures
        .with_label_values(&[refusal.as_str()])
        .inc();
    if let Err(error) = shared.answers.refuse(held, refusal) {
        NOT_ANSWERED.say(|not_said_before| {
            tracing::error!(%error, client = %held.client, not_said_before, "cannot answer a SYN");
        });
    }
}
