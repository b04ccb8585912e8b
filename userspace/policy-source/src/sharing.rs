//! An agent's part in limits that a fleet shares: it publishes what its tenants want, and hears the levels. One agent of the fleet
//! leads: it reads what all have published, and publishes the levels.
//!
//! `<prefix>/limits/hosts/<host>` is what a host wants, on a lease; `<prefix>/limits/fleet/leader` is the leader's name, likewise;
//! `<prefix>/limits/fleet/levels` are the levels. Hosts watch the latter two, and whether their own record is deleted; the leader watches all of them.
//!
//! A session ends with the first failure, and the next one is with another member. The shares stay as they are in between.

#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzed;
mod leading;

use std::{convert::Infallible, sync::Arc, time::Duration};

use etcd_client::{
    EventType, LeaseKeepAliveStream, LeaseKeeper, PutOptions, WatchFilterType, WatchOptions,
    WatchResponse, WatchStream,
};
use limits::{Held, LEASE_PERIODS, Levels, Limit, Member, PERIOD, WAITS_IN_LEASE};
use tokio::{
    sync::watch,
    time::{self, Instant, Interval, MissedTickBehavior},
};

use self::leading::Leading;
use crate::{
    Dial, Failure, Pace, Settings,
    follow::read,
    keys::{LEADER, LEVELS},
    session::{Session, ask},
};

/// A lease that is so many times as long as the period asks for, or as short, is exchanged: a fleet that grows a little has its hosts do nothing.
const LEASE_OFF: u32 = 2;

/// The longest time between two looks that is taken from a leader: that of a fleet of 60,000 hosts.
pub const LONGEST_PERIOD: Duration = Duration::from_secs(60);

/// Keys that all hosts watch, the leader's and the levels', and some to spare.
const KEYS: usize = 16;

/// News of the limits.
#[derive(Debug)]
pub enum Sharing {
    /// Levels were read, and are being watched.
    InStep,
    /// A session ended, or did not begin.
    Failed(Failure),
    /// The host has looked at its demand.
    Looked {
        /// The host's limits.
        held: Vec<Held>,
        /// Requests since the last time whose tenants are beyond the bound.
        beyond: u64,
        /// Whether this host leads.
        leads: bool,
    },
}

/// Shares limits with the other hosts of a fleet.
pub struct Sharer {
    /// Where etcd is.
    pub settings: Settings,
    /// The host's name.
    pub host: String,
    /// The times.
    pub pace: Pace,
    /// How connections are made.
    pub dial: Dial,
    /// The limits of the policy in force.
    pub limits: watch::Receiver<Vec<Arc<Limit>>>,
    /// The one that hears news.
    pub tell: Box<dyn Fn(Sharing) + Send + Sync>,
}

/// The waits between sessions.
struct Waits {
    failures: u32,
    /// The length of the last lease, after which the host counts as gone.
    lease: Duration,
}

/// The parts of a session beside its connection.
struct Joined {
    watch: WatchStream,
    /// The key of what this host wants.
    own: String,
    lease: Lease,
    heard: Instant,
    /// Whether some host leads.
    is_led: bool,
    period: Duration,
}

/// A lease, which is renewed four times before it ends.
struct Lease {
    id: i64,
    lasts: Duration,
    keeper: LeaseKeeper,
    kept: LeaseKeepAliveStream,
    renewals: Interval,
}

impl Sharer {
    /// Shares for ever.
    pub async fn run(mut self) -> Infallible {
        let mut member = Member::default();
        let mut looked = Instant::now();
        let mut next = fastrand::usize(..self.settings.endpoints.len().max(1));
        let mut waits = Waits {
            failures: 0,
            lease: lasting(PERIOD),
        };
        loop {
            self.hold(&mut member);
            self.look(&mut member, &mut looked, false);
            if member.is_idle() {
                if self.limits.changed().await.is_err() {
                    // The agent ends.
                    std::future::pending::<()>().await;
                }
                continue;
            }
            let ended = self
                .session(next, &mut waits, &mut member, &mut looked)
                .await;
            member.session_ended();
            let Err(failure) = ended else {
                continue;
            };
            (self.tell)(Sharing::Failed(failure));
            next += 1;
            let wait = waits.next(&self.pace, self.settings.endpoints.len());
            self.stay(wait, waits.lease, &mut member, &mut looked).await;
        }
    }

    /// Waits. The shares stay meanwhile, also for the limits of another policy.
    async fn stay(
        &mut self,
        wait: Duration,
        lease: Duration,
        member: &mut Member,
        looked: &mut Instant,
    ) {
        let mut over = std::pin::pin!(time::sleep(wait));
        let mut looks = spread(lease / LEASE_PERIODS);
        loop {
            tokio::select! {
                () = over.as_mut() => return,
                _ = looks.tick() => self.look(member, looked, false),
                changed = self.limits.changed() => {
                    if changed.is_err() {
                        std::future::pending::<()>().await;
                    }
                    self.hold(member);
                }
            }
        }
    }

