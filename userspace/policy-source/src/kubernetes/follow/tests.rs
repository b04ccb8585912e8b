use std::collections::BTreeMap;

use http_body_util::{BodyExt as _, Full};
use hyper::{
    Method, Request, Response,
    body::{Bytes, Incoming},
    server::conn::http2,
    service::service_fn,
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::Value;

use super::*;
use crate::OwnPod;

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(20);

/// An agent's is minutes.
const SAID_AGAIN: Duration = Duration::from_millis(100);

/// The object of a node, as it is in the API server, and how many times it was written.
type Stored = Arc<Mutex<(Option<Value>, usize)>>;

fn settings() -> Arc<KubernetesSettings> {
    Arc::new(KubernetesSettings::of_a_test(Some(OwnPod {
        name: "agent".to_owned(),
        namespace: "underpass".to_owned(),
        uid: "u".to_owned(),
    })))
}

/// Serves an API server that stores the node's object, and returns the client's end.
fn serve(stored: Stored) -> tokio::io::DuplexStream {
    let (ours, its) = tokio::io::duplex(1 << 16);
    let serve = service_fn(move |request: Request<Incoming>| {
        let stored = stored.clone();
        async move {
            assert_eq!(request.method(), Method::PATCH);
            assert!(request.uri().path().ends_with("/underpassnodes/n"));
            let body = request.into_body().collect().await.unwrap().to_bytes();
            let mut stored = stored.lock().unwrap();
            *stored = (Some(serde_json::from_slice(&body).unwrap()), stored.1 + 1);
            Ok::<_, Infallible>(Response::new(Full::new(Bytes::from_static(b"{}"))))
        }
    });
    let server = http2::Builder::new(TokioExecutor::new());
    tokio::spawn(server.serve_connection(TokioIo::new(its), serve));
    ours
}

async fn eventually(what: &str, holds: impl Fn() -> bool) {
    let asked = async {
        while !holds() {
            time::sleep(Duration::from_millis(10)).await;
        }
    };
    let found = time::timeout(PATIENCE, asked).await;
    assert!(found.is_ok(), "{what}");
}

fn verdict(revision: i64) -> Option<Verdict> {
    let digest = Read::default().fragments.digest();
    Some(Verdict {
        revision,
        version: None,
        in_force: digest.clone(),
        in_force_version: None,
        digest,
        error: None,
        refused: BTreeMap::new(),
        kept: None,
    })
}

/// Says what verdicts are, for as long as a test looks at what is stored.
async fn says(
    stored: &Stored,
    verdicts: &watch::Sender<Option<Verdict>>,
    pace: Pace,
    looks: impl Future<Output = ()>,
) {
    let settings = settings();
    let ours = TokioIo::new(serve(stored.clone()));
    let session = Session::over(ours, &settings, &pace).await.unwrap();
    let reads = watch::Sender::new(Read::default());
    let mut heard = verdicts.subscribe();
    heard.mark_changed();
    let says = acknowledge(&session, &settings, "0", &reads, &mut heard, pace);
    tokio::select! {
        never = says => match never {},
        () = looks => {}
    }
}

#[tokio::test]
async fn what_a_node_says_is_there_again_though_somebody_has_deleted_it_and_nothing_has_changed() {
    let stored = Stored::default();
    let verdicts = watch::Sender::new(verdict(1));
    let looks = async {
        eventually("it says something", || stored.lock().unwrap().0.is_some()).await;
        let first = stored.lock().unwrap().0.take();
        eventually("it says so again", || stored.lock().unwrap().0.is_some()).await;
        assert_eq!(stored.lock().unwrap().0, first);
    };
    let pace = Pace {
        say_again: SAID_AGAIN,
        ..Pace::default()
    };
    says(&stored, &verdicts, pace, looks).await;
}

#[tokio::test]
async fn what_a_node_has_said_is_not_said_again_at_once() {
    let stored = Stored::default();
    let verdicts = watch::Sender::new(verdict(1));
    let looks = async {
        eventually("it says something", || stored.lock().unwrap().1 == 1).await;
        // Another verdict that says the same, and the longest time by which an answer is put off.
        verdicts.send_replace(verdict(2));
        time::sleep(SPREAD + Duration::from_millis(200)).await;
        assert_eq!(stored.lock().unwrap().1, 1);
    };
    says(&stored, &verdicts, Pace::default(), looks).await;
}
