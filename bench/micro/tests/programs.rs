//! The agent's real programs, loaded and run by this process: the counts are those of what ran.

#![expect(
    clippy::unwrap_used,
    reason = "tests say what they expect by failing, and so do their helpers"
)]

use std::{io::ErrorKind, net::TcpStream, path::PathBuf, process};

use dataplane::{Attached, Dataplane, Options};
use micro::programs::{Counter, ProgramCost};
use policy::{Action, Fail, Policy};
use sandbox::{Sandbox, run_in};

/// Enough that a mean is one.
const CONNECTIONS: u64 = 100;

fn find<'a>(costs: &'a [ProgramCost], name: &str) -> &'a ProgramCost {
    costs.iter().find(|cost| cost.name == name).unwrap()
}

/// Removes what a failed test would leave pinned.
struct Pins(PathBuf);

impl Drop for Pins {
    fn drop(&mut self) {
        if let Err(error) = dataplane::detach(&self.0) {
            eprintln!("{error}");
        }
    }
}

#[test]
fn connects_are_runs_of_the_connect_hook() {
    let sandbox = Sandbox::new().unwrap();
    let pins = Pins(format!("/sys/fs/bpf/underpass-test-micro-{}", process::id()).into());
    let options = Options {
        cgroup: sandbox.cgroup.path().to_owned(),
        pins: pins.0.clone(),
        incoming: Vec::new(),
        max_namespaces: 0,
        tap_ring_bytes: dataplane::DEFAULT_TAP_RING_BYTES,
        taken: Default::default(),
    };
    let policy = Policy {
        rules: Vec::new(),
        default_action: Action::Bypass,
        default_fail: Fail::Open,
    };
    let attached = run_in(Some(&sandbox.netns), None, || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let _entered = runtime.enter();
        let Attached { dataplane, .. } = Dataplane::attach(&options, &policy).unwrap();
        (dataplane, runtime)
    });
    let (dataplane, _runtime) = attached.unwrap();
    // Dropped before `pins`, whose lock it holds.
    let dataplane = dataplane;

    let connect = |times: u64| {
        let refused = sandbox.client(|| {
            let dial = |_| TcpStream::connect("127.0.0.1:9").map_err(|e| e.kind());
            (0..times)
                .map(dial)
                .all(|r| matches!(r, Err(ErrorKind::ConnectionRefused)))
        });
        assert!(refused.unwrap());
    };
    // Runs before the start do not count.
    connect(CONNECTIONS / 2);
    let counter = Counter::start(process::id()).unwrap();
    connect(CONNECTIONS);
    let costs = counter.finish().unwrap();
    // Nor does what runs after the end: the kernel does not even look.
    connect(CONNECTIONS);
    let idle = Counter::start(process::id()).unwrap().finish().unwrap();

    let connect4 = find(&costs, "connect4");
    assert_eq!(connect4.runs, CONNECTIONS, "{costs:#?}");
    assert_eq!(connect4.kind, "cgroup_sock_addr");
    assert!(
        connect4.mean_ns > 1.0 && connect4.mean_ns < 1e6,
        "{connect4:?}"
    );
    assert_eq!(find(&costs, "connect6").runs, 0);
    assert_eq!(find(&idle, "connect4").runs, 0);
    for cost in &costs {
        assert!(
            cost.verified_instructions > 0 && cost.jited_bytes > 0,
            "{cost:?}"
        );
    }
    dataplane.detach().unwrap();
}
