//! Objects of one kind: listed once, and then watched. A watch that breaks off goes on where it was; one whose past the server has
//! forgotten begins with a list.

use std::{collections::BTreeMap, convert::Infallible};

use http_body_util::BodyExt as _;
use serde::{Deserialize, de::DeserializeOwned};

use super::session::Session;
use crate::Failure;

/// Objects of a page of a list.
const PAGE: usize = 500;

/// The longest event of a watch: an object has 1.5 MiB at most in etcd, and is twice as long in JSON.
pub const MAX_LINE_BYTES: usize = 4 << 20;

/// How long a watch is asked for, at least; the server ends it then. Half as long is added by chance, so that not all agents of a cluster
/// begin anew at once.
const WATCH_SECONDS: u64 = 300;

/// An object of any kind: what is common to all.
#[derive(Clone, Debug, Deserialize)]
pub struct Object<B> {
    /// The name, version and labels.
    pub metadata: Metadata,
    /// The rest.
    #[serde(flatten)]
    pub body: B,
}

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
struct List<B> {
    metadata: ListMetadata,
    #[serde(default = "Vec::new")]
    items: Vec<Object<B>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ListMetadata {
    #[serde(default)]
    resource_version: String,
    #[serde(default, rename = "continue")]
    more: String,
}

#[derive(Deserialize)]
struct Event {
    #[serde(rename = "type")]
    kind: String,
    object: serde_json::Value,
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

/// Where objects of a kind are, and which.
pub(super) struct Collection {
    /// The path, as `/api/v1/pods`.
    pub(super) path: String,
    /// Further conditions of the query, each with `&` before it.
    pub(super) query: String,
    /// Objects at most; of more, those whose names come last are not kept.
    pub(super) most: usize,
}

/// The objects, by namespace and name.
pub(super) type Objects<B> = BTreeMap<(String, String), Object<B>>;

impl Collection {
    /// Follows for ever. `changed` is told of all objects when they are listed and after each change, `heard` of each word of the
    /// server.
    pub(super) async fn follow<B: DeserializeOwned>(
        &self,
        session: &Session,
        mut changed: impl FnMut(&Objects<B>),
        heard: impl Fn(),
    ) -> Result<Infallible, Failure> {
        loop {
            let (mut objects, mut version) = self.list(session).await?;
            changed(&objects);
            heard();
            loop {
                match self
                    .watch(session, &mut objects, &mut version, &mut changed, &heard)
                    .await
                {
                    Ok(()) => {}
                    Err(Failure::Compacted) => break,
                    Err(failure) => return Err(failure),
                }
            }
        }
    }

    pub(super) async fn list<B: DeserializeOwned>(
        &self,
        session: &Session,
    ) -> Result<(Objects<B>, String), Failure> {
        let mut objects = Objects::new();
        let mut more = String::new();
        loop {
            let path = match more.is_empty() {
                // What the server has in its memory will do: the watch says what has changed since.
                true => format!("{}?limit={PAGE}&resourceVersion=0{}", self.path, self.query),
                false => format!("{}?limit={PAGE}&continue={more}{}", self.path, self.query),
            };
            let page: List<B> = parsed(&session.get(&path).await?)?;
            objects.extend(page.items.into_iter().map(by_name));
            while objects.len() > self.most {
                objects.pop_last();
            }
            if page.metadata.more.is_empty() {
                return Ok((objects, page.metadata.resource_version));
            }
            more = page.metadata.more;
        }
    }

