//! Hosts that follow, and what pushes to them.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use policy_source::{
    ETCD, Fleet, Follower, Fragment, Fragments, News, Pace, Settings, Verdict, dial_plainly,
};
use sandbox::Etcd;
use tls::Endpoint;
use tokio::{
    runtime::Handle,
    sync::{oneshot, watch},
    task::JoinSet,
    time,
};

/// Longer than anything here takes; a hang is a failure, not a wait.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// A change has to be everywhere within this time after its push has returned, and acknowledged by all hosts.
pub const PROMPT: Duration = Duration::from_secs(2);

/// Shorter than an agent's, so that tests do not wait.
pub const PACE: Pace = Pace {
    answer: Duration::from_secs(2),
    probe: Duration::from_millis(100),
    silence: Duration::from_millis(500),
    shortest_wait: Duration::from_millis(20),
    longest_wait: Duration::from_millis(200),
    outlives: Duration::from_millis(500),
    say_again: Duration::from_secs(300),
};

pub fn settings(endpoints: &[String]) -> Settings {
    let endpoints = endpoints
        .iter()
        .map(|url| Endpoint::parse(url, ETCD).unwrap());
    Settings {
        endpoints: endpoints.collect(),
        prefix: "/underpass".to_owned(),
        login: None,
        tls: None,
    }
}

pub fn policy(files: &[(&str, &str)]) -> Fragments {
    let files = files.iter().map(|(name, text)| Fragment {
        name: (*name).to_owned(),
        text: (*text).to_owned(),
    });
    Fragments::new(0, files.collect()).unwrap()
}

/// A host that follows, and takes everything but texts with the word `bad`.
pub struct Host {
    offers: watch::Receiver<Option<Arc<Fragments>>>,
    said: Arc<Mutex<BTreeMap<String, u64>>>,
    _tasks: JoinSet<()>,
}

impl Host {
    pub fn new(runtime: &Runtime, name: &str, settings: Settings) -> Self {
        Self::at(PACE, runtime, name, settings)
    }

    pub fn at(pace: Pace, runtime: &Runtime, name: &str, settings: Settings) -> Self {
        let offers = watch::Sender::new(None);
        let verdicts = watch::Sender::new(None);
        let said = Arc::new(Mutex::new(BTreeMap::<String, u64>::new()));
        let follower = Follower {
            settings,
            host: name.to_owned(),
            agent: "0".to_owned(),
            pace,
            dial: dial_plainly(),
            offers: offers.clone(),
            verdicts: verdicts.subscribe(),
            tell: {
                let said = said.clone();
                Box::new(move |news: News<'_>| {
                    let word = match news {
                        News::InStep => "in step".to_owned(),
                        News::Heard => "heard".to_owned(),
                        News::Failed(failure) => failure.label().to_owned(),
                        News::Unusable(verdict) => verdict.error.clone().unwrap(),
                        News::Namesake(true) => "namesake".to_owned(),
                        News::Namesake(false) => "alone again".to_owned(),
                    };
                    *said.lock().unwrap().entry(word).or_default() += 1;
                })
            },
        };
        let mut offered = offers.subscribe();
        let mut tasks = JoinSet::new();
        tasks.spawn_on(async { match follower.run().await {} }, runtime.handle());
        let judge = async move {
            let (mut in_force, mut in_force_version) = (String::new(), None);
            while offered.changed().await.is_ok() {
                let Some(offer) = offered.borrow_and_update().clone() else {
                    continue;
                };
                let digest = digest(&offer);
                let is_bad = offer.files.iter().any(|file| file.text.contains("bad"));
                if !is_bad {
                    in_force.clone_from(&digest);
                    in_force_version = offer.version;
                }
                let verdict = Some(Verdict {
                    revision: offer.revision,
                    version: offer.version,
                    digest,
                    error: is_bad.then(|| "a word is bad".to_owned()),
                    in_force: in_force.clone(),
                    in_force_version,
                    refused: BTreeMap::new(),
                    kept: None,
                });
                // As the agent does it: a verdict that was given is none again.
                verdicts.send_if_modified(|before| {
                    let is_news = *before != verdict;
                    *before = verdict;
                    is_news
                });
            }
        };
        tasks.spawn_on(judge, runtime.handle());
        Self {
            offers: offers.subscribe(),
            said,
            _tasks: tasks,
        }
    }

    pub fn has(&self, digest: &str) -> bool {
        let offered = self.offers.borrow();
        offered
            .as_ref()
            .is_some_and(|offered| self::digest(offered) == digest)
    }

    pub fn heard(&self, word: &str) -> u64 {
        let said = self.said.lock().unwrap();
        let matching = said.iter().filter(|(known, _)| known.contains(word));
        matching.map(|(_, times)| times).sum()
    }
}

/// The digest of a policy, which hosts of this process compute once for all: each of a fleet's has a processor of its own.
pub fn digest(of: &Fragments) -> String {
    static LAST: Mutex<Option<(Vec<Fragment>, String)>> = Mutex::new(None);
    let mut last = LAST.lock().unwrap();
    match &*last {
        Some((files, digest)) if *files == of.files => digest.clone(),
        _ => {
            let digest = of.digest();
            *last = Some((of.files.clone(), digest.clone()));
            digest
        }
    }
}

pub fn eventually(what: &str, within: Duration, mut holds: impl FnMut() -> bool) -> Duration {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < within, "not within {within:?}: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
    begun.elapsed()
}

/// A runtime that runs on a thread of its own until the test is over.
pub struct Runtime {
    handle: Handle,
    _end: oneshot::Sender<()>,
}

impl Runtime {
    pub fn block_on<T>(&self, asked: impl Future<Output = T>) -> T {
        self.handle.block_on(asked)
    }

    pub fn handle(&self) -> &Handle {
        &self.handle
    }
}

pub fn runtime() -> Runtime {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_all().build().unwrap();
    let handle = runtime.handle().clone();
    let (end, ended) = oneshot::channel();
    std::thread::spawn(move || runtime.block_on(ended));
    Runtime { handle, _end: end }
}

/// Pushes by any member that answers.
pub fn push(runtime: &Runtime, etcd: &Etcd<'_>, files: &[(&str, &str)]) -> String {
    let fragments = policy(files);
    let digest = fragments.digest();
    runtime.block_on(async {
        let mut last = None;
        for _ in 0..50 {
            let pushed = async {
                let mut fleet =
                    Fleet::connect(&settings(&etcd.endpoints()), &dial_plainly()).await?;
                fleet.push(fragments.clone(), None, 0).await
            };
            match pushed.await {
                Ok(_) => return,
                Err(failure) => last = Some(failure),
            }
            time::sleep(Duration::from_millis(100)).await;
        }
        panic!("nobody takes a policy: {last:?}");
    });
    digest
}