    fn hold(&mut self, member: &mut Member) {
        member.hold(self.limits.borrow_and_update().iter());
    }

    fn look(&self, member: &mut Member, looked: &mut Instant, leads: bool) {
        let since = looked.elapsed();
        // Nothing is to be learnt of less.
        if since >= PERIOD / 2 {
            *looked = Instant::now();
            member.look(since.as_secs_f64());
        }
        (self.tell)(Sharing::Looked {
            held: member.held().collect(),
            beyond: member.take_beyond(),
            leads,
        });
    }

    /// Shares by one member of etcd, until there is nothing to share.
    async fn session(
        &mut self,
        number: usize,
        waits: &mut Waits,
        member: &mut Member,
        looked: &mut Instant,
    ) -> Result<(), Failure> {
        let mut session =
            Session::open_next(&self.settings, number, &self.dial, self.pace.answer).await?;
        let mut joined = Joined::begin(&mut session, &self.host, member).await?;
        let mut leading: Option<Leading> = None;
        *waits = Waits {
            failures: 0,
            lease: joined.lease.lasts,
        };
        (self.tell)(Sharing::InStep);
        let mut looks = spread(joined.period);
        let mut probes = time::interval(self.pace.probe);
        probes.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                said = joined.watch.message() => {
                    let before = joined.period;
                    joined.hear(said?, member)?;
                    if joined.period != before {
                        looks = spread(joined.period);
                    }
                }
                _ = looks.tick() => {
                    self.look(member, looked, leading.is_some());
                    if joined.lease.is_off(joined.period) {
                        joined.lease = Lease::grant(&mut session, joined.period).await?;
                        waits.lease = joined.lease.lasts;
                        if let Some(leader) = &leading
                            && !leader.hang_on(&mut session, &self.host, joined.lease.id).await?
                        {
                            leading = None;
                        }
                        // What hangs on the lease before is published again. That one ends by itself.
                        member.session_ended();
                    }
                    self.publish(&mut session, joined.lease.id, member).await?;
                    match &mut leading {
                        _ if joined.is_led => {}
                        Some(leader) => leader.doubt(),
                        None => {
                            leading = Leading::begin(&mut session, &self.host, joined.lease.id).await?;
                            joined.is_led = true;
                        }
                    }
                }
                news = leading::news(&mut leading) => {
                    if let Some(leader) = &mut leading
                        && !leader.act(news, &mut session).await?
                    {
                        leading = None;
                    }
                }
                _ = probes.tick() => {
                    if joined.heard.elapsed() > self.pace.silence {
                        return Err(Failure::Late);
                    }
                    joined.watch.request_progress().await?;
                }
                _ = joined.lease.renewals.tick() => joined.lease.keeper.keep_alive().await?,
                renewed = joined.lease.kept.message() => {
                    let is_alive = renewed?.is_some_and(|renewed| renewed.ttl() > 0);
                    if !is_alive {
                        return Err(Failure::Lost("the lease of the limits has ended".to_owned()));
                    }
                }
                changed = self.limits.changed() => {
                    if changed.is_err() {
                        std::future::pending::<()>().await;
                    }
                    self.hold(member);
                }
            }
            if member.is_idle() {
                ask(session.answer, session.client.lease_revoke(joined.lease.id)).await?;
                return Ok(());
            }
        }
    }

    async fn publish(
        &self,
        session: &mut Session,
        lease: i64,
        member: &mut Member,
    ) -> Result<(), Failure> {
        let Some(record) = member.record() else {
            return Ok(());
        };
        let text = serde_json::to_string(&record).map_err(|e| Failure::Lost(e.to_string()))?;
        let key = session.keys.want(&self.host);
        let options = PutOptions::new().with_lease(lease);
        let put = ask(session.answer, session.client.put(key, text, Some(options))).await?;
        let at = put.header().map_or(0, |header| header.revision());
        member.published(revision(at));
        Ok(())
    }
}

impl Waits {
    /// Returns the wait after one more failure. All hosts are back before what they want is gone from etcd, which keeps it for as long as a lease after it was away.
    fn next(&mut self, pace: &Pace, members: usize) -> Duration {
        self.failures += 1;
        let longest_wait = pace.longest_wait.min(self.lease / WAITS_IN_LEASE);
        let pace = Pace {
            longest_wait,
            ..*pace
        };
        pace.wait(self.failures, members)
    }
}

