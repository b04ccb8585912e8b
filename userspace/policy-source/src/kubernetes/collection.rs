//! Objects of one kind: listed once, and then watched. A watch that breaks off goes on where it was; one whose past the server has
//! forgotten begins with a list. What is kept of an object is made as soon as it comes, and an object that cannot be read is kept as
//! that: whoever may write one object does not stop the others.

mod again;
mod kept;

use std::{collections::BTreeMap, convert::Infallible, time::Duration};

use http_body_util::BodyExt as _;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::time::{self, Instant};

use self::again::Again;
pub(super) use self::kept::Kept;
use super::session::Session;
use crate::Failure;

/// Objects of a page of a list.
const PAGE: usize = 500;

/// Objects of a page where such a page is longer than an answer may be: an object has 1.5 MiB at most.
const SMALL_PAGE: usize = 8;

/// The longest event of a watch: an object has 1.5 MiB at most in etcd, and is twice as long in JSON.
pub const MAX_LINE_BYTES: usize = 4 << 20;

/// How long a watch is asked for, at least; the server ends it then. Half as long is added by chance, so that not all agents of a cluster
/// begin anew at once.
const WATCH_SECONDS: u64 = 300;

/// The time after which a watch that the server should have ended is given up.
const GRACE: Duration = Duration::from_secs(60);

/// A watch that ends sooner is a failure, after which a pause is made.
const SHORTEST_WATCH: Duration = Duration::from_secs(1);

/// Facts that each object has.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Metadata {
    /// The name.
    pub name: String,
    /// The namespace. Empty: objects of this kind are in none.
    #[serde(default)]
    pub namespace: String,
    /// The id, which no other object has had.
    #[serde(default)]
    pub uid: String,
    /// The number of changes to what is wanted.
    #[serde(default)]
    pub generation: i64,
    /// The version of the store.
    #[serde(default)]
    pub resource_version: String,
    /// When it was made, as RFC 3339 has it.
    #[serde(default)]
    pub creation_timestamp: Option<String>,
    /// The labels.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// The objects that it belongs to.
    #[serde(default)]
    pub owner_references: Vec<OwnerReference>,
}

/// An owner of an object.
#[derive(Clone, Debug, Deserialize)]
pub struct OwnerReference {
    /// The kind, as `ReplicaSet`.
    pub kind: String,
    /// The name.
    pub name: String,
    /// Whether it is the one that made the object.
    #[serde(default)]
    pub controller: bool,
}

#[derive(Deserialize)]
struct Headed {
    metadata: Metadata,
}

/// Objects as they come: one that is nested too deep for a parser does not spoil the others.
#[derive(Deserialize)]
struct List<'l> {
    metadata: ListMetadata,
    #[serde(default, borrow)]
    items: Vec<&'l RawValue>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ListMetadata {
    #[serde(default)]
    pub(super) resource_version: String,
    #[serde(default, rename = "continue")]
    more: String,
}

#[derive(Deserialize)]
struct Event<'e> {
    #[serde(rename = "type")]
    kind: String,
    #[serde(borrow)]
    object: &'e RawValue,
}

#[derive(Deserialize)]
struct Bookmark {
    metadata: ListMetadata,
}

#[derive(Deserialize)]
struct Ended {
    #[serde(default)]
    code: u16,
    #[serde(default)]
    message: String,
}

/// Makes what is kept of an object, of its metadata and of all of its JSON; and says how many bytes that has.
pub(super) type Keep<'k, T> = Box<dyn Fn(&Metadata, &RawValue) -> (T, usize) + Send + Sync + 'k>;

/// Where objects of a kind are, and which.
pub(super) struct Collection<'k, T> {
    /// The path, as `/api/v1/pods`.
    pub(super) path: String,
    /// Further conditions of the query, each with `&` before it.
    pub(super) query: String,
    /// Objects at most, of [`kept::LEAST_BYTES`] each.
    pub(super) most: usize,
    /// Makes what is kept.
    pub(super) keep: Keep<'k, T>,
}

/// How fresh a list has to be.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fresh {
    /// Objects: what the server has in its memory will do.
    Memory,
    /// Not older than what was seen already: another server may be behind.
    AsSeen,
    /// Objects: as it is in the store.
    Store,
}

/// Why a watch is over.
enum Over {
    /// The time has passed.
    Time,
    /// There may be room for objects that were not kept, and some time has passed since.
    Room,
}

