use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
};

use http_body_util::Full;
use hyper::{
    Request, Response,
    body::{Bytes, Incoming},
    server::conn::http2,
    service::service_fn,
};
use hyper_util::rt::{TokioExecutor, TokioIo};

use super::{kept::LEAST_BYTES, *};
use crate::{KubernetesSettings, Pace};

type Any = Kept<Result<String, String>>;

fn collection() -> Collection<'static, Result<String, String>> {
    Collection {
        path: String::new(),
        query: String::new(),
        most: 4,
        keep: Box::new(|_, json| {
            let read: Result<serde_json::Value, _> = serde_json::from_str(json.get());
            let read = read.map(|read| read["spec"].to_string());
            (read.map_err(|error| error.to_string()), json.get().len())
        }),
    }
}

fn object(at: &str, version: u32, spec: &str) -> String {
    let (namespace, name) = at.split_once('/').unwrap();
    format!(
        "{{\"metadata\":{{\"name\":\"{name}\",\"namespace\":\"{namespace}\",\"resourceVersion\":\"{version}\"}},\"spec\":{spec}}}"
    )
}

fn event(kind: &str, at: &str, version: u32) -> String {
    let object = object(at, version, &version.to_string());
    format!("{{\"type\":\"{kind}\",\"object\":{object}}}\n")
}

fn names(kept: &Any) -> Vec<String> {
    let names = kept.iter();
    names
        .map(|(namespace, name, _)| format!("{namespace}/{name}"))
        .collect()
}

#[test]
fn events_are_applied_and_the_version_goes_on() {
    let collection = collection();
    let (mut kept, mut seen) = (Any::default(), "1".to_owned());
    let mut take = |line: &str| collection.take(line.as_bytes(), &mut kept, &mut seen);
    assert_eq!(take(&event("ADDED", "n/a", 2)).unwrap(), Taken::Changed);
    assert_eq!(take(&event("MODIFIED", "n/a", 3)).unwrap(), Taken::Changed);
    assert_eq!(take(&event("ADDED", "n/b", 4)).unwrap(), Taken::Changed);
    // Nothing that is kept of it is another.
    assert_eq!(take(&event("MODIFIED", "n/b", 4)).unwrap(), Taken::Nothing);
    assert_eq!(take(&event("DELETED", "n/a", 6)).unwrap(), Taken::Changed);
    assert_eq!(take(&event("BOOKMARK", "n/", 9)).unwrap(), Taken::Nothing);
    let gone = "{\"type\":\"ERROR\",\"object\":{\"code\":410,\"message\":\"too old\"}}";
    assert!(matches!(take(gone), Err(Failure::Compacted)));
    let broken = "{\"type\":\"ERROR\",\"object\":{\"code\":500,\"message\":\"x\"}}";
    assert!(matches!(take(broken), Err(Failure::Lost(_))));
    assert!(matches!(take("{"), Err(Failure::Lost(_))));
    assert_eq!(seen, "9");
    assert_eq!(names(&kept), ["n/b"]);
    assert!(kept.cut.is_empty());
}

#[test]
fn an_object_that_is_nested_too_deep_spoils_no_other() {
    let deep = object("n/deep", 7, &("[".repeat(500) + &"]".repeat(500)));
    let list = format!(
        "{{\"metadata\":{{}},\"items\":[{deep},{}]}}",
        object("n/good", 8, "1")
    );
    let list: List<'_> = parsed(list.as_bytes()).unwrap();
    let collection = collection();
    let mut kept = Any::default();
    for one in list.items {
        let headed: Headed = parsed(one.get().as_bytes()).unwrap();
        collection.put(&mut kept, &headed.metadata, one);
    }
    let mut seen = String::new();
    let event = format!("{{\"type\":\"MODIFIED\",\"object\":{deep}}}\n");
    let taken = collection.take(event.as_bytes(), &mut kept, &mut seen);
    // It is as it was.
    assert_eq!(taken.unwrap(), Taken::Nothing);
    assert_eq!(seen, "7");
    assert_eq!(names(&kept), ["n/deep", "n/good"]);
    let read: Vec<_> = kept.iter().map(|(_, _, read)| read.is_ok()).collect();
    assert_eq!(read, [false, true]);
}

/// Takes events of objects with so many bytes in their specification, each with whether there is room after it for what is not kept.
fn assert_has_room(events: &[(&str, &str, usize, bool)]) {
    let collection = collection();
    let (mut kept, mut seen) = (Any::default(), String::new());
    for (version, (kind, at, bytes, has_room)) in (10..).zip(events) {
        let object = object(at, version, &format!("{:?}", "x".repeat(*bytes)));
        let line = format!("{{\"type\":\"{kind}\",\"object\":{object}}}\n");
        let taken = collection.take_lines(&mut line.into_bytes(), &mut kept, &mut seen);
        let taken = taken.unwrap();
        assert_eq!(taken.has_room, *has_room, "{kind} {at}: {:?}", kept.cut);
    }
}

#[test]
fn objects_that_go_make_room_where_some_lack_it() {
    // Nothing is cut.
    assert_has_room(&[("ADDED", "a/1", 1, false), ("DELETED", "a/1", 1, false)]);
    assert_has_room(&[
        ("ADDED", "a/1", 1, false),
        ("ADDED", "b/1", 1, false),
        ("ADDED", "b/2", 1, false),
        ("ADDED", "a/2", 2 * LEAST_BYTES, false),
        // Too little for a/2.
        ("DELETED", "b/2", 1, false),
        // One that was not kept, of a namespace with such objects: there may be no others.
        ("DELETED", "a/3", 1, true),
        ("DELETED", "b/1", 1, true),
    ]);
}

