//! The life of a flow that is carried: the relay and the kernel move its bytes in turns, until it ends or another agent goes on with it.

use std::{
    future::poll_fn,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::{Pin, pin},
    task::Poll,
};

use flow::{CloseReason, Path};
use tokio::{io::Interest, net::TcpStream};

use super::{
    super::{
        close::{self, FlowEnd},
        entered::Entered,
        hand_over::hand_over,
        legs::Legs,
        marked, outbox,
        reader::Begins,
        splice,
        terms::Terms,
    },
    KernelCarry, Pause, Relay,
};

/// Carries a flow to its end.
pub(in super::super) async fn carry(
    client: TcpStream,
    database: TcpStream,
    mut entered: Box<Entered>,
) {
    let question = entered.question.take();
    let (shared, flow) = (&entered.shared, &entered.flow);
    let reading = entered.reading.take();
    let elsewhere = match reading.is_some() {
        true => "another agent has handed it over, and its client is in another network namespace",
        false => "its client and its database are on other hosts",
    };
    let is_read = flow.path() == Path::Enrich;
    let terms = match is_read && reading.is_none() {
        true => Terms::of(shared, flow, question.as_deref()),
        false => None,
    };
    let begins = is_read.then(|| Begins {
        shared: shared.clone(),
        flow: flow.clone(),
        question,
    });
    let mut relay = Relay::new(begins, flow, &shared.metrics);
    relay.legs = Legs::new(terms, shared, flow);
    if let Some(reading) = reading {
        relay.up.begins_with_tls = Some(reading.tls);
        relay.reader.begin_on(shared, flow, *reading);
    }
    let source = match &entered.application {
        Some(_) => splice::SpliceSource::Shared(shared.clone()),
        None => {
            flow.set_relayed(elsewhere);
            splice::SpliceSource::Closed
        }
    };
    let counters = splice::Counters::Shared(shared.clone());
    let mut ride = KernelCarry::new(source, entered.application.clone(), flow, counters);
    let (near, far) = flow.near().sides(client, database);
    let end = {
        let carries = pin!(to_the_end(&mut relay, &mut ride, &near, far));
        unless_it_panics(carries).await
    };
    ride.count(&relay);
    // What has been asked is told as not answered, if that can still be said.
    let finished = catch_unwind(AssertUnwindSafe(|| relay.finish()));
    let end = end.unwrap_or(FlowEnd::Closed {
        reason: CloseReason::Panicked,
        far: None,
    });
    // Its sides may take a while to close.
    flow.commands.close();
    let FlowEnd::Closed { mut reason, far } = end else {
        return; // Another agent goes on with it, whatever could not be told here.
    };
    if finished.is_err() {
        reason = CloseReason::Panicked;
    }
    if let Some(splice) = ride.splice() {
        splice.let_out();
    }
    if let Some(far) = &far {
        let (client, database) = flow.near().sides(&near, far);
        relay.legs.end(reason, client, database);
    }
    close::flow(&entered.flow, &entered.shared.metrics, reason);
    close::sides(flow.near(), reason, near, far).await;
}

/// Carries a flow. None: it has panicked, which ends no other flow, and this one is closed as any other is.
///
/// Pinned by who calls: a future that takes another one by value and pins it has room for it twice.
fn unless_it_panics(
    mut carries: Pin<&mut impl Future<Output = FlowEnd>>,
) -> impl Future<Output = Option<FlowEnd>> {
    poll_fn(move |cx| {
        let polled = catch_unwind(AssertUnwindSafe(|| carries.as_mut().poll(cx)));
        polled.map_or(Poll::Ready(None), |polled| polled.map(Some))
    })
}

/// Relays, and lets the kernel carry, in turns, between the sockets that lead to the near
/// application and to the far one.
pub(in super::super) async fn to_the_end(
    relay: &mut Relay,
    ride: &mut KernelCarry,
    near: &TcpStream,
    mut far: TcpStream,
) -> FlowEnd {
    let reader = poll_fn(|cx| Poll::Ready(cx.waker().clone())).await;
    relay.up.flow.commands.read_by(&reader);
    drop(reader);
    loop {
        let corrupted = splice::corrupted(relay.to_near().enrolled.clone());
        let (client, database) = relay.near.sides(near, &far);
        let moving = poll_fn(|cx| relay.poll(cx, client, database, ride));
        let stop = tokio::select! {
            biased;
            stop = moving => stop,
            // Nobody reads from the client while the database does not take what it sent; the
            // client can leave all the same, and then its permit is free. (A database that resets
            // is noticed when the client has taken what the database sent before.)
            _ = client.ready(Interest::ERROR) => Pause::Ended(CloseReason::ClientReset),
            () = corrupted => Pause::Ended(CloseReason::SpliceFailed),
        };
        // Before a socket is closed, or carried by somebody else.
        outbox::flush();
        match stop {
            Pause::Ended(reason) => return FlowEnd::closed(reason, far),
            Pause::Letter => {
                let flow = relay.up.flow.clone();
                let posted = flow.commands.take();
                let reason = posted.and_then(|c| marked::apply_command(&flow, c, Some(relay)));
                if let Some(reason) = reason {
                    return FlowEnd::closed(reason, far);
                }
            }
            Pause::HandOver(reading) => {
                let taken = match ride.context() {
                    // Elsewhere: it happens once, and each flow would have room for it all its life.
                    Some(shared) => {
                        Box::pin(hand_over(
                            shared,
                            relay.flow(),
                            *reading,
                            ride.application(),
                            relay.near().sides(near, &far),
                        ))
                        .await
                    }
                    None => false,
                };
                if taken {
                    return FlowEnd::GivenAway { far };
                }
            }
            Pause::Idle => match ride.along(relay, near, far).await {
                Ok(back) => far = back,
                Err(ended) => return ended,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes of a carried flow's task, at most: of thousands of flows nearly all wait.
    const MOST_BYTES: usize = 1840;

    fn bytes_of<A, B, C, F: Future>(_: impl FnOnce(A, B, C) -> F) -> usize {
        size_of::<F>()
    }

    #[test]
    fn a_flow_has_no_room_for_what_is_rare() {
        let bytes = bytes_of(carry);
        assert!(bytes <= MOST_BYTES, "{bytes}");
    }
}