/// Ticks of a period, which begin anywhere in it: the hosts of a fleet do not come all at once.
fn spread(period: Duration) -> Interval {
    let mut ticks = time::interval_at(Instant::now() + period.mul_f64(fastrand::f64()), period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

impl Lease {
    /// Takes a lease that is as long as a fleet with this period asks for.
    async fn grant(session: &mut Session, period: Duration) -> Result<Self, Failure> {
        let lasts = lasting(period);
        let seconds = lasts.as_secs() as i64;
        let granted = ask(session.answer, session.client.lease_grant(seconds, None)).await?;
        let id = granted.id();
        let (keeper, kept) = ask(session.answer, session.client.lease_keep_alive(id)).await?;
        let mut renewals = time::interval(lasts / 4);
        renewals.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Ok(Self {
            id,
            lasts,
            keeper,
            kept,
            renewals,
        })
    }

    /// Whether a fleet with this period asks for quite another one.
    fn is_off(&self, period: Duration) -> bool {
        let lasting = lasting(period);
        self.lasts >= lasting * LEASE_OFF || self.lasts * LEASE_OFF <= lasting
    }
}

/// The length of a lease in a fleet whose hosts look once in a period.
fn lasting(period: Duration) -> Duration {
    PERIOD.max(period) * LEASE_PERIODS
}

impl Joined {
    /// Reads the levels, watches from the next revision on, and takes a lease.
    async fn begin(
        session: &mut Session,
        host: &str,
        member: &mut Member,
    ) -> Result<Self, Failure> {
        let prefix = session.keys.sharing();
        let found = session.page(&prefix, prefix.as_bytes(), KEYS).await?;
        let (mut is_led, mut period) = (false, PERIOD);
        for kv in found.kvs() {
            match what(kv.key()) {
                What::Leader => is_led = true,
                What::Levels => period = hear(kv.value(), member).unwrap_or(period),
                What::Nothing => {}
            }
        }
        let now = found.header().map_or(0, |header| header.revision());
        let options = WatchOptions::new().with_start_revision(now + 1);
        let of_fleet = Some(options.clone().with_prefix());
        let mut watch = ask(session.answer, session.client.watch(prefix, of_fleet)).await?;
        let own = session.keys.want(host);
        let is_gone = options.with_filters([WatchFilterType::NoPut]);
        watch.watch(own.clone(), Some(is_gone)).await?;
        let lease = Lease::grant(session, period).await?;
        Ok(Self {
            watch,
            own,
            lease,
            heard: Instant::now(),
            is_led,
            period,
        })
    }

    fn hear(&mut self, said: Option<WatchResponse>, member: &mut Member) -> Result<(), Failure> {
        self.heard = Instant::now();
        for event in read(said)?.events() {
            let Some(kv) = event.kv() else {
                continue;
            };
            let is_there = event.event_type() == EventType::Put;
            if kv.key() == self.own.as_bytes() {
                // Somebody has deleted it, or a clone of this host has written it and has ended. It is published with the next look.
                member.session_ended();
                continue;
            }
            match what(kv.key()) {
                What::Leader => self.is_led = is_there,
                What::Levels if is_there => {
                    self.period = hear(kv.value(), member).unwrap_or(self.period);
                }
                What::Levels | What::Nothing => {}
            }
        }
        Ok(())
    }
}

/// The meaning of a key that all hosts watch.
enum What {
    Leader,
    Levels,
    Nothing,
}

fn what(key: &[u8]) -> What {
    match key.rsplit(|byte| *byte == b'/').next() {
        Some(LEADER) => What::Leader,
        Some(LEVELS) => What::Levels,
        _ => What::Nothing,
    }
}

/// Hears levels. Returns the period that they name. What are no levels changes nothing; the next ones take their place.
fn hear(text: &[u8], member: &mut Member) -> Option<Duration> {
    match serde_json::from_slice::<Levels>(text) {
        Ok(levels) => {
            member.heard(&levels);
            let period = Duration::from_millis(levels.period_ms);
            Some(period.clamp(PERIOD, LONGEST_PERIOD))
        }
        Err(error) => {
            tracing::warn!("the levels of the fleet's limits cannot be read: {error}");
            None
        }
    }
}

fn revision(etcds: i64) -> u64 {
    u64::try_from(etcds).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_back_before_its_lease_ends_in_a_fleet_of_any_size() {
        let pace = Pace::default();
        for seconds in 1..=LONGEST_PERIOD.as_secs() {
            let lease = lasting(Duration::from_secs(seconds));
            for members in [1, 3] {
                let mut waits = Waits { failures: 0, lease };
                let wait = (0..100).map(|_| waits.next(&pace, members)).max();
                // A fleet that has grown by less than what has it exchange leases looks so much less often.
                let look = lease / LEASE_PERIODS * LEASE_OFF;
                let back = wait.unwrap_or_default() + look;
                assert!(back + lease / 10 < lease, "{lease:?}: {back:?}");
                assert!(wait.is_some_and(|wait| wait <= pace.longest_wait));
            }
        }
    }
}