impl<T: PartialEq> Collection<'_, T> {
    /// Follows for ever. `seen` is the version that was seen last, also in sessions before. `changed` is told of all objects when they are
    /// listed and after each change, `heard` of each word of the server.
    pub(super) async fn follow(
        &self,
        session: &Session,
        seen: &mut String,
        mut changed: impl FnMut(&Kept<T>),
        heard: impl Fn(),
    ) -> Result<Infallible, Failure> {
        let mut fresh = match seen.is_empty() {
            true => Fresh::Memory,
            false => Fresh::AsSeen,
        };
        let mut page = PAGE;
        let mut again = Again::default();
        loop {
            let (mut kept, version) = match self.list(session, fresh, seen, page).await {
                Err(Failure::TooLarge(_)) if page > SMALL_PAGE => {
                    (fresh, page) = (Fresh::Store, SMALL_PAGE);
                    continue;
                }
                Err(Failure::Compacted) if fresh != Fresh::Store => {
                    fresh = Fresh::Store;
                    continue;
                }
                listed => listed?,
            };
            *seen = version;
            again.note_list(Instant::now());
            if fresh == Fresh::Memory {
                fresh = Fresh::AsSeen;
            }
            changed(&kept);
            heard();
            loop {
                match self
                    .watch(session, &mut kept, seen, &mut again, &mut changed, &heard)
                    .await
                {
                    Ok(Over::Time) => {}
                    Ok(Over::Room) => break,
                    // What came from a memory was too old.
                    Err(Failure::Compacted) if fresh != Fresh::Store => {
                        fresh = Fresh::Store;
                        break;
                    }
                    Err(failure) => return Err(failure),
                }
            }
        }
    }

    /// Lists all, as they are in the server's memory.
    pub(super) async fn list_once(&self, session: &Session) -> Result<Kept<T>, Failure> {
        match self.list(session, Fresh::Memory, "", PAGE).await {
            Err(Failure::TooLarge(_)) => self.list(session, Fresh::Store, "", SMALL_PAGE).await,
            listed => listed,
        }
        .map(|(kept, _)| kept)
    }

    async fn list(
        &self,
        session: &Session,
        fresh: Fresh,
        seen: &str,
        page: usize,
    ) -> Result<(Kept<T>, String), Failure> {
        let mut kept = Kept::default();
        let mut more = String::new();
        loop {
            let from = match (more.is_empty(), fresh) {
                (false, _) => {
                    let more = utf8_percent_encode(&more, NON_ALPHANUMERIC);
                    format!("limit={page}&continue={more}")
                }
                (true, Fresh::Memory) => format!("limit={page}&resourceVersion=0"),
                // With a limit, the server would ask its store.
                (true, Fresh::AsSeen) => {
                    format!("resourceVersion={seen}&resourceVersionMatch=NotOlderThan")
                }
                (true, Fresh::Store) => format!("limit={page}"),
            };
            let path = format!("{}?{from}{}", self.path, self.query);
            let answer = session.get(&path).await?;
            let page = self.take_page(&answer, &mut kept)?;
            if page.more.is_empty() {
                return Ok((kept, page.resource_version));
            }
            more = page.more;
        }
    }

    /// Takes the objects of a page of a list.
    pub(super) fn take_page(
        &self,
        answer: &[u8],
        kept: &mut Kept<T>,
    ) -> Result<ListMetadata, Failure> {
        let answer: List<'_> = parsed(answer)?;
        for object in answer.items {
            match parsed::<Headed>(object.get().as_bytes()) {
                Ok(Headed { metadata }) => {
                    self.put(kept, &metadata, object);
                }
                // It has no name by which it could be refused.
                Err(_) => drop(kept.cut.insert(String::new())),
            }
        }
        Ok(answer.metadata)
    }

    fn put(&self, kept: &mut Kept<T>, metadata: &Metadata, object: &RawValue) -> bool {
        let name = (metadata.namespace.clone(), metadata.name.clone());
        kept.put(name, (self.keep)(metadata, object), self.most)
    }

    async fn watch(
        &self,
        session: &Session,
        kept: &mut Kept<T>,
        seen: &mut String,
        again: &mut Again,
        changed: &mut impl FnMut(&Kept<T>),
        heard: &impl Fn(),
    ) -> Result<Over, Failure> {
        let seconds = WATCH_SECONDS + fastrand::u64(..WATCH_SECONDS / 2);
        let path = format!(
            "{}?watch=true&allowWatchBookmarks=true&resourceVersion={seen}&timeoutSeconds={seconds}{}",
            self.path, self.query
        );
        let began = Instant::now();
        let end = began + Duration::from_secs(seconds) + GRACE;
        let mut body = session.watch(&path).await?;
        let mut unread = Vec::new();
        loop {
            let until = again.due().map_or(end, |due| due.min(end));
            let frame = match time::timeout_at(until, body.frame()).await {
                Ok(Some(frame)) => frame,
                Ok(None) if began.elapsed() < SHORTEST_WATCH => {
                    return Err(Failure::Lost("a watch ended as it began".to_owned()));
                }
                Ok(None) => return Ok(Over::Time),
                Err(_) if until < end => return Ok(Over::Room),
                Err(_) => return Err(Failure::Late),
            };
            let frame = frame.map_err(|error| Failure::Lost(error.to_string()))?;
            let Some(data) = frame.data_ref() else {
                continue;
            };
            unread.extend_from_slice(data);
            heard();
            let taken = self.take_lines(&mut unread, kept, seen)?;
            if taken.has_room {
                again.want(Instant::now(), fastrand::f64());
            }
            if taken.has_changed {
                changed(kept);
            }
            if again.due().is_some_and(|due| due <= Instant::now()) {
                return Ok(Over::Room);
            }
        }
    }

    /// Takes the events whose lines are whole, and leaves what is behind them.
    pub(super) fn take_lines(
        &self,
        unread: &mut Vec<u8>,
        kept: &mut Kept<T>,
        seen: &mut String,
    ) -> Result<TakenLines, Failure> {
        let mut all = TakenLines::default();
        let whole = unread.iter().rposition(|byte| *byte == b'\n');
        let whole = whole.map_or(0, |last| last + 1);
        let (lines, _) = unread.split_at(whole);
        for line in lines.split_inclusive(|byte| *byte == b'\n') {
            let taken = self.take(line, kept, seen)?;
            all.has_changed |= taken != Taken::Nothing;
            all.has_room |= taken == Taken::Room;
        }
        unread.drain(..whole);
        match unread.len() > MAX_LINE_BYTES {
            false => Ok(all),
            true => Err(Failure::TooLarge(format!(
                "an event has more than {MAX_LINE_BYTES} bytes"
            ))),
        }
    }

    /// Takes an event.
    fn take(&self, line: &[u8], kept: &mut Kept<T>, seen: &mut String) -> Result<Taken, Failure> {
        let event: Event<'_> = parsed(line)?;
        let object = event.object.get().as_bytes();
        match event.kind.as_str() {
            "BOOKMARK" => {
                *seen = parsed::<Bookmark>(object)?.metadata.resource_version;
                Ok(Taken::Nothing)
            }
            "ERROR" => {
                let ended: Ended = parsed(object)?;
                match ended.code {
                    410 => Err(Failure::Compacted),
                    code => Err(Failure::Lost(format!("{code}: {}", ended.message))),
                }
            }
            kind => {
                let Ok(Headed { metadata }) = parsed::<Headed>(object) else {
                    kept.cut.insert(String::new());
                    return Ok(Taken::Changed);
                };
                seen.clone_from(&metadata.resource_version);
                let name = (metadata.namespace.clone(), metadata.name.clone());
                let before = kept.bytes_of(&name);
                if kind == "DELETED" {
                    kept.remove(&name);
                } else if !self.put(kept, &metadata, event.object) {
                    return Ok(Taken::Nothing);
                }
                let is_less = match (kind, kept.bytes_of(&name)) {
                    ("DELETED", _) => true,
                    // One that was not kept, and is now, was larger for all that is known.
                    ("MODIFIED", Some(now)) => before.is_none_or(|before| now < before),
                    _ => false,
                };
                match is_less && kept.may_have_room(&name.0, self.most) {
                    true => Ok(Taken::Room),
                    false => Ok(Taken::Changed),
                }
            }
        }
    }
}

/// The outcome of some events.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TakenLines {
    has_changed: bool,
    /// There may be room for objects that were not kept.
    has_room: bool,
}

/// Objects: what an event has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Taken {
    Nothing,
    Changed,
    /// Changed, so that there may be room for objects that were not kept.
    Room,
}

fn parsed<'t, T: Deserialize<'t>>(text: &'t [u8]) -> Result<T, Failure> {
    serde_json::from_slice(text).map_err(|error| {
        Failure::Lost(format!(
            "the API server's answer is not understood: {error}"
        ))
    })
}

#[cfg(test)]
mod tests;