    async fn watch<B: DeserializeOwned>(
        &self,
        session: &Session,
        objects: &mut Objects<B>,
        version: &mut String,
        changed: &mut impl FnMut(&Objects<B>),
        heard: &impl Fn(),
    ) -> Result<(), Failure> {
        let seconds = WATCH_SECONDS + fastrand::u64(..WATCH_SECONDS / 2);
        let path = format!(
            "{}?watch=true&allowWatchBookmarks=true&resourceVersion={version}&timeoutSeconds={seconds}{}",
            self.path, self.query
        );
        let mut body = session.watch(&path).await?;
        let mut unread = Vec::new();
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| Failure::Lost(error.to_string()))?;
            let Some(data) = frame.data_ref() else {
                continue;
            };
            unread.extend_from_slice(data);
            heard();
            let mut read = 0;
            let mut has_changed = false;
            while let Some(line) = unread
                .get(read..)
                .unwrap_or_default()
                .split_inclusive(|b| *b == b'\n')
                .next()
            {
                if line.last() != Some(&b'\n') {
                    break;
                }
                read += line.len();
                has_changed |= take(line, objects, version, self.most)?;
            }
            unread.drain(..read);
            if unread.len() > MAX_LINE_BYTES {
                return Err(Failure::TooLarge(format!(
                    "an event has more than {MAX_LINE_BYTES} bytes"
                )));
            }
            if has_changed {
                changed(objects);
            }
        }
        Ok(())
    }
}

/// Takes an event. Returns whether objects have changed.
fn take<B: DeserializeOwned>(
    line: &[u8],
    objects: &mut Objects<B>,
    version: &mut String,
    most: usize,
) -> Result<bool, Failure> {
    let event: Event = parsed(line)?;
    let object = event.object;
    match event.kind.as_str() {
        "BOOKMARK" => {
            *version = understood::<Bookmark>(object)?.metadata.resource_version;
            Ok(false)
        }
        "ERROR" => {
            let ended: Ended = understood(object)?;
            match ended.code {
                410 => Err(Failure::Compacted),
                code => Err(Failure::Lost(format!("{code}: {}", ended.message))),
            }
        }
        kind => {
            let (name, object) = by_name(understood::<Object<B>>(object)?);
            version.clone_from(&object.metadata.resource_version);
            match kind {
                "DELETED" => drop(objects.remove(&name)),
                // A further one is known after the next list, if there is room then.
                _ if objects.len() >= most && !objects.contains_key(&name) => {}
                _ => drop(objects.insert(name, object)),
            }
            Ok(true)
        }
    }
}

fn by_name<B>(object: Object<B>) -> ((String, String), Object<B>) {
    let metadata = &object.metadata;
    ((metadata.namespace.clone(), metadata.name.clone()), object)
}

fn parsed<T: DeserializeOwned>(text: &[u8]) -> Result<T, Failure> {
    serde_json::from_slice(text).map_err(garbage)
}

fn understood<T: DeserializeOwned>(value: serde_json::Value) -> Result<T, Failure> {
    serde_json::from_value(value).map_err(garbage)
}

fn garbage(error: serde_json::Error) -> Failure {
    Failure::Lost(format!(
        "the API server's answer is not understood: {error}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    type Any = Objects<serde_json::Value>;

    fn event(kind: &str, name: &str, version: u32) -> String {
        format!(
            "{{\"type\":\"{kind}\",\"object\":{{\"metadata\":{{\"name\":\"{name}\",\"namespace\":\"n\",\"resourceVersion\":\"{version}\"}}}}}}\n"
        )
    }

    #[test]
    fn events_are_applied_and_the_version_goes_on() {
        let (mut objects, mut version) = (Any::new(), "1".to_owned());
        let mut take = |line: &str| take(line.as_bytes(), &mut objects, &mut version, 2);
        assert!(take(&event("ADDED", "a", 2)).unwrap());
        assert!(take(&event("MODIFIED", "a", 3)).unwrap());
        assert!(take(&event("ADDED", "b", 4)).unwrap());
        // Above the bound.
        assert!(take(&event("ADDED", "c", 5)).unwrap());
        assert!(take(&event("DELETED", "a", 6)).unwrap());
        assert!(!take(&event("BOOKMARK", "", 9)).unwrap());
        let gone = "{\"type\":\"ERROR\",\"object\":{\"code\":410,\"message\":\"too old\"}}";
        assert!(matches!(take(gone), Err(Failure::Compacted)));
        let broken = "{\"type\":\"ERROR\",\"object\":{\"code\":500,\"message\":\"x\"}}";
        assert!(matches!(take(broken), Err(Failure::Lost(_))));
        assert!(matches!(take("{"), Err(Failure::Lost(_))));
        assert_eq!(version, "9");
        let names: Vec<_> = objects.keys().map(|(_, name)| name.as_str()).collect();
        assert_eq!(names, ["b"]);
    }
}
