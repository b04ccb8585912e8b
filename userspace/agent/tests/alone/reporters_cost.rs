//! Cost of reporters that have seen a flow's statements before: nothing of the heap.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    sync::Arc,
    time::Instant,
};

use cql::{Anomaly, Completed, Details, FlowDecoder, Frame, Sink, Verdict};
use dataplane::{ClientAddr, OrigDst, Process};
use flow::Flow;
use policy::RuleName;
use prometheus::Registry;
use serde::Deserialize;
use steps::{
    Followed, Reporters, Services, otlp::CollectorSettings, pipelines::PipelineMetrics,
    reporters::ReporterSettings,
};
use telemetry::Metrics;

use crate::common::frames::{RESPONSE, RESULT, frame, query, ready, startup};

/// The system's allocator, counting for each thread.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: hands every call on to the system's allocator unchanged. Counting touches a
// thread-local without a destructor, which itself does not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller's own promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's own promise.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

pub struct Followers(pub Followed);

impl Sink for Followers {
    const DETAILS: bool = true;
    const FRAMES: bool = true;

    fn completed(&mut self, _: &Completed<'_>) {}

    fn frame(&mut self, frame: &Frame<'_>) {
        self.0.frame(frame);
    }

    fn detailed(&mut self, completed: &Completed<'_>, details: &Details) {
        self.0.completed(completed, details);
    }

    fn anomaly(&mut self, anomaly: Anomaly) {
        assert_eq!(anomaly.as_str(), "");
    }
}

pub fn followed(steps: &[&str]) -> (Followers, Arc<Services>) {
    let build = |step: &&str| {
        let table: toml::Table = toml::from_str(step).unwrap();
        let settings = ReporterSettings::deserialize(table).unwrap();
        // Nobody listens there: most of what is told does not fit.
        let nobody = CollectorSettings::read("http://127.0.0.1:1", None, None).unwrap();
        settings.with_collector(Some(&nobody)).build().unwrap()
    };
    let reporters: Reporters = steps.iter().map(build).collect();
    let registry = Registry::new();
    let own = Metrics::register(&registry, &[]).unwrap();
    let pipelines = PipelineMetrics::register(&registry).unwrap();
    let services = Arc::new(Services::register(&registry, &own, &pipelines, &[]).unwrap());
    for reporter in reporters.iter() {
        reporter.open(&services).unwrap();
    }
    let flow = Arc::new(Flow::begin(
        1,
        ClientAddr::new(([127, 0, 0, 1], 4000).into()),
        Process::elsewhere(),
        OrigDst::new(([127, 0, 0, 1], 9042).into()),
        RuleName::new("r"),
    ));
    (
        Followers(Followed::by(&reporters, &flow, &services)),
        services,
    )
}

#[test]
fn nothing_is_allocated_for_what_was_seen_before() {
    let _turn = crate::turn();
    const ROUNDS: usize = 10_000;
    // So many that each statement is sampled.
    const ROUNDS_BEFORE: usize = 3_000;
    let stats = "transform = \"stats\"";
    let slowlog = "transform = \"slowlog\"\nover = \"60m\"\nslowest_one_in = 1000000";
    let count = "transform = \"count\"";
    test_hooks::set(test_hooks::TestHooks {
        any_journal: true,
        ..test_hooks::TestHooks::default()
    });
    let debug = "transform = \"debug\"\nfile = \"/dev/null\"";
    let trace = "transform = \"trace\"\nsample = ";
    let audit = "transform = \"audit\"\notlp = true";
    let (some, all) = (
        format!("{trace}0.01"),
        format!("{trace}1\nservice = \"all\""),
    );
    let (mut sink, services) = followed(&[stats, slowlog, &some, &all, audit, count, debug]);
    let mut decoder = FlowDecoder::new(Default::default());
    decoder.wants_contexts(true);
    decoder.requests(0, &startup(4, &[]), &mut sink);
    decoder.responses(0, &ready(4), &mut sink);
    let requests: Vec<u8> = (0..16)
        .flat_map(|n| query(4, n, &format!("SELECT v FROM shop.orders{n} WHERE id = 1")))
        .collect();
    let one_row = [2, 4, 1, 1, 0].map(i32::to_be_bytes).concat();
    let responses: Vec<u8> = (0..16)
        .flat_map(|n| frame(RESPONSE | 4, n, RESULT, &one_row))
        .collect();
    let mut now_ns = 0;
    let mut round = |sink: &mut Followers| {
        now_ns += 1_000_000;
        assert_eq!(decoder.requests(now_ns, &requests, sink), Verdict::Continue);
        now_ns += 1_000_000;
        assert_eq!(
            decoder.responses(now_ns, &responses, sink),
            Verdict::Continue
        );
    };
    for _ in 0..ROUNDS_BEFORE {
        round(&mut sink);
    }
    let (before, started) = (ALLOCATIONS.get(), Instant::now());
    for _ in 0..ROUNDS {
        round(&mut sink);
    }
    let took = started.elapsed();
    assert_eq!(ALLOCATIONS.get() - before, 0);
    println!(
        "{} ns for each request, read and reported",
        took.as_nanos() / (16 * ROUNDS as u128)
    );
    let counted = serde_json::to_string(&services.stats.tops.views(false)).unwrap();
    assert_eq!(counted.matches("\"count\":13000,").count(), 16, "{counted}");
}
