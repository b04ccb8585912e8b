//! An agent's part: it follows the policy, and acknowledges what became of it.
//!
//! All files are read at the start of a session and after each change, as they are at one revision: nothing depends on events
//! that might be missed, or on a revision that might be compacted away. A session ends with the first failure, and the next
//! one is with another member.

use std::{collections::BTreeMap, convert::Infallible, sync::Arc, time::Duration};

use etcd_client::{LeaseKeepAliveStream, LeaseKeeper, WatchOptions, WatchResponse, WatchStream};
use tokio::{
    sync::watch,
    time::{self, Instant, MissedTickBehavior},
};

use crate::{
    Dial, Failure, Fragments, Pace, STATUS_TTL, Settings, Status, Verdict,
    namesake::Namesake,
    session::{Session, ask},
};

/// Events that come within this time of each other are one change: each file of a policy may be written by a request of its own.
const SETTLE: Duration = Duration::from_millis(20);

/// News of etcd.
#[derive(Debug)]
pub enum News<'n> {
    /// The policy was read as it is now, and is being watched.
    InStep,
    /// A member has said that nothing else has changed.
    Heard,
    /// A session ended, or did not begin.
    Failed(&'n Failure),
    /// There is no policy that could be offered.
    Unusable(&'n Verdict),
    /// Another agent is alive that says it is this host; or, if not, none is any more.
    Namesake(bool),
}

/// Follows a policy.
pub struct Follower {
    /// Where etcd is.
    pub settings: Settings,
    /// The host's name.
    pub host: String,
    /// The agent's version.
    pub agent: String,
    /// The times.
    pub pace: Pace,
    /// How connections are made.
    pub dial: Dial,
    /// Where policies are offered. Only the last one counts.
    pub offers: watch::Sender<Option<Arc<Fragments>>>,
    /// Verdicts on them.
    pub verdicts: watch::Receiver<Option<Verdict>>,
    /// The one that hears news.
    pub tell: Box<dyn Fn(News<'_>) + Send + Sync>,
}

/// The parts of a session beside its connection.
struct Held {
    watch: WatchStream,
    lease: i64,
    keeper: LeaseKeeper,
    kept: LeaseKeepAliveStream,
    heard: Instant,
}

impl Follower {
    /// Follows for ever.
    pub async fn run(mut self) -> Infallible {
        // Hosts begin with different members.
        let mut next = fastrand::usize(..self.settings.endpoints.len().max(1));
        let mut failures = 0;
        loop {
            let failure = match self.session(next, &mut failures).await {
                Ok(never) => match never {},
                Err(failure) => failure,
            };
            (self.tell)(News::Failed(&failure));
            next += 1;
            failures += 1;
            time::sleep(self.pace.wait(failures, self.settings.endpoints.len())).await;
        }
    }

    async fn session(&mut self, member: usize, failures: &mut u32) -> Result<Infallible, Failure> {
        let (dial, answer) = (&self.dial, self.pace.answer);
        let mut session = Session::open_next(&self.settings, member, dial, answer).await?;
        let (now, mut unusable) = self.read(&mut session).await?;
        let mut held = Held::begin(&mut session, now).await?;
        let mut namesake = Namesake::new(self.pace.outlives);
        *failures = 0;
        (self.tell)(News::InStep);
        self.verdicts.mark_changed();
        let mut probes = time::interval(self.pace.probe);
        probes.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut renewals = time::interval(STATUS_TTL / 3);
        let mut again = Instant::now() + self.pace.again();
        loop {
            tokio::select! {
                said = held.watch.message() => {
                    held.heard = Instant::now();
                    if !read(said?)?.events().is_empty() {
                        time::sleep(SETTLE).await;
                        let was_unusable = unusable.is_some();
                        (_, unusable) = self.read(&mut session).await?;
                        // What is in force already is no news to whoever gives verdicts.
                        if was_unusable || unusable.is_some() {
                            self.verdicts.mark_changed();
                        }
                        (self.tell)(News::InStep);
                    } else {
                        (self.tell)(News::Heard);
                    }
                }
                changed = self.verdicts.changed() => {
                    if changed.is_err() {
                        // The agent ends.
                        std::future::pending::<()>().await;
                    }
                    let verdict = self.verdicts.borrow_and_update().clone();
                    if let Some(verdict) = unusable.clone().or(verdict) {
                        let key = session.keys.status(&self.host);
                        let status = self.status(&verdict)?;
                        namesake.put(&mut session, key, status, held.lease).await?;
                    }
                }
                () = namesake.due() => {
                    let is_there = namesake.look(&mut session).await?;
                    (self.tell)(News::Namesake(is_there));
                    if !is_there {
                        // It may have taken this host's status with it.
                        again = Instant::now();
                    }
                }
                () = time::sleep_until(again) => {
                    again = Instant::now() + self.pace.again();
                    let key = session.keys.status(&self.host);
                    if !namesake.is_on(&mut session, key, held.lease).await? {
                        self.verdicts.mark_changed();
                    }
                }
                _ = probes.tick() => {
                    if held.heard.elapsed() > self.pace.silence {
                        return Err(Failure::Late);
                    }
                    held.watch.request_progress().await?;
                }
                _ = renewals.tick() => held.keeper.keep_alive().await?,
                renewed = held.kept.message() => {
                    let is_alive = renewed?.is_some_and(|renewed| renewed.ttl() > 0);
                    if !is_alive {
                        return Err(Failure::Lost("the lease of the status has ended".to_owned()));
                    }
                }
            }
        }
    }

    /// Reads the policy and offers it. Returns etcd's revision, and the verdict on what is no policy and so is not offered.
    async fn read(&mut self, session: &mut Session) -> Result<(i64, Option<Verdict>), Failure> {
        let (now, read) = session.list().await?;
        let why = match read {
            Ok(fragments) => {
                self.offers.send_replace(Some(Arc::new(fragments)));
                return Ok((now, None));
            }
            Err(why) => why,
        };
        let last = self.verdicts.borrow().clone();
        let verdict = Verdict {
            revision: now,
            version: None,
            digest: String::new(),
            error: Some(why.to_string()),
            in_force_version: last.as_ref().and_then(|last| last.in_force_version),
            in_force: last.map(|last| last.in_force).unwrap_or_default(),
            refused: BTreeMap::new(),
            kept: None,
        };
        (self.tell)(News::Unusable(&verdict));
        Ok((now, Some(verdict)))
    }

    fn status(&self, verdict: &Verdict) -> Result<String, Failure> {
        let status = Status::new(&self.host, &self.agent, verdict);
        serde_json::to_string(&status).map_err(|e| Failure::Lost(e.to_string()))
    }
}

impl Held {
    /// Watches from the next revision on, and takes a lease.
    async fn begin(session: &mut Session, now: i64) -> Result<Self, Failure> {
        let prefix = session.keys.rules();
        let options = WatchOptions::new()
            .with_prefix()
            .with_start_revision(now + 1);
        let watch = ask(session.answer, session.client.watch(prefix, Some(options))).await?;
        let seconds = STATUS_TTL.as_secs() as i64;
        let lease = ask(session.answer, session.client.lease_grant(seconds, None)).await?;
        let lease = lease.id();
        let (keeper, kept) = ask(session.answer, session.client.lease_keep_alive(lease)).await?;
        Ok(Self {
            watch,
            lease,
            keeper,
            kept,
            heard: Instant::now(),
        })
    }
}

/// Reads a word of a watch.
///
/// # Errors
/// The watch has ended.
pub(crate) fn read(said: Option<WatchResponse>) -> Result<WatchResponse, Failure> {
    let Some(said) = said else {
        return Err(Failure::Lost("the watch has ended".to_owned()));
    };
    if said.compact_revision() > 0 {
        return Err(Failure::Compacted);
    }
    if said.canceled() {
        return Err(Failure::Lost(said.cancel_reason().to_owned()));
    }
    Ok(said)
}
