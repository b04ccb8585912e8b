//! Any bytes as the answers of an API server.

use std::collections::BTreeSet;

use super::{
    collection::{Collection, Keep, Kept, ListMetadata},
    objects::{self, Kind, PolicyFile, Text},
    pods,
    shares::RulesTake,
};
use crate::{Failure, MAX_OBJECTS, MAX_OBJECTS_BYTES};

/// Objects of a collection here: so few that some are left out.
const MOST: usize = 4;

/// A page of a list, and behind a zero byte a watch: the same however it is cut, and no more is kept than there is room for.
pub fn api_server(data: &[u8]) {
    let Some((first, rest)) = data.split_first() else {
        return;
    };
    let piece = 1 + usize::from(*first);
    let mut parts = rest.splitn(2, |byte| *byte == 0);
    let page = parts.next().unwrap_or_default();
    let watched = parts.next().unwrap_or_default();
    let of_kind = |kind: Kind| {
        let text: Text = Box::new(|object| match object.spec.as_array() {
            Some(rules) => Ok(PolicyFile {
                text: object.spec.to_string(),
                take: RulesTake {
                    rules: rules.len(),
                    ..RulesTake::default()
                },
            }),
            None => Err("no rules".to_owned()),
        });
        let keep: Keep<'_, _> =
            Box::new(move |metadata, object| objects::policy(kind, metadata, object, &text));
        followed(&collection(keep), page, watched, piece)
    };
    let (cluster, namespaced) = (of_kind(Kind::Cluster), of_kind(Kind::Namespaced));
    let read = objects::read(&cluster, &namespaced).fragments;
    let names: BTreeSet<_> = read.files.iter().map(|file| &file.name).collect();
    assert_eq!(names.len(), read.files.len());
    assert!(read.files.len() <= MAX_OBJECTS);
    let bytes: usize = read.files.iter().map(|file| file.text.len()).sum();
    assert!(bytes <= MAX_OBJECTS_BYTES);
    assert_eq!(read.digest(), read.clone().digest());

    let keep: Keep<'_, _> = Box::new(pods::pod);
    let pods = followed(&collection(keep), page, watched, piece);
    assert!(pods::facts(&pods).len() <= MOST);
}

fn collection<T>(keep: Keep<'_, T>) -> Collection<'_, T> {
    Collection {
        path: String::new(),
        query: String::new(),
        most: MOST,
        keep,
    }
}

/// Follows a list and a watch, whole and in pieces, and returns what is kept.
fn followed<T: PartialEq + std::fmt::Debug>(
    collection: &Collection<'_, T>,
    page: &[u8],
    watched: &[u8],
    piece: usize,
) -> Kept<T> {
    let whole = follow(collection, page, watched, watched.len().max(1));
    let cut = follow(collection, page, watched, piece);
    assert_eq!(whole.1, cut.1);
    assert_eq!(whole.2, cut.2);
    let [whole, cut] = [whole.0, cut.0];
    assert!(whole.len() <= MOST);
    assert_eq!(whole.cut, cut.cut);
    assert!(whole.iter().eq(cut.iter()));
    whole
}

fn follow<T: PartialEq>(
    collection: &Collection<'_, T>,
    page: &[u8],
    watched: &[u8],
    piece: usize,
) -> (Kept<T>, String, Option<String>) {
    let (mut kept, mut seen) = (Kept::default(), String::new());
    let said = |failure: Failure| Some(failure.to_string());
    match collection.take_page(page, &mut kept) {
        Ok(ListMetadata {
            resource_version, ..
        }) => seen = resource_version,
        Err(failure) => return (kept, seen, said(failure)),
    }
    let mut unread = Vec::new();
    for bytes in watched.chunks(piece) {
        unread.extend_from_slice(bytes);
        if let Err(failure) = collection.take_lines(&mut unread, &mut kept, &mut seen) {
            return (kept, seen, said(failure));
        }
    }
    (kept, seen, None)
}
