//! Another agent that is alive and says that it is this host, as a clone of a machine does: the two write one status, and
//! have one share of each limit.
//!
//! The status of each agent hangs on a lease of its own. The one that a status hung on before is that of an agent that has ended, or of
//! this one's last session, and ends by itself; or it is still there much later, because somebody renews it.

use std::time::Duration;

use etcd_client::{GetOptions, PutOptions};
use tokio::time::{self, Instant};

use crate::{
    Failure,
    session::{Session, ask},
};

/// The lease of whoever wrote the status before.
#[derive(Debug)]
pub(crate) struct Namesake {
    /// How long a lease may be there that nobody renews.
    outlives: Duration,
    /// The lease, and when it is looked at.
    other: Option<(i64, Instant)>,
    /// Whether this user may read what it writes. A role that may not finds nobody.
    may_read: bool,
}

impl Namesake {
    pub(crate) fn new(outlives: Duration) -> Self {
        Self {
            outlives,
            other: None,
            may_read: true,
        }
    }

    /// Writes a key on a lease, and finds out on which one it was.
    pub(crate) async fn put(
        &mut self,
        session: &mut Session,
        key: String,
        text: String,
        lease: i64,
    ) -> Result<(), Failure> {
        let options = PutOptions::new().with_lease(lease);
        if self.may_read {
            let reading = Some(options.clone().with_prev_key());
            let put = session.client.put(key.clone(), text.clone(), reading);
            match ask(session.answer, put).await {
                Ok(put) => {
                    let before = put.prev_key().map(|before| before.lease());
                    self.note(before.filter(|before| ![0, lease].contains(before)));
                    return Ok(());
                }
                Err(Failure::Denied(_)) => self.may_read = false,
                Err(failure) => return Err(failure),
            }
        }
        ask(session.answer, session.client.put(key, text, Some(options)))
            .await
            .map(drop)
    }

    /// Whether a key is there and hangs on a lease. Where this user may not read it nobody knows, and it is taken for lost.
    pub(crate) async fn is_on(
        &self,
        session: &mut Session,
        key: String,
        lease: i64,
    ) -> Result<bool, Failure> {
        if !self.may_read {
            return Ok(false);
        }
        let options = GetOptions::new().with_keys_only();
        match ask(session.answer, session.client.get(key, Some(options))).await {
            Ok(read) => Ok(read.kvs().first().is_some_and(|kv| kv.lease() == lease)),
            Err(Failure::Denied(_)) => Ok(false),
            Err(failure) => Err(failure),
        }
    }

    fn note(&mut self, before: Option<i64>) {
        let known = self.other.map(|(lease, _)| lease);
        if before.is_some() && before != known {
            self.other = before.map(|lease| (lease, Instant::now() + self.outlives));
        }
    }

    /// Waits until it is to be found out whether the other one lives; for ever, if nobody is known.
    pub(crate) async fn due(&self) {
        match self.other {
            Some((_, at)) => time::sleep_until(at).await,
            None => std::future::pending().await,
        }
    }

    /// Finds out whether the other one lives. While it does, it is looked at again.
    pub(crate) async fn look(&mut self, session: &mut Session) -> Result<bool, Failure> {
        let Some((lease, _)) = self.other else {
            return Ok(false);
        };
        let asked = session.client.lease_time_to_live(lease, None);
        let is_alive = match ask(session.answer, asked).await {
            Ok(left) => left.ttl() > 0,
            Err(Failure::Denied(_)) => false,
            Err(failure) => return Err(failure),
        };
        self.other = is_alive.then(|| (lease, Instant::now() + self.outlives));
        Ok(is_alive)
    }
}
