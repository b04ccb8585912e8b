//! Streams that are used again while their requests are out: responses are paired with requests only where
//! there is no doubt. The oracle knows which request each response answers.

use std::collections::HashMap;

use cql::{Anomaly, Completed, Details, FlowDecoder, Sink};
use proptest::prelude::*;

use crate::support::*;

/// A turn of the conversation.
#[derive(Clone, Copy, Debug)]
enum Turn {
    /// A request on this stream, whether or not one is out there.
    Asks(i16),
    /// The database answers one of the requests that are out, whichever comes at this index.
    Answers(usize),
}

fn turns() -> impl Strategy<Value = Vec<Turn>> {
    let turn = prop_oneof![
        (0_i16..3).prop_map(Turn::Asks),
        any::<usize>().prop_map(Turn::Answers),
    ];
    prop::collection::vec(turn, 0..60)
}

/// Reports to a sink with details, each by the number of its request.
#[derive(Default)]
struct Told {
    completed: Vec<(usize, u64)>,
    unanswered: Vec<usize>,
    duplicates: usize,
}

fn number(completed: &Completed<'_>) -> usize {
    let table = completed.statement.table.as_deref().unwrap();
    table[1..].parse().unwrap()
}

impl Sink for Told {
    const DETAILS: bool = true;

    fn completed(&mut self, _: &Completed<'_>) {
        panic!("told without details");
    }

    fn detailed(&mut self, completed: &Completed<'_>, details: &Details) {
        let number = number(completed);
        assert_eq!(details.asked.body_bytes as u64 + 9, completed.request_bytes);
        self.completed.push((number, completed.response_bytes));
    }

    fn unanswered(&mut self, request: &Completed<'_>, details: &Details) {
        assert_eq!(details.asked.body_bytes as u64 + 9, request.request_bytes);
        self.unanswered.push(number(request));
    }

    fn anomaly(&mut self, anomaly: Anomaly) {
        assert_eq!(anomaly, Anomaly::DuplicateStream);
        self.duplicates += 1;
    }
}

fn asks(stream: i16, number: usize) -> Vec<u8> {
    // Each has another length.
    let text = format!(
        "SELECT v FROM ks.t{number} WHERE k = '{}'",
        "k".repeat(number)
    );
    frame(4, 0, stream, QUERY, &query(4, &text, None))
}

fn answers(stream: i16, number: usize) -> Vec<u8> {
    let body = [&1_i32.to_be_bytes()[..], &vec![0; number]].concat();
    frame(0x84, 0, stream, RESULT, &body)
}

proptest! {
    #[test]
    fn whatever_is_reused_a_response_is_paired_with_its_own_request_or_with_none(turns in turns()) {
        let mut decoder = FlowDecoder::new(Default::default());
        let mut quiet = Recorder::default();
        decoder.requests(0, &startup(4, &[]), &mut quiet);
        decoder.responses(0, &frame(0x84, 0, 0, READY, &[]), &mut quiet);
        let mut told = Told::default();
        // Requests that are out, and for each stream those since it was last free.
        let mut out: Vec<(i16, usize)> = Vec::new();
        let mut busy: HashMap<i16, Vec<usize>> = HashMap::new();
        let (mut alone, mut shared) = (Vec::new(), Vec::new());
        let mut asked = 0;
        let mut rest = Vec::new();
        for turn in turns {
            match turn {
                Turn::Asks(stream) => {
                    decoder.requests(0, &asks(stream, asked), &mut told);
                    out.push((stream, asked));
                    busy.entry(stream).or_default().push(asked);
                    asked += 1;
                }
                Turn::Answers(index) if !out.is_empty() => {
                    let (stream, number) = out.remove(index % out.len());
                    decoder.responses(0, &answers(stream, number), &mut told);
                    if out.iter().all(|(other, _)| *other != stream) {
                        match &busy.remove(&stream).unwrap()[..] {
                            [one] => alone.push(*one),
                            several => shared.extend_from_slice(several),
                        }
                    }
                }
                Turn::Answers(_) => {}
            }
        }
        for those in busy.into_values() {
            match those.len() {
                1 => rest.extend(those),
                _ => shared.extend(those),
            }
        }
        for (number, bytes) in &told.completed {
            prop_assert_eq!(*bytes, 9 + 4 + *number as u64, "the response to another");
        }
        let completed: Vec<usize> = told.completed.iter().map(|(number, _)| *number).collect();
        prop_assert_eq!(&completed, &alone);
        // Each of the others is told of once, without a response.
        prop_assert_eq!(told.duplicates > 0, !shared.is_empty());
        decoder.finish(0, &mut told);
        told.unanswered.sort_unstable();
        shared.extend(rest);
        shared.sort_unstable();
        prop_assert_eq!(told.unanswered, shared);
    }
}

#[test]
fn the_keyspace_is_known_by_whichever_request_changed_it() {
    let mut flow = Flow::started(4);
    flow.use_keyspace("one");
    flow.request(7, QUERY, &query(4, "USE two", None));
    flow.request(7, QUERY, &query(4, "SELECT a FROM t", None));
    flow.response(7, RESULT, &set_keyspace("two"));
    flow.response(7, RESULT, &1_i32.to_be_bytes());
    assert_eq!(
        flow.ask(QUERY, &query(4, "SELECT a FROM t", None)),
        "select two t"
    );
}

#[test]
fn a_startup_is_accepted_beside_another_request_on_its_stream() {
    for version in [4, 5] {
        let mut flow = Flow::new(version);
        flow.requests(&frame(version, 0, 0, OPTIONS, &[]));
        flow.requests(&startup(version, &[]));
        flow.responses(&frame(version | 0x80, 0, 0, 6, &[0, 0]));
        flow.responses(&frame(version | 0x80, 0, 0, READY, &[]));
        let asked = flow.ask(QUERY, &query(version, "SELECT a FROM k.t", None));
        assert_eq!(asked, "select k t", "{version}");
    }
}
