//! No path keeps bytes waiting for a second. Nothing runs beside this test: whoever waits for a
//! processor waits for nothing of ours.

use std::path::Path;

use integrity::{Plan, drive};
use sandbox::Sandbox;

use crate::common::ways::{WAYS, agent};

/// Tries, because other programs may keep the machine busy.
const TRIES: u64 = 5;

const MOST_MS: u64 = 1_000;

#[test]
fn nobody_waits_for_a_second_on_any_path() {
    let _turn = crate::turn();
    for engine in ["sender", "egress"] {
        let sandbox = Sandbox::new().unwrap();
        let servers = WAYS.each_ref().map(|way| way.server(&sandbox));
        let settings = format!("splice = \"{engine}\"");
        let binary = Path::new(env!("CARGO_BIN_EXE_underpass"));
        let agent = agent(binary, &sandbox, &settings, &servers);
        agent
            .wait_for_log(&format!("path works path=\"splice_{engine}\""))
            .unwrap();
        for (way, server) in WAYS.iter().zip(&servers) {
            if engine == "egress" && way.name != "splice" {
                continue;
            }
            let drive = |seed| {
                let plan = Plan {
                    seed,
                    bytes: 24 << 20,
                    connection_max: 4 << 20,
                    connections: (1, 8),
                    ..way.plan(server)
                };
                sandbox.client(|| drive(&plan)).unwrap()
            };
            let passed = |seed| {
                let report = drive(seed);
                println!("{} by {engine}: {report}", way.name);
                let stalls = report.hung > 0 || report.longest_stall_ms >= MOST_MS;
                assert!(stalls || report.passed(&way.allowed()), "{report}");
                !stalls
            };
            assert!((1..=TRIES).any(passed), "{} by {engine} stalls", way.name);
        }
    }
}
