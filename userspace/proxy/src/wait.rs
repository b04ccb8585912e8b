//! The wait until the agent is needed, while the kernel carries a flow.

use std::{
    future::{Future, poll_fn},
    pin::pin,
    sync::OnceLock,
    task::{Context, Poll},
    time::Duration,
};

use dataplane::{Engine, HangupWatch, Splice};
use flow::{CloseReason, Flow};
use policy::Action;
use tokio::{
    net::TcpStream,
    time::{self, Instant},
};

use super::{close::failed, marked};

/// The interval at which bytes that the kernel carries are added to `flows` and the metrics.
const COUNT_EVERY: Duration = Duration::from_secs(10);
/// Flows count at multiples of this: thousands that came at any time wake a worker a few times in a second.
const COUNT_TOGETHER: Duration = Duration::from_millis(100);

/// The reason why a ride ends.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// A side has ended, or bytes have to go through the agent.
    Needed,
    /// The flow was recalled.
    Recalled,
    /// Another process goes on with the flow.
    Given,
    /// A mark closes the flow, for this reason.
    Marked(CloseReason),
}

/// The socket that leads to the far application.
enum Far {
    /// Packets are redirected behind the socket, so the runtime does not watch it for input.
    HangupWatch(HangupWatch),
    /// Only bytes for the agent to read come to the socket.
    Awake(TcpStream),
}

impl Far {
    fn new(far: TcpStream, splice: &Splice) -> std::io::Result<Self> {
        match splice.engine() {
            Engine::Egress => HangupWatch::new(far).map(Self::HangupWatch),
            Engine::Sender => Ok(Self::Awake(far)),
        }
    }

    fn poll_needed(&self, cx: &mut Context<'_>) -> Poll<()> {
        match self {
            Self::HangupWatch(quiet) => quiet.poll_ended(cx).map(drop),
            Self::Awake(far) => far.poll_read_ready(cx).map(drop),
        }
    }

    fn into_stream(self) -> std::io::Result<TcpStream> {
        match self {
            Self::HangupWatch(quiet) => quiet.into_stream(),
            Self::Awake(far) => Ok(far),
        }
    }
}

/// Waits until the agent is needed. `has_come`: whether there is something for it to read. `count`:
/// counts, and says whether the agent is needed for another reason.
///
/// The waits are polled by hand: a future for each would be most of what a flow costs the agent
/// while the kernel carries it.
pub(super) async fn ride(
    splice: &Splice,
    flow: &Flow,
    near: &TcpStream,
    far: TcpStream,
    has_come: impl Fn() -> bool,
    mut count: impl FnMut() -> bool,
) -> Result<(TcpStream, End), CloseReason> {
    let far = Far::new(far, splice).map_err(|e| failed(&e))?;
    let recall_every = test_hooks::get().recall_every;
    let next = || match recall_every {
        Some(pause) => Instant::now() + pause,
        None => together(Instant::now() + COUNT_EVERY),
    };
    let mut tick = pin!(time::sleep_until(next()));
    let mut called = pin!(splice.called());
    let was_out = splice.is_out();
    let end = poll_fn(|cx| {
        if near.poll_read_ready(cx).is_ready() || far.poll_needed(cx).is_ready() {
            return Poll::Ready(End::Needed);
        }
        while called.as_mut().poll(cx).is_ready() {
            // When the agent cannot read which flows the kernel calls, it calls every flow, again
            // and again.
            if has_come() || splice.is_out() != was_out {
                return Poll::Ready(End::Needed);
            }
            called.set(splice.called());
        }
        if flow.is_recalled() {
            return Poll::Ready(End::Recalled);
        }
        if flow.is_given() {
            return Poll::Ready(End::Given);
        }
        if let Some(end) = apply_posted(flow) {
            return Poll::Ready(end);
        }
        while tick.as_mut().poll(cx).is_ready() {
            if recall_every.is_some() || count() {
                return Poll::Ready(End::Recalled);
            }
            // A lost call costs a flow this long, and not its life.
            if has_come() {
                return Poll::Ready(End::Needed);
            }
            tick.as_mut().reset(next());
        }
        Poll::Pending
    });
    let end = end.await;
    let far = far.into_stream().map_err(|e| failed(&e))?;
    Ok((far, end))
}

/// The next time from this one on at which flows count.
fn together(at: Instant) -> Instant {
    static FIRST: OnceLock<Instant> = OnceLock::new();
    let since = at.saturating_duration_since(*FIRST.get_or_init(Instant::now));
    let step = COUNT_TOGETHER.as_nanos();
    let late = since.as_nanos() % step;
    match late {
        0 => at,
        _ => at + Duration::from_nanos((step - late) as u64),
    }
}

/// Carries out a command, if there is one. Returns the end of the ride that it asks for.
fn apply_posted(flow: &Flow) -> Option<End> {
    if !flow.commands.is_full() {
        return None;
    }
    // Once the command is answered, nothing may pass unseen.
    let Some(posted) = flow.commands.take_unless(Action::Enrich) else {
        return Some(End::Recalled);
    };
    marked::apply_command(flow, posted, None).map(End::Marked)
}
