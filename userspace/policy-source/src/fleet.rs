//! Actions of operators: change the policy of a fleet, go back to an earlier version of it, and ask what hosts made of it.

use etcd_client::{Compare, CompareOp, GetResponse, Txn, TxnOp};
use serde::{Deserialize, Serialize};

use crate::{
    Dial, Failure, Fragments, MAX_FRAGMENTS, Pace, Settings, Status, Unusable,
    session::{Session, ask},
};

/// Versions that are kept: etcd's compaction does not touch them, so they are bounded here.
pub const KEPT_VERSIONS: u64 = 100;

/// Comparisons of a transaction that etcd takes, unless it is told otherwise.
const MAX_COMPARES: usize = 128;

/// Statuses in one answer: 1,000 of the longest stay below the longest message.
const STATUSES_AT_ONCE: usize = 1000;

/// A policy that was pushed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Version {
    /// The number, from 1 on.
    pub number: u64,
    /// When it was pushed, in seconds since 1970.
    pub unix_s: u64,
    /// The version that it repeats. None: it is new.
    pub repeats: Option<u64>,
    /// The files.
    pub fragments: Fragments,
}

/// The last push, as it stands beside the files.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Pushed {
    /// The number of the version.
    pub(crate) version: u64,
    /// The number of its files: one that somebody else removes leaves no other trace.
    pub(crate) files: usize,
}

/// A fleet, by one of its members of etcd.
pub struct Fleet {
    session: Session,
}

impl Fleet {
    /// Connects to the first member that answers, also what it has to agree with others on: one that is cut off from them takes connections, too.
    ///
    /// # Errors
    /// None does; the failure is that of the last.
    pub async fn connect(settings: &Settings, dial: &Dial) -> Result<Self, Failure> {
        let answer = Pace::default().answer;
        let mut last = Failure::Absent("no endpoint is named".to_owned());
        for endpoint in &settings.endpoints {
            let joined = async {
                let mut session = Session::open(settings, endpoint, dial, answer).await?;
                session.agrees().await?;
                Ok(Self { session })
            };
            match joined.await {
                Ok(fleet) => return Ok(fleet),
                Err(failure) => last = failure,
            }
        }
        Err(last)
    }

    /// Reads the policy that hosts follow.
    ///
    /// # Errors
    /// etcd does not answer. Inside: what is there is no policy.
    pub async fn wanted(&mut self) -> Result<Result<Fragments, Unusable>, Failure> {
        Ok(self.session.list().await?.1)
    }

    /// Puts a policy in the place of another, whichever that is, and keeps it as a version.
    ///
    /// # Errors
    /// etcd does not answer; or somebody else changes the policy at the same time.
    pub async fn push(
        &mut self,
        fragments: Fragments,
        repeats: Option<u64>,
        unix_s: u64,
    ) -> Result<Version, Failure> {
        self.push_on(None, fragments, repeats, unix_s).await
    }

    /// Puts a policy in the place of a version, of which nothing may have changed since. 0: nobody has pushed yet. None: in the place of whatever is there.
    ///
    /// # Errors
    /// As [`Self::push`]; or another version is the latest, or somebody has changed its files without a push.
    pub async fn push_on(
        &mut self,
        on: Option<u64>,
        fragments: Fragments,
        repeats: Option<u64>,
        unix_s: u64,
    ) -> Result<Version, Failure> {
        let keys = self.session.keys.clone();
        let head = keys.head();
        let read = ask(
            self.session.answer,
            self.session.client.get(head.clone(), None),
        )
        .await?;
        let found = read.kvs().first();
        let seen = found.map_or(0, |kv| kv.mod_revision());
        let latest = found.and_then(|kv| kv.value_str().ok()?.parse::<u64>().ok());
        let latest = latest.unwrap_or(0);
        let number = latest + 1;
        let prefix = keys.rules();
        let old = self
            .session
            .page(&prefix, prefix.as_bytes(), MAX_FRAGMENTS + 1)
            .await?;
        if old.more() {
            let said = format!(
                "there are more files than a push can remove: `etcdctl del --prefix {prefix}` first"
            );
            return Err(Failure::TooLarge(said));
        }
        let now = old.header().map_or(0, |header| header.revision());
        if let Some(on) = on {
            self.stands_on(on, latest, &old, now).await?;
        }
        let version = Version {
            number,
            unix_s,
            repeats,
            fragments,
        };
        let text = serde_json::to_string(&version).map_err(|e| Failure::Lost(e.to_string()))?;
        let files = &version.fragments.files;
        let mut operations: Vec<TxnOp> = old
            .kvs()
            .iter()
            .filter(|kv| {
                !files
                    .iter()
                    .any(|file| keys.rule(&file.name).as_bytes() == kv.key())
            })
            .map(|kv| TxnOp::delete(kv.key(), None))
            .collect();
        // A file that is as it was is no change.
        let changed = files
            .iter()
            .filter(|file| !has(&old, &keys.rule(&file.name), &file.text));
        operations.extend(
            changed.map(|file| TxnOp::put(keys.rule(&file.name), file.text.as_str(), None)),
        );
        if let (true, Some(first)) = (operations.is_empty(), files.first()) {
            // Hosts watch the files, and are to know that this is another version.
            operations.push(TxnOp::put(
                keys.rule(&first.name),
                first.text.as_str(),
                None,
            ));
        }
        let pushed = Pushed {
            version: number,
            files: files.len(),
        };
        let pushed = serde_json::to_string(&pushed).map_err(|e| Failure::Lost(e.to_string()))?;
        operations.push(TxnOp::put(keys.pushed(), pushed, None));
        operations.push(TxnOp::put(keys.version(number), text, None));
        operations.push(TxnOp::put(keys.head(), number.to_string(), None));
        if let Some(oldest) = number
            .checked_sub(KEPT_VERSIONS)
            .filter(|oldest| *oldest > 0)
        {
            operations.push(TxnOp::delete(keys.version(oldest), None));
        }
        const {
            assert!(
                MAX_FRAGMENTS + 3 <= MAX_COMPARES,
                "etcd takes a comparison for each file"
            )
        };
        let mut unchanged = vec![
            Compare::mod_revision(keys.head(), CompareOp::Equal, seen),
            // None is new, or another one.
            Compare::mod_revision(prefix, CompareOp::Less, now + 1).with_prefix(),
        ];
        // None is gone.
        unchanged.extend(
            old.kvs()
                .iter()
                .map(|kv| Compare::mod_revision(kv.key(), CompareOp::Equal, kv.mod_revision())),
        );
        let txn = Txn::new().when(unchanged).and_then(operations);
        let done = ask(self.session.answer, self.session.client.txn(txn)).await?;
        match done.succeeded() {
            true => Ok(version),
            false => Err(Failure::Raced),
        }
    }

