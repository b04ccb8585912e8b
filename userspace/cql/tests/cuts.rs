//! Random conversations: what is told does not depend on where they are cut, and no input panics.

#[cfg(test)]
#[allow(
    dead_code,
    clippy::allow_attributes,
    reason = "each test file uses a part of it"
)]
mod support;

#[cfg(test)]
mod tests {
    use super::support::*;
    use cql::{Anomaly, FlowDecoder, Verdict};
    use proptest::prelude::*;
    use proptest::sample::Index;
    use std::sync::Arc;

    /// Bytes of one direction.
    #[derive(Clone, Debug)]
    enum Bytes {
        Requests(Vec<u8>),
        Responses(Vec<u8>),
    }

    /// One exchange: a request's opcode and body, and its response's flags, opcode and body.
    type Exchange = (u8, Vec<u8>, u8, u8, Vec<u8>);

    fn exchanges(version: u8) -> impl Strategy<Value = Vec<Exchange>> {
        let texts = prop::sample::select(vec![
            "SELECT a FROM t",
            "INSERT INTO ks.t (a) VALUES (1)",
            "BEGIN BATCH UPDATE u SET a = 1 APPLY BATCH",
            "nonsense",
            "",
        ]);
        let ids = prop::sample::select(vec![&b"one"[..], b"two", b"three"]);
        let padding = prop_oneof![4 => 0..50_usize, 1 => 500..600_usize, 1 => 0..300_000_usize];
        let keyspaces = prop::option::of(prop::sample::select(vec!["own", "Other"]));
        let exchange = (0..9, texts, ids, padding, keyspaces).prop_map(
            move |(choice, text, id, padding, keyspace)| {
                let padding = vec![b' '; padding];
                let padded = format!("{text}{}", String::from_utf8_lossy(&padding));
                let rows = [&[0, 0, 0, 2][..], &padding].concat();
                let plain = |opcode, body| (opcode, body, 0, RESULT, rows.clone());
                match choice {
                    0 => plain(QUERY, query(version, &padded, keyspace)),
                    1 => plain(EXECUTE, [execute(id), padding].concat()),
                    2 => {
                        let children = [Child::Id(id), Child::Text(&padded), Child::Text(text)];
                        plain(BATCH, batch(version, &children, keyspace))
                    }
                    3 => {
                        let answer = [prepared(id), padding].concat();
                        (PREPARE, prepare(version, text, keyspace), 0, RESULT, answer)
                    }
                    4 => (
                        QUERY,
                        query(version, "USE x", None),
                        0,
                        RESULT,
                        set_keyspace(text),
                    ),
                    5 => (QUERY, query(version, text, None), 0, ERROR, rows),
                    6 => {
                        let body = [&[1; 16][..], &[0, 1], &string("careful"), &rows].concat();
                        (QUERY, query(version, text, None), 0x0A, RESULT, body)
                    }
                    7 => plain(QUERY, text.as_bytes().to_vec()),
                    _ => plain(0x77, padding),
                }
            },
        );
        prop::collection::vec(exchange, 1..12)
    }

    /// Frames as they are, or in segments: small ones together, large ones in parts.
    fn wrap(version: u8, frames: &[Vec<u8>]) -> Vec<u8> {
        if version < 5 {
            return frames.concat();
        }
        let mut bytes = Vec::new();
        let mut together = Vec::new();
        for frame in frames {
            if together.len() + frame.len() >= 1 << 17 {
                bytes.extend(segment(true, &std::mem::take(&mut together)));
            }
            if frame.len() >= 1 << 17 {
                for part in frame.chunks((1 << 17) - 1) {
                    bytes.extend(segment(false, part));
                }
            } else {
                together.extend(frame);
            }
        }
        bytes.extend(segment(true, &together));
        bytes
    }

    /// Rounds of requests, each answered in another order than asked.
    fn conversation(version: u8) -> impl Strategy<Value = (u8, Vec<Bytes>)> {
        let round = exchanges(version).prop_flat_map(|exchanges| {
            let order: Vec<usize> = (0..exchanges.len()).collect();
            (Just(exchanges), Just(order).prop_shuffle())
        });
        prop::collection::vec(round, 1..4).prop_map(move |rounds| {
            let mut runs = vec![
                Bytes::Requests(startup(version, &[])),
                Bytes::Responses(frame(version | 0x80, 0, 0, READY, &[])),
            ];
            for (exchanges, order) in rounds {
                let request =
                    |(stream, e): (usize, &Exchange)| frame(version, 0, stream as i16, e.0, &e.1);
                let requests: Vec<_> = exchanges.iter().enumerate().map(request).collect();
                let response = |at: &usize| {
                    let (_, _, flags, opcode, body) = &exchanges[*at];
                    frame(version | 0x80, *flags, *at as i16, *opcode, body)
                };
                let responses: Vec<_> = order.iter().map(response).collect();
                runs.push(Bytes::Requests(wrap(version, &requests)));
                runs.push(Bytes::Responses(wrap(version, &responses)));
            }
            (version, runs)
        })
    }

