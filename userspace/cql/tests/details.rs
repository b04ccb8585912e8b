//! What is told of requests and responses to a sink that asks for details.

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
    use cassandra_protocol::consistency::Consistency as Level;
    use cassandra_protocol::frame::message_batch::{
        BatchQuery, BatchQuerySubj, BatchType, BodyReqBatch,
    };
    use cassandra_protocol::frame::message_execute::BodyReqExecuteOwned;
    use cassandra_protocol::frame::message_query::BodyReqQuery;
    use cassandra_protocol::frame::message_result::{
        BodyResResultRows, CTuple, CUdt, ColSpec, ColType, ColTypeOption, ColTypeOptionValue,
        ResResultBody, RowsMetadata, RowsMetadataFlags, TableSpec,
    };
    use cassandra_protocol::frame::{Serialize, Version};
    use cassandra_protocol::query::{QueryParams, QueryValues};
    use cassandra_protocol::types::{CBytes, CBytesShort};
    use cql::{
        Anomaly, Answered, Asked, Completed, Consistency, Details, ErrorCode, Fact, FlowDecoder,
        MAX_TEXT_BYTES, NoTraceContext, Parameters, Says, Sink, TraceContext, Verdict,
    };
    use proptest::prelude::*;
    use std::sync::Arc;

    /// Everything that was told.
    #[derive(Debug, Default, PartialEq)]
    struct Detailed {
        told: Vec<(String, Option<ErrorCode>, Details)>,
        unanswered: Vec<(String, u64, Details)>,
        anomalies: Vec<Anomaly>,
    }

    impl Sink for Detailed {
        const DETAILS: bool = true;

        fn completed(&mut self, _: &Completed<'_>) {
            panic!("told without details");
        }

        fn detailed(&mut self, completed: &Completed<'_>, details: &Details) {
            let kind = completed.statement.kind.to_string();
            self.told.push((kind, completed.error, details.clone()));
        }

        fn unanswered(&mut self, request: &Completed<'_>, details: &Details) {
            let kind = request.statement.kind.to_string();
            self.unanswered
                .push((kind, request.latency_ns, details.clone()));
        }

        fn anomaly(&mut self, anomaly: Anomaly) {
            self.anomalies.push(anomaly);
        }
    }

    fn long_string(text: &str) -> Vec<u8> {
        [&(text.len() as u32).to_be_bytes()[..], text.as_bytes()].concat()
    }

    #[test]
    fn what_is_not_answered_is_told_in_the_end() {
        for version in [3, 4, 5] {
            let mut flow = Flow::started(version);
            let text = [&long_string("SELECT a FROM k.t")[..], &[0, 1, 0, 0, 0, 0]].concat();
            flow.request(0, 1, QUERY, &text);
            flow.request(0, 2, OPTIONS, &[]);
            flow.request(0, 3, OPTIONS, &[]);
            flow.response(0, 3, RESULT, &1_i32.to_be_bytes());
            // Of this one's answer only the beginning comes.
            let answer = flow.wrap(frame(version | 0x80, 0, 2, RESULT, &[0; 8]));
            if version < 5 {
                flow.feed(false, &answer[..12]);
            }
            flow.decoder.is_over(7, &mut flow.sink);
            let told = std::mem::take(&mut flow.sink.unanswered);
            let kinds: Vec<&str> = told.iter().map(|(kind, _, _)| kind.as_str()).collect();
            match version {
                5 => assert_eq!(kinds, ["select", "options"]),
                _ => assert_eq!(kinds, ["options", "select"]),
            }
            let select = told.iter().find(|(kind, _, _)| kind == "select").unwrap();
            assert_eq!(select.1, 7);
            let fingerprint = select.2.asked.fingerprint.as_ref().unwrap();
            assert_eq!(fingerprint.text(), "SELECT a FROM k.t");
            flow.decoder.is_over(8, &mut flow.sink);
            assert_eq!(flow.sink.unanswered.len(), 0, "once");
        }
    }

    #[test]
    fn texts_are_for_who_wants_them() {
        let text = "SELECT a FROM k.t WHERE b = 'x'";
        let body = [&long_string(text)[..], &[0, 1, 0, 0, 0, 0]].concat();
        let mut flow = Flow::started(4);
        assert_eq!(flow.ask(QUERY, &body).text, None);
        flow.decoder.wants_texts(true);
        assert_eq!(flow.ask(QUERY, &body).text.as_deref(), Some(text));
        assert_eq!(flow.ask(QUERY, &body[..20]).text, None);
        let long = [
            &long_string(&"x".repeat(MAX_TEXT_BYTES + 1))[..],
            &[0, 1, 0],
        ]
        .concat();
        assert_eq!(flow.ask(QUERY, &long).text, None);
        flow.decoder.wants_texts(false);
        assert_eq!(flow.ask(QUERY, &body).text, None);
    }

    #[test]
    fn trace_contexts_are_for_who_wants_them() {
        const CUSTOM_PAYLOAD: u8 = 0x04;
        let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let entry = [&[0, 1, 0, 11][..], b"traceparent", &long_string(parent)].concat();
        let query = [&long_string("SELECT a FROM k.t")[..], &[0, 1, 0, 0, 0, 0]].concat();
        let body = [&entry[..], &query].concat();
        for version in [4, 5] {
            let mut flow = Flow::started(version);
            let mut asks = |flags, body: &[u8], wants| {
                flow.decoder.wants_contexts(wants);
                flow.request(flags, 1, QUERY, body);
                flow.response(0, 1, RESULT, &1_i32.to_be_bytes());
                let (kind, _, details) = flow.sink.told.pop().unwrap();
                assert_eq!(kind, "select");
                details.context
            };
            assert_eq!(asks(CUSTOM_PAYLOAD, &body, false), None);
            let context = TraceContext::parse(parent.as_bytes());
            assert!(context.is_ok());
            assert_eq!(asks(CUSTOM_PAYLOAD, &body, true), Some(context));
            assert_eq!(asks(0, &query, true), None);
            let state = [&[0, 10][..], b"tracestate", &long_string("a=b")].concat();
            let mut both = [&entry[..], &state, &query].concat();
            both[1] = 2;
            flow.request(CUSTOM_PAYLOAD, 1, QUERY, &both);
            flow.response(0, 1, RESULT, &1_i32.to_be_bytes());
            let (_, _, details) = flow.sink.told.pop().unwrap();
            assert_eq!(details.context, Some(context));
            assert_eq!(details.trace_state, Some(Ok("a=b".into())));
            let mut asks = |flags, body: &[u8], wants| {
                flow.decoder.wants_contexts(wants);
                flow.request(flags, 1, QUERY, body);
                flow.response(0, 1, RESULT, &1_i32.to_be_bytes());
                flow.sink.told.pop().unwrap().2.context
            };
            let mut bad = body.clone();
            bad[4 + 11 + 4] = b'x';
            assert_eq!(asks(CUSTOM_PAYLOAD, &bad, true), Some(Err(NoTraceContext)));
        }
    }

    #[test]
    fn who_could_not_log_in_is_told_too() {
        const AUTH_RESPONSE: u8 = 0x0F;
        const AUTH_SUCCESS: u8 = 0x10;
        const ERROR: u8 = 0x00;
        let token = long_string("\0ann\0secret");
        let bad = [&0x0100_u32.to_be_bytes()[..], &[0, 0]].concat();
        for (opcode, body, accepts) in [(AUTH_SUCCESS, &[255; 4][..], true), (ERROR, &bad, false)] {
            let mut flow = Flow::started(4);
            flow.request(0, 1, AUTH_RESPONSE, &token);
            flow.response(0, 1, opcode, body);
            let details = flow.sink.told.pop().unwrap().2;
            assert_eq!(details.asked.says, Some(Box::new(Says::User("ann".into()))));
            assert_eq!(details.answered.accepts, accepts);
        }
    }

    struct Flow {
        decoder: FlowDecoder,
        sink: Detailed,
        version: u8,
        piece: usize,
    }

    impl Flow {
        fn started(version: u8) -> Self {
            let mut flow = Self {
                decoder: FlowDecoder::new(Arc::default()),
                sink: Detailed::default(),
                version,
                piece: usize::MAX,
            };
            flow.feed(true, &startup(version, &[]));
            flow.feed(false, &frame(version | 0x80, 0, 0, READY, &[]));
            flow.sink.told.clear();
            flow
        }

        fn feed(&mut self, is_request: bool, bytes: &[u8]) {
            for piece in bytes.chunks(self.piece) {
                let verdict = match is_request {
                    true => self.decoder.requests(0, piece, &mut self.sink),
                    false => self.decoder.responses(0, piece, &mut self.sink),
                };
                assert_eq!(verdict, Verdict::Continue);
            }
        }

        fn request(&mut self, flags: u8, stream: i16, opcode: u8, body: &[u8]) {
            self.feed(
                true,
                &self.wrap(frame(self.version, flags, stream, opcode, body)),
            );
        }

        fn response(&mut self, flags: u8, stream: i16, opcode: u8, body: &[u8]) {
            let frame = frame(self.version | 0x80, flags, stream, opcode, body);
            self.feed(false, &self.wrap(frame));
        }

        fn wrap(&self, frame: Vec<u8>) -> Vec<u8> {
            match self.version {
                5 if frame.len() < 1 << 17 => segment(true, &frame),
                5 => frame
                    .chunks((1 << 17) - 1)
                    .flat_map(|part| segment(false, part))
                    .collect(),
                _ => frame,
            }
        }

        /// A request and an empty result.
        fn ask(&mut self, opcode: u8, body: &[u8]) -> Asked {
            self.request(0, 1, opcode, body);
            self.response(0, 1, RESULT, &1_i32.to_be_bytes());
            self.sink.told.pop().unwrap().2.asked
        }

        /// A response to some request.
        fn answer(&mut self, flags: u8, opcode: u8, body: &[u8]) -> Answered {
            self.request(0, 1, OPTIONS, &[]);
            self.response(flags, 1, opcode, body);
            self.sink.told.pop().unwrap().2.answered
        }
    }

    fn version(version: u8) -> Version {
        match version {
            3 => Version::V3,
            4 => Version::V4,
            _ => Version::V5,
        }
    }

    /// Parameters in every combination, written by cassandra-protocol, and how many values.
    fn parameters() -> impl Strategy<Value = (QueryParams, u32)> {
        let values = prop_oneof![
            Just((None, 0)),
            (0..5_u32).prop_map(|n| {
                let values = (0..n)
                    .map(|n| "x".repeat(n as usize * 100).into())
                    .collect();
                (Some(QueryValues::SimpleValues(values)), n)
            }),
            (1..4_u32).prop_map(|n| {
                let values = (0..n).map(|n| (format!("n{n}"), 7_i64.into())).collect();
                (Some(QueryValues::NamedValues(values)), n)
            }),
        ];
        let optional = (any::<[bool; 6]>(), values);
        optional.prop_map(
            |([page, state, serial, timestamp, keyspace, now], (values, bound))| {
                let parameters = QueryParams {
                    consistency: Level::LocalQuorum,
                    with_names: matches!(values, Some(QueryValues::NamedValues(_))),
                    values,
                    page_size: page.then_some(100),
                    paging_state: state.then(|| CBytes::new(vec![1, 2, 3])),
                    serial_consistency: serial.then_some(Level::LocalSerial),
                    timestamp: timestamp.then_some(5),
                    keyspace: keyspace.then(|| "own".into()),
                    now_in_seconds: now.then_some(1),
                };
                (parameters, bound)
            },
        )
    }

    /// `Fact::Is` if there is one.
    fn fact<T>(value: Option<T>) -> Fact<T> {
        value.map_or(Fact::Absent, Fact::Is)
    }

    fn expected(params: &QueryParams, values: u32) -> Parameters {
        Parameters {
            consistency: Consistency(6),
            serial_consistency: fact(params.serial_consistency.map(|_| Consistency(9))),
            statements: 1,
            values,
            page_size: fact(params.page_size),
            paging_state: params.paging_state.is_some(),
        }
    }

    proptest! {
        #[test]
        fn parameters_are_read_as_cassandra_protocol_writes_them(
            (mut params, values) in parameters(),
            number in 3..6_u8,
            piece in prop_oneof![Just(usize::MAX), 1..200_usize],
            prepared_child: bool,
        ) {
            if number < 5 {
                params.keyspace = None;
                params.now_in_seconds = None;
            }
            let version = version(number);
            let mut flow = Flow::started(number);
            flow.piece = piece;
            let expected = expected(&params, values);

            let text = "SELECT a FROM t".to_string();
            let body = BodyReqQuery { query: text, query_params: params.clone() };
            let body = body.serialize_to_vec(version);
            let asked = flow.ask(QUERY, &body);
            prop_assert_eq!(asked.body_bytes as usize, body.len());
            prop_assert_eq!(asked.parameters.as_ref(), Some(&expected));

            let id = CBytesShort::new(b"id".to_vec());
            let metadata = (number >= 5).then(|| CBytesShort::new(b"metadata".to_vec()));
            let body = BodyReqExecuteOwned::new(id.clone(), metadata, params.clone());
            let asked = flow.ask(EXECUTE, &body.serialize_to_vec(version));
            prop_assert_eq!(asked.parameters.as_ref(), Some(&expected));

            let bound = QueryValues::SimpleValues(vec![1_i32.into(), "x".into()]);
            let subject = |prepared| match prepared {
                true => BatchQuerySubj::PreparedId(id.clone()),
                false => BatchQuerySubj::QueryString("UPDATE t SET a = ?".into()),
            };
            let child = |prepared| BatchQuery::new(subject(prepared), bound.clone());
            let body = BodyReqBatch::new(
                BatchType::Logged,
                vec![child(prepared_child), child(true), child(false)],
                Level::Any,
                params.serial_consistency,
                params.timestamp,
                params.keyspace.clone(),
                params.now_in_seconds,
            );
            let asked = flow.ask(BATCH, &body.serialize_to_vec(version));
            prop_assert_eq!(asked.parameters, Some(Parameters {
                consistency: Consistency(0),
                statements: 3,
                values: 6,
                page_size: Fact::Absent,
                paging_state: false,
                ..expected
            }));
            prop_assert!(flow.sink.anomalies.iter().all(|a| *a == Anomaly::UnknownPreparedId));
        }

        #[test]
        fn rows_are_counted(
            number in 3..6_u8,
            piece in prop_oneof![Just(usize::MAX), 1..200_usize],
            rows in 0..5_i32,
            metadata in prop_oneof![Just(true), Just(false)],
            global: bool,
            more: bool,
            changed: bool,
        ) {
            let body = rows_body(version(number), rows, metadata, global, more, changed && number == 5);
            let mut flow = Flow::started(number);
            flow.piece = piece;
            let answered = flow.answer(0, RESULT, &body);
            prop_assert_eq!(answered, Answered {
                body_bytes: body.len() as u32,
                tracing_id: None,
                warnings: Some(0),
                rows: Some(rows as u32),
                more_pages: more,
                accepts: false,
            });
        }

        /// Garbage tells no more than it is, and the same at any cut.
        #[test]
        fn survives_garbage_bodies(
            number in 3..6_u8,
            frames in prop::collection::vec(
                (any::<bool>(), 0..4_i16, 0..17_u8, 0..32_u8, any::<Vec<u8>>()), 1..30,
            ),
            piece in 1..50_usize,
        ) {
            let tell = |piece: usize| {
                let mut flow = Flow::started(number);
                flow.piece = piece;
                for (is_request, stream, opcode, flags, body) in &frames {
                    match is_request {
                        true => flow.request(*flags, *stream, *opcode, body),
                        false => flow.response(*flags, *stream, *opcode, body),
                    }
                }
                flow.sink
            };
            prop_assert_eq!(tell(piece), tell(usize::MAX));
        }
    }

    /// A result with a column of every shape of type.
    fn rows_body(
        version: Version,
        rows: i32,
        metadata: bool,
        global: bool,
        more: bool,
        changed: bool,
    ) -> Vec<u8> {
        let table = TableSpec {
            ks_name: "ks".into(),
            table_name: "t".into(),
        };
        let plain = |id| ColTypeOption { id, value: None };
        let of = |id, value| ColTypeOption {
            id,
            value: Some(value),
        };
        let int = || Box::new(plain(ColType::Int));
        let list = of(ColType::List, ColTypeOptionValue::CList(int()));
        let types = vec![
            plain(ColType::Varchar),
            of(ColType::Custom, ColTypeOptionValue::CString("class".into())),
            of(
                ColType::Set,
                ColTypeOptionValue::CSet(Box::new(list.clone())),
            ),
            of(
                ColType::Map,
                ColTypeOptionValue::CMap(int(), Box::new(list.clone())),
            ),
            of(
                ColType::Udt,
                ColTypeOptionValue::UdtType(CUdt {
                    ks: "ks".into(),
                    udt_name: "u".into(),
                    descriptions: vec![("f".into(), list.clone()), ("g".into(), *int())],
                }),
            ),
            of(
                ColType::Tuple,
                ColTypeOptionValue::TupleType(CTuple {
                    types: vec![list, *int()],
                }),
            ),
        ];
        let columns_count = types.len() as i32;
        let mut flags = RowsMetadataFlags::empty();
        flags.set(RowsMetadataFlags::GLOBAL_TABLE_SPACE, global);
        flags.set(RowsMetadataFlags::HAS_MORE_PAGES, more);
        flags.set(RowsMetadataFlags::NO_METADATA, !metadata);
        flags.set(RowsMetadataFlags::METADATA_CHANGED, changed);
        let column = |(at, col_type)| ColSpec {
            table_spec: (!global).then(|| table.clone()),
            name: format!("c{at}"),
            col_type,
        };
        let metadata = RowsMetadata {
            flags,
            columns_count,
            paging_state: more.then(|| CBytes::new(vec![1; 40])),
            new_metadata_id: changed.then(|| CBytesShort::new(vec![2; 16])),
            global_table_spec: (metadata && global).then(|| table.clone()),
            col_specs: match metadata {
                true => types.into_iter().enumerate().map(column).collect(),
                false => Vec::new(),
            },
        };
        let row = vec![CBytes::new(b"x".to_vec()); columns_count as usize];
        let rows = BodyResResultRows {
            metadata,
            rows_count: rows,
            rows_content: vec![row; rows as usize],
            protocol_version: version,
        };
        ResResultBody::Rows(rows).serialize_to_vec(version)
    }

    #[test]
    fn bytes_of_a_query() {
        let mut flow = Flow::started(4);
        // A statement, ONE, values and page size and serial consistency; one value, 10 rows, SERIAL.
        let mut body = long_string("SELECT a FROM t WHERE b = ?");
        body.extend([0, 1, 0x15, 0, 1, 0, 0, 0, 1, 9, 0, 0, 0, 10, 0, 8]);
        let asked = flow.ask(QUERY, &body);
        let parameters = asked.parameters.unwrap();
        assert_eq!(parameters.consistency.as_str(), "one");
        assert_eq!(parameters.serial_consistency, Fact::Is(Consistency(8)));
        assert_eq!((parameters.values, parameters.statements), (1, 1));
        assert_eq!(parameters.page_size, Fact::Is(10));
        assert!(!parameters.paging_state && !asked.tracing);
        assert_eq!(asked.body_bytes as usize, body.len());
    }

    #[test]
    fn what_stands_in_front_of_a_response() {
        let payload = [&[0, 1][..], &string("key"), &[0, 0, 0, 2, 1, 2]].concat();
        let warnings = [&[0, 2][..], &string("careful"), &string("again")].concat();
        let rows = rows_body(Version::V4, 3, true, true, false, false);
        let body = [&[9; 16][..], &warnings, &payload, &rows].concat();
        let mut flow = Flow::started(4);
        let text = query(4, "SELECT a FROM t", None);
        flow.request(0x06, 1, QUERY, &[&payload[..], &text].concat());
        flow.response(0x0E, 1, RESULT, &body);
        let (
            _,
            _,
            Details {
                asked, answered, ..
            },
        ) = flow.sink.told.pop().unwrap();
        assert!(asked.tracing);
        assert_eq!(asked.parameters.unwrap().consistency, Consistency(1));
        assert_eq!(answered.tracing_id, Some([9; 16]));
        assert_eq!(answered.warnings, Some(2));
        assert_eq!(answered.rows, Some(3));
        assert_eq!(flow.sink.anomalies, []);
    }

    #[test]
    fn errors_and_other_responses_have_no_rows() {
        let mut flow = Flow::started(4);
        for (opcode, body) in [
            (ERROR, &[0, 0, 0x12, 0, 0, 0][..]),
            (RESULT, &[0, 0, 0, 1]),
            (6, &[0, 0]),
        ] {
            let answered = flow.answer(0, opcode, body);
            assert_eq!(answered.rows, None);
            assert_eq!(answered.warnings, Some(0));
            assert_eq!(answered.body_bytes as usize, body.len());
        }
        flow.request(0, 1, QUERY, &query(4, "SELECT a FROM t", None));
        let error = [&[7; 16][..], &0x1200_i32.to_be_bytes()].concat();
        flow.response(0x02, 1, ERROR, &error);
        let (_, error, details) = flow.sink.told.pop().unwrap();
        assert_eq!(error, Some(ErrorCode::Code(0x1200)));
        assert_eq!(details.answered.tracing_id, Some([7; 16]));
    }

    #[test]
    fn what_cannot_be_read_is_not_known() {
        let mut flow = Flow::started(4);
        flow.request(0x01, 1, QUERY, b"compressed");
        flow.response(0x0B, 1, RESULT, b"compressed");
        let (
            _,
            _,
            Details {
                asked, answered, ..
            },
        ) = flow.sink.told.pop().unwrap();
        assert_eq!(asked.parameters, None);
        assert_eq!((answered.tracing_id, answered.warnings), (None, None));
        assert_eq!(answered.rows, None);
        assert_eq!(
            flow.ask(QUERY, &long_string("SELECT a FROM t")).parameters,
            None
        );
        assert_eq!(flow.ask(BATCH, &[0, 0, 1, 7]).parameters, None);
        assert_eq!(flow.ask(OPTIONS, &[]).parameters, None);
        let absurd = [&[0, 0, 0, 2, 0, 0, 0, 1][..], &[0xFF; 20]].concat();
        assert_eq!(flow.answer(0, RESULT, &absurd).rows, None);
        // Lists of lists, deeper than anybody goes.
        let mut deep = vec![0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0];
        deep.extend([0, 0x20].repeat(10_000));
        assert_eq!(flow.answer(0, RESULT, &deep).rows, None);
    }

    /// Beyond the part of a body that is read, some is known and some is not.
    #[test]
    fn behind_large_values() {
        for number in [4, 5] {
            let mut flow = Flow::started(number);
            let params = QueryParams {
                consistency: Level::LocalQuorum,
                values: Some(QueryValues::SimpleValues(vec!["x".repeat(200_000).into()])),
                page_size: Some(100),
                serial_consistency: Some(Level::LocalSerial),
                ..QueryParams::default()
            };
            let id = CBytesShort::new(b"id".to_vec());
            let metadata = (number >= 5).then(|| CBytesShort::new(b"metadata".to_vec()));
            let body = BodyReqExecuteOwned::new(id, metadata, params.clone());
            let asked = flow.ask(EXECUTE, &body.serialize_to_vec(version(number)));
            let expected = Parameters {
                serial_consistency: Fact::Open,
                page_size: Fact::Open,
                ..expected(&params, 1)
            };
            assert_eq!(asked.parameters, Some(expected));
        }
    }

    #[test]
    fn details_belong_to_their_request() {
        let mut flow = Flow::started(4);
        for (stream, level) in [(1_i16, 1_u8), (2, 4), (300, 6)] {
            let mut body = long_string("SELECT a FROM t");
            body.extend([0, level, 0]);
            flow.request(0, stream, QUERY, &body);
        }
        // On a stream that waits: the newer one counts.
        let mut body = long_string("SELECT a FROM t");
        body.extend([0, 5, 0]);
        flow.request(0, 2, QUERY, &body);
        for stream in [300, 2, 1] {
            flow.response(0, stream, RESULT, &[0, 0, 0, 1]);
        }
        let levels: Vec<_> = flow
            .sink
            .told
            .iter()
            .map(|(_, _, details)| details.asked.parameters.as_ref().unwrap().consistency.0)
            .collect();
        assert_eq!(levels, [6, 5, 1]);
    }

    #[test]
    fn levels_have_names() {
        let names: Vec<_> = (0..12).map(|level| Consistency(level).as_str()).collect();
        assert_eq!(names.last(), Some(&"other"));
        assert_eq!(names.first(), Some(&"any"));
        assert_eq!(Consistency(10).to_string(), "local_one");
    }
}
