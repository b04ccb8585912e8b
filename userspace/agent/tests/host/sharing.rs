//! A rate that twenty hosts share by a real etcd, which goes away and comes back while some of them die. Each host is what an agent
//! has: the step `throttle` in an editor of its own, and a [`Sharer`].

mod agents;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use cql::StreamId;
use cql_edit::{Caller, Editor, Log, Transform, Unseen, transforms::TransformSettings};
use limits::Limit;
use policy_source::{ETCD, Pace, Settings, Sharer, Sharing, dial_plainly};
use sandbox::Etcd;
use tls::Endpoint;
use tokio::{
    runtime::Handle,
    sync::{oneshot, watch},
    task::JoinSet,
};

use crate::common::eventually;

const HOSTS: usize = 20;
const RATE: f64 = 1_000.0;

/// Between two looks at whether requests are due.
const STEP: Duration = Duration::from_millis(5);

/// A log that nobody reads: what passes says enough.
struct Silent;

impl Log for Silent {
    fn changed(&mut self, _: &'static str) {}
    fn refused(&mut self, _: StreamId, _: &'static str, _: &'static str) {}
    fn answered(&mut self, _: &'static str) {}
    fn would_refuse(&mut self, _: &'static str, _: &'static str) {}
    fn slowed(&mut self, _: &'static str, _: u64) {}
    fn unseen(&mut self, _: StreamId, why: Unseen, _: bool) {
        panic!("{why:?}");
    }
}

/// A frame of v4 on stream 1.
fn frame(version: u8, opcode: u8, body: &[u8]) -> Vec<u8> {
    let length = (body.len() as u32).to_be_bytes();
    [&[version, 0, 0, 1, opcode][..], &length, body].concat()
}

/// A flow through a step.
struct Flow {
    editor: Editor,
    query: Vec<u8>,
    answer: Vec<u8>,
}

impl Flow {
    fn new(step: Arc<dyn Transform>) -> Self {
        let startup = [&[0, 1, 0, 11][..], b"CQL_VERSION", &[0, 5], b"3.0.0"].concat();
        let text = b"SELECT v FROM shop.products WHERE k = 1";
        let length = (text.len() as u32).to_be_bytes();
        let query = [&length[..], text, &[0, 1, 0]].concat();
        let mut editor = Editor::new(vec![step].into(), Caller::default());
        editor.requests(0, &frame(4, 1, &startup), &mut Silent);
        editor.responses(&frame(0x84, 2, &[]), &mut Silent);
        Self {
            editor,
            query: frame(4, 7, &query),
            answer: frame(0x84, 8, &[0, 0, 0, 1]),
        }
    }

    /// Whether a request passes.
    fn passes(&mut self, now_ns: u64) -> bool {
        let edited = self.editor.requests(now_ns, &self.query, &mut Silent);
        let is_refused = self.editor.answers().is_some();
        assert_eq!(edited.instead, is_refused.then(Vec::new));
        if !is_refused {
            self.editor.responses(&self.answer, &mut Silent);
        }
        !is_refused
    }
}

fn throttle(scope: &str, rate: f64) -> Arc<dyn Transform> {
    let settings = serde_json::json!({
        "transform": "throttle", "rate": rate, "scope": scope, "mode": "overloaded"
    });
    let settings: TransformSettings = serde_json::from_value(settings).unwrap();
    settings.of_rule("shop").build().unwrap()
}

struct Host {
    flow: Flow,
    /// A flow that is asked the same, and whose throttle is the host's own.
    twin: Flow,
    rate: f64,
    asked: f64,
    is_alive: bool,
    in_step: Arc<AtomicBool>,
    leads: Arc<AtomicBool>,
    held: watch::Sender<Vec<Arc<Limit>>>,
    tasks: JoinSet<()>,
}

impl Host {
    fn new(runtime: &Handle, number: usize, etcd: &Etcd<'_>) -> Self {
        let step = throttle("fleet", RATE);
        // More is asked for than there is, and not alike: what is left by those that ask for little goes to the others.
        let (rate, share) = if number < 5 {
            (200.0, 80.0)
        } else {
            (40.0, 40.0)
        };
        let held = watch::Sender::new(vec![step.limit().unwrap().clone()]);
        let (in_step, leads) = (Arc::<AtomicBool>::default(), Arc::<AtomicBool>::default());
        let endpoints = etcd.endpoints();
        let endpoints = endpoints
            .iter()
            .map(|url| Endpoint::parse(url, ETCD).unwrap());
        let sharer = Sharer {
            settings: Settings {
                endpoints: endpoints.collect(),
                prefix: "/underpass".to_owned(),
                login: None,
                tls: None,
            },
            host: format!("h{number}"),
            pace: Pace::default(),
            dial: dial_plainly(),
            limits: held.subscribe(),
            tell: {
                let (in_step, leads) = (in_step.clone(), leads.clone());
                Box::new(move |news| match news {
                    Sharing::InStep => in_step.store(true, Relaxed),
                    Sharing::Failed(_) => {
                        in_step.store(false, Relaxed);
                        leads.store(false, Relaxed);
                    }
                    Sharing::Looked { leads: now, .. } => leads.store(now, Relaxed),
                })
            },
        };
        let mut tasks = JoinSet::new();
        tasks.spawn_on(async { match sharer.run().await {} }, runtime);
        Self {
            flow: Flow::new(step),
            twin: Flow::new(throttle("host", share)),
            rate,
            asked: 0.0,
            is_alive: true,
            in_step,
            leads,
            held,
            tasks,
        }
    }
}

/// The time that requests which pass take, in half of all cases, and in all but a hundredth.
fn quantiles(mut times: Vec<Duration>) -> (Duration, Duration) {
    times.sort_unstable();
    let at = |part: usize| times.get(times.len() * part / 100).copied().unwrap();
    (at(50), at(99))
}

/// Whether a request passes; if so, the time that it took is added.
fn timed(flow: &mut Flow, now_ns: u64, times: &mut Vec<Duration>) -> bool {
    let asked = Instant::now();
    let passes = flow.passes(now_ns);
    if passes {
        times.push(asked.elapsed());
    }
    passes
}

/// A fleet, and what its clients ask for.
struct Traffic {
    begun: Instant,
    hosts: Vec<Host>,
    shared_times: Vec<Duration>,
    alone_times: Vec<Duration>,
    is_turned: bool,
}

impl Traffic {
    /// Returns how many requests have passed, by second.
    fn run(&mut self, seconds: usize) -> Vec<f64> {
        let first = self.begun.elapsed();
        let (mut passed, mut last) = (vec![0.0; seconds], first);
        loop {
            let now = self.begun.elapsed();
            let Some(second) = passed.get_mut((now - first).as_secs() as usize) else {
                return passed;
            };
            let now_ns = now.as_nanos() as u64;
            for host in self.hosts.iter_mut().filter(|host| host.is_alive) {
                host.asked += host.rate * (now - last).as_secs_f64();
                while host.asked >= 1.0 {
                    host.asked -= 1.0;
                    let (shared, alone) = (&mut self.shared_times, &mut self.alone_times);
                    // Each goes first as often: the second finds what they have in common in the cache.
                    self.is_turned = !self.is_turned;
                    if self.is_turned {
                        timed(&mut host.twin, now_ns, alone);
                    }
                    *second += f64::from(timed(&mut host.flow, now_ns, shared));
                    if !self.is_turned {
                        timed(&mut host.twin, now_ns, alone);
                    }
                }
            }
            last = now;
            thread::sleep(STEP);
        }
    }

    fn kill(&mut self, numbers: &[usize]) {
        for (number, host) in self.hosts.iter_mut().enumerate() {
            if numbers.contains(&number) {
                host.is_alive = false;
                host.tasks.abort_all();
            }
        }
    }

    fn alive(&self) -> impl Iterator<Item = &Host> {
        self.hosts.iter().filter(|host| host.is_alive)
    }
}

fn holds(what: &str, passed: &[f64]) {
    let rate = passed.iter().sum::<f64>() / passed.len() as f64;
    eprintln!("{what}: {rate} a second");
    assert!((rate - RATE).abs() <= RATE * 0.05, "{what}: {passed:?}");
}

#[test]
fn twenty_hosts_hold_a_rate_while_etcd_is_away_and_hosts_die() {
    let mut etcd = Etcd::start(None, 1).unwrap();
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().build().unwrap();
    let handle = runtime.handle().clone();
    // It runs until the test is over.
    let (_end, ended) = oneshot::channel::<()>();
    thread::spawn(move || runtime.block_on(ended));
    let hosts = (0..HOSTS).map(|number| Host::new(&handle, number, &etcd));
    let mut traffic = Traffic {
        begun: Instant::now(),
        hosts: hosts.collect(),
        shared_times: Vec::new(),
        alone_times: Vec::new(),
        is_turned: false,
    };
    eventually("all are in step", || {
        traffic.alive().all(|host| host.in_step.load(Relaxed))
    });
    let before = traffic.run(5);
    let mut passed = traffic.run(3);
    traffic.kill(&[0, 5, 6]);
    passed.extend(traffic.run(9));
    etcd.kill(0).unwrap();
    let away = traffic.run(8);
    assert!(traffic.alive().all(|host| !host.in_step.load(Relaxed)));
    passed.extend(&away);
    etcd.restart(0).unwrap();
    passed.extend(traffic.run(10));
    eprintln!("at the start {before:?}, and then {passed:?}");
    assert_eq!(passed.len(), 30);
    holds("through deaths, and etcd's", &passed);
    holds("without etcd", &away);

    // No request waited for anything: what passes takes as long as by a throttle of the host's own, through all of this.
    let counts = (traffic.shared_times.len(), traffic.alone_times.len());
    let shared = quantiles(std::mem::take(&mut traffic.shared_times));
    let alone = quantiles(std::mem::take(&mut traffic.alone_times));
    eprintln!(
        "{counts:?} pass in {shared:?} (p50, p99), and by a throttle of the host's own in {alone:?}"
    );
    assert!(shared.0 < alone.0 * 3 / 2, "{shared:?} {alone:?}");
    assert!(shared.1 < alone.1 * 2, "{shared:?} {alone:?}");

    // They find together again, and know who has gone.
    eventually("all are in step again, and one leads", || {
        let leaders = traffic.alive().filter(|host| host.leads.load(Relaxed));
        traffic.alive().all(|host| host.in_step.load(Relaxed)) && leaders.count() == 1
    });
    let read = |key: &str| {
        etcd.ctl(0, &["get", &format!("/underpass/limits/{key}")])
            .unwrap()
    };
    eventually("seventeen share", || {
        read("fleet/levels").contains("\"hosts\":17")
    });

    // A limit that no rule has any more is shared as long as flows have it, and leaves nothing behind.
    let Some(Host {
        flow, held, tasks, ..
    }) = traffic.hosts.pop()
    else {
        panic!("there are hosts");
    };
    held.send_replace(Vec::new());
    traffic.run(2);
    assert!(read("hosts/h19").contains("\"rate\":1000"));
    drop(flow);
    eventually("nothing is left", || read("hosts/h19").trim().is_empty());
    drop(tasks);
}
