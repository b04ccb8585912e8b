//! A page for browsers: the statements that are asked, as they are, with the flows, rules and refusals. It only shows what
//! the other paths of the interface tell.
//!
//! While somebody looks, one task takes a sample a second for all that look ([`Live`]).

use std::{
    convert::Infallible,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use axum::{
    extract::State,
    http::{StatusCode, header},
    response::{
        Html, IntoResponse, Response,
        sse::{Event, Sse},
    },
};
use serde::Serialize;
use tokio::{
    sync::watch,
    time::{self, MissedTickBehavior},
};
use tokio_stream::{Stream, StreamExt, wrappers::WatchStream};

use super::state::{Admin, aside, failed, left_alone};
use crate::commands::top::rates::{Rates, Row, Sample, Sort};

const PAGE: &str = include_str!("page/page.html");

/// The word in the page that stands for a number that nobody can guess.
const NONCE: &str = "NONCE";

/// Browsers that look at the same time.
const MAX_WATCHERS: usize = 8;

/// The interval of samples.
const EVERY: Duration = Duration::from_secs(1);

/// Samples of one answer: then the browser asks again, before the interface takes the answer for one that is not read.
const MAX_EVENTS: usize = 40;

/// Samples that are taken though nobody looks: a browser that asks again finds rates at once.
const LINGERS: u32 = 10;

/// Statements of a sample, the most frequent ones.
const MAX_STATEMENTS: usize = 500;

/// Connections are counted with one sample in so many: the kernel's tables may be long.
const COUNTED_EVERY: u64 = 5;

/// The page itself.
pub(super) async fn page() -> Response {
    let mut random = [0; 16];
    if let Err(error) = getrandom::fill(&mut random) {
        return failed(&error);
    }
    let nonce = format!("{:032x}", u128::from_ne_bytes(random));
    // Nothing of another host, no script but the page's own, and in nobody's frame.
    let policy = format!(
        "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; connect-src 'self'; img-src data:; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    );
    let headers = [
        (header::CONTENT_SECURITY_POLICY, policy.as_str()),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-store"),
    ];
    (headers, Html(PAGE.replace(NONCE, &nonce))).into_response()
}

/// Samples as server-sent events, a second after each other.
pub(super) async fn live(State(admin): State<Admin>) -> Response {
    match Live::watch(&admin) {
        Some(events) => {
            let headers = [
                (header::CACHE_CONTROL, "no-store"),
                (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
            ];
            (headers, Sse::new(events)).into_response()
        }
        None => {
            let said = format!("{MAX_WATCHERS} look already: close a page\n");
            (StatusCode::SERVICE_UNAVAILABLE, said).into_response()
        }
    }
}

/// The samples, for all that look.
#[derive(Debug, Default)]
pub struct Live {
    /// The last sample; empty before the first one. None: nobody takes samples.
    samples: Mutex<Option<watch::Sender<Arc<str>>>>,
}

/// A sample, as a page is told it.
#[derive(Serialize)]
struct Told<'a> {
    version: &'static str,
    host: &'a str,
    /// Connections that are taken in, read or observed.
    flows: usize,
    statements: Vec<Row>,
}

impl Live {
    /// Samples from now on. None: so many look already.
    fn watch(admin: &Admin) -> Option<impl Stream<Item = Result<Event, Infallible>> + use<>> {
        let mut samples = admin.live.samples();
        let sender = samples.get_or_insert_with(|| {
            let (sender, _) = watch::channel(Arc::default());
            tokio::spawn(take(admin.clone(), sender.clone()));
            sender
        });
        if sender.receiver_count() >= MAX_WATCHERS {
            return None;
        }
        let events = WatchStream::new(sender.subscribe());
        let events = events.filter(|sample| !sample.is_empty()).take(MAX_EVENTS);
        Some(events.map(|sample| Ok(Event::default().retry(EVERY).data(&*sample))))
    }

    fn samples(&self) -> MutexGuard<'_, Option<watch::Sender<Arc<str>>>> {
        self.samples.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Takes samples until nobody has looked for a while.
async fn take(admin: Admin, sender: watch::Sender<Arc<str>>) {
    let host = dataplane::host::hostname();
    let mut ticks = time::interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut rates, mut flows, mut unseen) = (Rates::default(), 0, 0);
    for turn in 0_u64.. {
        ticks.tick().await;
        let counts = turn % COUNTED_EVERY == 0;
        let asked = admin.clone();
        let looked = aside(move || {
            let views = asked.shared.services.stats.tops.views(true);
            let sample = serde_json::to_string(&views);
            let sample = sample.and_then(|text| Sample::parse(&text, Instant::now()));
            (sample, counts.then(|| connections(&asked)))
        });
        match looked.await {
            Ok((Ok(sample), counted)) => {
                rates.add(sample);
                flows = counted.unwrap_or(flows);
            }
            Ok((Err(error), _)) => tracing::error!(%error, "the page cannot be told of statements"),
            Err(error) => tracing::error!(%error, "the page cannot be told of anything"),
        }
        let mut statements = rates.rows();
        Sort::Rate.sort(&mut statements);
        statements.truncate(MAX_STATEMENTS);
        let told = Told {
            version: env!("CARGO_PKG_VERSION"),
            host: &host,
            flows,
            statements,
        };
        if let Ok(told) = serde_json::to_string(&told) {
            sender.send_replace(told.into());
        }
        unseen = if sender.receiver_count() == 0 {
            unseen + 1
        } else {
            0
        };
        if unseen > LINGERS {
            // Whoever comes to look waits for this lock.
            let mut samples = admin.live.samples();
            if sender.receiver_count() == 0 {
                *samples = None;
                return;
            }
        }
    }
}

fn connections(admin: &Admin) -> usize {
    let (observed, shortcuts) = left_alone(admin);
    admin.shared.flows.views().len() + observed.len() + shortcuts.len()
}