    /// Checks that what is there is a version.
    async fn stands_on(
        &mut self,
        on: u64,
        latest: u64,
        old: &GetResponse,
        now: i64,
    ) -> Result<(), Failure> {
        if latest != on {
            return Err(Failure::Superseded { latest, on });
        }
        let pushed = self.session.version(old.kvs(), now).await?;
        match pushed.unwrap_or(0) == on && (on > 0 || old.kvs().is_empty()) {
            true => Ok(()),
            false => Err(Failure::Unpushed),
        }
    }

    /// Reads the version that was pushed last. None: nobody has pushed.
    ///
    /// # Errors
    /// etcd does not answer.
    pub async fn head(&mut self) -> Result<Option<u64>, Failure> {
        let key = self.session.keys.head();
        let read = ask(self.session.answer, self.session.client.get(key, None)).await?;
        let kv = read.kvs().first();
        Ok(kv.and_then(|kv| kv.value_str().ok()?.parse().ok()))
    }

    /// Reads a version.
    ///
    /// # Errors
    /// etcd does not answer, or does not have it.
    pub async fn version(&mut self, number: u64) -> Result<Version, Failure> {
        let key = self.session.keys.version(number);
        let read = ask(self.session.answer, self.session.client.get(key, None)).await?;
        let kv = read.kvs().first();
        let version = kv.and_then(|kv| serde_json::from_slice(kv.value()).ok());
        version.ok_or_else(|| {
            Failure::Absent(format!(
                "etcd has no version {number}: the last {KEPT_VERSIONS} are kept, and the latest is what `underpass policy status` names"
            ))
        })
    }

    /// Finds the version before the latest, which is the one before that which the latest repeats: who goes back twice is two versions behind. None:
    /// there is no earlier one.
    ///
    /// # Errors
    /// etcd does not answer, or does not have the latest any more.
    pub async fn before_latest(&mut self) -> Result<Option<u64>, Failure> {
        let Some(mut number) = self.head().await? else {
            return Ok(None);
        };
        // A version repeats an earlier one, of which at most so many are kept.
        for _ in 0..KEPT_VERSIONS {
            match self.repeated(number).await? {
                Some(earlier) if earlier < number => number = earlier,
                _ => break,
            }
        }
        Ok(number.checked_sub(1).filter(|number| *number > 0))
    }

    /// Reads which version one repeats. Of one that is no longer kept nobody knows.
    async fn repeated(&mut self, number: u64) -> Result<Option<u64>, Failure> {
        match self.version(number).await {
            Ok(version) => Ok(version.repeats),
            Err(Failure::Absent(_)) => Ok(None),
            Err(failure) => Err(failure),
        }
    }

    /// Reads the statuses of all hosts whose agents follow, in the order of their names. What is no status is left out.
    ///
    /// # Errors
    /// etcd does not answer.
    pub async fn statuses(&mut self) -> Result<Vec<Status>, Failure> {
        let prefix = self.session.keys.statuses();
        let mut from = prefix.clone().into_bytes();
        let mut statuses = Vec::new();
        loop {
            let page = self.session.page(&prefix, &from, STATUSES_AT_ONCE).await?;
            let read = page.kvs().iter();
            statuses.extend(read.filter_map(|kv| serde_json::from_slice(kv.value()).ok()));
            match page.kvs().last() {
                Some(last) if page.more() => from = [last.key(), &[0]].concat(),
                _ => return Ok(statuses),
            }
        }
    }
}

fn has(old: &GetResponse, key: &str, text: &str) -> bool {
    let kv = old.kvs().iter().find(|kv| kv.key() == key.as_bytes());
    kv.is_some_and(|kv| kv.value() == text.as_bytes())
}
