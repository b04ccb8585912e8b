//! A flow's short legs: while the agent reads the flow, what it exchanges with an application on this host skips
//! TCP where the flow's rule lets the application's socket into a sockmap (`ebpf/src/legs.h`).
//!
//! A leg is shortened once, when the first bytes of its side have come and the flow is decided: by then an
//! application that does not block has said so. It is long again before the kernel carries the flow, because a socket
//! is in one sockmap at a time, when its reader has stalled, and when its reader's memory cgroup has no room. Then it
//! stays long, as long as this agent has the flow.

use std::{
    sync::{Arc, Weak},
    task::{Context, Poll, ready},
};

use dataplane::{Application, Leg, LegApplication, LegSide, LongLeg};
use flow::{Flow, LegNow};
use policy::Shortcut;
use socket2::SockRef;
use tokio::net::TcpStream;

use super::context::ProxyContext;

/// The legs of one flow.
#[derive(Default)]
pub(super) struct ShortLegs {
    client: State,
    database: State,
}

#[derive(Default)]
enum State {
    /// The leg is long, and may be shortened.
    #[default]
    Untried,
    Short(Arc<Leg>),
    /// The leg is long for good.
    Long,
}

/// A side of a flow from which bytes have come.
pub(super) struct SpokenSide<'a> {
    pub side: LegSide,
    pub socket: &'a TcpStream,
    /// Whether the side speaks TLS.
    pub is_tls: bool,
}

impl ShortLegs {
    /// Whether the leg of this side may be shortened yet.
    pub(super) fn is_untried(&self, side: LegSide) -> bool {
        matches!(self.of(side), State::Untried)
    }

    /// Shortens a leg, if the flow's rule lets the application's socket into a sockmap. A refusal is for good. Returns the leg,
    /// by which the side is to be written while there is one.
    pub(super) fn shorten(
        &mut self,
        spoken: &SpokenSide<'_>,
        flow: &Flow,
        application: Option<&Application>,
        shared: &ProxyContext,
    ) -> Weak<Leg> {
        let sides = flow.opted_in();
        let is_let_in = match spoken.side {
            LegSide::Client => sides.takes_client(),
            LegSide::Database => sides.takes_database(),
        };
        let mut short = Weak::new();
        let state = match is_let_in.then(|| enter(spoken, application, shared)) {
            None => {
                if sides != Shortcut::Neither {
                    flow.set_leg(spoken.side, LegNow::Long(NOT_LET_IN.into()));
                }
                State::Long
            }
            Some(Ok(leg)) => {
                flow.set_leg(spoken.side, LegNow::Short(leg.state()));
                let leg = Arc::new(leg);
                short = Arc::downgrade(&leg);
                State::Short(leg)
            }
            Some(Err(why)) => {
                let counter = &shared.metrics.flows.long_legs;
                counter.with_label_values(&[why.as_str()]).inc();
                flow.set_leg(spoken.side, LegNow::Long(why.to_string().into()));
                State::Long
            }
        };
        *self.of_mut(spoken.side) = state;
        short
    }

    /// Takes short legs back. Ready when all are long.
    pub(super) fn poll_long(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        for side in [LegSide::Client, LegSide::Database] {
            if let State::Short(leg) = self.of(side) {
                leg.leave();
            }
        }
        for side in [LegSide::Client, LegSide::Database] {
            if let State::Short(leg) = self.of(side) {
                ready!(leg.poll_left(cx));
                *self.of_mut(side) = State::Long;
            }
        }
        Poll::Ready(())
    }

    fn of(&self, side: LegSide) -> &State {
        match side {
            LegSide::Client => &self.client,
            LegSide::Database => &self.database,
        }
    }

    fn of_mut(&mut self, side: LegSide) -> &mut State {
        match side {
            LegSide::Client => &mut self.client,
            LegSide::Database => &mut self.database,
        }
    }
}

const NOT_LET_IN: &str = "the rule's `shortcut` names the other side alone";

fn enter(
    spoken: &SpokenSide<'_>,
    application: Option<&Application>,
    shared: &ProxyContext,
) -> Result<Leg, LongLeg> {
    if spoken.is_tls {
        return Err(LongLeg::Tls);
    }
    let application = match (spoken.side, application) {
        (LegSide::Client, Some(Application::Client(cookie, None))) => {
            LegApplication::Client(*cookie)
        }
        (LegSide::Client, _) => return Err(LongLeg::Elsewhere),
        (LegSide::Database, _) => LegApplication::Database,
    };
    shared.legs.enter(SockRef::from(spoken.socket), application)
}
