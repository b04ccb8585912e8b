//! Requests under extensions that STARTUP asks for, read or left unread.

use super::*;
use cql::{Anomaly, FlowDecoder};

const METADATA_ID: &str = "SCYLLA_USE_METADATA_ID";

fn begun(version: u8, offered: Option<&[&str]>, asked: &[&str]) -> Flow {
    let mut flow = Flow::new(version);
    if let Some(offered) = offered {
        let mut body = (offered.len() as u16).to_be_bytes().to_vec();
        for key in offered {
            body.extend([string(key), vec![0, 1], string("A=1")].concat());
        }
        flow.feed(true, &frame(version, 0, 1, OPTIONS, &[]));
        flow.feed(false, &frame(version | 0x80, 0, 1, 6, &body));
    }
    let options: Vec<_> = asked.iter().map(|key| (*key, "")).collect();
    flow.feed(true, &startup(version, &options));
    flow.feed(false, &frame(version | 0x80, 0, 0, READY, &[]));
    flow.sink.told.clear();
    flow
}

/// An EXECUTE at TWO with these bytes in place of the metadata's id.
fn execute(between: &[u8]) -> Vec<u8> {
    [&short_bytes(b"id"), between, &[0, 2, 0][..]].concat()
}

#[test]
fn parameters_stand_where_the_extension_has_them() {
    let id = short_bytes(b"of the metadata!");
    for version in [3, 4] {
        let both = Some(&[METADATA_ID][..]);
        let cases: [(_, &[_], &[u8], _); 4] = [
            (both, &[METADATA_ID], &id, Some(2)),
            (both, &[], &[], Some(2)),
            (Some(&[][..]), &[METADATA_ID], &[], Some(2)),
            // The database may know the extension, or not.
            (None, &[METADATA_ID], &[], None),
        ];
        for (offered, asked, between, expected) in cases {
            let mut flow = begun(version, offered, asked);
            let said = flow.ask(EXECUTE, &execute(between));
            let level = said.parameters.map(|parameters| parameters.consistency.0);
            assert_eq!(level, expected, "v{version} {offered:?} {asked:?}");
            // Somebody else follows the flow for a while: what it began with is not forgotten.
            let unread = flow.decoder.unread().unwrap();
            flow.decoder = FlowDecoder::join(Default::default(), unread);
            let said = flow.ask(EXECUTE, &execute(between));
            let level = said.parameters.map(|parameters| parameters.consistency.0);
            assert_eq!(level, expected, "joined");
            // A flow whose beginning nobody has seen may have begun with the extension.
            let unread = cql::Unread::at(unread.requests, unread.responses).unwrap();
            flow.decoder = FlowDecoder::join(Default::default(), unread);
            assert_eq!(flow.ask(EXECUTE, &execute(between)).parameters, None);
        }
    }
}

#[test]
fn nothing_is_read_under_an_extension_that_is_not_known() {
    for offered in [None, Some(&["SCYLLA_OF_TOMORROW"][..])] {
        let mut flow = begun(4, offered, &["SCYLLA_OF_TOMORROW", "DRIVER_NAME"]);
        flow.decoder.wants_texts(true);
        let text = "SELECT a FROM ks.t";
        let said = flow.ask(QUERY, &query(4, text, None));
        assert_eq!((said.text(), said.parameters.clone()), (None, None));
        flow.request(0, 1, PREPARE, &long_string(text));
        flow.response(0, 1, RESULT, &prepared(b"id"));
        flow.response(0, 5, RESULT, &set_keyspace("ks"));
        assert_eq!(flow.decoder.keyspace(), None);
        let unknown = Anomaly::UnknownExtension;
        assert!(flow.sink.anomalies.contains(&unknown));
        flow.ask(EXECUTE, &execute(&[]));
        assert!(flow.sink.anomalies.iter().all(|anomaly| {
            matches!(anomaly, Anomaly::UnknownExtension | Anomaly::UnknownStream)
        }));
        // The id that may have been another part of the frame has not become known to other flows.
        let kinds: Vec<_> = flow
            .sink
            .told
            .iter()
            .map(|(kind, ..)| kind.as_str())
            .collect();
        assert!(!kinds.contains(&"select"), "{kinds:?}");
    }
    // A server that does not know the key does nothing by it.
    let mut flow = begun(4, Some(&["COMPRESSION"]), &["SCYLLA_OF_TOMORROW"]);
    let said = flow.ask(QUERY, &query(4, "SELECT a FROM ks.t", None));
    assert_eq!(said.parameters.unwrap().consistency.0, 1);
}

#[test]
fn a_second_startup_changes_nothing() {
    let mut flow = begun(4, None, &[]);
    let second = startup(4, &[("COMPRESSION", "lz4"), ("SCYLLA_OF_TOMORROW", "")]);
    flow.request(0, 9, STARTUP, &second[9..]);
    flow.response(0, 9, ERROR, &[0, 0, 0, 10, 0, 0]);
    flow.sink.told.clear();
    let said = flow.ask(EXECUTE, &execute(&[]));
    assert_eq!(said.parameters.unwrap().consistency.0, 2);
}