    /// Feeds each run cut at `cuts`; gives what was told, and asserts that the flow goes on.
    fn feed(runs: &[Bytes], cuts: &[Index]) -> Vec<Told> {
        let mut recorder = Recorder::default();
        let mut decoder = FlowDecoder::new(Arc::default());
        for run in runs {
            let (Bytes::Requests(bytes) | Bytes::Responses(bytes)) = run;
            let mut places: Vec<usize> =
                cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
            places.extend([0, bytes.len()]);
            places.sort_unstable();
            for pair in places.windows(2) {
                let piece = &bytes[pair[0]..pair[1]];
                let verdict = match run {
                    Bytes::Requests(_) => decoder.requests(0, piece, &mut recorder),
                    Bytes::Responses(_) => decoder.responses(0, piece, &mut recorder),
                };
                assert_eq!(verdict, Verdict::Continue);
            }
        }
        decoder.requests_end(&mut recorder);
        decoder.responses_end(&mut recorder);
        assert_eq!(decoder.in_flight(), 0);
        recorder.told
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]

        #[test]
        fn cuts_change_nothing(
            (version, runs) in prop_oneof![conversation(3), conversation(4), conversation(5)],
            cuts in prop::collection::vec(any::<Index>(), 0..40),
        ) {
            let whole = feed(&runs, &[]);
            prop_assert!(whole.len() > 1);
            prop_assert!(!whole.contains(&Told::Anomaly(Anomaly::UnknownStream)));
            prop_assert_eq!(feed(&runs, &cuts), whole, "v{}", version);
        }

        /// Requests and responses on the wire at the same time, each in pieces.
        #[test]
        fn interleaved_directions_change_nothing(
            version in 3..6_u8,
            pieces in prop::collection::vec((any::<bool>(), 1..60_usize), 1..80),
        ) {
            let mut flow = Flow::started(version);
            let select = |stream| format!("SELECT a FROM ks.t{stream}");
            let earlier: Vec<_> = (0..8)
                .map(|s| frame(version, 0, s, QUERY, &query(version, &select(s), None)))
                .collect();
            let later: Vec<_> = (8..16)
                .map(|s| frame(version, 0, s, QUERY, &query(version, &select(s), None)))
                .collect();
            let answers: Vec<_> =
                (0..8).map(|s| frame(version | 0x80, 0, s, RESULT, &[0, 0, 0, 1])).collect();
            flow.requests(&wrap(version, &earlier));
            let (asks, answers) = (wrap(version, &later), wrap(version, &answers));
            let (mut asks, mut answers) = (&asks[..], &answers[..]);
            for (ask, len) in pieces.into_iter().chain([(true, 10_000), (false, 10_000)]) {
                let from = if ask { &mut asks } else { &mut answers };
                let (piece, rest) = from.split_at(len.min(from.len()));
                *from = rest;
                if ask { flow.requests(piece) } else { flow.responses(piece) }
            }
            let expected: Vec<_> = (0..8).map(|s| format!("select ks t{s}")).collect();
            prop_assert_eq!(flow.recorder.statements(), expected);
            prop_assert_eq!(flow.recorder.anomalies(), []);
            prop_assert_eq!(flow.decoder.in_flight(), 8);
        }

        #[test]
        fn survives_garbage(
            version in 3..6_u8,
            started: bool,
            chunks in prop::collection::vec((any::<bool>(), any::<Vec<u8>>()), 0..20),
        ) {
            let mut flow = if started { Flow::started(version) } else { Flow::new(version) };
            for (requests, bytes) in chunks {
                let Flow { decoder, recorder, .. } = &mut flow;
                let verdict = match requests {
                    true => decoder.requests(0, &bytes, recorder),
                    false => decoder.responses(0, &bytes, recorder),
                };
                if let Verdict::Close { keep, .. } = verdict {
                    prop_assert!(keep <= bytes.len());
                }
            }
            flow.decoder.requests_end(&mut flow.recorder);
            flow.decoder.responses_end(&mut flow.recorder);
        }

        /// Well-formed frames around garbage bodies, so that every body reader gets some; and the
        /// same told at any cut.
        #[test]
        fn survives_garbage_bodies(
            version in 3..6_u8,
            frames in prop::collection::vec(
                (any::<bool>(), 0..4_i16, 0..17_u8, 0..32_u8, any::<Vec<u8>>()), 1..30,
            ),
            piece in 1..50_usize,
        ) {
            let tell = |piece: usize| {
                let mut flow = Flow::started(version);
                for (is_request, stream, opcode, flags, body) in &frames {
                    let direction = if *is_request { 0 } else { 0x80 };
                    let frame = frame(version | direction, *flags, *stream, *opcode, body);
                    for piece in wrap(version, &[frame]).chunks(piece) {
                        if *is_request { flow.requests(piece) } else { flow.responses(piece) }
                    }
                }
                flow.recorder.told
            };
            prop_assert_eq!(tell(piece), tell(usize::MAX));
        }

        /// A conversation with one byte changed ends in some verdict, never in a panic.
        #[test]
        fn survives_a_changed_byte(
            (_, runs) in prop_oneof![conversation(4), conversation(5)],
            place: Index,
            byte: u8,
        ) {
            let mut recorder = Recorder::default();
            let mut decoder = FlowDecoder::new(Arc::default());
            let run_at = place.index(runs.len());
            for (at, run) in runs.into_iter().enumerate() {
                let (requests, mut bytes) = match run {
                    Bytes::Requests(bytes) => (true, bytes),
                    Bytes::Responses(bytes) => (false, bytes),
                };
                if at == run_at {
                    let place = place.index(bytes.len());
                    bytes[place] = byte;
                }
                match requests {
                    true => decoder.requests(0, &bytes, &mut recorder),
                    false => decoder.responses(0, &bytes, &mut recorder),
                };
            }
        }
    }
}