#[test]
fn objects_that_become_smaller_make_room_likewise() {
    assert_has_room(&[
        ("ADDED", "a/1", 2 * LEAST_BYTES, false),
        ("ADDED", "a/2", 1, false),
        ("ADDED", "a/3", 1, false),
        // As small as any.
        ("MODIFIED", "a/2", 2, false),
        ("MODIFIED", "a/1", 1, true),
    ]);
    // The one that was not kept.
    assert_has_room(&[
        ("ADDED", "a/1", 1, false),
        ("ADDED", "a/2", 3 * LEAST_BYTES, false),
        ("MODIFIED", "a/2", 3 * LEAST_BYTES, false),
        ("MODIFIED", "a/2", 1, true),
    ]);
    // One of another namespace.
    assert_has_room(&[
        ("ADDED", "b/1", LEAST_BYTES, false),
        ("ADDED", "a/1", 1, false),
        ("ADDED", "a/2", 1, false),
        ("ADDED", "a/3", 1, false),
        ("MODIFIED", "b/1", 1, true),
    ]);
}

/// Follows at an API server that gives these answers, and then fails. Returns what it was asked, the names that were told of, and how it ended.
async fn follow(
    answers: &[(u16, String)],
    seen: &mut String,
) -> (Vec<String>, Vec<Vec<String>>, Failure) {
    let (ours, its) = tokio::io::duplex(1 << 20);
    let asked = Arc::new(Mutex::new(Vec::new()));
    let left = Mutex::new(VecDeque::from(answers.to_vec()));
    let noted = asked.clone();
    let serve = service_fn(move |request: Request<Incoming>| {
        let query = request.uri().query().unwrap_or_default();
        noted.lock().unwrap().push(query.to_owned());
        let answer = left.lock().unwrap().pop_front();
        let (status, text) = answer.unwrap_or((500, String::new()));
        let answer = Response::builder().status(status);
        let answer = answer.body(Full::new(Bytes::from(text))).unwrap();
        std::future::ready(Ok::<_, Infallible>(answer))
    });
    let server = http2::Builder::new(TokioExecutor::new());
    let server = tokio::spawn(server.serve_connection(TokioIo::new(its), serve));
    let settings = Arc::new(KubernetesSettings::of_a_test(None));
    let pace = Pace::default();
    let session = Session::over(TokioIo::new(ours), &settings, &pace);
    let session = session.await.unwrap();
    let mut told = Vec::new();
    let collection = collection();
    let followed = collection.follow(&session, seen, |kept| told.push(names(kept)), || ());
    let Err(ended) = followed.await;
    server.abort();
    let asked = asked.lock().unwrap().clone();
    (asked, told, ended)
}

fn list(version: u32, more: &str, objects: &[String]) -> (u16, String) {
    let objects = objects.join(",");
    let list = format!(
        "{{\"metadata\":{{\"resourceVersion\":\"{version}\",\"continue\":\"{more}\"}},\"items\":[{objects}]}}"
    );
    (200, list)
}

fn is_watch(asked: &str, version: u32) -> bool {
    asked.starts_with("watch=true") && asked.contains(&format!("&resourceVersion={version}&"))
}

#[tokio::test]
async fn what_is_too_long_is_asked_for_in_small_pages() {
    let answers = [
        (200, " ".repeat((16 << 20) + 1)),
        list(0, "mo&re", &[object("n/a", 1, "1")]),
        list(7, "", &[object("n/b", 2, "1")]),
        (200, event("DELETED", "n/a", 8)),
    ];
    let mut seen = String::new();
    let (asked, told, ended) = follow(&answers, &mut seen).await;
    let [first, second, third, watch] = &asked[..] else {
        panic!("{asked:?}");
    };
    assert_eq!(first, "limit=500&resourceVersion=0");
    assert_eq!(
        (second.as_str(), third.as_str()),
        ("limit=8", "limit=8&continue=mo%26re")
    );
    assert!(is_watch(watch, 7), "{watch}");
    assert_eq!(told, [vec!["n/a", "n/b"], vec!["n/b"]]);
    // The watch ended as it began, after which a pause is made.
    assert!(matches!(ended, Failure::Lost(_)), "{ended}");
    assert_eq!(seen, "8");
}

#[tokio::test]
async fn no_answer_is_older_than_what_was_seen() {
    let gone = "{\"type\":\"ERROR\",\"object\":{\"code\":410,\"message\":\"too old\"}}\n";
    let mut seen = String::new();
    let answers = [
        list(5, "", &[]),
        (200, gone.to_owned()),
        list(9, "", &[object("n/a", 9, "1")]),
        (200, gone.to_owned()),
    ];
    let (asked, told, ended) = follow(&answers, &mut seen).await;
    let [memory, watch, store, again] = &asked[..] else {
        panic!("{asked:?}");
    };
    assert_eq!(memory, "limit=500&resourceVersion=0");
    assert!(is_watch(watch, 5) && is_watch(again, 9), "{asked:?}");
    assert_eq!(store, "limit=500");
    assert_eq!(told, [vec![], vec!["n/a".to_owned()]]);
    // Again, and from the store: a pause is made.
    assert!(matches!(ended, Failure::Compacted), "{ended}");
    assert_eq!(seen, "9");

    // The next session.
    let behind = "{\"message\":\"Timeout: Too large resource version: 9, current: 3\"}";
    let answers = [(504, behind.to_owned()), list(3, "", &[])];
    let (asked, _, _) = follow(&answers, &mut seen).await;
    assert_eq!(
        asked[0],
        "resourceVersion=9&resourceVersionMatch=NotOlderThan"
    );
    assert_eq!(asked[1], "limit=500");
    assert!(is_watch(&asked[2], 3), "{asked:?}");
}
