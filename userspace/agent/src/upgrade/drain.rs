//! The time in which an agent keeps its flows, after another one has taken over.

use std::time::Duration;

use flow::Path;
use proxy::ProxyContext;
use tokio::time::{self, Instant};

use super::protocol::{Link, Message};

/// The interval at which the other agent is told of the flows that are left.
const TELL_EVERY: Duration = Duration::from_millis(200);

/// The time that an agent drains at least: a connection whose SYN was on its way is there by then, also if it was sent again.
const SHORTEST: Duration = Duration::from_secs(3);

/// The end of a drain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DrainEnd {
    /// No flow is left that needs this agent.
    Drained,
    /// The time is over.
    Over,
    /// Told by the other agent, which stops.
    Told,
}

/// Drains for at most `longest`. Flows that the kernel carries do not need the agent.
pub async fn drain(shared: &ProxyContext, link: &Link, longest: Duration) -> DrainEnd {
    let begun = Instant::now();
    let mut is_alone = false;
    loop {
        let flows = left(shared);
        let lasted = begun.elapsed();
        if flows == 0 && lasted >= SHORTEST {
            return DrainEnd::Drained;
        }
        if lasted >= longest {
            tracing::warn!(
                flows,
                "drained for as long as `drain` says: flows that are left end"
            );
            return DrainEnd::Over;
        }
        let news = (Message::Drains { flows }, Vec::new());
        // One that does not read is not waited for.
        let told = time::timeout(TELL_EVERY, link.send(&news));
        if !is_alone && let Ok(Err(error)) = told.await {
            tracing::warn!(%error, "the agent that took over has ended");
            is_alone = true;
        }
        let next = time::sleep(TELL_EVERY);
        tokio::select! {
            () = next => {}
            heard = link.receive(), if !is_alone => match heard {
                Ok(Some((Message::End, _))) => return DrainEnd::Told,
                Ok(Some(_)) => {}
                Ok(None) | Err(_) => is_alone = true,
            },
        }
    }
}

/// Flows that end with this process.
fn left(shared: &ProxyContext) -> usize {
    let keeps = shared.keeper.get().is_some();
    let flows = shared.flows.all();
    flows
        .iter()
        .filter(|flow| !(keeps && flow.path() == Path::Splice))
        .count()
}
