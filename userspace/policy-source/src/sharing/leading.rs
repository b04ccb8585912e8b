//! The leader's part: it reads what all hosts want, and publishes the levels.

use etcd_client::{
    Compare, CompareOp, EventType, KeyValue, PutOptions, Txn, TxnOp, WatchOptions, WatchResponse,
    WatchStream,
};
use limits::{Book, Levels, PERIOD};
use tokio::time::{self, Interval, MissedTickBehavior};

use super::revision;
use crate::{
    Failure,
    follow::read,
    session::{Session, ask},
};

/// Records in one answer: of the longest ones, a hundred are below the longest message.
const RECORDS_AT_ONCE: usize = 100;

/// Times that levels which do not change are published: a host grows when two in a row say so.
const TIMES: u32 = 2;

/// A host's part as the leader.
pub(super) struct Leading {
    book: Book,
    hosts: WatchStream,
    publishes: Interval,
    period_ms: u64,
    /// The revision at which it began to lead. As long as the leader's key has it, nobody else leads.
    since: i64,
    last: Levels,
    times: u32,
}

/// News for the leader.
pub(super) enum News {
    /// The time to publish has come.
    Due,
    /// Hosts have published, or are gone.
    Hosts(Result<Option<WatchResponse>, etcd_client::Error>),
}

/// Waits for news, for ever if this host does not lead.
pub(super) async fn news(leading: &mut Option<Leading>) -> News {
    let Some(leading) = leading else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = leading.publishes.tick() => News::Due,
        said = leading.hosts.message() => News::Hosts(said),
    }
}

impl Leading {
    /// Begins to lead, unless somebody else does.
    pub(super) async fn begin(
        session: &mut Session,
        host: &str,
        lease: i64,
    ) -> Result<Option<Self>, Failure> {
        let key = session.keys.leader();
        let is_free = Compare::create_revision(key.clone(), CompareOp::Equal, 0);
        let lead = TxnOp::put(key, host, Some(PutOptions::new().with_lease(lease)));
        let txn = Txn::new().when([is_free]).and_then([lead]);
        let done = ask(session.answer, session.client.txn(txn)).await?;
        if !done.succeeded() {
            return Ok(None);
        }
        let since = done.header().map_or(0, |header| header.revision());
        let prefix = session.keys.wants();
        let (mut book, mut from, mut begun) = (Book::default(), prefix.clone().into_bytes(), None);
        loop {
            let page = session.page(&prefix, &from, RECORDS_AT_ONCE).await?;
            let now = page.header().map_or(0, |header| header.revision());
            begun.get_or_insert(now);
            for kv in page.kvs() {
                note_kv(&mut book, &prefix, kv, true);
            }
            match page.kvs().last() {
                Some(last) if page.more() => {
                    from = [last.key(), &[0]].concat();
                }
                _ => break,
            }
        }
        let from = begun.unwrap_or_default() + 1;
        let options = WatchOptions::new().with_prefix().with_start_revision(from);
        let hosts = ask(session.answer, session.client.watch(prefix, Some(options))).await?;
        let period_ms = PERIOD.as_millis() as u64;
        Ok(Some(Self {
            book,
            hosts,
            publishes: twice_in(period_ms),
            period_ms,
            since,
            last: Levels::default(),
            times: 0,
        }))
    }

    /// Has the leader's key hang on another lease. Returns whether this host still leads.
    pub(super) async fn hang_on(
        &self,
        session: &mut Session,
        host: &str,
        lease: i64,
    ) -> Result<bool, Failure> {
        let key = session.keys.leader();
        let leads = Compare::create_revision(key.clone(), CompareOp::Equal, self.since);
        let put = TxnOp::put(key, host, Some(PutOptions::new().with_lease(lease)));
        let txn = Txn::new().when([leads]).and_then([put]);
        Ok(ask(session.answer, session.client.txn(txn))
            .await?
            .succeeded())
    }

    /// Does what news ask for. Returns whether this host still leads.
    pub(super) async fn act(&mut self, news: News, session: &mut Session) -> Result<bool, Failure> {
        match news {
            News::Due => self.publish(session).await,
            News::Hosts(said) => {
                let prefix = session.keys.wants();
                for event in read(said?)?.events() {
                    if let Some(kv) = event.kv() {
                        let is_there = event.event_type() == EventType::Put;
                        note_kv(&mut self.book, &prefix, kv, is_there);
                    }
                }
                Ok(true)
            }
        }
    }

    /// Has the levels published once more: whether this host still leads is known then.
    pub(super) fn doubt(&mut self) {
        self.times = 0;
    }

    async fn publish(&mut self, session: &mut Session) -> Result<bool, Failure> {
        let levels = self.book.levels();
        if levels != self.last {
            self.times = 0;
        } else if self.times >= TIMES {
            return Ok(true);
        }
        let text = serde_json::to_string(&levels).map_err(|e| Failure::Lost(e.to_string()))?;
        let leader = session.keys.leader();
        let leads = Compare::create_revision(leader, CompareOp::Equal, self.since);
        let put = TxnOp::put(session.keys.levels(), text, None);
        let txn = Txn::new().when([leads]).and_then([put]);
        let done = ask(session.answer, session.client.txn(txn)).await?;
        if levels.period_ms != self.period_ms {
            self.period_ms = levels.period_ms;
            self.publishes = twice_in(levels.period_ms);
        }
        self.times += 1;
        self.last = levels;
        Ok(done.succeeded())
    }
}

/// Ticks, two in a period: a host that looks has been heard when it looks again.
fn twice_in(period_ms: u64) -> Interval {
    let mut ticks = time::interval(time::Duration::from_millis(period_ms / 2));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

/// Notes what a host wants, or that it has gone.
fn note_kv(book: &mut Book, prefix: &str, kv: &KeyValue, is_there: bool) {
    let host = kv.key().get(prefix.len()..).unwrap_or_default();
    let value = is_there.then_some(kv.value());
    note(book, host, value, revision(kv.mod_revision()));
}

/// Notes what a host wants. None: it has gone. What is no record changes nothing.
pub(crate) fn note(book: &mut Book, host: &[u8], value: Option<&[u8]>, revision: u64) {
    let Ok(host) = std::str::from_utf8(host) else {
        return;
    };
    match value.map(serde_json::from_slice) {
        None => book.remove(host),
        Some(Ok(record)) => book.put(host, revision, record),
        Some(Err(error)) => {
            tracing::debug!(host, "what a host wants of limits cannot be read: {error}");
        }
    }
}
