//! Additions of `tag` to requests.

use crate::support::edit::*;
use crate::support::values::*;
use crate::support::*;
use cql_edit::Caller;

#[test]
fn a_request_is_tagged_beside_what_its_client_has_said() {
    for kind in KINDS {
        let mut flow = Edits::of(kind, "transform = \"tag\"\nservice = \"shop\"");
        let own = [&[0, 1][..], &string("own"), &[0, 0, 0, 1, 5]].concat();
        let body = ask(kind.version, &table(1));
        let with_own = [own, body.clone()].concat();
        if kind.version == 3 {
            flow.changed(QUERY, &body);
            assert_eq!(flow.noted.changed, 0);
            continue;
        }
        for (flags, body, entries) in [(0, body, 3), (4, with_own, 4)] {
            let bare = frame(kind.version, flags, 7, QUERY, &body);
            let sent = match kind.version {
                5 => kind.around(&bare),
                _ => bare,
            };
            flow.frees(7);
            let passed = flow.requests(&sent);
            let frames = kind.read(&passed);
            assert_eq!(frames[0][1], 4, "{kind:?}");
            let count = u16::from_be_bytes([frames[0][9], frames[0][10]]);
            assert_eq!(count, entries, "{kind:?}");
            let all = &frames[0];
            for text in [
                &b"underpass.service"[..],
                b"shop",
                b"underpass.client",
                b"192.0.2.1",
            ] {
                assert!(all.windows(text.len()).any(|w| w == text), "{kind:?}");
            }
            // `cassandra-protocol` does not read a request's payload.
            assert!(all.ends_with(&ask(kind.version, &table(1))), "{kind:?}");
        }
    }
}

#[test]
fn a_tag_says_all_that_is_known_of_the_caller() {
    let kind = KINDS[3];
    let settings = "transform = \"tag\"\nservice = \"shop\"\nhost = \"h1\"\nprefix = \"p.\"";
    let mut flow = Edits::of(kind, settings);
    let caller = Caller {
        rule: "r".into(),
        client: "192.0.2.1".into(),
        process: Some("java".into()),
        cgroup: Some("/web.slice".into()),
        ..Caller::default()
    };
    flow.editor.becomes(vec![step(settings)].into(), caller);
    let sent = kind.sent(0, 7, QUERY, &ask(kind.version, &table(1)));
    let passed = kind.read(&flow.requests(&sent));
    let expected = [
        ("p.service", "shop"),
        ("p.host", "h1"),
        ("p.rule", "r"),
        ("p.client", "192.0.2.1"),
        ("p.process", "java"),
        ("p.cgroup", "/web.slice"),
    ];
    let mut payload = (expected.len() as u16).to_be_bytes().to_vec();
    for (key, value) in expected {
        payload.extend([string(key), long_string(value)].concat());
    }
    assert!(passed[0][9..].starts_with(&payload));
}

#[test]
fn a_comment_says_who_is_calling_and_nothing_in_it_is_a_statement() {
    let settings = "transform = \"tag\"\nservice = \"shop\"\ncomment = true";
    let said = "/* service=shop rule=r client=192.0.2.1 process=a_/_DROP_TABLE_ks.t__/_ */ ";
    for kind in KINDS {
        let mut flow = Edits::of(kind, settings);
        let caller = Caller {
            rule: "r".into(),
            client: "192.0.2.1".into(),
            process: Some("a*/ DROP TABLE ks.t; /*".into()),
            ..Caller::default()
        };
        flow.editor.becomes(vec![step(settings)].into(), caller);
        // The payload comes first, of as many bytes as the flow's own make.
        let mut tagged = |opcode, body: &[u8]| {
            let sent = kind.sent(0, 7, opcode, body);
            flow.frees(7);
            let passed = kind.read(&flow.requests(&sent));
            assert_eq!(passed[0][1], if kind.version == 3 { 0 } else { 4 });
            passed[0][9..].to_vec()
        };
        let text = table(1);
        let whole = tagged(QUERY, &ask(kind.version, &text));
        let expected = ask(kind.version, &format!("{said}{text}"));
        assert!(whole.ends_with(&expected), "{kind:?}");
        assert_eq!(
            cql::Statement::of(format!("{said}{text}").as_bytes()),
            cql::Statement::of(text.as_bytes())
        );
        // Of a batch before the first text.
        let [id, one, two] = [Child::Id(b"id"), Child::Text(&text), Child::Text(&text)];
        let commented = format!("{said}{text}");
        let whole = tagged(BATCH, &batch(kind.version, &[id, one, two], None));
        let [id, one, two] = [
            Child::Id(b"id"),
            Child::Text(&commented),
            Child::Text(&text),
        ];
        assert!(whole.ends_with(&batch(kind.version, &[id, one, two], None)));
        // What is prepared has its id by its text.
        let body = prepare(kind.version, &text, None);
        assert!(tagged(PREPARE, &body).ends_with(&body), "{kind:?}");
        let body = execute_with(
            kind.version,
            b"id",
            parameters(kind.version, &[], None, None),
        );
        assert!(tagged(EXECUTE, &body).ends_with(&body), "{kind:?}");
    }
}
