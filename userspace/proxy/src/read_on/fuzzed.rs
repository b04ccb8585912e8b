//! Any bytes as a flow that another agent hands over.

use cql::{Anomaly, Completed, FlowDecoder, Sink};

use super::{HandedFlow, ReadOn};

/// A sink that wants nothing.
pub(super) struct Nobody;

impl Sink for Nobody {
    fn completed(&mut self, _: &Completed<'_>) {}
    fn anomaly(&mut self, _: Anomaly) {}
}

/// A line that describes a flow, and bytes that come next: the flow means the same when it is written down again, and whatever
/// its positions are, it is read on from there or said to be unreadable.
pub fn handed(data: &[u8]) {
    let end = data.iter().position(|byte| *byte == b'\n');
    let (line, stream) = data.split_at(end.unwrap_or(data.len()));
    let Ok(handed) = serde_json::from_slice::<HandedFlow>(line) else {
        return;
    };
    let said = |flow: &HandedFlow| serde_json::to_string(flow).unwrap_or_default();
    if let Some(sealed) = handed.sealed() {
        let again = sealed.open().map(|again| said(&again));
        assert_eq!(again, Ok(said(&handed)));
    }
    let flow = handed.flow.carried(7);
    assert_eq!(flow.near(), handed.flow.near());
    reads_on(&handed.reading, stream.get(1..).unwrap_or_default());
}

/// Reads on, in both directions, where there are positions.
pub(super) fn reads_on(reading: &ReadOn, bytes: &[u8]) {
    let Ok(unread) = reading.positions() else {
        return;
    };
    let mut decoder = FlowDecoder::join(Default::default(), unread);
    decoder.requests(0, bytes, &mut Nobody);
    decoder.responses(0, bytes, &mut Nobody);
    let mut walked = unread;
    walked.requests.walk(bytes);
    walked.responses.walk(bytes);
}
