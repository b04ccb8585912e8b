//! `audit` at its defaults, at the rate for which its buffers are made: no record is lost.

use std::{
    fs, thread,
    time::{Duration, Instant},
};

use cql::{FlowDecoder, Verdict};

use crate::{
    common::frames::{RESPONSE, RESULT, frame, query, ready, startup},
    reporters_cost::followed,
};

/// Records in a second, as [the page](../../../../docs/audit.md) says.
const RATE: u64 = 50_000;

const SECONDS: u64 = 4;

/// Requests that a client sends at once.
const AT_ONCE: u64 = 100;

/// The time after which a flow that is held is looked at again, as in the proxy.
const HOLD: Duration = Duration::from_millis(5);

#[test]
fn fifty_thousand_records_a_second_are_all_written() {
    let _turn = crate::turn();
    for (full, may_lose) in [("", false), ("\nfull = \"drop\"", true)] {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("audit");
        let step = format!("transform = \"audit\"\nfile = {file:?}{full}");
        let (mut sink, services) = followed(&[&step]);
        let mut decoder = FlowDecoder::new(Default::default());
        decoder.requests(0, &startup(4, &[]), &mut sink);
        decoder.responses(0, &ready(4), &mut sink);
        let some = 0..AT_ONCE as i16;
        let requests = some.clone().flat_map(|n| {
            let text = format!("SELECT v FROM shop.orders{} WHERE id = 1", n % 16);
            query(4, n, &text)
        });
        let requests: Vec<u8> = requests.collect();
        let one_row = [2, 4, 1, 1, 0].map(i32::to_be_bytes).concat();
        let responses = some.flat_map(|n| frame(RESPONSE | 4, n, RESULT, &one_row));
        let responses: Vec<u8> = responses.collect();

        let (begun, mut sent, mut held) = (Instant::now(), 0, 0);
        while sent < RATE * SECONDS {
            let due = begun + Duration::from_secs(1).mul_f64(sent as f64 / RATE as f64);
            thread::sleep(due.saturating_duration_since(Instant::now()));
            while sink.0.holds() {
                held += 1;
                thread::sleep(HOLD);
            }
            let now_ns = begun.elapsed().as_nanos() as u64;
            assert_eq!(
                decoder.requests(now_ns, &requests, &mut sink),
                Verdict::Continue
            );
            assert_eq!(
                decoder.responses(now_ns, &responses, &mut sink),
                Verdict::Continue
            );
            sent += AT_ONCE;
        }
        let rate = sent as f64 / begun.elapsed().as_secs_f64();
        services.journals.finish(Duration::from_secs(10));
        let text = fs::read_to_string(&file).unwrap();
        // STARTUP is one, too.
        let lost = sent
            - text
                .lines()
                .filter(|line| line.contains("\"select\""))
                .count() as u64;
        println!("{sent} records at {rate:.0}/s{full}: {lost} lost, held {held} times");
        assert!(may_lose || lost == 0, "{lost} of {sent} are lost");
    }
}
